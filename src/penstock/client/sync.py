"""The client without asyncio: the asynchronous one, on an event loop in a thread.

    with penstock.Client("http://127.0.0.1:7333") as client:
        client.publish("mail", penstock.Message(b"hello"))

Any number of threads may share one client. Ctrl-C while a call waits cancels the call. Asyncio and sockets are
imported by the first client. Made by `python -m tools.make_sync` from the modules beside this one: change those, and
make this again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.sync import SyncBroker
from penstock.client.signals import stopped_by_signals, wait_awake

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from typing import Self

    from penstock.api.broker import Broker
    from penstock.api.results import Published, Received
    from penstock.client.client import AsyncClient
    from penstock.client.consumer import BatchHandler, Consumer, Handler
    from penstock.client.producer import Producer, Sent
    from penstock.client.stream import StreamReader
    from penstock.client.transport.channel import Retry
    from penstock.loop_thread import LoopThread
    from penstock.model import Message


class Client(SyncBroker):
    """A client of one server, or of several nodes of one, seen from one namespace. Threads may share it."""

    _client: AsyncClient

    def __init__(
        self,
        urls: str | Sequence[str] = "http://127.0.0.1:7333",
        *,
        token: str | None = None,
        namespace: str = "default",
        consumer: str | None = None,
        retry: Retry | None = None,
        idempotent: bool = True,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`urls` is one URL, several with commas in between, or a list of them; nodes take turns.

        `consumer` is the name under which messages are claimed (host, process and a random part unless given).
        `idempotent` gives every publish an id, so that one whose answer was lost is sent again without being stored
        twice (as long as the queue's dedup window lasts); without it, such a publish raises `Unavailable`. `timeout` is
        for one answer, besides the time that a claim or read waits by itself. `connections` is how many are open to a
        node at most; each waiting claim takes one.
        """
        from penstock.client.client import AsyncClient
        from penstock.loop_thread import LoopThread

        thread = LoopThread("penstock-client", "client")
        try:
            self._client = thread.do(
                AsyncClient,
                urls,
                token=token,
                namespace=namespace,
                consumer=consumer,
                retry=retry,
                idempotent=idempotent,
                timeout=timeout,
                connect_timeout=connect_timeout,
                connections=connections,
                tls=tls,
            )
        except BaseException:
            thread.close()
            raise
        super().__init__(self._client, thread)
        thread.last = self._client.close

    @classmethod
    def _of(cls, broker: Broker, thread: LoopThread) -> Self:
        from penstock.client.client import AsyncClient

        made = super()._of(broker, thread)
        assert isinstance(broker, AsyncClient)
        made._client = broker
        return made

    def producer(
        self,
        queue: str | None = None,
        *,
        exchange: str | None = None,
        mandatory: bool = False,
        linger_ms: float = 5,
        batch_messages: int = 1000,
        batch_bytes: int = 1000000,
        buffer_bytes: int = 32000000,
        in_flight: int = 1,
        idempotent: bool | None = None,
    ) -> SyncProducer:
        """Many small sends as few large publishes: `with client.producer("orders") as producer: …`.

        A message waits up to `linger_ms` for others; a batch has up to `batch_messages` and `batch_bytes`. `send` waits
        while the producer holds `buffer_bytes`. One batch is under way at a time, which keeps the order of sends;
        `in_flight` above 1 gives that up. `idempotent` is the client's unless given.
        """
        return SyncProducer(
            self._thread.do(
                self._client.producer,
                queue,
                exchange=exchange,
                mandatory=mandatory,
                linger_ms=linger_ms,
                batch_messages=batch_messages,
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                in_flight=in_flight,
                idempotent=idempotent,
            ),
            self._thread,
        )

    def consumer(
        self,
        queue: str,
        handler: Handler | BatchHandler,
        *,
        group: str = "default",
        concurrency: int = 1,
        batch: int | None = None,
        prefetch: int | None = None,
        lease_seconds: float = 30.0,
        ack: bool = False,
        partition: str | None = None,
        consumer: str | None = None,
        settle_ms: float = 5,
        poll_seconds: float = 2.0,
    ) -> SyncConsumer:
        """A runner of a handler over a group's messages: `consumer.run()`, `consumer.stop()`.

        The handler, plain (run in threads) or a coroutine function, takes one message, or a list of up to `batch`. What
        returns is acked; what raises is nacked with the error, `Reject` and `Postpone` do what they say. `concurrency`
        handlers run at a time, never two on one partition of a claim. Leases are renewed while handlers run.
        `prefetch` is how many messages are held at most. Verdicts are collected for `settle_ms` and sent together. A
        claim waits `poll_seconds` at the server, and so may a stop. With `ack`, messages are done as they are handed
        out.
        """
        return SyncConsumer(
            self._thread.do(
                self._client.consumer,
                queue,
                handler,
                group=group,
                concurrency=concurrency,
                batch=batch,
                prefetch=prefetch,
                lease_seconds=lease_seconds,
                ack=ack,
                partition=partition,
                consumer=consumer,
                settle_ms=settle_ms,
                poll_seconds=poll_seconds,
            ),
            self._thread,
        )

    def consume(
        self,
        queue: str,
        handler: Handler | BatchHandler,
        *,
        group: str = "default",
        concurrency: int = 1,
        batch: int | None = None,
        prefetch: int | None = None,
        lease_seconds: float = 30.0,
        ack: bool = False,
        partition: str | None = None,
        consumer: str | None = None,
        settle_ms: float = 5,
        poll_seconds: float = 2.0,
    ) -> None:
        """Run a handler over a group's messages until SIGTERM or Ctrl-C, and stop with care; see `consumer`."""
        self.consumer(
            queue,
            handler,
            group=group,
            concurrency=concurrency,
            batch=batch,
            prefetch=prefetch,
            lease_seconds=lease_seconds,
            ack=ack,
            partition=partition,
            consumer=consumer,
            settle_ms=settle_ms,
            poll_seconds=poll_seconds,
        ).run_forever()

    def stream(
        self,
        queue: str,
        group: str,
        *,
        batch: int = 100,
        auto_commit: bool = True,
        wait: float | None = None,
        consumer: str | None = None,
    ) -> SyncStreamReader:
        """A stream group's messages, one after the other: `for received in client.stream("events", "audit")`.

        With `auto_commit`, a batch is committed when the message after it is asked for; without, call
        `reader.commit(received)`. `wait` seconds without a message end the loop; None never ends it.
        """
        return SyncStreamReader(
            self._thread.do(
                self._client.stream, queue, group, batch=batch, auto_commit=auto_commit, wait=wait, consumer=consumer
            ),
            self._thread,
        )


class SyncSent:
    """A message on its way; `result` waits for the places it went to."""

    def __init__(self, sent: Sent, thread: LoopThread) -> None:
        self._sent, self._thread = sent, thread

    @property
    def message(self) -> Message:
        return self._sent.message

    def done(self) -> bool:
        """Whether the server has it, or it has failed."""
        return self._sent.done()

    def result(self) -> list[Published]:
        """Where it went, when it is there; raises why it did not go."""

        async def wait() -> list[Published]:
            return await self._sent

        return self._thread.run(wait)


class SyncProducer:
    """Sends messages to one queue or exchange in batches. `with client.producer("orders") as producer: …`"""

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer, self._thread = producer, thread

    # Sending ----------------------------------------------------------------------------------------------

    def send(self, message: Message) -> SyncSent:
        """Take a message on its way, waiting while the buffer is full. Its result is its place."""
        return SyncSent(self._thread.run(self._producer.send, message), self._thread)

    def send_many(self, messages: Sequence[Message]) -> list[SyncSent]:
        """`send` for each of them, in order."""
        sent = self._thread.run(self._producer.send_many, messages)
        return [SyncSent(one, self._thread) for one in sent]

    # Ending -----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Messages that are neither stored nor refused yet, without those under way."""
        return self._producer.pending

    def flush(self) -> None:
        """Return when everything sent before is stored; raise if any of it failed and nobody has looked at it."""
        self._thread.run(self._producer.flush)

    def close(self) -> None:
        """Send everything, and take no more. Raises if any of it failed and nobody has looked at it."""
        self._thread.run(self._producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncConsumer:
    """Runs a handler over the messages of a queue's group: `consumer.run()`, and `consumer.stop()` from elsewhere."""

    def __init__(self, consumer: Consumer, thread: LoopThread) -> None:
        self._consumer, self._thread = consumer, thread

    @property
    def handled(self) -> int:
        """Messages whose handler returned."""
        return self._consumer.handled

    @property
    def failed(self) -> int:
        """Messages whose handler raised."""
        return self._consumer.failed

    # Life -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until `stop` is called. Cancelled, it leaves without waiting for handlers."""
        self._thread.run(self._consumer.run)

    def stop(self) -> None:
        """Claim no more. `run` returns when what is being handled is finished and everything held is settled."""
        self._thread.do(self._consumer.stop)

    @property
    def is_stopping(self) -> bool:

        return self._consumer.is_stopping

    def run_forever(self) -> None:
        """`run`, until SIGTERM or Ctrl-C: then stop with care. A second signal is not waited for."""
        with stopped_by_signals(self.stop):
            wait_awake(self.run)


class SyncStreamReader:
    """Messages of a stream group, one after the other, for as long as the caller wants them.

    With `auto_commit`, a batch is committed when the caller asks for the first message after it: everything before was
    worked on by then. Without, call `commit(received)` when everything up to that message is done. The group should be
    declared with `auto_commit=False`: then what counts as processed is what is committed here, and nothing else.
    """

    def __init__(self, reader: StreamReader, thread: LoopThread) -> None:
        self._reader, self._thread = reader, thread

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Received:
        received = self._thread.run(self._following)
        if received is None:
            raise StopIteration
        return received

    async def _following(self) -> Received | None:
        try:
            return await self._reader.__anext__()
        except StopAsyncIteration:
            return None

    def commit(self, received: Received) -> None:
        """Everything up to this message, of its lane, is done."""
        self._thread.run(self._reader.commit, received)

    def close(self) -> None:
        """End the loop. With `auto_commit`, what went through it is committed; the rest is given back."""
        self._thread.run(self._reader.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.run(self._reader.__aexit__, kind)
