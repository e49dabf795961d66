"""Messages to batch and back.

Messages given to `encode` were checked by `model.check_message`. This module combines `columns` and `body`; it knows
neither their bytes nor how batches are cut, joined or framed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from penstock.batch.assemble import assemble
from penstock.batch.body import open_single, payloads, unfolded_bytes, write_body, write_single
from penstock.batch.columns import TYPED, any_metadata, columns_of, decode_order, expand, read_meta, write_meta
from penstock.batch.guards import limit_count
from penstock.batch.layout import EncodedBatch, Meta
from penstock.model import Message

ALIKE_KEPT: Final = 128


def encode(messages: Sequence[Message]) -> EncodedBatch:
    """Encode messages that `model.check_message` accepted; raises `MessageTooLarge` past a batch's limits."""
    count = len(messages)
    limit_count(count)
    if count == 1:
        single = _encode_single(messages[0])
        if single is not None:
            return single
    payloads = [message.payload for message in messages]
    columns = columns_of(messages) if any_metadata(messages) else {}
    return assemble(columns, array("I", list(map(len, payloads))), payloads)


def _encode_single(message: Message) -> EncodedBatch | None:
    """Encode one short message that has at most a content type; None for any other."""
    content_type = message.content_type
    if message != Message(message.payload, content_type=content_type):
        return None
    body = write_single(message.payload)
    if body is None:
        return None
    if content_type is None:
        return EncodedBatch(1, b"", body)
    return EncodedBatch(1, _meta_alike(1, content_type), body) if type(content_type) is str else None


def encode_alike(payloads: Sequence[bytes], content_type: str) -> EncodedBatch:
    """Like `encode`, of messages with these payloads, this content type and nothing else."""
    count = len(payloads)
    limit_count(count)
    body = write_single(payloads[0]) if count == 1 else None
    if body is None:
        body = write_body(array("I", list(map(len, payloads))), payloads)
        if unfolded := unfolded_bytes(body, count):
            return EncodedBatch(count, write_meta({"content_type": [content_type]}, count, unfolded), body)
    return EncodedBatch(count, _meta_alike(count, content_type), body)


@lru_cache(ALIKE_KEPT)
def _meta_alike(count: int, content_type: str) -> bytes:
    """The meta of `count` messages with one content type and nothing else; cached, because few values recur."""
    return write_meta({"content_type": [content_type]}, count)


def decode(batch: EncodedBatch) -> list[Message]:
    """The messages of a batch."""
    taken = payloads(batch.body, batch.count)
    if not batch.meta:
        return list(map(Message, taken))
    columns = read_meta(batch.meta, batch.count, TYPED)
    return list(map(Message, taken, *decode_order(columns, batch.count, 0, batch.count)))


def decode_single(batch: EncodedBatch) -> Message | None:
    """The message of an intact batch of one without metadata; None for any other, which `check` handles."""
    payload = None if batch.count != 1 or batch.meta else open_single(batch.body)
    return None if payload is None else Message(bytes(payload))


def decode_meta(meta: bytes, count: int) -> Meta:
    """Decode metadata, constants expanded. Types are checked, limits are not: see `check`."""
    columns = read_meta(meta, count, TYPED)
    return Meta(count, **{name: expand(values, count) for name, values in columns.items()})
