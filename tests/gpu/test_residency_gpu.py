"""The ring on a real device: the same bits as the resident stack under load, and every byte given back."""

from __future__ import annotations

import gc
from collections.abc import Mapping

import psutil
import pytest
import torch
from attrs import frozen

from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.residency.host_masters import HostMasters
from vflash_adapters.residency.resident import Resident
from vflash_ports.observer import SilentObserver
from vflash_ports.residency import BlockStack
from vflash_ports.weights import TensorSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)
WIDTH, COUNT = 3000, 7


@frozen
class RandomMatrices:
    """Block i is one matrix of 18 MB, drawn with seed i."""

    count: int = COUNT

    def specs(self) -> Mapping[str, TensorSpec]:
        size = WIDTH * WIDTH * 2
        return {"w": TensorSpec(name="w", dtype=torch.bfloat16, shape=(WIDTH, WIDTH), byte_count=size)}

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        generator = torch.Generator().manual_seed(index)
        drawn = torch.randn(WIDTH, WIDTH, generator=generator).mul_(WIDTH**-0.5)
        out["w"].copy_(drawn)


def run(stack: BlockStack[torch.Tensor], x: torch.Tensor, passes: int, stop: int = COUNT) -> torch.Tensor:
    """Long enough products that copies and compute overlap; nothing waits for the host."""
    for evaluation in range(passes):
        for number, weight in enumerate(stack.blocks(SilentObserver(), evaluation=evaluation)):
            if number == stop:
                break
            x = torch.tanh(x @ weight)
    return x


def bind(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return tensors["w"]


@pytest.mark.parametrize("rows", [8, 20_000])
def test_the_ring_is_the_resident_stack(rows: int) -> None:
    """Bit-equal over many passes, copy-bound and compute-bound, and after a pass that was cut short."""
    resident = Resident().load(RandomMatrices(), bind, CUDA)
    ring = BlockRing(slab_bytes=2**26).load(RandomMatrices(), bind, CUDA)
    x = torch.randn(rows, WIDTH, device=CUDA).to(torch.bfloat16)
    expected = run(resident, x, 6)
    for _ in range(3):
        assert torch.equal(run(ring, x, 6), expected)
        run(ring, x, 1, stop=3)
    resident.close()
    ring.close()


def test_closing_gives_everything_back() -> None:
    """Device and host memory are what they were; the pinned slabs are not kept by any cache."""
    torch.mm(*torch.ones(2, 8, 8, dtype=torch.bfloat16, device=CUDA))  # cuBLAS keeps a workspace from here on
    gc.collect()
    device, host = torch.cuda.memory_allocated(CUDA), psutil.Process().memory_info().rss
    ring = BlockRing(slab_bytes=2**26).load(RandomMatrices(), bind, CUDA)
    run(ring, torch.zeros(8, WIDTH, dtype=torch.bfloat16, device=CUDA), 1)
    assert ring.memory().pinned_payload_bytes == COUNT * WIDTH * WIDTH * 2
    assert torch.cuda.memory_allocated(CUDA) - device < 3 * WIDTH * WIDTH * 2
    ring.close()
    del ring
    gc.collect()
    assert torch.cuda.memory_allocated(CUDA) <= device + 2**20
    assert psutil.Process().memory_info().rss - host < 0.5 * COUNT * WIDTH * WIDTH * 2


def test_swapped_modules_work_on_the_device_and_wait_in_pinned_memory() -> None:
    """The same values as a module that stays; between uses the device holds none of its weights."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64)).bfloat16()
    module.requires_grad_(requires_grad=False)
    x = torch.randn(300, 512, device=CUDA).bfloat16()
    expected = torch.nn.Sequential(*module).to(CUDA)(x)
    module.cpu()
    masters = HostMasters(module, CUDA, owned=True)
    assert all(parameter.is_pinned() for parameter in module.parameters())
    before = torch.cuda.memory_allocated(CUDA)
    with masters.at_work():
        found = module(x)
    assert torch.equal(found, expected)
    masters.stream()
    assert torch.equal(module(x), expected)
    del found
    assert torch.cuda.memory_allocated(CUDA) <= before
    masters.close()
