"""The judge: compares what clients were told with what is on the disk, message by message.

It is told of every operation when it starts and when it is answered (`ledger.py` keeps that), sees every commit that
lands (`mirror.py`), and reports the first thing that must not be. An operation that ended in an error has an unknown
outcome: whatever it could have done is allowed, nothing more. What is checked is listed in `docs/simulation.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from penstock.core.work import Verdict
from penstock.delivery import Claim, Published, Received
from penstock.errors import (
    InvalidArgument,
    LeaseLost,
    NotFound,
    OffsetGone,
    PenstockError,
    QueueFull,
    StoreCorrupt,
    Unroutable,
    WrongKind,
)
from penstock.model import Message
from penstock.rows import Commit
from tests.simulation.ledger import Fate, GroupView, Holder, Landing, Sent
from tests.simulation.mirror import GroupMirror, LaneMirror, Mirror, Stored, scoped
from tests.simulation.plan import COLORS, GRAVEYARD, Plan

LATE_MS: Final = 12_000
"""What could be handed out for so long, while somebody waited for it, is late. Stalls and pauses are far shorter."""
REFUSALS: Final = (InvalidArgument, QueueFull, Unroutable, NotFound, LeaseLost, WrongKind)
"""Errors that say that nothing was done."""
VIOLATIONS_MAX: Final = 5


class Violation(msgspec.Struct, frozen=True):
    """Something that must not be."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Settling(msgspec.Struct):
    """A settle that is under way."""

    view: GroupView
    lane: int
    group: int
    lease: int
    verdicts: dict[int, Verdict]
    attempts: dict[int, int]
    seq: int
    started_ms: int
    alive: bool
    """Whether the lease held all of it on the disk when the settle began."""


class Checker:
    """Knows what clients were told and what is on the disk."""

    def __init__(self, plan: Plan, now_ms: Callable[[], int]) -> None:
        self.plan = plan
        self.violations: list[Violation] = []
        self.mirror = Mirror(self.report, now_ms)
        self._now_ms = now_ms
        self._seq = 0
        self.views: dict[tuple[str, str, int], GroupView] = {}
        self.sent: dict[str, Sent] = {}
        self.landings: dict[tuple[str, int, str], list[Landing]] = {}
        self.deaths: dict[tuple[int, str, int], str] = {}
        self.copies: dict[tuple[str, str, int, int], int] = {}
        self.confirmed = 0
        self.delivered_count = 0

    def report(self, kind: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(kind, f"{text} (at {self._now_ms()})"))

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def view(self, queue: str, group: str, scope: int) -> GroupView:
        planned = self.plan.queue(queue)
        key = (queue, group, scope if planned.is_ephemeral else 0)
        view = self.views.get(key)
        if view is None:
            chosen = next(item for item in planned.groups if item.name == group)
            view = self.views[key] = GroupView(queue, group, planned.config, planned.settings(chosen))
        return view

    def unexpected(self, what: str, error: BaseException) -> None:
        """Errors that no fault of a store may lead to."""
        if isinstance(error, StoreCorrupt) or not isinstance(error, PenstockError):
            self.report("error", f"{what} raised {error!r}")

    # The disk ---------------------------------------------------------------------------------------------

    def landed(self, commit: Commit, scope: int) -> None:
        before = dict(self.mirror.outbox)
        published = self.mirror.apply(commit, scope)
        for lane, stored in published:
            self._stored(lane, stored, scope)
        for lane, stored in published:
            self._check_together(lane, stored, scope)
        self._check_outbox(commit, scope)
        del before

    def _stored(self, lane: LaneMirror, stored: Stored, scope: int) -> None:
        queue = self.mirror.queue_name(lane.id)
        if queue.startswith("$") or queue == "?":
            return
        if queue == GRAVEYARD:
            self._copied(stored)
            return
        sent = self.sent.get(stored.uid)
        where = f"{stored.uid} at {lane.id}:{stored.offset} of queue {queue!r}"
        if sent is None or queue not in sent.queues:
            self.report("phantom", f"{where} was never published there")
            return
        if sent.message != stored.message:
            self.report("corrupted", f"{where} was stored as {stored.message}, published as {sent.message}")
        if sent.refused >= sent.calls:
            self.report("refused", f"{where} was stored although every publish of it was refused")
        places = self.landings.setdefault((queue, lane.id >> 56, stored.uid), [])
        self._check_doubled(where, queue, sent, places, stored)
        places.append(Landing(lane.id, stored.offset, stored.commit, stored.published_ms))

    def _check_doubled(
        self, where: str, queue: str, sent: Sent, places: Sequence[Landing], stored: Stored
    ) -> None:
        """A message is stored once for each call, and under a dedup id once in its window."""
        if len(places) >= sent.calls:
            self.report("doubled", f"{where} was published {sent.calls} times and stored {len(places) + 1} times")
        window_ms = self.plan.queue(queue).config.dedup_window_ms
        if sent.message.dedup_id is None or not window_ms:
            return
        for lane in self.mirror.lanes_of(queue):
            for other in lane.messages.values():
                same = other is not stored and _dedup_of(other.message) == _dedup_of(stored.message)
                first_ms = self.sent[other.uid].started_ms if same else 0
                if same and lane.id >> 56 == 0 and stored.published_ms < first_ms + window_ms:
                    self.report("dedup", f"{where} is the second under its id, after {lane.id}:{other.offset}")

    def _check_together(self, lane: LaneMirror, stored: Stored, scope: int) -> None:
        """All messages of a call are stored in one commit, with the verdicts of their transaction."""
        sent = self.sent.get(stored.uid)
        if sent is None or self.mirror.queue_name(lane.id) == GRAVEYARD:
            return
        for uid in sent.together:
            other = self.sent[uid]
            for queue in other.queues:
                planned = self.plan.queue(queue)
                if planned.is_ephemeral == (lane.id >> 56 != 0) and not self._is_stored(queue, scope, other.message):
                    self.report("torn", f"{stored.uid} is stored, {uid} of the same call is not in {queue!r}")
        if sent.settles is not None and lane.id >> 56 == sent.settles[0] >> 56:
            held_lane, group, lease, offsets = sent.settles
            held = self.mirror.lane(held_lane).group(group).leases.get(lease)
            if held is not None and any(held.covers(offset) for offset in offsets):
                self.report("torn", f"{stored.uid} is stored, but the lease that its transaction settles is still held")

    def _is_stored(self, queue: str, scope: int, message: Message) -> bool:
        uid = message.payload[:24].decode("ascii")
        key = (queue, scope if self.plan.queue(queue).is_ephemeral else 0, uid)
        if self.landings.get(key):
            return True
        return message.dedup_id is not None and any(
            _dedup_of(other.message) == _dedup_of(message)
            for lane in self.mirror.lanes_of(queue)
            for other in lane.messages.values()
        )

    # Dead letters -----------------------------------------------------------------------------------------

    def _check_outbox(self, commit: Commit, scope: int) -> None:
        """Who dies under `dead_letter_to` is in the outbox of the same commit; remember each death."""
        promised = {(scoped(row.lane, scope), row.offset) for row in commit.outbox}
        for change in commit.lanes:
            lane = scoped(change.lane, scope)
            for row in change.dead:
                described = self.mirror.describe(lane, row.group)
                if described is None:
                    continue
                target = described.group_config.dead_letter_to or described.queue_config.dead_letter_to
                for offset in range(row.start, row.end) if target is not None else ():
                    self._died(lane, offset, row.group, row.dead_ms, described.group, (lane, offset) in promised)

    def _died(self, lane: int, offset: int, group: int, dead_ms: int, name: str, promised: bool) -> None:
        key = (lane, f"{group}:{name}", offset)
        times = self.deaths.get(key, "")
        if f"[{dead_ms}]" in times:
            return
        self.deaths[key] = f"{times}[{dead_ms}]"
        if not promised and lane >> 56 == 0:
            self.report("dead letter", f"{lane}:{offset} died in group {name!r} without a row in the outbox")

    def _copied(self, stored: Stored) -> None:
        """A dead letter arrived at its target."""
        deaths = (stored.message.headers or {}).get("x-death")
        if not deaths:
            self.report("phantom", f"{stored.uid} is in {GRAVEYARD!r} without a death")
            return
        last = deaths[0]
        for key in ((last["queue"], last["group"], stored.uid, last["time"]),):
            self._count_copy(key[0], key[1], key[2], key[3])

    def _count_copy(self, queue: str, group: str, uid: str, time: int) -> None:
        self.copies_of(queue, group, uid)[time] = self.copies_of(queue, group, uid).get(time, 0) + 1

    def copies_of(self, queue: str, group: str, uid: str) -> dict[int, int]:
        return self._copies.setdefault((queue, group, uid), {})

    @property
    def _copies(self) -> dict[tuple[str, str, str], dict[int, int]]:
        return self.__dict__.setdefault("_copies_by_death", {})  # type: ignore[no-any-return]
