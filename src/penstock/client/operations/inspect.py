"""Looking and administration from a client: browse, history, traces, dead letters, seek, purge, pause, numbers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from penstock.client.operations.codec import received_of, with_query
from penstock.client.operations.requests import Requests, decoded
from penstock.client.transport.channel import NO_RETRY, Request
from penstock.model import DEFAULT_GROUP
from penstock.model.errors import InvalidArgument
from penstock.node.consume.dead_letters import DeadMessage, DeadRanges, DeadReason
from penstock.node.consume.streams import Page
from penstock.node.observe.history import HistoryEntry
from penstock.node.observe.stats import GroupStats, QueueStats
from penstock.node.observe.traces import Trace, TraceEntry
from penstock.wire.http.shapes import (
    CountAnswer,
    DeadAnswer,
    DeadChoice,
    DeadRangesAnswer,
    HistoryAnswer,
    PageAnswer,
    QueueStatsBody,
    ReasonsAnswer,
    SeekRequest,
    Status,
    TraceAnswer,
    TraceEventRequest,
)


class Looking(Requests):
    """The part of a client for whoever runs queues."""

    async def seek(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move a group: everything before the place is done, everything from it on is new again.

        Leases that are out end; settling them afterwards raises `LeaseLost`. Dead messages before the place stay.
        """
        body = SeekRequest(to=to, offset=offset, time_ms=time_ms, lane=lane)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "seek"), body)

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
        """Look at messages without touching them, lane after lane; go on with `after=page.next`.

        Begins at a lane (0 is the first), an offset or a time where one is given. `state` is what a group (the default
        one unless named) makes of a message.
        """
        path = with_query(
            self._target("queues", queue, "messages"), group=group, offset=offset, time_ms=time_ms, lane=lane,
            partition=partition, state=state, filter=filter, max=max, after=None if after is None else _place(after),
        )  # fmt: skip
        answer = await self._get(PageAnswer, path)
        following: tuple[int, int] | None = None
        if answer.next is not None:
            place, _, start = answer.next.partition(":")
            following = (int(place), int(start))
        return Page([received_of(body) for body in answer.messages], following)

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        """What happened to one message: each hand-out and how it ended, as far back as `$events` is kept."""
        if lane is None:
            lanes = (await self.stats(queue)).lanes
            if lanes > 1:
                raise InvalidArgument(f"queue {queue!r} has lanes 0 to {lanes - 1}: say which one with lane=")
            lane = 0
        path = self._target("queues", queue, "messages", str(lane), str(offset), "history")
        answer = await self._get(HistoryAnswer, path)
        return [msgspec.convert(body, HistoryEntry, from_attributes=True) for body in answer.history]

    # Traces -----------------------------------------------------------------------------------------------

    async def trace_event(
        self, trace_id: str, name: str, *, detail: str = "", queue: str | None = None, lane: int | None = None,
        offset: int | None = None, consumer: str | None = None,
    ) -> None:  # fmt: skip
        """Note something by its name on a trace's timeline: about a message, where its queue and offset are given.

        The message may be done and gone, but must have been there. Kept for a week.
        """
        by = self._consumer if consumer is None else consumer
        body = TraceEventRequest(name=name, detail=detail, queue=queue, lane=lane, offset=offset, consumer=by)
        await self._send(b"POST", self._target("traces", trace_id, "events"), body)

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """
        answer = await self._get(TraceAnswer, with_query(self._target("traces", trace_id), max=max))
        return Trace(
            answer.trace_id, [msgspec.convert(body, TraceEntry, from_attributes=True) for body in answer.entries]
        )

    # Dead letters -----------------------------------------------------------------------------------------

    async def dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, max: int = 100, reason: str | None = None,
        error: str | None = None, offsets: tuple[int, int] | None = None, filter: str | None = None,
        lane: int | None = None, until_ms: int | None = None,
    ) -> list[DeadMessage]:  # fmt: skip
        """Dead letters of a group with why they died; by reason, text in the error, offsets or a filter.

        Offsets are those of every lane, unless one is named; with `until_ms`, only what died then or before.
        """
        start, end = (None, None) if offsets is None else _span(offsets)
        path = with_query(
            self._dead(queue, group), max=max, reason=reason, error=error, start=start, end=end, filter=filter,
            lane=lane, until_ms=until_ms,
        )  # fmt: skip
        answer = await self._get(DeadAnswer, path)
        return [
            DeadMessage(received_of(body.message), body.reason, body.error, body.attempts, body.consumer, body.dead_ms)
            for body in answer.dead
        ]

    def _dead(self, queue: str, group: str, *more: str) -> bytes:
        return self._target("queues", queue, "groups", group, "dead", *more)

    async def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10_000
    ) -> DeadRanges:
        """Where the dead letters of a group are and why they died, page by page: go on with `after=page.next`.

        No message is read: a range is what died together, one message or many.
        """
        lane, offset = (None, None) if after is None else after
        path = with_query(self._dead(queue, group, "ranges"), lane=lane, offset=offset, max=max)
        return msgspec.convert(await self._get(DeadRangesAnswer, path), DeadRanges, from_attributes=True)

    async def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        """Why messages of a group died: how many by reason and error text, the most frequent first."""
        answer = await self._get(ReasonsAnswer, self._dead(queue, group, "reasons"))
        return [msgspec.convert(body, DeadReason, from_attributes=True) for body in answer.reasons]

    async def redrive(
        self, queue: str, group: str = DEFAULT_GROUP, *, reason: str | None = None, error: str | None = None,
        offsets: tuple[int, int] | None = None, filter: str | None = None, lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Give the chosen dead letters to their group again, with all attempts; how many."""
        choice = DeadChoice(
            reason=reason, error=error, offsets=offsets and _span(offsets), filter=filter, lane=lane, until_ms=until_ms
        )
        return await self._count(self._dead(queue, group, "redrive"), choice)

    async def purge_dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, reason: str | None = None, error: str | None = None,
        offsets: tuple[int, int] | None = None, filter: str | None = None, lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Let the chosen dead letters go for good; how many."""
        choice = DeadChoice(
            reason=reason, error=error, offsets=offsets and _span(offsets), filter=filter, lane=lane, until_ms=until_ms
        )
        return await self._count(self._dead(queue, group, "purge"), choice)

    async def _count(self, path: bytes, body: object = None) -> int:
        return decoded(CountAnswer, await self._send(b"POST", path, body)).count

    # Administration ---------------------------------------------------------------------------------------

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        """Everything that is neither leased nor dead is done for a group; how many messages."""
        return await self._count(self._target("queues", queue, "groups", group, "purge"))

    async def pause(self, queue: str, group: str | None = None) -> None:
        """Hand out nothing more of a queue (or to one group of it); what is leased can still be settled."""
        await self._send(b"POST", self._switch(queue, group, "pause"))

    async def resume(self, queue: str, group: str | None = None) -> None:
        """Undo `pause`."""
        await self._send(b"POST", self._switch(queue, group, "resume"))

    def _switch(self, queue: str, group: str | None, what: str) -> bytes:
        groups = () if group is None else ("groups", group)
        return self._target("queues", queue, *groups, what)

    async def stats(self, queue: str) -> QueueStats:
        """Counts of a queue and its groups."""
        body = await self._get(QueueStatsBody, self._target("queues", queue, "stats"))
        groups = [msgspec.convert(group, GroupStats, from_attributes=True) for group in body.groups]
        fields: dict[str, Any] = msgspec.structs.asdict(body) | {"groups": groups}
        return QueueStats(**fields)

    async def check_ready(self) -> Literal["ready", "buffering"]:
        """Return when the store takes a commit; raise `Unavailable` with the reason when it cannot, or not in 2 s.

        With a spool, publishes are taken while the store is away: then this says that they are buffered.
        """
        answer = await self._channel.send(Request(b"GET", b"/readyz"), NO_RETRY)
        return "buffering" if msgspec.json.decode(answer.body, type=Status).status == "buffering" else "ready"


def _place(after: object) -> str:
    if not isinstance(after, tuple | list) or len(after) != 2:
        raise InvalidArgument(f"after is {after!r}; it must be a page's next: (lane, offset)")
    return f"{after[0]}:{after[1]}"


def _span(offsets: object) -> tuple[int, int]:
    if not isinstance(offsets, tuple | list) or len(offsets) != 2:
        raise InvalidArgument(f"offsets is {offsets!r}; it must be (start, end)")
    return offsets[0], offsets[1]
