"""One FFmpeg child: fed, waited for under one deadline, and always reaped. Its own stderr is in every error."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from vflash_ports.errors import DeliveryError

STDERR_TAIL_BYTES = 2000
WRITE_BYTES = 1 << 20
LINUX_PIPE_BYTES = 1 << 20
F_SETPIPE_SZ = 1031

# Runs between fork and FFmpeg: Linux then kills FFmpeg when the thread that started it is gone, so that even
# `kill -9` leaves no orphan. A fresh interpreter does it because code run after fork in a threaded process may hang.
LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that wanted this encoder is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class FfmpegProcess:
    """A context: leaving it kills and reaps a child that still runs. `timeout_s` counts feeding and waiting only."""

    def __init__(self, executable: Path, arguments: Sequence[str], *, timeout_s: float, fed: bool) -> None:
        # Not beside the output: when that disk is full, FFmpeg must still be able to say so.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child is reaped
        self._timeout_s = timeout_s
        self._spent_s = 0.0
        launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), str(executable)]
        try:
            self._child = subprocess.Popen(
                [*launcher, *arguments],
                stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                bufsize=0,
            )
        except OSError as error:
            self._stderr.close()
            raise DeliveryError(f"FFmpeg {executable} could not be started: {error.strerror}") from error
        if self._child.stdin is not None:
            _prepare_pipe(self._child.stdin.fileno())

    def __enter__(self) -> FfmpegProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._child.wait()
        self._stderr.close()

    def kill(self) -> None:
        """If it still runs; leaving the context reaps it."""
        if self._child.poll() is None:
            self._child.kill()

    @property
    def seconds(self) -> float:
        """Seconds spent feeding and waiting so far."""
        return self._spent_s

    def feed(self, data: memoryview) -> None:
        """Write all of `data` to FFmpeg's stdin, or raise `DeliveryError` when it died or the deadline passed."""
        assert self._child.stdin is not None, "this FFmpeg reads a file"
        pipe = self._child.stdin.fileno()
        started, before = time.monotonic(), self._spent_s
        try:
            while data:
                self._spent_s = before + time.monotonic() - started
                data = data[self._write_some(pipe, data) :]
        except BrokenPipeError:
            self.finish()
            raise DeliveryError(f"FFmpeg stopped reading before the last frame: {self._said()}") from None
        finally:
            self._spent_s = before + time.monotonic() - started

    def finish(self) -> None:
        """Close the feed, wait for the child, and raise `DeliveryError` unless it succeeded in time."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        started = time.monotonic()
        try:
            status = self._child.wait(timeout=max(0.0, self._timeout_s - self._spent_s))
        except subprocess.TimeoutExpired:
            raise self._too_late() from None
        finally:
            self._spent_s += time.monotonic() - started
        if status != 0:
            raise DeliveryError(f"FFmpeg {_ending(status)}: {self._said()}")

    def _write_some(self, pipe: int, data: memoryview) -> int:
        try:
            return os.write(pipe, data[:WRITE_BYTES])
        except BlockingIOError:
            pass
        left_s = self._timeout_s - self._spent_s
        poller = select.poll()
        poller.register(pipe, select.POLLOUT)
        if left_s <= 0 or not poller.poll(left_s * 1000):
            raise self._too_late()
        return 0

    def _too_late(self) -> DeliveryError:
        return DeliveryError(
            f"timed out: FFmpeg did not finish within {self._timeout_s:g} s and was stopped; "
            f"raise the timeout or choose a faster preset. It said: {self._said()}"
        )

    def _said(self) -> str:
        log = self._stderr.fileno()
        # pread leaves the position alone, which the child shares.
        tail = os.pread(log, STDERR_TAIL_BYTES, max(0, os.fstat(log).st_size - STDERR_TAIL_BYTES))
        return tail.decode(errors="replace").strip() or "(nothing)"


def _ending(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    if status == 255:  # what it makes of a signal that it caught; of EPERM too, and then it says so
        return "failed with status 255, as when it is told to stop"
    # FFmpeg exits with the low byte of a negative error number.
    reason = f" ({os.strerror(256 - status)})" if 256 - status in errno.errorcode else ""
    return f"failed with status {status}{reason}"


def _prepare_pipe(pipe: int) -> None:
    os.set_blocking(pipe, False)
    if sys.platform == "linux":
        import fcntl

        # Without permission the user's pipe budget is spent: the default size works, with more wake-ups.
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(pipe, F_SETPIPE_SZ, LINUX_PIPE_BYTES)
