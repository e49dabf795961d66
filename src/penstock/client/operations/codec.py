"""Between the API's objects and the bytes of requests and answers.

Plain functions: messages to a batch frame, answers to claims, receipts and the rest, with the types that the embedded
broker gives back. No connection and no waiting; the shapes are those of `wire/http/shapes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from penstock.api.results import Claim, Lease, Published, Receipt, Slice, StreamRead
from penstock.batch import EncodedBatch, Reader, encode, to_bytes, to_parts
from penstock.model import BATCH_MESSAGES_MAX, Message, check_message
from penstock.model.appended import Appended
from penstock.model.errors import InvalidArgument, MessageTooLarge, PenstockError
from penstock.model.verdict import Verdict
from penstock.wire.http.large_bodies import LARGE_BODY_BYTES
from penstock.wire.http.shapes import (
    EncodedClaim,
    EncodedRead,
    EncodedSlice,
    PartBody,
    PublishAnswer,
    PublishedBody,
    VerdictBody,
)

# Targets -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4_096)
def target(namespace: str, *parts: str) -> bytes:
    """The path of an operation, with the namespace as its query."""
    path = "/".join(map(_quoted, parts))
    return f"/v1/{path}?namespace={quote(namespace, safe='')}".encode()


def _quoted(part: str) -> str:
    # Dots alone would be taken for steps in the path by whatever stands in between.
    return part.replace(".", "%2E") if part in (".", "..") else quote(part, safe="")


def with_query(path: bytes, **values: object) -> bytes:
    """The same with more of a query; None is left out."""
    given = {name: value for name, value in values.items() if value is not None}
    return path + b"&" + urlencode(given).encode() if given else path


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]+")


def with_publish_id(path: bytes, publish_id: str) -> bytes:
    """The same with the id of a publish, which most often, and always where the client makes it, is plain text."""
    if _PLAIN.fullmatch(publish_id):
        return b"%b&publish_id=%b" % (path, publish_id.encode())
    return with_query(path, publish_id=publish_id)


# Publish -------------------------------------------------------------------------------------------------

_PLAIN_HEADERS: Final = frozenset((str, int, float, bool, bytes, type(None)))


def encode_checked(messages: Sequence[Message]) -> EncodedBatch:
    """Messages as a batch, each within the model's limits. Encoding checks most at the speed of C."""
    if type(messages) is not list and not isinstance(messages, Sequence):
        raise InvalidArgument(f"messages must be a list or another sequence, not {type(messages).__name__}")
    if len(messages) > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"{len(messages)} messages in one call; the limit is {BATCH_MESSAGES_MAX}")
    if not _are_plain(messages):
        for message in messages:
            check_message(message)
    try:
        return encode(messages)
    except PenstockError:
        raise
    except Exception:
        # Look message by message for the one to blame.
        for message in messages:
            check_message(message)
        raise


def _are_plain(messages: Sequence[Message]) -> bool:
    """Whether no type is in doubt that encoding takes for another: a tuple for a list, a time without its zone."""
    if set(map(type, messages)) != {Message} or {type(message.payload) for message in messages} != {bytes}:
        return False
    return {
        type(value) for message in messages if message.headers is not None for value in _values(message.headers)
    } <= _PLAIN_HEADERS


def _values(headers: object) -> Sequence[Any]:
    return list(headers.values()) if isinstance(headers, dict) else [headers, ...]


def frame(batch: EncodedBatch) -> tuple[bytes, bytes]:
    """The body of a request: its beginning, and the rest where that is large."""
    if not isinstance(batch, EncodedBatch):
        raise InvalidArgument(f"a batch must be a penstock.EncodedBatch, not {type(batch).__name__}")
    return (to_bytes(batch), b"") if len(batch.body) < LARGE_BODY_BYTES else to_parts(batch)


_decode_publish: Final = msgspec.json.Decoder(PublishAnswer).decode


def receipt_of(body: bytes) -> Receipt:
    answer = _decode_publish(body)
    if answer.parts is not None:
        return Receipt(answer.count, [_part(part) for part in answer.parts])
    return Receipt(answer.count, [_single(result) for result in answer.results or ()])


def _part(part: PartBody) -> tuple[str, int, Appended, Sequence[int] | None]:
    return part.queue, part.lane, Appended(part.offset, part.count, part.duplicates), part.indexes


def _single(result: PublishedBody) -> tuple[str, int, Appended, Sequence[int] | None]:
    duplicates = {0: result.offset} if result.duplicate else {}
    appended = Appended(result.offset, 0 if result.duplicate else 1, duplicates)
    return result.queue, result.lane, appended, [result.index]


def places_of(receipt: Receipt) -> list[list[Published]]:
    """Of each message, the places it went to."""
    places: list[list[Published]] = [[] for _ in range(len(receipt))]
    for index, place in receipt.numbered():
        places[index].append(place)
    return places


# Claims and reads ----------------------------------------------------------------------------------------

_decode_claim: Final = msgspec.msgpack.Decoder(EncodedClaim).decode
_decode_read: Final = msgspec.msgpack.Decoder(EncodedRead).decode


def claim_of(body: bytes) -> Claim:
    answer = _decode_claim(body)
    lease = None if answer.lease is None else Lease.parse(answer.lease)
    return Claim(answer.queue, answer.lane, lease, answer.deadline_ms, [_slice(part) for part in answer.slices])


def _slice(part: EncodedSlice) -> Slice:
    reader = Reader(EncodedBatch(part.count, part.meta, part.body))
    return Slice(reader, 0, part.count, part.offset, part.published_ms, part.attempt)


def read_of(body: bytes) -> StreamRead:
    answer = _decode_read(body)
    slices = [_slice(part) for part in answer.slices]
    return StreamRead(
        answer.queue, answer.lane, slices, answer.next_offset, answer.primary_committed, answer.done, answer.damaged
    )


# Verdicts ------------------------------------------------------------------------------------------------


def verdict_body(verdict: Verdict) -> VerdictBody:
    delay = None if verdict.delay_ms is None else verdict.delay_ms / 1000
    return VerdictBody(
        action=verdict.action,
        start=verdict.start,
        end=None if verdict.start is None else verdict.end,
        delay=delay,
        error=verdict.error,
    )
