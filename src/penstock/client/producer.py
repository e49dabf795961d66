"""Many small sends as few large publishes: collected for a moment, sent in order, each answered.

A producer holds what was sent until the server has it or has refused it. Where it would hold more than `buffer_bytes`,
`send` waits. Batches of a producer go out one after the other, so that the order of sends is the order in the queue,
also when one must be repeated. Knows a client's `_publish` and nothing of connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Self, TypedDict

from penstock.api.arguments import check_number
from penstock.api.results import Published
from penstock.client.operations.codec import places_of, with_query
from penstock.model import BATCH_BYTES_DEFAULT, BATCH_MESSAGES_MAX, Message, check_integer, check_message
from penstock.model.errors import Closed, InvalidArgument, MessageTooLarge, PenstockError, Unroutable

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

MESSAGE_BYTES = 200
"""What a message is counted for besides its payload: metadata and the objects that hold it."""


class Sent:
    """A message on its way. Await it for the places it went to: one for a queue, any number for an exchange."""

    __slots__ = ("_error", "_is_seen", "_places", "_producer", "_waiters", "message")

    def __init__(self, producer: Producer, message: Message) -> None:
        self._producer = producer
        self.message = message
        self._places: list[Published] | None = None
        self._error: BaseException | None = None
        self._is_seen = False
        self._waiters: asyncio.Future[None] | None = None

    def done(self) -> bool:
        """Whether the server has it, or it has failed."""
        return self._places is not None or self._error is not None

    def result(self) -> list[Published]:
        """Where it went; raises why it did not."""
        if self._error is not None:
            self._saw()
            raise self._error
        if self._places is None:
            raise InvalidArgument("the message is still on its way; await it, or flush the producer")
        return self._places

    def __await__(self) -> Generator[object, None, list[Published]]:
        if not self.done():
            if self._waiters is None:
                self._waiters = asyncio.get_running_loop().create_future()
            # Shielded: one who stops waiting does not stop the others, nor the message.
            yield from asyncio.shield(self._waiters).__await__()
        return self.result()

    def _saw(self) -> None:
        if not self._is_seen:
            self._is_seen = True
            self._producer._seen(self)

    def _stored(self, places: list[Published]) -> None:
        self._places = places
        self._wake()

    def _failed(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiters is not None and not self._waiters.done():
            self._waiters.set_result(None)


class ProducerOptions(TypedDict, total=False):
    """Options of a producer: see `AsyncClient.producer`."""

    exchange: str | None
    mandatory: bool
    linger_ms: float
    batch_messages: int
    batch_bytes: int
    buffer_bytes: int
    in_flight: int
    idempotent: bool | None


class Producer:
    """Sends messages to one queue or exchange in batches. `async with client.producer("orders") as producer: …`"""

    def __init__(
        self,
        client: AsyncClient,
        queue: str | None = None,
        *,
        exchange: str | None = None,
        mandatory: bool = False,
        linger_ms: float = 5,
        batch_messages: int = 1_000,
        batch_bytes: int = 1_000_000,
        buffer_bytes: int = 32_000_000,
        in_flight: int = 1,
        idempotent: bool | None = None,
    ) -> None:
        """See `AsyncClient.producer`. Not `idempotent`, a batch whose answer was lost fails with `Unavailable`."""
        if (queue is None) == (exchange is None):
            raise InvalidArgument("a producer needs a queue or an exchange, and not both")
        if mandatory and exchange is None:
            raise InvalidArgument("mandatory is for exchanges: a queue takes what is published to it")
        check_integer(batch_messages, "batch_messages", 1, BATCH_MESSAGES_MAX)
        check_integer(batch_bytes, "batch_bytes", 1, BATCH_BYTES_DEFAULT)
        check_integer(buffer_bytes, "buffer_bytes", 1, 1 << 40)
        check_integer(in_flight, "in_flight", 1, 100)
        check_number(linger_ms, "linger_ms", 0, 60_000)
        self._client = client
        self._path = (
            client._target("queues", queue, "messages")
            if queue is not None
            else client._target("exchanges", exchange or "", "messages")
        )
        if mandatory:
            self._path = with_query(self._path, mandatory="true")
        self._name = f"queue {queue!r}" if queue is not None else f"exchange {exchange!r}"
        self._linger_s = linger_ms / 1000
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._in_flight = in_flight
        self._idempotent = idempotent
        self._waiting: deque[Sent] = deque()
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._senders = 0
        """Sends that wait for room, in order; the first one waits for `_room`."""
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._flights: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        """The oldest that waits has waited long enough, and goes with the next batch."""
        self._unseen: dict[Sent, BaseException] = {}
        self._is_closed = False
        self._flushing = 0

    # Sending ----------------------------------------------------------------------------------------------

    async def send(self, message: Message) -> Sent:
        """Take a message on its way, waiting while the buffer is full. Await what it returns for its place."""
        check_message(message)
        size = len(message.payload) + MESSAGE_BYTES
        if self._senders or not self._fits(size):
            await self._wait_for_room(size)
        if self._is_closed:
            raise Closed("the producer is closed")
        self._held_bytes += size
        sent = Sent(self, message)
        self._waiting.append(sent)
        self._waiting_bytes += size
        if self._is_batch_full():
            self._start()
        elif self._timer is None and not self._is_due:
            self._timer = asyncio.get_running_loop().call_later(self._linger_s, self._lingered)
        return sent

    async def send_many(self, messages: Sequence[Message]) -> list[Sent]:
        """`send` for each of them, in order."""
        return [await self.send(message) for message in messages]

    def _fits(self, size: int) -> bool:
        # One that is larger than the buffer goes alone.
        return self._held_bytes == 0 or self._held_bytes + size <= self._buffer_bytes

    async def _wait_for_room(self, size: int) -> None:
        """Wait until there is room for these bytes, first come, first served."""
        self._senders += 1
        try:
            async with self._turn:
                while not self._fits(size) and not self._is_closed:
                    self._start()  # what is waited for must be under way
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
        finally:
            self._senders -= 1

    def _make_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _is_batch_full(self) -> bool:
        return len(self._waiting) >= self._batch_messages or self._waiting_bytes >= self._batch_bytes

    def _lingered(self) -> None:
        self._timer = None
        self._is_due = True
        self._start()

    def _start(self) -> None:
        """Send what waits, as far as batches may be under way."""
        while self._waiting and len(self._flights) < self._in_flight:
            task = asyncio.get_running_loop().create_task(self._fly(self._take()))
            self._flights.add(task)
            task.add_done_callback(self._landed)
        if not self._waiting:
            self._is_due = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _take(self) -> list[Sent]:
        batch: list[Sent] = []
        size = 0
        while self._waiting and len(batch) < self._batch_messages:
            own = len(self._waiting[0].message.payload) + MESSAGE_BYTES
            if batch and size + own > self._batch_bytes:
                break
            size += own
            batch.append(self._waiting.popleft())
        self._waiting_bytes -= size
        return batch

    async def _fly(self, batch: list[Sent]) -> None:
        try:
            await self._deliver(batch)
        finally:
            self._held_bytes -= sum(len(sent.message.payload) + MESSAGE_BYTES for sent in batch)

    async def _deliver(self, batch: list[Sent]) -> None:
        """Publish a batch. Where one message is to blame, the others are published without it."""
        try:
            receipt = await self._client._publish(
                self._path, [sent.message for sent in batch], None, idempotent=self._idempotent
            )
        except (InvalidArgument, MessageTooLarge, Unroutable) as error:
            if len(batch) == 1:
                self._fail(batch, error)
                return
            middle = len(batch) // 2
            await self._deliver(batch[:middle])
            await self._deliver(batch[middle:])
        except asyncio.CancelledError:
            self._fail(batch, Closed("the producer was cancelled: it is not known whether the message was stored"))
            raise
        except PenstockError as error:
            self._fail(batch, error)
        except Exception as error:  # a bug of ours must reach the caller, not the loop's log
            self._fail(batch, error)
        else:
            for sent, places in zip(batch, places_of(receipt), strict=True):
                sent._stored(places)

    def _fail(self, batch: list[Sent], error: BaseException) -> None:
        for sent in batch:
            self._unseen[sent] = error
            sent._failed(error)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._flights.discard(task)
        self._make_room()
        if self._is_due or self._flushing or self._is_closed or self._senders or self._is_batch_full():
            self._start()

    def _seen(self, sent: Sent) -> None:
        self._unseen.pop(sent, None)

    # Ending -----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Messages that are neither stored nor refused yet, without those under way."""
        return len(self._waiting)

    async def flush(self) -> None:
        """Return when everything sent before is stored; raise if any of it failed and nobody has looked at it."""
        waiting, flying = list(self._waiting), set(self._flights)
        self._flushing += 1
        try:
            while flying or waiting:
                self._start()
                await asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(0)  # the callbacks that start the next batch
                flying &= self._flights
                while waiting and waiting[-1].done():
                    waiting.pop()
        finally:
            self._flushing -= 1
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        if not self._unseen:
            return
        failed, self._unseen = self._unseen, {}
        error = next(iter(failed.values()))
        error.add_note(f"{len(failed)} of the messages sent to {self._name} were not stored, as far as is known")
        raise error

    async def close(self) -> None:
        """Send everything, and take no more. Raises if any of it failed and nobody has looked at it."""
        self._is_closed = True
        self._make_room()
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
