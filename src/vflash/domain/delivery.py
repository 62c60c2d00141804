"""Delivery profiles by name: what may change between the decoder and the file. Each is recorded in the receipt."""

from __future__ import annotations

from vflash.domain.fields import Choice


class AudioDelivery(Choice):
    """`unchanged`; `web-v1`: levelled for the web; `silent-v1`: true digital silence, the sound is not decoded."""

    UNCHANGED = "unchanged"
    WEB_V1 = "web-v1"
    SILENT_V1 = "silent-v1"


class KeyframeDelivery(Choice):
    """`decoded`; `exact-v1`: the given keyframes themselves at the ends, blended in over four frames."""

    DECODED = "decoded"
    EXACT_V1 = "exact-v1"
