"""From clients to the broker: publishes in their order, as many as have arrived in one call, answered after the commit.

What must happen together is one transaction: a message, its place among the retained ones, and the packet id by which
it is known again if the client repeats it (QoS 2). A call that fails as a whole is repeated message by message, so that
each gets its own answer. It may not know sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

import msgspec

from penstock.api.front_broker import FrontBroker
from penstock.api.results import Lease, Receipt
from penstock.batch import encode
from penstock.fronts.mqtt.errors import Refusal, log, refusal_of
from penstock.fronts.mqtt.measures import MqttMeasures
from penstock.fronts.mqtt.queues import ACTIONS
from penstock.fronts.mqtt.retained import RetainedMessages
from penstock.fronts.mqtt.subscription.subscriptions import QUEUE_PREFIX
from penstock.model import NAME_CHARACTERS_MAX, Message
from penstock.model.errors import Closed, LeaseLost, NotFound, PenstockError, Unavailable
from penstock.wire.mqtt.reasons import Reason

EXCHANGE: Final = "mqtt"
ENCODE_FROM: Final = 50
"""From this many messages on an encoded batch is routed faster: 1.5 µs each instead of 4 at 500 of them."""


class Wanted(msgspec.Struct):
    """One thing to publish, or only to record."""

    topic: str
    message: Message | None
    """None: nothing is published, the rows are all there is."""
    retain: bool = False
    rows: tuple[Message, ...] = ()
    """For the table of sessions."""
    queue: str = ""
    """Publish to this queue, in place of the exchange."""
    broker: FrontBroker | None = None
    """In the name of the client who publishes it: declares the queue where there is none."""
    refusal: Refusal | None = None
    is_matched: bool = True
    """Whether anybody was there to take it, as far as that is known."""
    lock: Lease | None = None
    """It is carried out only while this lease holds."""


def address(topic: str) -> tuple[str, str | None]:
    """(queue, key) of a topic: no queue for ordinary topics; raises `Refusal` for what nobody may publish to."""
    if len(topic) > NAME_CHARACTERS_MAX:
        raise Refusal(
            Reason.TOPIC_NAME_INVALID, f"the topic has {len(topic)} characters; the limit is {NAME_CHARACTERS_MAX}"
        )
    if not topic.startswith("$"):
        return "", topic
    if not topic.startswith(QUEUE_PREFIX):
        raise Refusal(
            Reason.TOPIC_NAME_INVALID, f"topics that begin with $ are the server's, but for $queue/…: {topic!r}"
        )
    name, _, key = topic.removeprefix(QUEUE_PREFIX).partition("/")
    if not name:
        raise Refusal(Reason.TOPIC_NAME_INVALID, f"{topic!r} names no queue")
    last = key.rpartition("/")[2]
    if last.startswith("$") and last not in ACTIONS:
        raise Refusal(Reason.TOPIC_NAME_INVALID, f"{topic!r}: a last level with $ is one of {', '.join(ACTIONS)}")
    return name, key or None


class Publishing:
    """The way to the broker for all connections."""

    def __init__(
        self,
        broker: FrontBroker,
        retained: RetainedMessages,
        sessions_queue: str,
        measures: MqttMeasures,
        *,
        declare: bool,
    ) -> None:
        self._broker = broker
        self._retained = retained
        self._sessions_queue = sessions_queue
        self._declare = declare
        self._measures = measures

    async def publish(self, wanted: Sequence[Wanted]) -> None:
        """Carry all of it out, in this order; each then says whether it was refused. Raises only `Closed`."""
        await self._check_room(wanted)
        left = [one for one in wanted if one.refusal is None]
        if not left:
            return
        try:
            await self._commit(left)
        except Closed:
            raise
        except Unavailable as error:
            # It may be in force after all: repeating it is the client's to decide, who knows what it wants once.
            for one in left:
                self.refuse(one, error)
        except PenstockError as error:
            if isinstance(error, LeaseLost) and any(one.lock is not None for one in left):
                # Not done; but its client, connected elsewhere by now, must not take that for the last word on it.
                lost = Refusal(Reason.UNSPECIFIED_ERROR, "another connection has the session by now", is_unsure=True)
                for one in left:
                    self.refuse(one, lost)
                return
            if len(left) == 1:
                await self._failed(left[0], error)
                return
            for one in left:
                await self.publish([one])

    async def _failed(self, one: Wanted, error: Exception) -> None:
        """What is to be done about one that cannot be published: a queue may be declared for it."""
        if self._declare and one.queue and isinstance(error, NotFound):
            try:
                await (one.broker or self._broker).declare_queue(one.queue)
                await self._commit([one])
                return
            except Closed:
                raise
            except PenstockError as again:
                error = again
        self.refuse(one, error)

    def refuse(self, one: Wanted, error: Exception) -> None:
        """One that is not published: counted, and told in the log, for not every client can be told why."""
        one.refusal = refusal_of(error)
        self._measures.refused += 1
        log.info("a message to %r was refused: %s", one.topic, one.refusal.text)

    async def _check_room(self, wanted: Sequence[Wanted]) -> None:
        retaining = [one for one in wanted if one.retain and one.message is not None and one.refusal is None]
        if not retaining:
            return
        try:
            await self._retained.table.catch_up()
        except Closed:
            raise
        except PenstockError as error:
            for one in retaining:
                self.refuse(one, error)
            return
        count = size = 0
        for one in retaining:
            assert one.message is not None
            try:
                self._retained.check_room(one.topic, one.message.payload, count, size)
                count += 1
                size += len(one.topic) + len(one.message.payload)
            except Refusal as refusal:
                self.refuse(one, refusal)

    async def _commit(self, wanted: Sequence[Wanted]) -> None:
        messages = [one.message for one in wanted if one.message is not None]
        if len(messages) == len(wanted) and not any(one.retain or one.rows or one.queue for one in wanted):
            batch = encode(messages) if len(messages) >= ENCODE_FROM else messages
            receipt = await self._broker.publish_to(EXCHANGE, batch)
            self._measures.published += len(messages)
            _note_unmatched(wanted, receipt)
            return
        retained = [one for one in wanted if one.retain and one.message is not None]
        if retained:
            await self._retained.table.make()
        transaction = self._broker.transaction()
        for lock in {one.lock for one in wanted if one.lock is not None}:
            transaction.settle(lock, ())
        for queue, run in groupby(wanted, key=lambda one: one.queue):
            run_messages = [one.message for one in run if one.message is not None]
            if queue:
                transaction.publish(queue, *run_messages)
            else:
                transaction.publish_to(EXCHANGE, *run_messages)
        if retained:
            rows = [self._retained.row(one.topic, one.message) for one in retained if one.message is not None]
            transaction.publish(self._retained.table.queue, *rows)
        recorded = [row for one in wanted for row in one.rows]
        if recorded:
            transaction.publish(self._sessions_queue, *recorded)
        await transaction.commit()
        self._measures.published += len(messages)


def _note_unmatched(wanted: Sequence[Wanted], receipt: Receipt) -> None:
    reached: set[int] = set()
    for _, _, _, indexes in receipt.parts:
        if indexes is None or len(indexes) == len(wanted):
            return
        reached.update(indexes)
    for index, one in enumerate(wanted):
        one.is_matched = index in reached
