"""Tensor names of an adapter file taken apart: prefix, module, role."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import field, frozen

from vflash_adapters.strict_json import brief
from vflash_ports.errors import CheckpointError

PREFIXES = (
    "base_model.model.",
    "model.diffusion_model.",
    "diffusion_model.",
    "transformer_ref.",
    "transformer.",
    "lora_unet_",
)
REF_PREFIX, KOHYA_PREFIX, PEFT_PREFIX = "transformer_ref.", "lora_unet_", "base_model.model."
_ROLE = re.compile(r"(?P<module>.+?)\.(?:lora_(?P<side>A|B|down|up)(?:\.(?P<infix>\w+))?\.weight|(?P<alpha>alpha))")
_SIDES = {"A": "down", "down": "down", "B": "up", "up": "up"}


@frozen(kw_only=True)
class StoredPair:
    """Names of the tensors of one adapted module; `module` is what is left without prefix and role."""

    module: str
    down: str
    up: str
    alpha: str | None


@frozen(kw_only=True)
class AdapterKeys:
    """All pairs of a file, and what their names say about its writer."""

    pairs: tuple[StoredPair, ...]
    prefixes: tuple[str, ...]
    infix: str | None
    style: str = field(metadata={"is": "lora_A (PEFT) or lora_down (kohya)"})


def read_keys(names: Iterable[str], label: str) -> AdapterKeys:
    """Raises `CheckpointError` for a name without a role, a pair without its other half, or mixed writers."""
    names = sorted(names)
    prefixes = _common_prefixes(names)
    roles: dict[str, dict[str, str]] = {}
    infixes, styles, unknown = set(), set(), []
    for name in names:
        match = _ROLE.fullmatch(name.removeprefix("".join(prefixes)))
        if match is None:
            unknown.append(name)
            continue
        role = "alpha" if match["alpha"] else _SIDES[match["side"]]
        if not match["alpha"]:
            infixes.add(match["infix"])
            styles.add("lora_A" if match["side"] in "AB" else "lora_down")
        if role in roles.setdefault(match["module"], {}):
            raise CheckpointError(f"{label}: has two {role} tensors for {brief(match['module'])}")
        roles[match["module"]][role] = name
    _refuse_unknown(unknown, len(names), label)
    if len(infixes) != 1 or len(styles) != 1:
        raise CheckpointError(f"{label}: mixes the key styles of several writers; save it again with one")
    pairs = tuple(_pair(module, held, label) for module, held in roles.items())
    return AdapterKeys(pairs=pairs, prefixes=prefixes, infix=infixes.pop(), style=styles.pop())


def _common_prefixes(names: list[str]) -> tuple[str, ...]:
    """Known prefixes that every name carries, outermost first."""
    found: list[str] = []
    while names:
        prefix = next((known for known in PREFIXES if all(name.startswith(known) for name in names)), None)
        if prefix is None:
            break
        found.append(prefix)
        names = [name.removeprefix(prefix) for name in names]
    return tuple(found)


def _refuse_unknown(unknown: list[str], total: int, label: str) -> None:
    if unknown:
        shown = ", ".join(brief(name) for name in unknown[:5])
        raise CheckpointError(
            f"{label}: {len(unknown)} of {total} tensors are no part of a LoRA pair ({shown}); "
            "an adapter is used whole or not at all"
        )


def _pair(module: str, held: dict[str, str], label: str) -> StoredPair:
    missing = {"down", "up"} - held.keys()
    if missing:
        raise CheckpointError(f"{label}: {brief(module)} has no {missing.pop()} tensor; the file is not complete")
    return StoredPair(module=module, down=held["down"], up=held["up"], alpha=held.get("alpha"))
