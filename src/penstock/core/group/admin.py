"""Administration of a work group: seek, purge, redrive, and dropping the oldest when a queue is full."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.group.entries import Entry, count_of, merged, union
from penstock.core.group.state import WorkState
from penstock.core.group.walk import Walk
from penstock.core.log import Missing
from penstock.model.work import Budget


def seek(group: WorkState, now_ms: int, offset: int) -> None:
    """Everything below the offset is done (what is dead stays dead), everything from it on is new again.

    What retention has removed stays removed: the offset is at least the first that is kept.
    """
    offset = min(max(offset, group.lane.first), group.lane.end)
    group.waiting.clear()
    for lease in list(group.leases.by_id.values()):
        group.unlock(group.leases.take_all(lease))
    group.dead.take(offset, max(group.next, offset))
    group.events.add("sought", offset, max(offset, group.next), now_ms)
    group.move_to(offset)


def purge(group: WorkState, now_ms: int) -> int:
    """Make everything done that is not leased or dead; how many messages that were."""
    group.lane.mark(group)
    purged, visible_end = group.waiting.clear(), group.lane.visible_end
    count = count_of(purged) + max(0, visible_end - group.next)
    for entry in purged:
        group.events.add("purged", entry.start, entry.end, now_ms)
    if visible_end > group.next:
        group.events.add("purged", group.next, visible_end, now_ms)
        group.move_to(visible_end)
    return count


# Dead letters ---------------------------------------------------------------------------------------------


def redrive(group: WorkState, now_ms: int, ranges: Sequence[tuple[int, int]]) -> int:
    """Let dead letters in these ranges wait again, with no attempt spent; how many.

    Raises `Missing` where heads are needed to know a partition or priority. What was redriven until then stays so and
    is counted by the next call: dead letters may lie in more batches than fit into memory. Messages that died of
    overflow before their commit stay dead until it is durable: nobody may see them yet.
    """
    group.lane.mark(group)
    for start, end in union((start, min(end, group.lane.visible_end)) for start, end in ranges):
        entries, known_end = _anew(group, now_ms, start, end)
        for row in group.dead.take(start, known_end):
            group.events.add("redriven", row.start, row.end, now_ms, detail=row.reason)
        for entry in merged(entries):
            group.waiting.put(entry)
            group.redriven += entry.count
        if known_end < end:
            raise Missing(known_end)
    count, group.redriven = group.redriven, 0
    return count


def _anew(group: WorkState, now_ms: int, start: int, end: int) -> tuple[list[Entry], int]:
    """Entries for the dead letters of [start, end), and up to where heads were in memory to make them."""
    entries: list[Entry] = []
    walk = Walk(group, now_ms, 0, None, Budget())
    for row in group.dead.overlapping(start, end):
        try:
            walk.anew(row.start, row.end, entries)
        except Missing as missing:
            return entries, missing.start
    return entries, end


def purge_dead(group: WorkState, now_ms: int, ranges: Sequence[tuple[int, int]], detail: str = "dead") -> int:
    """Make dead letters in these ranges done; how many."""
    group.lane.mark(group)
    count = 0
    for start, end in union(ranges):
        for row in group.dead.take(start, end):
            count += row.end - row.start
            group.events.add("purged", row.start, row.end, now_ms, detail=detail)
    return count


# Overflow -------------------------------------------------------------------------------------------------


def drop_oldest(group: WorkState, now_ms: int, count: int, *, dead: bool) -> None:
    """Make the `count` oldest messages that nobody holds done, or with `dead` dead letters."""
    while count > 0 and (start := group.waiting.lowest()) is not None:
        piece = group.waiting.take(group.waiting.by_start[start], count)
        count -= piece.count
        _overflow(group, piece, now_ms, dead)
    fresh = min(count, group.lane.end - group.next)
    if fresh > 0:
        _overflow(group, Entry(group.next, group.next + fresh), now_ms, dead)
        group.move_to(group.next + fresh)


def drop_below(group: WorkState, now_ms: int, offset: int, *, dead: bool) -> None:
    """Make the messages below an offset that nobody holds done, or with `dead` dead letters."""
    while (start := group.waiting.lowest()) is not None and start < offset:
        entry = group.waiting.by_start[start]
        _overflow(group, group.waiting.take(entry, min(entry.end, offset) - start), now_ms, dead)
    if group.next < offset:
        _overflow(group, Entry(group.next, offset), now_ms, dead)
        group.move_to(offset)


def _overflow(group: WorkState, entry: Entry, now_ms: int, dead: bool) -> None:
    group.lane.mark(group)
    if dead:
        group.die(entry, now_ms, "overflow", "the queue was full")
    else:
        group.events.add("dropped", entry.start, entry.end, now_ms, detail="overflow")
