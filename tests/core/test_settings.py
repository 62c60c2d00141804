"""How a pipeline runs: every choice by name, checked before anything is imported."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import attrs
import pytest

from vflash.domain.fields import from_mapping
from vflash.settings import Settings
from vflash_ports.errors import ContractError

BESIDE = {
    "weight_reading=sidecar": {"weight_sidecar": "folder"},
    "attention_backend=veda": {"veda_predictor": "predictor.safetensors"},
    "sidecar_merge": {"weight_reading": "sidecar", "weight_sidecar": "folder"},
    "veda_dense_backend": {"attention_backend": "veda-meanpool"},
    "veda_kernels": {"attention_backend": "veda-meanpool"},
    "fp8_kernels": {"linear": "w8a8"},
}
"""Setting, or setting and choice -> what must stand beside it."""
CHOICES = {item.name: type(item.default) for item in attrs.fields(Settings) if isinstance(item.default, StrEnum)}


def test_defaults_are_the_documented_ones():
    """Exact attention, BF16, one pipeline kept alive, on CUDA."""
    settings = Settings(model_dir="model")
    assert settings.model_dir == Path("model")
    assert (settings.device, settings.dtype, settings.attention_backend) == ("cuda", "bfloat16", "auto")
    assert (settings.linear, settings.block_kernels, settings.model_lifetime) == ("bf16", "auto", "keep")
    assert settings.video_decoder == "diffusers"
    assert settings.media_video_input == "file"
    assert settings.media_video_threads is None


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:15"])
def test_legal_devices(device):
    """By name and number."""
    assert Settings(model_dir="model", device=device).device == device


@pytest.mark.parametrize(
    "device", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1234", "cuda: 1", "cpu:0", "CUDA", "cuda:٣", 0, None]
)
def test_illegal_devices(device):
    """Nothing that torch would stumble over later."""
    with pytest.raises(ContractError, match=r"^device: must be cpu, cuda or cuda:N, got"):
        Settings(model_dir="model", device=device)


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_every_choice_takes_its_values_and_no_other(name):
    """As text or as member; an unknown value lists all legal ones under the field's name."""
    for member in CHOICES[name]:
        beside = BESIDE.get(f"{name}={member}", BESIDE.get(name, {}))
        assert getattr(Settings(model_dir="model", **{name: str(member)}, **beside), name) is member
        assert getattr(Settings(model_dir="model", **{name: member}, **beside), name) is member
    for wrong in ("fastest", "", None, 1, True):
        with pytest.raises(ContractError) as caught:
            Settings(model_dir="model", **{name: wrong})
        assert str(caught.value).startswith(f"{name}: {wrong!r} is not a")
        assert all(member in str(caught.value) for member in CHOICES[name])


@pytest.mark.parametrize("threads", [1, 256, None])
def test_legal_threads(threads):
    """None leaves it to FFmpeg."""
    assert Settings(model_dir="model", media_video_threads=threads).media_video_threads == threads


@pytest.mark.parametrize("threads", [0, 257, True, 2.0, "2"])
def test_illegal_threads(threads):
    """A bool is no count."""
    with pytest.raises(ContractError, match=r"^media_video_threads must be"):
        Settings(model_dir="model", media_video_threads=threads)


@pytest.mark.parametrize(("device", "tiles"), [("cpu", 1), ("cuda", 8), ("cuda:1", 8)])
def test_tiles_at_once_follow_the_device(device, tiles):
    """One at a time where nothing is gained by more; what is given is kept anywhere."""
    assert Settings(model_dir="model", device=device).vae_tiles_at_once == tiles
    assert Settings(model_dir="model", device=device, vae_tiles_at_once=28).vae_tiles_at_once == 28


@pytest.mark.parametrize("tiles", [0, -1, 4097, True, 2.0, "2", None])
def test_illegal_tiles_at_once(tiles):
    """A whole number from 1."""
    with pytest.raises(ContractError, match=r"^vae_tiles_at_once must be"):
        Settings(model_dir="model", vae_tiles_at_once=tiles)


@pytest.mark.parametrize("beside", [{"weight_reading": "sidecar"}, {"weight_sidecar": "folder"}])
def test_a_sidecar_and_its_reading_go_together(beside):
    """Neither implies the other."""
    with pytest.raises(ContractError, match="go together"):
        Settings(model_dir="model", **beside)


@pytest.mark.parametrize("readers", [0, 3, 16, True, 4.0, "4"])
def test_illegal_read_workers(readers):
    """1, 2, 4 or 8."""
    with pytest.raises(ContractError, match=r"^weight_read_workers must be 1, 2, 4 or 8"):
        Settings(model_dir="model", weight_read_workers=readers)


IDLE = {
    "veda_dense_edge_layers": (1, {"attention_backend": "veda-meanpool"}),
    "veda_dense_backend": ("naive", {"attention_backend": "veda-meanpool"}),
    "veda_dense_steps": ((0,), {"attention_backend": "veda-meanpool"}),
    "veda_kernels": ("triton", {"attention_backend": "veda-meanpool"}),
    "veda_target_budget": ("ratio=0.2", {"attention_backend": "veda-meanpool"}),
    "veda_reference_budget": ("ratio=0.2", {"attention_backend": "veda-meanpool"}),
    "fp8_kernels": ("torch", {"linear": "fp8-weight-only"}),
    "fp8_fast_accum": (True, {"video_decoder": "fused-fp8"}),
    "weight_read_workers": (2, {"weight_reading": "buffered"}),
    "sidecar_merge": ("numpy", {"weight_reading": "sidecar", "weight_sidecar": "folder"}),
}


@pytest.mark.parametrize("name", IDLE)
def test_a_setting_that_would_change_nothing_is_refused(name):
    """Under the choice that it belongs to it is taken, under another the message names both."""
    value, beside = IDLE[name]
    Settings(model_dir="model", **{name: value}, **beside)
    with pytest.raises(ContractError, match=f"^{name} is given, but .* is .*; drop it$"):
        Settings(model_dir="model", **{name: value})


def test_a_cpu_has_no_device_memory():
    """Its room is the host's, `host_memory_gib`; a figure that would be ignored is refused."""
    Settings(model_dir="model", device="cpu", host_memory_gib=64)
    with pytest.raises(ContractError, match=r"^device_memory_gib is given, but device is cpu; drop it$"):
        Settings(model_dir="model", device="cpu", device_memory_gib=24)


@pytest.mark.parametrize(
    ("name", "value"),
    [("media_video_encoder", "h264_nvenc"), ("media_video_threads", 2), ("media_preset", "slow"), ("media_crf", 20)],
)
def test_a_folder_of_frames_is_not_encoded(name, value):
    """PNG has neither preset nor quality."""
    Settings(model_dir="model", **{name: value}, media_video_input="pipe")
    with pytest.raises(ContractError, match=f"^{name} is given, but media_video_input is frames-dir; drop it$"):
        Settings(model_dir="model", **{name: value}, media_video_input="frames-dir")


def test_a_misspelt_setting_is_an_error_with_a_hint():
    """From Python, the command line and TOML alike."""
    with pytest.raises(ContractError, match="unknown field 'attention_backed' in it; did you mean 'attention_backend'"):
        from_mapping(Settings, "it", {"model_dir": "model", "attention_backed": "sdpa"})
    with pytest.raises(ContractError, match="it needs model_dir"):
        from_mapping(Settings, "it", {})
