"""Append: messages and encoded batches at the end of a lane, duplicates left out.

Offsets are assigned here, in order and without gaps. Nothing is encoded yet: next stop `seal.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.batch import EncodedBatch, Meta, select
from penstock.core.dedup import dedup_key
from penstock.core.lane.room import make_room
from penstock.core.lane.state import LaneState
from penstock.model import Message
from penstock.model.appended import Appended
from penstock.model.rows import DedupRow

Stored = dict[bytes, DedupRow] | None
"""What the store knows of the dedup ids that memory does not; None if it was not asked."""


def append(
    lane: LaneState, now_ms: int, messages: Sequence[Message], stored: Stored = None, asked_ms: int | None = None
) -> Appended:
    """Append messages, except those already published under their dedup id.

    `asked_ms` is when they were published, if that was not now: an id that counted then counts.
    """
    duplicates: dict[int, int] = {}
    base, size = lane.end, 0
    if len(messages) == 1 and messages[0].dedup_id is None:
        lane.parts.append(messages[0])
        _grow(lane, now_ms, 1, len(messages[0].payload))
        return Appended(base, 1, duplicates)
    kept: list[Message] = []
    for index, message in enumerate(messages):
        if message.dedup_id is not None and lane.config.dedup_window_ms:
            first = _dedup(lane, now_ms, message.partition, message.dedup_id, base + len(kept), stored, asked_ms)
            if first is not None:
                duplicates[index] = first
                continue
        kept.append(message)
        size += len(message.payload)
    lane.parts.extend(kept)
    _grow(lane, now_ms, len(kept), size)
    return Appended(base, len(kept), duplicates)


def append_batch(
    lane: LaneState,
    now_ms: int,
    batch: EncodedBatch,
    meta: Meta | None,
    stored: Stored = None,
    asked_ms: int | None = None,
) -> Appended:
    """Append an encoded batch; it is stored as it is unless some of it is a duplicate."""
    duplicates: dict[int, int] = {}
    base = lane.end
    if meta is not None and meta.dedup_id is not None and lane.config.dedup_window_ms:
        for index, id in enumerate(meta.dedup_id):
            if id is None:
                continue
            partition = None if meta.partition is None else meta.partition[index]
            first = _dedup(lane, now_ms, partition, id, base + index - len(duplicates), stored, asked_ms)
            if first is not None:
                duplicates[index] = first
    if len(duplicates) == batch.count:
        return Appended(base, 0, duplicates)
    if duplicates:
        batch = select(batch, [index for index in range(batch.count) if index not in duplicates])
    lane.parts.append(batch)
    _grow(lane, now_ms, batch.count, batch.size)
    return Appended(base, batch.count, duplicates)


def _dedup(
    lane: LaneState, now_ms: int, partition: str | None, id: str, offset: int, stored: Stored, asked_ms: int | None
) -> int | None:
    """The offset first published under this id; None if this is the first, which is then remembered."""
    key = dedup_key(partition, id)
    first = lane.dedup.find(key, now_ms if asked_ms is None else asked_ms, stored)
    if first is None:
        lane.dedup.add(DedupRow(key, offset, now_ms + lane.config.dedup_window_ms))
        lane.dirty = True
    return first


def _grow(lane: LaneState, now_ms: int, count: int, size: int) -> None:
    if not count:
        return
    lane.end += count
    lane.parts_bytes += size
    lane.dirty = True
    if lane.config.overflow != "reject":
        make_room(lane, now_ms)


# Publishes under an id of their own -----------------------------------------------------------------------


def name_publish(lane: LaneState, now_ms: int, key: bytes, base: int) -> None:
    """Remember under one key what was appended from `base` on: one row, however many messages."""
    if lane.config.dedup_window_ms:
        lane.dedup.add(DedupRow(key, base, now_ms + lane.config.dedup_window_ms))
        lane.dirty = True


def published_before(
    lane: LaneState, now_ms: int, first: int, ids: Sequence[tuple[str | None, str | None]], stored: Stored
) -> Appended:
    """Where the messages of an earlier publish went that began at `first`; `ids` are (partition, dedup id) of each.

    Messages that were duplicates by their own id took no offset then, and are found by that id now.
    """
    duplicates: dict[int, int] = {}
    following = first
    for index, (partition, id) in enumerate(ids):
        own = None if id is None else lane.dedup.find(dedup_key(partition, id), now_ms, stored)
        duplicates[index] = following if own is None else own
        following += own is None or own == following
    return Appended(first, 0, duplicates)
