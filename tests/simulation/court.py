"""What all checks share: the plan, the mirror of the disk, the views of groups, and where violations are reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.model.errors import PenstockError, StoreCorrupt
from tests.simulation.ledger import GroupView
from tests.simulation.mirror import LaneMirror, Mirror, Stored, scope_of
from tests.simulation.plan import FILTER, Plan

VIOLATIONS_MAX: Final = 5


class Violation(msgspec.Struct, frozen=True):
    """Something that must not be."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Court:
    """Where the checks meet."""

    def __init__(self, plan: Plan, now_ms: Callable[[], int]) -> None:
        self.plan = plan
        self.now_ms = now_ms
        self.violations: list[Violation] = []
        self.mirror = Mirror(self.report, now_ms)
        self.views: dict[tuple[str, str, int], GroupView] = {}
        self._seq = 0

    def report(self, kind: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(kind, f"{text} (at {self.now_ms()})"))

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def view(self, queue: str, group: str, scope: int) -> GroupView:
        """The view of a group; an ephemeral queue has one for each node."""
        planned = self.plan.queue(queue)
        key = (queue, group, scope if planned.is_ephemeral else 0)
        view = self.views.get(key)
        if view is None:
            chosen = next(item for item in planned.groups if item.name == group)
            view = self.views[key] = GroupView(queue, group, planned.config, planned.settings(chosen))
        return view

    def lanes_of(self, queue: str, scope: int) -> list[LaneMirror]:
        """The lanes of a queue as a node sees them."""
        kept = scope if self.plan.queue(queue).is_ephemeral else None
        return [lane for lane in self.mirror.lanes_of(queue) if scope_of(lane.id) == kept]

    def lane_id(self, queue: str, index: int, scope: int) -> int:
        """The lane that a node's answer names by its place in the queue."""
        return self.mirror.lane_id(queue, index, scope if self.plan.queue(queue).is_ephemeral else None)

    def unexpected(self, what: str, error: BaseException) -> None:
        """Report an error that no fault of a store may lead to."""
        if isinstance(error, StoreCorrupt) or not isinstance(error, PenstockError):
            self.report("error", f"{what} raised {error!r}")


def passes(view: GroupView, stored: Stored) -> bool:
    """Whether a group's filter lets a message through; there is only one filter in these worlds."""
    if view.settings.filter is None:
        return True
    return FILTER == "color = 'red'" and (stored.message.headers or {}).get("color") == "red"
