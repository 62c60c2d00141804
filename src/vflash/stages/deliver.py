"""Deliver: finished latents through the VAEs and the sink; what fails names the way back to the clip."""

from __future__ import annotations

import shlex
from pathlib import Path

from attrs import evolve

from vflash.domain.choices import VideoFeed
from vflash.domain.duration import ClipLength
from vflash.domain.model_facts import CodecFacts
from vflash.stages.backends import Backends
from vflash.stages.decode import decode
from vflash.stages.delivery_profiles import DeliveryProfiles
from vflash.stages.keep_latents import KeptLatents
from vflash.stages.kept import Kept
from vflash.stages.watch import RequestWatch
from vflash_ports.errors import DeliveryError, VflashError
from vflash_ports.latent_codec import LatentCodec
from vflash_ports.media import Delivery, Latents, MediaSink


def deliver(
    latents: Latents,
    length: ClipLength,
    facts: CodecFacts,
    output: Path,
    profiles: DeliveryProfiles,
    watch: RequestWatch,
    *,
    codec: Kept[LatentCodec],
    sink: MediaSink,
    way_back: str,
) -> Delivery:
    """Raises what the decoder or the sink raised, with `way_back` in its message; what the caller's own callback raised
    comes back itself, with `way_back` as a note."""
    try:
        with watch.stage("media"), codec.use() as opened:
            decoded = decode(latents, length, facts, opened, watch, profiles)
            with watch.stage("video_decode_and_encode"):
                delivery = sink.write(decoded.clip, output)
            return evolve(delivery, details={**delivery.details, **decoded.changed})
    except (VflashError, RuntimeError, OSError) as error:
        if watch.cancellation is not None:
            watch.cancellation.add_note(way_back)
            raise watch.cancellation  # noqa: B904 - a sink may have wrapped it
        kind = type(error) if isinstance(error, VflashError) else DeliveryError
        raise kind(f"{error}\n{way_back}") from error
    except BaseException as stop:  # the caller's own, or a keyboard's
        stop.add_note(way_back)
        raise


def way_back(
    kept: KeptLatents, output: Path, profiles: DeliveryProfiles, model_dir: Path, backends: Backends, sink: str
) -> str:
    """What a shell runs to make the clip from the kept latents, as this run would have made it."""
    if kept.path is None:
        return f"the latents are lost with this run, for they could not be saved: {kept.trouble}"
    options = {
        "model": model_dir,
        "device": backends.device,
        "dtype": str(backends.dtype).removeprefix("torch."),
        "latents": kept.path,
        "output": output,
        "audio-delivery-profile": profiles.audio,
        "video-decoder": backends.video_decoder,
        "vae-tiles-at-once": backends.vae_tiles_at_once,
        "model-placement": backends.model_placement,
        **({"media-video-input": sink} if sink in tuple(VideoFeed) else {}),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = shlex.join(["vflash", "decode", *words])
    instead = f" (not where they were meant to be: {kept.trouble})" if kept.trouble else ""
    return f"the latents are kept{instead}; decode them again with: {command}"
