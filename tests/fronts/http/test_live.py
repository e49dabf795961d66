"""Answers that go on: live events, exports; and a store that is away."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock import Message
from penstock.api.ticket import in_task
from penstock.fronts.http.handlers import system
from penstock.model.errors import Unavailable
from penstock.node.broker.local import LocalBroker
from penstock.store.memory.engine import MemoryStore
from tests.fronts.http.rig import Front, Wire, front_on, on_both_loops, over_http, soon, until
from tests.nodes import node_of


async def watch(front: Front, query: str = "", headers: str = "") -> Wire:
    """A watcher of events that is there."""
    wire = await front.connect()
    await wire.send(f"GET /v1/events{query} HTTP/1.1\r\nHost: t\r\n{headers}\r\n".encode())
    status, fields = await wire.head()
    assert (status, fields["content-type"]) == (200, "text/event-stream")
    assert await wire.chunk() == b": events follow\n\n"
    await until(lambda: node_of(front.broker).waiters.readers > 0)
    return wire


async def events(wire: Wire, count: int) -> list[tuple[int, dict[str, Any]]]:
    """The next events, each with its id."""
    found: list[tuple[int, dict[str, Any]]] = []
    while len(found) < count:
        for event in (await wire.chunk()).decode().split("\n\n")[:-1]:
            if event.startswith(":"):
                continue
            id_line, data_line = event.split("\n")
            assert id_line.startswith("id: ")
            assert data_line.startswith("data: ")
            found.append((int(id_line[4:]), json.loads(data_line[6:])))
    return found


def kinds(found: list[tuple[int, dict[str, Any]]]) -> list[str]:
    return [event["kind"] for _, delivery in found for event in delivery["events"]]


async def work(front: Front, queue: str, group: str = "default") -> None:
    """A message that is claimed and done."""
    await front.publish(queue, "x")
    claim = await front.claim(queue, group=group)
    await front.ok("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "ack"}]})


@on_both_loops
@over_http()
async def test_events_arrive_as_they_happen(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    wire = await watch(front)
    await work(front, "mail")
    found = await events(wire, 2)
    assert kinds(found) == ["claimed", "acked"]
    assert all(event["queue"] == "mail" and event["group"] == "default" for _, event in found)
    assert [id for id, _ in found] == sorted({id for id, _ in found})


@over_http()
async def test_events_of_one_queue_or_group(front: Front) -> None:
    for queue in ("mail", "other"):
        await front.broker.declare_queue(queue)
        await front.broker.declare_group(queue, "second")
    by_queue, by_group = await watch(front, "?queue=mail"), await watch(front, "?group=second")
    elsewhere = await watch(front, "?namespace=elsewhere")
    for queue in ("other", "mail"):
        for group in ("default", "second"):
            await work(front, queue, group)
    assert {event["queue"] for _, event in await events(by_queue, 4)} == {"mail"}
    assert {event["group"] for _, event in await events(by_group, 4)} == {"second"}
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(elsewhere.reader.read(1), 0.1)


@over_http()
async def test_a_watcher_that_comes_back_goes_on_where_it_was(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wire = await watch(front)
    await work(front, "mail")
    [(first, _), (second, _)] = await events(wire, 2)
    wire.reset()
    await work(front, "mail")
    for resumed in (
        await watch(front, headers=f"Last-Event-ID: {first}\r\n"),
        await watch(front, f"?after={first}"),
        await watch(front, f"?after={first}", headers="Last-Event-ID: 0\r\n"),  # the query is stronger
    ):
        found = await events(resumed, 3)
        assert found[0][0] == second
        assert kinds(found) == ["acked", "claimed", "acked"]
    odd = await watch(front, headers="Last-Event-ID: nonsense\r\n")
    await work(front, "mail")
    assert kinds(await events(odd, 2)) == ["claimed", "acked"]


@over_http()
async def test_a_silent_watcher_hears_a_heartbeat(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "HEARTBEAT_SECONDS", 0.05)
    wire = await watch(front)
    for _ in range(3):
        assert await wire.chunk() == b": nothing new\n\n"


@over_http(request_seconds=0.3, idle_seconds=0.3)
async def test_a_watcher_may_watch_for_long(front: Front) -> None:
    await front.broker.declare_queue("mail")
    wire = await watch(front)
    with pytest.raises(asyncio.TimeoutError):  # two rounds of the sweeper
        await asyncio.wait_for(wire.reader.read(1), 2.2)
    await work(front, "mail")
    assert len(await events(wire, 2)) == 2


@on_both_loops
@over_http(engine="sqlite")
async def test_an_export_gives_every_dead_letter_once(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail", lanes=3)
    messages = [Message(b"%d" % number, partition=f"p{number % 50}") for number in range(2_000)]
    await front.broker.publish_many("mail", messages)
    while len(claim := await front.broker.claim("mail", max=1_000)):
        await front.broker.reject(claim, error="no")
    wire = await front.connect()
    await wire.send(b"GET /v1/queues/mail/groups/default/dead/export HTTP/1.1\r\nHost: t\r\n\r\n")
    reply = await wire.reply()
    assert reply.headers["content-type"] == "application/x-ndjson"
    dead = [json.loads(line) for line in reply.body.splitlines()]
    assert sorted(int(one["message"]["payload"]) for one in dead) == list(range(2_000))
    assert {one["message"]["lane"] for one in dead} == {0, 1, 2}
    assert {one["reason"] for one in dead} == {"rejected"}
    await wire.send(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")  # and the connection goes on
    assert (await wire.reply()).status == 200


@over_http()
async def test_an_export_of_nothing(front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_group("mail", "default")
    reply = await front.call("GET", "/v1/queues/mail/groups/default/dead/export")
    assert (reply.status, reply.body) == (200, b"")


@over_http()
async def test_an_export_that_fails_halfway_is_seen_to_be_cut_short(
    front: Front, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last chunk never comes: what arrived must not pass for all of it."""
    await front.broker.declare_queue("mail")
    await front.broker.publish_many("mail", [Message(b"x")] * 600)
    await front.broker.reject(await front.broker.claim("mail", max=600), error="no")
    whole = LocalBroker.dead_page

    async def once(*arguments: Any, **options: Any) -> Any:
        if options.get("after") is not None:
            raise Unavailable("the disk is gone")
        return await whole(*arguments, **options)

    monkeypatch.setattr(LocalBroker, "dead_page", once)
    wire = await front.connect(limit=2**20)
    await wire.send(b"GET /v1/queues/mail/groups/default/dead/export HTTP/1.1\r\nHost: t\r\n\r\n")
    await wire.head()
    assert (await wire.chunk()).count(b"\n") == 500
    assert await wire.is_closed()
    assert "the disk is gone" in caplog.text
    assert await front.is_alive()


# A store that is away ------------------------------------------------------------------------------------


class AwayStore(MemoryStore):
    """Takes commits, or does not."""

    is_away = False

    @in_task
    async def apply(self, commit: Any) -> None:
        if self.is_away:
            raise Unavailable("the disk is full")
        await super().apply(commit)


def test_a_store_that_is_away_and_comes_back() -> None:
    async def main() -> None:
        store = AwayStore()
        async with front_on(store) as front:
            await front.broker.declare_queue("mail")
            await front.publish("mail", "before")
            held = await front.claim("mail")
            store.is_away = True
            for method, path, body in (
                ("POST", "/v1/queues/mail/messages", {"messages": [{"payload": "lost"}]}),
                ("PUT", "/v1/queues/other", {}),
                ("POST", f"/v1/leases/{held['lease']}/settle", {"verdicts": [{"action": "ack"}]}),
                ("GET", "/readyz", None),
            ):
                reply = await front.call(method, path, body)
                assert (reply.status, reply.code) == (503, "unavailable"), (path, reply)
                assert int(reply.headers["retry-after"]) >= 1
            assert await front.is_alive()
            store.is_away = False

            async def is_ready() -> bool:
                return (await front.call("GET", "/readyz")).status == 200

            await until(is_ready)
            await front.publish("mail", "after")
            settled = await front.call("POST", f"/v1/leases/{held['lease']}/settle", {"verdicts": [{"action": "ack"}]})
            assert settled.status == 204
            assert [one["payload"] for one in (await front.claim("mail", max=9))["messages"]] == ["after"]
            assert "other" not in await front.broker.queues()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_broker_that_is_closed_says_so() -> None:
    async def main() -> None:
        async with front_on(MemoryStore()) as front:
            await front.broker.declare_queue("mail")
            await front.broker.close()
            reply = await front.call("POST", "/v1/queues/mail/messages", {"messages": [{}]})
            assert (reply.status, reply.code) == (503, "closed")
            assert await soon(front.is_alive())

    asyncio.run(main())
