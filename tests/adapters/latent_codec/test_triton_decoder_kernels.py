"""The decoder's fused kernels equal the plain ones; run in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from vflash_adapters.latent_codec.decoder_kernels import head_norm_rope, scaled_residual_norm
from vflash_ports.errors import UnsupportedError
from vflash_ports.linear import ActivationFormat, Fp8Rows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # read by Triton at its import, so a process has one mode


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's run")
def test_in_the_interpreter() -> None:
    """The tests below, where Triton needs no GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
@pytest.mark.parametrize("width", [24, 32, 2048])
def test_the_norm_is_the_plain_one(width: int) -> None:
    """The stream's new bits, and the norm within its rounding, with and without an update, which may be strided."""
    from vflash_adapters.latent_codec.triton_residual_norm import triton_residual_norm

    torch.manual_seed(0)
    x, weight, scale = torch.randn(7, width), torch.randn(width), torch.randn(width)
    update = torch.randn(7, width + 8).half()[:, :width]
    for residual in ({}, {"update": update, "scale": scale}):
        plain, fused = x.clone(), x.clone()
        expected = scaled_residual_norm(plain, weight, eps=1e-5, dtype=torch.float16, **residual)
        found = triton_residual_norm(fused, weight, eps=1e-5, dtype=torch.float16, **residual)
        assert torch.equal(plain, fused)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)  # one rounding: sums run in another order
    assert triton_residual_norm(x[:0], weight, eps=1e-5, dtype=torch.float16).shape == (0, width)


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
@pytest.mark.parametrize("width", [48, 2048])
def test_the_norm_s_fp8_rows_are_its_dense_ones_scaled(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes before their cast to E4M3, which the interpreter rounds wrongly; the stream is as for dense rows."""
    from vflash_adapters.latent_codec import triton_residual_norm as module

    def wide_rows(rows: int, width: int, device: torch.device) -> Fp8Rows:
        return Fp8Rows(codes=torch.empty(rows, width), scales=torch.empty(rows, 1))

    monkeypatch.setattr(module, "empty_rows", wide_rows)
    torch.manual_seed(1)
    x, weight, scale, update = torch.randn(5, width), torch.randn(width), torch.randn(width), torch.randn(5, width)
    plain, fused = x.clone(), x.clone()
    named = {"eps": 1e-5, "dtype": torch.bfloat16, "update": update, "scale": scale}
    dense = scaled_residual_norm(plain, weight, **named).float()
    found = module.triton_residual_norm(fused, weight, **named, emit=ActivationFormat.FP8_ROWS)
    assert torch.equal(plain, fused)
    # a whole step of BF16, because the interpreter cuts off where the hardware rounds
    torch.testing.assert_close(found.scales[:, 0], dense.abs().amax(1) / 448, rtol=2**-7, atol=0)
    torch.testing.assert_close(found.codes * found.scales, dense, rtol=2**-7, atol=1e-6)
    with pytest.raises(UnsupportedError, match="bfloat16"):
        module.triton_residual_norm(fused, weight, eps=1e-5, dtype=torch.float16, emit=ActivationFormat.FP8_ROWS)


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
@pytest.mark.parametrize(("heads", "width", "turning"), [(3, 8, 6), (2, 24, 18), (5, 64, 48), (33, 16, 12)])
def test_the_q_k_norm_is_the_plain_one(heads: int, width: int, turning: int) -> None:
    """Within a rounding, over more rows than angles; v and what lies beside the rows are left alone."""
    from vflash_adapters.latent_codec.triton_head_norm_rope import triton_head_norm_rope

    torch.manual_seed(2)
    wide = torch.randn(6, 3 * heads * width + 8).half()
    qkv, angles = wide[:, : 3 * heads * width], torch.randn(3, turning // 2).repeat(1, 2)
    expected, before = qkv.clone(), wide.clone()
    head_norm_rope(expected, angles.cos(), angles.sin(), heads=heads, eps=1e-5)
    triton_head_norm_rope(qkv, angles.cos(), angles.sin(), heads=heads, eps=1e-5)
    torch.testing.assert_close(qkv, expected, rtol=2**-9, atol=2**-9)
    assert torch.equal(wide[:, 2 * heads * width :], before[:, 2 * heads * width :])
    triton_head_norm_rope(qkv[:0], angles.cos(), angles.sin(), heads=heads, eps=1e-5)
