"""Every Triton kernel compiles for compute capability 9.0 on a machine without a GPU, and reads 16 bytes at a time."""

from __future__ import annotations

import re
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from vflash_adapters.block_kernels import (
    triton_gate_residual,
    triton_norm_modulate,
    triton_qk_norm_rope,
    triton_swiglu,
)
from vflash_adapters.latent_codec import triton_head_norm_rope, triton_residual_norm
from vflash_adapters.linear import triton_rows

B16, CODES, F32 = "*bf16", "*fp8e4nv", "*fp32"
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {
    "norm_modulate": (
        triton_norm_modulate._norm_modulate,
        {"out_ptr": B16, "out_scales_ptr": B16, "rows_ptr": "*i64", "eps": "fp32"},
        {"WIDTH": 5376, "BLOCK": 8192, "FP8": False},
        8,
    ),
    "norm_modulate fp8": (
        triton_norm_modulate._norm_modulate,
        {"out_ptr": CODES, "out_scales_ptr": F32, "rows_ptr": "*i64", "eps": "fp32"},
        {"WIDTH": 5376, "BLOCK": 8192, "FP8": True},
        8,
    ),
    "gate_residual": (
        triton_gate_residual._gate_residual,
        {"rows_ptr": "*i64"},
        {"WIDTH": 5376, "BLOCK": 1024},
        4,
    ),
    "merge and swiglu": (
        triton_swiglu._swiglu,
        {"residual_scale_ptr": F32},
        {"WIDTH": 14336, "BLOCK": 2048, "MERGE": True, "FP8": False},
        4,
    ),
    "swiglu fp8": (
        triton_swiglu._swiglu,
        {"out_ptr": CODES, "out_scales_ptr": F32},
        {"WIDTH": 14336, "BLOCK": 16384, "MERGE": False, "FP8": True},
        16,
    ),
    "qk_norm_rope": (
        triton_qk_norm_rope._qk_norm_rope,
        {"cos_ptr": F32, "sin_ptr": F32, "eps": "fp32"},
        {"HEADS": 56, "HALF": 48, "PASS": 32, "PIECE": 16, "BLOCK": 16},
        1,
    ),
    "scaled_residual_norm": (
        triton_residual_norm._scaled_residual_norm,
        {"x_ptr": F32, "scale_ptr": F32, "weight_ptr": F32, "eps": "fp32"},
        {"WIDTH": 2048, "BLOCK": 2048, "UPDATE": True, "FP8": False},
        4,
    ),
    "scaled_residual_norm fp8": (
        triton_residual_norm._scaled_residual_norm,
        {"x_ptr": F32, "scale_ptr": F32, "weight_ptr": F32, "out_ptr": CODES, "out_scales_ptr": F32, "eps": "fp32"},
        {"WIDTH": 2048, "BLOCK": 2048, "UPDATE": True, "FP8": True},
        4,
    ),
    "head_norm_rope": (
        triton_head_norm_rope._head_norm_rope,
        {"cos_ptr": F32, "sin_ptr": F32, "eps": "fp32"},
        {"HEADS": 32, "WIDTH": 64, "HALF": 24, "COLUMNS": 64, "BLOCK": 32},
        4,
    ),
    "swiglu fp8 of the video decoder": (
        triton_swiglu._swiglu,
        {"out_ptr": CODES, "out_scales_ptr": F32},
        {"WIDTH": 8192, "BLOCK": 8192, "MERGE": False, "FP8": True},
        16,
    ),
    "restore": (
        triton_rows._restore,
        {"codes_ptr": CODES, "scales_ptr": F32},
        {"WIDTH": 5376, "BLOCK": 4096},
        8,
    ),
    "quantise": (
        triton_rows._quantise,
        {"codes_ptr": CODES, "scales_ptr": F32},
        {"WIDTH": 7168, "BLOCK": 8192},
        8,
    ),
}


@pytest.fixture(params=list(KERNELS))
def built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """At the released model's sizes, strides and pointers multiples of 16 as torch gives them."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, types, constants, warps = KERNELS[request.param]
    signature, hints = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        default = B16 if argument.endswith("_ptr") else "i32"
        signature[argument] = "constexpr" if argument in constants else types.get(argument, default)
        if signature[argument] == "i32" or signature[argument].startswith("*"):
            hints[(place,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = ASTSource(kernel, signature, values, hints)
    return compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "enable_fp_fusion": False})


def test_it_compiles_and_every_row_offset_is_64_bits_wide(built: Any) -> None:
    """Loads are 16 bytes wide, no array is indexed at run time, and each stride is widened before it is multiplied."""
    assert len(built.asm["cubin"]) > 0
    assert "ld.global" in built.asm["ptx"]
    assert ".v4.b32" in built.asm["ptx"]
    assert ".local" not in built.asm["ptx"]
    body = [line for line in built.asm["ttir"].splitlines() if "tt.func" not in line and not line.startswith("#loc")]
    for line in body:
        if re.search(r"%\w+_stride\b", line.split("loc(")[0]):
            assert "arith.extsi" in line, line
    assert any("arith.extsi" in line and "to i64" in line for line in body)
