"""Seal and commit: all that changed on a lane since the last seal becomes one part of a commit.

Messages published one by one are encoded together here. After the commit is durable the node calls `committed`, and
what was published can be claimed. Next stop: `node/commit/loop.py`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.batch import EncodedBatch, encode
from penstock.core.group.work import WorkGroup
from penstock.core.lane.retention import trim
from penstock.core.lane.state import LaneState
from penstock.model import Message
from penstock.model.events import Event
from penstock.model.rows import BatchHead, BatchRow, DeadRow, LaneChange

ROW_MESSAGES_MAX: Final = 1_024
ROW_BYTES_MAX: Final = 1024 * 1024
"""Messages published one by one are stored together up to these; a producer's own batch is stored as it came."""

_LISTS: Final = [
    name for name in LaneChange.__struct_fields__ if name not in ("lane", "first", "end", "bytes_end", "trim_to")
]


class Sealed(msgspec.Struct):
    """What a lane puts into a commit, with what the node must do about it."""

    change: LaneChange
    died: list[tuple[int, DeadRow]]
    """(group, row) of messages that died and have a `dead_letter_to`."""
    events: list[tuple[int, list[Event]]]
    """(group, events)"""
    dedup_count: int
    trimmed_from: int
    """Where the log began before; the batches from there to the change's `first` are gone."""


def seal(lane: LaneState, now_ms: int) -> Sealed | None:
    """All that changed since the last seal, as a lane's part of one commit; None if nothing did."""
    if not lane.dirty:
        return None
    change = LaneChange(lane.id, lane.first, lane.end, lane.bytes_end)
    _encode_parts(lane, now_ms)
    assert lane.sealed_end == lane.end, f"encoded to {lane.sealed_end}, published to {lane.end}"
    change.batches, lane.rows = lane.rows, []
    sealed = Sealed(change, [], [], 0, lane.sealed_first)
    _seal_groups(lane, sealed)
    trim(lane, now_ms)
    lane.dirty = False  # not before: trimming is a change, and part of this one
    change.dedup = lane.dedup.seal()
    sealed.dedup_count = len(change.dedup)
    change.dedup_expired_ms, lane.dedup_expired_ms = lane.dedup_expired_ms, None
    change.groups_deleted, lane.groups_deleted = lane.groups_deleted, []
    change.trim_to, lane.trim_to = lane.trim_to, None
    change.first, change.bytes_end = lane.first, lane.bytes_end
    lane.sealed_first = lane.first
    return sealed if sealed.events or sealed.died or not _is_empty(change) else None


def _seal_groups(lane: LaneState, sealed: Sealed) -> None:
    changed, lane.changed = lane.changed, {}
    for group in changed.values():
        group.seal(sealed.change)
        if group.events.by_key:
            sealed.events.append((group.id, group.events.seal()))
        if isinstance(group, WorkGroup) and group.died:
            sealed.died += [(group.id, row) for row in group.died]
            group.died = []


def _is_empty(change: LaneChange) -> bool:
    if change.batches or change.groups or change.leases or change.leases_deleted:  # what most have
        return False
    return (
        change.trim_to is None and change.dedup_expired_ms is None and not any(getattr(change, name) for name in _LISTS)
    )


def committed(lane: LaneState, sealed: Sealed) -> None:
    """The commit is durable: what it published can be claimed now."""
    end = sealed.change.end
    assert lane.visible_end <= end <= lane.sealed_end, (
        f"{end} is durable: {lane.visible_end} was, {lane.sealed_end} is sealed"
    )
    lane.visible_end = end
    lane.dedup.committed(sealed.dedup_count)


def show_all(lane: LaneState, now_ms: int) -> int:
    """Let claims see what is about to be sealed: they are sealed with it.

    Returns the `visible_end` to restore before anything else can look.
    """
    _encode_parts(lane, now_ms)
    visible_end, lane.visible_end = lane.visible_end, lane.end
    return visible_end


# Encoding -------------------------------------------------------------------------------------------------


def _encode_parts(lane: LaneState, now_ms: int) -> None:
    if not lane.parts:
        return
    parts, lane.parts, lane.parts_bytes = lane.parts, [], 0
    lane.published_ms = max(lane.published_ms, now_ms)
    rows = lane.rows
    singles: list[Message] = []
    size = 0
    for part in parts:
        if isinstance(part, Message):
            if singles and (len(singles) >= ROW_MESSAGES_MAX or size + len(part.payload) > ROW_BYTES_MAX):
                rows.append(_row(lane, encode(singles)))
                singles, size = [], 0
            singles.append(part)
            size += len(part.payload)
        else:
            if singles:
                rows.append(_row(lane, encode(singles)))
                singles, size = [], 0
            rows.append(_row(lane, part))
    if singles:
        rows.append(_row(lane, encode(singles)))


def _row(lane: LaneState, batch: EncodedBatch) -> BatchRow:
    lane.bytes_end += batch.size
    row = BatchRow(lane.sealed_end, batch.count, lane.published_ms, lane.bytes_end, batch.meta, batch.body)
    lane.sealed_end += batch.count
    head = BatchHead(row.base, row.count, row.published_ms, row.bytes_end, batch.size, batch.meta)
    lane.log.append(head, lane.visible_end)
    return row
