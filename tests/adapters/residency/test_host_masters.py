"""A module that swaps computes the same bits, leaves nothing on its device, and gives its memory back."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from vflash_adapters.residency.host_masters import HostMasters

CPU = torch.device("cpu")


class Small(nn.Module):
    """Two linears, an embedding, a norm and a computed buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8, bias=False)])
        self.norm = nn.LayerNorm(8)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x) * self.scale


@pytest.fixture
def module() -> Small:
    torch.manual_seed(0)
    return Small().requires_grad_(requires_grad=False).eval()


def storages(module: nn.Module) -> list[int]:
    return [parameter.untyped_storage().data_ptr() for parameter in module.parameters()]


@pytest.mark.parametrize("owned", [True, False])
def test_at_work_the_whole_module_is_elsewhere(module: Small, owned: bool) -> None:
    """Inside the scope every parameter is a copy; outside, also after an error, the masters are back, bit for bit."""
    ids = torch.arange(10)
    expected = module(ids)
    masters = HostMasters(module, CPU, owned=owned)
    home = storages(module)
    with masters.at_work():
        away = storages(module)
        assert torch.equal(module(ids), expected)
    assert set(home).isdisjoint(away)
    assert storages(module) == home
    with pytest.raises(RuntimeError, match="stop"), masters.at_work():
        raise RuntimeError("stop")
    assert storages(module) == home
    assert torch.equal(module(ids), expected)


@pytest.mark.parametrize("owned", [True, False])
def test_streamed_each_part_is_there_for_its_own_forward_alone(module: Small, owned: bool) -> None:
    """Bit-equal, one part's copy alive at a time, and the masters back after a forward that fails."""
    ids = torch.arange(10)
    expected = module(ids)
    masters = HostMasters(module, CPU, owned=owned)
    masters.stream()
    home = storages(module)
    copies: list[weakref.ref[nn.Parameter]] = []
    alive: list[int] = []

    def watch(part: nn.Module, _inputs: object) -> None:
        copies.extend(weakref.ref(parameter) for parameter in part.parameters(recurse=False))
        alive.append(sum(ref() is not None for ref in copies))

    for part in (module.embed, *module.layers, module.norm):
        part.register_forward_pre_hook(watch)
    assert torch.equal(module(ids), expected)
    assert alive == [1, 2, 1, 2]  # each part's own parameters, none of the part before
    assert storages(module) == home
    with pytest.raises(RuntimeError):
        module.layers[0](torch.zeros(3, 5))
    assert storages(module) == home


def test_owned_masters_need_their_source_no_more(module: Small) -> None:
    """What the module held before dies; after `close` so do the masters, while the module itself may live on."""
    before = [weakref.ref(parameter) for parameter in module.parameters()]
    masters = HostMasters(module, CPU, owned=True)
    gc.collect()
    assert all(ref() is None for ref in before)
    held = [weakref.ref(parameter) for parameter in module.parameters()]
    masters.close()
    masters.close()
    gc.collect()
    assert all(ref() is None for ref in held)
    assert list(module.parameters()) == []


def test_dtypes_are_kept(module: Small) -> None:
    """Mixed precision stays mixed: half, float32 and FP8 codes side by side."""
    module.layers[0].half()
    module.norm.to(torch.float8_e4m3fn)
    dtypes = [parameter.dtype for parameter in module.parameters()]
    masters = HostMasters(module, CPU, owned=True)
    assert [parameter.dtype for parameter in module.parameters()] == dtypes
    with masters.at_work():
        assert [parameter.dtype for parameter in module.parameters()] == dtypes
