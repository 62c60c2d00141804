"""FFmpeg missing, broken, killed or hung, a full disk, a read-only folder: a clear error, no orphan, nothing left."""

from __future__ import annotations

import math
import os
import resource
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_feeder import PIECES_AHEAD, FfmpegFeeder
from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_adapters.media.ffmpeg_process import FfmpegProcess
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_ports.errors import DeliveryError, MediaError, UnsupportedError
from vflash_ports.media import Clip, MediaSink

Mp4Sink = type[FfmpegFileSink] | type[FfmpegPipeSink]
LISTS_ENCODERS = 'case "$*" in *-encoders*) echo " V libx264 x264"; echo " A aac AAC"; exit 0;; esac\n'


@pytest.fixture(params=[FfmpegFileSink, FfmpegPipeSink], ids=["file", "pipe"])
def kind(request: pytest.FixtureRequest) -> Mp4Sink:
    return request.param


@pytest.fixture
def fake_ffmpeg(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A shell script that lists the encoders and then does `body` instead of encoding."""

    def make(body: str) -> Path:
        path = tmp_path_factory.mktemp("bin") / "ffmpeg"
        path.write_text(f"#!/bin/sh\n{LISTS_ENCODERS}{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def grey_clip(frames: Iterator[torch.Tensor] | None = None, *, count: int = 240, size: int = 128) -> Clip:
    """Ten seconds, over 11 MB of RGB: more than any pipe buffer holds."""
    return Clip(
        width=size,
        height=size,
        frame_count=count,
        fps=24,
        frames=frames if frames is not None else iter(torch.full((count, 3, size, size), 0.5).split(24)),
        waveform=torch.zeros((2, count * 32000 // 24)),
        sample_rate_hz=32000,
    )


def no_children() -> bool:
    return psutil.Process().children(recursive=True) == []


def test_a_missing_ffmpeg_is_refused_before_any_work(
    kind: Mp4Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` says how to get one; without one on PATH the bundled binary serves."""
    with pytest.raises(UnsupportedError, match=r"absent.*install FFmpeg"):
        kind(ffmpeg=tmp_path / "absent").check(tmp_path / "out.mp4")
    monkeypatch.setenv("PATH", str(tmp_path))
    kind().check(tmp_path / "out.mp4")
    import imageio_ffmpeg

    def none() -> str:
        raise RuntimeError("no binary for this platform")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", none)
    with pytest.raises(UnsupportedError, match=r"no FFmpeg on PATH.*install FFmpeg"):
        kind().check(tmp_path / "out.mp4")


def test_an_ffmpeg_without_the_encoder_is_refused(
    kind: Mp4Sink, fake_ffmpeg: Callable[[str], Path], tmp_path: Path
) -> None:
    """A build without the named encoder, and one that does not start, are told apart; nothing falls back."""
    with pytest.raises(UnsupportedError, match="h264_nvenc"):
        kind(encoding=Encoding(encoder="h264_nvenc"), ffmpeg=fake_ffmpeg("exit 0")).check(tmp_path / "out.mp4")
    broken = fake_ffmpeg("exit 0")
    broken.write_text("#!/bin/sh\necho library missing >&2\nexit 127\n")
    with pytest.raises(UnsupportedError, match=r"does not start.*library missing"):
        kind(ffmpeg=broken).check(tmp_path / "out.mp4")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'Conversion failed: no luck' >&2; exit 1", "status 1: Conversion failed: no luck"),
        ("cat >/dev/null; echo 'too late' >&2; exit 3", "status 3: too late"),
        ("echo 'caught signal 15' >&2; exit 255", "status 255, as when it is told to stop: caught signal 15"),
        ("echo 'going down' >&2; kill -9 $$", "killed by signal 9: going down"),
        ("exit 0", "cannot be read back|stopped reading"),
        ('for last; do :; done; echo junk > "$last"; cat >/dev/null', "cannot be read back"),
    ],
)
def test_a_failing_encoder_is_quoted(
    kind: Mp4Sink, fake_ffmpeg: Callable[[str], Path], tmp_path: Path, body: str, message: str
) -> None:
    """Its own last words are in the error, whether it dies before, while or after reading; nothing is left."""
    with pytest.raises(DeliveryError, match=message):
        kind(ffmpeg=fake_ffmpeg(body)).write(grey_clip(), tmp_path / "out.mp4")
    assert list(tmp_path.iterdir()) == []
    assert no_children()


@pytest.mark.parametrize("body", ["exec sleep 60", "cat >/dev/null; exec sleep 60", "kill -STOP $$"])
def test_a_hung_encoder_times_out_and_is_reaped(
    kind: Mp4Sink, fake_ffmpeg: Callable[[str], Path], tmp_path: Path, body: str
) -> None:
    """One deadline over feeding and waiting; the error says time-out, not failure, and the child is gone."""
    sink = kind(encoding=Encoding(timeout_s=0.6), ffmpeg=fake_ffmpeg(f"echo working >&2; {body}"))
    started = time.monotonic()
    with pytest.raises(DeliveryError, match=r"timed out.*0\.6 s.*working"):
        sink.write(grey_clip(), tmp_path / "out.mp4")
    assert time.monotonic() - started < 4
    assert list(tmp_path.iterdir()) == []
    assert no_children()


@pytest.mark.parametrize(
    ("stop", "message"),
    [(signal.SIGKILL, "signal 9"), (signal.SIGTERM, "told to stop"), (signal.SIGSTOP, "timed out")],
)
def test_the_real_encoder_killed_or_frozen_while_fed(stop: signal.Signals, message: str, tmp_path: Path) -> None:
    """FFmpeg shot or asked to stop half way is a failure; FFmpeg frozen half way is a time-out."""

    def frames() -> Iterator[torch.Tensor]:
        for index, part in enumerate(torch.full((240, 3, 128, 128), 0.5).split(24)):
            if index == 5:
                (child,) = psutil.Process().children()
                child.send_signal(stop)
            yield part

    sink = FfmpegPipeSink(encoding=Encoding(timeout_s=1.5))
    with pytest.raises(DeliveryError, match=message):
        sink.write(grey_clip(frames()), tmp_path / "out.mp4")
    assert list(tmp_path.iterdir()) == []
    assert no_children()


def test_the_decoders_own_time_is_not_charged(fake_ffmpeg: Callable[[str], Path]) -> None:
    """A decoder slower than the whole deadline does not make an idle encoder late."""
    reader = fake_ffmpeg("cat >/dev/null")
    with FfmpegProcess(reader, [], timeout_s=5.0, fed=True) as ffmpeg:
        ffmpeg.feed(memoryview(b"x" * 100))
        time.sleep(0.4)
        ffmpeg.feed(memoryview(b"x" * 100))
        assert ffmpeg.seconds < 0.3
        ffmpeg.finish()


def test_the_decoder_goes_on_while_the_encoder_reads_nothing(fake_ffmpeg: Callable[[str], Path]) -> None:
    """Four pieces, larger than a pipe, are taken at once; a decoder that then fails waits for no encoder."""

    def decode_and_stop() -> None:
        encoder = FfmpegProcess(fake_ffmpeg("exec sleep 60"), [], timeout_s=60.0, fed=True)
        with encoder as ffmpeg, FfmpegFeeder(ffmpeg) as feeder:
            for _ in range(PIECES_AHEAD):
                feeder.give(np.zeros(1 << 22, np.uint8))
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        decode_and_stop()
    assert time.monotonic() - started < 5
    assert no_children()


def test_a_slow_encoder_reads_what_was_given(fake_ffmpeg: Callable[[str], Path], tmp_path: Path) -> None:
    """In order, whole, though the giver writes over its buffer at once and sizes differ."""
    pieces, seen = [np.full(700_000 + 1000 * value, value, np.uint8) for value in range(12)], tmp_path / "seen"
    buffer = np.empty(800_000, np.uint8)
    reader = fake_ffmpeg(f"sleep 0.3; cat >{seen}")
    with FfmpegProcess(reader, [], timeout_s=20.0, fed=True) as ffmpeg, FfmpegFeeder(ffmpeg) as feeder:
        for piece in pieces:
            buffer[: piece.size] = piece
            feeder.give(buffer[: piece.size])
        feeder.finish()
    assert seen.read_bytes() == b"".join(piece.tobytes() for piece in pieces)


def test_ctrl_c_while_the_last_pieces_are_read_leaves_no_feeder(fake_ffmpeg: Callable[[str], Path]) -> None:
    """The feeder is over before the pipe it writes to is closed, however late it hears of the end."""
    events: list[str] = []

    class Late(FfmpegProcess):
        def feed(self, data: memoryview) -> None:
            try:
                super().feed(data)
            finally:
                time.sleep(0.3)
                events.append("fed")

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def feed_and_wait() -> None:
        encoder = Late(fake_ffmpeg("exec sleep 60"), [], timeout_s=60.0, fed=True)
        with encoder as ffmpeg, FfmpegFeeder(ffmpeg) as feeder:
            feeder.give(np.zeros(1 << 22, np.uint8))
            threading.Timer(0.3, press).start()
            feeder.finish()

    with pytest.raises(KeyboardInterrupt):
        feed_and_wait()
    assert events == ["fed"]
    assert no_children()


def test_a_feeder_that_failed_says_so_every_time(fake_ffmpeg: Callable[[str], Path]) -> None:
    """Nothing waits for pieces that will never be read."""
    encoder = FfmpegProcess(fake_ffmpeg("echo no luck >&2; exit 1"), [], timeout_s=60.0, fed=True)
    with encoder as ffmpeg, FfmpegFeeder(ffmpeg) as feeder:
        for tries in count():
            try:
                feeder.give(np.zeros(1 << 22, np.uint8))
            except DeliveryError:
                break
            assert tries <= PIECES_AHEAD
        for _ in range(PIECES_AHEAD + 2):
            with pytest.raises(DeliveryError, match="no luck"):
                feeder.give(np.zeros(1, np.uint8))
        with pytest.raises(DeliveryError, match="no luck"):
            feeder.finish()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("sink", [FfmpegFileSink(), FfmpegPipeSink(), FramesDirSink()], ids=lambda sink: sink.name)
def test_a_full_disk_leaves_nothing(sink: MediaSink, tmp_path: Path) -> None:
    """On a 1 MiB file system every sink fails with the reason, and the disk is as empty as before."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mounted], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"mount refused: {done.stderr.decode()}")
    try:
        noisy = torch.rand((120, 3, 128, 128), generator=torch.Generator().manual_seed(0))
        name = "out" if sink.name == "frames-dir" else "out.mp4"
        clip = grey_clip(iter(noisy.split(24)), count=120)
        with pytest.raises(DeliveryError, match=r"free|space|No space"):
            sink.write(clip, mounted / name)
        assert list(mounted.iterdir()) == []
    finally:
        subprocess.run(["umount", mounted], check=True)


@pytest.mark.parametrize("sink", [FfmpegFileSink(), FramesDirSink()], ids=lambda sink: sink.name)
def test_a_file_size_limit_is_a_clean_failure(sink: MediaSink, tmp_path: Path) -> None:
    """A write that the system cuts short (here by RLIMIT_FSIZE) is reported and cleaned up."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        noisy = torch.rand((24, 3, 128, 128), generator=torch.Generator().manual_seed(0))
        with pytest.raises(DeliveryError, match="failed: File too large"):
            sink.write(grey_clip(iter([noisy]), count=24), tmp_path / ("out" if "dir" in sink.name else "out.mp4"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(kind: Mp4Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only folder is found by `check`; one that only claims to be writable, when the scratch is made."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(MediaError, match="not writable"):
        kind().check(Path("/proc/out.mp4"))
    monkeypatch.undo()
    with pytest.raises(MediaError, match="cannot be written"):
        kind().write(grey_clip(), Path("/proc/out.mp4"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"preset": "placebo"}, "placebo"),
        ({"crf": 52}, "crf"),
        ({"crf": True}, "crf"),
        ({"threads": 0}, "threads"),
        ({"threads": 257}, "threads"),
        ({"threads": True}, "threads"),
        ({"timeout_s": math.inf}, "timeout"),
        ({"timeout_s": 0}, "timeout"),
        ({"encoder": "libx265"}, "libx265"),
    ],
)
def test_encoding_options_are_checked(wrong: dict[str, object], message: str) -> None:
    """Each illegal option is named, before anything runs."""
    with pytest.raises(MediaError, match=message):
        Encoding(**wrong)


def test_a_hardware_encoder_without_its_hardware_is_refused_at_once(
    kind: Mp4Sink, fake_ffmpeg: Callable[[str], Path], tmp_path: Path
) -> None:
    """The build names NVENC, the machine has none: FFmpeg's words and the encoder that runs everywhere, before work."""
    listing = 'case "$*" in *-encoders*) echo " V h264_nvenc n"; echo " A aac AAC"; exit 0;; esac\n'
    without = fake_ffmpeg("exit 0")
    without.write_text(f"#!/bin/sh\n{listing}echo Cannot load libcuda.so.1 >&2\nexit 187\n")
    with pytest.raises(UnsupportedError, match=r"h264_nvenc.*Cannot load libcuda.*libx264"):
        kind(encoding=Encoding(encoder="h264_nvenc"), ffmpeg=without).check(tmp_path / "out.mp4")
