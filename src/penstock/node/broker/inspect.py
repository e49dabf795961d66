"""Looking at messages, and at what became of them; dead letters, traces, numbers; moving and emptying a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from penstock.core.filters import parse
from penstock.core.lane import Lane
from penstock.model import (
    BATCH_MESSAGES_MAX,
    DEFAULT_GROUP,
    DEFAULT_NAMESPACE,
    EVENTS_QUEUE,
    INTEGER_MAX,
    PARTITION_CHARACTERS_MAX,
    check_integer,
    check_name,
    check_text,
)
from penstock.model.errors import InvalidArgument
from penstock.model.events import Delivery
from penstock.node.arguments import choice_of, lane_of, place_after
from penstock.node.broker.names import Names
from penstock.node.catalog import Group, Queue
from penstock.node.consume import dead_letters, streams
from penstock.node.consume.dead_letters import DeadMessage, DeadPage, DeadRanges, DeadReason
from penstock.node.consume.streams import Page
from penstock.node.observe import traces
from penstock.node.observe.feed import Watch
from penstock.node.observe.history import HistoryEntry
from penstock.node.observe.stats import QueueStats, queue_stats
from penstock.node.observe.survey import NodeNumbers
from penstock.node.observe.traces import Trace
from penstock.node.spool.spool import SpoolNumbers


class Looking(Names):
    """The part of a broker that looks."""

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
        home = self._queue(queue)
        if sum(value is not None for value in (to, offset, time_ms)) != 1:
            raise InvalidArgument("seek needs one of to='first', to='last', offset= or time_ms=")
        if to not in (None, "first", "last"):
            raise InvalidArgument(f"to is {to!r}; it must be first or last")
        chosen = await self._work_group(home, group)
        for lane_id in home.lanes if lane is None and offset is None else [lane_of(home, lane)]:
            if to is not None:
                place = await self._node.lanes.offset_at(lane_id, "beginning" if to == "first" else "now")
            else:
                place = await self._place(lane_id, offset, time_ms)
            await self._seek(lane_id, chosen, place)

    async def _seek(self, lane_id: int, group: Group, offset: int) -> None:
        def command(lane: Lane) -> asyncio.Future[None]:
            if not lane.first <= offset <= lane.visible_end:
                raise InvalidArgument(f"offset is {offset}; the lane has {lane.first} to {lane.visible_end}")
            lane.groups[group.id].seek(self._node.clock.now_ms(), offset)
            return self._node.commits.changed(lane)

        await (await self._node.lanes.run(lane_id, command))

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
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        check_text(partition, "partition", PARTITION_CHARACTERS_MAX)
        states = ("ready", "leased", "waiting", "dead", "done")
        if state is not None and state not in states:
            raise InvalidArgument(f"state is {state!r}; it must be one of {', '.join(states)}")
        chosen = None
        if group is not None or state is not None:
            chosen = self._group(home, group or DEFAULT_GROUP)
        elif DEFAULT_GROUP in home.groups:
            chosen = home.groups[DEFAULT_GROUP]
        start = after
        if start is None and (lane is not None or offset is not None or time_ms is not None):
            lane_id = lane_of(home, lane)
            start = (lane_id, await self._place(lane_id, offset, time_ms))
        elif start is not None:
            start = place_after(start, home)
        condition = None if filter is None else parse(filter)
        return await streams.browse(
            self._node, home, chosen, start, max, partition=partition, state=state, condition=condition
        )

    def follow_events(
        self, *, queue: str | None = None, group: str | None = None, after: int | None = None, pause: float = 15.0
    ) -> AsyncIterator[list[tuple[int, Delivery]]]:
        """What happens to messages of this namespace, live, each with its offset in `$events`. Of this node's queues.

        From now on, or after an offset. Without an event for `pause` seconds an empty list comes, so that whoever
        passes them on can say that it is still there. Ends when the broker does.
        """
        if self._node.ownership.is_sole:
            self._node.catalog.queue(DEFAULT_NAMESPACE, EVENTS_QUEUE)  # raises where events are not kept
        return self._node.feed.follow(Watch(self._namespace, queue, group), after, pause)

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        """What happened to one message: each hand-out and how it ended, as far back as `$events` is kept."""
        home = self._queue(queue)
        check_integer(offset, "offset", 0, INTEGER_MAX)
        return await self._node.histories.of_message(home, lane_of(home, lane), offset)

    # Traces -----------------------------------------------------------------------------------------------

    async def trace_event(
        self, trace_id: str, name: str, *, detail: str = "", queue: str | None = None, lane: int | None = None,
        offset: int | None = None, consumer: str | None = None,
    ) -> None:  # fmt: skip
        """Note something by its name on a trace's timeline: about a message, where its queue and offset are given.

        The message may be done and gone, but must have been there. Kept for a week.
        """
        self._node.check_open()
        traces.check_trace_id(trace_id)
        check_name(name, "an event's name")
        traces.check_detail(detail)
        by = self.consumer if consumer is None else check_name(consumer, "consumer")
        place: tuple[Queue, int, int] | None = None
        if queue is None or offset is None:
            if any(value is not None for value in (queue, lane, offset)):
                raise InvalidArgument("an event about a message needs queue and offset; name both, or neither")
        else:
            home = self._queue(queue)
            place = (home, lane_of(home, lane), check_integer(offset, "offset", 0, INTEGER_MAX))
        await self._node.traces.event(self._namespace, trace_id, name, detail, by, place)

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """
        self._node.check_open()
        check_integer(max, "max", 1, traces.ENTRIES_MAX)
        return await self._node.traces.read(self._namespace, traces.check_trace_id(trace_id), max)

    # Dead letters -----------------------------------------------------------------------------------------

    async def dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, max: int = 100, reason: str | None = None,
        error: str | None = None, offsets: tuple[int, int] | None = None, filter: str | None = None,
        lane: int | None = None, until_ms: int | None = None,
    ) -> list[DeadMessage]:  # fmt: skip
        """Dead letters of a group with why they died; by reason, text in the error, offsets or a filter.

        Offsets are those of every lane, unless one is named; with `until_ms`, only what died then or before.
        """
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        choice = choice_of(home, reason, error, offsets, filter, lane, until_ms)
        return await dead_letters.dead_list(self._node, home, self._group(home, group), choice, max)

    async def dead_page(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 100
    ) -> DeadPage:
        """All dead letters of a group, page by page: go on with `after=page.next`."""
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        start = (home.lanes[0], 0) if after is None else place_after(after, home)
        return await dead_letters.dead_page(self._node, home, self._group(home, group), start, max)

    async def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10_000
    ) -> DeadRanges:
        """Where the dead letters of a group are and why they died, page by page: go on with `after=page.next`.

        No message is read: a range is what died together, one message or many.
        """
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        start = (home.lanes[0], 0) if after is None else place_after(after, home)
        return await dead_letters.dead_ranges(self._node, home, self._group(home, group), start, max)

    async def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        """Why messages of a group died: how many by reason and error text, the most frequent first."""
        home = self._queue(queue)
        return await dead_letters.dead_reasons(self._node, home, self._group(home, group))

    async def redrive(
        self, queue: str, group: str = DEFAULT_GROUP, *, reason: str | None = None, error: str | None = None,
        offsets: tuple[int, int] | None = None, filter: str | None = None, lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Give the chosen dead letters to their group again, with all attempts; how many."""
        home = self._queue(queue)
        choice = choice_of(home, reason, error, offsets, filter, lane, until_ms)
        return await dead_letters.redrive(self._node, home, self._group(home, group), choice)

    async def purge_dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, reason: str | None = None, error: str | None = None,
        offsets: tuple[int, int] | None = None, filter: str | None = None, lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Let the chosen dead letters go for good; how many."""
        home = self._queue(queue)
        choice = choice_of(home, reason, error, offsets, filter, lane, until_ms)
        return await dead_letters.purge(self._node, home, self._group(home, group), choice)

    # Administration ---------------------------------------------------------------------------------------

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        """Everything that is neither leased nor dead is done for a group; how many messages."""
        home = self._queue(queue)
        chosen = await self._work_group(home, group)
        count = 0
        for lane in await self._node.lanes.together(home.lanes):
            count += lane.work(chosen.id).purge(self._node.clock.now_ms())
            self._node.commits.touch(lane)
        await self._node.commits.wait()
        return count

    async def stats(self, queue: str) -> QueueStats:
        """Counts of a queue and its groups."""
        home = self._queue(queue)
        return queue_stats(home, await self._node.lanes.together(home.lanes), self._node.clock.now_ms())

    async def measures(self, *, queues_max: int = 1_000) -> NodeNumbers:
        """The whole node's numbers, over all namespaces: what `/metrics` shows. Loads no queue, and never waits long.

        With more than `queues_max` queues in memory, those with the largest lag come one by one, the rest as a sum.
        """
        check_integer(queues_max, "queues_max", 0, INTEGER_MAX)
        return await self._node.survey.numbers(queues_max)

    async def check_ready(self) -> Literal["ready", "buffering"]:
        """Return when the store takes a commit; raise `Unavailable` with the reason when it cannot, or not in 2 s.

        With a spool, publishes are taken while the store is away: then this says that they are buffered.
        """
        return await self._node.readiness.check()

    def spool(self) -> SpoolNumbers | None:
        """What waits in the node's spool for the store to be back; None of a node without one."""
        return self._node.spool.numbers()
