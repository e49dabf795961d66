"""A real PostgreSQL whose statements take too long, whose connections are all taken, and that a replica replaces.

What it has in common with other databases is in `test_database_trouble.py`.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from penstock.model.errors import Unavailable
from penstock.node.broker import LocalBroker
from penstock.store.postgres.engine import PostgresStore
from tests.crash.trouble import come, direct_again, held, on_store, play, progress, under_load
from tests.databases.postgres import PostgresServer, is_there, synchronous_pair
from tests.torture.proxy import Proxy

pytestmark = pytest.mark.skipif(not is_there(), reason="there is no PostgreSQL")
END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


async def opened(url: str, spool: Path, *, readers: int = 4, seconds: float = 30.0) -> LocalBroker:
    return await on_store(await PostgresStore.open(url, readers=readers, seconds=seconds), spool)


def test_statements_that_take_too_long_and_connections_that_are_all_taken(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Somebody holds the tables for longer than a call may take; then somebody has every connection."""

    async def scenario() -> None:
        broker = await opened(f"{server.url}?schema=slow", tmp_path / "spool", readers=1, seconds=0.5)
        rival = await asyncpg.connect(server.url)
        async with under_load(broker) as load:
            await progress(load)
            async with rival.transaction():
                await rival.execute("LOCK TABLE slow.lanes, slow.batches IN ACCESS EXCLUSIVE MODE")
                await progress(load, 5)
            await come(lambda: not held(broker))
            await rival.execute("ALTER DATABASE postgres SET statement_timeout = '1ms'")
            await rival.execute(END_OTHERS)
            await progress(load, 5)
            await rival.execute("ALTER DATABASE postgres RESET statement_timeout")
            await rival.execute(END_OTHERS)
            await come(lambda: not held(broker))
            others = await taken(server)
            await rival.execute(f"{END_OTHERS} AND query LIKE '%slow%'")
            others += await taken(server)
            await progress(load, 5)
            for other in others:
                await other.close()
        assert load.buffered
        await rival.close()
        await broker.close()

    play(scenario)


async def taken(server: PostgresServer) -> list[asyncpg.Connection[asyncpg.Record]]:
    """Every connection that the server still gives."""
    found: list[asyncpg.Connection[asyncpg.Record]] = []
    while True:
        try:
            found.append(await asyncpg.connect(server.url))
        except asyncpg.TooManyConnectionsError:
            return found


def test_a_replica_takes_over(tmp_path: Path) -> None:
    """The first is killed, the second promoted; the node was told both in one URL."""

    async def scenario(first: PostgresServer, second: PostgresServer, url: str) -> None:
        broker = await opened(f"{url}&schema=moved", tmp_path / "spool")
        async with under_load(broker) as load:
            await progress(load)
            await asyncio.to_thread(first.stop, signal.SIGKILL)
            await progress(load)
            await asyncio.to_thread(second.promote)
            await direct_again(load)
        assert load.buffered
        await broker.close()

    with ExitStack() as stack:
        pair = synchronous_pair(stack)
        play(lambda: scenario(*pair))


def test_a_replica_that_was_not_promoted_is_not_read(tmp_path: Path) -> None:
    """One address that leads to whichever server is there: a replica may not have applied yet what it has."""

    async def scenario(first: PostgresServer, second: PostgresServer) -> None:
        proxy = Proxy("127.0.0.1", first.port)
        await proxy.start()
        store = await PostgresStore.open(f"postgresql://penstock@127.0.0.1:{proxy.port}/postgres?schema=one_address")
        assert await store.catalog() == []
        await asyncio.to_thread(first.stop, signal.SIGKILL)
        proxy.lead_to(second.port)
        proxy.cut()
        with pytest.raises(Unavailable, match="takes no writes"):
            await asyncio.wait_for(always_refused(store), 60)
        await asyncio.to_thread(second.promote)
        assert await store.catalog() == []
        await store.close()
        await proxy.close()

    with ExitStack() as stack:
        first, second, _ = synchronous_pair(stack)
        play(lambda: scenario(first, second))


async def always_refused(store: PostgresStore) -> None:
    """Until it is answered, or refused for what the server is; connections of the server before are used up first."""
    while True:
        try:
            await store.catalog()
        except Unavailable as error:
            if "writes" in str(error):
                raise
        else:
            raise AssertionError("the replica was read")
