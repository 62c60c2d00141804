"""The memory-bound stages of a block.

Modulation tables hold one row per (timestep, modality); `rows` says which row each token reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vflash_ports.linear import ActivationFormat, Fp8Rows

if TYPE_CHECKING:
    import torch


class BlockKernels(Protocol):
    """Rounding points are the reference's: norm, `* (1 + scale)`, `+ shift`, `gate *`, residual `+`, SiLU, product,
    each rounded to the model's dtype. S tokens, C hidden, H heads, D head_dim, F FFN width, R table rows."""

    @property
    def name(self) -> str: ...

    def check(self, device: torch.device, dtype: torch.dtype) -> None:
        """Raises `UnsupportedError`, with the cure, before any weight is read, if this machine cannot run it."""
        ...

    def norm_modulate(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        shift: torch.Tensor,
        scale: torch.Tensor,
        rows: torch.Tensor,
        *,
        eps: float,
        emit: ActivationFormat,
    ) -> torch.Tensor | Fp8Rows:
        """x [S, C]; weight [C]; shift, scale [R, C] (row-strided views allowed); rows [S] int64.

        Returns RMSNorm(x) * (1 + scale[rows]) + shift[rows], [S, C].
        """
        ...

    def qk_norm_rope(
        self,
        qkv: torch.Tensor,
        q_weight: torch.Tensor,
        k_weight: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        *,
        heads: int,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """qkv [S, 3*H*D] as q, k, v thirds; cos, sin [S, r] float32, r <= D -> q, k, v [S, H, D].

        Per-head RMSNorm of q and k, then rotate-half in the first r channels; v may be a view of `qkv`.
        """
        ...

    def gate_residual(
        self, x: torch.Tensor, update: torch.Tensor, gate: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        """x, update [S, C]; gate [R, C] -> x + gate[rows] * update, written into x's storage and returned."""
        ...

    def swiglu(
        self,
        packed: torch.Tensor,
        *,
        emit: ActivationFormat,
        residual: torch.Tensor | None = None,
        residual_scale: torch.Tensor | None = None,
    ) -> torch.Tensor | Fp8Rows:
        """packed [S, 2*F] as value then gate halves -> value * silu(gate), [S, F].

        An adapter's `residual` [S, 2*F] is merged first: packed + residual * residual_scale, rounded after each;
        `residual_scale` is one float32 on the same device and comes with it.
        """
        ...
