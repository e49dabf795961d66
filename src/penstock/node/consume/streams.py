"""Reading without leases: stream groups, reads by offset, and browsing with the state a group gives each message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from penstock.api.inspect import Page
from penstock.api.results import DamagedRange, Received, Slice, StreamRead
from penstock.api.ticket import Ticket
from penstock.core.filters import Filter
from penstock.core.group.claim import CLAIM_BYTES_MAX
from penstock.core.group.entries import Entry
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.model.errors import OffsetGone, StoreCorrupt, Unavailable
from penstock.node.catalog import Group, Queue
from penstock.node.clock import Clock
from penstock.node.commit.commits import Commits
from penstock.node.consume.bodies import Bodies
from penstock.node.consume.matching import Matching
from penstock.node.consume.waiters import Waiters
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.counters import Counters

BROWSE_SCAN_MAX: Final = 10_000
BROWSE_WORK_MAX: Final = 2_000_000
"""What a page may spend on its condition, in characters that a LIKE goes through: about half a second at the most."""
FILTERED_AT_ONCE: Final = 200
"""Messages that a page with a condition reads at a time."""
DAMAGED_AT_ONCE: Final = 100
"""Damaged ranges that one read passes over to find a message behind them."""


class Reader(NamedTuple):
    """Who reads a stream group."""

    name: str
    turn: str | None = None
    """This read alone."""
    lost: Sequence[str] = ()
    """Reads under the same name whose answers did not arrive."""


@dataclass(eq=False, repr=False)
class Streams:
    """Reads of stream groups, by offset, and browsing."""

    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _lifecycle: Lifecycle
    _waiters: Waiters
    _bodies: Bodies
    _counters: Counters

    # Stream groups ---------------------------------------------------------------------------------------

    async def read_group(self, queue: Queue, group: Group, reader: Reader, most: int, wait_ms: int) -> StreamRead:
        """The next messages for a stream group, waiting up to `wait_ms` for the first."""
        deadline_ms = self._clock.now_ms() + wait_ms
        if reader.lost:
            await self._give_up(queue, group, reader)
        change: asyncio.Future[None] | None = None
        try:
            while True:
                result = await self._read_lanes(queue, group, reader, most)
                if result is not None:
                    return result
                left_ms = deadline_ms - self._clock.now_ms()
                if left_ms <= 0 or self._lifecycle.draining:
                    return await self._nothing(queue, group)
                if change is None:
                    change = self._waiters.listen(queue)  # and look once more
                    continue
                await asyncio.wait([change], timeout=left_ms / 1000.0)
                if change.done():
                    heard, change = change, None
                    heard.result()
        finally:
            if change is not None:
                self._waiters.unlisten(queue, change)

    async def _give_up(self, queue: Queue, group: Group, reader: Reader) -> None:
        """What reads were given whose answers were lost comes again, and those that have not come yet get nothing."""
        for lane_id in queue.lanes:
            with suppress(StoreCorrupt):  # nothing of that lane was given to anybody
                await self._lanes.run(lane_id, lambda lane: lane.stream(group.id).give_up(reader.name, reader.lost))

    async def _nothing(self, queue: Queue, group: Group) -> StreamRead:
        """An empty answer: where the group stands in the first lane that can be used."""
        for index, lane_id in enumerate(queue.lanes):
            try:
                next_offset = await self._lanes.run(lane_id, lambda lane: lane.stream(group.id).next)
            except StoreCorrupt:
                if index + 1 == len(queue.lanes):
                    raise
            else:
                return StreamRead(queue.name, index, [], next_offset)
        raise AssertionError("a queue has a lane")

    async def _read_lanes(self, queue: Queue, group: Group, reader: Reader, most: int) -> StreamRead | None:
        """From the next lane that has something; those that are damaged are left out."""
        first = queue.rotation  # others turn it on while this one waits
        broken = 0
        for step in range(len(queue.lanes)):
            index = (first + step) % len(queue.lanes)
            try:
                result = await self._read_lane(queue, group, queue.lanes[index], reader, most)
            except StoreCorrupt:
                broken += 1
                if broken == len(queue.lanes):
                    raise
                continue
            if result is not None:
                queue.rotation = (index + 1) % len(queue.lanes)
                return result
        return None

    async def _read_lane(
        self, queue: Queue, group: Group, lane_id: int, reader: Reader, most: int
    ) -> StreamRead | None:
        consumer = reader.name

        def command(lane: Lane) -> tuple[Lane, list[tuple[int, int]], int, Ticket[None]]:
            stream = lane.stream(group.id)
            if reader.turn in stream.given_up:
                raise Unavailable(f"the read {reader.turn!r} was given up by its consumer, which has read again since")
            ranges = stream.read(self._clock.now_ms(), most, consumer, reader.turn)
            if ranges:
                lane.pin(ranges[0][0])
            return lane, ranges, stream.next, self._commits.commit(lane)

        lane, ranges, next_offset, committed = await self._lanes.run(lane_id, command)
        if not ranges:
            await committed
            return None
        try:
            found = await self._bodies.slices(lane, [Entry(low, high) for low, high in ranges], ahead=True)
            end = _end_of(found)
            if end < ranges[-1][1]:
                lane.stream(group.id).unread(consumer, end)
                next_offset = end
            slices, gaps = self._bodies.sifted(lane, found)
            if gaps and gaps[-1][1] > end:
                lane.stream(group.id).pass_over(consumer, *gaps[-1])
                next_offset = max(next_offset, gaps[-1][1])
            await committed
        except BaseException:
            # Nobody saw them: the next read must not take them for processed.
            lane.stream(group.id).unread(consumer, ranges[0][0])
            raise
        finally:
            lane.unpin(ranges[0][0])
        read = _with_primary(queue, lane, slices, next_offset, gaps)
        self._counters.read(group.id, len(read), exists=queue.group_by_id(group.id) is not None)
        return read

    async def commit_group(self, group: Group, lane_id: int, offset: int, *, only_forward: bool = False) -> None:
        """Everything below the offset is processed by a stream group."""

        def command(lane: Lane) -> Ticket[None]:
            stream = lane.stream(group.id)
            if not only_forward or offset > stream.committed:
                stream.commit(self._clock.now_ms(), offset)
            return self._commits.commit(lane)

        await (await self._lanes.run(lane_id, command))

    # Reads by offset -------------------------------------------------------------------------------------

    async def read_offsets(self, queue: Queue, lane_id: int, start: int, most: int, wait_ms: int = 0) -> StreamRead:
        """Messages from an offset on, as they were written, waiting up to `wait_ms` for the first. Needs no group.

        Fewer than there are where these make one answer. What is damaged is passed over, up to the first message behind
        it.
        """
        lane = await self._lanes.run(lane_id, lambda lane: lane)
        if wait_ms and start >= lane.visible_end:
            lane = await self._grown(queue, lane_id, start, wait_ms)
        if start < lane.first:
            index = queue.index_of(lane_id)
            raise OffsetGone(f"offset {start} of queue {queue.name!r} is gone; its lane {index} begins at {lane.first}")
        slices: list[Slice] = []
        damaged: list[tuple[int, int]] = []
        while not slices and start < lane.visible_end and len(damaged) < DAMAGED_AT_ONCE:
            with lane.pinned(start):
                found = await self._bodies.slices(lane, [Entry(start, min(start + most, lane.visible_end))])
            slices, gaps = self._bodies.sifted(lane, found)
            start = max(_end_of(found), gaps[-1][1] if gaps else 0)
            damaged += gaps
        return _with_primary(queue, lane, slices, start, damaged)

    async def _grown(self, queue: Queue, lane_id: int, start: int, wait_ms: int) -> Lane:
        """The lane, once it has a message at an offset, or the time is over."""
        deadline_ms = self._clock.now_ms() + wait_ms
        while True:
            change = self._waiters.listen(queue)
            try:
                lane = await self._lanes.run(lane_id, lambda lane: lane)
                left_ms = deadline_ms - self._clock.now_ms()
                if start < lane.visible_end or left_ms <= 0 or self._lifecycle.draining:
                    return lane
                await asyncio.wait([change], timeout=left_ms / 1000.0)
                if change.done():
                    change.result()
            finally:
                self._waiters.unlisten(queue, change)

    # Browse ----------------------------------------------------------------------------------------------

    async def browse(
        self,
        queue: Queue,
        group: Group | None,
        start: tuple[int, int] | None,
        most: int,
        *,
        partition: str | None,
        state: str | None,
        condition: Filter | None,
    ) -> Page:
        """Look at messages without touching them, lane after lane; reads a bounded number of them a call.

        A page has about CLAIM_BYTES_MAX of payloads at most, but goes on behind one message at least. It also ends
        where enough work was spent on the condition.
        """
        found: list[Received] = []
        damaged: list[DamagedRange] = []
        scanned = size = 0
        matching = Matching(condition)
        at_once = min(most, 1_000 if condition is None else FILTERED_AT_ONCE)
        lane_id, offset = start or (queue.lanes[0], 0)
        while True:
            lane = await self._lanes.run(lane_id, lambda lane: lane)
            offset = max(offset, lane.first)
            end = min(offset + at_once, lane.visible_end)
            if offset < end:
                read = await self.read_offsets(queue, lane_id, offset, end - offset)
                chosen, looked_at = await _chosen(lane, group, read.messages, partition, state, matching)
                size += sum([len(received.payload) for received in chosen])
                if found and size > CLAIM_BYTES_MAX:
                    return Page(found, (queue.index_of(lane_id), offset), damaged)
                found += chosen
                scanned += looked_at + len(read.damaged)
                offset = read.messages[looked_at].offset if looked_at < len(read.messages) else read.next_offset
                damaged += [gap for gap in read.damaged if gap.start < offset]
                if offset < end:
                    return Page(found, (queue.index_of(lane_id), offset), damaged)
            if offset >= lane.visible_end:
                following = queue.index_of(lane_id) + 1
                if following == len(queue.lanes):
                    return Page(found, None, damaged)
                lane_id, offset = queue.lanes[following], 0
            if len(found) >= most or scanned >= BROWSE_SCAN_MAX or matching.spent >= BROWSE_WORK_MAX:
                return Page(found, (queue.index_of(lane_id), offset), damaged)


def _end_of(slices: Sequence[Slice]) -> int:
    """The offset behind the last message of slices."""
    last = slices[-1]
    return last.offset + last.stop - last.start


def _with_primary(
    queue: Queue, lane: Lane, slices: list[Slice], next_offset: int, gaps: Iterable[tuple[int, int]]
) -> StreamRead:
    """Say what the primary group is done with."""
    index = queue.index_of(lane.id)
    damaged = [DamagedRange(index, *gap) for gap in gaps]
    primary = queue.groups.get(queue.config.primary_group or "")
    group = None if primary is None else lane.groups.get(primary.id)
    if not isinstance(group, WorkGroup):
        return StreamRead(queue.name, index, slices, next_offset, damaged=damaged)
    done: list[bool] = []
    for part in slices:
        end = part.offset + part.stop - part.start
        open_ranges = group.states(part.offset, end)
        done += [_state_at(open_ranges, offset)[0] == "done" for offset in range(part.offset, end)]
    return StreamRead(queue.name, index, slices, next_offset, group.watermark(), done, damaged)


def _state_at(ranges: Sequence[tuple[int, int, str, int]], offset: int) -> tuple[str, int]:
    """(state, attempts) of an offset, done where no range has it."""
    for start, end, state, attempts in ranges:
        if start <= offset < end:
            return state, attempts
    return "done", 0


async def _chosen(
    lane: Lane,
    group: Group | None,
    messages: list[Received],
    partition: str | None,
    state: str | None,
    matching: Matching,
) -> tuple[list[Received], int]:
    """Those that match, each with its state; how many were looked at before the work was enough."""
    work = None if group is None else lane.groups.get(group.id)
    ranges = None
    if messages and isinstance(work, WorkGroup):
        ranges = work.states(messages[0].offset, messages[-1].offset + 1)
    chosen: list[Received] = []
    for index, received in enumerate(messages):
        if matching.spent >= BROWSE_WORK_MAX:
            return chosen, index
        if partition is not None and received.message.partition != partition:
            continue
        if not await matching.matches(received.message):
            continue
        if ranges is not None:
            its_state, attempts = _state_at(ranges, received.offset)
            if state is not None and its_state != state:
                continue
            received = msgspec.structs.replace(received, state=its_state, attempt=attempts)
        chosen.append(received)
    return chosen, len(messages)
