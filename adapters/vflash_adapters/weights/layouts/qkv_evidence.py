"""What the numbers say about a fused projection's row order: a hint for a person, never a decision."""

from __future__ import annotations

import torch

from vflash_adapters.weights.layouts.native_names import FUSED_QKV
from vflash_ports.weights import WeightSource


def describe_evidence(source: WeightSource) -> str:
    """Compare the spread of row norms between thirds under both readings of the first block's projection.

    In a trained model q, k and v rows have different sizes, so the true reading separates them better.
    """
    names = [name for name in source.specs() if name.endswith(f"blocks.0.{FUSED_QKV}.weight") and "refiner" not in name]
    norm = names[0].replace(FUSED_QKV, "attn.q_norm") if names else ""
    if not names or norm not in source.specs():
        return "the first block gives no hint"
    with source.open() as reader:
        fused, width = reader.get_tensor(names[0]).float(), source.specs()[norm].shape[0]
    if fused.dim() != 2 or fused.shape[0] % (3 * width):
        return "the first block gives no hint"
    sizes = fused.square().mean(1).log().nan_to_num().view(-1, width).mean(1)  # one number per run of head width
    interleaved, grouped = _separation(sizes.view(-1, 3).T), _separation(sizes.view(3, -1))
    likely = "interleaved" if interleaved > grouped else "grouped"
    return f"block 0 looks {likely}: spread between q, k, v is {interleaved:.3g} interleaved, {grouped:.3g} grouped"


def _separation(sizes_of_third: torch.Tensor) -> float:
    """Variance between the three rows' means over the mean variance within them."""
    within = sizes_of_third.var(1, unbiased=False).mean()
    return float(sizes_of_third.mean(1).var(unbiased=False) / (within + 1e-12))
