"""The device that a pipeline was given is the current one while it works, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from vflash.stages.current_device import current_device
from vflash.stages.gate import Gate


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch is told, on a machine that says it has two CUDA devices."""
    told: list[str] = []

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        told.append(f"in {chosen}")
        yield
        told.append(f"out {chosen}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", device)
    return told


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:2"])
def test_nothing_is_switched_without_a_device_of_that_number(name: str, entered: list[str]) -> None:
    """`cuda` is the current device, and one that is not there is refused elsewhere."""
    with current_device(torch.device(name)):
        pass
    assert entered == []


def test_whatever_a_gate_lets_in_runs_on_its_device(entered: list[str]) -> None:
    """Requests, maintenance and closing, an error's way out too."""
    gate = Gate(device=torch.device("cuda", 1))
    with gate.maintain():
        entered.append("prepare")
    with gate.admit():
        entered.append("request")
    with pytest.raises(KeyError), gate.admit():
        raise KeyError
    with gate.shut():
        entered.append("close")
    once = ["in cuda:1", "out cuda:1"]
    assert [word for word in entered if " " not in word] == ["prepare", "request", "close"]
    assert [word for word in entered if " " in word] == [*once, *once, "in cuda:1", *once]


def test_cuda_stays_the_card_that_it_was_first(entered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread has a current device of its own: the one that prepares decides for those that ask later."""
    gate = Gate(device=torch.device("cuda"))
    for current in (1, 0):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        with gate.admit():
            pass
    assert entered == ["in cuda:1", "out cuda:1"] * 2
