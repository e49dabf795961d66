"""Clients that go away in the middle, and a server that stops."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.api.ticket import in_task
from penstock.store.memory.engine import MemoryStore
from penstock.store.sqlite.engine import SqliteStore
from tests.conformance.sqlite.log_rig import copy
from tests.fronts.http.rig import Front, Wire, front_on, on_both_loops, over_http, soon, until
from tests.fronts.http.test_limits import HEALTH, claim_request, stuck_claim
from tests.fronts.http.test_protocol import PUBLISH
from tests.nodes import node_of

READ: Final = b'{"wait":60}'


def read_request(group: str) -> bytes:
    return (
        b"POST /v1/queues/mail/groups/%s/read HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (group.encode(), len(READ), READ)
    )


# Clients that go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "reset"])
@on_both_loops
@over_http()
async def test_who_goes_during_a_long_poll_gives_up_its_place(front: Front, how: str, loop: str) -> None:
    await front.broker.declare_queue("mail")
    gone = await front.connect()
    await gone.send(claim_request(wait=60))
    await until(lambda: front.server.measures.long_polls == 1)
    getattr(gone, how)()
    await until(lambda: front.server.measures.long_polls == 0)
    waiting = asyncio.create_task(front.claim("mail", wait=20))
    await until(lambda: front.server.measures.long_polls == 1)
    await front.publish("mail", "for the other")
    claim = await soon(waiting)
    assert [(one["payload"], one["attempt"]) for one in claim["messages"]] == [("for the other", 1)]


@on_both_loops
@over_http()
async def test_who_goes_as_the_message_comes_spends_no_attempt_or_has_a_lease_that_ends(
    front: Front, loop: str
) -> None:
    """The message is never lost, whenever the client goes: it comes again, at the latest with the lease's end."""
    await front.broker.declare_queue("mail", lease_ms=200, backoff_ms=0, max_attempts=0)
    for turn in range(20):
        gone = await front.connect()
        await gone.send(claim_request(wait=60))
        await until(lambda: front.server.measures.long_polls == 1)
        publishing = asyncio.create_task(front.publish("mail", str(turn)))
        for _ in range(turn):
            await asyncio.sleep(0)
        gone.reset()
        await publishing
        claim = await front.claim("mail", wait=20)
        assert [one["payload"] for one in claim["messages"]] == [str(turn)]
        await front.ok("POST", f"/v1/leases/{claim['lease']}/settle", {"verdicts": [{"action": "ack"}]})
    assert (await front.broker.stats("mail")).groups[0].ready == 0


@on_both_loops
@over_http()
async def test_half_a_goodbye_after_a_request_is_no_goodbye(front: Front, loop: str) -> None:
    """`nc -N` and others close their side when all is sent, and wait for the answers."""
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(PUBLISH + PUBLISH + HEALTH)
    wire.writer.write_eof()
    assert [(await wire.reply()).status for _ in range(3)] == [200, 200, 200]
    assert await wire.is_closed()
    assert (await front.broker.stats("mail")).published == 2


@on_both_loops
@over_http()
async def test_nobody_is_waited_for_who_has_said_goodbye(front: Front, loop: str) -> None:
    """If it has gone altogether, it must not stand in line for messages that others could have."""
    await front.broker.declare_queue("mail")
    await front.broker.declare_group("mail", "default")
    await front.broker.declare_group("mail", "watch", kind="stream")
    for request in (claim_request(wait=60), PUBLISH + claim_request(wait=60, group="default"), read_request("watch")):
        wire = await front.connect()
        wire.writer.write(HEALTH + request)
        wire.writer.write_eof()
        assert (await wire.reply()).status == 200
        await soon(wire.reader.read(), 5)
        await until(lambda: front.server.measures.connections == 0)
        assert front.server.measures.long_polls == 0


@on_both_loops
@over_http()
async def test_half_a_goodbye_in_the_middle_of_a_request_closes(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(PUBLISH[:-5])
    wire.writer.write_eof()
    assert await wire.is_closed()
    assert (await front.broker.stats("mail")).published == 0
    await until(lambda: front.server.measures.connections == 0)


@over_http()
async def test_a_publish_whose_client_has_gone_is_whole_or_not_there(front: Front) -> None:
    await front.broker.declare_queue("mail")
    for turn in range(20):
        wire = await front.connect()
        await wire.send(PUBLISH)
        for _ in range(turn):
            await asyncio.sleep(0)
        wire.reset()
    await until(lambda: front.server.measures.connections == 0)
    stats = await front.broker.stats("mail")
    assert len((await front.broker.browse("mail", max=100)).messages) == stats.published <= 20
    assert await front.is_alive()


@on_both_loops
@over_http()
async def test_a_watcher_of_events_that_goes_is_forgotten(front: Front, loop: str) -> None:
    await front.broker.declare_queue("mail")
    before = len(asyncio.all_tasks())
    for how in ("close", "reset"):
        wire = await front.connect()
        await wire.send(b"GET /v1/events HTTP/1.1\r\nHost: t\r\n\r\n")
        await wire.head()
        await wire.chunk()
        getattr(wire, how)()
        await until(lambda: front.server.measures.connections == 0)
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert not node_of(front.broker).waiters._readers


# Stopping ------------------------------------------------------------------------------------------------


class SlowStore(MemoryStore):
    """Takes commits only while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_asked = False

    @in_task
    async def apply(self, commit: Any) -> None:
        self.is_asked = not self.gate.is_set()
        await self.gate.wait()
        await super().apply(commit)


def test_a_stop_answers_what_is_under_way() -> None:
    async def main() -> None:
        store = SlowStore()
        async with front_on(store) as front:
            try:
                await stop_while_all_is_busy(store, front)
            finally:
                store.gate.set()

    asyncio.run(main())


async def stop_while_all_is_busy(store: SlowStore, front: Front) -> None:
    await front.broker.declare_queue("mail")
    await front.broker.declare_queue("empty")
    await front.broker.declare_group("empty", "watch", kind="stream")
    polls = [await front.connect() for _ in range(2)]
    await polls[0].send(claim_request("empty", wait=60))
    await polls[1].send(read_request("watch").replace(b"mail", b"empty"))
    watcher = await front.connect()
    await watcher.send(b"GET /v1/events HTTP/1.1\r\nHost: t\r\n\r\n")
    await watcher.head()
    idle = await front.connect()
    await idle.send(HEALTH)
    await idle.reply()
    waits = node_of(front.broker).waiters
    await until(lambda: waits.count == 1 and waits.readers == 2)
    store.gate.clear()
    publisher = await front.connect()
    await publisher.send(PUBLISH)
    await until(lambda: store.is_asked)
    stopping = asyncio.create_task(front.server.stop())
    await ends_empty(polls[0])
    assert await idle.is_closed()
    while chunk := await watcher.chunk():
        assert chunk.startswith(b":")
    assert await watcher.is_closed()
    with pytest.raises(ConnectionError):
        await front.connect()
    assert not stopping.done()
    store.gate.set()
    assert (await publisher.reply()).json()["results"][0]["offset"] == 0
    assert await publisher.is_closed()
    await ends_empty(polls[1])  # a stream's read looks once more, behind the commit that was held up
    await soon(stopping, 2)


async def ends_empty(wire: Wire) -> None:
    reply = await wire.reply()
    assert (reply.status, reply.json()["messages"]) == (200, [])
    assert reply.headers["connection"] == "close"
    assert await wire.is_closed()


@on_both_loops
@over_http(stop_seconds=0.5, request_seconds=60.0)
async def test_a_stop_does_not_wait_for_a_stuck_client(front: Front, loop: str) -> None:
    from penstock import Message

    await front.broker.declare_queue("large")
    await front.broker.publish_many("large", [Message(b"x" * 1_000_000) for _ in range(12)])
    await stuck_claim(front, 12)
    await until(lambda: any(one._room is not None for one in front.server.connections))
    began = asyncio.get_running_loop().time()
    await soon(front.server.stop())
    assert 0.4 < asyncio.get_running_loop().time() - began < 3.0
    await until(lambda: not front.server.connections)


@over_http(stop_seconds=5.0)
async def test_a_stop_does_not_wait_for_half_a_request(front: Front) -> None:
    wire = await front.connect()
    await wire.send(PUBLISH[:-5])
    await until(lambda: front.server.measures.connections == 1)
    await soon(front.server.stop(), 2)
    assert await wire.is_closed()


@over_http()
async def test_requests_that_come_during_a_stop_are_not_left_in_the_dark(front: Front) -> None:
    """What is behind the answer under way is not answered, and the closed connection says so."""
    await front.broker.declare_queue("mail")
    wire = await front.connect()
    await wire.send(claim_request(wait=60) + PUBLISH)
    await until(lambda: front.server.measures.long_polls == 1)
    await soon(front.server.stop())
    assert (await wire.reply()).headers["connection"] == "close"
    assert await wire.is_closed()
    assert (await front.broker.stats("mail")).published == 0


def cut_files(path: Path) -> list[Path]:
    return list(Path(f"{path}-log", "cut").iterdir())


def test_what_was_cut_off_the_log_is_shown_until_somebody_looked(tmp_path: Path) -> None:
    """A server that was killed, and the last record of whose log was damaged then."""

    async def publish(path: Path) -> None:
        async with front_on(await SqliteStore.open(path)) as front:
            await front.broker.declare_queue("mail")
            await front.publish("mail", "one")
            copy(path, tmp_path / "crashed.db")

    async def look(path: Path) -> None:
        async with front_on(await SqliteStore.open(path)) as front:
            ready = await front.ok("GET", "/readyz")
            assert ready["status"] == "ready"
            [note] = ready["damage"]
            assert "fails its checksum" in note
            assert "penstock_damage_notes 1.0" in (await front.call("GET", "/metrics")).body.decode()
            [kept] = cut_files(path)
            assert kept.name in note
            kept.rename(tmp_path / "looked at")
            assert await front.ok("GET", "/readyz") == {"status": "ready"}

    asyncio.run(publish(tmp_path / "x.db"))
    [segment] = Path(tmp_path / "crashed.db-log").glob("*.log")
    content = segment.read_bytes()
    end = len(content.rstrip(b"\0"))
    segment.write_bytes(content[: end - 1] + b"\xff" + content[end:])
    asyncio.run(look(tmp_path / "crashed.db"))


@over_http()
async def test_a_server_that_stops_is_alive_but_not_ready(front: Front) -> None:
    assert (await front.ok("GET", "/readyz")) == {"status": "ready"}
    front.server.stopping = True
    assert (await front.call("GET", "/readyz")).code == "unavailable"
    assert await front.is_alive()
    front.server.stopping = False


@over_http()
async def test_stopping_twice_is_stopping_once(front: Front) -> None:
    await asyncio.gather(front.server.stop(), front.server.stop())
    await front.server.stop()
    assert json.loads(front.server.openapi())["openapi"] == "3.1.0"
