"""Bytes of any kind: nothing raises, nothing is read twice or past its end, nothing is kept that was not sent.

What we take of version 5 the mqtt5 library must take too, with the same values. (Not the other way round: it takes
much that the standard forbids, and what is not UTF-8 it does not survive, so it only sees what we took.)
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.wire.mqtt.connection import Limits, ServerConnection
from penstock.wire.mqtt.packets import Connect, Disconnect, Event, Lost, Publish
from penstock.wire.mqtt.reasons import Reason
from penstock.wire.mqtt.websocket import WebSocketFilter
from tests.unit.wire.mqtt.rig import PUBLISH, PUBREL, SUBSCRIBE, connect, open_connection, packet, publish, text
from tests.unit.wire.mqtt.strategies import CONNECTS, OPEN_PACKETS
from tests.unit.wire.mqtt.test_v5 import LONG_SESSION, expected

VERSIONS = pytest.mark.parametrize("version", [4, 5])
NUMBER = b"\0\x07"


def conversation(version: int) -> list[bytes]:
    """A packet of each kind that matters, in an order that is allowed."""
    none = b"\0" if version == 5 else b""
    return [
        connect(version, flags=0xC6, payload=text("client") + none + text("will") + text("x") + text("u") + text("p")),
        packet(SUBSCRIBE, NUMBER, none, text("a/+/#"), b"\x02", text("$share/g/b"), b"\x01"),
        publish(version),
        publish(version, first=PUBLISH | 2, packet_id=NUMBER),
        publish(
            version, first=PUBLISH | 4, packet_id=b"\0\x08", with_properties=b"\x01\x01\x26" + text("a") + text("b")
        ),
        packet(PUBREL, b"\0\x08"),
        packet(0x40, NUMBER),
        packet(0xA2, NUMBER, none, text("a/+/#")),
        packet(0xC0),
        packet(0xE0),
    ]


def fed(data: bytes, pieces: list[int] | None = None, limits: Limits | None = None) -> tuple[list[Event], bytes]:
    """The events of the bytes, cut at these places, with the client let in; and what was written."""
    connection = ServerConnection(limits or Limits())
    events: list[Event] = []
    written = b""
    start = 0
    for end in [*(pieces or []), len(data)]:
        found = connection.receive(data[start:end])
        start = end
        if found and isinstance(found[-1], Connect):
            connection.connack()
            found += connection.receive(b"")
        events += found
        written += connection.take()
    assert sum(isinstance(event, Lost) for event in events) <= 1
    assert connection.closed is (bool(events) and isinstance(events[-1], Lost | Disconnect))
    connection.tick(0.0)
    connection.tick(1e9)
    return events, written


@VERSIONS
def test_cut_at_every_byte(version: int) -> None:
    data = b"".join(conversation(version))
    whole = fed(data)
    assert len(whole[0]) == 9
    for index in range(len(data)):
        assert fed(data, [index]) == whole
    assert fed(data, list(range(1, len(data)))) == whole


@VERSIONS
def test_the_end_cut_off_at_every_byte(version: int) -> None:
    data = b"".join(conversation(version))
    whole, _ = fed(data)
    for index in range(len(data)):
        events, _ = fed(data[:index])
        assert events == whole[: len(events)]


@VERSIONS
def test_every_bit_flipped(version: int) -> None:
    data = bytearray(b"".join(conversation(version)))
    for index in range(len(data)):
        for bit in range(8):
            data[index] ^= 1 << bit
            fed(bytes(data))
            data[index] ^= 1 << bit


@VERSIONS
@given(data=st.data())
def test_packets_in_any_order(version: int, data: st.DataObject) -> None:
    packets = data.draw(st.lists(st.sampled_from(conversation(version)), max_size=12))
    events, _ = fed(b"".join(packets))
    first = conversation(version)[0]
    if packets and packets[0] != first:
        assert [type(event) for event in events] == [Lost]
    elif packets.count(first) > 1 and isinstance(events[-1], Lost):
        assert events[-1].reason is Reason.PROTOCOL_ERROR


@given(
    st.binary(max_size=200), st.sampled_from([b"", connect(4), connect(5)]), st.lists(st.integers(0, 220), max_size=3)
)
def test_anything(noise: bytes, before: bytes, cuts: list[int]) -> None:
    data = before + noise
    assert fed(data, sorted(min(cut, len(data)) for cut in cuts)) == fed(data)


def changed(data: bytes, draw: st.DataObject) -> bytes:
    """A packet with some of its bytes changed; its length stays true, so that the change is looked at."""
    body = bytearray(data[2:] if data[1] < 0x80 else data[3:])
    for _ in range(draw.draw(st.integers(1, 3))):
        if body:
            body[draw.draw(st.integers(0, len(body) - 1))] = draw.draw(st.integers(0, 255))
    return packet(data[0], bytes(body))


@given(OPEN_PACKETS, st.data())
def test_what_we_take_the_library_takes(original: Any, draw: st.DataObject) -> None:
    data = changed(original.write(), draw)
    connection = open_connection(5, with_properties=LONG_SESSION)
    events = connection.receive(data)
    if events and not isinstance(events[0], Lost):
        theirs, size = mqtt5.read(memoryview(data))
        assert size == len(data)
        if isinstance(events[0], Publish) and events[0].properties.payload_format == 0:  # which it reads as not said
            events[0] = replace(events[0], properties=replace(events[0].properties, payload_format=None))
        assert [expected(theirs)] == events or getattr(theirs, "topic_alias", None)


@given(CONNECTS, st.data())
def test_what_we_take_of_connect_the_library_takes(original: mqtt5.ConnectPacket, draw: st.DataObject) -> None:
    data = changed(original.write(), draw)
    connection = ServerConnection(Limits())
    events = connection.receive(data)
    if isinstance(events[0], Connect) and events[0].version == 5:
        theirs, _ = mqtt5.read(memoryview(data))
        assert isinstance(theirs, mqtt5.ConnectPacket)
        assert (theirs.client_id, theirs.keep_alive) == (events[0].client_id, events[0].keep_alive)
        assert (theirs.username, theirs.password) == (events[0].username, events[0].password)


@VERSIONS
def test_an_announced_length_costs_no_memory(version: int) -> None:
    limits = Limits(maximum_packet_size=64 * 1024 * 1024)
    tracemalloc.start()
    try:
        connections = [open_connection(version, limits) for _ in range(20)]
        before, _ = tracemalloc.get_traced_memory()
        for connection in connections:
            assert connection.receive(packet(PUBLISH, bytes(60_000_000))[:1000]) == []
        tracemalloc.reset_peak()
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 20 * 4000
    finally:
        tracemalloc.stop()


def test_a_long_packet_in_small_pieces_takes_time_in_line_with_its_length() -> None:
    connection = open_connection(4)
    sent = publish(4, payload=bytes(4_000_000))
    events: list[Event] = []
    # Joined anew for each piece this would move 4 MB ten thousand times.
    for start in range(0, len(sent), 400):
        events += connection.receive(sent[start : start + 400])
    assert len(events) == 1


def test_many_packets_in_one_piece_take_time_in_line_with_their_number() -> None:
    connection = open_connection(4)
    assert len(connection.receive(publish(4) * 50_000)) == 50_000


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_to_the_websocket_filter(noise: bytes, after_handshake: bool) -> None:
    filter_ = WebSocketFilter()
    if after_handshake:
        filter_.receive(
            b"GET /mqtt HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        assert filter_.take().startswith(b"HTTP/1.1 101")
    filter_.receive(noise)
    filter_.receive(noise)
    filter_.send(b"x")
    filter_.take()
    filter_.close()
    filter_.take()
    assert filter_.closed
