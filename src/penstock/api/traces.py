"""Traces: the timeline of one id across queues."""

from __future__ import annotations

from typing import Protocol

import msgspec


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


class Traces(Protocol):
    """Timelines by trace id."""

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
        """Note something by its name on a trace's timeline: about a message, where its queue and offset are given.

        The message may be done and gone, but must have been there. Kept for a week.
        """

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """
