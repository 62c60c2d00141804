"""Weight openers with their options bound, ready to be chosen by name."""

from __future__ import annotations

from pathlib import Path

from attrs import frozen

from vflash_adapters.weights.buffered_source import BufferedWeights
from vflash_adapters.weights.maintenance import merge_choice
from vflash_ports.errors import ContractError
from vflash_ports.weights import WeightSource


@frozen(kw_only=True)
class BufferedOpener:
    """A `WeightOpener`: owned buffers, 1, 2, 4 or 8 readers."""

    read_workers: int

    def __call__(self, path: Path) -> WeightSource:
        return BufferedWeights(path, read_workers=self.read_workers)


@frozen(kw_only=True)
class SidecarOpener:
    """A `WeightOpener`: payloads from the compressed sidecar prepared from the model or the component."""

    sidecar: Path | None
    read_workers: int
    merge: str

    def __call__(self, path: Path) -> WeightSource:
        if self.sidecar is None:
            raise ContractError("weight_reading is sidecar, but weight_sidecar names no folder; pass --weight-sidecar")
        from vflash_adapters.weights.sidecar.source import SidecarWeights

        return SidecarWeights(path, self.sidecar, read_workers=self.read_workers, merge=merge_choice(self.merge))
