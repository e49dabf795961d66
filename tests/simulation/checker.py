"""The judge: compares what clients were told with what is on the disk, message by message.

It is told of every operation when it starts and when it is answered, sees every commit that lands (`mirror.py`), and
reports whatever must not be. An operation that ended in an error has an unknown outcome: whatever it could have done
is allowed, nothing more. What is checked is listed in `docs/simulation.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.model.rows import Commit
from tests.simulation.court import Court, passes
from tests.simulation.deaths import DeathChecker
from tests.simulation.deliveries import DeliveryChecker
from tests.simulation.ledger import GroupView
from tests.simulation.mirror import GroupMirror, LaneMirror, Stored
from tests.simulation.plan import GRAVEYARD, Plan
from tests.simulation.publishes import PublishChecker
from tests.simulation.streams import LATE_MS, StreamChecker


class Checker:
    """All checks of one world."""

    def __init__(self, plan: Plan, now_ms: Callable[[], int]) -> None:
        self.court = Court(plan, now_ms)
        self.publishes = PublishChecker(self.court)
        self.deliveries = DeliveryChecker(self.court)
        self.deaths = DeathChecker(self.court)
        self.streams = StreamChecker(self.court)
        self._plan = plan
        self._now_ms = now_ms

    # The disk ---------------------------------------------------------------------------------------------

    def commit_failed(self) -> None:
        """It may have happened all the same, with hand-outs to claims that wait on and were told of nothing."""
        for view in self.court.views.values():
            if view.claims_open:
                view.claims_failed.append(self.court.next_seq())

    def landed(self, commit: Commit, scope: int) -> None:
        """A commit is durable."""
        mirror = self.court.mirror
        done = self.deaths.done(commit, scope)
        published = mirror.apply(commit, scope)
        known: list[tuple[LaneMirror, Stored]] = []
        left = Counter(key for place, key in self.deaths.done(commit, scope).items() if place not in done)
        copies = [stored for lane, stored in published if mirror.queue_name(lane.id) == GRAVEYARD]
        self.deaths.landed(commit, scope, left, copies)
        for lane, stored in published:
            queue = mirror.queue_name(lane.id)
            if queue == GRAVEYARD:
                self.deaths.copied(stored)
            elif any(planned.name == queue for planned in self._plan.queues):
                self.publishes.stored(lane, stored, queue)
                known.append((lane, stored))
        for lane, stored in known:
            self.publishes.check_together(lane, stored, scope)

    # Waiting in vain --------------------------------------------------------------------------------------

    def waited(self, view: GroupView, scope: int, waited_ms: int) -> None:
        """A claim for anything waited so long and got nothing: was there nothing all the time?"""
        settings = view.settings
        held_back = settings.rate or settings.max_in_flight or settings.single_active_consumer or settings.debounce_ms
        if waited_ms < LATE_MS or held_back or view.ever_paused or "parked" in self._plan.limits:
            return
        for lane in self.court.lanes_of(view.queue, scope):
            for group in lane.groups.values():
                described = self.court.mirror.describe(lane.id, group.id)
                if described is not None and described.group == view.group:
                    self._check_late(view, lane, group, self._now_ms() - LATE_MS)

    def _check_late(self, view: GroupView, lane: LaneMirror, group: GroupMirror, since_ms: int) -> None:
        busy: set[str] = set()
        for lease in group.leases.values():
            if lease.deadline_ms < since_ms:
                self.court.report("late", f"a lease of {lease.consumer} on lane {lane.id} ended at {lease.deadline_ms}")
            for entry in lease.entries:
                busy.update(self._partitions(lane, range(entry.start, entry.end)))
        for entry in sorted(group.waiting_entries(), key=lambda entry: entry.start):
            for offset in range(entry.start, entry.end):
                stored = lane.messages[offset]
                is_free = (
                    not view.settings.ordered or not stored.message.partition or stored.message.partition not in busy
                )
                if is_free and entry.due_ms < since_ms and group.touched_ms < since_ms:
                    self._report_late(view, lane, stored, f"waits since {entry.due_ms}")
                if view.settings.ordered and stored.message.partition:
                    busy.add(stored.message.partition)
        for offset in range(group.next, lane.end):
            stored = lane.messages[offset]
            ready_ms = max(stored.landed_ms, stored.due_ms(view.config))
            if view.settings.ordered and stored.message.partition in busy:
                continue
            if ready_ms < since_ms and passes(view, stored):
                self._report_late(view, lane, stored, f"is ready since {ready_ms}")
            if view.settings.ordered and stored.message.partition:
                busy.add(stored.message.partition)

    def _partitions(self, lane: LaneMirror, offsets: range) -> set[str]:
        found = (lane.messages[offset].message.partition for offset in offsets)
        return {partition for partition in found if partition}

    def _report_late(self, view: GroupView, lane: LaneMirror, stored: Stored, text: str) -> None:
        expires_ms = stored.expires_ms(view.config)
        if expires_ms is None or expires_ms > self._now_ms():
            where = f"{stored.uid} at {lane.id}:{stored.offset} in {view.queue}/{view.group}"
            self.court.report("late", f"{where} {text}, a consumer waited all the time")

    # The end ----------------------------------------------------------------------------------------------

    def unsettled(self, scope: int) -> list[str]:
        """What is still to be done before a world can be judged, in words."""
        found: list[str] = []
        for planned in self._plan.queues:
            for lane in self.court.lanes_of(planned.name, scope):
                found += self._unsettled_on(lane)
        if self.court.mirror.outbox:
            found.append(f"{len(self.court.mirror.outbox)} rows in the outbox")
        return found

    def _unsettled_on(self, lane: LaneMirror) -> list[str]:
        found: list[str] = []
        for group in lane.groups.values():
            described = self.court.mirror.describe(lane.id, group.id)
            if described is None or described.group_config.kind == "stream":
                continue
            states = {offset: state for offset, state in group.states(lane.end).items() if state != "dead"}
            if states:
                found.append(f"{described.queue}/{described.group} lane {lane.id}: {states}")
        return found

    def check_end(self, scope: int, resets: int) -> None:
        """All is settled: every message must be where its story says."""
        self.deaths.check_end()
        self.deliveries.check_rates(resets)
        for text in self.streams.unread(scope):
            self.court.report("lost", text)
        for view in list(self.court.views.values()):
            for lane in self.court.lanes_of(view.queue, scope):
                for group in lane.groups.values():
                    described = self.court.mirror.describe(lane.id, group.id)
                    if described is None or described.group != view.group:
                        continue
                    if self.court.view(view.queue, view.group, scope) is view and view.settings.kind == "work":
                        self._check_work_end(view, lane, group)

    def _check_work_end(self, view: GroupView, lane: LaneMirror, group: GroupMirror) -> None:
        states = group.states(lane.end)
        for offset in range(group.start or 0, lane.end):
            stored, state = lane.messages[offset], states.get(offset, "done")
            fate = view.fate(lane.id, offset)
            where = f"{stored.uid} at {lane.id}:{offset} in {view.queue}/{view.group}"
            if state == "done" and not self._may_be_done(view, lane, stored):
                self.court.report("lost", f"{where} is done, but nobody said so")
            if state == "dead" and fate.acked:
                self.court.report("lost", f"{where} is dead although its ack was answered")
            if state == "dead" and not self._may_be_dead(view, lane, group, offset):
                self.court.report("lost", f"{where} is dead without a reason")
            is_gone = view.dead_purged or self._has_moved(view, stored)
            if state == "done" and fate.rejected and not view.redriven_since(fate.rejected) and not is_gone:
                self.court.report("lost", f"{where} is done although its reject was answered")

    def _may_be_done(self, view: GroupView, lane: LaneMirror, stored: Stored) -> bool:
        fate = view.fate(lane.id, stored.offset)
        expires_ms = stored.expires_ms(view.config)
        return bool(
            fate.acked
            or fate.reasons & {"ack", "maybe ack", "acknowledged as it was handed out"}
            or view.swallowed
            or view.settling_open
            or not passes(view, stored)
            or (expires_ms is not None and expires_ms <= self._now_ms() and view.settings.expired == "drop")
            or view.config.overflow == "drop_oldest"
            or stored.offset < view.sought_to.get(lane.id, 0)
            or stored.offset < view.purged_to.get(lane.id, 0)
            or view.dead_purged
            or self._has_moved(view, stored)
        )

    def _has_moved(self, view: GroupView, stored: Stored) -> bool:
        """Whether its group keeps no dead, and its copy is where they go."""
        return not view.settings.dead_kept and bool(self.deaths.copies.get((view.queue, view.group, stored.uid)))

    def _may_be_dead(self, view: GroupView, lane: LaneMirror, group: GroupMirror, offset: int) -> bool:
        row = next(row for row in group.dead.values() if row.start <= offset < row.end)
        fate, stored = view.fate(lane.id, offset), lane.messages[offset]
        if row.reason == "attempts":
            return 0 < view.settings.max_attempts <= row.attempts
        if row.reason == "expired":
            expires_ms = stored.expires_ms(view.config)
            return expires_ms is not None and expires_ms <= row.dead_ms
        if row.reason == "overflow":
            return view.config.overflow == "dead_letter_oldest"
        return bool(fate.reasons & {"reject", "maybe reject"})
