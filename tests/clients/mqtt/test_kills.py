"""The server is killed again and again under paho's clients, which reconnect by themselves."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes

import penstock
from tests.clients.mqtt.rig import PATIENCE_S, MqttServerProcess, properties, protocol_of, unique, until
from tests.clients.mqtt.test_restarts import VERSIONS, own

__all__ = ["own"]


class Paho(paho.Client):
    """Connects again only to a server that is there.

    With each attempt that fails, paho forgets more: by the second one a publish of QoS 2 whose PUBREC it has had is to
    it one that was never sent (`_messages_reconnect_reset_out`), and it publishes it anew. No server can tell that
    from another message once the first was released.
    """

    server_is_up: threading.Event

    def reconnect(self) -> MQTTErrorCode:
        self.server_is_up.wait(PATIENCE_S)
        return super().reconnect()


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_killed_again_and_again_under_publishers_and_subscribers(
    own: MqttServerProcess, version: int, qos: int
) -> None:
    """QoS 1: every message at least once; QoS 2: exactly once. Both sides are paho, which reconnects by itself."""
    topic = unique("killed")
    count = 300
    found: Counter[bytes] = Counter()
    first_seen: list[bytes] = []

    up = threading.Event()
    up.set()

    def make(client_id: str) -> paho.Client:
        client = Paho(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=False if version == 4 else None,
            protocol=protocol_of(version),
        )
        client.server_is_up = up
        client.reconnect_delay_set(min_delay=1, max_delay=1)
        return client

    def connect(client: paho.Client) -> None:
        options: dict[str, Any] = {}
        if version == 5:
            options = {"clean_start": False, "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=600)}
        client.connect("127.0.0.1", own.port, 60, **options)
        client.loop_start()

    def received(_: Any, __: Any, message: paho.MQTTMessage) -> None:
        payload = bytes(message.payload)
        if payload not in found:
            first_seen.append(payload)
        found[payload] += 1

    subscribed = threading.Event()
    subscriber, publisher = make(unique("subscriber")), make(unique("publisher"))
    subscriber.on_message = received
    subscriber.on_subscribe = lambda *_: subscribed.set()
    connect(subscriber)
    until(subscriber.is_connected, "connected")
    subscriber.subscribe(topic, qos)
    assert subscribed.wait(PATIENCE_S)
    answered: set[int] = set()
    publisher.on_publish = lambda _, __, number, *___: answered.add(number)
    connect(publisher)
    try:
        sent = [f"{number}".encode() for number in range(count)]
        infos: list[paho.MQTTMessageInfo] = []

        def all_answered() -> bool:
            return answered.issuperset(info.mid for info in infos)

        for start in range(0, count, count // 3):
            # paho publishes at once what is given to it before its CONNECT is answered, what waits in its line later.
            until(all_answered, "all publishes are answered")
            infos += [publisher.publish(topic, payload, qos) for payload in sent[start : start + count // 3]]
            target = start + count // 6
            until(lambda: len(found) > target, "deliveries go on")  # noqa: B023
            up.clear()
            own.kill()
            own.start()
            up.set()
        until(all_answered, "all publishes are answered")
        until(lambda: len(found) == count, "all messages are there")
        with penstock.Client(own.url) as client:
            until(lambda: not _left(client), "all is acknowledged")
        assert set(found) == set(sent)
        if qos == 2:
            assert set(found.values()) == {1}, "exactly once"
        assert [payload for payload in first_seen if qos == 2] in ([], sent), "in order"
    finally:
        for peer in (publisher, subscriber):
            peer.disconnect()
            peer.loop_stop()


def _left(client: penstock.Client) -> int:
    """Messages that sessions still have to deliver."""
    return sum(
        group.lag + group.leased
        for name in client.queues()
        if name.startswith("mqtt/session/")
        for group in client.stats(name).groups
    )
