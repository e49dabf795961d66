"""The fast path against pamqp: the same bytes out, the same fields in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from penstock.wire.amqp091.events import Ack, Nack, Publish, Reject
from penstock.wire.amqp091.properties import NONE, Properties, build
from tests.unit.wire.amqp091.client import Client, published, read, written

NAMES = st.text("abcXYZ019_.-", max_size=40)
TAGS = st.integers(0, 2**63 - 1)
PROPERTIES = st.builds(
    Basic.Properties,
    content_type=st.none() | st.text(min_size=1, max_size=20),
    delivery_mode=st.none() | st.integers(1, 2),
    headers=st.none() | st.dictionaries(st.text(max_size=9), st.text() | st.integers(-9, 9), min_size=1, max_size=3),
    message_id=st.none() | st.text(min_size=1, max_size=20),
)
BODIES = st.binary(max_size=50) | st.integers(4080, 20_000).map(lambda size: b"x" * size)


def client() -> Client:
    return Client().open(1, 9, frame_max=4096)


def content(channel: int, properties: Basic.Properties, body: bytes, most: int = 4088) -> bytes:
    parts: list[Any] = [ContentHeader(body_size=len(body), properties=properties)]
    parts += [ContentBody(body[start : start + most]) for start in range(0, len(body), most)]
    return written(channel, *parts)


@given(TAGS, st.booleans(), NAMES, NAMES, NAMES, PROPERTIES, BODIES)
def test_deliver(
    tag: int, again: bool, consumer: str, exchange: str, key: str, properties: Basic.Properties, body: bytes
) -> None:
    server = client().server
    server.deliver(9, consumer.encode(), tag, again, exchange.encode(), key.encode(), properties.marshal(), body)
    theirs = Basic.Deliver(
        consumer_tag=consumer, delivery_tag=tag, redelivered=again, exchange=exchange, routing_key=key
    )
    assert server.take() == written(9, theirs) + content(9, properties, body)


@given(TAGS, st.booleans(), NAMES, NAMES, st.integers(0, 2**32 - 1), PROPERTIES, BODIES)
def test_get_ok(
    tag: int, again: bool, exchange: str, key: str, count: int, properties: Basic.Properties, body: bytes
) -> None:
    server = client().server
    server.get_ok(9, tag, again, exchange.encode(), key.encode(), count, properties.marshal(), body)
    theirs = Basic.GetOk(delivery_tag=tag, redelivered=again, exchange=exchange, routing_key=key, message_count=count)
    assert server.take() == written(9, theirs) + content(9, properties, body)


@given(NAMES, NAMES, PROPERTIES, BODIES)
def test_return(exchange: str, key: str, properties: Basic.Properties, body: bytes) -> None:
    server = client().server
    server.return_message(Publish(9, exchange.encode(), key.encode(), True, False, properties.marshal(), body))
    theirs = Basic.Return(reply_code=312, reply_text="NO_ROUTE", exchange=exchange, routing_key=key)
    assert server.take() == written(9, theirs) + content(9, properties, body)


@given(TAGS, st.booleans())
def test_confirms(tag: int, multiple: bool) -> None:
    server = client().server
    server.confirm(9, tag, multiple)
    server.confirm(9, tag, multiple, refused=True)
    assert server.take() == written(9, Basic.Ack(tag, multiple), Basic.Nack(tag, multiple, requeue=False))


@given(TAGS, st.booleans(), st.booleans())
def test_settling(tag: int, multiple: bool, requeue: bool) -> None:
    assert client().write(
        9, Basic.Ack(tag, multiple), Basic.Nack(tag, multiple, requeue), Basic.Reject(tag, requeue)
    ) == [
        Ack(9, tag, multiple),
        Nack(9, tag, multiple, requeue),
        Reject(9, tag, requeue),
    ]


MESSAGES = st.builds(
    lambda exchange, key, mandatory, properties, body, cut: (exchange, key, mandatory, properties, body, cut),
    NAMES,
    st.text("abc.ü#", max_size=40),
    st.booleans(),
    PROPERTIES,
    BODIES,
    st.sampled_from((1000, 4088)),
)


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.data())
def test_publishing_however_it_is_cut(messages: list[Any], data: st.DataObject) -> None:
    """Messages of one connection, their bodies in frames of several sizes, the bytes in pieces of any size."""
    stream = b""
    expected = []
    for exchange, key, mandatory, properties, body, cut in messages:
        stream += written(9, Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory))
        stream += content(9, properties, body, cut)
        expected.append(Publish(9, exchange.encode(), key.encode(), mandatory, False, properties.marshal(), body))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    server = client().server
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += server.receive(stream[start:end])
    assert found == expected
    assert server.take() == b""


def test_byte_by_byte() -> None:
    stream = published(b"hello", properties=Basic.Properties(message_id="7")) + written(1, Basic.Ack(3))
    stream += published(b"")
    whole = client().server.receive(stream)
    server = client().server
    assert [event for index in range(len(stream)) for event in server.receive(stream[index : index + 1])] == whole
    assert len(whole) == 3


@given(
    st.text(max_size=255).filter(lambda name: len(name.encode()) <= 255),
    st.text(max_size=255).filter(lambda name: len(name.encode()) <= 255),
)
def test_any_name_of_255_bytes(exchange: str, key: str) -> None:
    """pamqp's constructors refuse most of these; reading does not."""
    rig = client()
    names = exchange.encode(), key.encode()
    rig.server.deliver(1, names[1], 5, False, *names, NONE, b"x")
    [(_, deliver), (_, header), (_, body)] = read(rig.server.take())
    assert (deliver.consumer_tag, deliver.exchange, deliver.routing_key) == (key, exchange, key)
    assert header.body_size == 1
    assert body.value == b"x"
    payload = b"\x00\x3c\x00\x28\x00\x00" + b"".join(bytes((len(name),)) + name for name in names) + b"\x03"
    data = b"\x01\x00\x01" + len(payload).to_bytes(4) + payload + b"\xce" + content(1, Basic.Properties(), b"x")
    assert rig.server.receive(data) == [Publish(1, *names, True, True, NONE, b"x")]


def test_properties_come_and_go_bit_by_bit() -> None:
    raw = build(headers={"a": [1, None], "b": b"\x00"}, timestamp=2**40, cluster_id="c", priority=200)
    rig = client()
    rig.server.deliver(1, b"c", 1, False, b"", b"q", raw, b"")
    sent = rig.server.take()
    _, _, method = frame.unmarshal(sent)
    assert isinstance(method, Basic.Deliver)
    header = sent[len(written(1, method)) :]
    [event] = rig.server.receive(written(1, Basic.Publish(routing_key="q")) + header)
    assert isinstance(event, Publish)
    assert event.properties == raw
    assert Properties(event.properties).priority == 200


@pytest.mark.parametrize("size", [4087, 4088, 4089, 8176, 8177])
def test_a_body_at_the_limit_of_a_frame(size: int) -> None:
    rig = client()
    rig.server.deliver(1, b"c", 1, False, b"", b"q", NONE, bytes(size))
    sizes = [len(part.value) for _, part in rig.answers()[2:]]
    assert sizes == [4088] * (size // 4088) + [size % 4088] * (size % 4088 > 0)
