"""The exact CUDA backends write over q from some length on: the same values as a whole call."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from vflash_adapters.attention.sdpa import sdpa_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", ["sdpa-cudnn", "sdpa-flash"])
def test_writing_over_q_changes_no_value(name: str) -> None:
    """Half the heads at a time, over strided views of one QKV tensor, from the length on where it is done."""
    backend = sdpa_attention(name)
    # At a real length flash never splits the keys, which it does by the number of heads and would round differently.
    qkv = torch.randn(backend.in_place_rows, 3, 16, 128, device="cuda", dtype=torch.bfloat16)
    whole = evolve(backend, in_place_rows=1 << 30)._attend(*qkv.clone().unbind(1))
    q, k, v = qkv.unbind(1)
    result = backend._attend(q, k, v)
    assert torch.equal(result, whole)
    assert result.data_ptr() == q.data_ptr()
