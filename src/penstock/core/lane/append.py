"""Append: messages and encoded batches at the end of a lane, duplicates left out, within the queue's limits.

Those on length and bytes refuse a publish, or drop the oldest messages to make room.

Offsets are assigned here, in order and without gaps. Nothing is encoded yet: next stop `seal.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.batch import EncodedBatch, Meta, select
from penstock.core.dedup import dedup_key, dedup_keys
from penstock.core.lane.state import LaneState
from penstock.model import Message
from penstock.model.appended import Appended
from penstock.model.errors import QueueFull
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
    keys: Sequence[bytes | None] | None = None,
) -> Appended:
    """Append an encoded batch; it is stored as it is unless some of it is a duplicate.

    `keys` are those of its dedup ids, where they are known.
    """
    duplicates: dict[int, int] = {}
    base = lane.end
    if meta is not None and meta.dedup_id is not None and lane.config.dedup_window_ms:
        keys = dedup_keys(meta.partition, meta.dedup_id) if keys is None else keys
        duplicates = _dedup_many(lane, now_ms, keys, stored, asked_ms)
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
    return _dedup_key(lane, now_ms, dedup_key(partition, id), offset, stored, asked_ms)


def _dedup_many(
    lane: LaneState, now_ms: int, keys: Sequence[bytes | None], stored: Stored, asked_ms: int | None
) -> dict[int, int]:
    """The offsets first published under these keys, by their places; the others are remembered."""
    duplicates: dict[int, int] = {}
    if lane.dedup.are_new(keys, stored):
        lane.dedup.add_new(keys, lane.end, now_ms + lane.config.dedup_window_ms)
        lane.dirty = True
        return duplicates
    for index, key in enumerate(keys):
        if key is not None:
            first = _dedup_key(lane, now_ms, key, lane.end + index - len(duplicates), stored, asked_ms)
            if first is not None:
                duplicates[index] = first
    return duplicates


def _dedup_key(
    lane: LaneState, now_ms: int, key: bytes, offset: int, stored: Stored, asked_ms: int | None
) -> int | None:
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


# The queue's limits on length and bytes -------------------------------------------------------------------


def check_room(lane: LaneState, count: int, size: int) -> None:
    """Raise `QueueFull` if `count` messages of `size` bytes together are past the queue's limits.

    Changes nothing; raises `Missing` when heads are needed to know.
    """
    config = lane.config
    if config.max_length is not None and config.overflow == "reject":
        backlog = max((group.backlog() for group in lane.works()), default=0)
        if backlog + count > config.max_length:
            raise QueueFull(
                f"{count} more messages on {backlog} waiting would pass max_length {config.max_length}; "
                "consume some first, or choose another overflow policy"
            )
    if config.max_bytes is not None:
        held = _bytes_from(lane, _unsettled_from(lane))  # with any policy: a drop begins there, and must not ask
        fixed = held if config.overflow == "reject" else _bytes_from(lane, _leased_from(lane))
        if fixed + size > config.max_bytes:
            raise QueueFull(
                f"{size} more bytes on {fixed} held would pass max_bytes {config.max_bytes}; "
                "consume some first, or choose another overflow policy"
            )


def make_room(lane: LaneState, now_ms: int) -> None:
    """After a publish that may drop: drop the oldest messages that nobody holds, as far as the limits ask for it."""
    config = lane.config
    dead = config.overflow == "dead_letter_oldest"
    if config.max_length is not None:
        for group in lane.works():
            group.drop_oldest(now_ms, group.backlog() - config.max_length, dead=dead)
    if config.max_bytes is not None:
        _drop_bytes(lane, now_ms, config.max_bytes, dead)


def _drop_bytes(lane: LaneState, now_ms: int, most: int, dead: bool) -> None:
    """Drop whole batches from the low end until the rest fits, as far as their heads are in memory.

    `check_room` saw that it can fit. What is left over because heads are missing goes with the next publishes.
    """
    floor = _unsettled_from(lane)
    while floor < lane.sealed_end and (segment := lane.log.peek(floor)) is not None:
        if lane.bytes_end - segment.bytes_end + segment.size + lane.parts_bytes <= most:
            break
        for group in lane.works():
            group.drop_below(now_ms, segment.end, dead=dead)
        if floor == (floor := _unsettled_from(lane)):
            break


def _unsettled_from(lane: LaneState) -> int:
    """The lowest offset that a work group has not settled; dead letters do not count."""
    return min((group.watermark() for group in lane.works()), default=lane.end)


def _leased_from(lane: LaneState) -> int:
    """The lowest leased offset: the oldest messages can be dropped up to there."""
    lows = [group.leases.lowest() for group in lane.works()]
    return min((low for low in lows if low is not None), default=lane.end)


def _bytes_from(lane: LaneState, offset: int) -> int:
    """Bytes of the batches from the one that holds an offset on, unsealed ones included."""
    if offset >= lane.sealed_end:
        return lane.parts_bytes
    segment = lane.log.find(offset)
    return lane.bytes_end - segment.bytes_end + segment.size + lane.parts_bytes


def lag_bytes(lane: LaneState) -> int:
    """Sealed bytes that no group has read yet; 0 where that is not known."""
    foremost = max([group.next for group in lane.groups.values()], default=lane.sealed_end)
    segment = None if foremost >= lane.sealed_end else lane.log.look(foremost)
    return 0 if segment is None else lane.bytes_end - segment.bytes_end
