"""Arguments that integrators pass to the classes and functions they import by name: a wrong type is refused by the
argument's own name, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vflash_ports.errors import ContractError

if TYPE_CHECKING:
    import torch


def path_argument(name: str, value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ContractError(f"{name}: expected a path, got a {type(value).__name__}")
    return Path(value)


def flag_argument(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ContractError(f"{name}: expected true or false, got a {type(value).__name__}")
    return value


def tensor_argument(name: str, value: object) -> torch.Tensor:
    import torch

    if not isinstance(value, torch.Tensor):
        raise ContractError(f"{name}: expected a torch.Tensor, got a {type(value).__name__}")
    return value
