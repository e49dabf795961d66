"""What breaks the protocol is answered with the reply code that the specification names, and costs what it says."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Connection, Exchange, Queue
from pamqp.header import ContentHeader

from penstock.wire.amqp091.codes import PROTOCOL_HEADER
from penstock.wire.amqp091.connection import ServerConnection
from penstock.wire.amqp091.events import Ack, ChannelClosed, ChannelOpened, Failed
from penstock.wire.amqp091.handshake import Limits
from tests.unit.wire.amqp091.client import Client, published, raw_frame, written

if TYPE_CHECKING:
    from pamqp.base import Frame

PUBLISH = written(1, Basic.Publish(routing_key="q"))
HEADER = written(1, ContentHeader(body_size=5))
BODY = written(1, ContentBody(b"hello"))


def header_payload(size: int = 5, class_id: int = 60, weight: int = 0, properties: bytes = b"\0\0") -> bytes:
    return class_id.to_bytes(2) + weight.to_bytes(2) + size.to_bytes(8) + properties


WRONG: dict[str, tuple[int, bytes]] = {
    "a wrong end octet": (501, raw_frame(1, 1, b"\0\x14\0\x0b", end=b"\xcd")),
    "a frame over the agreed size": (501, b"\x03\x00\x01\x00\x01\xff\xf9"),
    "an enormous frame": (501, b"\x01\x00\x01\xff\xff\xff\xff"),
    "an unknown type of frame": (501, raw_frame(4, 1, b"")),
    "the frame type of an old version": (501, raw_frame(0, 0, b"x")),
    "a heartbeat on a channel": (501, raw_frame(8, 1, b"")),
    "a heartbeat with a payload": (501, raw_frame(8, 0, b"x")),
    "a content header of another class": (501, PUBLISH + raw_frame(2, 1, header_payload(class_id=50))),
    "a content header with a weight": (501, PUBLISH + raw_frame(2, 1, header_payload(weight=1))),
    "a weight, and its body": (501, PUBLISH + raw_frame(2, 1, header_payload(weight=1)) + BODY),
    "a wrong end octet in a whole message": (501, PUBLISH + HEADER[:-1] + b"\0" + BODY),
    "a wrong end octet at the end of a message": (501, PUBLISH + HEADER + BODY[:-1] + b"\0"),
    "a content header without flags": (501, PUBLISH + raw_frame(2, 1, header_payload(properties=b""))),
    "a method frame without a method": (502, raw_frame(1, 1, b"\0\x3c\0")),
    "an empty method frame": (502, raw_frame(1, 1, b"")),
    "a method with bytes after it": (502, raw_frame(1, 1, b"\0\x3c\0\x6e\x00\x00")),
    "a method that ends in a field": (502, raw_frame(1, 1, b"\0\x32\0\x0a\0\0\x09abc")),
    "a name that is not UTF-8": (502, raw_frame(1, 1, b"\0\x32\0\x1e\0\0\x02\xff\xfe\0")),
    "a table that lies": (502, raw_frame(1, 1, b"\0\x32\0\x0a\0\0\0\0\0\0\0\xff")),
    "a publish that ends early": (502, raw_frame(1, 1, b"\0\x3c\0\x28\0\0\xff" + b"a" * 20)),
    "a publish that goes on": (502, raw_frame(1, 1, b"\0\x3c\0\x28\0\0\0\0\0" + b"a" * 20)),
    "a publish of three bytes": (502, raw_frame(1, 1, b"\0\x3c\0\x28\0\0\0")),
    "a publish with a name that is not UTF-8": (502, raw_frame(1, 1, b"\0\x3c\0\x28\0\0\x02\xff\xff\x00\x00")),
    "a publish with a key that is not UTF-8": (502, raw_frame(1, 1, b"\0\x3c\0\x28\0\0\0\x05\xff\xffabc\x00")),
    "an ack with bytes after it": (502, raw_frame(1, 1, b"\0\x3c\0\x50" + bytes(10))),
    "an ack that ends early": (502, raw_frame(1, 1, b"\0\x3c\0\x50" + bytes(8))),
    "properties that end early": (502, PUBLISH + raw_frame(2, 1, header_payload(properties=b"\x80\0\x05ab")) + BODY),
    "properties with bytes after them": (502, PUBLISH + raw_frame(2, 1, header_payload(properties=b"\0\0\0")) + BODY),
    "headers that lie": (502, PUBLISH + raw_frame(2, 1, header_payload(properties=b"\x20\0\0\0\0\xff")) + BODY),
    "headers of an unknown type": (502, PUBLISH + raw_frame(2, 1, header_payload(properties=b"\x20\0\0\0\0\3\1a?"))),
    "a method of the server": (503, written(1, Queue.DeclareOk("q", 0, 0))),
    "a delivery": (503, written(1, Basic.Deliver("c", 1, False, "", "q"))),
    "a close-ok that nobody asked for": (503, written(1, Channel.CloseOk())),
    "a connection's method on a channel": (503, written(1, Connection.TuneOk(0, 0, 0))),
    "a channel's method on channel 0": (503, written(0, Basic.Ack(1))),
    "a second start-ok": (503, written(0, Connection.StartOk())),
    "a connection's close-ok that nobody asked for": (503, written(0, Connection.CloseOk())),
    "a method on a closed channel": (504, written(2, Basic.Ack(1))),
    "a publish on a closed channel": (504, published(channel=2)),
    "a channel that is open already": (504, written(1, Channel.Open())),
    "content on a closed channel": (504, HEADER.replace(b"\x02\x00\x01", b"\x02\x00\x02", 1)),
    "a body on a closed channel": (504, written(2, ContentBody(b"x"))),
    "content on channel 0": (504, written(0, ContentBody(b"x"))),
    "a channel's close on a closed channel": (504, written(2, Channel.Close(200, "", 0, 0))),
    "a content header without a publish": (505, HEADER),
    "a body without a publish": (505, BODY),
    "a body without its header": (505, PUBLISH + BODY),
    "two content headers": (505, PUBLISH + HEADER + HEADER),
    "a method in the midst of content": (505, PUBLISH + written(1, Basic.Ack(1))),
    "a publish after a publish": (505, PUBLISH + PUBLISH),
    "a close in the midst of content": (505, PUBLISH + HEADER + written(1, Channel.Close(200, "", 0, 0))),
    "a body that is longer than announced": (505, PUBLISH + HEADER + written(1, ContentBody(b"hello!"))),
    "a second body": (505, published() + BODY),
    "a body after none was announced": (505, published(b"") + BODY),
    "a channel above the agreed maximum": (530, written(2048, Channel.Open())),
    "an unknown method of a class": (540, raw_frame(1, 1, b"\0\x3c\0\x63")),
    "an unknown class": (540, raw_frame(1, 1, b"\0\x46\0\x0a")),
    "an unknown method on channel 0": (540, raw_frame(1, 0, b"\0\x0a\0\x63")),
}


@pytest.mark.parametrize(("code", "data"), WRONG.values(), ids=list(WRONG))
def test_costs_the_connection(code: int, data: bytes) -> None:
    client = Client().open(1)
    assert client.failure(data) == code
    # Nothing more is taken from it, and what follows does no harm.
    assert client.server.receive(published()) == []
    assert client.answers() == []
    client.write(0, Connection.CloseOk())
    assert client.server.finished is (code != 501)


@pytest.mark.parametrize(("code", "data"), WRONG.values(), ids=list(WRONG))
def test_costs_the_connection_byte_by_byte(code: int, data: bytes) -> None:
    client = Client().open(1)
    found = [event for index in range(len(data)) for event in client.server.receive(data[index : index + 1])]
    assert [event.code for event in found if isinstance(event, Failed)] == [code]
    assert client.answer(Connection.Close).reply_code == code


def test_the_close_names_the_method() -> None:
    client = Client().open(1)
    client.server.receive(written(1, Queue.DeclareOk("q", 0, 0)))
    close = client.answer(Connection.Close)
    assert (close.class_id, close.method_id) == (50, 11)


HANDSHAKE_WRONG: dict[str, tuple[int, Frame]] = {
    "an unknown mechanism": (503, Connection.StartOk(mechanism="EXTERNAL", response="x")),
    "a PLAIN response without a password": (502, Connection.StartOk(mechanism="PLAIN", response="\0me")),
    "an AMQPLAIN response that is no table": (502, Connection.StartOk(mechanism="AMQPLAIN", response="\0me\0x")),
    "an AMQPLAIN response without a password": (502, Connection.StartOk(mechanism="AMQPLAIN", response="\x05LOGINV")),
    "tune-ok before start-ok": (503, Connection.TuneOk(0, 0, 0)),
    "open before start-ok": (503, Connection.Open("/")),
}


@pytest.mark.parametrize(("code", "method"), HANDSHAKE_WRONG.values(), ids=list(HANDSHAKE_WRONG))
def test_a_handshake_in_disorder(code: int, method: Frame) -> None:
    client = Client()
    client.server.receive(PROTOCOL_HEADER)
    client.answer(Connection.Start)
    assert client.failure(written(0, method)) == code


def test_nothing_else_goes_before_the_login_is_accepted() -> None:
    makers: list[tuple[int, Callable[[], bytes]]] = [
        (504, lambda: written(1, Channel.Open())),
        (505, published),
        (503, lambda: written(0, Connection.TuneOk(0, 0, 0))),
        (501, lambda: b"\x01\x00\x00\x00\x00\x20\x00"),
    ]
    for code, make in makers:
        client = Client()
        client.log_in()
        data = make()
        if code == 505:
            data = data[len(PUBLISH) :]
        assert client.failure(data) == code
        client.server.accept_login()
        assert client.answers() == []


def test_a_close_during_the_handshake_is_answered() -> None:
    client = Client()
    client.log_in()
    client.write(0, Connection.Close(200, "no", 0, 0))
    client.answer(Connection.CloseOk)
    assert client.server.finished


@pytest.mark.parametrize("cut", [500, 2000])
def test_a_message_that_is_too_large_costs_its_channel_and_only_it(cut: int) -> None:
    client = Client(Limits(max_message_bytes=1000)).open(1, 2)
    assert len(client.server.receive(published(bytes(1000)))) == 1
    [closed] = client.server.receive(published(bytes(1001), cut=cut))
    assert isinstance(closed, ChannelClosed)
    assert (closed.channel, closed.code, closed.by_client) == (1, 311, False)
    close = client.answer(Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (311, 60, 40)
    assert client.write(2, Basic.Ack(1)) == [Ack(2, 1, False)]
    assert client.write(1, Channel.CloseOk(), Channel.Open()) == [ChannelOpened(1)]


def test_an_announced_size_takes_no_room() -> None:
    client = Client().open(1)
    data = PUBLISH + raw_frame(2, 1, header_payload(size=2**64 - 1)) + BODY
    tracemalloc.start()
    try:
        [closed] = client.server.receive(data)
        client.server.receive(b"\x01\x00\x00\xff\xff\xff\xff" + bytes(1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(closed, ChannelClosed)
    assert peak < 100_000


def test_small_frames_take_no_more_room_than_large_ones() -> None:
    """A body in frames of one byte: nothing is kept for each frame."""
    client = Client().open(1)
    size = 40_000
    client.server.receive(PUBLISH + raw_frame(2, 1, header_payload(size=size)))
    one = raw_frame(3, 1, b"x") * 1000
    tracemalloc.start()
    try:
        found = [event for _ in range(size // 1000) for event in client.server.receive(one)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert peak < 4 * size


def test_unfinished_messages_of_all_channels_together_have_a_limit() -> None:
    limits = Limits(max_message_bytes=1000, max_unfinished_bytes=2500)
    client = Client(limits).open(1, 2, 3, 4)
    server = client.server
    for channel in (1, 2, 3):
        assert server.receive(published(bytes(1000), channel=channel, cut=800)[:-208]) == []
    # One is finished, then one is closed: there is room for one more each time.
    server.receive(raw_frame(3, 1, bytes(200)))
    assert server.receive(published(bytes(1000), channel=4, cut=800)[:-208]) == []
    server.channel_error(2, 404, "no")
    client.answers()
    assert server.receive(published(bytes(1000), channel=1, cut=800)[:-208]) == []
    client.write(2, Channel.CloseOk(), Channel.Open())
    client.answers()
    assert client.failure(published(bytes(1000), channel=2, cut=101)[: -(101 + 8 + 99)]) == 506


def test_a_small_frame_is_agreed_upon_and_a_larger_one_an_error() -> None:
    client = Client().open(1, frame_max=4096)
    assert len(client.server.receive(published(bytes(4088), cut=4088))) == 1
    assert client.failure(published(bytes(4089), cut=4089)) == 501


def test_what_follows_an_error_in_the_same_bytes_is_ignored() -> None:
    client = Client().open(1)
    found = client.server.receive(written(2, Basic.Ack(1)) + published() + written(1, Exchange.Declare(exchange="e")))
    assert [type(event) for event in found] == [Failed]
    client.answer(Connection.Close)


def test_close_ok_in_the_same_bytes_as_the_error() -> None:
    client = Client().open(1)
    client.server.receive(written(2, Basic.Ack(1)) + written(0, Connection.CloseOk()) + published())
    assert client.server.finished


def test_connections_know_nothing_of_each_other() -> None:
    good, bad = Client().open(1), Client().open(1)
    bad.server.receive(b"\xff" * 100)
    assert len(good.server.receive(published())) == 1


def test_nothing_is_read_before_the_header() -> None:
    server = ServerConnection(Limits())
    assert server.receive(b"") == []
    assert server.take() == b""
