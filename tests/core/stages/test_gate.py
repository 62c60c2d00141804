"""One request at a time, and an honest state: healthy, busy, closed, failed."""

from __future__ import annotations

import threading

import pytest

from vflash.stages.gate import Gate
from vflash.stages.watch import RequestWatch
from vflash_ports.errors import BusyError, CheckpointError, ClosedError, ContractError, DeliveryError, NonFiniteError


def fail(gate: Gate, error: BaseException, watch: RequestWatch | None = None) -> None:
    with gate.admit(), gate.executing(watch or RequestWatch()):
        raise error


def admitted(gate: Gate) -> int:
    with gate.admit() as number:
        return number


def test_requests_are_numbered_from_one():
    """Refused entries are not counted: only what was let in has a number."""
    gate = Gate()
    assert [admitted(gate), admitted(gate)] == [1, 2]
    with gate.admit(), pytest.raises(BusyError):
        admitted(gate)
    assert gate.requests == 3


@pytest.mark.parametrize("entry", ["admit", "maintain", "shut"])
def test_a_second_entry_is_busy_not_queued(entry):
    """While a request runs nothing else gets in, from this thread (a callback) or another; afterwards it does."""
    gate = Gate()
    seen: list[BaseException] = []

    def enter() -> None:
        try:
            with getattr(gate, entry)():
                pass
        except BusyError as error:
            seen.append(error)

    with gate.admit():
        enter()
        other = threading.Thread(target=enter)
        other.start()
        other.join()
    assert len(seen) == 2
    assert "a request is running" in str(seen[0])
    enter()
    assert len(seen) == 2


def test_busy_is_an_error_of_the_caller():
    """A second request does not harm the first."""
    assert issubclass(BusyError, ContractError)
    assert issubclass(ClosedError, ContractError)


def test_a_closed_gate_stays_closed():
    """Closing twice is fine, entering is not."""
    gate = Gate()
    for _ in range(2):
        with gate.shut():
            pass
    for entry in (gate.admit, gate.maintain):
        with pytest.raises(ClosedError, match="closed; build a new one"), entry():
            pass


@pytest.mark.parametrize("error", [ContractError("bad"), CheckpointError("missing"), BusyError("busy")])
def test_input_errors_leave_it_healthy(error):
    """Whatever the caller can mend does not retire the pipeline."""
    gate = Gate()
    with pytest.raises(type(error)):
        fail(gate, error)
    assert gate.failure is None
    assert admitted(gate) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("boom"), NonFiniteError("nan"), DeliveryError("disk"), OSError("io"), KeyboardInterrupt()]
)
def test_a_failed_execution_retires_it(error):
    """The next entry says what happened and to build a new one; closing still works."""
    gate = Gate()
    with pytest.raises(type(error)):
        fail(gate, error)
    for entry in (gate.admit, gate.maintain):
        with (
            pytest.raises(ClosedError, match=f"retired by a failed request .{type(error).__name__}.*build a new"),
            entry(),
        ):
            pass
    with gate.shut():
        pass


def test_an_error_outside_the_execution_does_not_retire_it():
    """A request that dies while its inputs are read has harmed nothing."""
    gate = Gate()
    with pytest.raises(RuntimeError), gate.admit():
        raise RuntimeError("reading")
    assert admitted(gate) == 2


@pytest.mark.parametrize("error", [RuntimeError("enough"), KeyboardInterrupt(), SystemExit(), DeliveryError("mine")])
def test_cancelling_leaves_it_healthy(error):
    """A callback may raise anything at all."""
    gate = Gate()

    def callback(_: object) -> None:
        raise error

    watch = RequestWatch(callback)
    with pytest.raises(type(error)), gate.admit(), gate.executing(watch):
        watch.progress("denoising", 1, 50)
    assert gate.failure is None
    assert admitted(gate) == 2


class ListLog:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []

    def record(self, event, fields) -> None:
        self.events.append((event, dict(fields)))


def test_the_log_tells_how_each_request_ended():
    """Started, finished or ended early with the kind of error, and closed; nothing of the error's text."""
    log = ListLog()
    gate = Gate(log=log)
    with gate.admit():
        pass
    with pytest.raises(RuntimeError), gate.admit(), gate.executing(RequestWatch()):
        raise RuntimeError("secret")
    assert [event for event, _ in log.events] == [
        "request started",
        "request finished",
        "request started",
        "request ended early",
    ]
    assert log.events[-1][1]["error"] == "RuntimeError"
    assert log.events[-1][1]["retired"] == 1
    assert "secret" not in str(log.events)
