"""Finding FFmpeg: the one on PATH, else the binary that imageio-ffmpeg ships."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

from vflash_ports.errors import UnsupportedError

PROBE_TIMEOUT_S = 30.0
CURE = "install FFmpeg (`apt-get install ffmpeg`) or the `imageio-ffmpeg` package"


def find_ffmpeg(executable: Path | None = None) -> Path:
    """The FFmpeg to run: `executable` if given, else PATH, else imageio-ffmpeg. `UnsupportedError` says the cure."""
    if executable is not None:
        found = shutil.which(executable)
        if found is None:
            raise UnsupportedError(f"FFmpeg {executable} is not an executable file: {CURE}")
        return Path(found)
    on_path = shutil.which("ffmpeg")
    if on_path is not None:
        return Path(on_path)
    return _bundled()


def require_encoders(executable: Path, *names: str) -> None:
    """`UnsupportedError` unless this FFmpeg starts and was built with every named encoder."""
    status = executable.stat()
    available = _encoders(executable, status.st_mtime_ns, status.st_size)
    missing = [name for name in names if name not in available]
    if missing:
        raise UnsupportedError(
            f"FFmpeg {executable} has no encoder {', '.join(missing)}: name another FFmpeg or encoder, or {CURE}"
        )


def require_working(executable: Path, encoder: str) -> None:
    """`UnsupportedError` unless a few black frames can be encoded: a build may name hardware that is not there."""
    command = [str(executable), "-hide_banner", "-loglevel", "error", "-nostdin"]
    command += ["-f", "lavfi", "-i", "color=black:size=256x256:rate=24:duration=0.2"]
    command += ["-pix_fmt", "yuv420p", "-c:v", encoder, "-f", "null", "-"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(
            f"encoder {encoder} of FFmpeg {executable} does not run ({error}): name the encoder libx264"
        ) from error
    if done.returncode != 0:
        said = done.stderr.strip()[-500:]
        raise UnsupportedError(f"encoder {encoder} does not run on this machine ({said}): name the encoder libx264")


def _bundled() -> Path:
    try:
        import imageio_ffmpeg

        return Path(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(f"no FFmpeg on PATH and none from imageio-ffmpeg ({error}): {CURE}") from error


@cache
def _encoders(executable: Path, _modified_ns: int, _size: int) -> frozenset[str]:
    command = [str(executable), "-hide_banner", "-loglevel", "error", "-nostdin", "-encoders"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"FFmpeg {executable} does not start ({error}): {CURE}") from error
    if done.returncode != 0:
        said = done.stderr.strip()[-500:]
        raise UnsupportedError(f"FFmpeg {executable} does not start (status {done.returncode}: {said}): {CURE}")
    return frozenset(fields[1] for line in done.stdout.splitlines() if len(fields := line.split()) > 1)
