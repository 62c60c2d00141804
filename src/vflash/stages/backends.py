"""The chosen backends of one pipeline: checked before weights load, named in the receipt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import asdict, frozen

from vflash.domain.model_facts import DenoiserFacts, ModelFacts
from vflash.domain.profiles import Profile
from vflash.model.load import packed_specs, stack_bytes
from vflash.model.transformer import Denoiser, open_denoiser
from vflash.stages.adapter import ChosenAdapter, adapter_receipt
from vflash_ports.adapters import AdapterReport
from vflash_ports.attention import Attention, AttentionLayout, AttentionReport, Segment, SegmentKind
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.errors import UnsupportedError
from vflash_ports.latent_codec import LatentCodecProvider
from vflash_ports.linear import LinearExecution
from vflash_ports.residency import Residency, ResidencyMemory
from vflash_ports.weights import WeightOpener

if TYPE_CHECKING:
    from vflash.stages.chosen_assets import ChosenAssets


@frozen(kw_only=True, eq=False)
class Backends:
    device: torch.device
    dtype: torch.dtype
    attention: Attention
    linear: LinearExecution
    kernels: BlockKernels
    residency: Residency
    weights: WeightOpener
    weight_reading: str
    ffn_chunk_rows: int
    codec: LatentCodecProvider
    video_decoder: str = "diffusers"
    vae_tiles_at_once: int = 1
    model_placement: str = ""
    profile: Profile | None = None
    adapter: ChosenAdapter | None = None
    assets: ChosenAssets | None = None

    def check(self, facts: ModelFacts) -> None:
        """Raises `UnsupportedError`, with the cure, if any choice cannot run here."""
        check_device(self.device)
        self.linear.check(self.device, self.dtype)
        self.residency.check(self.device, stack_bytes(facts.denoiser, self.linear, self.dtype))
        self.kernels.check(self.device, self.dtype)
        self.attention.prepare(_smallest_layout(facts.denoiser, self.device, self.dtype))

    def check_codec(self, model_dir: Path) -> None:
        """Raises `UnsupportedError`, with the cure, if the video decoder chosen cannot run here."""
        check_device(self.device)
        self.codec.check(model_dir, device=self.device, dtype=self.dtype)

    def held_by_attention(self, facts: ModelFacts) -> int:
        """Bytes on the device; raises where the attention cannot run."""
        return self.attention.held_bytes(_smallest_layout(facts.denoiser, self.device, self.dtype))

    def check_component(self, component: Path, facts: DenoiserFacts) -> None:
        """What is stored, by headers and file stamps alone: the linear execution can run it and the adapter fits it
        whole, or the assets are for it. Raises `ContractError`."""
        if self.assets is not None:
            self.assets.check(component.name, facts, self)
        self.check_stored(component, facts, self.linear)
        if self.adapter is not None:
            self.adapter.check(component.name, self.weights(component))

    def check_stored(self, component: Path, facts: DenoiserFacts, linear: LinearExecution) -> None:
        """What is stored of the linears can run as `linear`. Raises `ContractError`."""
        if self.assets is not None:
            self.assets.check_linear(linear.name)
        else:
            packed_specs(facts, linear, self.dtype, self.weights(component).specs())

    def open_denoiser(self, component: Path, facts: DenoiserFacts) -> AbstractContextManager[Denoiser]:
        if self.assets is not None:
            self.assets.check(component.name, facts, self)
            return self.assets.open(facts, self)
        source = self.weights(component)
        return open_denoiser(
            source,
            what=str(component),
            facts=facts,
            execution=self.linear,
            kernels=self.kernels,
            residency=self.residency,
            device=self.device,
            dtype=self.dtype,
            ffn_chunk_rows=self.ffn_chunk_rows,
            adapter=None if self.adapter is None else self.adapter.load(component.name, source),
        )

    def receipt(
        self,
        attention: AttentionReport,
        memory: ResidencyMemory,
        adapter: AdapterReport | None = None,
        fp8_linears: Sequence[str] = (),
    ) -> dict[str, Any]:
        """`fp8_linears` are the linears of every block that ran from FP8 weights."""
        return {
            "profile": None if self.profile is None else self.profile.name,
            "adapter": adapter_receipt(adapter),
            "assets": None if self.assets is None else self.assets.receipt(),
            "backends": {
                **self.codec_receipt(),
                "attention": attention.backend,
                "linear": self.linear.name,
                "fp8_linears": list(fp8_linears),
                "block_kernels": self.kernels.name,
                "weight_residency": self.residency.name,
                "weight_reading": self.weight_reading,
                "model_placement": self.model_placement,
            },
            "attention": asdict(attention),
            "weights": asdict(memory),
        }

    def codec_receipt(self) -> dict[str, Any]:
        """What decodes, and on what."""
        return {
            "device": str(self.device),
            "device_name": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "video_decoder": str(self.video_decoder),
            "vae_tiles_at_once": self.vae_tiles_at_once,
            "float32_convolutions": self._float32_convolutions(),
        }

    def _float32_convolutions(self) -> str:
        """How parts of the VAEs that stay in float32 beside another dtype multiply: torch's own word for it."""
        if self.device.type != "cuda" or self.dtype == torch.float32:
            return "ieee"
        cudnn: Any = torch.backends.cudnn
        return str(cudnn.conv.fp32_precision)


def check_device(device: torch.device) -> None:
    if device.type != "cuda":
        return
    if not torch.cuda.is_available():
        raise UnsupportedError("device is cuda, but torch sees no CUDA device; choose device cpu, or mend the driver")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UnsupportedError(f"device is {device}, but torch sees {torch.cuda.device_count()} CUDA devices")


def _smallest_layout(facts: DenoiserFacts, device: torch.device, dtype: torch.dtype) -> AttentionLayout:
    """A packed sequence of a few rows, for what an attention backend can refuse before weights load."""
    runs = ((SegmentKind.TEXT, 1, None), (SegmentKind.TARGET_AUDIO, 2, None), (SegmentKind.TARGET_VIDEO, 8, (2, 2, 2)))
    segments, start = [], 0
    for kind, rows, grid in runs:
        segments.append(Segment(kind=kind, start=start, rows=rows, grid=grid))
        start += rows
    return AttentionLayout(
        segments=tuple(segments),
        rows=start,
        heads=facts.num_attention_heads,
        head_dim=facts.attention_head_dim,
        blocks=facts.num_layers,
        evaluations=1,
        device=device,
        dtype=dtype,
    )
