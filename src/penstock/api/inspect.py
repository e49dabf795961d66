"""Looking at messages and at what became of them, without touching them; the timeline of one id across queues."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from penstock.api.results import DamagedRange, Received
from penstock.model.events import Kind


class Page(msgspec.Struct, frozen=True):
    """What a browse found, and where to go on: (lane, offset), None at the end of the queue. Lanes count from 0."""

    messages: list[Received]
    next: tuple[int, int] | None
    damaged: list[DamagedRange] = []
    """What was passed over because it is damaged in the store."""


class HistoryEntry(msgspec.Struct, frozen=True):
    """One thing that happened to a message under one group."""

    group: str
    kind: Kind
    """claimed, acked, nacked, expired, dead, …: see [events](events.md)."""
    at_ms: int
    consumer: str
    attempt: int
    detail: str
    """A word or an error."""


class GroupStats(msgspec.Struct, frozen=True):
    """One group over all lanes of its queue."""

    group: str
    kind: str
    ready: int = 0
    """Claimable now, or as soon as a partition is free (an upper bound while filters were not applied yet)."""
    leased: int = 0
    scheduled: int = 0
    """Waiting for a time: delays, retries, postponed."""
    dead: int = 0
    lag: int = 0
    """Messages not done and not dead; for streams, not committed."""
    oldest_offset: int = 0
    paused: bool = False


class QueueStats(msgspec.Struct, frozen=True):
    """A queue over all its lanes."""

    queue: str
    namespace: str
    lanes: int
    messages: int
    """Kept in the log, whether done or not."""
    published: int
    """Ever published."""
    bytes_published: int
    groups: list[GroupStats]
    consumers: int = 0
    """Attached consumers."""


class TraceEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened: `kind` is published, event, or what became of a delivery (claimed, acked, nacked …)."""

    at_ms: int
    kind: str
    queue: str | None = None
    lane: int | None = None
    """The lane's place in its queue, from 0 on."""
    offset: int | None = None
    group: str = ""
    consumer: str = ""
    attempt: int = 0
    name: str = ""
    detail: str = ""


class Trace(msgspec.Struct, frozen=True):
    """Everything known of one id in one namespace, by rising time."""

    trace_id: str
    entries: list[TraceEntry]

    def __len__(self) -> int:
        return len(self.entries)


class Inspection(Protocol):
    """What is in a queue, its numbers, and timelines by trace id."""

    async def browse(
        self,
        queue: str,
        *,
        group: str | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
        partition: str | None = None,
        state: Literal["ready", "leased", "waiting", "dead", "done"] | None = None,
        filter: str | None = None,
        max: int = 100,
        after: tuple[int, int] | None = None,
    ) -> Page:
        """Look at messages without touching them, lane after lane; continue with `after=page.next`.

        Begins at a lane (0 is the first), an offset or a time where one is given. `state` is what a group (the default
        one unless named) makes of a message. What is damaged in the store is passed over: `page.damaged` names it.
        """

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        """What happened to one message: each hand-out and how it ended, as far back as `$events` is kept."""

    async def stats(self, queue: str) -> QueueStats:
        """Counts of a queue and its groups."""

    async def trace_event(
        self,
        trace_id: str,
        name: str,
        *,
        detail: str = "",
        queue: str | None = None,
        lane: int | None = None,
        offset: int | None = None,
        consumer: str | None = None,
    ) -> None:
        """Add a named event to a trace, optionally about one message.

        The message may be done and gone, but must have been there. Kept for a week.
        """

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """
