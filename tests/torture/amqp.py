"""Who speaks AMQP 0.9.1 in a torture run, through aio-pika: each connection to any node, and to another when it ends.

What the protocol promises is checked, and no more. A confirm says that a message is stored; what was not confirmed may
be there once, or not, and is not sent again. An acknowledgement is not answered, so a message may come again after it;
one inside a transaction is, by commit-ok.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

import aio_pika
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from tests.torture.ledger import MOVES, Ledger
from tests.torture.party import Party

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractTransaction

Result = TypeVar("Result")

ERRORS: Final = (*CONNECTION_EXCEPTIONS, TimeoutError)
CALL_S: Final = 10.0
HEARTBEAT_S: Final = 3
IDLE_S: Final = 0.2
"""A consumer settles what it has when nothing came for so long."""
PREFETCHES: Final = (1, 10, 100)
ENDS_SHARE: Final = 0.01
"""Of all settlements, those in whose place a consumer ends its connection, with all that it holds."""
REQUEUED_SHARE: Final = 0.03


class AmqpParty(Party):
    """Each publishes or takes until it is told to stop or cancelled, over one connection after the other."""

    def __init__(self, places: list[tuple[str, int]], ledger: Ledger, seed: int) -> None:
        super().__init__(ledger, seed)
        self._places = places

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[AbstractConnection, asyncio.Event]]:
        """One to any node, and what tells that it has ended."""
        host, port = self._chance.choice(self._places)
        url = f"amqp://guest:guest@{host}:{port}/?heartbeat={HEARTBEAT_S}"
        connection = await _answered(aio_pika.connect(url))
        ended = asyncio.Event()
        connection.close_callbacks.add(lambda *_: ended.set())
        try:
            yield connection, ended
        finally:
            with suppress(*ERRORS):
                await _answered(connection.close())

    # Publishing --------------------------------------------------------------------------------------------

    async def publish(self, queue: str) -> None:
        """Several at once on a channel with confirms."""
        numbers = count()
        for life in count():
            if self._stopped:
                return
            try:
                async with self._connection() as (connection, _):
                    channel = await _answered(connection.channel())
                    while not self._stopped:
                        ids = [f"{queue}{next(numbers)}" for _ in range(self._chance.choice((1, 10, 50)))]
                        await _answered(self._publish(channel, queue, ids, f"connection {life}"))
                        await self._breathe(queue)
            except ERRORS:
                await self._refused()

    async def _publish(self, channel: AbstractChannel, queue: str, ids: list[str], connection: str) -> None:
        self._ledger.ask(queue, ids)
        exchange = channel.default_exchange
        answers = await asyncio.gather(
            *(exchange.publish(aio_pika.Message(id.encode()), queue) for id in ids),
            return_exceptions=True,
        )
        kept = [id for id, answer in zip(ids, answers, strict=True) if not isinstance(answer, BaseException)]
        self._ledger.confirm(queue, kept)
        self._ledger.in_line(queue, connection, kept)
        if len(kept) < len(ids):
            raise ConnectionError("a publish was not confirmed")

    # Consuming ---------------------------------------------------------------------------------------------

    async def consume(self, queue: str) -> None:
        """Acknowledges, one by one and many at once; gives some back; and goes away now and then."""
        while True:
            try:
                async with self._connection() as (connection, ended):
                    channel = await _answered(connection.channel(publisher_confirms=False))
                    inbox = await _answered(self._inbox(channel, queue))
                    while self._stopped or self._chance.random() >= ENDS_SHARE:
                        messages = await _some(ended, inbox)
                        await _answered(self._settle(queue, messages))
            except ERRORS:
                await self._refused()

    async def _inbox(self, channel: AbstractChannel, queue: str) -> asyncio.Queue[AbstractIncomingMessage]:
        """What is delivered from a queue from now on; noted as it comes, before it waits here."""
        inbox: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

        async def delivered(message: AbstractIncomingMessage) -> None:
            self._ledger.deliver(queue, [message.body.decode()], time.monotonic())
            inbox.put_nowait(message)

        await channel.set_qos(self._chance.choice(PREFETCHES))
        place = await channel.get_queue(queue, ensure=False)
        await place.consume(delivered)
        return inbox

    async def _settle(self, queue: str, messages: list[AbstractIncomingMessage]) -> None:
        if not messages:
            return
        if self._chance.random() < REQUEUED_SHARE and not self._stopped:
            for message in messages:
                await message.nack(requeue=True)
            return
        self._ledger.ack_ask(queue, [message.body.decode() for message in messages])
        if self._chance.random() < 0.5:
            await messages[-1].ack(multiple=True)
        else:
            for message in messages:
                await message.ack()

    async def move(self, source: str) -> None:
        """Acknowledge and publish in transactions: of all tries to move a message, one takes place."""
        turns = count()
        while True:
            try:
                async with self._connection() as (connection, ended):
                    channel = await _answered(connection.channel(publisher_confirms=False))
                    transaction = channel.transaction()
                    await _answered(transaction.select())
                    inbox = await _answered(self._inbox(channel, source))
                    while self._chance.random() >= ENDS_SHARE:
                        messages = await _some(ended, inbox)
                        if messages:
                            move = self._move(channel, transaction, messages, source, next(turns))
                            await _answered(move)
            except ERRORS:
                await self._refused()

    async def _move(
        self,
        channel: AbstractChannel,
        transaction: AbstractTransaction,
        messages: list[AbstractIncomingMessage],
        source: str,
        turn: int,
    ) -> None:
        (target,) = MOVES[source]
        names = [message.body.decode() for message in messages]
        made = [f"{name}>{turn}.{self._chance.random()}" for name in names]
        self._ledger.move_ask(source, names, made)
        for message, product in zip(messages, made, strict=True):
            await message.ack()
            await channel.default_exchange.publish(aio_pika.Message(product.encode()), target)
        await transaction.commit()
        self._ledger.moved(source, names, made)


async def _some(ended: asyncio.Event, inbox: asyncio.Queue[AbstractIncomingMessage]) -> list[AbstractIncomingMessage]:
    """What has come; raises when the connection has ended, and what came on it with it."""
    with suppress(TimeoutError):
        messages = [await asyncio.wait_for(inbox.get(), IDLE_S)]
        while not inbox.empty():
            messages.append(inbox.get_nowait())
        return messages
    if ended.is_set():
        raise ConnectionError("the connection has ended")
    return []


async def _answered(call: Awaitable[Result]) -> Result:
    """What a call comes to. One that takes too long is left to itself: aiormq may not let go when it is cancelled."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task], timeout=CALL_S)
    finally:
        task.cancel()
    if not task.done():
        raise TimeoutError("no answer")
    if task.cancelled():
        raise ConnectionError("the connection ended meanwhile")
    if type(task.exception()) is Exception:  # aiormq's, for what was being written when the connection ended
        raise ConnectionError("the connection ended meanwhile") from task.exception()
    return task.result()
