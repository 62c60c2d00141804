"""A presentation becomes token ids: every piece of text tokenised on its own, every picture a block of pad tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from attrs import Factory, define, field, frozen

from vflash_adapters.text_encoder.vision_inputs import (
    VisionBlock,
    VisionRecipe,
    picture_block,
    read_recipe,
    video_block,
)
from vflash_ports.errors import CheckpointError, ContractError
from vflash_ports.text_encoder import Part, PicturePart, TextPart, VideoPart

TEXT_TAG = 1
VISION_TAG = 0

# Qwen3-VL's own kinds of token, which drive its three-axis rotary positions.
_PLAIN, _IMAGE, _VIDEO = 0, 1, 2


class Tokenizer(Protocol):
    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]: ...
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...


@frozen(kw_only=True)
class VisionTokens:
    """Ids of the tokens around and inside a vision block."""

    start: int
    end: int
    image_pad: int
    video_pad: int


@frozen(kw_only=True, eq=False)
class EncoderInputs:
    """`ids`, `types`, `tags` int64 [rows]; `vision` holds the pixel and grid tensors by the encoder's own names."""

    ids: torch.Tensor
    types: torch.Tensor
    tags: torch.Tensor
    vision: Mapping[str, torch.Tensor]


@frozen(kw_only=True, eq=False)
class Presenter:
    """Everything that turns parts into encoder inputs, read once from `tokenizer/` and `processor/`."""

    tokenizer: Tokenizer
    tokens: VisionTokens
    picture: VisionRecipe
    video: VisionRecipe

    @classmethod
    def read(cls, model_dir: Path) -> Presenter:
        """Raises `CheckpointError` for a missing file or a tokenizer without the vision tokens."""
        folder = model_dir / "processor"
        picture = read_recipe(folder / "preprocessor_config.json")
        video = read_recipe(folder / "video_preprocessor_config.json")
        tokenizer = _read_tokenizer(model_dir / "tokenizer")
        return cls(tokenizer=tokenizer, tokens=_vision_tokens(tokenizer, model_dir), picture=picture, video=video)

    def present(self, presentation: Sequence[Part]) -> EncoderInputs:
        """Raises `ContractError` for a presentation without a token, or text that contains a pad token."""
        rows = _Rows()
        for part in presentation:
            match part:
                case TextPart():
                    self._text(part.text, rows)
                case PicturePart():
                    block = picture_block(part.pixels, self.picture)
                    rows.images.append(block)
                    rows.add_vision(self.tokens, self.tokens.image_pad, block.tokens, _IMAGE)
                case VideoPart():
                    self._video(part, rows)
        if not rows.ids:
            raise ContractError("the prompt is empty: the text encoder needs at least one token")
        return rows.inputs()

    def _text(self, text: str, rows: _Rows) -> None:
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        for name, pad in (("<|image_pad|>", self.tokens.image_pad), ("<|video_pad|>", self.tokens.video_pad)):
            if pad in ids:
                raise ContractError(f"the prompt contains {name}, which stands for a picture's pixels; remove it")
        rows.add(ids, TEXT_TAG, [_PLAIN] * len(ids))

    def _video(self, part: VideoPart, rows: _Rows) -> None:
        block = video_block(part.frames, self.video)
        if len(part.pair_seconds) != block.grid[0]:
            raise ContractError(
                f"a video part of {part.frames.shape[0]} frames has {block.grid[0]} frame pairs but "
                f"{len(part.pair_seconds)} pair_seconds; give one a pair"
            )
        rows.videos.append(block)
        for seconds in part.pair_seconds:
            self._text(f"<{seconds:.1f} seconds>", rows)
            rows.add_vision(self.tokens, self.tokens.video_pad, block.tokens, _VIDEO)


@define(kw_only=True, eq=False)
class _Rows:
    ids: list[int] = Factory(list)
    types: list[int] = Factory(list)
    tags: list[int] = Factory(list)
    images: list[VisionBlock] = field(factory=list)
    videos: list[VisionBlock] = field(factory=list)

    def add(self, ids: list[int], tag: int, types: list[int]) -> None:
        self.ids += ids
        self.tags += [tag] * len(ids)
        self.types += types

    def add_vision(self, tokens: VisionTokens, pad: int, count: int, kind: int) -> None:
        ids = [tokens.start, *[pad] * count, tokens.end]
        self.add(ids, VISION_TAG, [_PLAIN, *[kind] * count, _PLAIN])

    def inputs(self) -> EncoderInputs:
        ids, types, tags = (torch.tensor(rows, dtype=torch.int64) for rows in (self.ids, self.types, self.tags))
        return EncoderInputs(ids=ids, types=types, tags=tags, vision=dict(self._vision()))

    def _vision(self) -> Iterator[tuple[str, torch.Tensor]]:
        for blocks, pixels, grid in (
            (self.images, "pixel_values", "image_grid_thw"),
            (self.videos, "pixel_values_videos", "video_grid_thw"),
        ):
            if blocks:
                yield pixels, torch.cat([block.patches for block in blocks])
                yield grid, torch.tensor([block.grid for block in blocks])


def _read_tokenizer(folder: Path) -> Tokenizer:
    from transformers import Qwen2Tokenizer

    if not (folder / "tokenizer_config.json").is_file():
        raise CheckpointError(f"{folder} has no tokenizer_config.json; copy the tokenizer/ folder of the release")
    # Through transformers, because the release lists its own special tokens in tokenizer_config.json alone.
    try:
        tokenizer: Tokenizer = Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the tokenizer in {folder} cannot be read: {error}") from error
    return tokenizer


def _vision_tokens(tokenizer: Tokenizer, model_dir: Path) -> VisionTokens:
    def id_of(token: str) -> int:
        found = tokenizer.convert_tokens_to_ids(token)
        if found is None:
            raise CheckpointError(f"the tokenizer of {model_dir} does not know {token}; it is not MiniMax-H3's")
        return found

    return VisionTokens(
        start=id_of("<|vision_start|>"),
        end=id_of("<|vision_end|>"),
        image_pad=id_of("<|image_pad|>"),
        video_pad=id_of("<|video_pad|>"),
    )
