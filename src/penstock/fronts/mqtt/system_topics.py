"""`$SYS/broker/…`: the server's numbers as messages, under the topics that Mosquitto has for them.

A subscription to them gets all values at once, as if they were retained, and from then on those that have changed,
every `mqtt.sys_interval_s`. They are made while somebody subscribes, go to the socket with QoS 0, and are never stored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.api.measures import COUNTERS
from penstock.fronts.mqtt.errors import log
from penstock.fronts.mqtt.mapping import ANY_ORIGIN
from penstock.fronts.mqtt.subscription.subscriptions import Subscription
from penstock.model import Message
from penstock.model.errors import Closed, PenstockError
from penstock.version import VERSION
from penstock.wire.mqtt.topics import matches

if TYPE_CHECKING:
    from penstock.fronts.mqtt.client import Client
    from penstock.fronts.mqtt.server import MqttServer

PREFIX: Final = "$SYS/broker/"
AT_ONCE: Final = 50
"""Clients that are written to before others get a turn."""
DROPPED: Final = COUNTERS.index("dropped")


class SystemTopics:
    """Those of one server, and the clients that subscribe to them."""

    def __init__(self, server: MqttServer, queues_max: int) -> None:
        self._server = server
        self._queues_max = queues_max
        self._interval = server.options.sys_interval_s
        self._began = asyncio.get_running_loop().time()
        self._readers: dict[Client, None] = {}
        self._last: dict[str, bytes] = {}

    def add(self, client: Client) -> None:
        """It subscribes to some of them."""
        self._readers[client] = None

    def remove(self, client: Client) -> None:
        """It is gone, or subscribes to none of them any more."""
        self._readers.pop(client, None)
        if not self._readers:
            self._last = {}

    # Sending --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tell the readers what has changed, until the broker is closed."""
        while self._interval:
            await asyncio.sleep(self._interval)
            try:
                await self._tell()
            except Closed:
                return
            except PenstockError as error:
                log.warning("the numbers of $SYS could not be had, and are tried again: %s", error)

    async def _tell(self) -> None:
        if not self._readers:
            return
        values = await self.values()
        changed = {topic: payload for topic, payload in values.items() if self._last.get(topic) != payload}
        self._last = values
        for number, client in enumerate(list(self._readers)):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            if client.connection.keeps_up:  # who does not read misses some: the next ones are newer
                self._send_changed(client, changed)

    def _send_changed(self, client: Client, changed: dict[str, bytes]) -> None:
        session = client.session
        assert session is not None
        for topic, payload in changed.items():
            plan = session.subscriptions.plan(topic, ANY_ORIGIN, session.client_id)
            if plan is not None:
                self._send(client, topic, payload, ids=plan.ids, retain=plan.retain_as_published)
        client.connection.flush()

    async def send_all(self, client: Client, subscription: Subscription) -> None:
        """All values of a new subscription."""
        if not self._interval:
            return
        ids = () if subscription.id is None else (subscription.id,)
        for topic, payload in (await self.values()).items():
            if matches(subscription.pattern, topic):
                self._send(client, topic, payload, ids=ids, retain=True)
        client.connection.flush()

    def _send(self, client: Client, topic: str, payload: bytes, *, ids: tuple[int, ...], retain: bool) -> None:
        message, now_ms = Message(payload, key=topic), self._server.now_ms()
        client.connection.deliver(message, topic, now_ms, qos=0, retain=retain, dup=False, packet_id=0, ids=ids)

    # Numbers --------------------------------------------------------------------------------------------------

    async def values(self) -> dict[str, bytes]:
        """Every topic with its payload."""
        server, measures = self._server, self._server.measures
        await server.retained.table.catch_up()
        numbers = await server.broker.measures(queues_max=self._queues_max)
        connected, disconnected, subscriptions = server.sessions.counts()
        stored = numbers.rest.messages + sum(one.stats.messages for one in numbers.queues)
        uptime = asyncio.get_running_loop().time() - self._began
        received, sent = measures.published + measures.refused, measures.delivered
        values = {
            "version": f"penstock version {VERSION}",
            "uptime": f"{uptime:.0f} seconds",
            "clients/connected": connected,
            "clients/disconnected": disconnected,
            "clients/total": connected + disconnected,
            "subscriptions/count": subscriptions,
            "retained messages/count": len(server.retained),
            "store/messages/count": stored,
            "messages/stored": stored,
            "messages/received": received,
            "messages/sent": sent,
            "publish/messages/received": received,
            "publish/messages/sent": sent,
            "publish/messages/dropped": numbers.counters.totals[DROPPED],
            "bytes/received": measures.bytes_received,
            "bytes/sent": measures.bytes_sent,
        }
        return {PREFIX + name: str(value).encode() for name, value in values.items()}
