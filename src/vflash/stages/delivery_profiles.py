"""What may change between the decoders and the file, for one request, and the record of it."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from vflash.domain.delivery import AudioDelivery, KeyframeDelivery
from vflash.domain.request import VideoRequest
from vflash.stages.gather import Gathered, KeyframeInput
from vflash.stages.keyframe_delivery import ExactEnds


@frozen(kw_only=True, eq=False)
class DeliveryProfiles:
    """`ends` None: the decoded keyframes."""

    audio: AudioDelivery = AudioDelivery.UNCHANGED
    ends: ExactEnds | None = None

    def keyframe_report(self, frame_count: int) -> dict[str, Any]:
        if self.ends is None:
            return {"profile": KeyframeDelivery.DECODED.value}
        return self.ends.report(frame_count)


AS_DECODED = DeliveryProfiles()


def delivery_profiles(request: VideoRequest, gathered: Gathered) -> DeliveryProfiles:
    """`exact-v1` delivers each keyframe as the model was given it: on the canvas, stretched or covered."""
    if request.keyframe_delivery_profile is KeyframeDelivery.DECODED:
        return DeliveryProfiles(audio=request.audio_delivery_profile)
    keyframes = [item for item in gathered.inputs if isinstance(item, KeyframeInput)]
    return DeliveryProfiles(
        audio=request.audio_delivery_profile,
        ends=ExactEnds(
            first=next((item.pixels for item in keyframes if not item.last), None),
            last=next((item.pixels for item in keyframes if item.last), None),
        ),
    )
