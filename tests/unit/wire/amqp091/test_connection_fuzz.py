"""Hostile bytes: the engine never raises, keeps little, and answers with at most one close, of a code that exists."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from penstock.wire.amqp091.codes import PROTOCOL_HEADER
from penstock.wire.amqp091.connection import ServerConnection
from penstock.wire.amqp091.events import ChannelClosed, ChannelOpened, Closed, Failed, Lost, Publish
from penstock.wire.amqp091.handshake import Limits
from tests.unit.wire.amqp091.client import START_OK, Client, published, raw_frame, read, written

LIMITS = Limits(max_message_bytes=5000, max_unfinished_bytes=8000, frame_max=4096)
NAMED_CODES = {311, 501, 502, 503, 504, 505, 506, 530, 540}

GOOD_FRAMES = [
    written(channel, part)
    for channel in (0, 1, 2)
    for part in (
        Channel.Open(),
        Channel.Close(200, "bye", 0, 0),
        Channel.CloseOk(),
        Channel.Flow(active=True),
        Connection.Close(200, "bye", 0, 0),
        Connection.CloseOk(),
        Connection.Open("/"),
        Connection.TuneOk(0, 0, 0),
        START_OK,
        Exchange.Declare(exchange="e", arguments={"a": [1, {"b": None}]}),
        Queue.Declare(queue="q", arguments={"x-max-priority": 5}),
        Queue.DeclareOk("q", 0, 0),
        Basic.Publish(routing_key="q"),
        ContentHeader(body_size=0),
        ContentHeader(body_size=5, properties=Basic.Properties(headers={"a": "b"}, message_id="7")),
        ContentHeader(body_size=2**40),
        ContentBody(b"hello"),
        ContentBody(b"hel"),
        ContentBody(b"lo"),
        ContentBody(b""),
        Basic.Ack(1),
        Basic.Nack(1),
        Basic.Reject(1),
        Basic.Consume(queue="q"),
        Basic.Get(queue="q"),
        Tx.Select(),
        Confirm.Select(),
        Heartbeat(),
    )
]
FRAMES = st.one_of(
    st.sampled_from(GOOD_FRAMES),
    # Whole messages, and messages that end early, more often than chance would have them.
    st.integers(1, 2).map(lambda channel: published(b"hello", channel=channel, cut=3)),
    st.integers(1, 2).map(lambda channel: published(b"hello" * 700, channel=channel, cut=3000)[:-508]),
    st.builds(
        raw_frame,
        st.sampled_from((1, 2, 3, 8, 0, 255)),
        st.integers(0, 3) | st.just(65535),
        st.binary(max_size=40),
        st.sampled_from((b"\xce", b"\xce", b"\xce", b"\x00")),
    ),
    st.builds(
        lambda index, rest: raw_frame(1, 1, index.to_bytes(4) + rest),
        st.sampled_from((0x003C0028, 0x003C0050, 0x003C0078, 0x0032000A, 0x003C0014, 0x000A0032, 0x00140028)),
        st.binary(max_size=30),
    ),
    st.binary(max_size=20),
)


def check(server: ServerConnection, found: list[Any], sent: bytes) -> None:
    """What must hold after any bytes at all."""
    failed = [event for event in found if isinstance(event, Failed)]
    closes = [part for _, part in read(sent) if isinstance(part, Connection.Close)]
    assert len(failed) == len(closes) <= 1
    assert {event.code for event in failed} <= NAMED_CODES
    if failed:
        after = found[found.index(failed[0]) + 1 :]
        assert {type(event) for event in after} <= {Lost}
        assert list(server._open) == []
    assert server.finished is bool([event for event in found if isinstance(event, Lost | Closed)])
    for event in found:
        if isinstance(event, ChannelClosed) and not event.by_client:
            assert event.code in NAMED_CODES
        if isinstance(event, Publish):
            assert len(event.body) <= LIMITS.max_message_bytes
    opened: set[int] = {1}
    for event in found:
        if isinstance(event, ChannelOpened):
            assert event.channel not in opened
            opened.add(event.channel)
        elif isinstance(event, ChannelClosed):
            opened.remove(event.channel)
        elif hasattr(event, "channel"):
            assert event.channel in opened
    assert sum(map(len, server._rest)) <= LIMITS.frame_max
    held = sum(message.received for message in server._open.values() if message is not None)
    assert held == server._unfinished <= LIMITS.max_unfinished_bytes


def fed(server: ServerConnection, stream: bytes, cuts: list[int]) -> tuple[list[Any], bytes]:
    found: list[Any] = []
    places = sorted(cut % (len(stream) + 1) for cut in cuts)
    for start, end in zip([0, *places], [*places, len(stream)], strict=True):
        found += server.receive(stream[start:end])
    return found, server.take()


@settings(max_examples=400)
@given(st.lists(FRAMES, max_size=14), st.lists(st.integers(0, 10_000), max_size=5))
def test_any_frames_in_any_order_cut_anywhere(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    server = Client(LIMITS).open(1).server
    found, sent = fed(server, stream, cuts)
    check(server, found, sent)
    # However the bytes are cut, they mean the same.
    other = Client(LIMITS).open(1).server
    again, sent_again = fed(other, stream, [])
    assert sent_again == sent
    assert [(type(event), str(event).split(" object")[0]) for event in again] == [
        (type(event), str(event).split(" object")[0]) for event in found
    ]


@settings(max_examples=200)
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_from_the_start(data: bytes, greets: bool) -> None:
    server = ServerConnection(LIMITS)
    found = server.receive(PROTOCOL_HEADER + data if greets else data)
    read(server.take()) if greets else server.take()
    assert all(isinstance(event, Failed | Lost) for event in found)


CONVERSATION = (
    written(1, Queue.Declare(queue="q", arguments={"x": [1, "two", None]}))
    + published(b"hello", properties=Basic.Properties(headers={"k": "v"}, delivery_mode=2))
    + published(b"x" * 9000, cut=4000)[:200]
)


@settings(max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(CONVERSATION) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_conversation_with_bytes_changed(changes: list[tuple[int, int]]) -> None:
    stream = bytearray(CONVERSATION)
    for place, value in changes:
        stream[place] = value
    server = Client(LIMITS).open(1).server
    found = server.receive(bytes(stream))
    check(server, found, server.take())


def test_a_conversation_cut_at_every_byte() -> None:
    for cut in range(len(CONVERSATION)):
        server = Client(LIMITS).open(1).server
        found = server.receive(CONVERSATION[:cut])
        check(server, found, server.take())
        # The connection is then lost: what is left over is no more than a frame.
        assert server.tick(1.0) == []
