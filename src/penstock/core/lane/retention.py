"""Retention: which batches leave the log, and what keeps them.

A batch that any group's cursor, lease, waiting or dead letter needs, or that a reader has pinned, is never deleted.
Without limits, a log of work groups is trimmed to where the slowest of them is, `keep_done_ms` later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from penstock.core.group.work import WorkGroup
from penstock.core.lane.state import Group, LaneState
from penstock.model.rows import BatchHead

DONE_MARKS_MAX: Final = 1_024
"""About how many past moments a lane remembers with how far all was done then, for `keep_done_ms`."""


def needed_from(lane: LaneState) -> int:
    """The lowest offset that must be kept, whatever the limits say."""
    return _held(lane)[0]


def _held(lane: LaneState) -> tuple[int, Group | None]:
    """The same, and the group that needs it; None where it is no group."""
    lowest, holder = lane.visible_end, None
    for group in lane.groups.values():
        if isinstance(group, WorkGroup) or group.settings.holds or not lane.has_limits:
            needed = group.needed_from()
            if needed < lowest:
                lowest, holder = needed, group
    if lane.pins and (pinned := min(lane.pins)) < lowest:
        return pinned, None
    return lowest, holder


# Trimming what is done ------------------------------------------------------------------------------------


def trim(lane: LaneState, now_ms: int) -> None:
    """Let go of the batches that every group is done with, unless the queue has other rules."""
    holder = lane.held_by
    if holder is not None and holder.needed_from() == lane.held_at:
        return  # who kept all that is left still does
    is_kept = lane.config.stream or lane.has_limits or not lane.works()
    if is_kept or not lane.config.keep_done_ms:
        lane.done_marks.clear()
    if is_kept:
        return
    target, holder = _held(lane)
    if lane.config.keep_done_ms:
        target = _kept_long_enough(lane, now_ms, target)
    else:
        lane.held_by, lane.held_at = holder, target
    if target > lane.first:
        _trim_below(lane, target)


def _kept_long_enough(lane: LaneState, now_ms: int, done_to: int) -> int:
    """Up to where all was done `keep_done_ms` ago. A restart begins again: kept longer, never shorter.

    Progress within one part in DONE_MARKS_MAX of that span is one mark, of its latest time.
    """
    marks, keep_ms = lane.done_marks, lane.config.keep_done_ms
    while marks and marks[-1][1] > done_to:  # a seek made it new again
        marks.pop()
    grain_ms = keep_ms // DONE_MARKS_MAX + 1
    if done_to > (marks[-1][1] if marks else max(lane.first, lane.done_to)):
        if marks and marks[-1][0] // grain_ms == now_ms // grain_ms:
            marks.pop()
        marks.append((now_ms, done_to))
    pass_marks(lane, now_ms)
    lane.done_to = min(lane.done_to, done_to)
    return lane.done_to


def pass_marks(lane: LaneState, now_ms: int) -> None:
    """Let what was kept for `keep_done_ms` go with the next commit."""
    while lane.done_marks and lane.done_marks[0][0] + lane.config.keep_done_ms <= now_ms:
        lane.done_to = lane.done_marks.pop(0)[1]


def _trim_below(lane: LaneState, target: int) -> None:
    """Let go of the batches that end at or below an offset, as far as their bounds are known."""
    if target >= lane.visible_end:
        base = lane.visible_end
    else:
        segment = lane.log.peek(target)
        lane.trim_wants = None if segment is not None else target
        if segment is None:
            lane.held_by = None  # it is tried again when the head is there
            return
        base = segment.base
    if base > lane.first:
        _trim_to(lane, base)


def _trim_to(lane: LaneState, base: int) -> None:
    assert lane.first < base <= lane.visible_end, f"trim to {base}; the lane has {lane.first} to {lane.visible_end}"
    lane.first = lane.trim_to = base
    lane.log.forget_before(base)
    lane.dirty = True


def trim_again(lane: LaneState) -> None:
    """The heads that `trim_wants` asked for are in memory: let the next seal trim."""
    lane.trim_wants = None
    lane.dirty = True


# Limits ---------------------------------------------------------------------------------------------------


def trim_by_limits(lane: LaneState, now_ms: int, heads: Sequence[BatchHead]) -> bool:
    """Let go of the oldest batches past the queue's limits; `heads` begin at `first`. Whether any went."""
    config, needed, target = lane.config, needed_from(lane), lane.first
    for head in heads:
        too_old = config.retain_ms is not None and head.published_ms + config.retain_ms <= now_ms
        too_big = config.retain_bytes is not None and lane.bytes_end - head.bytes_end >= config.retain_bytes
        too_many = config.retain_messages is not None and lane.visible_end - head.end >= config.retain_messages
        if head.base != target or head.end > needed or not (too_old or too_big or too_many):
            break
        target = head.end
    if target == lane.first:
        return False
    _trim_to(lane, target)
    return True


# Pins -----------------------------------------------------------------------------------------------------


def pin(lane: LaneState, offset: int) -> None:
    """Keep the batches from this offset on until `unpin`."""
    lane.pins[offset] = lane.pins.get(offset, 0) + 1


def unpin(lane: LaneState, offset: int) -> None:
    """End one `pin` of this offset."""
    left = lane.pins[offset] - 1
    if left:
        lane.pins[offset] = left
    else:
        del lane.pins[offset]
        lane.dirty = True  # what it kept may go with the next commit


@contextmanager
def pinned(lane: LaneState, offset: int) -> Iterator[None]:
    """Keep the batches from this offset on until the block ends."""
    pin(lane, offset)
    try:
        yield
    finally:
        unpin(lane, offset)
