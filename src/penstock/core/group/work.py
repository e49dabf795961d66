"""A work group on one lane: messages are claimed under a lease, settled, retried, and in the end done or dead.

The commands are in a module each; here they become methods, beside what others may ask of the group. A command either
raises before it changed anything or does all it was asked to. It marks the lane changed, and the lane seals what
changed into a commit: next stop `core/lane`.
"""

from __future__ import annotations

from typing import Literal

from penstock.core.group import admin, expiry
from penstock.core.group import claim as claiming
from penstock.core.group import draft as drafting
from penstock.core.group import settle as settling
from penstock.core.group.state import WorkState
from penstock.model import INTEGER_MAX
from penstock.model.rows import GroupRow, LaneChange, LaneImage

State = Literal["ready", "leased", "waiting", "dead", "done"]


class WorkGroup(WorkState):
    """One work group's delivery state on one lane, with its commands."""

    __slots__ = ()

    claim = claiming.claim
    has_nothing = claiming.has_nothing
    rate_ready_ms = claiming.rate_ready_ms

    check_settle = settling.check_settle
    settle = settling.settle
    can_draft = drafting.can_draft
    draft = drafting.draft
    fits = drafting.fits
    adopt = drafting.adopt
    set_aside = settling.set_aside
    set_aside_done = settling.set_aside_done
    settling_frees = settling.settling_frees
    extend = settling.extend
    consumer_left = settling.consumer_left
    session_left = settling.session_left

    next_due_ms = expiry.next_due_ms
    tick = expiry.tick

    seek = admin.seek
    purge = admin.purge
    redrive = admin.redrive
    purge_dead = admin.purge_dead
    drop_oldest = admin.drop_oldest
    drop_below = admin.drop_below

    # Loading and sealing ----------------------------------------------------------------------------------

    def load(self, image: LaneImage) -> None:
        """Take this group's rows from a lane's image."""
        for waiting_row in image.waiting:
            if waiting_row.group == self.id:
                self.waiting.load(waiting_row)
        for lease_row in image.leases:
            if lease_row.group == self.id:
                lease = self.leases.load(lease_row)
                self.lock(lease.entries)
                if self.settings.single_active_consumer:
                    self.active_consumer = lease.consumer
                    self.active_until_ms = max(self.active_until_ms, lease.deadline_ms)
        for dead_row in image.dead:
            if dead_row.group == self.id:
                self.dead.load(dead_row)

    def seal(self, change: LaneChange) -> None:
        """Write what changed since the last seal into a commit."""
        if self.leases.dirty:
            leases, leases_deleted = self.leases.seal(self.id)
            change.leases += leases
            change.leases_deleted += leases_deleted
        if self.waiting.dirty:
            waiting, waiting_deleted = self.waiting.seal(self.id)
            change.waiting += waiting
            change.waiting_deleted += waiting_deleted
        if self.dead.dirty:
            dead, dead_deleted = self.dead.seal(self.id)
            change.dead += dead
            change.dead_deleted += dead_deleted
        if self.cursor_dirty:
            change.groups.append(GroupRow(self.id, self.next, self.next))
            self.cursor_dirty = False

    # Questions --------------------------------------------------------------------------------------------

    def watermark(self) -> int:
        """Every offset below is done or dead."""
        low = self.next
        if self.leases.by_id and (leased := self.leases.lowest()) is not None and leased < low:
            low = leased
        if self.waiting.by_start and (waiting := self.waiting.lowest()) is not None and waiting < low:
            low = waiting
        return low

    def needed_from(self) -> int:
        """The lowest offset that this group still needs; retention stops there."""
        watermark, dead = self.watermark(), self.dead.starts
        return min(watermark, dead[0]) if dead else watermark

    def backlog(self) -> int:
        """Messages not leased and not settled: never handed out, or waiting."""
        return max(0, self.lane.end - self.next) + self.waiting.count

    def available(self) -> int:
        """An upper bound of what a claim could find now."""
        return max(0, self.lane.visible_end - self.next) + self.waiting.count

    def is_idle(self) -> bool:
        """Whether all there is to know is stored: nothing leased or waiting, nobody active, no tokens spent."""
        return (
            not (self.leases.by_id or self.waiting.by_start or self.cursor_dirty or self.events.by_key)
            and self.active_consumer is None
            and self.settings.rate is None
            and expiry.head_expires_ms(self) is None
        )

    def has_unsealed(self) -> bool:
        """Whether anything changed since the last seal."""
        parts = (self.events.by_key, self.leases.dirty, self.waiting.dirty, self.dead.dirty, self.died)
        return self.cursor_dirty or any(parts)

    def states(self, start: int, end: int) -> list[tuple[int, int, State, int]]:
        """(start, end, state, attempts) of every offset of [start, end) that is not done, by rising offset."""
        found: list[tuple[int, int, State, int]] = []
        for lease in self.leases.by_id.values():
            inside = [entry for entry in lease.entries if entry.start < end and start < entry.end]
            found += [(entry.start, entry.end, "leased", entry.attempts) for entry in inside]
        inside = [entry for entry in self.waiting.by_start.values() if entry.start < end and start < entry.end]
        found += [(entry.start, entry.end, "waiting", entry.attempts) for entry in inside]
        found += [(row.start, row.end, "dead", row.attempts) for row in self.dead.overlapping(start, end)]
        found.append((self.next, min(end, self.lane.end), "ready", 0))
        clipped = [(max(low, start), min(high, end), state, attempts) for low, high, state, attempts in found]
        return sorted(item for item in clipped if item[0] < item[1])

    # Invariants -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert that [0, next) is the disjoint union of leased, waiting, dead and done, and every index right."""
        self.leases.check()
        self.waiting.check()
        self.dead.check()
        first, end = self.lane.first, self.lane.end
        assert first <= self.next <= end, f"group {self.id} is at {self.next}, the lane has {first} to {end}"
        self._check_locks()
        if not (self.leases.by_id or self.waiting.by_start or self.dead.by_start):
            return
        last = (first, first, "trimmed", 0)
        for state in self.states(0, INTEGER_MAX):
            assert last[1] <= state[0], f"group {self.id}: {state} overlaps {last}"
            last = state
        assert last[1] <= end, f"group {self.id}: {last} is past the lane's end {end}"

    def _check_locks(self) -> None:
        leased: dict[str, int] = {}
        for lease in self.leases.by_id.values() if self.waiting.ordered else ():
            for entry in lease.entries:
                if entry.partition:
                    leased[entry.partition] = leased.get(entry.partition, 0) + entry.count
        locked = {name: partition.leased for name, partition in self.waiting.partitions.items() if partition.leased}
        assert locked == leased, f"group {self.id} leases {leased} of its partitions, locked are {locked}"
