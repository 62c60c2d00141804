"""Weight openers with their options bound, ready to be chosen by name."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_adapters.weights.sidecar.merges import merge_choice
from vflash_ports.weights import WeightSource


@frozen(kw_only=True)
class BufferedOpener:
    """A `WeightOpener`: owned buffers, 1, 2, 4 or 8 readers."""

    read_workers: int

    def __call__(self, path: Path) -> WeightSource:
        return BufferedWeights(path, read_workers=self.read_workers)


@frozen(kw_only=True)
class SidecarOpener:
    """A `WeightOpener`: payloads from a compressed sidecar; what the sidecar was not prepared for is mapped.

    A sidecar of the transformer alone is a choice, so other components are read from their own files; a folder that
    holds no sidecar at all is a mistake, and refused.
    """

    sidecar: Path | None
    read_workers: int
    merge: str

    def __call__(self, path: Path) -> WeightSource:
        from vflash_adapters.weights.sidecar.components import find_component_folder, refuse_empty_sidecar
        from vflash_adapters.weights.sidecar.source import SidecarWeights

        assert self.sidecar is not None  # settings refuse one without the other
        refuse_empty_sidecar(self.sidecar)
        if find_component_folder(self.sidecar, path) is None:
            return MmapWeights(path)
        return SidecarWeights(path, self.sidecar, read_workers=self.read_workers, merge=merge_choice(self.merge))
