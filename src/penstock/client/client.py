"""The asynchronous client: the broker's operations over HTTP, with what only a client has.

    async with penstock.AsyncClient("http://127.0.0.1:7333") as client:
        await client.publish("mail", penstock.Message(b"hello"))

The operations are in `client/operations/`, a module for each of `api/`, and documented there. Here are opening and
closing, and what only a client has: producers, consumers and stream readers. Next stop: `client/transport/channel.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Unpack

from penstock.api.arguments import check_number
from penstock.api.broker import Broker
from penstock.client.consumer import BatchHandler, Consumer, ConsumerOptions, Handler
from penstock.client.operations.manage import ClientManagement
from penstock.client.operations.messages import ClientMessages
from penstock.client.operations.requests import PublishIds, Requests, decoded
from penstock.client.operations.scan import ClientScans
from penstock.client.operations.staging import ClientStaging
from penstock.client.operations.transaction import ClientTransaction
from penstock.client.producer import Producer, ProducerOptions
from penstock.client.stream import StreamReader
from penstock.client.transport.channel import Channel, Retry
from penstock.model import DEFAULT_NAMESPACE, check_integer, check_name
from penstock.model.errors import NotFound, PenstockError
from penstock.model.limits import SESSION_SECONDS_MAX, SESSION_SECONDS_MIN
from penstock.wire.http.shapes import SessionAnswer, SessionRequest

DEFAULT_URL: Final = "http://127.0.0.1:7333"

_names: Final = itertools.count(1)

log = logging.getLogger("penstock.client")


class AsyncClient(
    ClientMessages,
    ClientManagement,
    ClientScans,
    ClientStaging,
    Broker,
):
    """A client of one server, or of several nodes of one, seen from one namespace. Coroutines may share it."""

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
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
        check_integer(connections, "connections", 1, 100_000)
        check_number(timeout, "timeout", 0.001, 86_400)
        check_number(connect_timeout, "connect_timeout", 0.001, 86_400)
        channel = Channel(
            urls,
            token=token,
            timeout_s=timeout,
            connect_timeout_s=connect_timeout,
            connections_max=connections,
            tls=tls,
        )
        name = _default_consumer() if consumer is None else check_name(consumer, "consumer")
        super().__init__(
            channel, check_name(namespace, "a namespace"), name, (retry or Retry()).check(), idempotent, PublishIds()
        )

    # Life -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._channel.close()

    def in_namespace(self, namespace: str) -> AsyncClient:
        return self._copy(check_name(namespace, "a namespace"), self.consumer_name, self._session)

    def _copy(self, namespace: str, consumer: str, session: str | None) -> AsyncClient:
        other = object.__new__(AsyncClient)
        Requests.__init__(other, self._channel, namespace, consumer, self._retry, self._idempotent, self._ids)
        other._session = session
        return other

    @asynccontextmanager
    async def session(self, *, seconds: float = 30.0) -> AsyncIterator[AsyncClient]:
        check_number(seconds, "seconds", SESSION_SECONDS_MIN, SESSION_SECONDS_MAX)
        body = SessionRequest(seconds=seconds)
        # One whose answer was lost ends by itself.
        begun = decoded(SessionAnswer, await self._send(b"POST", self._target("sessions"), body))
        session = self._copy(self.namespace, begun.consumer, begun.id)
        renewal = asyncio.ensure_future(self._renew_session(begun))
        try:
            yield session
        finally:
            renewal.cancel()
            with suppress(NotFound):
                await self._send(b"DELETE", self._target("sessions", begun.id))

    async def _renew_session(self, session: SessionAnswer) -> None:
        """Keep a session alive until cancelled, or until it has ended: the next request in it is then told so."""
        while True:
            await asyncio.sleep(session.seconds / 3)
            try:
                await self._send(b"PUT", self._target("sessions", session.id))
            except NotFound:
                log.warning("the session %s has ended at the server; its exclusive queues are gone", session.consumer)
                return
            except PenstockError as error:
                log.warning("the session %s could not be renewed: %s", session.consumer, error)

    def _next_consumer_name(self) -> str:
        """A name for one of several consumers of this client."""
        return f"{self.consumer_name}:{next(_names)}"

    # What only a client has -------------------------------------------------------------------------------

    def transaction(self) -> ClientTransaction:
        return ClientTransaction(self)

    def producer(self, queue: str | None = None, **options: Unpack[ProducerOptions]) -> Producer:
        """Many small sends as few large publishes: `async with client.producer("orders") as producer: …`.

        A message waits up to `linger_ms` (5) for others; a batch has up to `batch_messages` (1 000) and `batch_bytes`
        (1 000 000). `send` waits while the producer holds `buffer_bytes` (32 000 000). One batch is under way at a
        time, which keeps the order of sends; `in_flight` above 1 gives that up. `idempotent` is the client's unless
        given. Instead of a queue it may have an `exchange`, and then be `mandatory`: see `publish_to`.
        """
        return Producer(self, queue, **options)

    def consumer(self, queue: str, handler: Handler | BatchHandler, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A runner of a handler over a group's messages: `await consumer.run()`, `consumer.stop()`.

        The handler, plain (run in threads) or a coroutine function, takes one message, or a list of up to `batch`. What
        returns is acked; what raises is nacked with the error, `Reject` and `Postpone` do what they say. `concurrency`
        handlers (1) run at a time, never two on one partition of a claim. Leases last `lease_seconds` (30) and are
        renewed while handlers run. `prefetch` is how many messages are held at most (twice what the handlers can
        take). Verdicts are collected for `settle_ms` (5) and sent together. A claim waits `poll_seconds` (2) at the
        server, and so may a stop. With `ack`, messages are done as they are handed out.
        """
        return Consumer(self, queue, handler, **options)

    async def consume(self, queue: str, handler: Handler | BatchHandler, **options: Unpack[ConsumerOptions]) -> None:
        """Run a handler over a group's messages until SIGTERM or Ctrl-C, and stop with care; see `consumer`."""
        await self.consumer(queue, handler, **options).run_forever()

    def stream(
        self,
        queue: str,
        group: str,
        *,
        batch: int = 100,
        auto_commit: bool = True,
        wait: float | None = None,
        consumer: str | None = None,
    ) -> StreamReader:
        """A stream group's messages, one after the other: `async for received in client.stream("events", "audit")`.

        With `auto_commit`, a batch is committed when the message after it is asked for; without, call
        `reader.commit(received)`. `wait` seconds without a message end the loop; None never ends it.
        """
        return StreamReader(self, queue, group, batch=batch, auto_commit=auto_commit, wait=wait, consumer=consumer)


def _default_consumer() -> str:
    host = "".join(character for character in socket.gethostname() if 32 < ord(character) < 127)[:100] or "host"
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"
