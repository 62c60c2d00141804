"""Deliver: finished latents through the VAEs and the sink; what fails names the way back to the clip."""

from __future__ import annotations

import shlex
from pathlib import Path

from attrs import evolve

from vflash.domain.duration import ClipLength
from vflash.domain.model_facts import CodecFacts
from vflash.stages.backends import Backends
from vflash.stages.decode import decode
from vflash.stages.delivery_profiles import DeliveryProfiles
from vflash.stages.kept import Kept
from vflash.stages.outputs import Outputs
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
    comes back itself."""
    try:
        with watch.stage("media"), codec.use() as opened:
            decoded = decode(latents, length, facts, opened, watch, profiles)
            with watch.stage("video_decode_and_encode"):
                delivery = sink.write(decoded.clip, output)
            return evolve(delivery, details={**delivery.details, **decoded.changed})
    except (VflashError, RuntimeError, OSError) as error:
        if watch.cancellation is not None:
            raise watch.cancellation  # noqa: B904 - a sink may have wrapped it
        kind = type(error) if isinstance(error, VflashError) else DeliveryError
        raise kind(f"{error}\n{way_back}") from error


def decode_command(model_dir: Path, backends: Backends, outputs: Outputs, profiles: DeliveryProfiles) -> str:
    """What a shell runs to make the clip from the kept latents."""
    options = {
        "model": model_dir,
        "device": backends.device,
        "dtype": str(backends.dtype).removeprefix("torch."),
        "latents": outputs.latents,
        "output": outputs.video,
        "audio-delivery-profile": profiles.audio,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return shlex.join(["vflash", "decode", *words])
