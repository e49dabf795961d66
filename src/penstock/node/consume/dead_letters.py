"""Dead letters of one group: list, redrive, purge; by offset, reason, error text or a condition on metadata."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from penstock.api.dead_letters import DeadList, DeadMessage, DeadPage, DeadRange, DeadRanges, DeadReason
from penstock.api.results import DamagedRange
from penstock.api.ticket import Ticket
from penstock.core.filters import Filter
from penstock.core.group.claim import CLAIM_BYTES_MAX
from penstock.core.group.entries import Entry
from penstock.core.lane import Lane
from penstock.model.rows import DeadRow
from penstock.node.catalog import Group, Queue
from penstock.node.clock import Clock
from penstock.node.commit.commits import Commits
from penstock.node.consume.bodies import Bodies
from penstock.node.consume.matching import Matching
from penstock.node.lanes import LaneSet

READ_AT_ONCE: Final = 1_000
RANGES_AT_ONCE: Final = 1_000
"""Dead ranges that are redriven or purged in one step."""


class Choice(NamedTuple):
    """Which dead letters; None means any."""

    reason: str | None = None
    error: str | None = None
    """Text that the error contains."""
    offsets: tuple[int, int] | None = None
    """[start, end)"""
    condition: Filter | None = None
    lane: int | None = None
    """The id of the only lane that is looked at."""
    until_ms: int | None = None
    """They died then or before."""

    def rows(self, lane: Lane, group: Group) -> list[DeadRow]:
        if self.lane is not None and lane.id != self.lane:
            return []
        start, end = self.offsets or (0, lane.visible_end)
        return [
            row
            for row in lane.work(group.id).dead.overlapping(start, min(end, lane.visible_end))
            if (self.reason is None or row.reason == self.reason)
            and (self.error is None or self.error in row.error)
            and (self.until_ms is None or row.dead_ms <= self.until_ms)
        ]


@dataclass(eq=False, repr=False)
class DeadLetters:
    """Dead letters of every group."""

    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _bodies: Bodies

    async def listed(self, queue: Queue, group: Group, choice: Choice, most: int) -> DeadList:
        """Up to `most` dead letters by lane and offset, or as many as make one answer."""
        found = DeadList()
        left = CLAIM_BYTES_MAX
        for lane in await self._lanes.together(queue.lanes):
            rows = choice.rows(lane, group)
            with _kept(lane, rows):
                for row in rows:
                    start = row.start
                    while start < row.end:
                        some, start, damaged = await self._read(queue, lane, row, start, choice)
                        left -= _bytes_of(some)
                        if found and left < 0:
                            return found
                        found += some
                        found.damaged += damaged
                        if len(found) >= most:
                            return _first_of(found, most)
                        if len(found.damaged) >= most:
                            return found
        return found

    async def page(self, queue: Queue, group: Group, start: tuple[int, int], most: int) -> DeadPage:
        """The dead letters from a (lane, offset) on, up to `most` of them, or as many as make one answer."""
        found: list[DeadMessage] = []
        damaged: list[DamagedRange] = []
        left = CLAIM_BYTES_MAX
        lane_id, offset = start
        for index in range(queue.index_of(lane_id), len(queue.lanes)):
            lane = await self._lanes.run(queue.lanes[index], lambda lane: lane)
            rows = Choice(offsets=(offset, lane.visible_end)).rows(lane, group)
            with _kept(lane, rows):
                for row in rows:
                    begin = max(row.start, offset)
                    while begin < row.end:
                        if len(found) >= most or len(damaged) >= most:
                            return DeadPage(found, (index, begin), damaged)
                        end = min(row.end, begin + most - len(found))
                        part = msgspec.structs.replace(row, end=end)
                        some, following, gaps = await self._read(queue, lane, part, begin, Choice())
                        left -= _bytes_of(some)
                        if found and left < 0:
                            return DeadPage(found, (index, begin), damaged)
                        found += some
                        damaged += gaps
                        begin = following
            offset = 0
        return DeadPage(found, None, damaged)

    async def ranges(self, queue: Queue, group: Group, start: tuple[int, int], most: int) -> DeadRanges:
        """Where the dead letters are from a (lane, offset) on, up to `most` ranges. No message is read."""
        found: list[DeadRange] = []
        lane_id, offset = start
        for index in range(queue.index_of(lane_id), len(queue.lanes)):
            lane = await self._lanes.run(queue.lanes[index], lambda lane: lane)
            for row in Choice(offsets=(offset, lane.visible_end)).rows(lane, group):
                if len(found) >= most:
                    return DeadRanges(found, (index, row.start))
                why = row.reason, row.error, row.attempts, row.consumer, row.dead_ms
                found.append(DeadRange(index, row.start, row.end, *why))
            offset = 0
        return DeadRanges(found, None)

    async def _read(
        self, queue: Queue, lane: Lane, row: DeadRow, start: int, choice: Choice
    ) -> tuple[list[DeadMessage], int, list[DamagedRange]]:
        """Some dead letters of a row from `start` on, those that were chosen; where to go on; what is damaged."""
        end = min(row.end, start + READ_AT_ONCE)
        found = await self._bodies.slices(lane, [Entry(start, end, row.attempts)])
        slices, gaps = self._bodies.sifted(lane, found)
        index = queue.index_of(lane.id)
        matching = Matching(choice.condition)
        dead = [
            DeadMessage(received, row.reason, row.error, row.attempts, row.consumer, row.dead_ms)
            for part in slices
            for received in part.messages(queue.name, index)
            if await matching.matches(received.message)
        ]
        damaged = [DamagedRange(index, low, min(high, row.end)) for low, high in gaps]
        last = found[-1]
        return dead, max(last.offset + last.stop - last.start, *[gap.end for gap in damaged], 0), damaged

    async def reasons(self, queue: Queue, group: Group) -> list[DeadReason]:
        """Why messages of a group died, the most frequent reason first. No message is read."""
        found: dict[tuple[str, str], DeadReason] = {}
        for lane in await self._lanes.together(queue.lanes):
            for row in Choice().rows(lane, group):
                known = found.get((row.reason, row.error))
                count, oldest_ms, newest_ms = row.end - row.start, row.dead_ms, row.dead_ms
                if known is not None:
                    count += known.count
                    oldest_ms, newest_ms = min(oldest_ms, known.oldest_ms), max(newest_ms, known.newest_ms)
                found[row.reason, row.error] = DeadReason(row.reason, row.error, count, oldest_ms, newest_ms)
        return sorted(found.values(), key=lambda reason: (-reason.count, reason.reason, reason.error))

    async def redrive(self, queue: Queue, group: Group, choice: Choice) -> int:
        """Give dead letters to their group again, and to no other; how many."""
        return await self._each_lane(queue, group, choice, purge=False)

    async def purge(self, queue: Queue, group: Group, choice: Choice) -> int:
        """Let dead letters go for good; how many."""
        return await self._each_lane(queue, group, choice, purge=True)

    async def _each_lane(self, queue: Queue, group: Group, choice: Choice, *, purge: bool) -> int:
        """Some ranges at a time, with others' work between: what fails halfway is done so far."""
        count = 0
        for lane_id in queue.lanes:
            chosen = await self._chosen_ranges(queue, group, lane_id, choice)
            for first in range(0, len(chosen), RANGES_AT_ONCE):

                def command(
                    lane: Lane, ranges: list[tuple[int, int]] = chosen[first : first + RANGES_AT_ONCE]
                ) -> tuple[int, Ticket[None]]:
                    work = lane.work(group.id)
                    now_ms = self._clock.now_ms()
                    done = work.purge_dead(now_ms, ranges) if purge else work.redrive(now_ms, ranges)
                    return done, self._commits.commit(lane)

                done, committed = await self._lanes.run(lane_id, command)
                await committed
                count += done
        return count

    async def _chosen_ranges(self, queue: Queue, group: Group, lane_id: int, choice: Choice) -> list[tuple[int, int]]:
        lane = await self._lanes.run(lane_id, lambda lane: lane)
        rows = choice.rows(lane, group)
        if choice.condition is None:
            return [(row.start, row.end) for row in rows]
        ranges: list[tuple[int, int]] = []
        with _kept(lane, rows):
            for row in rows:
                start = row.start
                while start < row.end:
                    found, start, _ = await self._read(queue, lane, row, start, choice)
                    ranges += [(dead.received.offset, dead.received.offset + 1) for dead in found]
        return ranges


def _kept(lane: Lane, rows: Sequence[DeadRow]) -> AbstractContextManager[None]:
    """Keep the messages of rows while they are read: others may purge or redrive them meanwhile."""
    return lane.pinned(min(row.start for row in rows)) if rows else nullcontext()


def _first_of(found: DeadList, most: int) -> DeadList:
    """The first of them, and what was passed over up to there."""
    kept = DeadList(found[:most])
    last = kept[-1].received
    kept.damaged = [gap for gap in found.damaged if (gap.lane, gap.start) < (last.lane, last.offset)]
    return kept


def _bytes_of(found: Iterable[DeadMessage]) -> int:
    return sum([len(dead.received.payload) for dead in found])
