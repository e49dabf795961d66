"""What only the MySQL and MariaDB engine promises: lost answers, several processes, names, long rows, settings."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.model.errors import Fenced, InvalidArgument, Unavailable
from penstock.model.rows import DEDUP_KEY_BYTES_MAX, BatchRow, CatalogRow, Commit, DedupRow, Member, OutboxRow, TraceRow
from penstock.store.mysql import commit as mysql_commit
from penstock.store.mysql import schema as sql
from penstock.store.mysql.engine import MysqlStore
from penstock.store.mysql.pool import StoreAddress, translated
from penstock.store.mysql.schema import check_version, losses
from penstock.store.open import label_of, open_engine
from tests.conformance.samples import (
    LANE,
    TRACES,
    all_batches,
    batches,
    change,
    commit,
    full_change,
    image_of,
    load_one,
    own_all,
)
from tests.conformance.test_cluster import until_stale
from tests.databases import mariadb
from tests.databases.mariadb import MariadbServer, database_url
from tests.databases.proxy import Proxy

pytestmark = pytest.mark.skipif(not mariadb.is_there(), reason=mariadb.MISSING)

NEXT: dict[str, Any] = {"batches": batches(1, base=7), "first": 0, "end": 8}
"""What comes after `full_change`."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return database_url(tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[MariadbServer]:
    """One that a test may kill and whose settings it may change."""
    made = MariadbServer()
    yield made
    made.close()


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    made = Proxy(StoreAddress.parse(url).port)
    yield made
    made.close()


def through(proxy: Proxy, url: str) -> str:
    return url.replace(f":{StoreAddress.parse(url).port}/", f":{proxy.port}/")


@contextlib.contextmanager
def connected(url: str) -> Iterator[Any]:
    """A cursor of a session beside the store."""
    address = StoreAddress.parse(url)
    session = pymysql.connect(
        host=address.host, port=address.port, user=address.user, password=address.password, autocommit=True
    )
    try:
        with session.cursor() as cursor:
            if cursor.execute("SHOW DATABASES LIKE %s", (address.database,)):
                session.select_db(address.database)
            yield cursor
    finally:
        session.close()


def count(url: str, question: str, *values: object) -> int:
    with connected(url) as cursor:
        cursor.execute(question, values or None)
        return int(cursor.fetchone()[0])


async def until(holds: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    while not await asyncio.to_thread(holds):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


def waits_for_a_lock(url: str) -> Callable[[], bool]:
    name = StoreAddress.parse(url).database
    waiting = "db = %s AND state LIKE 'Waiting for table%%lock'"
    return lambda: count(url, f"SELECT count(*) FROM information_schema.processlist WHERE {waiting}", name) > 0


def status(url: str, name: str) -> int:
    return count(url, "SELECT variable_value FROM information_schema.global_status WHERE variable_name = %s", name)


def run(scenario: Callable[[MysqlStore], Awaitable[None]], url: str, **options: Any) -> None:
    async def main() -> None:
        async with opened(url, **options) as store:
            await scenario(store)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[MysqlStore]:
    store = await MysqlStore.open(url, **options)
    try:
        yield store
    finally:
        await store.close()


# An answer that was lost ---------------------------------------------------------------------------------


def test_a_connection_that_is_cut_inside_of_a_commit(url: str, proxy: Proxy) -> None:
    """The commit is held up inside of the database; its connection is cut; then the lock is let go."""

    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        before = await load_one(store)
        with connected(url) as blocker:
            blocker.execute("LOCK TABLES batches READ")
            write = asyncio.ensure_future(store.apply(commit(epochs, change(**NEXT))))
            await until(waits_for_a_lock(url))
            proxy.cut()
            with pytest.raises(Unavailable):
                await write
            reading = asyncio.ensure_future(load_one(store))
            done, _ = await asyncio.wait([reading], timeout=0.3)
            assert not done, "it was read while the commit might still come into force"
            blocker.execute("UNLOCK TABLES")
        image = await reading
        assert (image.end, len(await all_batches(store))) in ((before.end, 2), (8, 3))
        assert await load_one(store) == image
        # And the next one is taken, under the new generation.
        await store.apply(commit(epochs, change(**NEXT)))
        assert (await load_one(store)).end == 8

    run(scenario, through(proxy, url))


def test_a_commit_whose_answer_was_lost_is_found(url: str, proxy: Proxy) -> None:
    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        proxy.hold_answers()
        write = asyncio.ensure_future(store.apply(commit(epochs, change(**NEXT))))
        await until(lambda: count(url, "SELECT max(`end`) FROM lanes") == 8)
        proxy.cut()
        with pytest.raises(Unavailable):
            await write
        proxy.let_go()
        assert (await load_one(store)).end == 8

    run(scenario, through(proxy, url))


def test_a_commit_that_arrives_after_it_was_given_up_is_refused(url: str, proxy: Proxy) -> None:
    """The network holds the packet until its sender has given up and read back; then the database gets it."""

    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        proxy.hold_requests()
        with pytest.raises(Unavailable):
            await store.apply(commit(epochs, change(**NEXT)))
        assert proxy.held.is_set()
        before = await load_one(store)
        assert before.end == 7
        arrived = status(url, "COM_BEGIN")
        proxy.let_go()
        await until(lambda: status(url, "COM_BEGIN") > arrived)
        assert await load_one(store) == before
        await store.apply(commit(epochs, change(**NEXT)))
        assert (await load_one(store)).end == 8

    run(scenario, through(proxy, url), seconds=1.5)


def test_the_server_is_killed_and_comes_back(server: MariadbServer) -> None:
    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        server.stop(9)
        with pytest.raises(Unavailable):
            await store.apply(commit(epochs, change(**NEXT)))
        with pytest.raises(Unavailable):
            await load_one(store)
        await asyncio.to_thread(server.start)
        assert await load_one(store) == image_of(full_change())
        await store.apply(commit(epochs, change(**NEXT)))
        assert (await load_one(store)).end == 8

    run(scenario, f"{server.url}/killed", seconds=5.0)


def test_an_idle_connection_that_the_server_ended_costs_no_error(url: str) -> None:
    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        of_store = "FROM information_schema.processlist WHERE db = %s AND id <> connection_id()"
        name = StoreAddress.parse(url).database
        with connected(url) as cursor:
            cursor.execute(f"SELECT id {of_store}", (name,))
            ids = [id for (id,) in cursor.fetchall()]
            assert ids
            for id in ids:
                cursor.execute(f"KILL {id}")
        gone = f"SELECT count(*) {of_store} AND id <= %s"
        await until(lambda: count(url, gone, name, max(ids)) == 0)
        await store.apply(commit(epochs, full_change()))
        assert await load_one(store) == image_of(full_change())

    run(scenario, url)


# Several processes ---------------------------------------------------------------------------------------


def test_who_acquires_waits_for_the_commit_under_way_and_fences_the_next(url: str) -> None:
    async def scenario(first: MysqlStore) -> None:
        async with opened(url) as second:
            epochs = await own_all(first)
            with connected(url) as blocker:
                blocker.execute("LOCK TABLES batches READ")
                write = asyncio.ensure_future(first.apply(commit(epochs, full_change())))
                await until(waits_for_a_lock(url))
                taking = asyncio.ensure_future(second.acquire([LANE], "other"))
                done, _ = await asyncio.wait([taking], timeout=0.3)
                assert not done, "the slot was taken over under a commit"
                blocker.execute("UNLOCK TABLES")
            await write
            await taking
            assert await load_one(second) == image_of(full_change())
            with pytest.raises(Fenced, match="other"):
                await first.apply(commit(epochs, change(**NEXT)))
            assert await load_one(second) == image_of(full_change())

    run(scenario, url)


def test_many_that_open_a_new_database_at_once(url: str) -> None:
    async def main() -> None:
        stores = await asyncio.gather(*(MysqlStore.open(url) for _ in range(6)))
        try:
            assert len({store._writer.name for store in stores}) == 6
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())


def test_writers_at_once_never_lock_each_other_out(url: str) -> None:
    """Eight writers, each with its own slots, that put and delete rows of every table, many in each other's reach."""
    writers, rounds = 8, 25

    async def main() -> None:
        stores = [await MysqlStore.open(url) for _ in range(writers)]
        try:
            await asyncio.gather(*(work(number, store) for number, store in enumerate(stores)))
            for number, store in enumerate(stores):
                assert (await load_one(store, number)).end == 7 * rounds
        finally:
            await asyncio.gather(*(store.close() for store in stores))

    async def work(number: int, store: MysqlStore) -> None:
        lanes = range(number, 64, writers)
        epochs = await store.acquire(lanes, f"node {number}")
        for turn in range(rounds):
            await store.apply(mixed_commit(epochs, number, lanes, turn))

    before = status(url, "INNODB_DEADLOCKS")
    asyncio.run(main())
    assert status(url, "INNODB_DEADLOCKS") == before


def mixed_commit(epochs: dict[int, int], number: int, lanes: range, turn: int) -> Commit:
    changes = []
    for lane in lanes:
        whole = full_change(lane)
        whole.batches = batches(3, 4, base=7 * turn)
        whole.end = 7 * (turn + 1)
        if turn:
            whole.trim_to = 7 * turn
            whole.dedup_expired_ms = 1500
            whole.leases_deleted, whole.waiting_deleted, whole.dead_deleted = [(1, 10)], [(2, 0)], [(1, 2)]
            whole.groups_deleted = [2]
        changes.append(whole)
    id = turn * 100 + number
    made = commit(
        epochs,
        *changes,
        lanes_deleted=[lanes[-1] + 64 * (turn + 1)],
        outbox=[OutboxRow(id, lanes[0], 0, b"x")],
        outbox_deleted=[id - 100],
        traces=[TraceRow("default", "t", turn, id, "event")],
    )
    # Who changes what belongs to no lane does so alone: not always, or nobody would be at work at the same time.
    if turn % 8 == number:
        made.catalog, made.catalog_deleted = [CatalogRow("queue", id, 0, "default", f"q{id}", b"{}")], [("queue", 1)]
        made.traces_expired_ms = turn - 2
    return made


# What is in the database ---------------------------------------------------------------------------------

NAMES = [
    "a",
    "A",
    "á",
    "à",
    "a ",
    "a  ",
    " a",
    "ss",
    "ß",
    "a\0",
    "a\0b",
    "\\",
    "\\'",
    "'",
    '"',
    "%s",
    "😀",
    "ﬁ",
    "fi",
    "\x01",
]


def test_names_that_a_collation_takes_for_one_are_all_there(url: str) -> None:
    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        catalog = [CatalogRow(name, 1, 0, name, name, name.encode()) for name in NAMES]
        ids = [DedupRow(name.encode(), place, 9) for place, name in enumerate(NAMES)]
        ids.append(DedupRow(bytes(range(255, 255 - DEDUP_KEY_BYTES_MAX, -1)), 99, 9))
        traces = [TraceRow(name, name, 1, 1, name, name, 1, 1, 1, name, name, name) for name in NAMES]
        await store.apply(commit(epochs, change(dedup=ids), catalog=catalog, traces=traces))
        assert sorted(await store.catalog(), key=lambda row: row.kind) == sorted(catalog, key=lambda row: row.kind)
        for row in ids:
            assert await store.find_dedup(LANE, [row.key]) == [row]
        for trace in traces:
            assert await store.find_trace(trace.namespace, trace.trace_id, 100) == [trace]
        await store.apply(commit(epochs, change(), catalog_deleted=[("a", 1)]))
        assert len(await store.catalog()) == len(NAMES) - 1

    run(scenario, url)


@pytest.mark.parametrize(
    ("meta", "body"),
    [
        (b"m", bytes(range(256)) * 90_000),
        (b"'" * (8 << 20), b"\\" * (12 << 20)),
        (b"m" * (2 << 20), b""),
        (b"", b"b" * mysql_commit.BODY_PART_BYTES),
        (b"", b"b" * (mysql_commit.BODY_PART_BYTES + 1)),
    ],
    ids=["long", "all-escaped", "meta-alone", "one-part", "one-byte-more"],
)
def test_batches_longer_than_a_packet(url: str, meta: bytes, body: bytes) -> None:
    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        rows = batches(3, 4, meta=meta, body=body)
        await store.apply(commit(epochs, change(batches=rows)))
        assert await all_batches(store) == rows
        assert await store.heads(LANE, 0, 10, 1 << 30) == [row.head() for row in rows]
        shorter = BatchRow(0, 3, 100, 5, b"m", b"body")
        await store.apply(commit(epochs, change(batches=[shorter], first=0, end=7)))
        assert await all_batches(store) == [shorter, rows[1]]
        await store.apply(commit(epochs, change(first=7, end=7, trim_to=7)))
        assert count(url, "SELECT count(*) FROM batches") == 0

    run(scenario, url)


def test_a_commit_is_as_many_statements_for_one_message_as_for_thousands() -> None:
    def statements(messages: int) -> int:
        row = full_change()
        row.batches = batches(*[10] * messages)
        row.dedup = [DedupRow(b"%d" % number, number, 9) for number in range(messages)]
        row.leases_deleted = [(1, number) for number in range(messages)]
        made = commit({LANE: 1}, row, traces=TRACES)
        return len([*mysql_commit.fence(made, "w", 1), *mysql_commit.changes(made, "w")])

    assert statements(1) == statements(2000) <= 12


def test_tables_of_somebody_else_and_a_newer_version_are_left_alone(url: str) -> None:
    name = StoreAddress.parse(url).database
    with connected(url) as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.mine (x int)")
        with pytest.raises(InvalidArgument, match="did not make"):
            asyncio.run(MysqlStore.open(url))
        cursor.execute(f"DROP TABLE {name}.mine")
        run(load_nothing, url)
        cursor.execute(f"UPDATE {name}.schema_version SET version = {len(sql.MIGRATIONS) + 1}")
        with pytest.raises(InvalidArgument, match="newer Penstock"):
            asyncio.run(MysqlStore.open(url))


async def load_nothing(store: MysqlStore) -> None:
    assert (await load_one(store)).end == 0


def test_a_migration_that_was_interrupted_is_finished(url: str) -> None:
    broken = (*sql.MIGRATIONS, ("CREATE TABLE IF NOT EXISTS more (x int)", "CREATE NONSENSE"))
    with pytest.raises(Unavailable, match="NONSENSE"):
        asyncio.run(MysqlStore.open(url, migrations=broken))
    whole = (*sql.MIGRATIONS, (broken[-1][0], "INSERT INTO more VALUES (5)"))
    run(load_nothing, url, migrations=whole)
    run(load_nothing, url, migrations=whole)
    assert count(url, "SELECT count(*) FROM more") == 1
    assert count(url, "SELECT version FROM schema_version") == len(whole)


@pytest.mark.parametrize("rest", ["", "/", "/x?tls=maybe", "/x?schema=y", "/" + "x" * 65, "/a%2Fb"])
def test_a_wrong_url_is_refused(rest: str) -> None:
    with pytest.raises(InvalidArgument, match="the store's URL"):
        asyncio.run(MysqlStore.open(f"mysql://nobody@127.0.0.1:1{rest}"))


def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown() -> None:
    with pytest.raises(Unavailable) as caught:
        asyncio.run(MysqlStore.open("mysql://me:hidden@127.0.0.1:1/x"))
    assert "hidden" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"), [("innodb_flush_log_at_trx_commit", "2"), ("max_allowed_packet", str(1 << 20))]
)
def test_settings_that_lose_messages_are_refused(server: MariadbServer, setting: str, value: str) -> None:
    url = f"{server.url}/settings"
    with connected(url) as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{setting}")
        (good,) = cursor.fetchone()
        cursor.execute(f"SET GLOBAL {setting} = {value}")
        try:
            with pytest.raises(InvalidArgument, match=setting):
                asyncio.run(MysqlStore.open(url))
        finally:
            cursor.execute(f"SET GLOBAL {setting} = {good}")
    run(load_nothing, url)


def test_rights_on_the_database_alone_are_enough(url: str) -> None:
    address = StoreAddress.parse(url)
    with connected(url) as cursor:
        cursor.execute(f"CREATE USER '{address.database}'@'%' IDENTIFIED BY 'plain'")
        cursor.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP "
            f"ON `{address.database}`.* TO '{address.database}'@'%'"
        )

    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        assert await load_one(store) == image_of(full_change())

    run(scenario, f"mysql://{address.database}:plain@127.0.0.1:{address.port}/{address.database}")


def test_a_writer_whose_row_was_swept_away_goes_on(url: str) -> None:
    """Rows of writers that were not seen for a month go when somebody opens the database: also one that is at work."""

    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        with connected(url) as cursor:
            cursor.execute("UPDATE writers SET seen = utc_timestamp(6) - INTERVAL 31 DAY")
        await (await MysqlStore.open(url)).close()
        with pytest.raises(Unavailable):
            await store.apply(commit(epochs, full_change()))
        await store.apply(commit(epochs, full_change()))
        assert await load_one(store) == image_of(full_change())

    run(scenario, url)


def test_closing_leaves_no_thread_and_no_connection(url: str) -> None:
    before = set(threading.enumerate())
    run(load_nothing, url)
    assert {thread for thread in threading.enumerate() if thread.name.startswith("penstock")} <= before
    name = StoreAddress.parse(url).database
    left = "SELECT count(*) FROM information_schema.processlist WHERE db = %s AND id <> connection_id()"
    asyncio.run(until(lambda: count(url, left, name) == 0))


def test_a_url_opens_this_engine_and_is_shown_without_its_password(url: str) -> None:
    async def main() -> None:
        for scheme in ("mysql", "mariadb"):
            store = await open_engine(url.replace("mysql://", f"{scheme}://"))
            assert isinstance(store, MysqlStore)
            await store.close()

    asyncio.run(main())
    address = StoreAddress.parse(url)
    assert label_of(url) == f"mysql://127.0.0.1:{address.port}/{address.database}"


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("10.5.22-MariaDB", False), ("10.6.0-MariaDB-log", True), ("11.4.2-MariaDB-ubu2404", True), ("8.0.18", False),
     ("8.0.19", True), ("8.4.3-cloud", True), ("5.7.44-log", False)],
)  # fmt: skip
def test_versions_that_are_too_old_are_refused(version: str, is_enough: bool) -> None:
    if is_enough:
        check_version(version, "here")
    else:
        with pytest.raises(InvalidArgument, match=version):
            check_version(version, "here")


SAFE = {"innodb_flush_log_at_trx_commit": "1"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, None),
        ({"innodb_doublewrite": "OFF"}, "innodb_doublewrite"),
        ({"innodb_doublewrite": "DETECT_AND_RECOVER"}, None),
        ({"log_bin": "ON", "sync_binlog": "0"}, "sync_binlog"),
        ({"log_bin": "OFF", "sync_binlog": "0"}, None),
        ({"log_bin": "ON", "sync_binlog": "1", "binlog_format": "STATEMENT"}, "binlog_format"),
        ({"wsrep_on": "ON"}, "wsrep_on"),
        ({"group_replication_single_primary_mode": "OFF"}, "group_replication_single_primary_mode"),
        ({"innodb_flush_method": "nosync"}, "innodb_flush_method"),
    ],
)
def test_what_counts_as_a_setting_that_loses(settings: dict[str, str], named: str | None) -> None:
    assert [name for name, _, _ in losses(SAFE | settings)] == ([named] if named else [])


# Several nodes -------------------------------------------------------------------------------------------


def test_membership_does_not_wait_for_a_commit_under_way(url: str) -> None:
    """A long commit delays no heartbeat; its slots are left for the next time, and all others are taken."""

    async def scenario(store: MysqlStore) -> None:
        slot = LANE % 64
        slow = (await store.join(Member("slow", "", "1", 1))).incarnation
        epochs = await store.take(range(64), slow)
        async with opened(url) as other:
            new = (await other.join(Member("new", "", "1", 600_000))).incarnation
            with connected(url) as blocker:
                blocker.execute("LOCK TABLES batches READ")
                write = asyncio.ensure_future(store.apply(commit({slot: epochs[slot]}, full_change())))
                await until(waits_for_a_lock(url))
                async with asyncio.timeout(10):
                    assert (await store.heartbeat(slow)).is_member
                    await until_stale(other, slow)
                    taken = await other.take(range(64), new)
                    assert set(taken) == set(range(64)) - {slot}
                    assert await other.take([slot], new) == {}
                assert not write.done()
                blocker.execute("UNLOCK TABLES")
            await write
            assert (await other.take([slot], new))[slot] > epochs[slot]
            assert await load_one(other) == image_of(full_change())
            with pytest.raises(Fenced, match=f"slot {slot} is at epoch"):
                await store.apply(commit({slot: epochs[slot]}, change(**NEXT)))

    run(scenario, url)


def test_deletions_from_the_catalog_are_forgotten_in_the_end(url: str) -> None:
    async def scenario(store: MysqlStore) -> None:
        epochs = await own_all(store)
        rows = [CatalogRow("queue", id, 0, "default", f"q{id}", b"") for id in (1, 2, 3)]
        await store.apply(commit(epochs, catalog=rows))
        before = (await store.catalog_since(0)).version
        await store.apply(commit(epochs, catalog_deleted=[("queue", 1)]))
        changes = await store.catalog_since(before)
        assert (changes.deleted, changes.is_complete) == ([rows[0]], False)
        with connected(url) as cursor:
            cursor.execute("UPDATE catalog_deleted SET deleted_ms = deleted_ms - 3600001")
        await store.apply(commit(epochs, catalog_deleted=[("queue", 2)]))
        changes = await store.catalog_since(before)
        assert (changes.rows, changes.is_complete) == ([rows[2]], True)
        assert count(url, "SELECT count(*) FROM catalog_deleted") == 1
        changes = await store.catalog_since(changes.version - 1)
        assert (changes.deleted, changes.is_complete) == ([rows[1]], False)

    run(scenario, url)


def test_errors_are_told_apart_where_django_uses_the_driver_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyMySQL in the place of MySQLdb is loaded in parts a second time, and its name leads to those."""
    monkeypatch.setattr(pymysql, "err", type("Copy", (), {"MySQLError": type("MySQLError", (Exception,), {})}))
    failure = translated(pymysql.OperationalError(1213, "Deadlock found"), "here")
    assert isinstance(failure, Unavailable)
    assert "error 1213" in str(failure)
    assert failure.is_refused
