"""`Lane`: its commands, bound to one class, and its timers.

Commands change a lane at once; `seal` gathers what they changed into one `LaneChange`; the node commits that and calls
`committed`, after which what was published can be claimed. If a commit fails the lane is thrown away and loaded
again: nothing is ever undone. No clock, no I/O. Next stop: `node/commit/loop.py`.
"""

from __future__ import annotations

from penstock.core.group.work import WorkGroup
from penstock.core.lane import append as appending
from penstock.core.lane import retention
from penstock.core.lane import seal as sealing
from penstock.core.lane.state import LaneState
from penstock.model import Message
from penstock.model.work import Budget


class Lane(LaneState):
    """One lane in memory: the owner's copy of the truth."""

    __slots__ = ()

    append = appending.append
    append_batch = appending.append_batch
    name_publish = appending.name_publish
    published_before = appending.published_before
    check_room = appending.check_room
    lag_bytes = appending.lag_bytes

    seal = sealing.seal
    committed = sealing.committed
    show_all = sealing.show_all

    needed_from = retention.needed_from
    trim_by_limits = retention.trim_by_limits
    trim_again = retention.trim_again
    pin = retention.pin
    unpin = retention.unpin
    pinned = retention.pinned

    # Time -------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When `tick` has something to do next; None if never."""
        due_ms = self.done_marks[0][0] + self.config.keep_done_ms if self.done_marks else None
        for group in self.groups.values():
            time_ms = group.next_due_ms()
            if time_ms is not None and (due_ms is None or time_ms < due_ms):
                due_ms = time_ms
        return due_ms

    def tick(self, now_ms: int) -> None:
        """Do what is due. Raises `Missing` where heads must be read first, and `Pause` where there is more to do than
        can be done at once; the next call goes on from there.
        """
        budget = Budget()
        for group in self.groups.values():
            if isinstance(group, WorkGroup):
                due_ms = group.next_due_ms()
                if due_ms is not None and due_ms <= now_ms:
                    group.tick(now_ms, budget)
        marks = len(self.done_marks)
        retention.pass_marks(self, now_ms)
        self.dirty = self.dirty or len(self.done_marks) < marks

    def expire_dedup(self, now_ms: int) -> None:
        """Forget the dedup ids that no longer count, here and in the store."""
        if self.dedup.expire(now_ms):
            self.dedup_expired_ms = now_ms
            self.dirty = True

    def is_idle(self) -> bool:
        """Whether the lane can be unloaded: nothing to seal, no timer, nothing that a reload would not bring back."""
        return (
            not (self.dirty or self.pins or self.done_marks or self.dedup.by_key or self.dedup.questions)
            and self.dedup.complete
            and self.visible_end == self.end
            and not (self.has_limits and self.first < self.end)
            and all(isinstance(group, WorkGroup) and group.is_idle() for group in self.groups.values())
        )

    # Invariants -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what must be true of the whole lane. Costs time: for tests and the simulation, after every step."""
        ends = (self.first, self.visible_end, self.sealed_end, self.end)
        assert list(ends) == sorted(ends), f"first, visible, sealed and end are {ends}"
        assert self.sealed_first <= self.first, f"sealed from {self.sealed_first}, kept from {self.first}"
        parts = sum(1 if isinstance(part, Message) else part.count for part in self.parts)
        assert self.sealed_end + parts == self.end, f"{parts} parts from {self.sealed_end}, the lane ends at {self.end}"
        assert not self.log.tail or self.log.tail[-1].end == self.sealed_end, f"the log ends before {self.sealed_end}"
        assert self.done_marks == sorted(self.done_marks), f"done marks {self.done_marks}"
        self.log.check()
        self.dedup.check()
        for id, group in self.groups.items():
            group.check()
            assert id in self.changed or not group.has_unsealed(), f"group {id} changed and did not mark its lane"
        assert self.dirty or not self.changed, f"groups {list(self.changed)} changed, the lane is not marked"
