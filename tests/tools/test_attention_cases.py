"""Which exact backends the attention bench times on a device."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from attention_cases import MAIN, exact_names

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "head_dim", "dtype", "names"),
    [
        ((9, 0), 128, torch.bfloat16, {"sdpa-cudnn", "sdpa-flash", "hopper"}),
        ((9, 0), 32, torch.float16, {"sdpa-cudnn", "sdpa-flash"}),
        ((8, 9), 128, torch.bfloat16, {"sdpa-cudnn", "sdpa-flash"}),
        ((9, 0), 128, torch.float32, set()),
    ],
)
def test_a_device_has_the_backends_that_are_made_for_it(
    capability: tuple[int, int], head_dim: int, dtype: torch.dtype, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the backends' own words; torch's CPU kernels are for a CPU alone."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    case = evolve(MAIN, head_dim=head_dim)
    found = exact_names(case.layout(CUDA, dtype))
    assert set(found) == names
    assert len(found) == len(names)
    assert exact_names(case.layout(CPU, dtype)) == ("sdpa",)
