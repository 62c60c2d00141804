"""Two trainings of one model on two GPUs that keep drawing together: elastic averaging through files of the run.

S. Zhang, A. Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD" (2015). Once together,
neither waits for the other: either may be late, stop or fail without harm to the other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from attrs import define

from tiny_h3.stage import Progress

EVERY_STEPS = 20
FRESH_S = 20.0
PATIENCE_S = 300.0
TOWARD = 0.5
_FILES = "averaging-"


@define(kw_only=True, eq=False)
class Companion:
    """`parameters` drift to the mean of both. The leader sets the pace; a follower first takes the leader's values,
    then ends when the leader does."""

    folder: Path
    parameters: Sequence[torch.Tensor]
    leads: bool
    joined: bool = False

    @torch.no_grad()
    def exchange(self, progress: Progress) -> None:
        """Publish, and go half-way to the other's last published values if they are fresh."""
        share = self._news(self._other)
        if share is not None:
            self._approach(TOWARD if self.leads or self.joined else 1.0)
            self.joined = True
        if not self.leads:
            progress.told = 1.0 if share is None else share  # None: nobody leads any more
        self._publish(progress.share)

    def leave(self) -> None:
        """A follower then ends at its next exchange."""
        self._publish(1.0)

    def wait_for_leader(self) -> None:
        """Raises `TimeoutError` after `PATIENCE_S`."""
        begin = time.perf_counter()
        while self._news("leader") is None:
            if time.perf_counter() - begin > PATIENCE_S:
                raise TimeoutError(f"no leader in {self.folder} after {PATIENCE_S:.0f} s")
            time.sleep(0.5)

    @property
    def _own(self) -> str:
        return "leader" if self.leads else "follower"

    @property
    def _other(self) -> str:
        return "follower" if self.leads else "leader"

    def _approach(self, share: float) -> None:
        other = self._values(self._other).to(self.parameters[0].device)
        for parameter, value in zip(self.parameters, other.split([p.numel() for p in self.parameters]), strict=True):
            parameter.lerp_(value.view_as(parameter), share)

    @torch.no_grad()
    def _publish(self, share: float) -> None:
        flat = torch.cat([p.detach().float().flatten() for p in self.parameters])
        self._values(self._own).copy_(flat)
        partial = self._path(self._own, "partial")
        partial.write_text(json.dumps({"share": share, "at": time.time()}))
        partial.replace(self._path(self._own, "json"))

    def _values(self, who: str) -> torch.Tensor:
        """A vector in a file, mapped: a reader may meet a mixture of two states, both near."""
        count = sum(p.numel() for p in self.parameters)
        return torch.from_file(str(self._path(who, "bin")), shared=True, size=count, dtype=torch.float32)

    def _news(self, who: str) -> float | None:
        """The share of its time that `who` said last to have used, if that is not long ago."""
        path = self._path(who, "json")
        if not path.exists():
            return None
        said = json.loads(path.read_text())
        return float(said["share"]) if time.time() - said["at"] < FRESH_S else None

    def _path(self, who: str, suffix: str) -> Path:
        return self.folder / f"{_FILES}{who}.{suffix}"


def forget(folder: Path) -> None:
    """What an earlier run left there would pass for news."""
    for old in folder.glob(f"{_FILES}*"):
        old.unlink()
