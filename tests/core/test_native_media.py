"""`encode_mp4`: the documented call writes what was measured, the same through both inputs, and refuses the rest."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from vflash.native.h3_media import encode_mp4
from vflash_ports.errors import ContractError, MediaError, NonFiniteError


def clip(frames: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    ramp = torch.linspace(0, 1, 64).expand(1, 3, frames, 32, 64).contiguous()
    seconds = torch.arange(frames * 32000 // 24) / 32000
    return ramp, (0.05 * torch.sin(2 * math.pi * 440 * seconds)).expand(1, 2, -1).contiguous()


def test_the_result_is_measured_and_plain_json(tmp_path: Path) -> None:
    """Documented keys, exact counts, and nothing that json cannot write."""
    video, audio = clip(48)
    result = encode_mp4(video, audio, tmp_path / "out.mp4", preset="veryfast", crf=20, video_threads=2)
    assert (result["frames"], result["width"], result["height"], result["fps"]) == (48, 64, 32, 24.0)
    assert (result["audio_samples"], result["audio_sample_rate"], result["duration_seconds"]) == (64000, 32000, 2.0)
    assert (result["preset"], result["crf"], result["video_threads"]) == ("veryfast", 20, 2)
    assert result["size_bytes"] == (tmp_path / "out.mp4").stat().st_size
    assert result["audio_delivery"] == {"profile": "unchanged", "status": "unchanged"}
    assert json.loads(json.dumps(result)) == result


def test_both_inputs_write_the_same_file(tmp_path: Path) -> None:
    """`video_input` changes the way, not the bytes; BF16 and strided tensors are read in place."""
    video, audio = clip()
    sparse = video.to(torch.bfloat16).transpose(3, 4).contiguous().transpose(3, 4)
    for name in ("file", "pipe"):
        result = encode_mp4(sparse, audio, tmp_path / f"{name}.mp4", video_input=name)
        assert result["video_input"] == name
    assert (tmp_path / "file.mp4").read_bytes() == (tmp_path / "pipe.mp4").read_bytes()


def test_audio_profiles_are_applied_and_reported(tmp_path: Path) -> None:
    """`web-v1` raises a soft tone to -18 LUFS; `silent-v1` delivers zeros from any waveform, even a broken one."""
    video, audio = clip(48)
    levelled = encode_mp4(video, audio, tmp_path / "web.mp4", audio_delivery_profile="web-v1")["audio_delivery"]
    assert (levelled["status"], levelled["mode"]) == ("normalized", "linear")
    assert levelled["output_lufs"] == pytest.approx(-18.0, abs=0.01)
    broken = torch.full_like(audio, math.nan)
    silent = encode_mp4(video, broken, tmp_path / "silent.mp4", audio_delivery_profile="silent-v1")
    assert silent["audio_delivery"]["status"] == "silent"
    assert silent["waveform_peak"] == 0.0
    with pytest.raises(NonFiniteError):
        encode_mp4(video, broken, tmp_path / "broken.mp4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"video": torch.zeros((3, 24, 32, 64))}, "video must be"),
        ({"video": torch.zeros((1, 3, 24, 32, 64), dtype=torch.uint8)}, "video must be"),
        ({"audio": torch.zeros((2, 32000))}, "audio must be"),
        ({"video_input": "socket"}, "video_input 'socket'"),
        ({"video_threads": 0}, "threads"),
        ({"audio_delivery_profile": "loud"}, "silent-v1"),
        ({"fps": 0}, "fps"),
        ({"fps": 61}, "fps"),
        ({"preset": "placebo"}, "preset"),
        ({"output_path": "out.avi"}, "must end in .mp4"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    """Each is refused before anything is written."""
    video, audio = clip()
    call: dict[str, object] = {"video": video, "audio": audio, "output_path": "out.mp4"} | change
    call["output_path"] = tmp_path / str(call["output_path"])
    with pytest.raises((MediaError, ContractError), match=message):
        encode_mp4(**call)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
