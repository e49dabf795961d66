"""Sessions, wills and takeovers, with paho of both versions."""

from __future__ import annotations

import time
from typing import Any

import mqtt5
import pytest
from paho.mqtt.packettypes import PacketTypes

from tests.clients.mqtt.raw import Raw
from tests.clients.mqtt.rig import MqttServerProcess, Peer, properties, unique

VERSIONS = pytest.mark.parametrize("version", [4, 5])


def lasting(server: MqttServerProcess, version: int, client_id: str, **options: Any) -> Peer:
    """A client whose session outlives its connection."""
    if version == 5:
        options.setdefault("SessionExpiryInterval", 300)
    return Peer(server, version, client_id, clean=False, **options)


@VERSIONS
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_a_session_outlives_its_connection(server: MqttServerProcess, version: int, transport: str) -> None:
    name = unique("lasting")
    with lasting(server, version, name, transport=transport) as peer:
        assert not peer.session_present
        assert peer.subscribe(f"{name}/#", qos=2) == [2]
    with Peer(server, version) as publisher:
        for number, qos in enumerate((1, 2, 1, 2, 1)):
            publisher.publish(f"{name}/a", f"offline {number}".encode(), qos)
    with lasting(server, version, name, transport=transport) as peer:
        assert peer.session_present
        # paho shows a message of QoS 2 when it is released: only those of one quality are in order.
        found = sorted(peer.take(5), key=lambda delivery: delivery.qos)
        assert [(one.payload, one.qos) for one in found] == [
            (b"offline 0", 1),
            (b"offline 2", 1),
            (b"offline 4", 1),
            (b"offline 1", 2),
            (b"offline 3", 2),
        ]
        peer.publish(f"{name}/b", b"live")
        assert peer.next().payload == b"live", "the subscription is there without being asked for again"
    with lasting(server, version, name) as peer:
        peer.publish(f"{name}/b", b"last")
        assert peer.next().payload == b"last", "what was acknowledged does not come again"


@VERSIONS
def test_a_clean_session_ends_what_was_there(server: MqttServerProcess, version: int) -> None:
    name = unique("clean")
    with lasting(server, version, name) as peer:
        peer.subscribe(name, qos=1)
    with Peer(server, version) as publisher:
        publisher.publish(name, b"for nobody")
    with Peer(server, version, name, clean=True) as peer:
        assert not peer.session_present
        peer.subscribe(f"{name}-end", qos=1)
        peer.publish(name, b"for nobody")
        peer.publish(f"{name}-end", b"end")
        assert peer.next().payload == b"end"
    with lasting(server, version, name) as peer:
        assert not peer.session_present


@VERSIONS
def test_unacknowledged_deliveries_come_again(server: MqttServerProcess, version: int) -> None:
    name = unique("unacknowledged")
    peer = lasting(server, version, name, manual_ack=True)
    peer.open()
    peer.subscribe(name, qos=1)
    with Peer(server, version) as publisher:
        publisher.publish(name, b"1")
        publisher.publish(name, b"2")
    assert [one.dup for one in peer.take(2)] == [False, False]
    peer.vanish()
    with lasting(server, version, name) as peer:
        again = peer.take(2)
        assert [(one.payload, one.dup) for one in again] == [(b"1", True), (b"2", True)]


def test_a_session_expires(server: MqttServerProcess) -> None:
    name = unique("expires")
    with lasting(server, 5, name, SessionExpiryInterval=1) as peer:
        peer.subscribe(name, qos=1)
    deadline = time.monotonic() + 20
    while True:
        time.sleep(1.2)
        # A session that is asked for at once is still there; its expiry counts from each end anew.
        with lasting(server, 5, name, SessionExpiryInterval=1) as peer:
            if not peer.session_present:
                break
        assert time.monotonic() < deadline, "the session is still there"


def test_expiry_0_ends_with_the_connection(server: MqttServerProcess) -> None:
    name = unique("zero")
    with Peer(server, 5, name, clean=False) as peer:
        peer.subscribe(name, qos=1)
    with Peer(server, 5, name, clean=False) as peer:
        assert not peer.session_present


def test_disconnect_changes_the_expiry(server: MqttServerProcess) -> None:
    name = unique("changed")
    peer = lasting(server, 5, name, SessionExpiryInterval=300)
    peer.open()
    peer.close(SessionExpiryInterval=0)
    with lasting(server, 5, name) as peer:
        assert not peer.session_present


@pytest.mark.parametrize("before", [4, 5])
@pytest.mark.parametrize("after", [4, 5])
def test_a_session_is_taken_over(server: MqttServerProcess, before: int, after: int) -> None:
    name = unique("taken")
    first = lasting(server, before, name)
    first.open()
    first.subscribe(name, qos=1)
    with lasting(server, after, name) as second:
        assert second.session_present
        reason = first.wait_gone()
        if before == 5:
            assert reason == 0x8E
        second.publish(name, b"for the second")
        assert second.next().payload == b"for the second"


# Wills -------------------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_for_who_vanishes(server: MqttServerProcess, version: int, qos: int) -> None:
    name = unique("will")
    with Peer(server, version) as witness:
        witness.subscribe(f"{name}/#", qos=2)
        peer = Peer(server, version, name)
        peer.client.will_set(f"{name}/gone", b"bye", qos, retain=True)
        peer.open()
        peer.vanish()
        found = witness.next()
        assert (found.topic, found.payload, found.qos) == (f"{name}/gone", b"bye", qos)
        with Peer(server, version) as late:
            late.subscribe(f"{name}/#", qos=2)
            assert late.next().retain


@VERSIONS
def test_no_will_for_who_says_goodbye(server: MqttServerProcess, version: int) -> None:
    name = unique("goodbye")
    with Peer(server, version) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        peer = Peer(server, version, name)
        peer.client.will_set(f"{name}/gone", b"bye", 1)
        peer.open()
        peer.close()
        # The server has seen the end of the session before it lets in the next one of its name.
        with Peer(server, version, name) as again:
            again.publish(f"{name}/end")
        assert witness.next().topic == f"{name}/end"


def test_a_will_on_request(server: MqttServerProcess) -> None:
    name = unique("request")
    with Peer(server, 5) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        peer = Peer(server, 5, name)
        peer.client.will_set(f"{name}/gone", b"bye", 1)
        peer.open()
        peer.close(reason=0x04)
        assert witness.next().topic == f"{name}/gone"


def with_delayed_will(server: MqttServerProcess, name: str, delay: int, expiry: int) -> Peer:
    peer = lasting(server, 5, name, SessionExpiryInterval=expiry)
    given = properties(
        PacketTypes.WILLMESSAGE,
        WillDelayInterval=delay,
        ContentType="text/plain",
        UserProperty=[("b", "2"), ("a", "1")],
        MessageExpiryInterval=100,
        ResponseTopic="answer/here",
        CorrelationData=b"\xff\x00",
    )
    peer.client.will_set(f"{name}/gone", b"bye", 1, properties=given)
    return peer


def test_a_will_with_delay(server: MqttServerProcess) -> None:
    name = unique("delay")
    with Peer(server, 5) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        peer = with_delayed_will(server, name, 1, 300)
        peer.open()
        started = time.monotonic()
        peer.vanish()
        will = witness.next()
        assert time.monotonic() - started >= 0.99
        assert will.topic == f"{name}/gone"
        assert will.properties.ContentType == "text/plain"
        assert will.user_properties == [("b", "2"), ("a", "1")]
        assert will.properties.ResponseTopic == "answer/here"
        assert will.properties.CorrelationData == b"\xff\x00"
        assert 98 <= will.properties.MessageExpiryInterval <= 100


def test_who_comes_back_in_time_has_no_will(server: MqttServerProcess) -> None:
    name = unique("back")
    with Peer(server, 5) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        peer = with_delayed_will(server, name, 1, 300)
        peer.open()
        peer.vanish()
        with lasting(server, 5, name):
            time.sleep(1.5)  # past the moment at which the will would have come
            with Peer(server, 5) as publisher:
                publisher.publish(f"{name}/end")
            assert witness.next().topic == f"{name}/end"


def test_the_end_of_the_session_does_not_wait_for_the_delay(server: MqttServerProcess) -> None:
    name = unique("ends")
    with Peer(server, 5) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        peer = with_delayed_will(server, name, 3600, 0)
        peer.open()
        peer.vanish()
        assert witness.next().topic == f"{name}/gone"


def test_the_will_of_a_session_that_is_taken_over(server: MqttServerProcess) -> None:
    name = unique("taken-will")
    with Peer(server, 5) as witness:
        witness.subscribe(f"{name}/#", qos=1)
        peer = with_delayed_will(server, name, 0, 300)
        peer.open()
        with lasting(server, 5, name):
            peer.wait_gone()
            assert witness.next().topic == f"{name}/gone"


# Silence -----------------------------------------------------------------------------------------------


def test_keep_alive(server: MqttServerProcess) -> None:
    name = unique("silent")
    with Peer(server, 5) as witness, Raw(server) as silent:
        witness.subscribe(f"{name}/#", qos=1)
        started = time.monotonic()
        silent.connect(name, keep_alive=1, will=mqtt5.Will(f"{name}/gone", payload=b"x", qos=mqtt5.QoS.AT_LEAST_ONCE))
        ended = silent.expect(mqtt5.DisconnectPacket)
        assert 1.4 < time.monotonic() - started < 8
        assert int(ended.reason_code) == 0x8D
        assert silent.read() is None
        assert witness.next().topic == f"{name}/gone"


def test_pahos_pings_keep_a_connection(server: MqttServerProcess) -> None:
    name = unique("pinging")
    with Peer(server, 4, keep_alive=1) as old, Peer(server, 5, keep_alive=1) as new:
        old.subscribe(name, qos=1)
        time.sleep(3.5)  # more than twice what silence would be forgiven
        new.publish(name, b"still here")
        assert old.next().payload == b"still here"
