"""Reads files named on stdin with tight limits and prints, for each, a JSON line: what came out, seconds, memory."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image

from vflash_adapters.media.reference_limits import ReferenceLimits
from vflash_adapters.media.reference_reader import FileReferenceReader
from vflash_ports.errors import MediaError

ROOM_BYTES = 768 << 20  # address space beyond what is mapped after the imports
LIMITS = ReferenceLimits(
    picture_bytes=1 << 20, picture_pixels=1 << 20, media_bytes=4 << 20, frame_pixels=1 << 20, clip_bytes=64 << 20
)


def read(reader: FileReferenceReader, path: Path) -> str:
    if path.name.startswith("picture"):
        return str(list(reader.picture(path).shape))
    if path.name.startswith("video"):
        clip = reader.video(path, max_frames=48, sample_rate_hz=32000)
        assert clip.frames is not None
        return str(list(clip.frames.shape))
    clip = reader.audio(path, max_seconds=2.0, sample_rate_hz=32000)
    assert clip.waveform is not None
    assert bool(clip.waveform.isfinite().all())
    return str(list(clip.waveform.shape))


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main() -> None:
    Image.init()
    torch.zeros(8).sum(), np.zeros(8).sum(), av.library_versions
    reader = FileReferenceReader(limits=LIMITS)
    limit = mapped_bytes() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for line in sys.stdin:
        path = Path(line.strip())
        started = time.monotonic()
        try:
            outcome = {"read": read(reader, path)}
        except MediaError as error:
            outcome = {"refused": str(error)}
        # Anything else ends this process with a traceback: the test then knows the file.
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"seconds": time.monotonic() - started, "peak_kib": peak_kib, **outcome}), flush=True)


if __name__ == "__main__":
    main()
