"""Deliver: finished latents through the VAEs and the sink; what fails names the way back to the clip."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from vflash.domain.duration import ClipLength
from vflash.domain.model_facts import CodecFacts
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


def way_back(kept: KeptLatents, output: Path, profiles: DeliveryProfiles, decoding: Sequence[str]) -> str:
    """What a shell runs to make the clip from the kept latents, as this run would have made it; `decoding` are the
    words of its settings."""
    if kept.path is None:
        return f"the latents are lost with this run, for they could not be saved: {kept.trouble}"
    own = {"latents": kept.path, "output": output, "audio-delivery-profile": profiles.audio}
    words = [word for name, value in own.items() for word in (f"--{name}", str(value))]
    command = shlex.join(["vflash", "decode", *decoding, *words])
    instead = f" (not where they were meant to be: {kept.trouble})" if kept.trouble else ""
    ends = "" if profiles.ends is None else " (its keyframes will be as decoded, not exact)"
    return f"the latents are kept{instead}; decode them again{ends} with: {command}"
