"""The delivery state of a work group on one lane, and the steps that its commands share.

`claim.py`, `settle.py`, `expiry.py` and `admin.py` are the commands: functions that change a `WorkState`. `work.py`
binds them to one class. Time comes in as an argument; nothing here is random, waits, or knows a store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from penstock.core.group.dead import Dead
from penstock.core.group.entries import Entry
from penstock.core.group.leases import Lease, Leases
from penstock.core.group.settings import Settings, backoff_ms
from penstock.core.group.waiting import Waiting
from penstock.core.log import Log
from penstock.model.errors import LeaseLost
from penstock.model.events import Event, Kind
from penstock.model.rows import DeadRow

META_DAMAGED: Final = "the metadata of their batch fails its checksum: partitions, delays and filters are not known"


class LaneView(Protocol):
    """What a group knows of its lane."""

    log: Log
    first: int
    end: int
    visible_end: int
    has_died: bool
    """Some messages died that are to be copied: a group sets it, and who copies them looks at the lane."""

    def mark(self, group: Any) -> None:
        """A command changes the group: the next seal looks at it."""


class Events:
    """Delivery events since the last seal, by kind, consumer, attempt and detail: one record of several ranges each."""

    __slots__ = ("by_key",)

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str, int, str], Event] = {}

    def add(
        self, kind: Kind, start: int, end: int, at_ms: int, consumer: str = "", attempt: int = 0, detail: str = ""
    ) -> None:
        """Note what happened to the offsets [start, end)."""
        key = (kind, consumer, attempt, detail)
        event = self.by_key.get(key)
        if event is None:
            self.by_key[key] = Event(kind, [(start, end)], at_ms, consumer, attempt, detail)
        elif event.ranges[-1][1] == start:
            event.ranges[-1] = (event.ranges[-1][0], end)
        else:
            event.ranges.append((start, end))

    def join(self, other: Events) -> None:
        """Take over what was collected elsewhere after these."""
        for key, event in other.by_key.items():
            known = self.by_key.get(key)
            if known is None:
                self.by_key[key] = event
            else:
                known.ranges += event.ranges

    def seal(self) -> list[Event]:
        """Hand over all that was collected."""
        events = list(self.by_key.values())
        self.by_key.clear()
        return events


class WorkState:
    """What is stored of a work group, and what is derived from it.

    An offset below `next` that is neither leased, waiting nor dead is done; there is no other record of it.
    """

    __slots__ = (
        "active_consumer",
        "active_until_ms",
        "cursor_dirty",
        "dead",
        "died",
        "events",
        "head_expiry",
        "id",
        "lane",
        "leases",
        "next",
        "rate_at_ms",
        "rate_tokens",
        "redriven",
        "settings",
        "waiting",
    )

    def __init__(self, id: int, settings: Settings, lane: LaneView, next_offset: int) -> None:
        self.id = id
        self.settings = settings
        self.lane = lane
        self.next = next_offset
        """The first offset never handed out."""
        self.leases = Leases()
        self.waiting = Waiting(ordered=settings.ordered, debounced=settings.debounce_ms > 0)
        self.dead = Dead()
        self.events = Events()
        self.died: list[DeadRow] = []
        """Messages that died since the last seal and are copied to `dead_letter_to`."""
        self.cursor_dirty = False
        """Whether `next` moved since the last seal."""
        self.active_consumer: str | None = None
        self.active_until_ms = 0
        self.rate_tokens = max(1.0, settings.rate or 1.0)
        self.rate_at_ms = 0
        self.head_expiry: tuple[int, int | None, int | None] = (-1, None, None)
        """Cached by `expiry.py`: (offset, the group's ttl, when the message at that offset expires)."""
        self.redriven = 0
        """Messages that the redrive under way has given back so far."""

    # Cursor and leases ------------------------------------------------------------------------------------

    def move_to(self, offset: int) -> None:
        """Move the cursor: what lies below it was handed out, parked, dropped or filtered out."""
        lane = self.lane
        assert lane.first <= offset <= lane.end, f"cursor to {offset}; the lane has {lane.first} to {lane.end}"
        self.next = offset
        self.cursor_dirty = True
        lane.mark(self)

    def lease(self, lease_id: int) -> Lease:
        """The lease; raises `LeaseLost` if it is gone."""
        lease = self.leases.by_id.get(lease_id)
        if lease is None:
            raise LeaseLost(f"lease {lease_id} is gone: it expired, was settled, passed on, or was reset by a seek")
        return lease

    # What becomes of offsets that leave a lease, the waiting or the log -----------------------------------

    def park(self, entry: Entry, now_ms: int) -> None:
        """Let messages wait until they are due, unless they have expired."""
        if entry.expires_ms and entry.expires_ms <= now_ms:
            self.expire(entry, now_ms)
        else:
            self.waiting.put(entry)

    def fail(
        self, now_ms: int, entries: list[Entry], consumer: str, kind: Kind, error: str, delay_ms: int | None
    ) -> None:
        """End an attempt without success: park the messages for the next one, or bury them after the last.

        `delay_ms` of None is the group's backoff.
        """
        settings = self.settings
        for entry in entries:
            self.events.add(kind, entry.start, entry.end, now_ms, consumer, entry.attempts, error)
            if settings.max_attempts and entry.attempts >= settings.max_attempts:
                self.die(entry, now_ms, "attempts", error, consumer)
                continue
            span_ms = delay_ms
            if span_ms is None:
                span_ms = backoff_ms(settings, self.id, entry.start, entry.attempts)
            self.park(entry.moved(entry.attempts, now_ms + span_ms if span_ms else 0), now_ms)

    def die(self, entry: Entry, now_ms: int, reason: str, error: str, consumer: str = "") -> None:
        """Make messages dead letters: kept in place, copied, or neither, as the group says."""
        self.events.add("dead", entry.start, entry.end, now_ms, consumer, entry.attempts, reason)
        is_damaged = reason == "damaged"  # there is nothing to copy, and somebody should look at it
        is_copied = self.settings.dead_letter_to is not None and not is_damaged
        if not is_copied and not self.settings.dead_kept and not is_damaged:
            return
        row = DeadRow(self.id, entry.start, entry.end, entry.attempts, reason, error, consumer, now_ms)
        self.dead.add(row)
        if is_copied:
            self.died.append(row)
            self.lane.has_died = True

    def bury(self, start: int, end: int, now_ms: int) -> None:
        """Make messages of a batch dead letters whose metadata is damaged, whoever they were for and whenever due."""
        self.die(Entry(start, end), now_ms, "damaged", META_DAMAGED)

    def expire(self, entry: Entry, now_ms: int) -> None:
        """Drop messages that are past their ttl, or make them dead letters, as the group says."""
        if self.settings.expired == "dead":
            self.die(entry, now_ms, "expired", "time to live is over")
        else:
            self.events.add("dropped", entry.start, entry.end, now_ms, "", entry.attempts, "expired")

    # Partitions of an ordered group -----------------------------------------------------------------------

    def lock(self, entries: Iterable[Entry]) -> None:
        """Lock the partitions of leased entries."""
        if self.waiting.ordered:
            for entry in entries:
                if entry.partition:
                    self.waiting.lock(entry.partition, entry.count)

    def unlock(self, entries: Iterable[Entry]) -> None:
        """Unlock the partitions of entries that left their lease; call after parking those that must wait."""
        if self.waiting.ordered:
            for entry in entries:
                if entry.partition:
                    self.waiting.unlock(entry.partition, entry.count)

    def parks_first(self) -> bool:
        """Whether the order of delivery depends on messages further on: then all are parked before one is taken."""
        return self.settings.prioritized or self.settings.debounce_ms > 0
