"""A real database that is killed and cut off under publishers and a consumer; the same for PostgreSQL and MariaDB.

What was answered, stored or buffered, is in the log once and in its partition's order, message by message.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from penstock import Message
from tests.crash.databases import KINDS, Database, reason_to_skip, until
from tests.crash.trouble import come, direct_again, held, logged, on_store, play, progress, under_load
from tests.databases.losing_proxy import Proxy
from tests.databases.proxy import Proxy as HoldingProxy
from tests.local import open_local


@pytest.fixture(scope="module", params=KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if reason := reason_to_skip(request.param):
        pytest.skip(reason)
    made = KINDS[request.param]()
    yield made
    made.server.close()


def test_it_is_killed_and_comes_back(database: Database, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await open_local(database.url("killed"), spool=tmp_path / "spool")
        async with under_load(broker) as load:
            for _ in range(3):
                await progress(load)
                await asyncio.to_thread(database.server.stop, signal.SIGKILL)
                await progress(load)
                assert await broker.check_ready() == "buffering"
                await asyncio.to_thread(database.server.start)
                await direct_again(load)
        assert load.buffered > 100
        await broker.close()

    play(scenario)


def test_it_is_restarted_in_good_order(database: Database, tmp_path: Path) -> None:
    async def scenario() -> None:
        broker = await open_local(database.url("restarted"), spool=tmp_path / "spool")
        async with under_load(broker) as load:
            await progress(load)
            await asyncio.to_thread(database.server.stop)
            await progress(load)
            await asyncio.to_thread(database.server.start)
            await direct_again(load)
        assert load.buffered
        await broker.close()

    play(scenario)


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
def test_it_is_killed_in_the_middle_of_a_commit(database: Database, tmp_path: Path, is_done: bool) -> None:
    """Nobody was told whether it happened: once after it did, once while it was held up inside of the database."""
    name = f"middle_{int(is_done)}"
    proxy = HoldingProxy(database.server.port)

    async def scenario() -> None:
        broker = await on_store(await database.open(database.url(name, proxy.port), 30.0), tmp_path / "spool")
        await broker.declare_queue("work", lanes=2, keep_done_ms=3_600_000)
        await broker.publish("work", Message(b"0", partition="p"))
        before = await database.batches(name)
        if is_done:
            proxy.hold_answers()
            publishing = asyncio.ensure_future(broker.publish("work", Message(b"1", partition="p")))

            async def is_stored() -> int:
                return await database.batches(name) > before

            await until(is_stored)
            await asyncio.to_thread(database.server.stop, signal.SIGKILL)
        else:
            async with database.held_up(name) as one_waits:
                publishing = asyncio.ensure_future(broker.publish("work", Message(b"1", partition="p")))
                await one_waits()
                await asyncio.to_thread(database.server.stop, signal.SIGKILL)
        proxy.cut()
        proxy.let_go()
        assert (await publishing).buffered
        assert (await broker.publish("work", Message(b"2", partition="p"))).buffered
        await asyncio.to_thread(database.server.start)
        await come(lambda: not held(broker))
        await broker.publish("work", Message(b"3", partition="p"))
        assert await logged(broker) == {"p": [0, 1, 2, 3]}
        await broker.close()

    try:
        play(scenario)
    finally:
        proxy.close()


def test_connections_are_lost_in_the_middle_of_commits(database: Database, tmp_path: Path) -> None:
    """Some before the commit arrives, some when it is done and its answer on the way back."""
    random = Random(7)

    async def scenario() -> None:
        async with Proxy(database.server.port) as proxy:
            broker = await on_store(await database.open(database.url("lost", proxy.port), 30.0), tmp_path / "spool")
            async with under_load(broker) as load:
                for _ in range(40):
                    await progress(load, 2)
                    if random.random() < 0.6:
                        proxy.answers_to_lose = random.randint(1, 2)
                    else:
                        proxy.requests_to_lose = random.randint(1, 2)
                await progress(load)
            assert load.buffered
            await broker.close()

    play(scenario)


def test_the_network_is_cut_and_then_swallows_everything(database: Database, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Proxy(database.server.port) as proxy:
            broker = await on_store(await database.open(database.url("cut", proxy.port), 1.0), tmp_path / "spool")
            async with under_load(broker) as load:
                for fail in (proxy.refuse, proxy.hang, proxy.refuse):
                    await progress(load)
                    fail()
                    await progress(load)
                    proxy.heal()
                    await come(lambda: not held(broker))
            assert load.buffered
            await broker.close()

    play(scenario)
