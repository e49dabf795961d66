"""The AMQP server: listens, keeps its connections within their limits, and closes them cleanly.

Next stop of what a client says: `connection.py`, then its `channel.py`, then the broker.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from penstock.api.front_broker import FrontBroker
from penstock.api.principal import Principal
from penstock.fronts.amqp091.connection import Connection
from penstock.fronts.amqp091.options import AmqpOptions
from penstock.fronts.answers import Answers
from penstock.fronts.front import Address, Shared
from penstock.fronts.listening import SocketFront, listen
from penstock.fronts.metrics import Families, FrontMeasures, counter_families, gauge_families

SWEEP_SECONDS: Final = 1.0
SLICES: Final = 10
"""Every connection is looked after once in that time, so many at a time."""


class AmqpMeasures(FrontMeasures):
    """Numbers of one server."""

    def __init__(self) -> None:
        super().__init__("amqp")
        self.channels = 0
        self.consumers = 0
        self.published = 0
        self.delivered = 0

    def families(self) -> Families:
        yield from super().families()
        yield from gauge_families(
            ("amqp_channels", "Open channels.", self.channels),
            ("amqp_consumers", "Consumers.", self.consumers),
        )
        yield from counter_families(
            ("amqp_published", "Messages taken from publishers.", self.published),
            ("amqp_delivered", "Messages sent to consumers.", self.delivered),
        )


class AmqpServer(SocketFront[Connection]):
    """The AMQP 0.9.1 front of one broker."""

    def __init__(self, broker: FrontBroker, options: AmqpOptions | None = None, shared: Shared | None = None) -> None:
        self.broker = broker
        self.options = options or AmqpOptions()
        shared = shared or Shared()
        super().__init__("amqp", self.options, shared.credentials)
        self.limits = self.options.limits(shared.message_bytes)
        self.answers = shared.answers or Answers()
        self.measures: AmqpMeasures = AmqpMeasures()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
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
        if self._server is None or self.stopping:
            return
        self.stopping = True
        self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.stop_seconds):
                await asyncio.gather(*(connection.stop() for connection in list(self.connections)))
                await self.all_closed()
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        with suppress(TimeoutError):  # a session that cannot be ended ends with the broker
            await asyncio.wait_for(self._server.wait_closed(), self.options.stop_seconds)

    def sweep(self) -> None:
        """Heartbeats and leases: one timer for all connections, a part of them at a time, so that none waits long."""
        now = self._loop.time()
        if not self._round:
            self._round = list(self.connections)
            self._slice = len(self._round) // SLICES + 1
        for connection in self._round[-self._slice :]:
            connection.sweep(now)
        del self._round[-self._slice :]
        self._sweeper = self._loop.call_later(SWEEP_SECONDS / SLICES, self.sweep)

    # Connections (their host) -----------------------------------------------------------------------------

    def new_session(self, namespace: str, principal: Principal) -> FrontBroker:
        """A broker for a connection: what it declares as its own goes with it."""
        broker = self.broker.in_namespace(namespace).acting_as(principal)
        return broker.begin_session(broker.new_session_name())

    def queue_deleted(self) -> None:
        """A queue was deleted: perhaps some connections have consumers that do not know it yet."""
        for connection in self.connections:
            for channel in connection.channels.values():
                channel.find_gone()

    def reads(self, namespace: str, queue: str, group: str) -> bool:
        """Whether a group of a stream has readers here."""
        return any(
            consumer.place[:2] == (queue, group)
            for connection in self.connections
            if connection.namespace == namespace
            for channel in connection.channels.values()
            for consumer in channel.consumers.values()
        )
