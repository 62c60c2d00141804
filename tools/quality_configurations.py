"""The configurations of the gate by name, and how a command line chooses among them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen

from tiny_h3.tasks import Task

EXACT = "exact-16"
TURBO_FILE, VEDA_FILE = "turbo-lora.safetensors", "veda-predictor.safetensors"
_EVERY = tuple(Task)
_KEYFRAMES = tuple(task for task in Task if task is not Task.REF2VA)
"""What the adapter and the predictor were trained for: the denoiser of all modes but Ref2VA."""


def _tasks(names: Iterable[str]) -> tuple[Task, ...]:
    return tuple(map(Task, names))


@frozen(kw_only=True)
class Configuration:
    """`settings` are fields of `Settings`; `{model}` in a value is the checkpoint folder. `tasks` are the modes it is
    meant for."""

    steps: int
    settings: Mapping[str, Any] = field(factory=dict)
    tasks: tuple[Task, ...] = field(default=_EVERY, converter=_tasks)


def _veda(budget: str) -> Configuration:
    return Configuration(
        steps=16,
        tasks=_KEYFRAMES,
        settings={
            "attention_backend": "veda",
            "veda_predictor": f"{{model}}/{VEDA_FILE}",
            "veda_dense_edge_layers": 1,
            "veda_target_budget": budget,
        },
    )


CONFIGURATIONS: dict[str, Configuration] = {
    EXACT: Configuration(steps=16),
    "turbo-4": Configuration(steps=4, settings={"adapter": f"{{model}}/{TURBO_FILE}"}, tasks=_KEYFRAMES),
    "exact-4": Configuration(steps=4),
    "exact-8": Configuration(steps=8),
    "exact-50": Configuration(steps=50),
    "bfloat16-16": Configuration(steps=16, settings={"dtype": "bfloat16"}),
    "fp8-weight-only-16": Configuration(steps=16, settings={"linear": "fp8-weight-only", "dtype": "bfloat16"}),
    "w8a8-16": Configuration(steps=16, settings={"linear": "w8a8", "dtype": "bfloat16"}),
    "veda-75-16": _veda("ratio=0.75"),
    "veda-50-16": _veda("ratio=0.5"),
    "veda-25-16": _veda("ratio=0.25"),
    "veda-meanpool-50-16": Configuration(
        steps=16,
        settings={
            "attention_backend": "veda-meanpool",
            "veda_dense_edge_layers": 1,
            "veda_target_budget": "ratio=0.5",
        },
    ),
}


def choose(names: str, extra: Sequence[str] = ()) -> dict[str, Configuration]:
    """`NAME[@mode+mode]` with commas, `all` for every name; the exact one first, since others are compared with it.

    `extra`: `NAME={"steps": 16, "settings": {...}}`. Raises `ValueError` for a name or mode that is unknown.
    """
    known = {**CONFIGURATIONS, **dict(map(_parsed, extra))}
    chosen: dict[str, Configuration] = {}
    for item in filter(None, [*names.split(","), *(text.partition("=")[0] for text in extra)]):
        name, _, modes = item.partition("@")
        for each in known if name == "all" else [name]:
            if each not in known:
                raise ValueError(f"configuration {each!r} is unknown; choose from {', '.join(known)}, all")
            wanted = tuple(map(Task, modes.split("+"))) if modes else _EVERY
            before = chosen[each].tasks if each in chosen else ()
            tasks = [task for task in known[each].tasks if task in (*before, *wanted)]
            chosen[each] = attrs.evolve(known[each], tasks=tasks)
    return dict(sorted(chosen.items(), key=lambda item: item[0] != EXACT))


def _parsed(text: str) -> tuple[str, Configuration]:
    name, _, body = text.partition("=")
    return name, Configuration(**json.loads(body))
