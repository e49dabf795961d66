"""One consumer of a work queue: a standing claim that takes what its credit allows, and delivers it.

Credit is the prefetch less what is not settled, of this consumer and, where that is limited too, of its channel. While
the client does not read, or has stopped the flow, nothing is claimed. What was claimed and cannot be sent any more goes
back as if it had never been handed out. `streams.py` has the consumers of streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.api.results import Claim, Slice
from penstock.fronts.amqp091.mapping import LOCAL, counted, outgoing, routing_key
from penstock.fronts.amqp091.settling import LEASE_SECONDS, RENEW_AFTER, ConsumerKey, Held, runs
from penstock.fronts.answers import is_large
from penstock.fronts.key_filter import KeyFilter
from penstock.model import Message
from penstock.model.errors import Closed, Forbidden, LimitReached, NotFound, PenstockError, WrongKind
from penstock.model.verdict import Verdict

if TYPE_CHECKING:
    from penstock.fronts.amqp091.channel import Channel

CLAIM_MAX: Final = 1_000
"""Messages taken at a time where no prefetch says less."""
WAIT_SECONDS: Final = 600.0
SINGLE_WAIT_SECONDS: Final = 10.0
"""For a queue with a single active consumer: claiming again shows the broker that it is alive."""
PAUSE_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 0.02
GONE: Final = (NotFound, Forbidden, LimitReached, WrongKind)
"""Errors by which a consumer has nothing to consume from any more."""

log = logging.getLogger("penstock.amqp")


class Standing:
    """Credit, and a task that runs until it is stopped: what all consumers share."""

    def __init__(self, channel: Channel, tag: str, place: ConsumerKey, *, no_ack: bool, prefetch: int) -> None:
        self.channel = channel
        self.tag = tag
        self.tag_bytes = tag.encode()
        self.place = place
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.unsettled = 0
        """Deliveries that are not settled."""
        self._wake: asyncio.Future[None] | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def credit_left(self) -> int:
        """How many messages the client wants."""
        channel = self.channel
        if self.no_ack:
            return CLAIM_MAX
        most = CLAIM_MAX if not self.prefetch else min(CLAIM_MAX, self.prefetch - self.unsettled)
        return most if not channel.prefetch else min(most, channel.prefetch - channel.unsettled)

    def room(self) -> int:
        """How many messages may be asked for now."""
        return self.credit_left() if self.channel.flows and not self.channel.connection.is_full else 0

    def delivered(self, count: int) -> None:
        self.unsettled += count
        self.channel.unsettled += count

    def credit(self) -> None:
        """One delivery was settled."""
        self.unsettled -= 1
        self.channel.unsettled -= 1
        if self.channel.prefetch:
            self.channel.look()
        else:
            self.look()

    def look(self) -> None:
        """Look again whether there is credit."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for credit, and so has no claim that would fail if its queue were deleted."""
        return self._wake is not None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._guarded())

    async def stop(self) -> None:
        """Claim no more; returns when the last claim is delivered or released."""
        self._stopping = True
        self.look()
        await self.hold()
        if self._task is not None and self._task is not asyncio.current_task():
            await asyncio.wait([self._task])

    async def hold(self) -> None:
        """End the wait for messages: with nothing, unless some are on their way."""
        raise NotImplementedError

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception:
            log.exception("a consumer of %r failed", self.place.queue)
            self.channel.consumer_gone(self)

    async def _run(self) -> None:
        """Take messages while there is room for them."""
        try:
            while not self._stopping:
                room = self.room()
                if room <= 0:
                    await self._wait_for_room()
                else:
                    await self._step(room)
        except GONE:
            self.channel.consumer_gone(self)
        except Closed:
            return

    async def _step(self, room: int) -> None:
        """Wait for messages, and deliver at most `room` of them."""
        raise NotImplementedError

    async def _wait_for_room(self) -> None:
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None


def _messages(part: Slice, decoded: Iterator[Message] | None) -> Iterable[Message]:
    """The messages of a slice, which are decoded now unless they are already."""
    if decoded is None:
        return part.reader.messages(part.start, part.stop)
    return islice(decoded, part.stop - part.start)


class Consumer(Standing):
    """A consumer of a work group."""

    def __init__(
        self,
        channel: Channel,
        tag: str,
        place: ConsumerKey,
        *,
        no_ack: bool,
        prefetch: int,
        priority: int = 0,
        skips_own: bool = False,
        wanted: KeyFilter | None = None,
        is_single: bool = False,
        is_limited: bool = False,
    ) -> None:
        super().__init__(channel, tag, place, no_ack=no_ack, prefetch=prefetch)
        self._priority = priority
        self._skips_own = skips_own
        self._filter = None if wanted is None or wanted.is_exact else wanted
        self._is_limited = is_limited
        """Its queue limits attempts: deliveries say how many there were."""
        self._wait = SINGLE_WAIT_SECONDS if is_single else WAIT_SECONDS
        self._claiming: asyncio.Future[None] | None = None

    async def hold(self) -> None:
        queue, group, consumer = self.place
        while (claiming := self._claiming) is not None:
            with suppress(PenstockError):
                await self.channel.broker.stop_waiting(queue, group, consumer=consumer)
            await asyncio.wait([claiming], timeout=LOOK_SECONDS)

    async def _step(self, room: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            claim = await self._claim(room)
        except (*GONE, Closed):
            raise
        except PenstockError as error:
            log.warning("a consumer of %r has to wait: %s", self.place.queue, error)
            await asyncio.sleep(PAUSE_SECONDS)
            return
        if claim.slices:
            await self._take(claim)
        elif loop.time() - began < LOOK_SECONDS and not self._stopping:
            await asyncio.sleep(LOOK_SECONDS)  # the broker is draining, or `stop_waiting` ended the wait

    async def _claim(self, most: int) -> Claim:
        queue, group, consumer = self.place
        self._claiming = asyncio.get_running_loop().create_future()
        try:
            return await self.channel.broker.claim(
                queue,
                group=group,
                max=most,
                wait=self._wait,
                lease_seconds=None if self.no_ack else LEASE_SECONDS,
                consumer=consumer,
                ack=self.no_ack,
                priority=self._priority,
            )
        finally:
            self._claiming.set_result(None)
            self._claiming = None

    async def _take(self, claim: Claim) -> None:
        """Deliver what may be delivered, and give back the rest."""
        channel = self.channel
        is_decoded = await self._admit(claim)
        if self.no_ack:
            while channel.connection.is_full and not self._stopping:  # it is acknowledged, and cannot be given back
                await self._wait_for_room()
            if not channel.is_closed:
                self._send(claim, None, len(claim), is_decoded)
            return
        is_wanted = not self._stopping and not channel.is_closed and channel.flows and not channel.connection.is_full
        wanted = max(self.credit_left(), 0) if is_wanted else 0
        count = len(claim)
        if wanted:
            assert claim.lease is not None
            held = Held(channel.settling, claim.lease, self.place, self, min(wanted, count), channel.connection.now())
            channel.settling.held.add(held)
            self._send(claim, held, wanted, is_decoded)
        if wanted < count:
            verdicts = [Verdict("release", start, end) for start, end in runs(claim.offsets()[wanted:])]
            with suppress(PenstockError):  # then they come back when the lease ends
                await channel.broker.settle(claim, verdicts)
        if is_decoded and not channel.connection.is_full:
            channel.connection.backlog.taken()  # also where nothing of it was sent

    async def _admit(self, claim: Claim) -> bool:
        """Wait until a large claim may be sent, and keep it meanwhile. Whether it is decoded already."""
        if not is_large(claim):
            return False
        admitting = asyncio.ensure_future(self.channel.connection.backlog.admit(claim))
        while not self._stopping:
            self._wake = asyncio.get_running_loop().create_future()
            await asyncio.wait([admitting, self._wake], timeout=RENEW_AFTER, return_when=asyncio.FIRST_COMPLETED)
            self._wake = None
            if admitting.done():
                return True
            if claim.lease is not None:
                with suppress(PenstockError):
                    await self.channel.broker.extend(claim.lease, LEASE_SECONDS)
        admitting.cancel()
        await asyncio.wait([admitting])
        return False

    def _send(self, claim: Claim, held: Held | None, most: int, is_decoded: bool) -> None:
        channel, tag_bytes = self.channel, self.tag_bytes
        wire, number, tag = channel.connection.wire, channel.number, channel.delivery_tag
        unacked, sent, skips = channel.settling.unacked, 0, self._skips_own or self._filter is not None
        skipped: list[int] = []
        decoded = iter([one.message for one in claim.messages]) if is_decoded else None
        for part in claim.slices:
            offset, redelivered = part.offset, part.attempt > 1
            for message in _messages(part, decoded):
                if sent + len(skipped) == most:
                    break
                if skips and not self._wants(message.key, message.headers):
                    skipped.append(offset)
                else:
                    exchange, properties = outgoing(message, part.published_ms)
                    if redelivered and self._is_limited:
                        properties = counted(properties, part.attempt)
                    tag += 1
                    wire.deliver(
                        number,
                        tag_bytes,
                        tag,
                        redelivered,
                        exchange,
                        routing_key(message.key),
                        properties,
                        message.payload,
                    )
                    if held is not None:
                        unacked[tag] = (held, offset)
                    sent += 1
                offset += 1
        channel.delivery_tag = tag
        channel.connection.host.measures.delivered += sent
        if held is not None:
            self.delivered(sent + len(skipped))
            for offset in skipped:
                held.settled("ack", offset)
            if skipped:
                channel.settling.start()
        channel.connection.flush()  # at once, not when those are answered who published it

    def _wants(self, key: str | None, headers: dict[str, object] | None) -> bool:
        if self._filter is not None and not self._filter.matches(key):
            return False
        return not (self._skips_own and headers is not None and headers.get(LOCAL) == self.channel.connection.name)
