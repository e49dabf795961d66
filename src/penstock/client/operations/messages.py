"""Publish, claim and settle, read streams, from a client; and what of it may be sent twice.

A publish carries an id for the whole of it, under which the server stores it once however often it arrives. A claim
whose answer was lost leaves its messages leased until the lease ends. A settle that is repeated may find its lease
settled by itself: then it says that this is so. Next stop of all of them: `client/transport/channel.py`.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final
from urllib.parse import unquote

from penstock import telemetry
from penstock.api.arguments import (
    WAIT_SECONDS_MAX,
    check_number,
    check_publish_id,
    check_verdicts,
    lease_of,
)
from penstock.api.broker import Broker
from penstock.api.results import Claim, LeaseLike, Published, Receipt, StreamRead
from penstock.batch import EncodedBatch, decode_meta, encode
from penstock.client.operations.codec import (
    claim_of,
    encode_checked,
    frame,
    read_of,
    receipt_of,
    verdict_body,
    with_publish_id,
    with_query,
)
from penstock.client.operations.requests import SENDS_BATCH, TAKES_BATCHES, TAKES_JSON, Requests, requested
from penstock.client.publish_coalescer import LARGE_BYTES, Sharing, size_of
from penstock.client.transport.channel import OutcomeUnknown, Reply, Request, is_repeat, mark_repeated
from penstock.model import DEFAULT_GROUP, LOST_TURNS_MAX, Message, check_message
from penstock.model.errors import InvalidBatch, LeaseLost
from penstock.model.verdict import Verdict
from penstock.wire.http.shapes import (
    BUFFERED,
    ClaimRequest,
    NextRequest,
    ReadRequest,
    SettleRequest,
    encode_json,
)

LATE_S: Final = 1.0
"""A claim that is answered so much later than it should be is not trusted before its lease was extended."""


class ClientMessages(Requests):
    """Moves messages."""

    @cached_property
    def _sharing(self) -> Sharing:
        return Sharing(self._publish_plain)

    # Publish ----------------------------------------------------------------------------------------------

    async def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Published:
        check_message(message)
        path = self._target("queues", queue, "messages")
        if telemetry.is_on() or publish_id is not None:
            return (await self._publish(path, [message], publish_id)).first()
        way = self._sharing.way(path)
        if not way.is_quiet and (size := len(message.payload)) < LARGE_BYTES:
            return (await way.join([message], size)).first()
        way.enter()
        try:
            has_ids = message.dedup_id is not None
            return (await self._publish_batch(path, encode([message]), None, has_ids, None, b"")).first()
        finally:
            way.leave()

    async def publish_many(self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None) -> Receipt:
        path = self._target("queues", queue, "messages")
        if telemetry.is_on() or publish_id is not None:
            return await self._publish(path, messages, publish_id)
        way = self._sharing.way(path)
        if not way.is_quiet and (size := size_of(messages)) < LARGE_BYTES:
            return await way.join(list(messages), size)
        way.enter()
        try:
            return await self._publish_plain(path, messages)
        finally:
            way.leave()

    async def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Receipt:
        return await self._publish(self._target("queues", queue, "messages"), batch, publish_id)

    async def publish_to(
        self,
        exchange: str,
        messages: Message | Sequence[Message] | EncodedBatch,
        *,
        mandatory: bool = False,
        publish_id: str | None = None,
    ) -> Receipt:
        path = self._target("exchanges", exchange, "messages")
        if mandatory:
            path = with_query(path, mandatory="true")
        if isinstance(messages, Message):
            check_message(messages)
            messages = [messages]
        return await self._publish(path, messages, publish_id)

    async def _publish(
        self,
        path: bytes,
        messages: Sequence[Message] | EncodedBatch,
        publish_id: str | None,
        idempotent: bool | None = None,
    ) -> Receipt:
        """Publish once, however often it must be sent for that."""
        check_publish_id(publish_id)
        if not telemetry.is_on():
            return await self._publish_now(path, messages, publish_id, idempotent, b"")
        with telemetry.producer_span(unquote(path.split(b"/")[3])):
            if not isinstance(messages, EncodedBatch):
                messages = telemetry.inject_all(messages)
            header = telemetry.traceparent()
            line = b"" if header is None else b"traceparent: %b\r\n" % header.encode()
            return await self._publish_now(path, messages, publish_id, idempotent, line)

    def _publish_plain(self, path: bytes, messages: Sequence[Message]) -> Coroutine[Any, Any, Receipt]:
        """Publish messages for which nothing was asked."""
        return self._publish_now(path, messages, None, None, b"")

    async def _publish_now(
        self,
        path: bytes,
        messages: Sequence[Message] | EncodedBatch,
        publish_id: str | None,
        idempotent: bool | None,
        header: bytes,
    ) -> Receipt:
        batch = messages if isinstance(messages, EncodedBatch) else encode_checked(messages)
        if batch.count == 0:
            if isinstance(messages, EncodedBatch):
                raise InvalidBatch("the batch is empty")
            return Receipt(0, [])
        has_ids = publish_id is None and _has_ids(messages)
        return await self._publish_batch(path, batch, publish_id, has_ids, idempotent, header)

    async def _publish_batch(
        self,
        path: bytes,
        batch: EncodedBatch,
        publish_id: str | None,
        has_ids: bool,
        idempotent: bool | None,
        header: bytes,
    ) -> Receipt:
        """The same for a batch of which it is known whether every message has an id of its own."""
        if publish_id is None and not has_ids and (self._idempotent if idempotent is None else idempotent):
            publish_id = self._ids.new()
        if publish_id is not None:
            path = with_publish_id(path, publish_id)
        is_repeatable = has_ids or publish_id is not None
        body, more = frame(batch)
        request = Request(b"POST", path, body, SENDS_BATCH + header, None, is_repeatable, more)
        answer = await self._channel.send(request, self._retry)
        if answer.status == BUFFERED:
            _, _, kind, name, *_ = path.split(b"/")
            return Receipt(batch.count, (), buffered_for=unquote(name) if kind == b"queues" else "")
        return receipt_of(answer.body)

    # Consume ----------------------------------------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        max: int = 1,
        min: int = 1,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        partition: str | None = None,
        consumer: str | None = None,
        ack: bool = False,
        priority: int = 0,
    ) -> Claim:
        name = self.consumer_name if consumer is None else consumer
        body = ClaimRequest(
            group=group,
            max=max,
            min=min,
            wait=wait,
            lease_seconds=lease_seconds,
            partition=partition,
            consumer=name,
            ack=ack,
            priority=priority,
        )
        # A claim that acknowledges is done when it is sent: repeated, it would lose what the first one took.
        request = self._waiting(self._target("queues", queue, "claim"), body, wait, is_repeatable=not ack)
        while True:
            began = time.monotonic()
            claim = claim_of((await self._channel.send(request, self._retry)).body)
            if await self._is_timely(claim, began, wait, lease_seconds):
                return claim

    async def _is_timely(self, claim: Claim, began: float, wait: float, lease_seconds: float | None) -> bool:
        """Whether the messages of a claim are this consumer's, however long its answer took."""
        if claim.lease is None or time.monotonic() - began < wait + _late_s(lease_seconds):
            return True
        # It was held up on its way: its lease may be over, and another consumer be done with the messages.
        with suppress(LeaseLost):
            claim.deadline_ms = await self.extend(claim, lease_seconds)
            return True
        return False

    def _waiting(self, path: bytes, body: object, wait: float, *, is_repeatable: bool) -> Request:
        """A request whose answer may take as long as the caller is willing to wait."""
        check_number(wait, "wait", 0, WAIT_SECONDS_MAX)
        timeout_s = self._channel.timeout_s + wait
        return Request(b"POST", path, encode_json(body), TAKES_BATCHES, timeout_s, is_repeatable)

    async def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> None:
        check_verdicts(verdicts)
        body = SettleRequest([verdict_body(verdict) for verdict in verdicts])
        await self._settle(lease, "settle", body, TAKES_JSON)

    async def settle_and_claim(
        self,
        lease: LeaseLike,
        verdicts: Sequence[Verdict] | None = None,
        *,
        max: int = 1,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Claim:
        bodies = None
        if verdicts is not None:
            check_verdicts(verdicts)
            bodies = [verdict_body(verdict) for verdict in verdicts]
        name = self.consumer_name if consumer is None else consumer
        body = NextRequest(verdicts=bodies, max=max, lease_seconds=lease_seconds, consumer=name)
        began = time.monotonic()
        claim = claim_of((await self._settle(lease, "next", body, TAKES_BATCHES)).body)
        if await self._is_timely(claim, began, 0.0, lease_seconds):
            return claim
        return Claim(claim.queue, claim.lane, None, 0, [])

    async def _settle(self, lease: LeaseLike, what: str, body: object, takes: bytes) -> Reply:
        """Send verdicts on a lease, which may have been carried out before where the answer was lost."""
        path = self._target("leases", str(lease_of(lease)), what)
        try:
            return await self._channel.send(Request(b"POST", path, encode_json(body), takes), self._retry)
        except LeaseLost as error:
            if is_repeat(error):
                raise unsure_of(error, "settled") from error
            raise

    extend = requested(Broker.extend)

    # Streams ----------------------------------------------------------------------------------------------

    async def read(
        self,
        queue: str,
        group: str,
        *,
        max: int = 100,
        wait: float = 0.0,
        consumer: str | None = None,
        turn: str | None = None,
        lost: Sequence[str] = (),
    ) -> StreamRead:
        name = self.consumer_name if consumer is None else consumer
        path = self._target("queues", queue, "groups", group, "read")
        reader = (queue, group, name)
        known = self._lost_reads.get(reader, ())
        for left in reversed(range(self._retry.attempts)):
            this = turn or self._ids.new()
            told = [*lost, *known][-LOST_TURNS_MAX:]
            body = ReadRequest(max=max, wait=wait, consumer=name, turn=this, lost=told)
            request = self._waiting(path, body, wait, is_repeatable=False)
            try:
                return read_of((await self._channel.send(request, self._retry)).body)
            except BaseException as error:
                # What it was given counts as handed to this consumer, and so would what it is given when it arrives
                # late: the next read says that nobody has it.
                known = (*known, this)[-LOST_TURNS_MAX:]
                self._note_lost(reader, known)
                if turn is not None or not left or not isinstance(error, OutcomeUnknown):
                    raise
        raise AssertionError("the last attempt returns or raises")

    commit = requested(Broker.commit)

    async def read_from(
        self,
        queue: str,
        offset: int | None = None,
        *,
        time_ms: int | None = None,
        max: int = 100,
        lane: int | None = None,
        wait: float = 0.0,
    ) -> StreamRead:
        check_number(wait, "wait", 0, WAIT_SECONDS_MAX)
        path = with_query(
            self._target("queues", queue, "log"), offset=offset, time_ms=time_ms, max=max, lane=lane, wait=wait or None
        )
        request = Request(b"GET", path, b"", TAKES_BATCHES, self._channel.timeout_s + wait)
        reply = await self._channel.send(request, self._retry)
        return read_of(reply.body)


def unsure_of(error: LeaseLost, done: str) -> LeaseLost:
    """What `LeaseLost` means where the request was sent before and its answer was lost."""
    unsure = LeaseLost(
        f"{error}; the request was sent before and its answer was lost, so it is not known whether this call {done} it "
        "or the lease had ended"
    )
    mark_repeated(unsure)
    return unsure


def _has_ids(messages: Sequence[Message] | EncodedBatch) -> bool:
    """Whether every message has a dedup id of its own, so that sending it twice stores it once."""
    if not isinstance(messages, EncodedBatch):
        return all(message.dedup_id is not None for message in messages)
    ids = decode_meta(messages.meta, messages.count).dedup_id if messages.meta else None
    return ids is not None and None not in ids


def _late_s(lease_seconds: float | None) -> float:
    return LATE_S if lease_seconds is None else min(LATE_S, lease_seconds)
