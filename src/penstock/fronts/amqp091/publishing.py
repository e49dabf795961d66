"""Publishes of one channel: all that wait go to the broker together, in order, and are confirmed when they are durable.

What waits for the same exchange is one call; for several exchanges it is one transaction. Where the broker refuses the
whole because of some, it is cut in halves until those are alone: they get a nack, the others their ack. A message that
reached no queue is returned, if it was mandatory, before it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.batch import encode
from penstock.fronts.amqp091 import streams
from penstock.fronts.amqp091.declaring import have_exchange
from penstock.fronts.amqp091.errors import ChannelFault, fault_of, not_found, not_implemented
from penstock.fronts.amqp091.names import BUILT_IN, COMMIT, QUEUE_PREFIX, address_of
from penstock.fronts.amqp091.replies import REPLY_TO_BYTES, addressed
from penstock.model import Message
from penstock.model.errors import (
    Forbidden,
    InvalidArgument,
    NotFound,
    Overloaded,
    PenstockError,
    QueueFull,
    ResourceAlarm,
    Unavailable,
)
from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.events import Publish
from penstock.wire.amqp091.properties import Properties

if TYPE_CHECKING:
    from penstock.fronts.amqp091.channel import Channel

RUN_MESSAGES: Final = 5_000
RUN_BYTES: Final = 16 * 1024 * 1024
"""About the most that one call carries; the rest waits for the next."""
ENCODE_FROM: Final = 32
"""From this many messages on, routing works on columns instead of messages."""
AGAIN_SECONDS: Final = 0.05
AGAIN_TIMES: Final = 100
"""Attempts for a publish that the broker refused as overloaded."""


class Run(NamedTuple):
    """Publishes that follow each other and go to one exchange, or to one queue by its name."""

    exchange: str
    queue: str | None
    events: list[Publish]
    messages: list[Message]
    """Empty where it is the commit of a stream's offset."""


class Outcome(NamedTuple):
    """What became of messages, by their places, that were not simply stored."""

    unrouted: set[int]
    refused: set[int]


STORED: Final = Outcome(set(), set())


class Publishing:
    """Of one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.confirms = False
        self._next = 1
        """The number of the next message that is to be confirmed."""
        self._is_confirming = False
        self._flying: deque[tuple[Run, Ticket[Receipt]]] = deque()
        """What the broker has taken and is not durable yet, in order."""

    # Without a task ---------------------------------------------------------------------------------------

    def begin(self, events: Sequence[Publish]) -> bool:
        """Publish a few messages for one queue, if the broker takes them at once; whether it did."""
        runs, fault = self.runs(events)
        if fault is not None or len(runs) != 1:
            return False
        try:
            queue = self._queue_of(runs[0], runs[0].messages)
        except Forbidden:
            return False  # in its turn it is refused
        if queue is None:
            return False
        ticket = self._channel.broker.publish_many(queue, runs[0].messages)
        if ticket.error is not None or not ticket.in_order:
            ticket.close()  # before anything was done: in its turn it is tried again, and dealt with
            return False
        self._flying.append((runs[0], ticket))
        ticket.then(self._landed)
        return True

    def _landed(self, _: Ticket[Receipt]) -> None:
        """Confirm what is durable; what one commit has stored, with one answer."""
        if len(self._flying) == 1:
            self._confirm_landed()
        elif not self._is_confirming:
            self._is_confirming = True
            asyncio.get_running_loop().call_soon(self._confirm_landed)

    def _confirm_landed(self) -> None:
        self._is_confirming = False
        stored: list[Publish] = []
        while self._flying and self._flying[0][1].is_done:
            run, ticket = self._flying.popleft()
            self._channel.connection.published(run.events)
            error = ticket.error
            if error is None:
                stored += run.events
                continue
            self._answer(stored, STORED)
            stored = []
            assert isinstance(error, PenstockError)
            try:
                self._answer(run.events, self._refused(run.messages, error))
            except ChannelFault as fault:
                self._channel.fail(fault, codes.BASIC_PUBLISH)
        self._answer(stored, STORED)

    async def landed(self) -> None:
        """Wait until every publish under way is confirmed."""
        while self._flying:
            with suppress(PenstockError):
                await self._flying[-1][1]
            await asyncio.sleep(0)

    # In turn ----------------------------------------------------------------------------------------------

    async def publish(self, events: Sequence[Publish]) -> None:
        """Publish these, in order; raises the fault of the first that cannot be, after those before it."""
        runs, fault = self.runs(events)
        if len(runs) == 1 or not await self._together(runs):
            for run in runs:
                await (self._publish(run) if run.messages else self._commit(run))
        if fault is not None:
            raise fault

    # What is to be done -----------------------------------------------------------------------------------

    def runs(self, events: Sequence[Publish]) -> tuple[list[Run], ChannelFault | None]:
        """Runs of messages, up to one that cannot be published."""
        reader = self._channel.connection.reader
        runs: list[Run] = []
        exchange: bytes | None = None
        for event in events:
            try:
                if event.immediate:
                    raise not_implemented("immediate=true")
                key, queue = event.routing_key.decode(), None
                if not event.exchange and key.startswith(QUEUE_PREFIX):
                    queue, key = address_of(key)
                    if key == COMMIT:
                        runs.append(Run("", queue, [event], []))
                        exchange = None
                        continue
                    _check_key(event, key)
                properties = event.properties
                if REPLY_TO_BYTES in properties:
                    properties = addressed(self._channel, properties)
                message = reader.message(event.exchange, key, properties, event.body)
            except ChannelFault as fault:
                return runs, fault
            if event.exchange != exchange or runs[-1].queue != queue:
                exchange = event.exchange
                runs.append(Run(exchange.decode(), queue, [], []))
            runs[-1].events.append(event)
            runs[-1].messages.append(message)
        return runs, None

    async def _commit(self, run: Run) -> None:
        """A group of a stream has processed its messages up to an offset."""
        try:
            await streams.commit(self._channel.broker, run.queue or "", Properties(run.events[0].properties).headers)
        except PenstockError as error:
            raise fault_of(error) from None
        self._answer(run.events, STORED)

    # Doing it ---------------------------------------------------------------------------------------------

    async def _together(self, runs: Sequence[Run]) -> bool:
        """Publish several runs with one commit; whether that was done. If not, nothing was."""
        broker = self._channel.broker
        try:
            if not all(
                run.messages and (run.queue is None or broker.knows_queue(run.queue, "publish")) for run in runs
            ):
                return False
            for run in runs:
                await have_exchange(self._channel, run.exchange)
            transaction = broker.transaction()
            for run in runs:
                if run.queue is None:
                    transaction.publish_to(run.exchange, *run.messages)
                else:
                    transaction.publish(run.queue, *run.messages)
            receipt = await transaction.commit()
        except (NotFound, Forbidden, QueueFull, InvalidArgument):
            return False  # because of one of them: each by itself
        except PenstockError as error:
            if isinstance(error, Overloaded) and not isinstance(error, ResourceAlarm):
                return False
            for run in runs:
                self._answer(run.events, self._refused(run.messages, error))
            return True
        reached, first = reached_by(receipt), 0
        for run in runs:
            count = len(run.messages)
            unrouted = {index for index in range(count) if index + first not in reached}
            self._answer(run.events, Outcome(unrouted, set()))
            first += count
        return True

    async def _publish(self, run: Run) -> None:
        """Publish a run: the whole of it or, where the broker refuses that, its halves, one after the other."""
        chunks = [(0, len(run.messages))]
        while chunks:
            start, end = chunks.pop()
            outcome = await self._outcome(run, run.messages[start:end])
            if outcome is None:
                middle = (start + end) // 2
                chunks += [(middle, end), (start, middle)]
            else:
                self._answer(run.events[start:end], outcome)

    async def _outcome(self, run: Run, messages: Sequence[Message]) -> Outcome | None:
        """Publish messages of a run; None where nothing was done because of some of them."""
        for _ in range(AGAIN_TIMES):
            try:
                receipt = await self._send(run, messages)
                break
            except NotFound:
                if run.queue is not None or not run.exchange:
                    return Outcome(set(range(len(messages))), set())  # the queue has just been deleted
                if run.exchange not in BUILT_IN:
                    raise not_found("exchange", run.exchange, self._channel.vhost) from None
                await have_exchange(self._channel, run.exchange)
            except (QueueFull, InvalidArgument) as error:
                return None if len(messages) > 1 else self._refused(messages, error)
            except ResourceAlarm as error:
                return self._refused(messages, error)  # the broker has waited already
            except Overloaded:
                await asyncio.sleep(AGAIN_SECONDS)
            except PenstockError as error:
                return self._refused(messages, error)
        else:
            return self._refused(messages, Overloaded("the broker has had no room for this for a while"))
        if receipt is None:
            return STORED
        reached = reached_by(receipt)
        return Outcome({index for index in range(len(messages)) if index not in reached}, set())

    def _refused(self, messages: Sequence[Message], error: PenstockError) -> Outcome:
        """Nack the messages if the channel has confirms; otherwise only an error can say that they are not stored."""
        if isinstance(error, QueueFull) or (self.confirms and isinstance(error, Unavailable | Overloaded)):
            return Outcome(set(), set(range(len(messages))))
        raise fault_of(error)

    async def _send(self, run: Run, messages: Sequence[Message]) -> Receipt | None:
        """One call; None where every message has certainly reached a queue."""
        broker, queue = self._channel.broker, self._queue_of(run, messages)
        if queue is not None:
            await broker.publish_many(queue, messages)
            return None
        if len(messages) >= ENCODE_FROM:
            return await broker.publish_to(run.exchange, encode(messages))
        return await broker.publish_to(run.exchange, messages)

    def _queue_of(self, run: Run, messages: Sequence[Message]) -> str | None:
        """The one queue that all of these messages go to, where that is certain."""
        if run.queue is not None or run.exchange or not messages:
            return run.queue if messages else None
        key = messages[0].key or ""
        is_one = all(message.key == key for message in messages)
        return key if is_one and self._channel.broker.knows_queue(key, "publish") else None

    # Answers ----------------------------------------------------------------------------------------------

    def _answer(self, events: Sequence[Publish], outcome: Outcome) -> None:
        """Return what must be returned, then confirm: each message once, as few answers as can say it."""
        if not events:
            return
        channel = self._channel
        channel.connection.host.measures.published += len(events) - len(outcome.refused)
        if channel.is_closed:
            return  # by a fault: its number may be another channel's by now
        for index in sorted(outcome.unrouted):
            self.send_back(events[index])
        if self.confirms:
            self._confirm(len(events), outcome.refused)
        channel.connection.flush_soon()

    def send_back(self, event: Publish) -> None:
        """Return a message that has reached no queue, if its publisher wants it."""
        if event.mandatory:
            self._channel.connection.wire.return_message(event)

    def _confirm(self, count: int, refused: set[int]) -> None:
        """All before these are confirmed already, so that one answer speaks for a run of equal ones."""
        channel, confirm = self._channel, self._channel.connection.wire.confirm
        start, first = 0, self._next
        self._next += count
        for index in range(1, count + 1):
            if index == count or (index in refused) != (start in refused):
                confirm(channel.number, first + index - 1, index - start > 1, refused=start in refused)
                start = index


def _check_key(event: Publish, key: str) -> None:
    if key.rpartition("/")[2].startswith("$"):
        text = f"'{event.routing_key.decode()}': levels with $ are the system's; settle with basic.ack, nack and reject"
        raise ChannelFault(codes.ACCESS_REFUSED, text)


def reached_by(receipt: Receipt) -> set[int]:
    """The messages of a request that went to some queue, or will when the store is back."""
    if receipt.buffered:
        return set(range(len(receipt)))
    reached: set[int] = set()
    for _, _, appended, indexes in receipt.parts:
        if indexes is None:
            reached.update(range(appended.count + len(appended.duplicates)))
        else:
            reached.update(indexes)
    return reached
