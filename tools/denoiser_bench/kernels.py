"""Each memory-bound kernel alone: milliseconds, bytes a second, error against float64, and its launch settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from denoiser_bench.case import EPS, RawBlock, Sequence, Sizes
from denoiser_bench.timing import milliseconds, relative_error
from vflash_adapters.block_kernels.torch_reference import TorchBlockKernels
from vflash_adapters.linear.row_quantiser import quantise_rows, restore_rows
from vflash_ports.block_kernels import BlockKernels
from vflash_ports.linear import ActivationFormat, Fp8Rows

Run = Callable[[BlockKernels, torch.dtype], Any]
Launch = Callable[..., None]
DENSE, FP8 = ActivationFormat.DENSE, ActivationFormat.FP8_ROWS


class KernelInputs:
    """Inputs of every stage at one sequence length, in BF16 or, through `dtype`, the same values in float64."""

    def __init__(self, block: RawBlock, sequence: Sequence, table: torch.Tensor, sizes: Sizes) -> None:
        self.sizes, self.block, self.sequence, self.table = sizes, block, sequence, table
        rows, device = sequence.x.shape[0], sequence.x.device
        self.packed = torch.randn(rows, 2 * sizes.ffn, dtype=torch.bfloat16, device=device)
        self.qkv = torch.randn(rows, 3 * sizes.inner, dtype=torch.bfloat16, device=device)
        self.update = torch.randn_like(sequence.x)

    def stages(self) -> dict[str, tuple[Run, float]]:
        """Name -> (call, bytes read once and written once)."""
        s, c, f, inner = self.sequence.x.shape[0], self.sizes.hidden, self.sizes.ffn, self.sizes.inner
        return {
            "norm_modulate": (self._norm_modulate(DENSE), 4.0 * s * c),
            "norm_modulate fp8": (self._norm_modulate(FP8), 3.0 * s * c),
            "qk_norm_rope": (self._qk_norm_rope, 8.0 * s * inner),
            "gate_residual": (self._gate_residual, 6.0 * s * c),
            "swiglu": (self._swiglu(DENSE, merge=False), 6.0 * s * f),
            "swiglu fp8": (self._swiglu(FP8, merge=False), 5.0 * s * f),
            "merge + swiglu": (self._swiglu(DENSE, merge=True), 10.0 * s * f),
        }

    def _norm_modulate(self, emit: ActivationFormat) -> Run:
        def run(kernels: BlockKernels, dtype: torch.dtype) -> Any:
            x, weight, table = (t.to(dtype) for t in (self.sequence.x, self.block.norms["norm1"], self.table))
            return kernels.norm_modulate(x, weight, table[:, 0], table[:, 1], self.sequence.rows, eps=EPS, emit=emit)

        return run

    def _qk_norm_rope(self, kernels: BlockKernels, dtype: torch.dtype) -> Any:
        q_weight, k_weight = (self.block.norms[name].to(dtype) for name in ("norm_q", "norm_k"))
        cos, sin, heads = self.sequence.cos, self.sequence.sin, self.sizes.heads
        return kernels.qk_norm_rope(self.qkv.to(dtype), q_weight, k_weight, cos, sin, heads=heads, eps=EPS)[:2]

    def _gate_residual(self, kernels: BlockKernels, dtype: torch.dtype) -> Any:
        x, update, gate = (t.to(dtype) for t in (self.sequence.x, self.update, self.table[:, 2]))
        return kernels.gate_residual(x, update, gate, self.sequence.rows)

    def _swiglu(self, emit: ActivationFormat, *, merge: bool) -> Run:
        def run(kernels: BlockKernels, dtype: torch.dtype) -> Any:
            packed = self.packed.to(dtype)
            if not merge:
                return kernels.swiglu(packed, emit=emit)
            return kernels.swiglu(packed, emit=emit, residual=packed.flip(0), residual_scale=_sixteenth(packed))

        return run


def kernel_times(inputs: KernelInputs, kernels: BlockKernels, device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds and GB/s of each stage; reading once and writing once is what is counted."""
    table = {}
    for name, (run, byte_count) in inputs.stages().items():
        if name == "merge + swiglu":
            residual = torch.randn_like(inputs.packed)
            scale = _sixteenth(residual)
            merge = partial(kernels.swiglu, inputs.packed, emit=DENSE, residual=residual, residual_scale=scale)
            time = milliseconds(merge, device)
        else:
            time = milliseconds(partial(run, kernels, torch.bfloat16), device)
        table[name] = {"ms": time, "gb_s": byte_count / time / 1e6}
    return table


def quantiser_figures(inputs: KernelInputs, device: torch.device) -> dict[str, float]:
    """The fused row quantiser on an attention output: time, traffic, and codes that differ from torch's (0 wanted)."""
    from vflash_adapters.linear.triton_rows import quantise_rows_triton, restore_rows_triton

    values = inputs.qkv[:, : inputs.sizes.inner]
    fused, plain = quantise_rows_triton(values), quantise_rows(values)
    time = milliseconds(partial(quantise_rows_triton, values), device)
    codes = torch.empty(4 * inputs.sizes.hidden, inputs.sizes.hidden, device=device).normal_().to(torch.float8_e4m3fn)
    scales = torch.rand(codes.shape[0], 1, device=device)
    restore = milliseconds(partial(restore_rows_triton, codes, scales, torch.bfloat16), device)
    return {
        "restore_gb_s": 3.0 * codes.numel() / restore / 1e6,
        "restore_torch_gb_s": 3.0
        * codes.numel()
        / milliseconds(partial(restore_rows, codes, scales, torch.bfloat16), device)
        / 1e6,
        "ms": time,
        "gb_s": 3.0 * values.numel() / time / 1e6,
        "differs": float((fused.codes.view(torch.uint8) != plain.codes.view(torch.uint8)).double().mean()),
        "scales_differ": float((fused.scales != plain.scales).double().mean()),
    }


def kernel_errors(make: Callable[[], KernelInputs], kernels: BlockKernels) -> dict[str, dict[str, float]]:
    """Relative error against float64, and the share of elements that differ from the torch reference in BF16."""
    reference, table = TorchBlockKernels(), {}
    for name in make().stages():
        exact_name = name.removesuffix(" fp8")
        wanted = ((name, kernels, torch.bfloat16), (name, reference, torch.bfloat16))
        ours, plain, exact = (_seeded(make, *each) for each in (*wanted, (exact_name, reference, torch.float64)))
        table[name] = {
            "error": max(relative_error(a, e) for a, e in zip(ours, exact, strict=True)),
            "reference_error": max(relative_error(a, e) for a, e in zip(plain, exact, strict=True)),
            "differs": max(float((a != p).double().mean()) for a, p in zip(ours, plain, strict=True)),
        }
    return table


def _seeded(
    make: Callable[[], KernelInputs], name: str, kernels: BlockKernels, dtype: torch.dtype
) -> list[torch.Tensor]:
    torch.manual_seed(7)  # some stages write over their inputs: draw the same ones again
    result = make().stages()[name][0](kernels, dtype)
    parts = result if isinstance(result, tuple) else (result,)
    return [
        restore_rows(part.codes, part.scales, torch.float32) if isinstance(part, Fp8Rows) else part.clone()
        for part in parts
    ]


def launch_sweep(inputs: KernelInputs, device: torch.device) -> dict[str, dict[str, float]]:
    """Milliseconds of each kernel over its launch settings."""
    from vflash_adapters.block_kernels.triton_gate_residual import launch_gate_residual
    from vflash_adapters.block_kernels.triton_norm_modulate import launch_norm_modulate
    from vflash_adapters.block_kernels.triton_qk_norm_rope import launch_qk_norm_rope
    from vflash_adapters.block_kernels.triton_swiglu import launch_swiglu

    sequence, table, norms = inputs.sequence, inputs.table, inputs.block.norms
    x, rows, heads = sequence.x, sequence.rows, inputs.sizes.heads
    fp8, out = quantise_rows(x), torch.empty_like(x)
    hidden = inputs.packed.new_empty(x.shape[0], inputs.sizes.ffn)
    wide = quantise_rows(hidden.zero_())
    modulation = (x, norms["norm1"], table[:, 0], table[:, 1], rows)
    angles = (norms["norm_q"], norms["norm_k"], sequence.cos, sequence.sin)

    def swept(
        launch: Callable[..., None], *fixed: Any, settings: list[dict[str, int]], **named: Any
    ) -> dict[str, float]:
        return {
            " ".join(f"{key} {value}" for key, value in setting.items()): milliseconds(
                partial(launch, *fixed, **named, **setting), device, repeats=5
            )
            for setting in settings
        }

    warps = [{"num_warps": w} for w in (4, 8, 16)]
    return {
        "norm_modulate": swept(launch_norm_modulate, *modulation, out, None, settings=warps, eps=EPS),
        "norm_modulate fp8": swept(launch_norm_modulate, *modulation, fp8.codes, fp8.scales, settings=warps, eps=EPS),
        "qk_norm_rope": swept(
            launch_qk_norm_rope,
            inputs.qkv,
            *angles,
            settings=_pairs((16, 1), (16, 2), (32, 1), (32, 2), (64, 2), (64, 4)),
            heads=heads,
            eps=EPS,
        ),
        "gate_residual": swept(
            launch_gate_residual,
            x,
            inputs.update,
            table[:, 2],
            rows,
            settings=_pairs((512, 1), (1024, 4), (2048, 8), (8192, 8), (8192, 16)),
        ),
        "swiglu": swept(
            launch_swiglu, inputs.packed, None, None, hidden, None, settings=_pairs((1024, 4), (2048, 4), (2048, 8))
        ),
        "swiglu fp8": swept(
            launch_swiglu,
            inputs.packed,
            None,
            None,
            wide.codes,
            wide.scales,
            settings=_pairs(*((_block(inputs.sizes.ffn), w) for w in (16, 32))),
        ),
    }


def _pairs(*pairs: tuple[int, int]) -> list[dict[str, int]]:
    return [{"block": block, "num_warps": warps} for block, warps in pairs]


def _block(width: int) -> int:
    return 1 << (width - 1).bit_length()


def _sixteenth(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(0.0625, device=like.device)
