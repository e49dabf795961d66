"""The MQTT server: listens on TCP and for WebSockets, keeps its connections within their limits, and ticks.

Next stop of a connection: `connection.py`, then `client.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from penstock.api.front_broker import FrontBroker
from penstock.fronts.answers import Answers
from penstock.fronts.front import Address, Shared
from penstock.fronts.listening import CannotListen, SocketFront, listen
from penstock.fronts.metrics import Row
from penstock.fronts.mqtt.connection import Connection
from penstock.fronts.mqtt.delivering import RENEW_SECONDS
from penstock.fronts.mqtt.errors import log
from penstock.fronts.mqtt.measures import MqttMeasures
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.publishing import EXCHANGE, Publishing
from penstock.fronts.mqtt.queues import Unsettled
from penstock.fronts.mqtt.retained import RetainedMessages
from penstock.fronts.mqtt.session.sessions import Sessions
from penstock.fronts.mqtt.system_topics import SystemTopics
from penstock.model.errors import AlreadyExists, Closed, InvalidArgument, PenstockError
from penstock.wire.mqtt.connection import Limits
from penstock.wire.mqtt.reasons import Reason

TICK_SECONDS: Final = 1.0
SWEEP_SECONDS: Final = 0.25
"""Between looks at what is due: wills, sessions, retained messages that expire, and what other nodes say."""
ADOPT_SECONDS: Final = 2.0
"""Between looks for sessions of nodes that are gone."""
RENEWED_AT_ONCE: Final = 100


class MqttServer(SocketFront[Connection]):
    """The MQTT front of one broker."""

    def __init__(self, broker: FrontBroker, options: MqttOptions | None = None, shared: Shared | None = None) -> None:
        self.options = options or MqttOptions()
        shared = shared or Shared()
        super().__init__("mqtt", self.options, shared.credentials)
        self.answers = shared.answers or Answers()
        self.broker = (
            broker if broker.namespace == self.options.namespace else broker.in_namespace(self.options.namespace)
        )
        self.limits = Limits(
            maximum_packet_size=self.options.packet_bytes_max(shared.message_bytes),
            receive_maximum=self.options.receive_maximum,
            topic_alias_maximum=self.options.topic_alias_maximum,
            connect_within_s=self.options.connect_seconds,
        )
        self.measures: MqttMeasures = MqttMeasures(self._gauges)
        self.unsettled = Unsettled()
        self.retained = RetainedMessages(
            self.broker, self.now_ms, most=self.options.max_retained, bytes_most=self.options.max_retained_bytes
        )
        self.sessions = Sessions(self.broker, self.options, lambda: self.publishing, self.now_ms)
        self.publishing = Publishing(
            self.broker,
            self.retained,
            self.sessions.documents.table.queue,
            self.measures,
            declare=self.options.declare_queues,
        )
        self.system_topics = SystemTopics(self, shared.metrics_queues_max)
        self._servers: list[asyncio.Server] = []
        self._ticker: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._renewer: asyncio.Task[None] | None = None
        self._teller: asyncio.Task[None] | None = None
        self.websocket_port = 0

    def _gauges(self) -> Iterator[Row]:
        """How things stand now, for `/metrics`."""
        kept, unsettled = len(self.sessions.documents.all), len(self.unsettled.sources)
        yield "mqtt_sessions_kept", "Sessions that outlive their connection, connected or not.", kept
        yield "mqtt_retained_messages", "Retained messages.", len(self.retained)
        yield "mqtt_retained_bytes", "Bytes of topics and payloads of retained messages.", self.retained.bytes
        yield "mqtt_unsettled", "Messages of $queue/… that version 5 clients have not settled.", unsettled

    def now_ms(self) -> int:
        """By the clock of the machine, as the times of messages are."""
        return time.time_ns() // 1_000_000

    # Life -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Declare what the front needs, end what a crash left open, and listen."""
        await self._declare()
        await self.retained.table.catch_up()
        await self.sessions.documents.table.catch_up()
        await self.sessions.adopt()
        await self.sessions.sweep()
        self.port = await self._listen("port", self.options.port, is_websocket=False)
        if self.options.websocket:
            port = self.options.websocket_port
            self.websocket_port = await self._listen("websocket_port", port, is_websocket=True)
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        self._sweeper = self._loop.create_task(self._sweep())
        self._renewer = self._loop.create_task(self._renew())
        self._teller = self._loop.create_task(self.system_topics.run())

    async def _declare(self) -> None:
        with suppress(AlreadyExists):  # with another description or alternate: it is as good
            await self.broker.declare_exchange(EXCHANGE, kind="mqtt", description="Topics of MQTT.")
        if (await self.broker.exchanges())[EXCHANGE].get("kind") != "mqtt":
            raise InvalidArgument(
                f"the exchange {EXCHANGE!r} of namespace {self.options.namespace!r} is not of kind mqtt; delete it, or "
                "choose another mqtt.namespace"
            )

    async def _listen(self, option: str, port: int, *, is_websocket: bool) -> int:
        def make() -> Connection:
            return Connection(self, is_websocket=is_websocket)

        try:
            server, port = await listen(make, self.options.host, port, option)
        except CannotListen:
            await self.stop()
            raise
        self._servers.append(server)
        return port

    @property
    def listening(self) -> list[Address]:
        host = self.options.host
        places = [Address("mqtt", host, self.port)]
        return places + [Address("ws", host, self.websocket_port, "/mqtt")] * self.options.websocket

    async def stop(self) -> None:
        """Take no more connections, tell those there are, and finish what they sent."""
        if self.stopping:
            return
        self.stopping = True
        for server in self._servers:
            server.close()
        if self._ticker is not None:
            self._ticker.cancel()
        clients = [one.client for one in self.connections if one.client is not None]
        for connection in list(self.connections):
            connection.engine.disconnect(Reason.SERVER_SHUTTING_DOWN)
            connection.flush()
            if connection.client is None:
                connection.close()
        if clients:
            await asyncio.wait([client.finished for client in clients], timeout=self.options.stop_seconds)
        for connection in list(self.connections):
            connection.abort()
        for task in (self._sweeper, self._renewer, self._teller):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self.retained.table.close()
        await self.sessions.documents.table.close()
        for server in self._servers:
            with suppress(OSError):
                await server.wait_closed()

    # Time -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._loop.time()
        for connection in list(self.connections):
            connection.tick(now)
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)

    async def _sweep(self) -> None:
        adopt_at = self._loop.time() + ADOPT_SECONDS
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            is_time = self._loop.time() > adopt_at
            try:
                if self.broker.is_shared:
                    await self.sessions.documents.table.catch_up()
                if is_time:
                    adopt_at = self._loop.time() + ADOPT_SECONDS
                    await self.sessions.adopt()
                if is_time or not self.broker.is_shared:
                    await self.retained.table.catch_up()
                await self.sessions.sweep()
                await self.retained.sweep()
            except Closed:
                return
            except PenstockError as error:
                log.warning("what is due could not be done, and is tried again: %s", error)

    async def _renew(self) -> None:
        """Keep what clients hold of queues that others consume too."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            clients = [one.client for one in self.connections if one.client is not None and one.client.sources]
            for start in range(0, len(clients), RENEWED_AT_ONCE):
                await asyncio.gather(*(client.renew() for client in clients[start : start + RENEWED_AT_ONCE]))
