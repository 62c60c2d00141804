"""Commands take the same fields by the same options: none can drift from `Settings`, `VideoRequest` or another."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import typer.main

from vflash.cli import app
from vflash.cli.fields import REQUEST, SETTINGS
from vflash.composition import decode_words
from vflash.domain.request import VideoRequest
from vflash.settings import Settings

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]

SPEAKS = {"config", "as_json", "help"}
"""How a command is told and how it answers."""
OWN = {
    "generate": {"output", "profile_denoise"},
    "plan": set(),
    "encode": {"bundle"},
    "denoise": {"bundle", "output_latents", "profile_denoise"},
    "decode": {"output", "latents"},
    "compile": {"output", "verify_content_hashes"},
}
"""Command -> what it takes that is no field: where it reads and writes."""
BLOCKS = {name for name in SETTINGS if name.startswith(("veda_", "attention_", "block_kernels"))}
DECODER = {"video_decoder", "vae_tiles_at_once"}
MEDIA = {name for name in SETTINGS if name.startswith("media_")}
MEMORY = {"weight_residency", "model_placement", "model_lifetime", "device_memory_gib", "host_memory_gib"}
MEMORY |= {"ffn_chunk_rows"}
LEFT_OUT: dict[str, set[str]] = {
    "generate": set(),
    "plan": set(),
    "encode": BLOCKS | DECODER | MEDIA,  # it stops before the denoiser; the memory plan it keeps to is the whole one
    "denoise": DECODER | MEDIA,
    "decode": BLOCKS
    | (MEMORY - {"model_placement", "device_memory_gib", "host_memory_gib"})
    | {"linear", "fp8_kernels", "assets", "profile"}
    | {name for name in SETTINGS if name.startswith("adapter")},
    "compile": BLOCKS | DECODER | MEDIA | MEMORY | {"assets"},
}
"""Command -> fields of `Settings` that change nothing about what it does."""
ASKS: dict[str, set[str]] = {
    "generate": set(REQUEST),
    "plan": set(REQUEST),
    "encode": set(REQUEST) - {"save_latents", "audio_delivery_profile", "keyframe_delivery_profile"},
    "denoise": set(),
    "decode": {"audio_delivery_profile"},
    "compile": set(),
}
"""Command -> fields of `VideoRequest`; a bundle and kept latents bring the others."""


def options(command: str) -> dict[str, Any]:
    return {parameter.name: parameter for parameter in COMMANDS[command].params}


def test_every_field_is_an_option():
    """A setting or a wish that Python takes can be said on the command line."""
    assert set(SETTINGS) == {item.name for item in attrs.fields(Settings)}
    assert set(REQUEST) == {item.name for item in attrs.fields(VideoRequest)}


@pytest.mark.parametrize("command", OWN)
def test_a_command_takes_every_field_that_matters_to_it(command):
    """All but those named above, each with its reason; a new field is taken by every command until it is named."""
    fields = (set(SETTINGS) - LEFT_OUT[command]) | ASKS[command]
    fields |= {"prompt_file"} if "prompt" in fields else set()
    assert set(options(command)) - SPEAKS == fields | OWN[command]


@pytest.mark.parametrize("command", OWN)
def test_an_option_is_spelt_alike_everywhere(command):
    """The same words, the same help."""
    whole = options("generate")
    for name, option in options(command).items():
        if name in SETTINGS or name in REQUEST:
            same = whole[name]
            assert (option.opts, option.secondary_opts, option.envvar) == (same.opts, same.secondary_opts, same.envvar)
            assert (option.help, option.multiple) == (same.help, same.multiple)


def test_a_command_line_of_generate_can_be_planned():
    """What changes memory, and what is refused, is the same request: only where it would be written is left out."""
    assert set(options("generate")) - set(options("plan")) == OWN["generate"]


CHOSEN: dict[str, dict[str, Any]] = {
    "nothing": {},
    "the decoder": {"video_decoder": "fused", "vae_tiles_at_once": 3, "model_placement": "swap", "dtype": "bfloat16"},
    "fast sums": {"video_decoder": "fused-fp8", "dtype": "bfloat16", "fp8_fast_accum": True},
    "the encoder": {
        "media_video_input": "pipe",
        "media_video_threads": 2,
        "media_video_encoder": "h264_nvenc",
        "media_preset": "fast",
        "media_crf": 20,
    },
    "frames": {"media_video_input": "frames-dir", "log": "json"},
    "reading": {
        "weight_reading": "sidecar",
        "weight_read_workers": 2,
        "weight_sidecar": "side car",
        "sidecar_merge": "numpy",
        "qkv_order": "grouped",
    },
}


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_failed_delivery_s_command_says_every_setting(chosen: str) -> None:
    """What `decode` understands of the words that name a run's settings is those settings, whatever was chosen."""
    settings = Settings(model_dir="my model", device="cpu", **CHOSEN[chosen])
    words = [*decode_words(settings), "--latents", "kept.safetensors", "--output", "clip.mp4"]
    context = COMMANDS["decode"].make_context("decode", words)
    taken = {field.name for field in attrs.fields(Settings)} & options("decode").keys()
    again = Settings(**{name: context.params[name] for name in taken if context.params[name] is not None})
    for name in taken:
        assert getattr(again, name) == getattr(settings, name), name


def test_fast_sums_of_the_denoiser_are_none_of_the_decoder_s() -> None:
    """`decode` would refuse them as idle beside a decoder that does not multiply in FP8."""
    settings = Settings(model_dir="m", device="cpu", linear="w8a8", fp8_fast_accum=True)
    assert "--fp8-fast-accum" not in decode_words(settings)
