"""Veda's kernels compile for compute capability 9.0 on a machine without a GPU, at the released model's sizes."""

from __future__ import annotations

from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.experimental.gluon._runtime import GluonASTSource

from vflash_adapters.attention.veda import hopper_attend, triton_attend, triton_pool, triton_score, triton_select

BF16, F32, I32 = "*bf16", "*fp32", "*i32"
HALF_PRECISION = ("q_ptr", "k_ptr", "v_ptr")
ATTEND = {"D": 128, "ROWS": 128, "KEYS": 128, "QUARTER": 32, "CODE": 64, "FIELDS": 8, "STAGES": 4}
REGISTERS = {"CONSUMER_REGISTERS": 208, "PRODUCER_REGISTERS": 96}
HOPPER = {"D": 128, "K_SLOTS": 2, "V_SLOTS": 3, "NARROW": True, "ONE_STRIDE": True, **REGISTERS}
SELECT = {"TILE": 128, "QUARTER": 32, "PER_TILE": 4, "CODE": 64, "FIELDS": 8, "BLOCK": 512}
KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {
    "pool": (triton_pool._pool, {"features_ptr": F32}, {"D": 128, "ROWS": 128, "CHUNK": 16}, 1),
    "embed": (triton_score._embed, {"features_ptr": F32, "out_ptr": F32}, {"D": 128, "BLOCK": 64, "WIDTH": 64}, 4),
    "multiply": (triton_score._multiply, {"embedded_ptr": F32, "logits_ptr": F32}, {"D": 128, "BLOCK": 64}, 4),
    "select": (triton_select._select, {"logits_ptr": F32, "pairs_ptr": "*i64"}, SELECT, 1),
    "attend": (triton_attend._attend, {"scale_log2": "fp32"}, ATTEND, 8),
    "attend on hopper": (hopper_attend._attend_hopper, {"scale_log2": "fp32"}, HOPPER, 4),
}


def compiled(name: str) -> Any:
    kernel, types, constants, warps = KERNELS[name]
    signature, hints = {}, {}
    for place, argument in enumerate(kernel.arg_names):
        default = BF16 if argument in HALF_PRECISION else I32 if argument.endswith("_ptr") else "i32"
        signature[argument] = "constexpr" if argument in constants else types.get(argument, default)
        if signature[argument].startswith("*") or argument.endswith("stride"):
            hints[(place,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = GluonASTSource if kernel.is_gluon() else ASTSource
    options = {"num_warps": warps, "num_stages": constants.get("STAGES", 2), "enable_fp_fusion": True}
    return compile(source(kernel, signature, values, hints), target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.parametrize("name", KERNELS)
def test_it_compiles(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Attention uses the warpgroup's matrix instructions and copies 16 bytes at a time; nothing is indexed in local
    memory; shared memory stays within the 227 KiB of a processor."""
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
