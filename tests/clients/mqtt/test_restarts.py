"""The server is stopped, and killed, under clients that go on: what was promised is still there, and once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.mqtt.rig import MqttServerProcess, Peer, unique, until

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
    from tests.clients.mqtt.test_sessions import with_delayed_will

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
