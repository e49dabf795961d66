"""From a publish to parts, as they are appended: routed, checked, split by lane, encoded where they are many. Pure.

Next stop: `append.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from penstock.api.results import Receipt
from penstock.batch import (
    EncodedBatch,
    Meta,
    block_bytes,
    check,
    decode,
    decode_meta,
    decode_single,
    encode,
    is_compressed,
    measured,
    select,
)
from penstock.core.dedup import dedup_keys
from penstock.model import BATCH_MESSAGES_MAX, Message, check_message
from penstock.model.appended import Appended
from penstock.model.errors import InvalidArgument, InvalidBatch, MessageTooLarge, Unroutable
from penstock.model.work import MESSAGE_WORK, Budget, Steps
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue

Results = list[tuple[str, int, Appended, Sequence[int] | None]]
"""(queue, lane as users name it, what was appended, places in the caller's list)"""

ENCODE_FROM: Final = 32
"""Fewer messages are stored together with those of other callers; as many as these are a batch of their own,"""
LARGE_BYTES: Final = 1024 * 1024
"""and so are messages with so many bytes, decompressed."""
PART_MESSAGES: Final = 4_000
"""Messages of one publish that are encoded at a time: more are several batches of one commit."""


class Origin(NamedTuple):
    """A record of a spool. Those of one spool enter a lane in the order of their numbers, each once."""

    spool: str
    sequence: int


class Part(msgspec.Struct, frozen=True, gc=False):
    """Messages for one lane, checked; `indexes` are their places in the caller's list (None: all of it)."""

    queue: Queue
    lane: int
    messages: Sequence[Message]
    batch: EncodedBatch | None
    meta: Meta | None
    indexes: Sequence[int] | None
    publish_id: str | None = None
    """Names the whole publish: done again under the same id, it changes nothing."""
    asked_ms: int | None = None
    """When it was published, if that was not now: what ids counted then counts."""
    origin: Origin | None = None
    """The record of a spool that it comes from, if it does: see `node/spool/positions.py`."""
    keys: Sequence[bytes | None] | None = None
    """The keys of its messages' dedup ids, where they were made before it is appended."""

    @property
    def count(self) -> int:
        return len(self.messages) if self.batch is None else self.batch.count

    def ids(self) -> list[tuple[str | None, str | None]]:
        """(partition, dedup id) of each message."""
        if self.meta is None:
            return [(message.partition, message.dedup_id) for message in self.messages]
        nothing = [None] * self.count
        return list(zip(self.meta.partition or nothing, self.meta.dedup_id or nothing, strict=True))

    @property
    def size(self) -> int:
        if self.batch is not None:
            return self.batch.size
        messages = self.messages
        return len(messages[0].payload) if len(messages) == 1 else sum([len(message.payload) for message in messages])


class Unit(msgspec.Struct, frozen=True):
    """One publish as it was asked for: what the spool keeps of it."""

    namespace: str
    queue: str | None
    exchange: str | None
    messages: Sequence[Message] | EncodedBatch
    publish_id: str | None
    count: int
    parts: Sequence[Part]
    is_forwarded: bool = False
    """By another node, which has asked this one as the owner."""

    @property
    def is_known_again(self) -> bool:
        """Whether it is stored once however often it is published."""
        return self.publish_id is not None and all(part.queue.config.dedup_window_ms for part in self.parts)

    @property
    def is_durable(self) -> bool:
        """Whether any of it is for a queue that outlives the node."""
        return any(part.lane < EPHEMERAL_FROM for part in self.parts)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.count, (), buffered_for=self.queue or "")


# Messages and batches for one queue -----------------------------------------------------------------------


def parts_of_messages(
    queue: Queue,
    messages: Sequence[Message],
    indexes: Sequence[int] | None = None,
    publish_id: str | None = None,
    rotation: int | None = None,
) -> list[Part]:
    """Messages for a queue, checked and split by lane. `rotation` is that of the publish, if these are a part of one.

    It may be called on a thread.
    """
    rotation = _rotated(queue) if rotation is None else rotation
    if len(messages) >= ENCODE_FROM:
        return _parts_of_checked(queue, *_encode_checked(queue, messages), indexes, publish_id, rotation)
    for message in messages:
        check_message(message, queue.message_bytes_max)
    return _parts_of_few(queue, messages, indexes, publish_id, rotation)


def parts_in_steps(
    queue: Queue, messages: Sequence[Message], indexes: Sequence[int] | None = None, publish_id: str | None = None
) -> Steps[list[Part]]:
    """The same of many, with a stop after every PART_MESSAGES: each slice is a batch of its own.

    Those of a publish with an id stay together, since the id names what a lane got at once.
    """
    if len(messages) <= PART_MESSAGES:
        return parts_of_messages(queue, messages, indexes, publish_id)
    if publish_id is not None:
        together: list[Part] = yield partial(parts_of_messages, queue, messages, indexes, publish_id)
        return together
    if len(messages) > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"{len(messages)} messages in one call; the limit is {BATCH_MESSAGES_MAX}")
    rotation = _rotated(queue)  # all that have no partition go to one lane
    parts: list[Part] = []
    for start in range(0, len(messages), PART_MESSAGES):
        if start:
            yield None
        some = messages[start : start + PART_MESSAGES]
        places = range(start, start + len(some)) if indexes is None else indexes[start : start + len(some)]
        parts += parts_of_messages(queue, some, places, None, rotation)
    return parts


def _parts_of_few(
    queue: Queue, messages: Sequence[Message], indexes: Sequence[int] | None, publish_id: str | None, rotation: int
) -> list[Part]:
    """Messages that were checked, split by lane and not encoded: the lane stores them together with those of others."""
    if len(queue.lanes) == 1:
        return [Part(queue, queue.lanes[0], messages, None, None, indexes, publish_id)]
    by_lane: dict[int, list[int]] = {}
    for index, message in enumerate(messages):
        by_lane.setdefault(_lane_of(queue, message.partition, message.dedup_id or publish_id, rotation), []).append(
            index
        )
    return [
        Part(queue, lane, [messages[index] for index in chosen], None, None, _places(chosen, indexes), publish_id)
        for lane, chosen in by_lane.items()
    ]


def _encode_checked(queue: Queue, messages: Sequence[Message]) -> tuple[EncodedBatch, Meta]:
    """Encode first, since that checks most at the speed of C; look message by message only to find the culprit."""
    if len(messages) > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"{len(messages)} messages in one call; the limit is {BATCH_MESSAGES_MAX}")
    try:
        batch = encode(messages)
        meta = check(batch, queue.message_bytes_max, queue.sizes.batch)
    except Exception:
        for message in messages:
            check_message(message, queue.message_bytes_max)
        raise
    if set(map(type, messages)) != {Message}:
        raise InvalidArgument("every message must be a penstock.Message")
    if not _is_kept_as_it_is(messages, meta):
        for message in messages:
            check_message(message, queue.message_bytes_max)
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

    `meta` is that of a batch which was checked before, and is not checked again. It may be called on a thread.
    """
    if not isinstance(batch, EncodedBatch):
        raise InvalidArgument(f"a batch must be a penstock.EncodedBatch, not {type(batch).__name__}")
    if batch.count == 0:
        raise InvalidBatch("the batch is empty")
    rotation = _rotated(queue)
    if meta is None:
        single = decode_single(batch) if batch.count == 1 and not is_large(batch) else None
        if single is not None and len(single.payload) <= queue.message_bytes_max:
            return _parts_of_few(queue, [single], indexes, publish_id, rotation)
        meta = check(batch, queue.message_bytes_max, queue.sizes.batch)
    if not is_kept_encoded(batch):
        # A row of its own for each would cost the store, and every later claim, more than decoding costs now.
        return _parts_of_few(queue, decode(batch), indexes, publish_id, rotation)
    return _parts_of_checked(queue, batch, meta, indexes, publish_id, rotation)


def batch_in_steps(
    queue: Queue,
    batch: EncodedBatch,
    indexes: Sequence[int] | None = None,
    publish_id: str | None = None,
    meta: Meta | None = None,
) -> Steps[list[Part]]:
    """The same of a batch that may be long to check and to split."""
    if type(batch) is not EncodedBatch or not is_long(batch):
        return parts_of_batch(queue, batch, indexes, publish_id, meta)
    parts: list[Part] = yield partial(parts_of_batch, queue, batch, indexes, publish_id, meta)
    return parts


def is_long(batch: EncodedBatch) -> bool:
    """Whether checking or cutting it takes long enough to be done on a thread."""
    return batch.count > PART_MESSAGES or is_large(batch)


def is_large(batch: EncodedBatch) -> bool:
    """Whether it has so many bytes that decompressing them takes long."""
    body = batch.body
    return len(body) >= LARGE_BYTES or (is_compressed(body) and block_bytes(body, batch.count) >= LARGE_BYTES)


def is_kept_encoded(batch: EncodedBatch) -> bool:
    """Whether it is stored as it came."""
    return batch.count >= ENCODE_FROM or is_large(batch)


def _parts_of_checked(
    queue: Queue, batch: EncodedBatch, meta: Meta, indexes: Sequence[int] | None, publish_id: str | None, rotation: int
) -> list[Part]:
    batch = measured(batch)
    if len(queue.lanes) == 1:
        return [Part(queue, queue.lanes[0], (), batch, meta, indexes, publish_id, keys=_keys(meta))]
    by_lane: dict[int, list[int]] = {}
    for index in range(batch.count):
        partition = None if meta.partition is None else meta.partition[index]
        dedup_id = None if meta.dedup_id is None else meta.dedup_id[index]
        by_lane.setdefault(_lane_of(queue, partition, dedup_id or publish_id, rotation), []).append(index)
    parts: list[Part] = []
    for lane, chosen in by_lane.items():
        piece = batch if len(chosen) == batch.count else select(batch, chosen)
        piece_meta = meta if piece is batch else decode_meta(piece.meta, piece.count)
        places = _places(chosen, indexes)
        parts.append(Part(queue, lane, (), piece, piece_meta, places, publish_id, keys=_keys(piece_meta)))
    return parts


def _keys(meta: Meta) -> Sequence[bytes | None] | None:
    """Made here and not where they are looked up: this may be a thread, or have stops."""
    return None if meta.dedup_id is None else dedup_keys(meta.partition, meta.dedup_id)


def _places(chosen: Sequence[int], indexes: Sequence[int] | None) -> Sequence[int]:
    return chosen if indexes is None else [indexes[index] for index in chosen]


def _lane_of(queue: Queue, partition: str | None, dedup_id: str | None, rotation: int) -> int:
    """A partition stays in one lane; an id without a partition too, so that its double meets it there."""
    name = partition or dedup_id
    if name:
        return queue.lanes[crc32(name.encode()) % len(queue.lanes)]
    return queue.lanes[rotation % len(queue.lanes)]


def _rotated(queue: Queue) -> int:
    """The turn of a publish: the next one goes to the next lane."""
    rotation = queue.rotation
    if len(queue.lanes) > 1:
        queue.rotation = (rotation + 1) % len(queue.lanes)
    return rotation


# Through an exchange: each queue's share ------------------------------------------------------------------


ROUTED_WORK: Final = 200
"""What a message costs that goes to a queue, beside finding the queue."""


def route_message(catalog: Catalog, namespace: str, exchange: str, message: Message) -> Steps[list[Part]]:
    """The parts of one message, in steps; raises `Unroutable` when no queue takes it."""
    return route_messages(catalog, namespace, exchange, [message], mandatory=True)


def route_messages(
    catalog: Catalog,
    namespace: str,
    exchange: str,
    messages: Sequence[Message],
    *,
    mandatory: bool,
    publish_id: str | None = None,
    budget: Budget | None = None,
) -> Steps[list[Part]]:
    """Parts for every queue that any of the messages reaches, in steps; a message's key decides, with its headers."""
    router = catalog.router(namespace)
    budget = Budget() if budget is None else budget
    chosen: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        check_message(message, catalog.sizes.message)
        queues = router.known_route(exchange, message)
        if queues is None:
            queues = yield from router.routing(exchange, message, budget)
        if not queues and mandatory:
            raise Unroutable(f"exchange {exchange!r} has no queue for key {message.key!r}")
        for queue in queues:
            chosen.setdefault(queue, []).append(index)
        if budget.spend(MESSAGE_WORK * (1 + len(queues))):
            yield None
            budget.renew()
    parts: list[Part] = []
    for name, indexes in chosen.items():
        queue_there = catalog.queues.get((namespace, name))
        if queue_there is None:
            continue  # it was deleted at a stop
        share = messages if len(indexes) == len(messages) else [messages[index] for index in indexes]
        if len(share) <= PART_MESSAGES:
            parts += parts_of_messages(queue_there, share, indexes, publish_id)
        else:
            parts += yield from parts_in_steps(queue_there, share, indexes, publish_id)
        if budget.spend(ROUTED_WORK):
            yield None
            budget.renew()
    return parts


def route_batch(
    catalog: Catalog,
    namespace: str,
    exchange: str,
    batch: EncodedBatch,
    *,
    mandatory: bool,
    publish_id: str | None = None,
) -> Steps[list[Part]]:
    """The same for an encoded batch, by its columns; a queue that takes all of it stores it as it came."""
    budget, is_aside = Budget(), is_long(batch)
    meta: Meta = (yield partial(check, batch, *catalog.sizes)) if is_aside else check(batch, *catalog.sizes)
    routed = yield from catalog.router(namespace).routing_batch(exchange, meta, batch.count, budget)
    if mandatory and routed.unroutable:
        raise Unroutable(f"exchange {exchange!r} has no queue for {len(routed.unroutable)} of {batch.count} messages")
    parts: list[Part] = []
    for name, indexes in routed.queues.items():
        queue = catalog.queues.get((namespace, name))
        if queue is None:
            continue  # it was deleted at a stop
        if len(indexes) == batch.count:
            share = batch
        else:
            share = (yield partial(select, batch, indexes)) if is_aside else select(batch, indexes)
        is_known = share is batch and queue.message_bytes_max == catalog.sizes.message
        parts += yield from batch_in_steps(queue, share, indexes, publish_id, meta if is_known else None)
        if budget.spend(ROUTED_WORK):
            yield None
            budget.renew()
    return parts
