"""Commands take the same fields by the same options: none can drift from `Settings`, `VideoRequest` or another."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import typer.main

from vflash.cli import app
from vflash.cli.fields import REQUEST, SETTINGS
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
    | (MEMORY - {"model_placement"})
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
