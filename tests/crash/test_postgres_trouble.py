"""A real PostgreSQL that is killed, cut off, stopped, exhausted and replaced under publishers and a consumer.

What was answered, stored or buffered, is in the log once and in its partition's order, message by message.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import asyncpg
import pytest

import penstock
from penstock import Broker, Message, PenstockError
from penstock.embedded import open_store, spool_settings
from penstock.node.clock import SystemClock
from penstock.store.postgres import PostgresStore
from tests.databases.losing_proxy import Proxy
from tests.databases.postgres import PostgresServer, is_there

pytestmark = pytest.mark.skipif(not is_there(), reason="there is no PostgreSQL")
PATIENCE_S = 60.0
PARTITIONS = 4
END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


class Load:
    """Publishers, each with a partition of its own and one publish at a time, and a consumer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped = False
        self.answered: Counter[str] = Counter()
        self.buffered = 0
        self.consumed: set[tuple[str, int]] = set()
        self.acked: set[tuple[str, int]] = set()
        self.faults: list[str] = []

    async def publisher(self, name: str) -> None:
        while not self._stopped:
            number = self.answered[name]
            place = await self._broker.publish("work", Message(b"%d" % number, partition=name))
            self.buffered += place.buffered
            self.answered[name] += 1
            await asyncio.sleep(0.001)

    async def consumer(self) -> None:
        # Of an ack whose answer was lost nobody knows: what counts is that everything was handed out.
        while not (self._stopped and len(self.consumed) >= self.answered.total()):
            try:
                claim = await self._broker.claim("work", max=500, wait=0.2)
                keys = [(one.message.partition or "", int(one.payload)) for one in claim]
                if again := self.acked.intersection(keys):
                    self.faults.append(f"delivered after an answered ack: {sorted(again)[:3]}")
                self.consumed.update(keys)
                if keys:
                    await self._broker.ack(claim)
                    self.acked.update(keys)
            except PenstockError:
                await asyncio.sleep(0.02)  # the store is away

    def stop(self) -> None:
        self._stopped = True


@asynccontextmanager
async def under_load(broker: Broker) -> AsyncIterator[Load]:
    """Trouble happens inside; then everything must come to rest, and every message is checked."""
    await broker.declare_queue("work", lanes=2, keep_done_ms=3_600_000, lease_ms=2_000)
    load = Load(broker)
    publishers = [asyncio.create_task(load.publisher(f"p{index}")) for index in range(PARTITIONS)]
    consumer = asyncio.create_task(load.consumer())
    yield load
    load.stop()
    await asyncio.wait_for(asyncio.gather(*publishers), PATIENCE_S)
    await come(lambda: not held(broker))
    await asyncio.wait_for(consumer, PATIENCE_S)
    assert not load.faults
    assert await logged(broker) == {f"p{index}": list(range(load.answered[f"p{index}"])) for index in range(PARTITIONS)}


def held(broker: Broker) -> bool:
    numbers = broker.spool()
    return numbers is not None and bool(numbers.messages or numbers.is_away)


async def logged(broker: Broker) -> dict[str, list[int]]:
    """The numbers of each partition in the order of the log."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for lane in range(2):
        start = 0
        while True:
            scan = await broker.scan("work", lane, start, 1 << 40)
            for one in scan.messages():
                found[one.message.partition or ""].append(int(one.payload))
            if scan.next_offset >= scan.end:
                break
            start = scan.next_offset
    return dict(found)


async def come(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{condition} did not come true"
        await asyncio.sleep(0.01)


async def progress(load: Load, more: int = 20) -> None:
    """Until every publisher has gone on, stored or buffered."""
    goals = {f"p{index}": load.answered[f"p{index}"] + more for index in range(PARTITIONS)}
    await come(lambda: all(load.answered[name] >= goal for name, goal in goals.items()))


async def direct_again(load: Load) -> None:
    """Until publishers who never pause are answered with offsets again."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    buffered = -1
    while buffered != load.buffered:
        assert asyncio.get_running_loop().time() < deadline, "publishes are still buffered"
        buffered = load.buffered
        await progress(load)


async def opened(url: str, spool: Path, *, readers: int = 4, seconds: float = 30.0) -> Broker:
    store = await PostgresStore.open(url, readers=readers, seconds=seconds)
    return await open_store(store, SystemClock(), spool=spool_settings(spool))


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(), 110)

    asyncio.run(main())


def test_the_database_is_killed_and_comes_back(tmp_path: Path) -> None:
    server = PostgresServer()

    async def scenario() -> None:
        broker = await penstock.open(f"{server.url}?schema=killed", spool=tmp_path / "spool")
        async with under_load(broker) as load:
            for _ in range(3):
                await progress(load)
                await asyncio.to_thread(server.stop, signal.SIGKILL)
                await progress(load)
                assert await broker.check_ready() == "buffering"
                await asyncio.to_thread(server.start)
                await direct_again(load)
        assert load.buffered > 100
        await broker.close()

    try:
        play(scenario)
    finally:
        server.close()


def test_connections_are_lost_in_the_middle_of_commits(server: PostgresServer, tmp_path: Path) -> None:
    """Some before the commit arrives, some when it is done and its answer on the way back."""
    random = Random(7)

    async def scenario() -> None:
        async with Proxy(server.port) as proxy:
            url = f"postgresql://penstock@127.0.0.1:{proxy.port}/postgres?schema=lost"
            broker = await opened(url, tmp_path / "spool")
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


def test_the_network_is_cut_and_then_swallows_everything(server: PostgresServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Proxy(server.port) as proxy:
            url = f"postgresql://penstock@127.0.0.1:{proxy.port}/postgres?schema=cut"
            broker = await opened(url, tmp_path / "spool", seconds=1.0)
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
    first = PostgresServer(wal_level="replica", max_wal_senders="4")
    second = PostgresServer(copy_of=first)

    async def scenario() -> None:
        url = f"postgresql://penstock@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres"
        control = await asyncpg.connect(first.url)
        await control.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        await control.execute("SELECT pg_reload_conf()")
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while await control.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != 1:
            assert asyncio.get_running_loop().time() < deadline, "the standby does not follow"
            await asyncio.sleep(0.02)
        await control.close()
        broker = await opened(f"{url}?target_session_attrs=primary&schema=moved", tmp_path / "spool")
        async with under_load(broker) as load:
            await progress(load)
            await asyncio.to_thread(first.stop, signal.SIGKILL)
            await progress(load)
            await asyncio.to_thread(second.promote)
            await direct_again(load)
        assert load.buffered
        await broker.close()

    try:
        play(scenario)
    finally:
        first.close()
        second.close()
