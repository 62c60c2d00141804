"""What is run: the released model's dimensions on a GPU, a tiny model's on a CPU, through the same code."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, evolve, frozen

from vflash.domain.canvas import Canvas
from vflash.domain.model_facts import DenoiserFacts
from vflash_adapters.text_encoder.presentation import Presenter
from vflash_adapters.tiny_checkpoint import SMALL, Dimensions
from vflash_adapters.tiny_checkpoint.tokenizer import CORPUS
from vflash_ports.text_encoder import TextPart


@frozen(kw_only=True)
class Scale:
    """`small` is for warming up and for checks, `large` is what counts; `text_rows` is the least the prompt has."""

    dimensions: Dimensions
    device: torch.device
    small: Canvas
    large: Canvas
    text_rows: int
    evaluations: int = 4

    @property
    def real(self) -> bool:
        return self.device.type == "cuda"


def scale_of(device: torch.device) -> Scale:
    """The released sizes need about 100 GiB of device memory."""
    if device.type == "cuda":
        small, large = Canvas(width=448, height=256), Canvas(width=1344, height=768)
        return Scale(dimensions=released(), device=device, small=small, large=large, text_rows=512)
    small, large = Canvas(width=64, height=64), Canvas(width=96, height=64)
    return Scale(dimensions=SMALL, device=device, small=small, large=large, text_rows=40)


def released() -> Dimensions:
    """MiniMax-H3 as diffusers' defaults and Qwen3-VL-32B's published config have it; the tokenizer stays the tiny one,
    because only the number of tokens counts here."""
    from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio

    zeros, ones = [0.0] * 32, [1.0] * 32
    return evolve(
        SMALL,
        transformer=asdict(DenoiserFacts()),
        vae=_defaults(AutoencoderKLMiniMaxH3),
        audio_vae={**_defaults(AutoencoderKLMiniMaxH3Audio), "latents_mean": zeros, "latents_std": ones},
        text={
            "vocab_size": 151_936,
            "hidden_size": 5120,
            "intermediate_size": 25_600,
            "num_hidden_layers": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "mrope_section": [24, 20, 20],
        },
        vision={
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        canvas={},
    )


def prompt_of(model_dir: Path, rows: int) -> str:
    """A prompt of at least `rows` tokens, and at most a sentence more."""
    presenter, prompt = Presenter.read(model_dir), ""
    sentences = [sentence for sentence in CORPUS if "<" not in sentence]
    number = 0
    while not prompt or len(presenter.present([TextPart(text=prompt)]).ids) < rows:
        prompt += sentences[number % len(sentences)] + " "
        number += 1
    return prompt.strip()


def _defaults(model: Any) -> Mapping[str, Any]:
    parameters = inspect.signature(model.__init__).parameters.values()
    return {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}
