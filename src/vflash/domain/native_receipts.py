"""The result of a native denoiser session, in plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

SCHEMA_VERSION = 1


@frozen(kw_only=True)
class SessionTimes:
    """Seconds of one request in a session. `initialization_charged_seconds` is loading that no request before was
    charged for: all of it on the first, zero on later ones unless they open another component. `request_wall_seconds`
    is the request in the initialised session, writing its latents included."""

    request_index: int
    initialization_seconds: float
    initialization_charged_seconds: float
    request_wall_seconds: float


def native_result(
    *,
    gpu: Mapping[str, Any] | None,
    runtime: Mapping[str, Any],
    session: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> dict[str, Any]:
    """One device runs one request: `parallel` says so in the words of sessions that may have more."""
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "succeeded",
        "gpu": gpu,
        "parallel": {"strategy": "single", "device_count": 1, "peer_device": None},
        "runtime": dict(runtime),
        "session": dict(session),
        "generation": dict(generation),
    }
