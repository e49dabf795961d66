"""Who speaks MQTT in a torture run, through paho: sessions that outlive their connections, each to any node.

What was answered is stored and delivered. QoS 2 is stored and delivered once, through whichever nodes and however often
it was repeated; QoS 1 is stored once if its connection lasted until the answer. A session that was there is there when
its client is back.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MessageState, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.torture.ledger import Ledger
from tests.torture.party import Party

KEEP_ALIVE_S: Final = 3
CONNECT_S: Final = 3.0
AGAIN_S: Final = 0.2
SESSION_S: Final = 86_400
TOGETHER: Final = (1, 1, 5, 20)
"""So many publishes are under way at once."""
RELEASED_BEFORE: Final = 0x92
"""Packet id not found, of a PUBCOMP: the publish is stored, and was released on a connection before."""
RELEASED: Final = (MessageState.MQTT_MS_WAIT_FOR_PUBCOMP, MessageState.MQTT_MS_RESEND_PUBREL)


class Paho(paho.Client):
    """Connects to any node, whenever it has to."""

    def __init__(self, name: str, version: MQTTProtocolVersion, places: list[tuple[str, int]], seed: int) -> None:
        is_old = version == MQTTProtocolVersion.MQTTv311
        super().__init__(
            CallbackAPIVersion.VERSION2, client_id=name, clean_session=False if is_old else None, protocol=version
        )
        self._places = places
        self._random = random.Random(seed)
        self.lives = 0
        self.connect_timeout = CONNECT_S
        self.reconnect_delay_set(AGAIN_S, AGAIN_S)  # type: ignore[arg-type]
        options: dict[str, Any] = {}
        if not is_old:
            options["clean_start"] = False
            options["properties"] = expiry = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            expiry.SessionExpiryInterval = SESSION_S
        self.connect_async(*places[0], KEEP_ALIVE_S, **options)

    def reconnect(self) -> MQTTErrorCode:
        self.lives += 1
        self._host, self._port = self._random.choice(self._places)
        return super().reconnect()

    def _messages_reconnect_reset_out(self) -> None:
        """Do a client's part: paho forgets by its second failed attempt that a publish was received, and repeats it."""
        released = [one for one in self._out_messages.values() if one.qos == 2 and one.state in RELEASED]
        super()._messages_reconnect_reset_out()
        for one in released:
            one.state = MessageState.MQTT_MS_RESEND_PUBREL


class MqttParty(Party):
    """A publisher and a subscriber for each topic, each with a thread of paho's."""

    def __init__(self, places: list[tuple[str, int]], ledger: Ledger, seed: int) -> None:
        super().__init__(ledger, seed)
        self._places = places
        self._loop = asyncio.get_running_loop()
        self._clients: list[Paho] = []

    def _client(self, name: str, version: MQTTProtocolVersion) -> Paho:
        client = Paho(name, version, self._places, self._chance.randrange(1 << 30))
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.disconnect()
            client.loop_stop()

    # Subscribing -------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, qos: int, version: MQTTProtocolVersion) -> None:
        """Returns when the subscription is answered; from then on nothing of it may be missing."""
        client = self._client(f"subscriber-{topic}", version)
        subscribed = asyncio.Event()

        def connected(_: Any, __: Any, flags: paho.ConnectFlags, reason: Any, ___: Any) -> None:
            if subscribed.is_set() and not reason.is_failure and not flags.session_present:
                self._soon(self._ledger.fault, f"{topic}: the subscriber's session was lost")
            if not flags.session_present or not subscribed.is_set():
                client.subscribe(topic, qos)

        def delivered(_: Any, __: Any, message: paho.MQTTMessage) -> None:
            self._soon(self._delivered, f"{topic}/subscriber", message.payload.decode())

        client.on_connect = connected
        client.on_message = delivered
        client.on_subscribe = lambda *_: self._soon(subscribed.set)
        client.loop_start()
        await subscribed.wait()

    def _delivered(self, queue: str, id: str) -> None:
        self._ledger.deliver(queue, [id], time.monotonic())
        self._ledger.ack_ask(queue, [id])

    def _soon(self, call: Callable[..., object], *arguments: object) -> None:
        """In the thread of all other parties."""
        self._loop.call_soon_threadsafe(call, *arguments)

    # Publishing --------------------------------------------------------------------------------------------

    async def publish(self, topic: str, qos: int, version: MQTTProtocolVersion) -> None:
        """To a topic that a queue of the same name captures, and that a subscriber has."""
        client = self._client(f"publisher-{topic}", version)
        answers: dict[int, asyncio.Future[bool]] = {}
        under_way: list[str] = []

        def answered(_: Any, __: Any, number: int, reason: Any, ___: Any) -> None:
            is_kept = not reason.is_failure or reason.value == RELEASED_BEFORE
            self._soon(self._answered, answers, number, is_kept)

        client.on_publish = answered
        if qos == 1:
            client.on_pre_connect = lambda *_: self._soon(self._ledger.sent_again.update, under_way)
        client.loop_start()
        number = 0
        while not self._stopped:
            ids = [f"{topic}{number + step}" for step in range(self._chance.choice(TOGETHER))]
            number += len(ids)
            under_way[:] = ids
            for queue in (topic, f"{topic}/subscriber"):
                self._ledger.ask(queue, ids)
            life = client.lives
            refused = left = await self._publish(client, topic, qos, ids, answers)
            while left:
                left = await self._publish(client, topic, qos, left, answers)
            under_way.clear()
            for queue in (topic, f"{topic}/subscriber"):
                self._ledger.confirm(queue, ids)
            if client.lives == life and not refused:
                self._ledger.in_line(topic, f"connection {life}", ids)
            await self._breathe(topic, f"{topic}/subscriber")

    async def _publish(
        self, client: Paho, topic: str, qos: int, ids: list[str], answers: dict[int, asyncio.Future[bool]]
    ) -> list[str]:
        """Publish, and wait until all of it is answered; what was refused, and so is not stored."""
        while not client.is_connected():
            await self._refused()
        futures = []
        for id in ids:
            future = self._loop.create_future()
            answers[client.publish(topic, id.encode(), qos).mid] = future
            futures.append(future)
        kept = await asyncio.gather(*futures)
        refused = [id for id, is_kept in zip(ids, kept, strict=True) if not is_kept]
        if refused:
            await self._refused()
        return refused

    @staticmethod
    def _answered(answers: dict[int, asyncio.Future[bool]], number: int, is_kept: bool) -> None:
        answer = answers.pop(number)
        if not answer.done():  # unless who waits for it was cancelled
            answer.set_result(is_kept)
