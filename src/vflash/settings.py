"""How a pipeline runs: every backend by name, checked before anything is imported or loaded."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import Attribute, Factory, field, fields, frozen
from attrs.converters import optional
from attrs.validators import optional as maybe

from vflash.domain.choices import (
    AttentionBackend,
    BlockKernelSet,
    Dtype,
    Fp8Kernels,
    Lifetime,
    Linear,
    LogFormat,
    MediaPreset,
    MediaVideoEncoder,
    ModelPlacement,
    QkvOrder,
    SidecarMerge,
    VedaDenseBackend,
    VedaKernels,
    VideoDecoderChoice,
    VideoFeed,
    WeightReading,
    WeightResidency,
)
from vflash.domain.fields import errors_name_their_field, shown, to_bool, to_path, whole_number
from vflash.domain.profiles import Profile, choose_profile, find_profile
from vflash_ports.errors import ContractError


def _gibibytes(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1 << 20:
        raise ContractError(f"must be a positive number of GiB, got {shown(value)}")
    return float(value)


_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


def _device(value: Any) -> str:
    if not isinstance(value, str) or not _DEVICE.fullmatch(value):
        raise ContractError(f"must be cpu, cuda or cuda:N, got {shown(value)}")
    return value


def _alpha(value: Any) -> float | str:
    """A positive number, or "rank": each module's own rank."""
    if value == "rank":
        return "rank"
    try:  # the command line has one option for both, so numbers come as text as well
        return _strength(float(value) if isinstance(value, str) else value)
    except (ContractError, ValueError):
        raise ContractError(f'must be a positive number, or "rank", got {shown(value)}') from None


def _strength(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ContractError(f"must be a positive number, got {shown(value)}")
    return float(value)


_BUDGET = re.compile(r"ratio=(0?\.[0-9]{1,9}|1(\.0{1,9})?|0)|tiles=[0-9]{1,6}(\.[0-9]{1,9})?")


def _budget(value: Any) -> str:
    if not isinstance(value, str) or not _BUDGET.fullmatch(value) or not float(value.partition("=")[2]) > 0:
        raise ContractError(f"must be ratio=R with 0 < R <= 1, or tiles=N, got {shown(value)}")
    return value


def _evaluations(value: Any) -> tuple[int, ...]:
    numbers = tuple(value) if isinstance(value, list | tuple) else (None,)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ContractError(f"must be a list of evaluations, counted from 0, got {shown(value)}")
    return numbers


def _profile_name(_: Any, __: Attribute[str | None], value: Any) -> None:
    if value is not None:
        find_profile(value)


def _read_workers(_: Any, attribute: Attribute[int], value: Any) -> None:
    if type(value) is not int or value not in (1, 2, 4, 8):
        raise ContractError(f"{attribute.name} must be 1, 2, 4 or 8, got {shown(value)}")


# The released video VAE has 1,797 rows a tile: eight make matrix products of 14,376 rows, in 0.9 GiB.
_CUDA_TILES_AT_ONCE = 8


def _tiles_at_once(settings: Settings) -> int:
    return 1 if settings.device == "cpu" else _CUDA_TILES_AT_ONCE


_AT_WORK: tuple[tuple[Callable[[Settings], bool], str, tuple[str, ...]], ...] = (
    (
        lambda settings: settings.attention_backend.startswith("veda"),
        "attention_backend",
        (
            *("veda_dense_edge_layers", "veda_dense_backend", "veda_dense_steps", "veda_kernels"),
            *("veda_target_budget", "veda_reference_budget"),
        ),
    ),
    (lambda settings: settings.device != "cpu", "device", ("device_memory_gib",)),
    (lambda settings: settings.linear is not Linear.BF16, "linear", ("fp8_kernels",)),
    (
        lambda settings: Linear.W8A8 is settings.linear or VideoDecoderChoice.FUSED_FP8 is settings.video_decoder,
        "linear",
        ("fp8_fast_accum",),
    ),
    (lambda settings: settings.weight_reading is not WeightReading.MMAP, "weight_reading", ("weight_read_workers",)),
    (lambda settings: settings.weight_reading is WeightReading.SIDECAR, "weight_reading", ("sidecar_merge",)),
    (
        lambda settings: settings.media_video_input is not VideoFeed.FRAMES_DIR,
        "media_video_input",
        ("media_video_encoder", "media_video_threads", "media_preset", "media_crf"),
    ),
)
"""When the named settings do anything, and the setting that decides it."""


@frozen(kw_only=True, field_transformer=errors_name_their_field)
class Settings:
    """One pipeline. Field names are the CLI's options; a misspelt one is an error everywhere."""

    model_dir: Path = field(converter=to_path)
    device: str = field(default="cuda", converter=_device)
    dtype: Dtype = field(default=Dtype.BFLOAT16, converter=Dtype)
    attention_backend: AttentionBackend = field(default=AttentionBackend.AUTO, converter=AttentionBackend)
    veda_predictor: Path | None = field(default=None, converter=optional(to_path))
    veda_dense_edge_layers: int = field(default=3, validator=whole_number(0, 1000))
    veda_dense_backend: VedaDenseBackend = field(default=VedaDenseBackend.AUTO, converter=VedaDenseBackend)
    veda_dense_steps: tuple[int, ...] = field(default=(), converter=_evaluations)
    veda_kernels: VedaKernels = field(default=VedaKernels.AUTO, converter=VedaKernels)
    veda_target_budget: str | None = field(default=None, converter=optional(_budget))
    veda_reference_budget: str | None = field(default=None, converter=optional(_budget))
    linear: Linear = field(default=Linear.BF16, converter=Linear)
    fp8_kernels: Fp8Kernels = field(default=Fp8Kernels.AUTO, converter=Fp8Kernels)
    fp8_fast_accum: bool = field(default=False, converter=to_bool)
    block_kernels: BlockKernelSet = field(default=BlockKernelSet.AUTO, converter=BlockKernelSet)
    weight_residency: WeightResidency = field(default=WeightResidency.BLOCK_RING, converter=WeightResidency)
    weight_reading: WeightReading = field(default=WeightReading.MMAP, converter=WeightReading)
    weight_read_workers: int = field(default=4, validator=_read_workers)
    weight_sidecar: Path | None = field(default=None, converter=optional(to_path))
    sidecar_merge: SidecarMerge = field(default=SidecarMerge.NUMBA, converter=SidecarMerge)
    qkv_order: QkvOrder | None = field(default=None, converter=optional(QkvOrder))
    profile: str | None = field(default=None, validator=_profile_name)
    assets: Path | None = field(default=None, converter=optional(to_path))
    adapter: Path | None = field(default=None, converter=optional(to_path))
    adapter_alpha: float | str | None = field(default=None, converter=optional(_alpha))
    adapter_strength: float | None = field(default=None, converter=optional(_strength))
    adapter_qkv_order: QkvOrder | None = field(default=None, converter=optional(QkvOrder))
    video_decoder: VideoDecoderChoice = field(default=VideoDecoderChoice.DIFFUSERS, converter=VideoDecoderChoice)
    model_placement: ModelPlacement = field(default=ModelPlacement.TOGETHER, converter=ModelPlacement)
    model_lifetime: Lifetime = field(default=Lifetime.KEEP, converter=Lifetime)
    device_memory_gib: float | None = field(default=None, converter=optional(_gibibytes))
    host_memory_gib: float | None = field(default=None, converter=optional(_gibibytes))
    media_video_input: VideoFeed = field(default=VideoFeed.FILE, converter=VideoFeed)
    media_video_threads: int | None = field(default=None, validator=maybe(whole_number(1, 256)))
    vae_tiles_at_once: int = field(default=Factory(_tiles_at_once, takes_self=True), validator=whole_number(1, 4096))
    log: LogFormat = field(default=LogFormat.NONE, converter=LogFormat)
    ffn_chunk_rows: int = field(default=28_672, validator=whole_number(1, 1 << 30))
    media_video_encoder: MediaVideoEncoder = field(default=MediaVideoEncoder.LIBX264, converter=MediaVideoEncoder)
    media_preset: MediaPreset = field(default=MediaPreset.MEDIUM, converter=MediaPreset)
    media_crf: int = field(default=18, validator=whole_number(0, 51))

    def __attrs_post_init__(self) -> None:
        if (self.weight_reading is WeightReading.SIDECAR) != (self.weight_sidecar is not None):
            raise ContractError(
                "weight_reading=sidecar and weight_sidecar=FOLDER go together: give both, or neither "
                f"(got {self.weight_reading} and {self.weight_sidecar})"
            )
        if (self.attention_backend is AttentionBackend.VEDA) != (self.veda_predictor is not None):
            raise ContractError(
                "attention_backend=veda and veda_predictor=FILE go together: give both, or neither; "
                "veda-meanpool is the Veda that needs no predictor "
                f"(got {self.attention_backend} and {self.veda_predictor})"
            )
        self._refuse_idle()
        for name in ("adapter_alpha", "adapter_strength", "adapter_qkv_order"):
            if self.adapter is None and getattr(self, name) is not None:
                raise ContractError(f"{name} is given but no adapter; name its file as adapter, or drop the option")
        if self.assets is not None and (self.adapter is not None or self.qkv_order is not None):
            raise ContractError("assets hold their adapter and row order; drop adapter and qkv_order, or drop assets")
        if self.assets is None:
            choose_profile(self.profile, None if self.adapter is None else self.adapter.name)

    def _refuse_idle(self) -> None:
        """An option that would change nothing is a misunderstanding, not a wish."""
        for at_work, chooser, names in _AT_WORK:
            for name in names:
                if getattr(self, name) != getattr(fields(Settings), name).default and not at_work(self):
                    raise ContractError(f"{name} is given, but {chooser} is {getattr(self, chooser)}; drop it")

    @property
    def keeps(self) -> bool:
        return self.model_lifetime is Lifetime.KEEP

    @property
    def swaps(self) -> bool:
        return self.model_placement is ModelPlacement.SWAP

    @property
    def running_profile(self) -> Profile | None:
        """The profile named, or the one that a published adapter implies. Raises `ContractError` where they differ.

        Assets bring theirs with them.
        """
        if self.assets is not None:
            return None
        return choose_profile(self.profile, None if self.adapter is None else self.adapter.name)
