"""Frames become bytes on the device: the host's bytes and refusals, and no wait but the one for the clip before."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from vflash.stages.keyframe_delivery import ExactEnds, exact_ends
from vflash_adapters.latent_codec.delivered_frames import delivered_frames
from vflash_adapters.latent_codec.diffusers_vaes import DiffusersVaes
from vflash_adapters.media.frame_bytes import FrameBytes, frame_bytes
from vflash_adapters.media.frames_dir import FramesDirSink
from vflash_adapters.media.quantise import FrameQuantiser
from vflash_adapters.weights.mmap_source import MmapWeights
from vflash_ports.errors import MediaError, NonFiniteError
from vflash_ports.media import Clip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def random_frames(count: int, height: int = 64, width: int = 96) -> torch.Tensor:
    """On the CPU, out of range too, and every tie among them."""
    frames = torch.rand((count, 3, height, width), generator=torch.Generator().manual_seed(count)) * 2.8 - 0.9
    ties = (torch.arange(height * width) % 255 + 0.5) / 255
    frames[:, 1] = ties.view(height, width)
    return frames


def taken(clips: Iterator[torch.Tensor]) -> list[FrameBytes]:
    return [
        FrameBytes(pixels=part.pixels.clone(), lowest=part.lowest, highest=part.highest) for part in frame_bytes(clips)
    ]


def clip_of(frames: torch.Tensor) -> Clip:
    count, _, height, width = frames.shape
    return Clip(
        width=width,
        height=height,
        frame_count=count,
        fps=24,
        frames=iter(torch.split(frames, 17)),
        waveform=torch.zeros(2, count * 32000 // 24),
        sample_rate_hz=32000,
    )


def test_bytes_and_bounds_are_the_host_s() -> None:
    """Over clips of different lengths, whose two buffers are used in turns."""
    clips = [random_frames(count) for count in (17, 17, 5, 1, 17)]
    found, expected = taken(clip.to(CUDA) for clip in clips), taken(iter(clips))
    assert len(found) == len(expected) == 11
    for mine, host in zip(found, expected, strict=True):
        assert mine.pixels.device == CPU
        assert torch.equal(mine.pixels, host.pixels)
        assert (mine.lowest, mine.highest) == (host.lowest, host.highest)


def test_a_sink_writes_the_same_files(tmp_path: Path) -> None:
    """Pictures byte for byte, from either place."""
    frames = random_frames(40)
    for name, device in (("host", CPU), ("device", CUDA)):
        FramesDirSink().write(clip_of(frames.to(device)), tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "host").iterdir())
    assert sorted(path.name for path in (tmp_path / "device").iterdir()) == names
    for name in names:
        assert (tmp_path / "device" / name).read_bytes() == (tmp_path / "host" / name).read_bytes()


@pytest.mark.parametrize("value", [math.nan, math.inf, 255.0])
def test_wrong_frames_are_refused_in_the_same_words(value: float) -> None:
    """The device's bounds say where and how far."""
    frames = random_frames(40)
    frames[20, 1, 3, 3] = value
    said = []
    for device in (CPU, CUDA):
        with pytest.raises((NonFiniteError, MediaError)) as refused:
            list(FrameQuantiser(clip_of(frames.to(device))).chunks())
        said.append((refused.type, str(refused.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_a_decoder_makes_of_infinity_is_never_clamped(value: float) -> None:
    """It comes out as NaN, alone."""
    pixels = torch.zeros(1, 3, 4, 8, 8, device=CUDA)
    pixels[0, 1, 2, 3, 4] = value
    (frames,) = delivered_frames(iter([pixels]), CUDA)
    assert frames.device == CUDA
    assert frames.isnan().nonzero().tolist() == [[2, 1, 3, 4]]


def test_exact_ends_are_the_host_s() -> None:
    """Blended on the device, bit for bit."""
    frames = random_frames(40).clamp(0, 1)
    picture = (torch.arange(64 * 96 * 3).view(64, 96, 3) % 256).to(torch.uint8)
    ends = ExactEnds(first=picture, last=picture.flip(0))
    host, device = (torch.cat(list(exact_ends(iter(torch.split(frames.to(d), 17)), 40, ends))) for d in (CPU, CUDA))
    assert device.device == CUDA
    assert torch.equal(device.cpu(), host)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_nothing_waits_while_clips_are_queued() -> None:
    """From a decoded clip to its bytes, after the first one: the next clip's work is queued before the host waits."""
    clips = [torch.randn(1, 3, 17, 64, 96, device=CUDA) for _ in range(4)]
    parts = frame_bytes(delivered_frames(iter(clips), CUDA))
    next(parts)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rest = sum(len(part.pixels) for part in parts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert rest == 4 * 17 - 8


def test_a_clip_s_floats_do_not_outlive_its_bytes() -> None:
    """While the next clip is decoded, only bytes of the ones before it are on the device."""
    size, held = (17, 3, 512, 512), []
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(CUDA)

    def clips() -> Iterator[torch.Tensor]:
        for _ in range(4):
            held.append(torch.cuda.memory_allocated(CUDA) - before)
            yield torch.rand(size, device=CUDA)

    list(frame_bytes(clips()))
    floats = 4 * torch.Size(size).numel()
    assert max(held) < floats // 2


def test_decoded_frames_stay_on_the_device(tiny_checkpoints: Mapping[str, Path]) -> None:
    """And their bytes are those of the same floats on the host."""
    latents = torch.randn(1, 24, 12, 4, 6, generator=torch.Generator().manual_seed(3))
    with DiffusersVaes(weights=MmapWeights).open(tiny_checkpoints["small"], device=CUDA, dtype=torch.float32) as codec:
        decoded = list(codec.decode_video(latents))
    assert {chunk.device for chunk in decoded} == {CUDA}
    found, expected = taken(iter(decoded)), taken(chunk.cpu() for chunk in decoded)
    assert torch.equal(torch.cat([part.pixels for part in found]), torch.cat([part.pixels for part in expected]))
