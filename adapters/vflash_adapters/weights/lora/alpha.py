"""How strong an adapter is: alpha from the pair, then the file's metadata, then the table of published files, then the
caller; never a default. The same file read with the wrong alpha is 16 times too strong or too weak."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from vflash_adapters.strict_json import brief, parse_object
from vflash_adapters.weights.lora.adapter_keys import AdapterKeys, StoredPair
from vflash_adapters.weights.lora.known_files import find_known
from vflash_ports.errors import CheckpointError

ALPHA_IS_RANK = "rank"
METADATA_KEYS = ("alpha", "lora_alpha", "network_alpha", "ss_network_alpha")
DIFFUSERS_CONFIG = "lora_adapter_metadata"
PEFT_CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20


@frozen(kw_only=True)
class Alphas:
    """`of` holds each stored module's alpha."""

    of: Mapping[str, float]
    source: str


def resolve_alphas(
    path: Path,
    keys: AdapterKeys,
    stored: Mapping[str, float],
    ranks: Mapping[str, int],
    metadata: Mapping[str, str],
    option: float | str | None,
) -> Alphas:
    """Alpha of every pair. `stored` are the values of the file's own alpha tensors, by module; `option` is what the
    caller says: a number, `"rank"`, or None.

    Raises `CheckpointError` if nothing says alpha, if only some pairs do, or if the caller contradicts the file.
    """
    found = (
        _from_pairs(keys, stored, path)
        or _from_metadata(path, keys, ranks, metadata)
        or _from_known_file(path, keys, ranks)
    )
    asked = _from_option(option, ranks, path)
    if found is None and asked is None:
        raise CheckpointError(
            f"{path}: says nothing about its alpha (no alpha tensors, no metadata, not a known file), so its strength "
            "is unknown; pass --adapter-alpha N, or --adapter-alpha rank for files trained with alpha = rank"
        )
    if found is not None and asked is not None and dict(found.of) != dict(asked.of):
        raise CheckpointError(
            f"{path}: --adapter-alpha {option} contradicts the file's own alpha "
            f"({found.source}: {brief(sorted(set(found.of.values())))}); drop the option"
        )
    chosen = found or asked
    assert chosen is not None
    return chosen


def read_peft_config(path: Path) -> dict[str, Any] | None:
    """The `adapter_config.json` that PEFT writes beside `adapter_model.safetensors`."""
    config = path.with_name(PEFT_CONFIG)
    if path.name != "adapter_model.safetensors" or not config.is_file():
        return None
    if config.stat().st_size > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{config}: larger than any adapter configuration")
    return parse_object(config.read_bytes(), str(config))


def _from_pairs(keys: AdapterKeys, stored: Mapping[str, float], path: Path) -> Alphas | None:
    if not stored:
        return None
    without = [pair.module for pair in keys.pairs if pair.module not in stored]
    if without:
        raise CheckpointError(f"{path}: {len(without)} of {len(keys.pairs)} pairs have no alpha ({brief(without[0])})")
    return Alphas(of={module: _positive(value, path) for module, value in stored.items()}, source="per-key")


def _from_metadata(
    path: Path, keys: AdapterKeys, ranks: Mapping[str, int], metadata: Mapping[str, str]
) -> Alphas | None:
    config = read_peft_config(path) or _diffusers_config(metadata, path)
    if config is not None:
        return Alphas(of={pair.module: _config_alpha(config, pair, path) for pair in keys.pairs}, source="metadata")
    values = {metadata[key] for key in METADATA_KEYS if key in metadata}
    if len(values) > 1:
        raise CheckpointError(f"{path}: its metadata gives several alphas: {brief(sorted(values))}")
    if not values:
        return None
    alpha = _positive(values.pop(), path)
    return Alphas(of=dict.fromkeys(ranks, alpha), source="metadata")


def _diffusers_config(metadata: Mapping[str, str], path: Path) -> dict[str, Any] | None:
    """The configuration that diffusers keeps in the header, for either component, without its prefix."""
    if DIFFUSERS_CONFIG not in metadata:
        return None
    packed = parse_object(metadata[DIFFUSERS_CONFIG].encode(), f"{path}: {DIFFUSERS_CONFIG}")
    config = {key.partition(".")[2]: value for key, value in packed.items() if key.startswith("transformer")}
    return config or packed


def _config_alpha(config: Mapping[str, Any], pair: StoredPair, path: Path) -> float:
    for option in ("use_rslora", "use_dora"):
        if config.get(option):
            raise CheckpointError(f"{path}: was trained with {option}, which is not a plain LoRA")
    pattern = config.get("alpha_pattern") or {}
    if not isinstance(pattern, dict) or "lora_alpha" not in config:
        raise CheckpointError(f"{path}: its configuration has no lora_alpha")
    own = [
        value for name, value in pattern.items() if pair.module == name.lstrip("^") or pair.module.endswith(f".{name}")
    ]
    return _positive(own[0] if own else config["lora_alpha"], path)


def _from_known_file(path: Path, keys: AdapterKeys, ranks: Mapping[str, int]) -> Alphas | None:
    known = find_known(path.name, keys, frozenset(ranks.values()))
    if known is None:
        return None
    return Alphas(
        of={module: float(rank) if known.alpha is None else known.alpha for module, rank in ranks.items()},
        source="known-file",
    )


def _from_option(option: float | str | None, ranks: Mapping[str, int], path: Path) -> Alphas | None:
    if option is None:
        return None
    if option == ALPHA_IS_RANK:
        return Alphas(of={module: float(rank) for module, rank in ranks.items()}, source="option")
    return Alphas(of=dict.fromkeys(ranks, _positive(option, path)), source="option")


def _positive(value: Any, path: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0) or isinstance(value, bool):
        raise CheckpointError(f"{path}: alpha must be a positive number, not {brief(value)}")
    return number
