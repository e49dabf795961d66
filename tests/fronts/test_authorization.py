"""A client that may not do something is told so in the terms of its protocol, and nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pika
import pytest
import uvloop
from pika.exceptions import ChannelClosedByBroker

import penstock
from penstock import Message
from penstock.api.principal import ANONYMOUS, Action, Kind, Principal
from penstock.fronts.amqp091.replies import PREFIX as REPLIES
from penstock.fronts.front import Front, Shared
from penstock.fronts.registry import FRONTS
from penstock.model.errors import Forbidden
from penstock.node.broker.local import LocalBroker
from tests.fronts.http.rig import Wire
from tests.fronts.mqtt.rig import connect

NAMES = [entry.name for entry in FRONTS]


class Rules:
    """Refuses one action on one thing, and notes who asks for what."""

    def __init__(self) -> None:
        self.forbidden: tuple[Action, Kind, str] | None = None
        self.asked: list[tuple[Principal, Action, Kind, str]] = []

    def authorize(self, principal: Principal, action: Action, kind: Kind, namespace: str, name: str) -> None:
        self.asked.append((principal, action, kind, name))
        if (action, kind, name) == self.forbidden:
            raise Forbidden(f"{principal.name} may not {action} {name!r}")


class Place:
    """A server with one front."""

    def __init__(self, broker: LocalBroker, rules: Rules, port: int) -> None:
        self.broker = broker
        self.rules = rules
        self.port = port

    def forbid(self, action: Action, kind: Kind, name: str) -> None:
        self.rules.forbidden = (action, kind, name)
        self.rules.asked.clear()

    def was_asked(self) -> bool:
        """In the name of the connection's principal."""
        assert self.rules.forbidden is not None
        return (ANONYMOUS, *self.rules.forbidden) in self.rules.asked


@asynccontextmanager
async def served(name: str) -> AsyncIterator[Place]:
    entry = FRONTS[NAMES.index(name)]
    rules = Rules()
    options: Any = entry.options
    async with await penstock.open(None) as broker:
        assert isinstance(broker, LocalBroker)
        await broker.declare_queue("q")
        guarded = broker.authorized_by(rules)
        front: Front = entry.build(guarded, options(**dict.fromkeys(entry.ports, 0)), Shared())
        await front.start()
        try:
            yield Place(broker, rules, front.listening[0].port)
        finally:
            await front.stop()


def play(name: str, scenario: Callable[[Place], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with served(name) as place:
            await asyncio.wait_for(scenario(place), 60)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


HTTP = [
    ("publish", "POST /v1/queues/q/messages", b'{"messages": [{"payload": "x"}]}'),
    ("consume", "POST /v1/queues/q/claim", b"{}"),
    ("browse", "GET /v1/queues/q/stats", b""),
    ("declare", "DELETE /v1/queues/q", b""),
    ("manage", "POST /v1/queues/q/pause", b""),
]


@pytest.mark.parametrize(("action", "line", "body"), HTTP)
def test_http(action: Action, line: str, body: bytes) -> None:
    async def scenario(place: Place) -> None:
        place.forbid(action, "queue", "q")
        wire = Wire(*await asyncio.open_connection("127.0.0.1", place.port))
        head = f"{line} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        await wire.send(head.encode() + body)
        reply = await wire.reply()
        assert (reply.status, reply.code) == (Forbidden.row.http, Forbidden.code)
        assert reply.message == f"anonymous may not {action} 'q'"
        assert place.was_asked()
        assert (await place.broker.stats("q")).messages == 0
        assert "paused" not in await place.broker.queue_options("q")
        wire.close()

    play("http", scenario)


@pytest.mark.parametrize("path", ["/v1/cluster", "/metrics"])
def test_http_of_the_node(path: str) -> None:
    async def scenario(place: Place) -> None:
        place.forbid("admin", "node", "")
        wire = Wire(*await asyncio.open_connection("127.0.0.1", place.port))
        await wire.send(f"GET {path} HTTP/1.1\r\nHost: t\r\n\r\n".encode())
        reply = await wire.reply()
        assert (reply.status, reply.code) == (Forbidden.row.http, Forbidden.code)
        wire.close()

    play("http", scenario)


AMQP: list[tuple[Action, Callable[[Any], Any]]] = [
    ("consume", lambda channel: channel.basic_get("q")),
    ("consume", lambda channel: channel.basic_consume("q", lambda *_: None)),
    ("declare", lambda channel: channel.queue_delete("q")),
    ("manage", lambda channel: channel.queue_purge("q")),
    ("publish", lambda channel: (channel.basic_publish("", "q", b"x"), channel.basic_qos(prefetch_count=1))),
]


@pytest.mark.parametrize(("action", "work"), AMQP)
def test_amqp(action: Action, work: Callable[[Any], Any]) -> None:
    async def scenario(place: Place) -> None:
        place.forbid(action, "queue", "q")

        def client() -> ChannelClosedByBroker:
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.port))
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(ChannelClosedByBroker) as caught:
                work(channel)
            connection.close()
            return caught.value

        closed = await asyncio.to_thread(client)
        assert closed.reply_code == Forbidden.row.amqp091
        assert closed.reply_text.endswith(f"anonymous may not {action} 'q'")
        assert place.was_asked()
        assert (await place.broker.stats("q")).messages == 0

    play("amqp", scenario)


def publishing(exchange: str, key: str, *, is_transaction: bool = False) -> Callable[[Any], Any]:
    def work(channel: Any) -> None:
        (channel.tx_select if is_transaction else channel.confirm_delivery)()
        channel.basic_publish(exchange, key, b"x")
        if is_transaction:
            channel.tx_commit()

    return work


ASKING: list[tuple[Kind, str, Callable[[Any], Any]]] = [
    ("queue", "none", publishing("", "none")),
    ("queue", "none", publishing("", "$queue/none")),
    ("queue", "none", publishing("", "$queue/none", is_transaction=True)),
    ("exchange", "x", publishing("x", "key")),
    ("exchange", "x", publishing("x", "key", is_transaction=True)),
    ("queue", f"{REPLIES}none", lambda channel: channel.queue_declare(f"{REPLIES}none", passive=True)),
]


@pytest.mark.parametrize(("kind", "name", "work"), ASKING)
def test_amqp_does_not_tell_whether_it_exists(kind: Kind, name: str, work: Callable[[Any], Any]) -> None:
    async def scenario(place: Place) -> None:
        place.forbid("publish", kind, name)

        def client() -> ChannelClosedByBroker:
            with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", place.port)) as connection:
                with pytest.raises(ChannelClosedByBroker) as caught:
                    work(connection.channel())
                return caught.value

        assert (await asyncio.to_thread(client)).reply_code == Forbidden.row.amqp091

    play("amqp", scenario)


def test_mqtt() -> None:
    async def scenario(place: Place) -> None:
        await place.broker.publish("q", Message(b"1"))
        client = await connect(place.port, "c")
        refused = Forbidden.row.mqtt
        place.forbid("publish", "exchange", "mqtt")
        assert await client.publish("a/b") == refused
        assert place.was_asked()
        place.forbid("publish", "queue", "q")
        assert await client.publish("$queue/q") == refused
        assert place.was_asked()
        place.forbid("consume", "exchange", "mqtt")
        assert await client.subscribe("a/b") == [refused]
        assert place.was_asked()
        place.forbid("consume", "queue", "q")
        assert await client.subscribe("$queue/q") == [refused]
        assert place.was_asked()
        place.forbid("declare", "queue", "new")
        assert await client.publish("$queue/new") == refused
        assert place.was_asked()
        assert (await place.broker.stats("q")).messages == 1
        await client.disconnect()

    play("mqtt", scenario)
