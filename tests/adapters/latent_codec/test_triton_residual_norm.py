"""The fused residual and norm equal the plain ones; run in Triton's interpreter, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

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
def test_it_is_the_plain_one(width: int) -> None:
    """The stream's new bits, and the norm within its rounding, with and without an update, which may be strided."""
    from vflash_adapters.latent_codec.triton_residual_norm import triton_residual_norm
    from vflash_adapters.latent_codec.vit_decoder import scaled_residual_norm

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
