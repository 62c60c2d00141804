"""What no decode can beat, its GEMMs and attention alone, and its passes over memory, timed in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch.nn.attention import SDPBackend

from denoiser_bench.timing import milliseconds, sustained
from vflash_adapters.latent_codec.decoder_kernels import DecoderKernels, TileAttention
from vflash_adapters.latent_codec.tile_attention import TORCH_KERNELS, SdpaTileAttention
from vflash_adapters.latent_codec.video_decoders import in_fp8
from vflash_adapters.linear.fp8 import default_row_kernels
from vflash_adapters.linear.row_fp8 import RowFP8Execution
from vflash_adapters.linear.row_quantiser import quantise_rows
from vflash_ports.linear import ActivationFormat

DENSE, FP8 = ActivationFormat.DENSE, ActivationFormat.FP8_ROWS
GEMMS = ("qkv", "out", "ff_in", "ff_out")
PASSES = {
    "fused": ("norm", "q/k norm", "norm", "swiglu"),
    "fused-fp8": ("norm fp8", "q/k norm", "quantise", "norm fp8", "swiglu fp8"),
}
SUSTAINED_S = 0.5


@frozen(kw_only=True, eq=False)
class Part:
    """`work` of one call: FLOP of a product, bytes of a pass."""

    call: Callable[[], object]
    work: float


@frozen(kw_only=True, eq=False)
class BlockFloor:
    """The first block of `vae`'s decoder over `tiles` tiles of `tokens` random rows, its own weights and biases."""

    vae: Any
    kernels: DecoderKernels
    tiles: int
    tokens: int
    device: torch.device

    def figures(self, whole_tiles: int) -> dict[str, Any]:
        """Milliseconds a block and rate of each part; seconds of a whole decode of `whole_tiles` tiles, by chains that
        are kept up for half a second, as a chip at its power limit runs them, on the fastest attention, by name."""
        parts = self.parts()
        times = {name: milliseconds(part.call, self.device, repeats=5) for name, part in parts.items()}
        attention = min((name for name in parts if name.startswith("attention ")), key=times.__getitem__)
        kept_up = sustained(_chains(parts, attention), self.device, seconds=SUSTAINED_S, rounds=1)
        blocks = len(self.vae.decoder.transformer_blocks) * whole_tiles / self.tiles
        return {
            "rows": self.tiles * self.tokens,
            "ms": times,
            "tera_per_second": {name: part.work / times[name] / 1e9 for name, part in parts.items()},
            "attention": attention,
            "decode_seconds": {name: each[0] * blocks / 1000 for name, each in kept_up.items()},
        }

    def parts(self) -> dict[str, Part]:
        return self._products() | self._attentions() | self._passes()

    def _products(self) -> dict[str, Part]:
        kinds = {"bf16": self.kernels}
        kinds |= {f"fp8{' fast' * fast}": in_fp8(self.kernels, self.device, fast) for fast in (False, True)}
        parts = {}
        for name, (weight, bias) in zip(GEMMS, self._weights(), strict=True):
            dense = self._rows(weight.shape[1])
            rows = quantise_rows(dense)
            for kind, kernels in kinds.items():
                call = partial(kernels.linear(weight, bias), dense if kind == "bf16" else rows)
                parts[f"{kind} {name}"] = Part(call=call, work=2.0 * len(dense) * weight.numel())
        return parts

    def _weights(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        attn, ff = self._block.attn, self._block.ff
        three = (attn.to_q, attn.to_k, attn.to_v)
        qkv = torch.cat([part.weight for part in three]), torch.cat([part.bias for part in three])
        return [qkv, *((linear.weight, linear.bias) for linear in (attn.to_out[0], ff.net[0].proj, ff.net[2]))]

    def _attentions(self) -> dict[str, Part]:
        qkv = self._rows(3 * self._width).view(self.tiles, self.tokens, 3, self._block.attn.heads, -1)
        work = 4.0 * self.tiles * self.tokens**2 * self._width
        kernels: dict[str, TileAttention] = {
            backend.name.removesuffix("_ATTENTION").lower(): SdpaTileAttention(kernels=(backend,))
            for backend in TORCH_KERNELS[self.device.type]
            if backend not in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
        }
        if not isinstance(self.kernels.attention, SdpaTileAttention):
            kernels["hopper"] = self.kernels.attention
        return {
            f"attention {name}": Part(call=partial(attend, *qkv.unbind(2)), work=work)
            for name, attend in kernels.items()
        }

    def _passes(self) -> dict[str, Part]:
        """Bytes read once and written once; `q/k norm of the denoiser` does the same on the denoiser's kernel."""
        block, width, ffn, heads = self._block, self._width, self._block.ff.net[2].in_features, self._block.attn.heads
        x, update, qkv, packed = (self._rows(columns) for columns in (width, width, 3 * width, 2 * ffn))
        angles = torch.rand(self.tokens, 6 * len(self.vae.decoder.rope.inv_freq), device=self.device)
        residual = {"update": update.mul_(1e-3), "scale": block.scale1}
        norm = partial(self.kernels.residual_norm, x.float(), block.norm1.weight, eps=1e-5, dtype=x.dtype, **residual)
        named = {"heads": heads, "eps": 1e-5}
        ones, repeated = x.new_ones(width // heads), angles.repeat(self.tiles, 1)
        other = partial(self.kernels.block.qk_norm_rope, qkv, ones, ones, repeated, repeated, **named)
        swiglu = partial(self.kernels.block.swiglu, packed)
        execution = RowFP8Execution("w8a8", activation_quantizer=default_row_kernels("auto", self.device))
        calls: dict[str, tuple[Callable[[], object], int]] = {
            "norm": (norm, 12 * width),
            "norm fp8": (partial(norm, emit=FP8), 11 * width),
            "q/k norm": (partial(self.kernels.head_norm_rope, qkv, angles, angles, **named), 8 * width),
            "q/k norm of the denoiser": (other, 8 * width),
            "swiglu": (partial(swiglu, emit=DENSE), 6 * ffn),
            "swiglu fp8": (partial(swiglu, emit=FP8), 5 * ffn),
            "quantise": (partial(execution.quantise, update), 3 * width),
        }
        return {name: Part(call=call, work=float(len(x) * row_bytes)) for name, (call, row_bytes) in calls.items()}

    @property
    def _block(self) -> Any:
        return self.vae.decoder.transformer_blocks[0]

    @property
    def _width(self) -> int:
        return int(self._block.norm1.weight.numel())

    def _rows(self, width: int) -> torch.Tensor:
        return torch.randn(self.tiles * self.tokens, width, dtype=torch.bfloat16, device=self.device)


def _chains(parts: Mapping[str, Part], attention: str) -> dict[str, Callable[[], object]]:
    """One block's parts one after the other; `passes` are what lies above the floor."""
    floors = {
        f"floor {kind}": (f"{kind} qkv", attention, f"{kind} out", f"{kind} ff_in", f"{kind} ff_out")
        for kind in ("bf16", "fp8", "fp8 fast")
    }
    return {
        name: partial(_run_all, [parts[part].call for part in names])
        for name, names in (floors | {f"passes {kind}": names for kind, names in PASSES.items()}).items()
    }


def _run_all(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        call()
