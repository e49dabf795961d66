"""`copy --online`: servers go on while their store is copied, and nothing that was answered is lost or done twice."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

import penstock
from penstock import Message
from penstock.cli.dev.checkout import script_environment
from penstock.client import AsyncClient
from penstock.maintenance import following as following_module
from penstock.maintenance import online
from penstock.maintenance.copy import copy
from penstock.maintenance.doctor import check_store
from penstock.maintenance.online import copy_online, reopen
from penstock.maintenance.verify import verify
from penstock.model.errors import AlreadyExists, Closed, InvalidArgument, PenstockError, StoreCorrupt
from tests.cli.servers import FREE_PORTS, Server, running
from tests.cli.servers import penstock as penstock_command
from tests.cli.servers import until as wait_until
from tests.maintenance.rig import ENGINE_NAMES, fill, flip, make, place_of, segment_of
from tests.maintenance.test_copy import told

PAIRS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "mysql"), ("mysql", "postgres")]
LANES = 4
DEADLINE_S = 60.0


@dataclass
class Traffic:
    """Producers and consumers of servers, and what these have answered them."""

    published: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By dedup id: lane and offset that the server answered."""
    tried: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    """Acks that were sent; those without an answer may have happened or not."""
    refused: Counter[str] = field(default_factory=Counter)
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    async def produce(self, url: str, name: str) -> None:
        async with AsyncClient(url) as client:
            for number in count():
                if self.ending.is_set():
                    return
                id = f"{name}-{number}"
                self.tried.add(id)
                message = Message(id.encode() * 20, partition=name, dedup_id=id, headers={"id": id})
                try:
                    answer = await asyncio.wait_for(client.publish("work", message), 5)
                    self.published[id] = (answer.lane, answer.offset)
                except (PenstockError, TimeoutError) as error:
                    self.refused[type(error).__name__] += 1
                    await asyncio.sleep(0.05)

    async def consume(self, url: str) -> None:
        async with AsyncClient(url) as client:
            while not self.ending.is_set():
                try:
                    claim = await asyncio.wait_for(client.claim("work", max=5, lease_seconds=600.0), 5)
                    ids = [str((one.headers or {})["id"]) for one in claim]
                    self.asked |= set(ids)
                    if ids:
                        await asyncio.wait_for(client.ack(claim), 5)
                        self.acked |= set(ids)
                    else:
                        await asyncio.sleep(0.01)
                except (PenstockError, TimeoutError) as error:
                    self.refused[type(error).__name__] += 1
                    await asyncio.sleep(0.05)


async def until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + DEADLINE_S
    while not is_so():
        assert monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("old", "new", "servers"), [*((*pair, 1) for pair in PAIRS), ("postgres", "mysql", 2)])
def test_nothing_that_was_answered_is_lost_while_servers_go_on(
    old: str, new: str, servers: int, tmp_path: Path
) -> None:
    source, target = place_of(old, tmp_path / "old"), place_of(new, tmp_path / "new")
    make(source)

    async def main(urls: list[str]) -> Traffic:
        async with AsyncClient(urls[0]) as client:
            await client.declare_queue("work", lanes=LANES, retain_ms=3_600_000, dedup_window_ms=3_600_000)
        traffic = Traffic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(traffic.produce(urls[number % servers], f"p{number}"))
            for number in range(2):
                tasks.create_task(traffic.consume(urls[number % servers]))
            await until(lambda: len(traffic.acked) >= 30)
            before = len(traffic.published)
            done = await copy_online(source, target)
            assert done.rounds >= 1
            assert len(traffic.published) > before, "nobody could publish while it was copied"
            answered = len(traffic.published)
            refused = sum(traffic.refused.values())
            await until(lambda: sum(traffic.refused.values()) >= refused + 10)
            assert len(traffic.published) <= answered + 3, "the old server still takes messages"
            traffic.ending.set()
        return traffic

    with ExitStack() as stack:
        started = [stack.enter_context(running(tmp_path, "--store", source)) for _ in range(servers)]
        traffic = asyncio.run(main([server.url for server in started]))
    asyncio.run(check(target, traffic))
    assert asyncio.run(verify(target)).ok


async def check(target: str, traffic: Traffic) -> None:
    async with await penstock.open(target) as broker:
        found: dict[str, tuple[int, int]] = {}
        for lane in range(LANES):
            for one in await broker.read_from("work", 0, lane=lane, max=100_000):
                id = str((one.headers or {})["id"])
                assert id not in found
                found[id] = (lane, one.offset)
        assert {id: found.get(id) for id in traffic.published} == traffic.published
        assert found.keys() <= traffic.tried
        # An answered ack holds; what was neither acked nor leased comes, and comes once.
        left: Counter[str] = Counter()
        while claim := await broker.claim("work", max=1000):
            left.update(str((one.headers or {})["id"]) for one in claim)
            await broker.ack(claim)
        assert max(left.values(), default=1) == 1
        assert not left.keys() & traffic.acked
        assert found.keys() - traffic.asked <= left.keys()
        id = next(iter(traffic.published))
        again = await broker.publish("work", Message(b"x", partition=id.partition("-")[0], dedup_id=id))
        assert (again.duplicate, (again.lane, again.offset)) == (True, traffic.published[id])


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_closed_store_refuses_servers_until_it_is_reopened(engine: str, tmp_path: Path) -> None:
    source, target = place_of(engine, tmp_path / "source"), str(tmp_path / "target.db")
    make(source)

    async def main() -> None:
        with pytest.raises(InvalidArgument, match="is not closed"):
            await reopen(source)
        await copy_online(source, target)
        with pytest.raises(Closed, match=r"was copied to .*target.db and closed"):
            await penstock.open(source)
        async with await penstock.open(target) as broker:
            expected = await told(broker)
        assert (await verify(source)).ok
        assert [one for one in await check_store(source) if one.state == "wrong" and "copied to" in one.text]
        assert "target.db" in await reopen(source)
        assert not [one for one in await check_store(source) if one.state == "wrong"]
        async with await penstock.open(source) as broker:
            assert await told(broker) == expected

    asyncio.run(main())


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_the_copy_is_that_of_an_offline_copy(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several rounds, with changes between them: groups and queues deleted, leases settled, batches trimmed."""
    source = place_of(engine, tmp_path / "source")
    online_target, offline_target = str(tmp_path / "online.db"), str(tmp_path / "offline.db")
    monkeypatch.setattr(online, "ROUND_SECONDS", 0.0)
    monkeypatch.setattr(online, "ROUNDS_MOST", 5)
    monkeypatch.setattr(online, "ROUND_SHARE", 1e9)
    real = following_module.Following.copy_traces
    rounds = 0

    async def main() -> None:
        async with await penstock.open(source) as broker:
            await fill(broker)
            held = await broker.claim("mail", max=2, lease_seconds=600.0)

            async def between(self: following_module.Following, rows: following_module.Source) -> None:
                nonlocal rounds
                await real(self, rows)
                rounds += 1
                if rounds == 1:
                    await broker.ack(held)
                    await broker.delete_group("orders", "billing")
                    await broker.declare_queue("short")
                    await broker.publish_many("short", [Message(b"%d" % one) for one in range(50)])
                elif rounds == 2:
                    await broker.ack(await broker.claim("short", max=30))
                    await broker.delete_queue("lost")
                    await broker.stage("load-1", "part-2", penstock.encode([Message(b"late")]), queue="mail")
                elif rounds == 3:
                    await broker.commit_staged("load-1", ["part-0", "part-1", "part-2"])
                    await broker.redrive("mail")
                    await broker.delete_queue("graveyard")
                elif rounds == 4:
                    await broker.nack(await broker.claim("short", max=5), delay=600.0, error="later")
                    await broker.trace_event("trace-9", "late")

            monkeypatch.setattr(following_module.Following, "copy_traces", between)
            done = await copy_online(source, online_target)
            assert done.rounds == rounds == 5
            with suppress(PenstockError):
                await broker.publish("mail", Message(b"too late"))
        await reopen(source)
        await copy(source, offline_target)
        seen = []
        for place in (online_target, offline_target):
            assert (await verify(place)).ok
            async with await penstock.open(place) as broker:
                seen.append(await told(broker))
        assert seen[0] == seen[1]

    asyncio.run(main())


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_copy_that_fails_in_the_pause_leaves_the_source_open(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = place_of(engine, tmp_path / "source")
    make(source)

    async def fails(*_: object) -> None:
        raise StoreCorrupt("the disk of the copy is on fire")

    monkeypatch.setattr(following_module.Following, "finish", fails)

    async def main() -> None:
        with pytest.raises(StoreCorrupt, match="on fire"):
            await copy_online(source, str(tmp_path / "target.db"))
        async with await penstock.open(source) as broker:
            await broker.publish("mail", Message(b"goes on"))

    asyncio.run(main())


HANGS = """
import asyncio, sys
from penstock.maintenance import following, online

async def hang(*_):
    print("in the pause", flush=True)
    await asyncio.Event().wait()

following.Following.finish = hang
asyncio.run(online.copy_online(sys.argv[1], sys.argv[2]))
"""
"""A copy that comes to its pause and stays there."""
WAY_OUT = "'penstock store reopen' opens this store again"


def expect_refused(server: Server, lease: str) -> None:
    """Whatever clients ask for, they are told why it is refused and the way out."""
    message = {"messages": [{"payload": "never"}]}
    asked: tuple[tuple[str, str, object], ...] = (
        ("POST", "/v1/queues/work/messages", message),
        ("POST", "/v1/queues/work/claim", {}),
        ("POST", f"/v1/leases/{lease}/settle", {"verdicts": [{"action": "ack"}]}),
        ("PUT", "/v1/queues/new", {}),
        ("GET", "/readyz", None),
    )
    for method, path, body in asked:

        def is_told(method: str = method, path: str = path, body: object = body) -> bool:
            status, answer = server.request(method, path, body)
            assert status == 503, answer
            return WAY_OUT in answer["error"]["message"] and "target.db and closed" in answer["error"]["message"]

        wait_until(is_told, f"{method} {path} says the way out")


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_copy_that_is_killed_in_its_pause_leaves_the_source_closed_until_it_is_reopened(
    engine: str, tmp_path: Path
) -> None:
    source, target = place_of(engine, tmp_path / "source"), str(tmp_path / "target.db")
    with ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, "--store", source))
        assert server.request("PUT", "/v1/queues/work", {})[0] == 201
        messages = {"messages": [{"payload": "held"}, {"payload": "waits"}]}
        assert server.request("POST", "/v1/queues/work/messages", messages)[0] == 200
        lease = server.request("POST", "/v1/queues/work/claim", {"lease_seconds": 600})[1]["lease"]
        command = [sys.executable, "-c", HANGS, source, target]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=script_environment()) as tool:
            assert tool.stdout is not None
            assert tool.stdout.readline() == "in the pause\n"
            tool.kill()
            assert tool.wait(DEADLINE_S) == -signal.SIGKILL
        expect_refused(server, lease)
        if engine == "sqlite":  # one server at a time has the file, and must be started again after all
            server.stop()
        refused = penstock_command("serve", "--store", source, "--port", "0", folder=tmp_path, **FREE_PORTS)
        assert refused.returncode == 1
        assert "target.db and closed: use that; 'penstock store reopen' opens this one again" in refused.stderr
        assert [one for one in asyncio.run(check_store(source)) if one.state == "wrong" and "copied to" in one.text]
        assert asyncio.run(queues_of(target)) == set(), "nobody takes it for a whole copy"

        assert penstock_command("store", "reopen", source, folder=tmp_path).returncode == 0
        if engine == "sqlite":
            server = stack.enter_context(running(tmp_path, "--store", source))
        wait_until(lambda: server.request("GET", "/readyz")[0] == 200, "the server goes on")
        settle = f"/v1/leases/{lease}/settle"
        wait_until(lambda: server.request("POST", settle, {"verdicts": [{"action": "ack"}]})[0] == 204, "acked")
        claim = server.request("POST", "/v1/queues/work/claim", {"max": 10})[1]
        assert [one["payload"] for one in claim["messages"]] == ["waits"], "nothing was lost, nothing comes again"


async def queues_of(place: str) -> set[str]:
    async with await penstock.open(place) as broker:
        return set(await broker.queues()) - {"$events"}


def test_what_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    make(str(source))
    make(str(target))
    with pytest.raises(AlreadyExists, match="not empty"):
        asyncio.run(copy_online(str(source), str(target)))
    with pytest.raises(InvalidArgument, match="to itself"):
        asyncio.run(copy_online(str(source), str(source)))
    with closing(sqlite3.connect(source)) as connection:
        query = "SELECT segment, position + size - length(meta) - 1 FROM batches WHERE rowid = 30"
        segment, last = connection.execute(query).fetchone()
    flip(segment_of(source, segment), last)
    with pytest.raises(StoreCorrupt, match="fail their checksum"):
        asyncio.run(copy_online(str(source), str(tmp_path / "other.db")))
    asyncio.run(open_and_close(source))


async def open_and_close(place: Path) -> None:
    async with await penstock.open(place):
        pass
