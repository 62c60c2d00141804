"""What every residency promises, over every adapter: the same bits, in order, pass after pass; nothing left over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping

import pytest
import torch
from attrs import define, field, frozen

from vflash_adapters.residency.block_ring import BlockRing
from vflash_adapters.residency.cards import Card
from vflash_adapters.residency.resident import Resident
from vflash_ports.errors import ClosedError, UnsupportedError
from vflash_ports.observer import SilentObserver
from vflash_ports.residency import BlockStack, Residency
from vflash_ports.weights import TensorSpec

CPU = torch.device("cpu")
RESIDENCIES: dict[str, Callable[[], Residency]] = {
    "resident": Resident,
    "block-ring": BlockRing,
    "block-ring, slabs of one tensor": lambda: BlockRing(slab_bytes=2**11),
}
DTYPES = {"norm": torch.bfloat16, "qkv.weight": torch.float8_e4m3fn, "qkv.scale": torch.float32, "out": torch.bfloat16}
SHAPES = {"norm": (5,), "qkv.weight": (24, 16), "qkv.scale": (24, 1), "out": (31, 33)}


@define
class RandomBlocks:
    """A loader of random bits, every byte of every block another draw; `fail_at` breaks off at that block."""

    count: int
    fail_at: int = -1
    loaded: list[int] = field(factory=list)
    handed: list[weakref.ref[torch.Tensor]] = field(factory=list)

    def specs(self) -> Mapping[str, TensorSpec]:
        return {
            name: TensorSpec(name=name, dtype=DTYPES[name], shape=shape, byte_count=len(self._bits(0, name)))
            for name, shape in SHAPES.items()
        }

    def load_into(self, index: int, out: Mapping[str, torch.Tensor]) -> None:
        self.handed += [weakref.ref(tensor) for tensor in out.values()]
        if index == self.fail_at:
            raise OSError("the disk is gone")
        assert set(out) == set(SHAPES)
        for name, tensor in out.items():
            tensor.copy_(self._bits(index, name).view(tensor.dtype).view(tensor.shape))
        self.loaded.append(index)

    def expected(self, index: int) -> dict[str, bytes]:
        return {name: self._bits(index, name).numpy().tobytes() for name in SHAPES}

    def _bits(self, index: int, name: str) -> torch.Tensor:
        count = torch.Size(SHAPES[name]).numel() * DTYPES[name].itemsize
        generator = torch.Generator().manual_seed(1000 * index + list(SHAPES).index(name))
        return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)


@frozen(eq=False)
class Bound:
    """What `bind` makes: views, and a count of how often it was asked."""

    tensors: Mapping[str, torch.Tensor]

    def bits(self) -> dict[str, bytes]:
        return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in self.tensors.items()}


@pytest.fixture(params=RESIDENCIES)
def residency(request: pytest.FixtureRequest) -> Residency:
    return RESIDENCIES[request.param]()


def one_pass(stack: BlockStack[Bound], evaluation: int = 0) -> list[dict[str, bytes]]:
    return [block.bits() for block in stack.blocks(SilentObserver(), evaluation=evaluation)]


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_every_pass_yields_every_block_in_order(residency: Residency, count: int) -> None:
    """Pass after pass the same bits, for odd and even counts, FP8 codes and scales included."""
    loader = RandomBlocks(count)
    stack = residency.load(loader, Bound, CPU)
    expected = [loader.expected(index) for index in range(count)]
    for evaluation in range(4):
        assert one_pass(stack, evaluation) == expected
    assert sorted(loader.loaded) == list(range(count))


@pytest.mark.parametrize("stop_after", [1, 2, 4, 5])
@pytest.mark.parametrize("how", ["exception", "left open", "closed"])
def test_an_abandoned_pass_does_not_harm_the_next(residency: Residency, stop_after: int, how: str) -> None:
    """A pass that an exception cut short, or that is still referenced, is followed by whole and right passes."""
    loader = RandomBlocks(5)
    stack = residency.load(loader, Bound, CPU)
    kept = stack.blocks(SilentObserver(), evaluation=0)
    for _, _block in zip(range(stop_after), kept, strict=False):
        pass
    if how == "closed" and hasattr(kept, "close"):
        kept.close()
    if how == "exception":
        with pytest.raises(RuntimeError, match="mid-pass"):
            fail_in_pass(stack, stop_after)
    for _ in range(3):
        assert one_pass(stack) == [loader.expected(index) for index in range(5)]


def fail_in_pass(stack: BlockStack[Bound], stop_after: int) -> None:
    for number, _ in enumerate(stack.blocks(SilentObserver(), evaluation=0), 1):
        if number == stop_after:
            raise RuntimeError("mid-pass")


def test_bind_is_called_once_a_block_or_once_a_slot(residency: Residency) -> None:
    """Binding is cold: never once a pass."""
    bound: list[Bound] = []

    def bind(tensors: Mapping[str, torch.Tensor]) -> Bound:
        bound.append(Bound(tensors))
        return bound[-1]

    stack = residency.load(RandomBlocks(6), bind, CPU)
    calls = len(bound)
    assert calls == (6 if residency.name == "resident" else 2)
    one_pass(stack)
    one_pass(stack)
    assert len(bound) == calls


def test_memory_says_what_is_held(residency: Residency) -> None:
    """A ring holds two blocks on the device, whatever the depth; the pinned payload is the stack, once."""
    loader = RandomBlocks(7)
    stack = residency.load(loader, Bound, CPU)
    block = sum(spec.byte_count for spec in loader.specs().values())
    memory = stack.memory()
    assert memory.block_bytes == block
    if residency.name == "resident":
        assert memory.device_weight_bytes == 7 * block
        assert memory.pinned_payload_bytes == memory.pinned_allocated_bytes == 0
    else:
        assert memory.device_weight_bytes == 2 * block
        assert memory.pinned_payload_bytes == 7 * block
        assert memory.pinned_allocated_bytes >= 7 * block


def test_a_closed_stack_holds_no_weights(residency: Residency) -> None:
    """After `close` every tensor dies, memory reads zero, another pass is refused, and closing again is nothing."""
    seen: list[weakref.ref[torch.Tensor]] = []

    def bind(tensors: Mapping[str, torch.Tensor]) -> Bound:
        seen.extend(weakref.ref(tensor) for tensor in tensors.values())
        return Bound(tensors)

    stack = residency.load(RandomBlocks(3), bind, CPU)
    one_pass(stack)
    stack.close()
    stack.close()
    gc.collect()
    assert all(ref() is None for ref in seen)
    memory = stack.memory()
    assert (memory.device_weight_bytes, memory.pinned_payload_bytes, memory.pinned_allocated_bytes) == (0, 0, 0)
    with pytest.raises(ClosedError, match="released"):
        stack.blocks(SilentObserver(), evaluation=0)


def test_a_failed_load_keeps_nothing(residency: Residency) -> None:
    """The loader's error arrives as it is, and holding on to it does not hold on to the blocks loaded before."""
    loader = RandomBlocks(4, fail_at=2)
    with pytest.raises(OSError, match="disk is gone") as caught:
        residency.load(loader, Bound, CPU)
    gc.collect()
    whole_blocks = loader.handed[: 2 * len(SHAPES)]
    assert caught.value is not None
    assert all(ref() is None for ref in whole_blocks)


def test_a_cpu_takes_any_stack(residency: Residency) -> None:
    """The host's memory is the plan's business."""
    residency.check(CPU, 1 << 60)


@pytest.mark.parametrize(
    ("capability", "gib", "stack_gib", "fits"),
    [
        ((9, 0), 139, 36, True),
        ((9, 0), 75, 36, True),
        ((9, 0), 74, 36, False),
        ((12, 0), 95, 36, True),
        ((12, 0), 89, 18, False),
        ((8, 6), 20, 36, False),
        ((8, 9), 48, 18, False),
        ((8, 6), 20, 1, True),
        ((8, 6), 0.5, 1, False),
    ],
)
def test_resident_knows_its_cards(capability: tuple[int, int], gib: float, stack_gib: float, fits: bool) -> None:
    """A released model stays resident on SM90 from 75 GiB and SM120 from 90 GiB alone; a small one where it fits."""
    resident = Resident(card=lambda _: Card(capability=capability, total_bytes=int(gib * 2**30)))
    device = torch.device("cuda:0")
    if fits:
        resident.check(device, int(stack_gib * 2**30))
    else:
        with pytest.raises(UnsupportedError, match="block-ring"):
            resident.check(device, int(stack_gib * 2**30))
