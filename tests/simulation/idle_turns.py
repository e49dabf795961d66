"""Turns of the loop in which nothing can happen, left out.

A commit waits some turns for company (`node/commit/pacing.py`). Where nothing else is ready and no timer is due, no
turn brings any: all that are left are of this commit alone, and after the last it begins, at the same virtual time and
with the same company. A third of a simulation's turns are such. Next stop: `world.py`.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from penstock.node.commit.pacing import Pacing
from penstock.node.commit.pending import Pending
from tests.simulation.virtual_loop import VirtualLoop


def left_out(loop: VirtualLoop) -> Any:
    """A patch: commits on this loop wait for company only as long as something can still run."""
    original = Pacing.should_wait

    def should_wait(pacing: Pacing, pending: Pending) -> bool:
        if not original(pacing, pending):
            return False
        if loop.has_more_now():
            return True
        pacing._waited = 0  # as after the last turn
        return False

    return patch.object(Pacing, "should_wait", should_wait)
