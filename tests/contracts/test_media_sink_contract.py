"""Every sink delivers the same clip exactly, publishes it whole or not at all, and refuses what it cannot deliver."""

from __future__ import annotations

import math
import wave
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import av
import numpy as np
import pytest
import torch
from PIL import Image

from vflash_adapters.media.encoding import Encoding
from vflash_adapters.media.ffmpeg_file import FfmpegFileSink
from vflash_adapters.media.ffmpeg_pipe import FfmpegPipeSink
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_ports.errors import DeliveryError, MediaError, NonFiniteError, VflashError
from vflash_ports.media import Clip, MediaSink

MP4_SINKS: dict[str, MediaSink] = {"file": FfmpegFileSink(), "pipe": FfmpegPipeSink()}
SINKS: dict[str, MediaSink] = {**MP4_SINKS, "frames-dir": FramesDirSink()}
RATE_HZ = 32000


@pytest.fixture(params=sorted(SINKS))
def sink(request: pytest.FixtureRequest) -> MediaSink:
    return SINKS[request.param]


@pytest.fixture
def output(sink: MediaSink, tmp_path: Path) -> Path:
    return tmp_path / ("out" if sink.name == "frames-dir" else "out.mp4")


def smooth_frames(count: int, width: int, height: int) -> torch.Tensor:
    """[F, 3, H, W] in [0, 1]: slow gradients, which a codec at CRF 18 keeps within a few steps."""
    t = torch.arange(count).view(-1, 1, 1) / 48
    y = torch.arange(height).view(1, -1, 1) / height
    x = torch.arange(width).view(1, 1, -1) / width
    planes = [0.5 + 0.4 * torch.sin(3 * x + t), 0.5 + 0.4 * torch.cos(2 * y - t), 0.3 + 0.3 * x * y]
    return torch.stack([plane.expand(count, height, width) for plane in planes], dim=1).contiguous()


def tone(frames: int) -> torch.Tensor:
    seconds = torch.arange(frames * RATE_HZ // 24) / RATE_HZ
    return torch.stack([0.4 * torch.sin(2 * math.pi * 440 * seconds), 0.2 * torch.sin(2 * math.pi * 220 * seconds)])


def clip_of(frames: torch.Tensor, waveform: torch.Tensor | None = None, *, chunk: int = 17) -> Clip:
    return Clip(
        width=frames.shape[3],
        height=frames.shape[2],
        frame_count=frames.shape[0],
        fps=24,
        frames=iter(frames.split(chunk)),
        waveform=tone(len(frames)) if waveform is None else waveform,
        sample_rate_hz=RATE_HZ,
    )


def decoded_frames(path: Path) -> np.ndarray:
    if path.is_dir():
        return np.stack([np.asarray(Image.open(picture)) for picture in sorted(path.glob("*.png"))])
    with av.open(str(path)) as container:
        # The stream says BT.709 limited range: convert back as a player does.
        return np.stack(
            [
                frame.to_ndarray(format="rgb24", src_colorspace="ITU709", dst_colorspace="ITU709")
                for frame in container.decode(video=0)
            ]
        )


def decoded_sound(path: Path) -> np.ndarray:
    """float [2, n]."""
    if path.is_dir():
        with wave.open(str(path / "audio.wav")) as sound:
            return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").reshape(-1, 2).T / 32767
    with av.open(str(path)) as container:
        return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)


@pytest.mark.parametrize("seconds", [1, 5, 8, 15])
def test_counts_sizes_and_clock_are_exact(sink: MediaSink, output: Path, seconds: int) -> None:
    """A clip of s seconds has exactly 24 s frames and 32000 s samples, measured on the written file."""
    frames = smooth_frames(24, 64, 32).repeat(seconds, 1, 1, 1)
    delivery = sink.write(clip_of(frames), output)
    assert (delivery.frames, delivery.audio_samples) == (24 * seconds, RATE_HZ * seconds)
    assert (delivery.width, delivery.height, delivery.fps, delivery.sample_rate_hz) == (64, 32, 24.0, RATE_HZ)
    assert delivery.path == output
    assert list(output.parent.iterdir()) == [output]
    files = output.iterdir() if output.is_dir() else [output]
    assert delivery.size_bytes == sum(file.stat().st_size for file in files)


def test_a_length_that_is_no_whole_millisecond_is_exact_too(sink: MediaSink, output: Path) -> None:
    """124 frames last 5.1666 s: counts stay exact where a millisecond clock would round."""
    delivery = sink.write(clip_of(smooth_frames(124, 32, 32)), output)
    assert (delivery.frames, delivery.audio_samples) == (124, 165333)


def test_pictures_and_sound_come_back_within_the_codec(sink: MediaSink, output: Path) -> None:
    """At CRF 18 smooth frames are 2/255 off on average and 6/255 in 99 of 100 values, a tone 0.02 in AAC; PNG and WAV
    are exact."""
    frames = smooth_frames(24, 96, 64)
    sink.write(clip_of(frames), output)
    wanted = (frames * 255).round().permute(0, 2, 3, 1).numpy()
    found = decoded_frames(output)
    assert found.shape == wanted.shape
    errors = np.abs(found.astype(float) - wanted)
    if output.is_dir():
        assert errors.max() == 0
    else:
        assert errors.mean() < 2
        assert np.percentile(errors, 99) <= 6
    heard = decoded_sound(output)[:, 2000:30000]
    assert np.abs(heard - tone(24)[:, 2000:30000].numpy()).max() < (1 / 32767 if output.is_dir() else 0.02)


def test_quantisation_rounds_half_to_even_and_clamps(tmp_path: Path) -> None:
    """k + 0.5 goes to the even neighbour, overshoot is clamped, PCM is clamp(x) * 32767; inputs stay as they were."""
    values = torch.tensor([0.5, 1.5, 2.5, 254.5, -3.0, 260.0]).repeat(6)[:32] / 255
    frames = values.expand(2, 3, 2, 32).clone()
    waveform = torch.tensor([[0.5 / 32767, 1.5 / 32767, -1.2, 1.2], [0.25, -0.25, 1.0, -1.0]])
    clip = attrs.evolve(clip_of(frames, tone(2)), waveform=waveform.repeat(1, 667)[:, :2667])
    kept = frames.clone(), clip.waveform.clone()
    FramesDirSink().write(clip, tmp_path / "out")
    assert decoded_frames(tmp_path / "out")[0, 0, :6, 0].tolist() == [0, 2, 2, 254, 0, 255]
    with wave.open(str(tmp_path / "out" / "audio.wav")) as sound:
        samples = np.frombuffer(sound.readframes(4), "<i2").reshape(-1, 2)
    assert samples.tolist() == [[0, 8192], [2, -8192], [-32767, 32767], [32767, -32767]]
    assert torch.equal(frames, kept[0])
    assert torch.equal(clip.waveform, kept[1])


@pytest.mark.parametrize("threads", [None, 2])
def test_file_and_pipe_give_the_same_bytes_however_frames_arrive(threads: int | None, tmp_path: Path) -> None:
    """Equal settings give byte-equal MP4s: from sink to sink, from run to run, and for any chunking."""
    encoding = Encoding(threads=threads)
    written = []
    for index, (kind, chunk) in enumerate([(FfmpegFileSink, 17), (FfmpegFileSink, 1), (FfmpegPipeSink, 17)] * 2):
        path = tmp_path / f"{index}.mp4"
        kind(encoding=encoding).write(clip_of(smooth_frames(40, 64, 64), chunk=chunk), path)
        written.append(path.read_bytes())
    assert len(set(written)) == 1


def test_the_file_says_how_its_colours_are_meant(tmp_path: Path) -> None:
    """BT.709 in all three tags, limited range, 4:2:0; the index stands before the data, for the web."""
    delivery = MP4_SINKS["pipe"].write(clip_of(smooth_frames(24, 64, 32)), tmp_path / "out.mp4")
    probe = delivery.details["probe"]
    assert (probe["video_codec"], probe["audio_codec"], probe["pixel_format"]) == ("h264", "aac", "yuv420p")
    tags = ("colour_primaries", "colour_transfer", "colour_matrix", "colour_range")
    assert [probe[tag] for tag in tags] == [1, 1, 1, 1]
    data = (tmp_path / "out.mp4").read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    assert b"Lavf" not in data


def test_colours_are_converted_with_the_matrix_that_the_tags_name(tmp_path: Path) -> None:
    """Red, green, blue, black and white become their BT.709 limited-range values, within a rounding step."""
    colours = {(1, 0, 0): (63, 102, 240), (0, 1, 0): (173, 42, 26), (0, 0, 1): (32, 240, 118)}
    colours |= {(0, 0, 0): (16, 128, 128), (1, 1, 1): (235, 128, 128)}
    for index, (colour, wanted) in enumerate(colours.items()):
        frames = torch.tensor(colour, dtype=torch.float32).view(1, 3, 1, 1).expand(6, 3, 32, 32)
        MP4_SINKS["pipe"].write(clip_of(frames), tmp_path / f"{index}.mp4")
        with av.open(str(tmp_path / f"{index}.mp4")) as container:
            planes = next(container.decode(video=0)).to_ndarray()  # Y over Cb over Cr
        found = planes[8, 8], planes[36, 8], planes[44, 8]
        assert np.abs(np.subtract(found, wanted, dtype=float)).max() <= 1


def test_joined_clips_do_not_drift(tmp_path: Path) -> None:
    """Ten joined 5 s clips: both streams last exactly 50 s, so sound and picture stay together."""
    delivery = MP4_SINKS["file"].write(clip_of(smooth_frames(120, 32, 32)), tmp_path / "out.mp4")
    with av.open(str(tmp_path / "out.mp4")) as container:
        lasting = {stream.type: stream.duration * stream.time_base for stream in container.streams}
        starting = {stream.type: stream.start_time for stream in container.streams}
    assert lasting == {"video": 5, "audio": 5}
    assert starting == {"video": 0, "audio": 0}
    assert delivery.frames * 10 * RATE_HZ == delivery.audio_samples * 10 * 24


@pytest.mark.parametrize("kind", ["file", "folder", "symlink", "dangling"])
def test_nothing_is_written_over(sink: MediaSink, output: Path, kind: str) -> None:
    """An existing file or folder, a link and a dangling link are refused, before and at writing, and stay."""
    other = output.parent / "other"
    if kind == "file":
        output.write_bytes(b"mine")
    elif kind == "folder":
        output.mkdir()
    else:
        output.symlink_to(other)
        if kind == "symlink":
            other.write_bytes(b"mine")
    before = sorted(path.name for path in output.parent.iterdir())
    for act in (sink.check, lambda path: sink.write(clip_of(smooth_frames(9, 32, 32)), path)):
        with pytest.raises(MediaError, match="exists already"):
            act(output)
    assert sorted(path.name for path in output.parent.iterdir()) == before
    assert kind in ("folder", "dangling") or output.read_bytes() == b"mine"


def test_an_output_that_appears_during_the_run_is_kept(sink: MediaSink, output: Path) -> None:
    """Whoever wrote it first keeps it; the clip is not published and leaves nothing behind."""

    def frames() -> Iterator[torch.Tensor]:
        yield smooth_frames(12, 32, 32)
        output.write_bytes(b"theirs")
        yield smooth_frames(12, 32, 32)

    clip = attrs.evolve(clip_of(smooth_frames(24, 32, 32)), frames=frames())
    with pytest.raises(MediaError, match="appeared"):
        sink.write(clip, output)
    assert output.read_bytes() == b"theirs"
    assert list(output.parent.iterdir()) == [output]


def test_a_missing_folder_is_refused(sink: MediaSink, output: Path) -> None:
    """The parent folder must exist: it is named."""
    with pytest.raises(MediaError, match="does not exist"):
        sink.check(output.parent / "absent" / output.name)


def test_a_folder_that_takes_nothing_is_refused_before_any_work(sink: MediaSink, output: Path) -> None:
    """Whatever its permissions say, root or not: /proc takes no new folder."""
    with pytest.raises(MediaError, match=r"^output folder /proc (cannot be written|is not writable)"):
        sink.check(Path("/proc") / output.name)
    sink.check(output)
    assert list(output.parent.iterdir()) == []


def _with(**change: object) -> Callable[[], Clip]:
    return lambda: attrs.evolve(clip_of(smooth_frames(24, 32, 32)), **change)


def _coming(count: int, width: int) -> Callable[[], Clip]:
    return lambda: attrs.evolve(
        clip_of(smooth_frames(24, 32, 32)), frames=iter(smooth_frames(count, width, 32).split(17))
    )


def _poisoned(value: float) -> Callable[[], Clip]:
    def build() -> Clip:
        frames = smooth_frames(24, 32, 32)
        frames[20, 1, 3, 3] = value
        return clip_of(frames)

    return build


BAD_CLIPS: dict[str, tuple[Callable[[], Clip], type[VflashError], str]] = {
    "too few frames": (_coming(20, 32), DeliveryError, "20 frames where 24"),
    "none come": (_with(frames=iter(())), DeliveryError, "0 frames where 24"),
    "an empty piece": (_coming(0, 32), DeliveryError, r"\[0, 3, 32, 32\].*at least 1"),
    "too many frames": (_coming(25, 32), DeliveryError, "more than the 24"),
    "other size": (_coming(24, 34), DeliveryError, "34"),
    "not a number": (_poisoned(math.nan), NonFiniteError, "frames 17..23"),
    "infinite": (_poisoned(math.inf), NonFiniteError, "frames 17..23"),
    "pixels in 0..255": (_poisoned(255.0), MediaError, "0..1"),
    "sound not a number": (_with(waveform=torch.full((2, RATE_HZ), math.nan)), NonFiniteError, "waveform"),
    "sound in PCM steps": (_with(waveform=torch.full((2, RATE_HZ), 32767.0)), MediaError, r"\[-1, 1\]"),
    "sound too short": (_with(waveform=torch.zeros((2, RATE_HZ - 2))), MediaError, "trim it to 32000"),
    "mono": (_with(waveform=torch.zeros((1, RATE_HZ))), MediaError, "stereo"),
    "odd width": (_with(width=31), MediaError, "even"),
    "no frames": (_with(frame_count=0), MediaError, "at least one frame"),
    "61 fps": (_with(fps=61), MediaError, "fps"),
}


@pytest.mark.parametrize("fault", sorted(BAD_CLIPS))
def test_a_wrong_clip_is_refused_and_leaves_nothing(sink: MediaSink, output: Path, fault: str) -> None:
    """Each fault is named, nothing is published and the folder is as it was."""
    build, kind, message = BAD_CLIPS[fault]
    with pytest.raises(kind, match=message):
        sink.write(build(), output)
    assert list(output.parent.iterdir()) == []


def test_a_decoder_that_fails_speaks_for_itself(sink: MediaSink, output: Path) -> None:
    """The decoder's own error passes through unchanged, and a cancel too; nothing is left."""
    for error in (RuntimeError("decoder broke"), KeyboardInterrupt()):

        def frames(error: BaseException = error) -> Iterator[torch.Tensor]:
            yield smooth_frames(12, 32, 32)
            raise error

        clip = attrs.evolve(clip_of(smooth_frames(24, 32, 32)), frames=frames())
        with pytest.raises(type(error)):
            sink.write(clip, output)
        assert list(output.parent.iterdir()) == []
