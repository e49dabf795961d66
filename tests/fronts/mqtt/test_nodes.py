"""QoS 2 through two nodes of one store: what a client repeats at another node is stored once, whatever the first does.

Both nodes are in this process, each with a way to the store that a test can hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import mqtt5
import pytest
from mqtt5 import QoS

from penstock.fronts.auth import Credentials
from penstock.fronts.front import Shared
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.server import MqttServer
from penstock.fronts.mqtt.session import sessions
from penstock.fronts.mqtt.session.documents import QUEUE as SESSIONS
from penstock.model.rows import home_slot
from tests.fronts.mqtt.rig import Client, connect, until
from tests.scenarios.cluster import test_spool_order as rig
from tests.scenarios.cluster.test_spool_order import Place

PACKET = 7


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node does not wait long for another one that cannot let go."""
    monkeypatch.setattr(sessions, "TAKEOVER_SECONDS", 0.1)


class Front:
    """A node and its MQTT server."""

    def __init__(self, place: Place, server: MqttServer) -> None:
        self.place = place
        self.server = server
        self.clients: list[Client] = []

    async def connect(self, *, clean: bool = False) -> Client:
        self.clients.append(await connect(self.server.port, "client", clean=clean, expiry=600))
        return self.clients[-1]


@asynccontextmanager
async def served(place: Place) -> AsyncIterator[Front]:
    server = MqttServer(place.broker, MqttOptions(port=0, websocket_port=0, stop_seconds=1), Shared(Credentials("")))
    await server.start()
    front = Front(place, server)
    try:
        yield front
    finally:
        for client in front.clients:
            client.cut()
        await server.stop()


def play(story: Callable[[Front, Front], Awaitable[None]]) -> None:
    """The second node has what is kept of sessions, the first one a queue of its own."""

    async def scene(first: Place, second: Place) -> None:
        slot = home_slot("default", SESSIONS)
        if slot in first.cluster.ownership.owned:
            await rig.move(slot, first, second)
        async with served(first) as one, served(second) as two:
            await story(one, two)

    rig.play(scene)


def publish(client: Client, queue: str, *, again: bool = False) -> None:
    topic = f"$queue/{queue}"
    client.send(mqtt5.PublishPacket(topic, b"m", qos=QoS.EXACTLY_ONCE, packet_id=PACKET, duplicate=again))


async def finish(client: Client) -> None:
    """The publish is answered to its end."""
    answer = await client.expect(mqtt5.PubRecPacket)
    assert (answer.packet_id, answer.reason_code) == (PACKET, 0)
    client.send(mqtt5.PubRelPacket(PACKET))
    await client.expect(mqtt5.PubCompPacket)


def test_a_publish_that_a_node_holds_is_stored_once_when_it_is_repeated_at_another() -> None:
    """The first node's commits are under way and not answered while its client goes on."""

    async def story(one: Front, two: Front) -> None:
        queue, way = one.place.own, one.place.way
        client = await one.connect()
        publish(client, queue)
        await finish(client)
        way.holds = lambda commit: any(change.batches for change in commit.lanes)
        publish(client, queue)
        await until(lambda: bool(way.held), "the first node commits")
        client.cut()
        again = await two.connect()
        assert again.connack.session_present
        publish(again, queue, again=True)
        finishing = asyncio.ensure_future(finish(again))
        await asyncio.wait([finishing], timeout=0.5)
        way.holds = lambda _: False
        way.goes_on.set()
        await finishing
        publish(again, queue)  # another one, with the same packet id
        await finish(again)
        await until(lambda: "client" not in one.server.sessions.connected, "the first node has let go")
        assert await one.place.log(queue) == [b"m"] * 3

    play(story)


def hold_publishes(monkeypatch: pytest.MonkeyPatch, front: Front, held: asyncio.Event, goes_on: asyncio.Event) -> None:
    """Let a node carry out what it is asked to publish only when it may go on."""
    commit = front.server.publishing._commit

    async def late(wanted: Any) -> None:
        held.set()
        await goes_on.wait()
        await commit(wanted)

    monkeypatch.setattr(front.server.publishing, "_commit", late)


def test_a_publish_that_a_node_sends_on_too_late_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client has gone on to another node, and repeated it there."""

    async def story(one: Front, two: Front) -> None:
        queue, goes_on, held = one.place.own, asyncio.Event(), asyncio.Event()
        client = await one.connect()
        publish(client, queue)
        await finish(client)
        hold_publishes(monkeypatch, one, held, goes_on)
        publish(client, queue)
        await held.wait()
        again = await two.connect()
        publish(again, queue, again=True)
        await finish(again)
        goes_on.set()
        await until(lambda: "client" not in one.server.sessions.connected, "the first node has let go")
        assert await one.place.log(queue) == [b"m"] * 2
        publish(again, queue)
        await finish(again)
        assert await one.place.log(queue) == [b"m"] * 3

    play(story)


def test_a_session_that_begins_anew_is_not_told_of_what_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet id that was recorded late would make the next publish under it look like a repetition."""

    async def story(one: Front, two: Front) -> None:
        queue, goes_on, held = one.place.own, asyncio.Event(), asyncio.Event()
        client = await one.connect()
        publish(client, queue)
        await finish(client)
        hold_publishes(monkeypatch, one, held, goes_on)
        publish(client, queue)
        await held.wait()
        again = await two.connect(clean=True)
        goes_on.set()
        await until(lambda: "client" not in one.server.sessions.connected, "the first node has let go")
        again.cut()
        again = await two.connect()
        publish(again, queue)
        await finish(again)
        assert await one.place.log(queue) == [b"m"] * 2

    play(story)


def test_locks_of_connections_that_are_over_are_gone() -> None:
    async def story(one: Front, two: Front) -> None:
        queue = one.place.own
        for front in (one, two, one):
            client = await front.connect()
            publish(client, queue)
            await finish(client)
            client.cut()
            await until(lambda front=front: "client" not in front.server.sessions.connected, "it is gone")  # type: ignore[misc]
        [locks] = [name for name in await one.place.broker.queues() if name.startswith("mqtt/locks/")]
        group = (await one.place.broker.stats(locks)).groups[0]
        assert (group.leased, group.ready) == (0, 0)
        assert not two.server.sessions.documents.all["client"].is_locked

    play(story)
