"""An adapter's scale on CUDA: multiplied in float32, as on a CPU and as in the fused activation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vflash.model.residual import AdaptedLinear, Part, with_residual
from vflash_adapters.linear.bf16 import Bf16Linear
from vflash_ports.adapters import LowRank
from vflash_ports.linear import PackedLinear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SCALE = 0.7123456
"""Not a number that BF16 has."""


def draw(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(torch.bfloat16)


def test_the_scale_is_not_rounded() -> None:
    """Bit for bit the product with the scale's float32, inside the stack and outside it."""
    values, weight, down, up = (
        draw(333, 512, seed=1),
        draw(768, 512, seed=2),
        draw(16, 512, seed=3),
        draw(768, 16, seed=4),
    )
    adapted = AdaptedLinear(
        base=Bf16Linear().bind(PackedLinear(weight=weight)),
        down=down,
        ups=(up,),
        scales=tuple(torch.tensor([SCALE], device="cuda")),
        parts=(Part(rank_start=0, rank_stop=16, column_start=0, column_stop=768),),
    )
    update = F.linear(F.linear(values, down), up)
    product = (update.double() * torch.tensor(SCALE).double().item()).float().bfloat16()
    expected = (F.linear(values, weight).double() + product.double()).float().bfloat16()
    assert torch.equal(adapted(values), expected)
    outside = with_residual(F.linear(values, weight), values, LowRank(down=down, up=up, scale=SCALE))
    assert torch.equal(outside, expected)
