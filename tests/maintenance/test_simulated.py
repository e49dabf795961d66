"""Whatever a broker commits, under any fault, is found sound: `verify` cries no wolf."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

import pytest

from penstock.maintenance.verify import Report, Verification, no_progress
from penstock.model.rows import Commit
from tests.simulation.world import World, run_world

EVERY: Final = 7
"""Commits between two looks."""


def at_once(work: Coroutine[Any, Any, None]) -> None:
    """Run what has nothing to wait for, as on a store in memory."""
    with pytest.raises(StopIteration):
        work.send(None)


@pytest.mark.parametrize("seed", range(20))
def test_every_state_of_a_simulated_store_is_sound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, commits = World.landed, 0
    reports: list[Report] = []

    def landed(self: World, index: int, commit: Commit) -> None:
        nonlocal commits
        real(self, index, commit)
        commits += 1
        if commits % EVERY == 0 and not self.disk._closed:
            reports.append(Report("simulated"))
            at_once(Verification(self.disk, reports[-1], no_progress).run())

    monkeypatch.setattr(World, "landed", landed)
    outcome = run_world(seed)
    assert outcome.violations == []
    assert reports
    assert [finding for report in reports for finding in report.findings] == []
