# mypy: disable-error-code="empty-body"
"""The client without asyncio: the asynchronous one, on an event loop in a thread.

    with penstock.Client("http://127.0.0.1:7333") as client:
        client.publish("mail", penstock.Message(b"hello"))

Any number of threads may share one client. Ctrl-C while a call waits cancels the call. Asyncio and sockets are
imported by the first client. What the methods do is in `api/twin.py`. Made by `python -m tools.make_sync` from the
modules beside this one: change those, and make this again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.sync import SyncBroker
from penstock.api.twin import Twin, written
from penstock.client.signals import stopped_by_signals, wait_awake

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from typing import Self, Unpack

    from penstock.api.results import DamagedRange, Published, Received
    from penstock.client.consumer import BatchHandler, ConsumerOptions, Handler
    from penstock.client.producer import ProducerOptions
    from penstock.client.transport.channel import Retry
    from penstock.model import Message


class Client(SyncBroker):
    """A client of one server, or of several nodes of one, seen from one namespace. Threads may share it."""

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
            client = thread.run(
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
        super().__init__(client, thread)
        thread.last = client.close

    def producer(self, queue: str | None = None, **options: Unpack[ProducerOptions]) -> SyncProducer:
        """Many small sends as few large publishes: `with client.producer("orders") as producer: …`.

        A message waits up to `linger_ms` (5) for others; a batch has up to `batch_messages` (1 000) and `batch_bytes`
        (1 000 000). `send` waits while the producer holds `buffer_bytes` (32 000 000). One batch is under way at a
        time, which keeps the order of sends; `in_flight` above 1 gives that up. `idempotent` is the client's unless
        given. Instead of a queue it may have an `exchange`, and then be `mandatory`: see `publish_to`.
        """

    def consumer(self, queue: str, handler: Handler | BatchHandler, **options: Unpack[ConsumerOptions]) -> SyncConsumer:
        """A runner of a handler over a group's messages: `consumer.run()`, `consumer.stop()`.

        The handler, plain (run in threads) or a coroutine function, takes one message, or a list of up to `batch`. What
        returns is acked; what raises is nacked with the error, `Reject` and `Postpone` do what they say. `concurrency`
        handlers (1) run at a time, never two on one partition of a claim. Leases last `lease_seconds` (30) and are
        renewed while handlers run. `prefetch` is how many messages are held at most (twice what the handlers can
        take). Verdicts are collected for `settle_ms` (5) and sent together. A claim waits `poll_seconds` (2) at the
        server, and so may a stop. With `ack`, messages are done as they are handed out.
        """

    @written
    def consume(self, queue: str, handler: Handler | BatchHandler, **options: Unpack[ConsumerOptions]) -> None:
        """Run a handler over a group's messages until SIGTERM or Ctrl-C, and stop with care; see `consumer`."""
        self.consumer(queue, handler, **options).run_forever()

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


class SyncSent(Twin):
    """A message on its way; `result` waits for the places it went to."""

    @property
    def message(self) -> Message:
        """The message."""

    def done(self) -> bool:
        """Whether the server has it, or it has failed."""

    @written
    def result(self) -> list[Published]:
        """Where it went, when it is there; raises why it did not go."""
        places: list[Published] = self._thread.run(lambda: self._inner)
        return places


class SyncProducer(Twin):
    """Sends messages to one queue or exchange in batches. `with client.producer("orders") as producer: …`"""

    # Sending ----------------------------------------------------------------------------------------------

    def send(self, message: Message) -> SyncSent:
        """Take a message on its way, waiting while the buffer is full. Its result is its place."""

    def send_many(self, messages: Sequence[Message]) -> list[SyncSent]:
        """`send` for each of them, in order."""

    # Ending -----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Messages that are neither stored nor refused yet, without those under way."""

    def flush(self) -> None:
        """Return when everything sent before is stored; raise if any of it failed and nobody has looked at it."""

    def close(self) -> None:
        """Send everything, and take no more. Raises if any of it failed and nobody has looked at it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncConsumer(Twin):
    """Runs a handler over the messages of a queue's group: `consumer.run()`, and `consumer.stop()` from elsewhere."""

    @property
    def handled(self) -> int:
        """Messages whose handler returned."""

    @property
    def failed(self) -> int:
        """Messages whose handler raised."""

    # Life -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until `stop` is called. Cancelled, it leaves without waiting for handlers."""

    def stop(self) -> None:
        """Claim no more. `run` returns when what is being handled is finished and everything held is settled."""

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""

    @written
    def run_forever(self) -> None:
        """`run`, until SIGTERM or Ctrl-C: then stop with care. A second signal is not waited for."""
        with stopped_by_signals(self.stop):
            wait_awake(self.run)


class SyncStreamReader(Twin):
    """Messages of a stream group, one after the other, for as long as the caller wants them.

    With `auto_commit`, a batch is committed when the caller asks for the first message after it: everything before was
    worked on by then. Without, call `commit(received)` when everything up to that message is done. The group should be
    declared with `auto_commit=False`: then what counts as processed is what is committed here, and nothing else.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Received:
        received = self._thread.run(self._following)
        if received is None:
            raise StopIteration
        return received

    async def _following(self) -> Received | None:
        return await anext(self._inner, None)

    @property
    def damaged(self) -> list[DamagedRange]:
        """What it has passed over so far because it is damaged in the store."""

    def commit(self, received: Received) -> None:
        """Everything up to this message, of its lane, is done."""

    def close(self) -> None:
        """End the loop. With `auto_commit`, what went through it is committed; the rest is given back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.run(self._inner.__aexit__, kind)
