"""Publish: check, route, choose the lane, append; done when the commit that holds the messages is durable.

Next stop: `node/commit/loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.batch import EncodedBatch, Meta, check, decode, decode_meta, decode_single, encode, select
from penstock.core.dedup import Dedup, dedup_key, publish_key
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model import BATCH_MESSAGES_MAX, Message, check_message
from penstock.model.appended import Appended
from penstock.model.errors import InvalidArgument, InvalidBatch, MessageTooLarge
from penstock.model.rows import DedupRow
from penstock.node.cluster import remote_publish
from penstock.node.publish.parts import ENCODE_FROM, Part, Results

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

# From messages to parts ----------------------------------------------------------------------------------


def parts_of_messages(
    queue: Queue, messages: Sequence[Message], indexes: Sequence[int] | None = None, publish_id: str | None = None
) -> list[Part]:
    """Messages for a queue, checked and split by lane."""
    if len(messages) >= ENCODE_FROM:
        return _parts_of_checked(queue, *_encode_checked(queue, messages), indexes, publish_id)
    for message in messages:
        check_message(message, queue.config.max_message_bytes)
    return _parts_of_few(queue, messages, indexes, publish_id)


def _parts_of_few(
    queue: Queue, messages: Sequence[Message], indexes: Sequence[int] | None, publish_id: str | None
) -> list[Part]:
    """Messages that were checked, split by lane and not encoded: the lane stores them together with those of others."""
    if len(queue.lanes) == 1:
        return [Part(queue, queue.lanes[0], messages, None, None, indexes, publish_id)]
    by_lane: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        by_lane.setdefault(_lane_of(queue, message.partition, message.dedup_id or publish_id), []).append(index)
    _rotate(queue)
    return [
        Part(queue, lane, [messages[index] for index in chosen], None, None, _places(chosen, indexes), publish_id)
        for lane, chosen in by_lane.items()
    ]


def _encode_checked(queue: Queue, messages: Sequence[Message]) -> tuple[EncodedBatch, Meta]:
    """Encode first, since that checks most at the speed of C; look message by message only for who is to blame."""
    if len(messages) > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"{len(messages)} messages in one call; the limit is {BATCH_MESSAGES_MAX}")
    try:
        batch = encode(messages)
        meta = check(batch, queue.config.max_message_bytes)
    except Exception:
        for message in messages:
            check_message(message, queue.config.max_message_bytes)
        raise
    if set(map(type, messages)) != {Message}:
        raise InvalidArgument("every message must be a penstock.Message")
    if not _is_kept_as_it_is(messages, meta):
        for message in messages:
            check_message(message, queue.config.max_message_bytes)
    return batch, meta


_PLAIN_HEADERS = frozenset((str, int, float, bool, bytes, type(None)))


def _is_kept_as_it_is(messages: Sequence[Message], meta: Meta) -> bool:
    """Whether no type is in doubt that encoding takes for another: a tuple for a list, a time without its zone."""
    if {type(message.payload) for message in messages} != {bytes}:
        return False
    if meta.headers is None:
        return True
    return {type(value) for message in messages for value in (message.headers or {}).values()} <= _PLAIN_HEADERS


def parts_of_batch(
    queue: Queue,
    batch: EncodedBatch,
    indexes: Sequence[int] | None = None,
    publish_id: str | None = None,
    meta: Meta | None = None,
) -> list[Part]:
    """An encoded batch for a queue, checked and, only where the queue has several lanes, split.

    `meta` is that of a batch which was checked before, and is not checked again.
    """
    if not isinstance(batch, EncodedBatch):
        raise InvalidArgument(f"a batch must be a penstock.EncodedBatch, not {type(batch).__name__}")
    if batch.count == 0:
        raise InvalidBatch("the batch is empty")
    if meta is None:
        single = decode_single(batch)
        if single is not None and len(single.payload) <= queue.config.max_message_bytes:
            return _parts_of_few(queue, [single], indexes, publish_id)
        meta = check(batch, queue.config.max_message_bytes)
    if batch.count < ENCODE_FROM:
        # A row of its own for each would cost the store, and every later claim, more than decoding costs now.
        return _parts_of_few(queue, decode(batch), indexes, publish_id)
    return _parts_of_checked(queue, batch, meta, indexes, publish_id)


def _parts_of_checked(
    queue: Queue, batch: EncodedBatch, meta: Meta, indexes: Sequence[int] | None, publish_id: str | None
) -> list[Part]:
    if len(queue.lanes) == 1:
        return [Part(queue, queue.lanes[0], (), batch, meta, indexes, publish_id)]
    by_lane: dict[int, list[int]] = {}
    for index in range(batch.count):
        partition = None if meta.partition is None else meta.partition[index]
        dedup_id = None if meta.dedup_id is None else meta.dedup_id[index]
        by_lane.setdefault(_lane_of(queue, partition, dedup_id or publish_id), []).append(index)
    _rotate(queue)
    parts: list[Part] = []
    for lane, chosen in by_lane.items():
        piece = batch if len(chosen) == batch.count else select(batch, chosen)
        piece_meta = meta if piece is batch else decode_meta(piece.meta, piece.count)
        parts.append(Part(queue, lane, (), piece, piece_meta, _places(chosen, indexes), publish_id))
    return parts


def _places(chosen: Sequence[int], indexes: Sequence[int] | None) -> Sequence[int]:
    return chosen if indexes is None else [indexes[index] for index in chosen]


def _lane_of(queue: Queue, partition: str | None, dedup_id: str | None) -> int:
    """A partition stays in one lane; an id without a partition too, so that its double meets it there."""
    name = partition or dedup_id
    if name:
        return queue.lanes[crc32(name.encode()) % len(queue.lanes)]
    return queue.lanes[queue.rotation % len(queue.lanes)]


def _rotate(queue: Queue) -> None:
    queue.rotation = (queue.rotation + 1) % len(queue.lanes)


# From parts to a commit ----------------------------------------------------------------------------------


def publish(node: Node, count: int, parts: Sequence[Part]) -> Ticket[Receipt]:
    """Append parts to their lanes, all of them or none; done when they are durable."""
    size = check_limits(node, count, parts)
    remote_publish.check_owners(node, parts)
    results = append_at_once(node, parts, size)
    if results is None:
        return Ticket.of(_publish_later(node, count, parts, size))
    return node.commits.commit(result=Receipt(count, results))


async def _publish_later(node: Node, count: int, parts: Sequence[Part], size: int) -> Receipt:
    results = await append_later(node, parts, size)
    await node.commits.commit()
    return Receipt(count, await remote_publish.landed(node, results))


async def append_later(node: Node, parts: Sequence[Part], size: int) -> Results:
    """Append parts when their lanes are loaded and there is room for them."""
    await node.commits.room(size)
    return await append_all(node, parts)


def check_limits(node: Node, count: int, parts: Sequence[Part]) -> int:
    """Raise where this is more than may be published at once; its bytes otherwise."""
    size = parts[0].size if len(parts) == 1 else sum(part.size for part in parts)
    check_size(node, count, size)
    return size


def check_size(node: Node, count: int, size: int) -> None:
    """Raise where so many messages of so many bytes are more than may be published at once."""
    limits = node.limits
    if count > limits.batch_messages:
        raise MessageTooLarge(f"{count} messages in one call; the limit is {limits.batch_messages}")
    if size > limits.batch_bytes:
        raise MessageTooLarge(f"{size} bytes in one call; the limit is {limits.batch_bytes}")


def append_at_once(node: Node, parts: Sequence[Part], size: int) -> Results | None:
    """Append parts where nothing must be waited for: lanes loaded, ids known, room for the bytes; else None."""
    lanes: dict[int, Lane] = {}
    for part in parts:
        lane = node.lanes.get(part.lane)
        if lane is None or (not lane.dedup.complete and _unsure(node, lane, part)):
            return None
        lanes[part.lane] = lane
    if not node.commits.has_room(size):
        return None
    try:
        for lane in lanes.values():
            check_room(node, lane, parts)
    except Missing:
        return None
    node.commits.take_room(size)
    return append_ready(node, parts, lanes, [None] * len(parts))


def check_room(node: Node, lane: Lane, parts: Sequence[Part]) -> None:
    """Raise `QueueFull` unless the lane can take all of those parts that are for it."""
    if lane.config.max_length is None and lane.config.max_bytes is None:
        return
    now_ms = node.clock.now_ms()
    chosen = [
        part
        for part in parts
        if part.lane == lane.id
        and (part.publish_id is None or lane.dedup.find(publish_key(part.publish_id), now_ms, None) is None)
    ]
    if chosen:
        lane.check_room(sum(part.count for part in chosen), sum(part.size for part in chosen))


def append(node: Node, lane: Lane, part: Part, known: dict[bytes, DedupRow] | None) -> Appended:
    """Append one part to its lane, whose room was checked; nothing where its publish was carried out before."""
    now_ms = node.clock.now_ms()
    asked_ms = now_ms if part.asked_ms is None else part.asked_ms
    key = None if part.publish_id is None else publish_key(part.publish_id)
    if key is not None:
        first = lane.dedup.find(key, asked_ms, known)
        if first is not None:
            return lane.published_before(asked_ms, first, _names(part), known)
    if part.batch is not None:
        appended = lane.append_batch(now_ms, part.batch, part.meta, known, part.asked_ms)
    else:
        appended = lane.append(now_ms, part.messages, known, part.asked_ms)
    if key is not None:
        lane.name_publish(now_ms, key, appended.base)
    return appended


async def append_all(node: Node, parts: Sequence[Part], check: Callable[[], None] | None = None) -> Results:
    """Append to several lanes in one step, so that one commit holds them all; `check` may still refuse in that step."""
    while True:
        known = await known_ids(node, parts)
        try:
            ready = await ready_lanes(node, parts)
            if ready is not None and known.is_true_of(ready):
                if check is not None:
                    check()
                return append_ready(node, parts, ready, known.rows)
        finally:
            known.close()


async def ready_lanes(node: Node, parts: Sequence[Part]) -> dict[int, Lane] | None:
    """Every part's lane, loaded and with room, at one and the same moment; None to try again."""
    ids = sorted({part.lane for part in parts if not remote_publish.is_elsewhere(node, part)})
    for id in ids:
        await node.lanes.run(id, lambda lane: check_room(node, lane, parts))
    lanes = {lane.id: lane for lane in await node.lanes.together(ids)}
    try:
        for lane in lanes.values():
            check_room(node, lane, parts)
    except Missing:
        return None  # pushed out of memory while another was loaded
    return lanes


def append_ready(
    node: Node, parts: Sequence[Part], lanes: dict[int, Lane], known: Sequence[dict[bytes, DedupRow] | None]
) -> Results:
    results: Results = []
    for part, ids in zip(parts, known, strict=True):
        if part.lane not in lanes:
            results.append(
                (part.queue.name, part.queue.index_of(part.lane), remote_publish.send(node, part), part.indexes)
            )
            continue
        appended = append(node, lanes[part.lane], part, ids)
        results.append((part.queue.name, part.queue.index_of(part.lane), appended, part.indexes))
        node.commits.touch(lanes[part.lane])
    return results


class Known:
    """What the store knows of the ids of some parts. Until it is closed, their lanes forget no id."""

    __slots__ = ("_asked", "rows")

    def __init__(self) -> None:
        self.rows: list[dict[bytes, DedupRow] | None] = []
        self._asked: dict[int, Dedup] = {}

    def ask(self, lane: Lane) -> None:
        if lane.id not in self._asked:
            self._asked[lane.id] = lane.dedup
            lane.dedup.questions += 1

    def is_true_of(self, lanes: Mapping[int, Lane]) -> bool:
        """Whether these are the lanes that were asked for, and not ones that were loaded since."""
        return all(id in lanes and lanes[id].dedup is dedup for id, dedup in self._asked.items())

    def close(self) -> None:
        for dedup in self._asked.values():
            dedup.questions -= 1


async def known_ids(node: Node, parts: Sequence[Part]) -> Known:
    """The stored dedup rows of each part's ids, where a lane has more ids than it keeps in memory. Close it."""
    known = Known()
    try:
        for part in parts:
            elsewhere = remote_publish.is_elsewhere(node, part)
            known.rows.append(None if elsewhere else await _stored_ids(node, part, known))
    except BaseException:
        known.close()
        raise
    return known


async def _stored_ids(node: Node, part: Part, known: Known) -> dict[bytes, DedupRow] | None:
    lane = await node.lanes.run(part.lane, lambda lane: lane)
    known.ask(lane)
    keys = _unsure(node, lane, part)
    if not keys:
        return None
    return {row.key: row for row in await node.lanes.store_of(part.lane).find_dedup(part.lane, keys)}


def _unsure(node: Node, lane: Lane, part: Part) -> list[bytes]:
    """The keys of a part's ids for which the store must be asked."""
    if lane.dedup.complete:
        return []
    keys = [dedup_key(partition, id) for partition, id in _ids(part)]
    if part.publish_id is not None:
        keys.append(publish_key(part.publish_id))
    return lane.dedup.unsure_of(keys, node.clock.now_ms() if part.asked_ms is None else part.asked_ms)


def _ids(part: Part) -> list[tuple[str | None, str]]:
    if part.meta is not None and part.meta.dedup_id is None:
        return []
    return [(partition, id) for partition, id in _names(part) if id is not None]


def _names(part: Part) -> list[tuple[str | None, str | None]]:
    """(partition, dedup id) of each message."""
    if part.meta is None:
        return [(message.partition, message.dedup_id) for message in part.messages]
    nothing = [None] * part.count
    return list(zip(part.meta.partition or nothing, part.meta.dedup_id or nothing, strict=True))
