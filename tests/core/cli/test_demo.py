"""What the demo decides before it runs: where its checkpoint lies, and whether it knows the words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vflash.cli import app, demo
from vflash_ports.errors import ContractError


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"XDG_CACHE_HOME": "/var/tmp/mine", "HOME": "/home/me"}, "/var/tmp/mine/vflash"),
        ({"HOME": "/home/me"}, "/home/me/.cache/vflash"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/me"}, "/home/me/.cache/vflash"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/vflash"),
    ],
)
def test_the_cache_follows_the_xdg_rule(
    variables: Mapping[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An absolute XDG_CACHE_HOME wins; anything else is the home's .cache."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(demo.cache_folder()) == wanted


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What would have run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(demo, "run", lambda *arguments, **options: calls.append((*arguments, options)))
    return calls


Invoke = Callable[..., Any]


@pytest.fixture
def invoke() -> Invoke:
    return lambda *arguments: CliRunner().invoke(app, ["demo", *arguments])


def test_without_an_argument_a_ball_bounces(asked: list[tuple[Any, ...]], invoke: Invoke) -> None:
    """A caption of the small world, on the canvas that was trained, on the CPU; and no warning."""
    answer = invoke()
    ((settings, request, output, _),) = asked
    assert answer.exit_code == 0
    assert answer.stderr == ""
    assert request["prompt"] == "a red ball bounces on blue"
    assert (request["width"], request["height"], settings["device"]) == (128, 96, "cpu")
    assert (settings["model_dir"] / "model_index.json").exists()
    assert output == Path("demo.mp4")


def test_an_unknown_word_is_named_but_runs(asked: list[tuple[Any, ...]], invoke: Invoke) -> None:
    """The warning has the word and the known ones, in either language and as JSON; the request is as it was said."""
    plain = invoke("a red fox bounces on blue")
    chinese = invoke("一只红色狐狸弹跳")
    as_json = invoke("a red fox bounces on blue", "--json")
    assert [request["prompt"] for _, request, _, _ in asked] == [
        "a red fox bounces on blue",
        "一只红色狐狸弹跳",
        "a red fox bounces on blue",
    ]
    assert "'fox' in the caption" in plain.stderr
    assert "ball, square" in plain.stderr
    assert "圆球" in chinese.stderr
    assert json.loads(as_json.stderr)["warning"] in plain.stderr


def test_the_judge_needs_known_words(asked: list[tuple[Any, ...]], invoke: Invoke) -> None:
    """Nothing runs that could not be judged."""
    answer = invoke("a red fox bounces on blue", "--judge")
    assert isinstance(answer.exception, ContractError)
    assert "--judge needs a caption" in str(answer.exception)
    assert not asked


def test_the_folder_alone_is_printed(asked: list[tuple[Any, ...]], invoke: Invoke, tmp_path: Path) -> None:
    """One line that a shell puts behind --model, with the LoRA inside; no clip is made."""
    answer = invoke("--folder")
    (line,) = answer.stdout.splitlines()
    assert Path(line).is_relative_to(tmp_path / "cache")
    assert (Path(line) / "model_index.json").exists()
    assert (Path(line) / "turbo-lora.safetensors").exists()
    assert json.loads(invoke("--folder", "--json").stdout) == {"folder": line}
    assert (answer.exit_code, answer.stderr, asked) == (0, "", [])
