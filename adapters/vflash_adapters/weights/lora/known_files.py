"""Published adapters whose files do not tell how strong they are.

A row counts only for a file of that very name, rank and number of pairs: a renamed or retrained file is not known.
"""

from __future__ import annotations

from attrs import frozen

from vflash_adapters.weights.lora.adapter_keys import AdapterKeys


@frozen(kw_only=True)
class KnownAdapter:
    """`alpha` None: alpha equals each module's own rank. Source: the publishers' model cards, autumn 2026."""

    file_name: str
    pairs: int
    ranks: frozenset[int]
    alpha: float | None


KNOWN_ADAPTERS = (
    KnownAdapter(
        file_name="minimax_h3_fl2v_turbo_4step_v0.1.safetensors", pairs=312, ranks=frozenset({128}), alpha=8.0
    ),
    KnownAdapter(file_name="minimax_h3_turbo_4step.safetensors", pairs=259, ranks=frozenset({64, 16}), alpha=None),
    KnownAdapter(
        file_name="minimax_h3_turbo_4step_ema_ckpt850.safetensors", pairs=259, ranks=frozenset({64, 16}), alpha=None
    ),
    KnownAdapter(
        file_name="minimax_h3_turbo_v4_step600_ema.safetensors", pairs=259, ranks=frozenset({64, 16}), alpha=None
    ),
)


def find_known(file_name: str, keys: AdapterKeys, ranks: frozenset[int]) -> KnownAdapter | None:
    """The row for this file, if there is one."""
    for known in KNOWN_ADAPTERS:
        if (known.file_name, known.pairs, known.ranks) == (file_name, len(keys.pairs), ranks):
            return known
    return None
