"""Where a request writes: the MP4, its receipt, the trace if asked for, latents that outlive a failed decode."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from vflash_ports.errors import ContractError, DeliveryError
from vflash_ports.media import LatentStore, MediaSink

NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@frozen(kw_only=True)
class Outputs:
    """`latents` are kept for good if asked for, else until the MP4 is published."""

    video: Path
    receipt: Path
    latents: Path
    keep_latents: bool
    trace: Path | None = None

    def check(self, sink: MediaSink, store: LatentStore | None) -> None:
        """Refuse whatever exists already, before any work; `store=None` where the latents are the input."""
        sink.check(self.video)
        if store is not None:
            store.check(self.latents)
        check_absent("receipt", self.receipt)
        check_absent("trace", self.trace)


def check_absent(what: str, path: Path | None) -> None:
    if path is not None and os.path.lexists(path):
        raise ContractError(f"{path} exists; it would be this clip's {what}: choose another output name")


def trace_path(output: Path) -> Path:
    return output.with_suffix(".denoise-trace.json")


def plan_outputs(output: Path, save_latents: Path | None, *, profiled: bool = False) -> Outputs:
    if not output.name:
        raise ContractError(f"output must name a file, got {str(output)!r}")
    outputs = Outputs(
        video=output,
        receipt=output.with_suffix(".receipt.json"),
        latents=save_latents or output.with_suffix(".latents.safetensors"),
        keep_latents=save_latents is not None,
        trace=trace_path(output) if profiled else None,
    )
    written = (outputs.video, outputs.receipt, outputs.latents, outputs.trace)
    paths = [path.absolute() for path in written if path is not None]
    if len(set(paths)) < len(paths):
        raise ContractError(f"save_latents {outputs.latents} is where the clip or its receipt goes; name another file")
    return outputs


def write_receipt(receipt: Mapping[str, Any], path: Path, *, what: str = "receipt") -> None:
    """Published whole or not at all, never over an existing file."""
    text = json.dumps(receipt, indent=2, ensure_ascii=False) + "\n"
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".vflash-receipt-") as scratch:
            draft = Path(scratch) / "receipt.json"
            _write(text, draft)
            try:
                os.link(draft, path)
            except OSError as error:
                if error.errno not in NO_HARD_LINKS:
                    raise
                _write(text, path)
    except OSError as error:
        raise DeliveryError(f"the video is complete, but its {what} {path} cannot be written: {error}") from error


def _write(text: str, path: Path) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
