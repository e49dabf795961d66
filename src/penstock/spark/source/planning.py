"""From options, a position and the lanes' ends to what is read next: pure functions over numbers.

Which offsets a read begins and ends with, how much of a backlog goes into one batch, how lanes are cut into slices, and
which of the wanted messages are no longer there. Knows no server and no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from penstock.api.scan import LanePlace
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.source.offsets import Position, QueuePosition
from penstock.spark.source.options import EARLIEST, LATEST, Bound

SLICE_ROWS: Final = 250_000
"""Rows of a slice: a lane's range is cut into slices, so that a large one keeps several cores busy."""


class QueueHead(msgspec.Struct, frozen=True):
    """What a queue holds now, by lane."""

    id: int
    lanes: dict[int, LanePlace]


Heads = dict[str, QueueHead]
LaneKey = tuple[str, int]


class LaneSlice(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of one lane: what one task reads, or a job goes through."""

    queue: str
    queue_id: int
    lane: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.start


class Gap(msgspec.Struct, frozen=True):
    """Messages that a read wanted and that cannot be had."""

    queue: str
    lane: int | None
    start: int | None
    end: int | None
    why: str
    """What happened, as the end of a sentence."""

    @property
    def lost(self) -> int:
        """How many, as far as it is known."""
        return 0 if self.start is None or self.end is None else max(0, self.end - self.start)

    def __str__(self) -> str:
        where = f"queue {self.queue!r}" if self.lane is None else f"lane {self.lane} of queue {self.queue!r}"
        if self.start is None:
            return f"{where}: {self.why}"
        span = f"offsets from {self.start} on" if self.end is None else f"offsets {self.start} to {self.end - 1}"
        return f"{where}, {span}: {self.why}"


# Where a read begins and ends ----------------------------------------------------------------------------


def placed(place: Bound, heads: Heads) -> Position:
    """A place as an offset for each lane of each queue. With times, the heads carry what is there at them."""
    check_lanes(place, heads)
    return {
        name: QueuePosition(head.id, {lane: _offset(place, name, one) for lane, one in head.lanes.items()})
        for name, head in heads.items()
    }


def _offset(place: Bound, queue: str, head: LanePlace) -> int:
    if place.has_times:
        at_time = head.end if head.at_time is None else min(head.at_time, head.end)
        if at_time == head.end and place.needs_match:
            raise NotFound(
                f"no message of lane {head.lane} of queue {queue!r} was published at the time that option "
                f"{place.option} says ({place.text}) or later, and startingOffsetsByTimestampStrategy is error; "
                "latest would begin with what comes next"
            )
        return at_time
    wanted = place.everywhere if place.offsets is None else place.offsets[queue][head.lane]
    if wanted is None or wanted == LATEST:
        return head.end
    return head.first if wanted == EARLIEST else wanted


def check_lanes(place: Bound, heads: Heads) -> None:
    """Every lane of every queue, and no others, where a place names them: what is left out would be a guess."""
    named = place.offsets if place.times is None else place.times
    if named is None:
        return
    option, hint = place.option, "" if place.times else "; -2 is its earliest offset, -1 its latest"
    for queue, lanes in named.items():
        if queue not in heads:
            raise InvalidArgument(f"{option} names queue {queue!r}, which is not among the queues that are read")
        if strange := sorted(set(lanes) - set(heads[queue].lanes)):
            have = ", ".join(map(str, sorted(heads[queue].lanes)))
            raise InvalidArgument(
                f"{option} names lane {strange[0]} of queue {queue!r}, of which lanes {have} are read"
            )
    for queue, head in heads.items():
        if missing := sorted(set(head.lanes) - set(named.get(queue, {}))):
            raise InvalidArgument(
                f"{option} says nothing of lane {missing[0]} of queue {queue!r}: name every lane{hint}"
            )


def checked_range(start: Position, end: Position) -> None:
    """Raise where a batch read would end before it begins."""
    for queue, lane, offset in _lanes(start):
        if end[queue].lanes[lane] < offset:
            raise InvalidArgument(
                f"the read of lane {lane} of queue {queue!r} would start at offset {offset} and end at "
                f"{end[queue].lanes[lane]}: make startingOffsets or startingTimestamp earlier than the end"
            )


# What is no longer there ---------------------------------------------------------------------------------


def mended(start: Position, heads: Heads) -> tuple[Position, list[Gap]]:
    """A position that can be read from, for all queues there are now, and what is lost on the way to it.

    Queues and lanes that are new begin at the earliest offset. A queue that is gone, or that was deleted and declared
    again, a range that retention removed, and a lane that ends before the position are gaps.
    """
    gaps: list[Gap] = []
    position: Position = {}
    for name, head in heads.items():
        known = start.get(name)
        if known is not None and known.id != head.id:
            gaps.append(_replaced(name, known, head))
            known = QueuePosition(head.id, {}, known.lost)
        lanes: dict[int, int] = {}
        for lane, lane_head in head.lanes.items():
            offset = lane_head.first if known is None else known.lanes.get(lane, lane_head.first)
            lanes[lane] = min(max(offset, lane_head.first), lane_head.end)
            if gap := _lane_gap(name, offset, lane_head):
                gaps.append(gap)
        gone = () if known is None else sorted(set(known.lanes) - set(head.lanes))
        gaps += [Gap(name, lane, None, None, "the queue has no such lane any more") for lane in gone]
        position[name] = QueuePosition(head.id, lanes, 0 if known is None else known.lost)
    gaps += [_missing(name, start[name]) for name in sorted(set(start) - set(heads))]
    return position, gaps


def _lane_gap(queue: str, offset: int, head: LanePlace) -> Gap | None:
    if offset < head.first:
        why = f"removed by retention; the lane begins at offset {head.first} now"
        return Gap(queue, head.lane, offset, head.first, why)
    if offset > head.end:
        why = (
            f"the lane ends at offset {head.end}, before the position at which the read is to go on; is this the "
            "checkpoint of another queue or server, or was the server's store set back to an older state?"
        )
        return Gap(queue, head.lane, offset, None, why)
    return None


def _replaced(queue: str, known: QueuePosition, head: QueueHead) -> Gap:
    why = (
        f"it was deleted and declared again since (queue_id {known.id} then, {head.id} now), or the checkpoint is of "
        "another server; what was not read of the old one is gone"
    )
    return Gap(queue, None, None, None, why)


def _missing(queue: str, known: QueuePosition) -> Gap:
    why = (
        f"it is in the checkpoint (queue_id {known.id}) and is not read any more: it was deleted, or the option queue "
        "does not choose it"
    )
    return Gap(queue, None, None, None, why)


def clipped(end: Position, heads: Heads) -> tuple[Position, list[Gap]]:
    """An end that is not beyond what is there, and what is missing of the wanted one."""
    gaps: list[Gap] = []
    position: Position = {}
    for name, queue in end.items():
        lanes: dict[int, int] = {}
        for lane, offset in queue.lanes.items():
            head = heads[name].lanes[lane]
            lanes[lane] = min(offset, head.end)
            if offset > head.end:
                why = f"the read is to end at offset {offset}, and the lane ends at {head.end}"
                gaps.append(Gap(name, lane, head.end, offset, why))
        position[name] = QueuePosition(queue.id, lanes)
    return position, gaps


def counted(position: Position, gaps: Iterable[Gap]) -> Position:
    """The position with the gaps' messages added to what its queues have lost."""
    result = dict(position)
    for gap in gaps:
        if gap.lost and gap.queue in result:
            queue = result[gap.queue]
            result[gap.queue] = msgspec.structs.replace(queue, lost=queue.lost + gap.lost)
    return result


def readable(start: Position, end: Position, heads: Heads) -> tuple[Position, list[Gap]]:
    """Where the slices of a planned batch begin, and what of the batch is gone since it was planned.

    What is in `end` and not in `start`, or under another id, was entered by this batch: nothing of it is read.
    """
    gaps: list[Gap] = []
    begin: Position = {}
    for name, queue in end.items():
        known = start.get(name)
        same = known is not None and known.id == queue.id
        head = heads.get(name)
        lanes: dict[int, int] = {}
        for lane, stop in queue.lanes.items():
            offset = known.lanes.get(lane, stop) if known is not None and same else stop
            gap = _batch_gap(name, lane, offset, stop, queue.id, head) if offset < stop else None
            lanes[lane] = offset if gap is None else offset + gap.lost
            gaps += [] if gap is None else [gap]
        begin[name] = QueuePosition(queue.id, lanes)
    return begin, gaps


def _batch_gap(queue: str, lane: int, start: int, end: int, queue_id: int, head: QueueHead | None) -> Gap | None:
    if head is None or head.id != queue_id:
        return Gap(queue, lane, start, end, "the queue was deleted since")
    lane_head = head.lanes.get(lane)
    if lane_head is None:
        return Gap(queue, lane, start, end, "the queue has no such lane any more")
    if start < lane_head.first:
        why = f"removed by retention; the lane begins at offset {lane_head.first} now"
        return Gap(queue, lane, start, min(end, lane_head.first), why)
    return None


# How much goes into one batch ----------------------------------------------------------------------------


def backlog(start: Position, end: Position) -> dict[LaneKey, int]:
    """The rows between two positions, of each lane that has any."""
    found: dict[LaneKey, int] = {}
    for queue, lane, offset in _lanes(start):
        rows = end[queue].lanes.get(lane, offset) - offset if queue in end else 0
        if rows > 0:
            found[queue, lane] = rows
    return found


def shares(amounts: Mapping[LaneKey, int], most: int) -> dict[LaneKey, int]:
    """At most `most` in all: half of it evenly, so that no short lane waits for long ones, the other half by amount."""
    if sum(amounts.values()) <= most:
        return dict(amounts)
    even = most // (2 * len(amounts))
    given = {key: min(amount, even) for key, amount in amounts.items()}
    more = _in_proportion({key: amount - given[key] for key, amount in amounts.items()}, most - sum(given.values()))
    return {key: given[key] + more[key] for key in amounts}


def _in_proportion(amounts: Mapping[LaneKey, int], most: int) -> dict[LaneKey, int]:
    """Each in proportion to its amount; what rounding leaves goes to the largest remainders."""
    total = sum(amounts.values())
    given = {key: amount * most // total for key, amount in amounts.items()}
    left = most - sum(given.values())
    by_remainder = sorted(amounts, key=lambda key: (-(amounts[key] * most % total), key))
    for key in by_remainder[:left]:
        given[key] += 1
    return given


def estimated_bytes(rows: Mapping[LaneKey, int], heads: Heads) -> dict[LaneKey, int]:
    """The bytes of a backlog, as if a lane's messages were all of one size."""
    found: dict[LaneKey, int] = {}
    for (queue, lane), count in rows.items():
        head = heads[queue].lanes[lane]
        found[queue, lane] = head.bytes * count // max(1, head.end - head.first) + 1
    return found


def advanced(start: Position, rows: Mapping[LaneKey, int]) -> Position:
    """The position `rows` further on."""
    return {
        name: msgspec.structs.replace(
            queue, lanes={lane: offset + rows.get((name, lane), 0) for lane, offset in queue.lanes.items()}
        )
        for name, queue in start.items()
    }


def ends(heads: Heads) -> Position:
    """The position after everything that is there."""
    return {
        name: QueuePosition(head.id, {lane: one.end for lane, one in head.lanes.items()})
        for name, head in heads.items()
    }


def until(position: Position, target: Position | None) -> Position:
    """The position, or the target where that is nearer; a queue that the target does not know has no end yet."""
    if target is None:
        return position
    found: Position = {}
    for name, queue in position.items():
        limit = target.get(name)
        if limit is not None and limit.id == queue.id:
            lanes = {lane: min(offset, limit.lanes.get(lane, 0)) for lane, offset in queue.lanes.items()}
            found[name] = msgspec.structs.replace(queue, lanes=lanes)
    return found


# Slices --------------------------------------------------------------------------------------------------


def sliced(start: Position, end: Position, partitions_min: int | None, slice_rows: int = SLICE_ROWS) -> list[LaneSlice]:
    """One slice a lane, or several: none above `slice_rows`, and at least `partitions_min` where there are rows."""
    rows = backlog(start, end)
    total = sum(rows.values())
    found: list[LaneSlice] = []
    for (queue, lane), count in sorted(rows.items()):
        pieces = -(-count // slice_rows)
        if partitions_min is not None:
            pieces = max(pieces, -(-count * partitions_min // total))
        begin = start[queue].lanes[lane]
        bounds = [begin + count * piece // min(pieces, count) for piece in range(min(pieces, count) + 1)]
        found += [LaneSlice(queue, end[queue].id, lane, low, high) for low, high in pairwise(bounds)]
    return found


def _lanes(position: Position) -> Iterable[tuple[str, int, int]]:
    for name in sorted(position):
        for lane in sorted(position[name].lanes):
            yield name, lane, position[name].lanes[lane]
