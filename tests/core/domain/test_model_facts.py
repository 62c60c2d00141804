"""A checkpoint's configs: read strictly, and nothing is hard-wired."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from vflash.domain.model_facts import (
    MAX_CONFIG_BYTES,
    ORIGINAL_NAMES,
    DenoiserFacts,
    GeometryFacts,
    read_json,
    read_model_facts,
)
from vflash_ports.errors import CheckpointError

Edit = Callable[..., Path]
DENOISER, VAE, AUDIO, INDEX = "transformer/config.json", "vae/config.json", "audio_vae/config.json", "model_index.json"


@pytest.fixture
def edited(tmp_path, tiny_checkpoints) -> Edit:
    """A copy of the small checkpoint's configs, without weights, with some fields changed or (None) removed."""

    def edit(file: str = INDEX, **changes: Any) -> Path:
        source = tiny_checkpoints["small"]
        for config in source.rglob("*.json"):
            target = tmp_path / config.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(config.read_bytes())
        values = json.loads((tmp_path / file).read_text()) | changes
        (tmp_path / file).write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
        return tmp_path

    return edit


def test_the_released_numbers_are_the_defaults(edited):
    """A config that leaves fields out means the released model."""
    folder = edited()
    (folder / DENOISER).write_text('{"_class_name": "MiniMaxH3Transformer3DModel"}')
    facts = read_model_facts(folder)
    assert facts.denoiser == DenoiserFacts()
    assert (facts.denoiser.num_layers, facts.denoiser.inner_dim, facts.denoiser.video_row_dim) == (50, 7168, 96)
    assert (facts.video_shift, facts.audio_shift) == (12.0, 3.0)


@pytest.mark.parametrize("variant", ["small", "other"])
def test_every_dimension_comes_from_the_configs(tiny_checkpoints, variant):
    """Two checkpoints that share no width give facts that do not either."""
    folder = tiny_checkpoints[variant]
    facts = read_model_facts(folder)
    config = json.loads((folder / DENOISER).read_text())
    for item in attrs.fields(DenoiserFacts):
        value = getattr(facts.denoiser, item.name)
        assert (list(value) if isinstance(value, tuple) else value) == config[item.name]
    codec = facts.codec
    assert (codec.spatial_ratio, codec.clip_frames, codec.clip_latents) == (16, 17, 5)
    assert (codec.sample_rate_hz, codec.hop, codec.latent_channels, codec.audio_latent_channels) == (32000, 800, 24, 32)
    assert facts.canvas_multiple == 32


def test_the_reference_denoiser_has_its_own_config(edited):
    """`transformer_ref` is read when it is asked for."""
    folder = edited("transformer_ref/config.json", num_layers=7)
    assert read_model_facts(folder, denoiser="transformer_ref").denoiser.num_layers == 7
    assert read_model_facts(folder).denoiser.num_layers == 3


def test_the_original_release_s_field_names_say_the_same(edited):
    """Sizes under their original names, products of them ignored; one size under both names is refused."""
    folder = edited(DENOISER)
    expected = read_model_facts(folder)
    config = json.loads((folder / DENOISER).read_text())
    renamed = {ours: original for original, ours in ORIGINAL_NAMES.items()}
    original = {renamed.get(name, name): value for name, value in config.items()}
    assert len(set(original) & set(ORIGINAL_NAMES)) == len(ORIGINAL_NAMES)
    (folder / DENOISER).write_text(json.dumps(original | {"adaln_out_features": 576, "final_adaln_out_features": 64}))
    assert read_model_facts(folder) == expected
    (folder / DENOISER).write_text(json.dumps(original | {"ffn_dim": 48}))
    with pytest.raises(CheckpointError, match="ffn_dim twice"):
        read_model_facts(folder)


def test_shifts_come_from_both_schedulers(edited):
    """Video from scheduler/, audio from audio_scheduler/."""
    folder = edited("scheduler/scheduler_config.json", shift=6)
    (folder / "audio_scheduler/scheduler_config.json").write_text('{"shift": 2.5}')
    facts = read_model_facts(folder)
    assert (facts.video_shift, facts.audio_shift) == (6.0, 2.5)


@pytest.mark.parametrize("file", [INDEX, "modular_model_index.json"])
def test_geometry_comes_from_either_index(edited, file):
    """The released canvas unless an index names another."""
    folder = edited(file, canvas_short_edge=None, canvas_max_pixels=None, reference_image_short_edge=None)
    for name in {INDEX, "modular_model_index.json"} - {file}:
        edited_index = json.loads((folder / name).read_text())
        (folder / name).write_text(
            json.dumps({k: v for k, v in edited_index.items() if "edge" not in k and "max" not in k})
        )
    assert read_model_facts(folder).geometry == GeometryFacts()
    values = json.loads((folder / file).read_text())
    tiny = {"canvas_short_edge": 64, "canvas_max_pixels": 8192, "reference_image_short_edge": 96}
    (folder / file).write_text(json.dumps(values | tiny))
    assert read_model_facts(folder).geometry == GeometryFacts(**tiny)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (DENOISER, {"num_experts": 8}, "fields this version does not know: num_experts"),
        (DENOISER, {"hidden_size": 0}, "transformer config: hidden_size must be a positive whole number, got 0"),
        (DENOISER, {"hidden_size": 32.0}, r"hidden_size must be a positive whole number, got 32\.0"),
        (DENOISER, {"num_layers": True}, "num_layers must be a positive whole number, got True"),
        (DENOISER, {"ffn_dim": "48"}, "ffn_dim must be a positive whole number, got '48'"),
        (DENOISER, {"num_layers": 1 << 40}, "num_layers must be a positive whole number"),
        (DENOISER, {"norm_eps": 0}, "norm_eps must be a positive number, got 0"),
        (DENOISER, {"rope_theta": float("inf")}, "rope_theta must be a positive number, got inf"),
        (DENOISER, {"rope_theta": float("nan")}, "rope_theta must be a positive number, got nan"),
        (DENOISER, {"patch_size": 2}, "patch_size must be a list"),
        (DENOISER, {"patch_size": [1, 2]}, r"patch_size must be \[1, height, width\]"),
        (DENOISER, {"patch_size": [2, 2, 2]}, r"patch_size must be \[1, height, width\]"),
        (DENOISER, {"patch_size": [1, 0, 2]}, "patch_size must be a positive whole number, got 0"),
        (DENOISER, {"rope_freq_dim": 3}, r"6 \* rope_freq_dim \(18\) is larger than attention_head_dim \(16\)"),
        (DENOISER, {"in_channels": 16}, "in_channels is 16, but its VAE's latent_channels is 24"),
        (DENOISER, {"audio_in_channels": 8}, "audio_in_channels is 8, but its VAE's latent_channels is 32"),
        (VAE, {"latent_channels": -24}, "vae config: latent_channels must be a positive whole number, got -24"),
        (VAE, {"clip_length": "17"}, "vae config: clip_length must be a positive whole number, got '17'"),
        (VAE, {"spatial_downsample_factors": 16}, "spatial_downsample_factors must be a list"),
        (VAE, {"spatial_downsample_factors": []}, "spatial_downsample_factors must be a list"),
        (VAE, {"temporal_downsample_factors": [1, 0]}, "temporal_downsample_factors must be a positive whole number"),
        (VAE, {"token_drop": 2}, "token_drop must be 3, got 2"),
        (AUDIO, {"sampling_rate": 44100}, "sampling_rate 44100 must be 40 latents a second times hop 800"),
        (AUDIO, {"encoder_rates": [2, 4, 4, 5, 6]}, "sampling_rate 32000 must be 40 latents a second times hop 960"),
        ("scheduler/scheduler_config.json", {"shift": 0}, "scheduler_config.json: shift must be a positive number"),
        ("audio_scheduler/scheduler_config.json", {"shift": "3"}, "shift must be a positive number, got '3'"),
        (INDEX, {"canvas_short_edge": 768.5}, r"canvas_short_edge must be a positive whole number, got 768\.5"),
    ],
)
def test_a_config_that_is_not_h3_is_refused_by_name(edited, file, changes, message):
    """The message names the field and what it holds; nothing is coerced."""
    folder = edited(file, **changes)
    if file == INDEX:
        (folder / "modular_model_index.json").unlink()
    with pytest.raises(CheckpointError, match=message):
        read_model_facts(folder)


@pytest.mark.parametrize(
    "file", [DENOISER, VAE, AUDIO, INDEX, "scheduler/scheduler_config.json", "audio_scheduler/scheduler_config.json"]
)
def test_a_missing_config_is_named(edited, file):
    """An incomplete download says which file is not there."""
    folder = edited()
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing; the checkpoint download is not complete"):
        read_model_facts(folder)


def test_a_missing_folder_says_which_folder_is_meant(tmp_path):
    """A path that is no folder is not read as a checkpoint."""
    for path in (tmp_path / "none", Path(__file__)):
        with pytest.raises(CheckpointError, match=r"give the folder that holds model_index.json"):
            read_model_facts(path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[1]", "must hold a JSON object, not list"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b" " * (MAX_CONFIG_BYTES + 1), "is larger than"),
    ],
)
def test_a_damaged_config_is_refused(tmp_path, body, message):
    """Truncated, binary, deeply nested or huge files are errors that name the file, never a traceback."""
    file = tmp_path / "config.json"
    file.write_bytes(body)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


def test_a_folder_in_the_place_of_a_config_is_refused(tmp_path):
    """An unreadable path is an error of the checkpoint."""
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json(tmp_path)
