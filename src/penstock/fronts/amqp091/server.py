"""The AMQP server: listens, keeps its connections within their limits, and closes them cleanly.

Next stop of what a client says: `connection.py`, then its `channel.py`, then the broker.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from penstock.api.front_broker import FrontBroker
from penstock.api.principal import Principal
from penstock.fronts.amqp091.connection import Connection
from penstock.fronts.amqp091.measures import AmqpMeasures
from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.exposure import check_exposure
from penstock.fronts.front import Address, Front, Shared
from penstock.fronts.listening import listen

SWEEP_SECONDS: Final = 1.0
SLICES: Final = 10
"""Every connection is looked after once in that time, so many at a time."""

log = logging.getLogger("penstock.amqp")


class AmqpServer(Front):
    """The AMQP 0.9.1 front of one broker."""

    def __init__(self, broker: FrontBroker, options: AmqpOptions | None = None, shared: Shared | None = None) -> None:
        self.broker = broker
        self.options = options or AmqpOptions()
        self.measures = AmqpMeasures()
        self.credentials = (shared or Shared()).credentials
        check_exposure("amqp", self.options.host, self.credentials)
        self.is_stopping = False
        self.port = 0
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self._round: list[Connection] = []
        self._slice = 1

    # Life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen."""
        self._server, self.port = await listen(lambda: Connection(self), self.options.host, self.options.port)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS / SLICES, self.sweep)

    @property
    def listening(self) -> list[Address]:
        return [Address("amqp", self.options.host, self.port)]

    async def stop(self) -> None:
        """Take no more connections; finish what clients have asked for, tell them, and close."""
        if self._server is None or self.is_stopping:
            return
        self.is_stopping = True
        self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.stop_seconds):
                await asyncio.gather(*(connection.stop() for connection in list(self._connections)))
                while self._connections:
                    self._all_closed = self._loop.create_future()
                    await self._all_closed
        for connection in list(self._connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        with suppress(TimeoutError):  # a session that cannot be ended ends with the broker
            await asyncio.wait_for(self._server.wait_closed(), self.options.stop_seconds)

    def sweep(self) -> None:
        """Heartbeats and leases: one timer for all connections, a part of them at a time, so that none waits long."""
        now = self._loop.time()
        if not self._round:
            self._round = list(self._connections)
            self._slice = len(self._round) // SLICES + 1
        for connection in self._round[-self._slice :]:
            connection.sweep(now)
        del self._round[-self._slice :]
        self._sweeper = self._loop.call_later(SWEEP_SECONDS / SLICES, self.sweep)

    # Connections (their host) -----------------------------------------------------------------------------

    def opened(self, connection: Connection) -> bool:
        """A connection is there; whether there is room for it."""
        self.measures.connections_accepted += 1
        self.measures.connections += 1
        self._connections.add(connection)
        has_room = len(self._connections) <= self.options.max_connections and not self.is_stopping
        self.measures.connections_refused += not has_room
        return has_room

    def closed(self, connection: Connection) -> None:
        """A connection is gone, and so is all that it had."""
        if connection in self._connections:
            self._connections.discard(connection)
            self.measures.connections -= 1
        if not self._connections and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)

    def new_session(self, namespace: str, principal: Principal) -> FrontBroker:
        """A broker for a connection: what it declares as its own goes with it."""
        broker = self.broker.in_namespace(namespace).acting_as(principal)
        return broker.begin_session(broker.new_session_name())

    def queue_deleted(self) -> None:
        """A queue was deleted: perhaps some connections have consumers that do not know it yet."""
        for connection in self._connections:
            for channel in connection.channels.values():
                channel.find_gone()

    def reads(self, namespace: str, queue: str, group: str) -> bool:
        """Whether a group of a stream has readers here."""
        return any(
            consumer.place[:2] == (queue, group)
            for connection in self._connections
            if connection.namespace == namespace
            for channel in connection.channels.values()
            for consumer in channel.consumers.values()
        )
