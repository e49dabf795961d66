"""From the broker's results to the API's shapes, and from verdicts in JSON to the broker's. No I/O."""

from __future__ import annotations

from binascii import b2a_base64
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from penstock import telemetry
from penstock.api.arguments import milliseconds, verdicts_of
from penstock.api.results import Claim, Receipt, Received, Slice, StreamRead
from penstock.api.slices import PIECE_ITEMS, SLICE_ITEMS, in_slices, in_turns, others_first
from penstock.fronts.http.request import Answer, json_answer
from penstock.model import SPAN_MS_MAX, Message
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Verdict
from penstock.model.work import Steps
from penstock.wire.http.shapes import (
    BUFFERED,
    BufferedAnswer,
    BufferedBody,
    ClaimAnswer,
    EncodedClaim,
    EncodedSlice,
    MessageBody,
    PartBody,
    PublishAnswer,
    PublishedBody,
    ReadAnswer,
    VerdictBody,
    encode_json,
    received_body,
)

SLICE_BYTES: Final = 512 * 1024
"""Encoded bytes after which other work has its turn, while an answer of many messages is made."""
RECEIVED_ITEMS: Final = 100
"""Messages of an answer that are encoded at a time; as many or fewer at once."""
PIECE_BYTES: Final = 192 * 1024
"""Of a payload that is encoded at a time: whole groups of three bytes, as base64 takes them. As many at once."""


def results_answer(receipt: Receipt) -> Answer:
    """Where each message went, one by one."""
    if receipt.buffered:
        bodies = [BufferedBody(index) for index in range(len(receipt))]
        return json_answer(BufferedAnswer(len(receipt), "buffered", bodies), BUFFERED)
    results = [
        PublishedBody(index, place.queue, place.lane, place.offset, place.duplicate)
        for index, place in receipt.numbered()
    ]
    return json_answer(PublishAnswer(len(receipt), results=results))


async def many_results_answer(receipt: Receipt) -> Answer:
    """The same of many messages, in slices."""
    if receipt.buffered or len(receipt) <= SLICE_ITEMS:
        return results_answer(receipt)

    def encode(places: Sequence[int]) -> list[bytes]:
        part = receipt.slice(places[0], places[-1] + 1)
        bodies = [
            PublishedBody(places[0] + index, place.queue, place.lane, place.offset, place.duplicate)
            for index, place in part.numbered()
        ]
        return [encode_json(bodies)[1:-1]] if bodies else []

    items = await in_slices(range(len(receipt)), encode)
    return _with_items(PublishAnswer(len(receipt), results=[]), b'"results":[]', items)


def _with_items(outline: PublishAnswer | ClaimAnswer | ReadAnswer, empty: bytes, items: Sequence[bytes]) -> Answer:
    """The answer whose list, `empty` in the outline, has these items. No text in JSON looks like the list: its quotes
    would have a backslash before them.
    """
    return _filled(outline, empty, [piece for item in items for piece in (b",", item)])


def _filled(outline: PublishAnswer | ClaimAnswer | ReadAnswer, empty: bytes, pieces: Sequence[bytes]) -> Answer:
    """The same with items in pieces, a comma before each item."""
    before, _, after = encode_json(outline).partition(empty)
    return Answer(200, (before + empty[:-1], *pieces[1:], b"]" + after))


def parts_answer(receipt: Receipt) -> Answer:
    """Where runs of messages went."""
    if receipt.buffered:
        return json_answer(BufferedAnswer(len(receipt), "buffered"), BUFFERED)
    parts = [
        PartBody(
            queue, lane, appended.base, appended.count, appended.duplicates, None if places is None else list(places)
        )
        for queue, lane, appended, places in receipt.parts
    ]
    return json_answer(PublishAnswer(len(receipt), parts=parts))


async def claim_answer(claim: Claim) -> Answer:
    is_few = _is_few(claim)
    outline = ClaimAnswer(
        queue=claim.queue,
        lane=claim.lane,
        lease=None if claim.lease is None else str(claim.lease),
        deadline_ms=claim.deadline_ms,
        messages=[received_body(received) for received in claim.messages] if is_few else [],
    )
    return json_answer(outline) if is_few else await _with_messages(outline, claim)


async def read_answer(read: StreamRead) -> Answer:
    is_few = _is_few(read)
    outline = ReadAnswer(
        queue=read.queue,
        lane=read.lane,
        next_offset=read.next_offset,
        messages=[received_body(received) for received in read.messages] if is_few else [],
        primary_committed=read.primary_committed,
        damaged=read.damaged,
    )
    return json_answer(outline) if is_few else await _with_messages(outline, read)


def _is_few(found: Claim | StreamRead) -> bool:
    """Whether all messages of an answer may be encoded at once."""
    return len(found) <= RECEIVED_ITEMS and sum([part.unfolded for part in found.slices]) <= SLICE_BYTES


async def _with_messages(outline: ClaimAnswer | ReadAnswer, found: Claim | StreamRead) -> Answer:
    """The answer with its messages, which are decoded and encoded a slice at a time."""
    pieces: list[bytes] = []
    count = size = place = 0
    done = found.done if isinstance(found, StreamRead) else None
    for part in found.slices:
        at_once = max(1, min(RECEIVED_ITEMS, SLICE_BYTES // part.reader.bytes_each))
        for start in range(part.start, part.stop, at_once):
            stop = min(part.stop, start + at_once)
            some = replace(part, start=start, stop=stop, offset=part.offset + start - part.start)
            received = list(some.messages(found.queue, found.lane))
            if done is not None:
                received = [replace(one, done=is_done) for one, is_done in zip(received, done[place:], strict=False)]
            place += len(received)
            encoded = await in_turns(_received_pieces(received))
            pieces += encoded
            count += len(received)
            size += sum(map(len, encoded))
            if count >= PIECE_ITEMS or size >= SLICE_BYTES:
                count = size = 0
                await others_first()
    return _filled(outline, b'"messages":[]', pieces)


def _received_pieces(received: Sequence[Received]) -> Steps[list[bytes]]:
    """Messages in JSON, a comma before each: large ones piece by piece, with a stop after each piece."""
    if max(len(one.message.payload) for one in received) <= PIECE_BYTES:
        return [b",", encode_json([received_body(one) for one in received])[1:-1]]
    pieces: list[bytes] = []
    for one in received:
        empty = encode_json(received_body(replace(one, message=replace(one.message, payload=b""))))
        before, _, after = empty.partition(b'"payload":""')
        field = yield from _payload_field(one.message.payload)
        pieces += (b",", before, *field, after)
    return pieces


def _payload_field(payload: bytes) -> Steps[list[bytes]]:
    """What `received_body` makes of a payload: text where it is UTF-8, base64 otherwise."""
    starts = range(0, len(payload), PIECE_BYTES)
    decoder, pieces = getincrementaldecoder("utf-8")(), [b'"payload":"']
    try:
        for start in starts:
            text = decoder.decode(payload[start : start + PIECE_BYTES], start == starts[-1])
            pieces.append(encode_json(text)[1:-1])
            yield None
    except UnicodeDecodeError:
        pieces = [b'"payload_base64":"']
        for start in starts:
            pieces.append(b2a_base64(payload[start : start + PIECE_BYTES], newline=False))
            yield None
    pieces.append(b'"')
    return pieces


def encoded_claim(claim: Claim) -> EncodedClaim:
    lease = None if claim.lease is None else str(claim.lease)
    return EncodedClaim(claim.queue, claim.lane, lease, claim.deadline_ms, encoded_slices(claim.slices))


def encoded_slices(slices: Sequence[Slice]) -> list[EncodedSlice]:
    """Batches as they are stored; only one of which a part was taken is cut."""
    encoded: list[EncodedSlice] = []
    for part in slices:
        batch = part.reader.cut(part.start, part.stop)
        encoded.append(EncodedSlice(part.offset, part.published_ms, part.attempt, batch.count, batch.meta, batch.body))
    return encoded


async def many_verdicts(bodies: Sequence[VerdictBody]) -> list[Verdict]:
    """The same of many, in slices."""
    return await in_slices(bodies, verdicts)


async def many_messages(bodies: Sequence[MessageBody]) -> list[Message]:
    """The same of many, in slices."""
    return await in_slices(bodies, messages_of)


def messages_of(bodies: Sequence[MessageBody]) -> Sequence[Message]:
    """Messages to publish."""
    return telemetry.inject_all([body.message() for body in bodies])


def verdicts(bodies: Sequence[VerdictBody]) -> list[Verdict]:
    """The broker's verdicts: a body with many offsets becomes one a run."""
    return [verdict for body in bodies for verdict in _verdicts(body)]


def _verdicts(body: VerdictBody) -> list[Verdict]:
    delay_ms = None if body.delay is None else milliseconds(body.delay, "delay", 0, SPAN_MS_MAX)
    if body.delay is not None and body.action not in ("nack", "postpone"):
        raise InvalidArgument(f"delay is for nack and postpone, not for {body.action}")
    if body.action == "postpone" and delay_ms is None:
        raise InvalidArgument("postpone needs a delay in seconds")
    if body.error and body.action not in ("nack", "reject"):
        raise InvalidArgument(f"error is for nack and reject, not for {body.action}")
    if (body.start is None) != (body.end is None) or (body.start is not None and body.offsets is not None):
        raise InvalidArgument("a verdict is about offsets, about start and end together, or, with neither, about all")
    if body.start is not None and body.end is not None:
        return [Verdict(body.action, body.start, body.end, delay_ms, body.error)]
    if body.offsets is not None and not body.offsets:
        raise InvalidArgument("offsets is empty; leave it out to settle all that is left of the lease")
    return [*verdicts_of(body.action, body.offsets, delay_ms, body.error)]
