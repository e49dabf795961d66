"""The server is stopped, and killed, under clients that go on: what was promised is still there, and once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes

import penstock
from tests.clients.mqtt.rig import PATIENCE_S, MqttServerProcess, Peer, properties, protocol_of, unique, until

VERSIONS = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture
def own(tmp_path: Path) -> Iterator[MqttServerProcess]:
    process = MqttServerProcess(tmp_path / "queue.db").start()
    try:
        yield process
    finally:
        process.kill()


def lasting(server: MqttServerProcess, version: int, client_id: str, **options: Any) -> Peer:
    if version == 5:
        options.setdefault("SessionExpiryInterval", 300)
    return Peer(server, version, client_id, clean=False, **options)


@VERSIONS
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_everything_is_there_after_a_restart(own: MqttServerProcess, version: int, how: str) -> None:
    name = unique("restart")
    with lasting(own, version, name) as peer:
        peer.subscribe(f"{name}/#", qos=2)
        peer.subscribe(f"$share/g/{name}-shared", qos=1)
        peer.subscribe(f"$queue/{name}/#", qos=1)
    with Peer(own, version) as publisher:
        publisher.publish(f"{name}/a", b"kept", retain=True)
        for number in range(20):
            publisher.publish(f"{name}/b", f"{number}".encode(), 1 + number % 2)
        publisher.publish(f"{name}-shared", b"shared")
        publisher.publish(f"$queue/{name}/x", b"queued")
    getattr(own, how)()
    own.start()
    with lasting(own, version, name, manual_ack=False) as peer:
        assert peer.session_present
        found = Counter(delivery.payload for delivery in peer.take(23))
        assert found == Counter([b"kept", b"shared", b"queued", *(f"{number}".encode() for number in range(20))])
        peer.publish(f"{name}/c", b"live", 2)
        assert peer.next().payload == b"live"
    with Peer(own, version) as late:
        late.subscribe(f"{name}/#", qos=1)
        assert (late.next().payload, late.deliveries.empty()) == (b"kept", True)


@VERSIONS
def test_what_was_acknowledged_does_not_come_again(own: MqttServerProcess, version: int) -> None:
    name = unique("acknowledged")
    with lasting(own, version, name) as peer:
        peer.subscribe(name, qos=2)
        for number in range(30):
            peer.publish(name, f"{number}".encode(), 1 + number % 2)
        peer.take(30)
        # What a client has acknowledged is carried out when something later has come back through the same line.
        assert peer.unsubscribe(name) in ([0], [])
        peer.subscribe(name, qos=2)
    own.stop()
    own.start()
    with lasting(own, version, name) as peer:
        assert peer.session_present
        peer.publish(name, b"end", 1)
        assert peer.next().payload == b"end"


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

    def make(client_id: str) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=False if version == 4 else None,
            protocol=protocol_of(version),
        )
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
        infos = []
        for start in range(0, count, count // 3):
            infos += [publisher.publish(topic, payload, qos) for payload in sent[start : start + count // 3]]
            target = start + count // 6
            until(lambda: len(found) > target, "deliveries go on")  # noqa: B023
            own.kill()
            own.start()
        # Those that were given to paho while it was not connected wait in its own line.
        until(lambda: answered.issuperset(info.mid for info in infos), "all publishes are answered")
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


@VERSIONS
def test_a_will_of_before_a_crash(own: MqttServerProcess, version: int) -> None:
    """Who was connected when the server was killed has not said goodbye."""
    name = unique("will")
    with lasting(own, version, f"{name}-witness") as witness:
        witness.subscribe(f"{name}/#", qos=1)
    peer = lasting(own, version, name)
    peer.client.will_set(f"{name}/gone", b"bye", 1)
    peer.open()
    own.kill()
    peer.wait_gone()
    own.start()
    with lasting(own, version, f"{name}-witness") as witness:
        assert witness.next().topic == f"{name}/gone"


def test_a_delayed_will_and_an_expiry_go_on_over_a_restart(own: MqttServerProcess) -> None:
    name = unique("delayed")
    from tests.clients.mqtt.test_mqtt_sessions import with_delayed_will

    with lasting(own, 5, f"{name}-witness") as witness:
        witness.subscribe(f"{name}/#", qos=1)
    peer = with_delayed_will(own, name, 2, 3)
    peer.open()
    started = time.monotonic()
    peer.vanish()
    own.stop()
    own.start()
    with lasting(own, 5, f"{name}-witness") as witness:
        assert witness.next().topic == f"{name}/gone"
        assert time.monotonic() - started > 1.9
    until(lambda: time.monotonic() - started > 4, "the session's time is over")
    with lasting(own, 5, name) as peer:
        assert not peer.session_present


def test_clients_are_told_of_a_shutdown(own: MqttServerProcess) -> None:
    old, new = Peer(own, 4), Peer(own, 5)
    old.open()
    new.open()
    own.stop()
    assert new.wait_gone() == 0x8B
    old.wait_gone()
