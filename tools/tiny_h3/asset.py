"""A run's states, or a checkpoint exported from them, to the packed folder that the package ships.

PYTHONPATH=src:ports:adapters:tools python -m tiny_h3 pack --folder RUN --output adapters/vflash_adapters/packed/tiny_h3
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tiny_h3.export import export_checkpoint
from vflash_adapters.packed.pack import pack_folder
from vflash_adapters.tiny_checkpoint import Dimensions

MAX_BYTES = 25_000_000


def pack_run(folder: Path, output: Path, sizes: Dimensions) -> int:
    """Export `folder` as it was trained and pack that; the packed bytes. The same bytes on repeat."""
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "tiny-h3"
        export_checkpoint(folder, checkpoint, sizes)
        _check_tokenizer(folder, checkpoint)
        return pack_checkpoint(checkpoint, output)


def pack_checkpoint(checkpoint: Path, output: Path) -> int:
    """`output` must not exist. Raises `ValueError`, and leaves nothing, if it is larger than the package may carry."""
    byte_count = pack_folder(checkpoint, output)
    if byte_count > MAX_BYTES:
        shutil.rmtree(output)
        raise ValueError(f"{output} takes {byte_count} bytes, more than the {MAX_BYTES} that the package may carry")
    return byte_count


def _check_tokenizer(folder: Path, checkpoint: Path) -> None:
    """The tokenizer is learnt anew by the export; another release of its library must not learn another one."""
    trained, exported = (root / "tokenizer" / "tokenizer.json" for root in (folder, checkpoint))
    if trained.read_bytes() != exported.read_bytes():
        raise ValueError(f"{trained} is not the tokenizer that this machine learns; export where it was trained")
