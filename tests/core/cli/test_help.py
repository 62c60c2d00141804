"""What `--help` says is what was written: no bracket is taken for markup and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

from vflash.cli import app


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    if isinstance(command, TyperGroup):
        for name, found in command.commands.items():
            yield from _commands(found, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(app)))


def test_every_command_is_asked() -> None:
    """The table below covers groups and what is in them."""
    assert {(), ("generate",), ("plan",), ("sidecar",), ("sidecar", "prepare")} <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_word_of_help_is_shown(path: tuple[str, ...]) -> None:
    """Defaults and table names stand in square brackets; each reaches the reader."""
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "400", "TERM": "dumb"}).output
    for parameter in COMMANDS[path].params:
        text = getattr(parameter, "help", None) or ""
        assert text.replace("`", "") in shown
