"""Latents to a delivered clip: exact counts, streamed, and nothing leaks into the consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vflash.domain.duration import clip_length
from vflash.stages.decode import decode, saved_length
from vflash.stages.watch import RequestWatch
from vflash_ports.errors import CheckpointError, DeliveryError, NonFiniteError
from vflash_ports.media import Clip, Latents

FIVE = clip_length(5, clip_frames=17, clip_latents=5)


class Counting:
    """A `LatentCodec` that decodes frame k as the value k, in chunks of 17 and a last one of 5."""

    def __init__(self, frames: int = 124, samples: int = 207 * 800) -> None:
        self.frames, self.samples = frames, samples
        self.given = 0
        self.waveform = torch.zeros(2, samples)

    def encode_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nothing is encoded here")

    encode_waveform = encode_pixels

    def decode_video(self, latents: torch.Tensor) -> Iterator[torch.Tensor]:
        assert torch.is_inference_mode_enabled()
        for start in range(0, self.frames, 17):
            count = min(17, self.frames - start)
            self.given += count
            yield torch.arange(start, start + count).view(-1, 1, 1, 1).expand(count, 3, 32, 64) / 1000

    def decode_audio(self, latents: torch.Tensor) -> torch.Tensor:
        return self.waveform


def latents(duration_s: str | None = "5", frames: int = 37, audio: int = 207) -> Latents:
    metadata = {} if duration_s is None else {"duration_s": duration_s}
    return Latents(video=torch.zeros(1, 24, frames, 2, 4), audio=torch.zeros(2, 32, audio), metadata=metadata)


def clip_of(codec: Counting, facts, callback=None) -> Clip:
    return decode(latents(), FIVE, facts.codec, codec, RequestWatch(callback)).clip


def test_a_clip_has_exactly_what_is_delivered(facts):
    """120 of 124 frames and 160,000 of 165,600 samples, in order; sizes come from the latents."""
    codec = Counting()
    codec.waveform = torch.arange(2 * codec.samples).view(2, -1) / 1e6
    clip = clip_of(codec, facts)
    frames = torch.cat(list(clip.frames))
    assert frames.shape == (120, 3, 32, 64)
    assert torch.equal(frames[:, 0, 0, 0], torch.arange(120) / 1000)
    assert torch.equal(clip.waveform, codec.waveform[:, :160_000])
    assert (clip.width, clip.height, clip.frame_count, clip.fps, clip.sample_rate_hz) == (64, 32, 120, 24, 32_000)


def test_frames_are_decoded_on_demand(facts):
    """The encoder works while the decoder runs: nothing is decoded ahead of what is asked for."""
    codec = Counting()
    clip = clip_of(codec, facts)
    assert codec.given == 0
    next(clip.frames)
    assert codec.given == 17


def test_progress_counts_delivered_frames(facts):
    """After each chunk, up to exactly the delivered count."""
    seen: list[tuple[int, int]] = []
    clip = clip_of(Counting(), facts, lambda event: seen.append((event.completed, event.total)))
    list(clip.frames)
    assert seen == [(done, 120) for done in (17, 34, 51, 68, 85, 102, 119, 120)]


def test_inference_mode_ends_between_chunks(facts):
    """The decoder runs in it, but a sink that stops early must not leave the caller's thread there."""
    clip = clip_of(Counting(), facts)
    next(clip.frames)
    assert not torch.is_inference_mode_enabled()
    next(clip.frames)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("frames", [0, 17, 119])
def test_a_decoder_that_gives_too_few_frames_is_an_error(facts, frames):
    """A shorter clip is never delivered as if it were whole."""
    clip = clip_of(Counting(frames=frames), facts)
    with pytest.raises(DeliveryError, match=f"gave {frames} frames; 120 are needed"):
        list(clip.frames)


def test_a_decoder_that_gives_too_little_sound_is_an_error(facts):
    """One sample short is short."""
    assert clip_of(Counting(samples=160_000), facts).waveform.shape == (2, 160_000)
    with pytest.raises(DeliveryError, match="gave 159999 samples; 160000 are needed"):
        clip_of(Counting(samples=159_999), facts)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_sound_that_is_not_finite_stops_the_delivery(facts, value):
    """Never passed on to the encoder."""
    codec = Counting()
    codec.waveform[1, 5] = value
    with pytest.raises(NonFiniteError, match="waveform holds NaN or infinity"):
        clip_of(codec, facts)


def test_kept_latents_know_their_length(facts):
    """From their metadata, checked against their shapes."""
    assert saved_length(latents(), facts.codec, what="kept") == FIVE


@pytest.mark.parametrize("duration_s", [None, "", "five", "5.0"])
def test_latents_without_a_duration_are_refused(facts, duration_s):
    """They were not written here; nothing is guessed from their shape."""
    with pytest.raises(CheckpointError, match="kept has no readable duration_s"):
        saved_length(latents(duration_s), facts.codec, what="kept")


@pytest.mark.parametrize("changed", [{"duration_s": "6"}, {"frames": 42}, {"audio": 206}])
def test_latents_of_another_length_are_refused(facts, changed):
    """Shapes and metadata must agree, in video and in sound."""
    with pytest.raises(CheckpointError, match=r"kept holds latents of shapes .* s needs"):
        saved_length(latents(**changed), facts.codec, what="kept")
