"""The attention kernels compile for compute capability 9.0 without a GPU, at the released model's sizes."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import asdict
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from vflash_adapters.attention.hopper import dense
from vflash_adapters.attention.veda import hopper_attend, triton_attend, triton_pool, triton_score, triton_select

BF16, F16, F32, I32 = "*bf16", "*fp16", "*fp32", "*i32"
HALF_PRECISION = ("q_ptr", "k_ptr", "v_ptr")
ATTEND = {"D": 128, "ROWS": 128, "KEYS": 128, "QUARTER": 32, "CODE": 64, "FIELDS": 8, "STAGES": 4}
REGISTERS = {"CONSUMER_REGISTERS": 208, "PRODUCER_REGISTERS": 96}
HOPPER = {"D": 128, "K_SLOTS": 2, "V_SLOTS": 3, "ONE_STRIDE": True, **REGISTERS}
DENSE = {"scale_log2": "fp32"}
BOXES = {"q_desc": 64, "k_desc": 128, "v_desc": 128}
SELECT = {"TILE": 128, "QUARTER": 32, "PER_TILE": 4, "CODE": 64, "FIELDS": 8, "BLOCK": 512}
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {
    "pool": (triton_pool._pool, {"features_ptr": F32}, {"D": 128, "ROWS": 128, "CHUNK": 16}, 1),
    "embed": (triton_score._embed, {"features_ptr": F32, "out_ptr": F32}, {"D": 128, "BLOCK": 64, "WIDTH": 64}, 4),
    "multiply": (triton_score._multiply, {"embedded_ptr": F32, "logits_ptr": F32}, {"D": 128, "BLOCK": 64}, 4),
    "select": (triton_select._select, {"logits_ptr": F32, "pairs_ptr": "*i64"}, SELECT, 1),
    "attend": (triton_attend._attend, {"scale_log2": "fp32"}, ATTEND, 8),
    "attend on hopper": (hopper_attend._attend_hopper, {"scale_log2": "fp32"}, HOPPER, 4),
    **{
        f"dense, heads of {D}, {short} keys at the end, {out}": (
            dense._attend, DENSE | {"out_ptr": out},
            {"D": D, "SHORT": short} | {name.upper(): value for name, value in asdict(dense.CONFIGS[D]).items()}, 4,
        )
        for D, short, out in (
            (64, 0, BF16), (64, 16, BF16), (64, 32, F16), (64, 128, BF16),
            (128, 0, BF16), (128, 32, BF16), (128, 64, BF16), (128, 128, F16),
        )
    },
}  # fmt: skip


def box(dtype: str, rows: int, head_dim: int) -> str:
    """A descriptor of `rows` rows of one head, as a signature spells it."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    return f"tensordesc<{dtype.removeprefix('*')}[1, {rows}, {head_dim}],{layout!r}>"


def compiled(name: str) -> Any:
    kernel, types, constants, warps = KERNELS[name]
    signature, hints = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        default = BF16 if argument in HALF_PRECISION else I32 if argument.endswith("_ptr") else "i32"
        if argument in BOXES:
            default = box(types["out_ptr"], BOXES[argument], constants["D"])
        signature[argument] = "constexpr" if argument in constants else types.get(argument, default)
        if signature[argument].startswith("*") or argument.endswith("stride"):
            hints[(place,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = GluonASTSource if kernel.is_gluon() else ASTSource
    options = {"num_warps": warps, "num_stages": constants.get("STAGES", 2), "enable_fp_fusion": True}
    return compile(source(kernel, signature, values, hints), target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("name", KERNELS)
def test_it_compiles(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Attention uses the warpgroup's matrix instructions and copies 16 bytes at a time, the dense kernel whole boxes;
    nothing is indexed in local memory; shared memory stays within the 227 KiB of a processor."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    built = compiled(name)
    ptx = built.asm["ptx"]
    assert len(built.asm["cubin"]) > 0
    assert ".local" not in ptx
    assert built.metadata.shared <= 227 * 1024
    if name.startswith("attend"):
        assert "wgmma.mma_async" in ptx
        assert "cp.async.cg.shared.global" in ptx
    if name == "attend on hopper":
        assert "setmaxnreg" in ptx
        assert "cp.async.mbarrier.arrive.noinc" in ptx
    if name.startswith("dense"):
        assert "wgmma.mma_async" in ptx
        assert "setmaxnreg" in ptx
        assert "cp.async.bulk.tensor.3d" in ptx
        assert "cp.async.cg" not in ptx
