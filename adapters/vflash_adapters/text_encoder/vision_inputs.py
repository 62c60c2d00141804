"""Pixels as Qwen3-VL's vision tower reads them, with torch alone: fitted, resized, normalised, cut into patches.

The sizes and the normalisation come from the checkpoint's processor configs. torch's own antialiased bicubic
interpolation of uint8 is what the public processors end in, so the values are bit-equal to theirs.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from attrs import frozen

from vflash_adapters.strict_json import parse_object
from vflash_ports.errors import CheckpointError, MediaError

_LARGEST_ASPECT = 200

# What the recipe below does; a checkpoint that asks for anything else is refused rather than approximated.
_FIXED = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3, "cap_pixels_per_frame": False}


@frozen(kw_only=True)
class VisionRecipe:
    """One processor config: pixel budget (smallest, largest), patch geometry and normalisation."""

    smallest: int
    largest: int
    patch: int
    temporal_patch: int
    merge: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: float

    @property
    def multiple(self) -> int:
        """What both sides of a resized picture are a multiple of."""
        return self.patch * self.merge


@frozen(kw_only=True, eq=False)
class VisionBlock:
    """`patches` float32 [t*h*w, 3*temporal_patch*patch**2]; `grid` (t, h, w) in patches; `tokens` of one time step."""

    patches: torch.Tensor
    grid: tuple[int, int, int]
    tokens: int


def read_recipe(path: Path) -> VisionRecipe:
    """A `preprocessor_config.json` or `video_preprocessor_config.json`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; copy it again from the release") from error
    config = parse_object(content, str(path))
    for key, wanted in _FIXED.items():
        if config.get(key) not in (None, wanted):
            raise CheckpointError(f"{path} sets {key} to {config[key]!r}; only {wanted!r} is supported")
    try:
        return VisionRecipe(
            smallest=int(config["size"]["shortest_edge"]),
            largest=int(config["size"]["longest_edge"]),
            patch=int(config["patch_size"]),
            temporal_patch=int(config["temporal_patch_size"]),
            merge=int(config["merge_size"]),
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
            rescale=float(config.get("rescale_factor", 1 / 255)),
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path} lacks {error}; copy it again from the release") from error


def picture_block(pixels: torch.Tensor, recipe: VisionRecipe) -> VisionBlock:
    """`pixels` uint8 [H, W, 3]; the picture is held still for one temporal patch."""
    height, width = pixels.shape[:2]
    size = fit_picture(height, width, recipe)
    frames = _resize(pixels[None], size)
    return _cut(frames.expand(recipe.temporal_patch, -1, -1, -1), recipe)


def video_block(frames: torch.Tensor, recipe: VisionRecipe) -> VisionBlock:
    """`frames` uint8 [F, H, W, 3]; the last is repeated up to a whole temporal patch, after the size is chosen."""
    count, height, width = frames.shape[:3]
    resized = _resize(frames, fit_video(count, height, width, recipe))
    missing = -count % recipe.temporal_patch
    return _cut(torch.cat([resized, resized[-1:].expand(missing, -1, -1, -1)]), recipe)


def fit_picture(height: int, width: int, recipe: VisionRecipe) -> tuple[int, int]:
    """The nearest size (height, width) in whole merged patches whose area is within the budget."""
    return _fit(height, width, 1, 1, recipe)


def fit_video(frames: int, height: int, width: int, recipe: VisionRecipe) -> tuple[int, int]:
    """As for a picture, but the budget is for all frames together; a side below one merged patch is enlarged first."""
    multiple = recipe.multiple
    if height < multiple or width < multiple:
        scale = max(multiple / height, multiple / width)
        height, width = int(height * scale), int(width * scale)
    whole = round(frames / recipe.temporal_patch) * recipe.temporal_patch
    return _fit(height, width, frames, whole, recipe)


def _fit(height: int, width: int, frames: int, whole_frames: int, recipe: VisionRecipe) -> tuple[int, int]:
    if max(height, width) > _LARGEST_ASPECT * min(height, width):
        raise MediaError(f"a picture of {width}x{height} is more than {_LARGEST_ASPECT} times as long as wide; crop it")
    multiple = recipe.multiple
    rounded = (round(height / multiple) * multiple, round(width / multiple) * multiple)
    area = whole_frames * rounded[0] * rounded[1]
    if area > recipe.largest:
        shrink = math.sqrt(frames * height * width / recipe.largest)
        down = (math.floor(side / shrink / multiple) * multiple for side in (height, width))
        fitted = tuple(max(multiple, side) for side in down)
    elif area < recipe.smallest:
        grow = math.sqrt(recipe.smallest / (frames * height * width))
        fitted = tuple(math.ceil(side * grow / multiple) * multiple for side in (height, width))
    else:
        fitted = rounded
    return fitted[0], fitted[1]


def _resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    channels_first = frames.permute(0, 3, 1, 2)
    if channels_first.shape[-2:] == size:
        return channels_first
    return torch.nn.functional.interpolate(
        channels_first, size=size, mode="bicubic", align_corners=False, antialias=True
    )


def _cut(frames: torch.Tensor, recipe: VisionRecipe) -> VisionBlock:
    """Rows run over time, then merged cells, then the patches inside a cell; columns are (channel, time, y, x)."""
    patch, merge, temporal = recipe.patch, recipe.merge, recipe.temporal_patch
    count, channels, height, width = frames.shape
    grid = (count // temporal, height // patch, width // patch)
    scale = 1.0 / recipe.rescale
    mean, std = (torch.tensor(values).view(-1, 1, 1) * scale for values in (recipe.mean, recipe.std))
    values = (frames.to(torch.float32) - mean) / std
    cells = values.reshape(grid[0], temporal, channels, grid[1] // merge, merge, patch, grid[2] // merge, merge, patch)
    rows = cells.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    patches = rows.reshape(math.prod(grid), channels * temporal * patch * patch)
    return VisionBlock(patches=patches, grid=grid, tokens=grid[1] * grid[2] // merge**2)
