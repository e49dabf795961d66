"""Requests that are answered without a task: the same answers, measures and effects as with one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Message
from penstock.api.ticket import Ticket, in_task
from penstock.batch import encode, to_bytes
from penstock.fronts.http.request import Answer
from penstock.fronts.http.server import HttpServer
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit
from penstock.node.spool.spool import SpoolSettings
from penstock.store.memory.engine import MemoryStore
from penstock.wire.http.shapes import BATCH_TYPE
from tests.fronts.http.rig import JSON, LOOPS, Front, Wire, front_on, on_both_loops, until
from tests.simulation.spool_folder import MemoryFolder

ONE = to_bytes(encode([Message(b"one")]))
KEYED = to_bytes(encode([Message(b"one", key="k", headers={"a": 1})]))
MANY = to_bytes(encode([Message(b"%d" % number) for number in range(40)]))
HOST = {"host": "test"}
BATCH = HOST | {"content-type": BATCH_TYPE}
PLAIN = HOST | {"content-type": JSON}

Asked = tuple[str, dict[str, str], bytes]


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


def publish(data: bytes, headers: dict[str, str] = BATCH, queue: str = "q", query: str = "") -> Asked:
    return f"/v1/queues/{queue}/messages{query}", headers, data


def settle(lease: str, *verdicts: dict[str, Any]) -> Asked:
    return f"/v1/leases/{lease}/settle?namespace=default", PLAIN, body({"verdicts": verdicts})


MESSAGE = {"payload": "text", "partition": "p"}
REQUESTS: list[Asked] = [
    publish(ONE, query="?namespace=default&publish_id=a"),
    publish(ONE, query="?namespace=default&publish_id=a"),
    publish(KEYED),
    publish(MANY),
    publish(MANY, query="?publish_id=many"),
    publish(body({"messages": [MESSAGE, MESSAGE]}), PLAIN),
    publish(body({"messages": [MESSAGE | {"dedup_id": "d"}]}), PLAIN),
    publish(body({"messages": [MESSAGE | {"dedup_id": "d"}]}), PLAIN),
    publish(ONE, queue="lanes"),
    publish(MANY, queue="lanes"),
    publish(ONE, queue="full"),
    publish(ONE, queue="full"),
    publish(ONE, queue="none"),
    publish(ONE, queue="$events"),
    publish(ONE, query="?namespace=other"),
    publish(ONE, query="?publish_id="),
    publish(ONE, query="?nonsense=1"),
    publish(ONE, query="?session=none"),
    publish(ONE[:-1]),
    publish(b"", BATCH),
    publish(body({"messages": []}), PLAIN),
    publish(body({"messages": [{"priority": -1}]}), PLAIN),
    publish(b"{", PLAIN),
    publish(ONE, HOST | {"content-type": "text/plain"}),
    publish(ONE, BATCH | {"content-encoding": "gzip"}),
    publish(ONE, BATCH | {"origin": "http://elsewhere"}),
    settle("1-2-3", {"action": "ack"}),
    settle("nonsense", {"action": "ack"}),
    settle("{0}", {"action": "ack", "delay": 1}),
    settle("{0}"),
    settle("{0}", {"action": "ack"}),
    settle("{0}", {"action": "ack"}),
    settle("{1}", {"action": "nack", "error": "why", "delay": 60}),
    settle("{2}", {"action": "ack", "offsets": [10**6]}),
    settle("{2}", {"action": "reject", "offsets": [2]}),
]


def sent(asked: Asked, leases: list[str]) -> bytes:
    """As the Python client sends it, with the length last."""
    path, headers, data = asked
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    for number, lease in enumerate(leases):
        path = path.replace(f"{{{number}}}", lease)
    return f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(data)}\r\n\r\n".encode() + data


async def answers(front: Front, *, at_once: bool) -> list[Any]:
    """What is answered to all requests, one after the other, and what the server has counted at the end."""
    await front.broker.declare_queue("q", lease_ms=3_600_000)
    await front.broker.declare_queue("lanes", lanes=3)
    await front.broker.declare_queue("full", max_length=1)
    for queue in ("q", "full"):
        await front.broker.declare_group(queue, "default")
    for _ in range(3):
        await front.broker.publish("q", Message(b"to be claimed"))
    leases = [str((await front.broker.claim("q")).lease) for _ in range(3)]
    wire = await front.connect()
    seen: list[Any] = []
    for asked in REQUESTS:
        if at_once:
            await wire.send(sent(asked, leases))
        else:
            for part in sent(asked, leases).split(b"\r\n", 1)[0] + b"\r\n", sent(asked, leases).split(b"\r\n", 1)[1]:
                await wire.send(part)
                await asyncio.sleep(0.002)
        reply = await wire.reply()
        assert reply.headers.pop("x-request-id")
        seen.append((asked[0], reply.status, reply.headers, reply.body))
    measures = front.server.measures
    counted = {name: (route.statuses, sum(route.counts)) for name, route in measures.routes.items()}
    state = await front.broker.stats("q"), [one.payload for one in (await front.broker.browse("q")).messages]
    return [*seen, counted, measures.bytes_in, measures.bytes_out, state]


def in_a_task(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The same answers, all of them given by the connection's task."""

    async def awaited(ticket: Ticket[Answer]) -> Answer:
        return await ticket

    def begin(*args: Any) -> Any:
        begun = answer(*args)
        return awaited(begun) if isinstance(begun, Ticket) else begun

    return begin


@on_both_loops
@pytest.mark.parametrize("has_spool", [False, True])
def test_the_answers_are_those_of_a_task(loop: str, monkeypatch: pytest.MonkeyPatch, has_spool: bool) -> None:
    async def ask(*, at_once: bool) -> list[Any]:
        async with front_on(MemoryStore(), spool=SpoolSettings(MemoryFolder()) if has_spool else None) as front:
            return await answers(front, at_once=at_once)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        with_callbacks = runner.run(ask(at_once=True))
        monkeypatch.setattr(HttpServer, "answer", in_a_task(HttpServer.answer))
        with_tasks = runner.run(ask(at_once=False))
    assert with_callbacks == with_tasks
    statuses = {answer[1] for answer in with_callbacks[:-4]}
    assert statuses == {200, 204, 400, 403, 404, 409, 415, 429}


class Held(MemoryStore):
    """A store whose commits wait until they are let go, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = 0
        self.error: Exception | None = None
        self.is_once = False

    @in_task
    async def apply(self, commit: Commit) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.error is not None:
            error = self.error
            if self.is_once:
                self.error = None
            raise error
        await super().apply(commit)


def on_a_held_store(loop: str, scenario: Any, spool: SpoolSettings | None = None) -> None:
    async def main() -> None:
        store = Held()
        async with front_on(store, spool=spool) as front:
            await front.broker.declare_queue("q")
            await front.broker.declare_group("q", "default")
            await scenario(front, store)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


async def held_publish(front: Front, store: Held) -> Wire:
    """A connection over which a message was published whose commit is held up."""
    wire = await front.connect()
    store.gate.clear()
    asked = store.asked
    await wire.send(sent(publish(ONE), []))
    await until(lambda: store.asked > asked)
    return wire


@on_both_loops
def test_an_answer_leaves_only_after_its_commit(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await held_publish(front, store)
        reply = asyncio.ensure_future(wire.reply())
        await asyncio.sleep(0.02)
        assert not reply.done()
        store.gate.set()
        assert (await reply).status == 200

    on_a_held_store(loop, scenario)


@on_both_loops
def test_a_commit_that_fails_is_told_and_the_connection_goes_on(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await front.connect()
        store.error = Unavailable("the disk is gone")
        await wire.send(sent(publish(ONE), []))
        reply = await wire.reply()
        assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "unavailable", "1")
        store.error = None
        await wire.send(sent(publish(ONE), []))
        assert (await wire.reply()).status == 200

    on_a_held_store(loop, scenario)


@on_both_loops
def test_requests_behind_it_are_answered_in_their_order(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await front.connect()
        health = b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"
        store.gate.clear()
        await wire.send(sent(publish(ONE), []) + health + sent(publish(MANY), []))
        await wire.send(sent(publish(KEYED), []))
        await until(lambda: any(connection._requests for connection in front.server.connections))
        store.gate.set()
        replies = [(await wire.reply()).json() for _ in range(4)]
        assert [reply.get("count", reply.get("status")) for reply in replies] == [1, "alive", 40, 1]
        await wire.send(sent(publish(ONE), []))
        assert (await wire.reply()).status == 200

    on_a_held_store(loop, scenario)


@on_both_loops
def test_a_publish_whose_connection_is_lost_meanwhile_is_done(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        await held_publish(front, store)
        for connection in list(front.server.connections):
            connection.abort()
        await until(lambda: not front.server.connections)
        store.gate.set()
        assert (await front.broker.claim("q", wait=5)).payloads() == [b"one"]

    on_a_held_store(loop, scenario)


@on_both_loops
def test_a_client_that_sends_no_more_is_answered(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await held_publish(front, store)
        wire.writer.write_eof()
        await until(lambda: all(connection._closing for connection in front.server.connections))
        store.gate.set()
        assert (await wire.reply()).status == 200
        assert await wire.is_closed()

    on_a_held_store(loop, scenario)


@on_both_loops
def test_a_server_that_stops_answers_what_is_under_way(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await held_publish(front, store)
        stopped = asyncio.ensure_future(front.server.stop())
        await until(lambda: front.server.stopping)
        store.gate.set()
        reply = await wire.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await wire.is_closed()
        await stopped

    on_a_held_store(loop, scenario)


@on_both_loops
def test_a_publish_whose_commit_fails_is_kept_in_the_spool_and_stored_once(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await held_publish(front, store)
        store.error = Unavailable("the database is gone")
        store.gate.set()
        reply = await wire.reply()
        assert (reply.status, reply.json()["status"], reply.json()["count"]) == (202, "buffered", 1)
        store.error = None
        claim = await front.broker.claim("q", wait=30)
        assert claim.payloads() == [b"one"]
        await front.broker.ack(claim)
        await wire.send(sent(publish(ONE), []))
        assert (await wire.reply()).json()["parts"][0]["offset"] == 1, "the one before was stored once"

    on_a_held_store(loop, scenario, SpoolSettings(MemoryFolder()))


@on_both_loops
def test_a_publish_that_neither_the_store_nor_the_spool_takes_is_refused(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        wire = await held_publish(front, store)
        store.error = Unavailable("the database is gone")
        store.gate.set()
        reply = await wire.reply()
        assert (reply.status, reply.code) == (503, "unavailable")
        assert "the database is gone; and" in reply.json()["error"]["message"]

    on_a_held_store(loop, scenario, SpoolSettings(MemoryFolder(), bytes=1))


@on_both_loops
def test_what_nobody_waits_for_any_more_is_not_kept_in_the_spool(loop: str) -> None:
    async def scenario(front: Front, store: Held) -> None:
        await held_publish(front, store)
        for connection in list(front.server.connections):
            connection.abort()
        await until(lambda: not front.server.connections)
        store.error, store.is_once = Unavailable("the database is gone"), True
        store.gate.set()
        await until(lambda: store.error is None)
        numbers = front.broker.spool()
        assert numbers is not None
        assert numbers.buffered == 0

    on_a_held_store(loop, scenario, SpoolSettings(MemoryFolder()))
