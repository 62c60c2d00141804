"""What Veda's kernel for compute capability 9.0 refuses to read, before anything is launched."""

from __future__ import annotations

import pytest
import torch

from vflash_adapters.attention.veda.hopper_attend import FARTHEST, HopperConfig, _check_reach, attend_kept
from vflash_ports.errors import ContractError


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """On tensors that are refused, nothing else is looked at."""
    return attend_kept(q, k, v, None, tiling=None, head_shape=None, config=HopperConfig())


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("rows between 16 bytes", lambda flat: flat.as_strided((8, 3, 64), (196, 64, 1))),
        ("heads between 16 bytes", lambda flat: flat.as_strided((8, 3, 64), (208, 68, 1))),
        ("values apart", lambda flat: flat.as_strided((8, 3, 64), (384, 128, 2))),
        ("an address between 16 bytes", lambda flat: flat[4 : 4 + 8 * 3 * 64].view(8, 3, 64)),
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_rows_that_are_not_copied_16_bytes_at_a_time_are_refused(name: str, view, place: int) -> None:
    """An error that names the tensor, its strides and the cure, instead of other rows than were meant."""
    qkv = [torch.zeros(8, 3, 64, dtype=torch.bfloat16) for _ in range(3)]
    qkv[place] = view(torch.zeros(6000, dtype=torch.bfloat16))
    told = rf"^Veda kernels 'hopper': .* 16 bytes, but {'qkv'[place]} \(8, 3, 64\) has strides .*veda_kernels='triton'"
    with pytest.raises(ContractError, match=told):
        attend(*qkv)


@pytest.mark.parametrize(
    "view",
    [
        lambda flat: flat.as_strided((8, 3, 64), (576, 72, 1)),
        lambda flat: flat[8 : 8 + 8 * 3 * 64].view(3, 8, 64).transpose(0, 1),
    ],
    ids=["heads apart", "heads first"],
)
def test_heads_need_not_lie_side_by_side(view, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are gathered head by head, so these reach the launch."""

    class ReachedError(Exception):
        pass

    def reached(*arguments: object, **options: object) -> None:
        raise ReachedError

    monkeypatch.setattr(torch.cuda, "get_device_properties", reached)
    with pytest.raises(ReachedError):
        attend(*(view(torch.zeros(6000, dtype=torch.bfloat16)) for _ in range(3)))


@pytest.mark.parametrize("place", range(3))
def test_what_lies_beyond_its_numbers_is_refused(place: int) -> None:
    """The longest clip that still fits passes; one row more is an error with the cure, not a wrong row."""
    row = 3 * 56 * 128
    most = (FARTHEST - 1) // row
    assert most > 190_000
    fused = torch.empty(most + 1, 3, 56, 128, dtype=torch.bfloat16, device="meta")
    fits = fused[:most].unbind(1)
    _check_reach(**dict(zip("qkv", fits, strict=True)))
    qkv = [*fits]
    qkv[place] = fused[:, place]
    with pytest.raises(
        ContractError, match=rf"17,179,869,184 elements, but {'qkv'[place]} .* strides .*shorter.*'triton'"
    ):
        attend(*qkv)
