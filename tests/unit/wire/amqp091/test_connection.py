"""A connection in good order: logging in, agreeing, channels, closing from either side, heartbeats, being blocked."""

from __future__ import annotations

import pytest
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from penstock.wire.amqp091.codes import PROTOCOL_HEADER
from penstock.wire.amqp091.connection import ServerConnection
from penstock.wire.amqp091.events import (
    Ack,
    ChannelClosed,
    ChannelOpened,
    Closed,
    Failed,
    Login,
    Lost,
    Method,
    OpenVhost,
    Publish,
)
from penstock.wire.amqp091.handshake import SERVER_PROPERTIES, Limits
from penstock.wire.amqp091.methods import make
from penstock.wire.amqp091.tables import encode_table
from tests.unit.wire.amqp091.client import START_OK, Client, published


def test_plain_login() -> None:
    client = Client()
    assert client.log_in() == [Login("PLAIN", "me", "secret")]
    assert client.server.client_properties["product"] == "test"


def test_amqplain_login() -> None:
    response = encode_table({"LOGIN": "me", "PASSWORD": "geheimnis ü"})[4:]
    start_ok = Connection.StartOk(client_properties={}, mechanism="AMQPLAIN", response=response.decode())
    assert Client().log_in(start_ok) == [Login("AMQPLAIN", "me", "geheimnis ü")]


def test_what_the_server_says_of_itself() -> None:
    client = Client()
    client.server.receive(PROTOCOL_HEADER)
    start = client.answer(Connection.Start)
    assert (start.version_major, start.version_minor) == (0, 9)
    assert start.mechanisms == "PLAIN AMQPLAIN"
    assert start.server_properties == SERVER_PROPERTIES


def test_the_protocol_header_may_come_byte_by_byte() -> None:
    server = ServerConnection(Limits())
    for index in range(8):
        assert server.take() == b""
        assert server.receive(PROTOCOL_HEADER[index : index + 1]) == []
    assert server.take()


@pytest.mark.parametrize("first", [b"AMQP\x01\x01\x00\x0a", b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n", b"\x16"])
def test_another_protocol_is_answered_with_ours(first: bytes) -> None:
    server = ServerConnection(Limits())
    [lost] = server.receive(first)
    assert isinstance(lost, Lost)
    assert server.take() == PROTOCOL_HEADER
    assert server.finished
    assert server.receive(b"more") == []


@pytest.mark.parametrize(
    ("told", "agreed"),
    [((0, 0, 0), (2047, 131_072, 0)), ((10, 4096, 5), (10, 4096, 5)), ((2047, 131_072, 900), (2047, 131_072, 900))],
)
def test_tuning(told: tuple[int, int, int], agreed: tuple[int, int, int]) -> None:
    client = Client()
    client.log_in()
    client.server.accept_login()
    tune = client.answer(Connection.Tune)
    assert (tune.channel_max, tune.frame_max, tune.heartbeat) == (2047, 131_072, 60)
    client.write(0, Connection.TuneOk(*told))
    assert client.write(0, Connection.Open("/")) == [OpenVhost("/")]
    server = client.server
    assert (server.channel_max, server.frame_max, server.heartbeat) == agreed


@pytest.mark.parametrize("told", [(2048, 0, 0), (0, 131_073, 0), (0, 4095, 0)])
def test_more_than_was_offered_is_refused(told: tuple[int, int, int]) -> None:
    client = Client()
    client.log_in()
    client.server.accept_login()
    client.answer(Connection.Tune)
    client.write(0, Connection.TuneOk(*told))
    assert client.answer(Connection.Close).reply_code == 530


def test_a_refused_login_is_told_who_can_be_told() -> None:
    client = Client()
    client.log_in()
    client.server.refuse_login("wrong password")
    close = client.answer(Connection.Close)
    assert close.reply_code == 403
    assert close.reply_text == "ACCESS_REFUSED - wrong password"
    assert not client.server.finished
    assert [type(event) for event in client.write(0, Connection.CloseOk())] == [Lost]
    assert client.server.finished


def test_a_refused_login_of_a_client_that_cannot_be_told() -> None:
    client = Client()
    client.log_in(Connection.StartOk(client_properties={}, response="\0me\0secret"))
    client.server.refuse_login("wrong password")
    assert client.server.finished
    assert client.answers() == []


def test_a_refused_vhost() -> None:
    client = Client()
    client.log_in()
    client.server.accept_login()
    client.write(0, Connection.TuneOk(0, 0, 0))
    client.write(0, Connection.Open(virtual_host="nowhere"))
    client.answers()
    client.server.refuse_vhost("there is no vhost nowhere")
    close = client.answer(Connection.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (530, 10, 40)


def test_channels() -> None:
    client = Client().open(1, 2047)
    assert client.channels == [1, 2047]
    assert client.write(1, Channel.Close(200, "bye", 0, 0)) == [ChannelClosed(1, 200, "bye", by_client=True)]
    client.answer(Channel.CloseOk)
    assert client.channels == [2047]
    assert client.write(1, Channel.Open()) == [ChannelOpened(1)]
    client.answer(Channel.OpenOk)


def test_a_close_that_the_owner_answers() -> None:
    client = Client(answers_closes=False).open(1)
    assert len(client.write(1, Channel.Close(200, "bye", 0, 0))) == 1
    assert client.answers() == []
    assert client.channels == []
    client.server.close_ok(1)
    client.answer(Channel.CloseOk)
    client.server.close_ok(1)
    assert client.answers() == []
    assert client.write(0, Connection.Close(200, "bye", 0, 0)) == [Closed(200, "bye")]
    assert client.answers() == []
    assert not client.server.finished
    assert client.write(1, Basic.Ack(1)) == []
    client.server.close_ok(0)
    client.answer(Connection.CloseOk)
    assert client.server.finished


def test_a_channel_is_not_open_again_before_its_close_is_answered() -> None:
    client = Client(answers_closes=False).open(1)
    client.write(1, Channel.Close(200, "bye", 0, 0))
    [failed] = client.write(1, Channel.Open())
    assert isinstance(failed, Failed)
    assert failed.code == 504


def test_closing() -> None:
    client = Client().open(1)
    assert client.write(0, Connection.Close(200, "bye", 0, 0)) == [Closed(200, "bye")]
    client.answer(Connection.CloseOk)
    assert client.server.finished
    assert client.channels == []


def test_channel_error_costs_the_channel_and_only_it() -> None:
    client = Client().open(1, 2)
    server = client.server
    server.receive(published(b"x" * 100, channel=1, cut=10)[:80])
    server.channel_error(1, 404, "no queue 'q' in vhost '/'", 50, 10)
    close = client.answer(Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (404, 50, 10)
    assert close.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert client.channels == [2]
    # What was under way before the client knew is ignored, the rest of the message too; so is what the owner sends.
    assert server.receive(published(b"x" * 100, channel=1, cut=10)[80:]) == []
    assert client.write(1, Basic.Ack(1), Queue.Declare(queue="q"), Channel.Open()) == []
    server.confirm(1, 1, False)
    server.deliver(1, b"c", 1, False, b"", b"q", b"\0\0", b"x")
    server.channel_error(1, 404, "again")
    assert client.answers() == []
    assert client.write(2, Basic.Ack(7)) == [Ack(2, 7, False)]
    # A close of the client's that crossed ours is answered, and ours still waits for its answer.
    assert client.write(1, Channel.Close(200, "bye", 0, 0)) == []
    client.answer(Channel.CloseOk)
    assert client.write(1, Channel.CloseOk(), Channel.Open()) == [ChannelOpened(1)]


def test_connection_error() -> None:
    client = Client().open(1)
    client.server.connection_error(541, "the store is broken", 60, 40)
    close = client.answer(Connection.Close)
    assert (close.reply_code, close.reply_text) == (541, "INTERNAL_ERROR - the store is broken")
    client.server.connection_error(541, "again")
    assert client.answers() == []
    assert client.server.receive(published()) == []
    assert client.write(0, Connection.Close(200, "bye", 0, 0)) == []
    client.answer(Connection.CloseOk)
    assert [type(event) for event in client.write(0, Connection.CloseOk())] == [Lost]
    assert client.server.finished


def test_reply_texts_are_cut_to_fit() -> None:
    client = Client().open(1)
    client.server.channel_error(1, 406, "ü" * 300)
    text = client.answer(Channel.Close).reply_text
    assert len(text.encode()) <= 255
    assert text.startswith("PRECONDITION_FAILED - üü")


def test_other_methods_come_decoded() -> None:
    client = Client().open(1)
    declare = Queue.Declare(queue="q", durable=True, arguments={"x-max-priority": 5})
    found = client.write(1, declare, Confirm.Select(), Basic.Get(queue="q", no_ack=True))
    assert [type(event.method) for event in found if isinstance(event, Method)] == [
        Queue.Declare,
        Confirm.Select,
        Basic.Get,
    ]
    [first, *_] = found
    assert isinstance(first, Method)
    assert isinstance(first.method, Queue.Declare)
    assert (first.method.queue, first.method.durable, first.method.exclusive) == ("q", True, False)
    assert first.method.arguments == {"x-max-priority": 5}


def test_names_that_pamqp_refuses_are_sent_all_the_same() -> None:
    client = Client().open(1)
    client.server.send(1, make(Queue.DeclareOk, queue="ünï q?*", message_count=1, consumer_count=2))
    assert client.answer(Queue.DeclareOk).queue == "ünï q?*"


def test_channels_interleave_their_contents() -> None:
    client = Client().open(1, 2)
    found = client.write(1, Basic.Publish(routing_key="a"))
    found += client.write(2, Basic.Publish(routing_key="b"))
    found += client.write(1, ContentHeader(body_size=4))
    found += client.write(2, ContentHeader(body_size=2))
    found += client.write(1, ContentBody(b"12"))
    found += client.write(0, Heartbeat())
    found += client.write(2, ContentBody(b"ab"))
    found += client.write(1, ContentBody(b"34"))
    assert [(event.channel, event.body) for event in found if isinstance(event, Publish)] == [(2, b"ab"), (1, b"1234")]


def test_heartbeats_are_sent_when_nothing_else_is() -> None:
    client = Client().open(1, heartbeat=10)
    server = client.server
    server.tick(100.0)
    assert server.take() == b""
    client.write(0, Heartbeat())
    server.tick(105.1)
    [(channel, beat)] = client.answers()
    assert (channel, type(beat)) == (0, Heartbeat)
    server.confirm(1, 1, False)
    server.take()
    server.tick(110.0)
    server.tick(114.0)
    assert server.take() == b""
    server.tick(115.1)
    assert server.take() != b""


def test_a_silent_client_is_lost_after_two_intervals() -> None:
    client = Client().open(1, heartbeat=10)
    server = client.server
    assert server.tick(100.0) == []
    client.write(0, Heartbeat())
    assert server.tick(109.0) == []
    assert server.tick(129.0) == []
    [lost] = server.tick(129.5)
    assert isinstance(lost, Lost)
    assert "silent for 20 seconds" in lost.reason
    assert server.finished
    assert server.tick(200.0) == []


def test_without_heartbeats_nobody_is_lost_and_nothing_is_sent() -> None:
    client = Client().open(1)
    assert client.server.tick(1.0) == []
    assert client.server.tick(1e9) == []
    assert client.server.take() == b""


def test_a_handshake_has_a_limit() -> None:
    client = Client()
    client.server.receive(b"AMQP")
    assert client.server.tick(5.0) == []
    client.server.receive(PROTOCOL_HEADER[4:])
    assert client.server.tick(15.0) == []
    [lost] = client.server.tick(15.1)
    assert isinstance(lost, Lost)


def test_a_close_that_is_not_confirmed_is_given_up() -> None:
    client = Client().open(1)
    client.server.tick(1.0)
    client.server.connection_error(320, "stopping")
    assert client.server.tick(100.0) == []
    client.server.receive(published())
    assert client.server.tick(105.0) == []
    assert [type(event) for event in client.server.tick(105.1)] == [Lost]


def test_blocking_is_told_who_can_be_told() -> None:
    client = Client().open(1)
    client.server.block("the disk is full")
    assert client.answer(Connection.Blocked).reason == "the disk is full"
    client.server.unblock()
    client.answer(Connection.Unblocked)
    other = Client()
    other.log_in(Connection.StartOk(client_properties={}, response="\0a\0b"))
    other.server.accept_login()
    other.write(0, Connection.TuneOk(0, 0, 0))
    other.write(0, Connection.Open("/"))
    other.server.accept_vhost()
    other.answers()
    other.server.block("the disk is full")
    assert other.answers() == []


def test_start_ok_is_what_tests_think_it_is() -> None:
    assert START_OK.mechanism == "PLAIN"
