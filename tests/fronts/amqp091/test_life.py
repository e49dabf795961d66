"""AMQP: logging in, heartbeats, limits, broken input, and a server that stops, with pika and with bare frames."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pika
import pytest
from pamqp import commands
from pika.exceptions import (
    AMQPConnectionError,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from penstock.api.ticket import in_task
from penstock.fronts.amqp091 import connection as connections
from penstock.fronts.amqp091.publishing import Publishing
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit
from penstock.node.consume.claims import Claims
from penstock.store.memory.engine import MemoryStore
from tests.fronts.amqp091.rig import PATIENCE_S, Inbox, Raw, Served, closes, quiet, served, until, waited
from tests.nodes import node_of


def test_who_may_log_in() -> None:
    with served() as place:
        place.connect(credentials=pika.PlainCredentials("anybody", "whatever")).close()
    with served(token="secret") as place:
        with pytest.raises(ProbableAuthenticationError):
            place.connect(credentials=pika.PlainCredentials("guest", "wrong"))
        connection = place.connect(credentials=pika.PlainCredentials("me", "secret"))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"m", pika.BasicProperties(user_id="me"))


def test_a_new_secret_is_taken_where_it_is_the_token() -> None:
    with served(token="secret") as place:
        guest = pika.PlainCredentials("guest", "secret")
        connection = place.connect(credentials=guest)
        connection.update_secret("secret", "the old one expires")
        connection.channel().queue_declare("q")
        with pytest.raises(ConnectionClosedByBroker) as caught:
            connection.update_secret("guessed", "why not")
        assert caught.value.reply_code == 530
    with served() as place:
        place.connect().update_secret("anything", "nobody asks for one")


def test_the_log_says_who_was_turned_away_and_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.amqp")

    def is_said(text: str) -> bool:
        return any(text in record.getMessage() for record in caplog.records if record.name == "penstock.amqp")

    secret = pika.PlainCredentials("me", "secret")
    with served(token="secret", handshake_seconds=0.2) as place:
        with pytest.raises(ProbableAuthenticationError):
            place.connect(credentials=pika.PlainCredentials("mallory", "guessed"))
        waited(lambda: is_said("'mallory'"))
        assert not is_said("guessed")
        with pytest.raises(ProbableAccessDeniedError):
            place.connect(credentials=secret, virtual_host="a\tb")
        waited(lambda: is_said("a vhost"))
        with closes(404):
            place.channel(credentials=secret).basic_get("nowhere")
        waited(lambda: is_said("no queue 'nowhere'"))
        for data, said in ((b"GET / HTTP/1.1\r\n\r\n", "does not speak AMQP"), (b"AMQP", "did not log in")):
            with socket.create_connection(("127.0.0.1", place.server.port), PATIENCE_S) as stranger:
                stranger.sendall(data)
                waited(lambda said=said: is_said(said))  # type: ignore[misc]


def test_a_vhost_that_cannot_be() -> None:
    with served() as place, pytest.raises(ProbableAccessDeniedError, match=r"530.*control character"):
        place.connect(virtual_host="a\nb")


def test_a_vhost_is_known_by_what_is_declared_in_it() -> None:
    refused = pytest.raises(ProbableAccessDeniedError, match=r"530.*vhost 'shop' not found.*amqp\.create_vhosts")
    with served() as place:
        place.connect(virtual_host="default")
        with refused:
            place.connect(virtual_host="shop")
        place.call(lambda broker: broker.in_namespace("shop").declare_queue("orders"))
        place.connect(virtual_host="shop")
        place.call(lambda broker: broker.in_namespace("shop").declare_exchange("all", kind="fanout"))
        place.call(lambda broker: broker.in_namespace("shop").delete_queue("orders"))
        place.connect(virtual_host="shop")
        place.call(lambda broker: broker.in_namespace("shop").delete_exchange("all"))
        with refused:
            place.connect(virtual_host="shop")


def test_a_vhost_can_be_made_by_naming_it() -> None:
    with served(create_vhosts=True) as place:
        place.channel(virtual_host="shop").queue_declare("orders")
        assert place.broker.in_namespace("shop").knows_queue("orders", "browse")


def test_limits_on_connections_and_channels() -> None:
    with served(max_connections=2, max_channels=3) as place:
        first, second = place.connect(), place.connect()
        with pytest.raises(AMQPConnectionError):
            place.connect()
        for _ in range(3):
            first.channel()
        second.close()
        waited(lambda: place.server.measures.connections == 1)
        place.connect()
        assert place.server.measures.channels == 3
        first.close()
        waited(lambda: place.server.measures.channels == 0)


def test_a_client_that_falls_silent_is_let_go_and_what_it_held_returns() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"m")
        silent = Raw(place, heartbeat=1)
        silent.send(1, commands.Basic.Get(0, "q"))
        silent.hear(commands.Basic.GetOk)
        began = time.monotonic()
        until(channel, lambda: channel.queue_declare("q", passive=True).method.message_count == 1)
        assert 1.5 < time.monotonic() - began < 8
        assert channel.basic_get("q")[0].redelivered
        silent.close()


def test_heartbeats_keep_a_quiet_client() -> None:
    with served() as place:
        channel = place.channel(heartbeat=1)
        quiet(channel, 3.5)
        channel.queue_declare("q")


def test_garbage_costs_others_nothing() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"AMQP\x01\x01\x00\x0a",
            b"\x00" * 100,
            b"AMQP\x00\x00\x09\x01" + b"\xff" * 500,
            b"AMQP\x00\x00\x09\x01\x01\x00\x00\xff\xff\xff\xff",
        ):
            with socket.create_connection(("127.0.0.1", place.server.port), PATIENCE_S) as broken:
                broken.sendall(data)
                broken.shutdown(socket.SHUT_WR)
                while broken.recv(4096):
                    pass
            channel.basic_publish("", "q", b"m")
        client = Raw(place)
        client.send_bytes(b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\xff\xff\xce")
        assert client.hear(commands.Connection.Close).reply_code in (540, 503)
        client.close()
        assert channel.queue_declare("q", passive=True).method.message_count == 5
        waited(lambda: place.server.measures.connections == 1)


def test_an_error_closes_one_channel_and_its_number_can_be_used_again() -> None:
    with served() as place:
        client = Raw(place, opens=2)
        client.send(1, commands.Queue.Declare(0, "gone", passive=True))
        client.send(1, commands.Queue.Declare(0, "ignored"))
        assert client.hear(commands.Channel.Close).reply_code == 404
        client.send(2, commands.Queue.Declare(0, "q"))
        client.hear(commands.Queue.DeclareOk)
        client.send(1, commands.Channel.CloseOk())
        client.send(1, commands.Channel.Open())
        client.hear(commands.Channel.OpenOk)
        client.send(1, commands.Queue.Declare(0, "q", passive=True))
        client.hear(commands.Queue.DeclareOk)
        assert not place.broker.knows_queue("ignored", "browse")
        client.close()


def test_closing_a_channel_waits_for_what_came_before_it() -> None:
    with served() as place:
        client = Raw(place)
        client.send(1, commands.Queue.Declare(0, "q"))
        for number in range(200):
            client.publish(1, "", "q", b"%d" % number)
        client.send(1, commands.Channel.Close(200, "bye", 0, 0))
        client.hear(commands.Queue.DeclareOk)
        client.hear(commands.Channel.CloseOk)
        assert place.call(lambda broker: broker.stats("q")).messages == 200
        client.close()


def test_what_a_client_still_sends_after_its_close_was_answered_does_not_reset_the_connection() -> None:
    with served() as place:
        client = Raw(place)
        client.send(0, commands.Connection.Close(200, "bye", 0, 0))
        client.hear(commands.Connection.CloseOk)
        for number in range(100):
            client.publish(1, "", "q", b"%d" % number)
        with pytest.raises(EOFError):
            client.next()
        client.publish(1, "", "q", b"more")
        client.close()
        waited(lambda: place.server.measures.connections == 0)


def test_a_client_that_does_not_close_is_closed_after_a_moment() -> None:
    with served() as place:
        client = Raw(place)
        client.send(0, commands.Connection.Close(200, "bye", 0, 0))
        client.hear(commands.Connection.CloseOk)
        waited(lambda: place.server.measures.connections == 0)
        client.close()


def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    with served(tmp_path / "store.db") as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q", durable=True)
        for number in range(5):
            channel.basic_publish("", "q", b"%d" % number)
        inbox = Inbox(channel, "q")
        inbox.wait(5)
        channel.basic_ack(2, multiple=True)
        channel.queue_declare("q", passive=True)
        place.stop_soon()
        with pytest.raises(ConnectionClosedByBroker) as caught:
            until(channel, lambda: False)
        assert caught.value.reply_code == 320
        channel._impl = None
    with served(tmp_path / "store.db") as place:
        channel = place.channel()
        got = [channel.basic_get("q") for _ in range(4)]
        assert [body for _, _, body in got] == [b"2", b"3", b"4", None]
        assert [method.redelivered for method, _, _ in got[:3]] == [True] * 3


@pytest.fixture(params=["at once", "in turn"])
def way_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishes are taken as they are heard, or stand in line."""
    if request.param == "in turn":
        monkeypatch.setattr(Publishing, "begin", lambda *_: False)


@pytest.mark.usefixtures("way_in")
def test_a_store_that_fails_gives_nacks_and_nothing_is_confirmed_that_is_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = MemoryStore.apply

    @in_task
    async def failing(*_: Any) -> Any:
        raise Unavailable("the store is away")

    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        monkeypatch.setattr(MemoryStore, "apply", failing)
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"lost")
        unconfirmed = place.channel()
        unconfirmed.basic_publish("", "q", b"lost")
        with closes(541, "the store is away"):
            unconfirmed.queue_declare("q", passive=True)
        monkeypatch.setattr(MemoryStore, "apply", real)
        channel.basic_publish("", "q", b"kept")
        assert channel.basic_get("q", auto_ack=True)[2] == b"kept"
        assert channel.basic_get("q")[0] is None


def test_an_acknowledgement_that_the_store_did_not_take_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = Claims.settle, [0]

    async def failing(*arguments: Any, **options: Any) -> None:
        if failures[0] < 2:
            failures[0] += 1
            raise Unavailable("the store is away")
        await real(*arguments, **options)

    with served() as place:
        channel = place.channel(confirms=True)
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"m")
        method, _, _ = channel.basic_get("q")
        monkeypatch.setattr(Claims, "settle", failing)
        channel.basic_ack(method.delivery_tag)
        until(channel, lambda: place.call(lambda broker: broker.stats("q")).groups[0].leased == 0)
        assert failures == [2]
        channel.connection.close()
        assert place.channel().queue_declare("q", passive=True).method.message_count == 0


@pytest.mark.usefixtures("way_in")
def test_a_publisher_that_must_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BLOCKED_AFTER_SECONDS", 0.05)
    real, gate = MemoryStore.apply, threading.Event()

    @in_task
    async def slow(store: MemoryStore, commit: Commit) -> None:
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        await real(store, commit)

    with served(max_pending_bytes=10_000) as place:
        channel, other = place.channel(), place.channel()
        channel.queue_declare("q")
        heard: list[str] = []
        channel.connection.add_on_connection_blocked_callback(lambda *_: heard.append("blocked"))
        channel.connection.add_on_connection_unblocked_callback(lambda *_: heard.append("unblocked"))
        monkeypatch.setattr(MemoryStore, "apply", slow)
        for _ in range(30):
            channel._impl.basic_publish("", "q", b"x" * 1000)
        until(channel, lambda: heard == ["blocked"])
        other.connection.channel().close()  # nobody else has to wait
        gate.set()
        until(channel, lambda: heard == ["blocked", "unblocked"])
        until(channel, lambda: channel.queue_declare("q", passive=True).method.message_count == 30)


@pytest.mark.usefixtures("way_in")
def test_a_confirm_for_a_channel_that_failed_is_not_given_to_the_next_of_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, gate = MemoryStore.apply, threading.Event()

    @in_task
    async def slow(store: MemoryStore, commit: Commit) -> None:
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        await real(store, commit)

    with served() as place:
        place.channel().queue_declare("q")
        client = Raw(place)
        client.send(1, commands.Confirm.Select())
        client.hear(commands.Confirm.SelectOk)
        monkeypatch.setattr(MemoryStore, "apply", slow)
        client.publish(1, "", "q", b"m")
        client.send(1, commands.Basic.Ack(77))  # of a delivery that never was
        client.hear(commands.Channel.Close)
        client.send(1, commands.Channel.CloseOk())
        client.send(1, commands.Channel.Open())
        client.hear(commands.Channel.OpenOk)
        client.send(1, commands.Confirm.Select())
        client.hear(commands.Confirm.SelectOk)
        gate.set()
        waited(lambda: place.call(lambda broker: broker.stats("q")).messages == 1)
        client.send(1, commands.Queue.Declare(0, "q", passive=True))
        client.hear(commands.Queue.DeclareOk)
        client.close()


def test_names_that_rabbitmq_allows() -> None:
    with served() as place:
        channel = place.channel(confirms=True)
        for name in ("ünï q?*", "a" * 255, "with space / and # +", "{json}"):
            channel.queue_declare(name)
            channel.exchange_declare(name, "fanout")
            channel.queue_bind(name, name)
            channel.basic_publish(name, "", b"m")
            assert channel.basic_get(name, auto_ack=True)[0].exchange == name


def test_many_channels_and_consumers_end_with_their_connection() -> None:
    with served() as place:
        connection = place.connect()
        for number in range(20):
            channel = connection.channel()
            channel.queue_declare(f"q{number}", auto_delete=True)
            channel.basic_consume(f"q{number}", lambda *_: None)
        assert place.server.measures.consumers == 20
        connection.close()
        waited(lambda: (place.server.measures.consumers, place.server.measures.channels) == (0, 0))
        assert not any(place.broker.knows_queue(f"q{number}", "browse") for number in range(20))


def leaks(place: Served) -> tuple[int, int]:
    return node_of(place.broker).waiters.count, len(place.server.connections)


def test_nothing_is_left_of_connections_that_were_cut() -> None:
    with served() as place:
        setup = place.channel(confirms=True)
        setup.queue_declare("q")
        for number in range(10):
            client = Raw(place)
            client.send(1, commands.Basic.Consume(0, "q", "t"))
            client.publish(1, "", "q", b"%d" % number)
            client.hear(commands.Basic.ConsumeOk)
            client.hear(commands.Basic.Deliver)
            client.close()
        waited(lambda: leaks(place) == (0, 1))
        assert setup.queue_declare("q", passive=True).method.message_count == 10
        assert place.call(lambda broker: broker.stats("q")).consumers == 0
