"""What only the SQLite engine must prove: its errors, its schema, its query plans, its log and its threads."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import shutil
import sqlite3
import threading
from collections.abc import Awaitable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.model.errors import Fenced, InvalidArgument, PenstockError, StoreCorrupt, Unavailable
from penstock.model.rows import Commit, GroupRow, LaneChange, LaneImage, LeaseRow, OutboxRow
from penstock.store.sqlite import file as sqlite_file
from penstock.store.sqlite import index, threads
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.statements import GROUP_DELETES, LANE_DELETES, SQL
from tests.conformance.samples import (
    CATALOG,
    EVERYTHING,
    LANE,
    OUTBOX,
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
from tests.conformance.sqlite.rig import opened, use


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "penstock.db"


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """As another program would: over a connection of its own. Returns the rows of the last statement."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def nothing(store: SqliteStore) -> Awaitable[None]:
    return asyncio.sleep(0)


# Tables that cannot be written -------------------------------------------------------------------------------

TABLES = ["lanes", "batches", "groups", "leases", "waiting", "dead", "dedup", "catalog", "outbox"]


@pytest.mark.parametrize("verdict", ["ABORT", "FAIL", "ROLLBACK"])
@pytest.mark.parametrize("table", TABLES)
def test_commits_wait_in_the_log_as_a_whole_for_tables_that_cannot_be_written(
    path: Path, table: str, verdict: str
) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        before = full_change(LANE + 64)
        await store.apply(commit(epochs, before))
        assert await load_one(store, LANE + 64) == image_of(before)
        run_sql(path, f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN SELECT RAISE({verdict}, 'no such luck'); END")
        await store.apply(commit(epochs, full_change(), lanes_deleted=[LANE + 64], catalog=CATALOG, outbox=OUTBOX))
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"penstock.db: no such luck \(SQLITE_CONSTRAINT_TRIGGER\)"):
                await load_one(store)
        # What needs no table is there.
        assert await all_batches(store) == batches(3, 4)
        assert run_sql(path, "SELECT lane FROM lanes") == [(LANE + 64,)]
        assert run_sql(path, "SELECT count(*) FROM catalog") == [(0,)]
        await store.apply(commit(epochs, change(end=9)))
        run_sql(path, "DROP TRIGGER t")
        assert await load_one(store) == msgspec.structs.replace(image_of(full_change()), end=9, bytes_end=0)
        assert await load_one(store, LANE + 64) == LaneImage(LANE + 64)
        assert (await store.catalog(), await store.outbox(0, 10)) == (CATALOG, OUTBOX)

    use(path, scenario)


def test_commits_fail_when_the_tables_are_too_far_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "INDEX_ROWS", 10)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        run_sql(path, "CREATE TRIGGER t AFTER INSERT ON lanes BEGIN SELECT RAISE(ABORT, 'no such luck'); END")
        taken = 0
        failed = None
        while failed is None and taken < 1000:
            try:
                await store.apply(commit(epochs, change(batches=batches(1, base=taken), first=0)))
                taken += 1
            except Unavailable as error:
                failed = error
        assert "no such luck" in str(failed)
        assert 30 < taken < 100
        run_sql(path, "DROP TRIGGER t")
        await store.apply(commit(epochs, change(batches=batches(1, base=taken), first=0)))
        assert (await load_one(store)).end == taken + 1
        assert len(await all_batches(store)) == taken + 1

    use(path, scenario)


@pytest.mark.parametrize(
    "wrong",
    [LeaseRow(1, 1 << 63, 0, "", b""), LeaseRow(1, 1, 0, "\ud800", b""), LeaseRow(1, 1, 0, object(), b"")],  # type: ignore[arg-type]
)
def test_a_value_that_sqlite_cannot_keep_is_the_callers_mistake(path: Path, wrong: LeaseRow) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        with pytest.raises(InvalidArgument, match="cannot keep"):
            await store.apply(commit(epochs, change(groups=[GroupRow(1, 1, 1)], leases=[wrong])))
        assert await load_one(store) == LaneImage(LANE)
        await store.apply(commit(epochs, full_change()))

    use(path, scenario)


# The disk ------------------------------------------------------------------------------------------------------

BIG = batches(*[1] * 40, body=b"x" * 100_000)


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Writes past this size fail, as on a disk that has no more room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_is_unavailable_and_the_store_works_again_afterwards(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        with files_at_most(1 << 20):
            for _ in range(2):
                with pytest.raises(Unavailable, match="File too large"):
                    await store.apply(commit(epochs, change(batches=BIG)))
                assert await load_one(store) == image_of(full_change())
        await store.apply(commit(epochs, change(LANE + 64, batches=BIG)))
        assert await all_batches(store, LANE + 64) == BIG
        assert await all_batches(store) == batches(3, 4)

    use(path, scenario)


def move(old: Path, new: Path) -> None:
    assert not new.exists()
    old.rename(new)


def test_a_store_whose_file_is_gone_takes_no_commit_and_makes_no_new_file(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await load_one(store)
        moved = path.with_name("moved.db")
        move(path, moved)
        await asyncio.sleep(2 * index.LOOK_SECONDS)  # it has just looked
        for _ in range(2):
            with pytest.raises(Unavailable, match="moved, deleted or replaced"):
                await store.apply(commit(epochs, full_change()))
        store._readers.close_connections()
        with pytest.raises(Unavailable, match="unable to open"):
            await load_one(store)
        move(moved, path)
        await store.apply(commit(epochs, full_change()))
        assert await load_one(store) == image_of(full_change())

    use(path, scenario)


# Other processes -----------------------------------------------------------------------------------------------


def test_a_locked_file_keeps_readers_waiting_and_not_commits(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await store.apply(commit(epochs, full_change()))
            assert await all_batches(store) == batches(3, 4)
            with pytest.raises(Unavailable, match=r"database is locked \(SQLITE_BUSY\)"):
                await load_one(store)
        assert await load_one(store) == image_of(full_change())

    use(path, scenario, busy_ms=10)


def test_a_reader_waits_for_a_short_lock(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await store.apply(commit(epochs, full_change()))
            waiting = asyncio.ensure_future(load_one(store))
            assert await load_one(store, LANE + 1) == LaneImage(LANE + 1)
            assert not waiting.done()
            other.execute("COMMIT")
            assert await waiting == image_of(full_change())

    use(path, scenario, busy_ms=60_000)


def test_a_second_store_on_the_same_file_fences_the_first(path: Path) -> None:
    async def scenario(first: SqliteStore) -> None:
        old = await own_all(first, "first")
        await first.apply(commit(old, full_change()))
        async with opened(path) as second:
            new = await own_all(second, "second")
            assert await load_one(second) == image_of(full_change())
            with pytest.raises(Fenced, match="second"):
                await first.apply(commit(old, change(end=99)))
            await second.apply(commit(new, change(end=50, first=1)))
            assert (await load_one(first)).end == 50

    use(path, scenario)


class LockedTwice:
    """Stands in for a connection: SQLite says at once that the file is locked, and the third time it is not."""

    asked = 0

    def execute(self, statement: str) -> None:
        self.asked += 1
        if self.asked < 3:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error


def test_opening_waits_while_another_process_turns_the_log_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("penstock.store.sqlite.file.time.sleep", waits.append)
    connection: Any = LockedTwice()
    sqlite_file.File(path, 60_000)._enable_wal(connection)
    assert len(waits) == 2
    with pytest.raises(sqlite3.OperationalError):
        sqlite_file.File(path, -1)._enable_wal(LockedTwice())  # type: ignore[arg-type]
    assert len(waits) == 2


def test_stores_that_make_the_same_file_at_once_all_find_it_whole(path: Path) -> None:
    async def main() -> None:
        stores = await asyncio.gather(*(SqliteStore.open(path) for _ in range(8)))
        epochs = [(await store.acquire([1], "me"))[1] for store in stores]
        assert epochs == list(range(1, 9))
        for store in stores:
            await store.close()

    asyncio.run(main())


def test_an_answer_comes_from_one_commit_though_others_follow_meanwhile(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        await store.apply(commit(await own_all(store), full_change()))
        await load_one(store)
        seen: list[str] = []

        def commit_elsewhere(statement: str) -> None:
            if "FROM groups" in statement and not seen:
                run_sql(path, "UPDATE lanes SET end = 99", "UPDATE dead SET attempts = 99", "DELETE FROM waiting")
                seen.append(statement)

        for connection in store._readers._idle:
            connection.set_trace_callback(commit_elsewhere)
        assert await load_one(store) == image_of(full_change())
        assert seen
        assert (await load_one(store)).end == 99

    use(path, scenario)


# Opening -------------------------------------------------------------------------------------------------------


def open_fails(path: Path, error: type[PenstockError], words: str) -> None:
    before = set(threading.enumerate())
    with pytest.raises(error, match=words) as raised:
        use(path, nothing)
    assert str(path) in str(raised.value)
    assert set(threading.enumerate()) <= before  # those of an earlier test may end meanwhile


def test_the_folder_is_made(tmp_path: Path) -> None:
    use(tmp_path / "a" / "b" / "c.db", nothing)
    assert (tmp_path / "a" / "b" / "c.db").is_file()


@pytest.mark.parametrize("name", ["sp ace.db", "what?mode=ro#x.db", "100%25.db", "ünï'🐇.db", ":memory:", "file:x.db"])
def test_a_path_is_a_path_whatever_is_in_it(tmp_path: Path, name: str) -> None:
    use(tmp_path / name, nothing)
    assert (tmp_path / name).is_file()


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    open_fails(tmp_path, InvalidArgument, "is a folder")


def test_a_file_in_the_way_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    open_fails(tmp_path / "file" / "deeper" / "x.db", Unavailable, "Not a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    open_fails(tmp_path / "x.db", Unavailable, "unable to open")
    open_fails(tmp_path / "new" / "x.db", Unavailable, "Permission denied")
    tmp_path.chmod(0o700)


def test_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)
    open_fails(path, StoreCorrupt, "not a database")
    assert path.read_bytes() == b"no database at all" * 1000


def test_someone_elses_database_is_refused_and_left_alone(path: Path) -> None:
    run_sql(path, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    open_fails(path, StoreCorrupt, "did not make")
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_cannot_be_opened_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sqlite_file, "make_folder", refuse)
    open_fails(tmp_path / "x.db", Unavailable, "Permission denied")
    assert list(tmp_path.iterdir()) == []


def test_someone_elses_log_is_left_alone_too(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as theirs:
        theirs.execute("PRAGMA journal_mode = WAL")
        theirs.execute("CREATE TABLE theirs (x)")
        before = log_bytes(path)
        assert before > 0
        open_fails(path, StoreCorrupt, "did not make")
        assert log_bytes(path) == before


def test_a_file_that_can_only_be_read_is_refused_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect

    def connect_to_read(address: str, **options: Any) -> Any:
        return connect(address.replace("mode=rwc", "mode=ro"), **options)

    use(path, nothing)
    monkeypatch.setattr(sqlite3, "connect", connect_to_read)
    open_fails(path, Unavailable, "readonly")


def test_a_damaged_file_is_corrupt(path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        await store.apply(commit(await own_all(store), change(batches=batches(*[1] * 400, meta=b"m" * 3000))))

    async def check(store: SqliteStore) -> None:
        # A lane without batches loads: only what is damaged is refused.
        assert (await load_one(store, LANE + 1)).end == 0
        with pytest.raises(StoreCorrupt, match="malformed"):
            await load_one(store)
        with pytest.raises(StoreCorrupt, match="malformed"):
            await store.read(LANE, 0, EVERYTHING, EVERYTHING)

    use(path, write)
    damage(path, first_page=20)
    use(path, check)
    damage(path, first_page=1)
    open_fails(path, StoreCorrupt, "malformed")


def damage(path: Path, first_page: int) -> None:
    content = bytearray(path.read_bytes())
    start = first_page * sqlite_file.PAGE_BYTES
    content[start:] = b"\xa5" * (len(content) - start)
    path.write_bytes(content)


def test_rows_that_cannot_be_understood_are_corrupt(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        await store.apply(commit(await own_all(store), full_change()))
        await load_one(store)
        run_sql(path, "UPDATE leases SET consumer = CAST(x'ff' AS TEXT)")
        with pytest.raises(StoreCorrupt, match="decode"):
            await load_one(store)
        run_sql(path, "DROP TABLE leases")
        with pytest.raises(StoreCorrupt, match="no such table"):
            await load_one(store)

    use(path, scenario)


@pytest.mark.parametrize("value", ["'text'", "1.5"])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("lanes", "first"),
        ("lanes", "bytes_end"),
        ("groups", "next"),
        ("leases", "deadline_ms"),
        ("waiting", "entries"),
        ("dead", "attempts"),
        ("dedup", "expires_ms"),
        ("batches", "published_ms"),
        ("batches", "size"),
        ("batches", "position"),
        ("batches", "meta"),
        ("catalog", "document"),
        ("outbox", "document"),
        ("segments", "live_bytes"),
        ("slots", "epoch"),
    ],
)
def test_a_value_that_no_row_can_have_is_corrupt(path: Path, table: str, column: str, value: str) -> None:
    """As a damaged page gives it: never an error that says nothing of the store."""

    async def write(store: SqliteStore) -> None:
        await store.apply(
            Commit(epochs=await own_all(store), lanes=[full_change()], catalog=CATALOG, outbox=OUTBOX, traces=TRACES)
        )
        await load_one(store)

    async def use_it(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.catalog()
        await store.outbox(0, 10)
        await load_one(store)
        await store.heads(LANE, 0, 10, EVERYTHING)
        await store.read(LANE, 0, EVERYTHING, EVERYTHING)
        await store.find_time(LANE, 1)
        await store.apply(commit(epochs, change(batches=batches(1, base=7), first=0)))
        await load_one(store)

    use(path, write)
    run_sql(
        path,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(replace(sql, ') STRICT, ', ') '), ') STRICT', ')')",
    )
    run_sql(path, f"UPDATE {table} SET {column} = {value}")
    with pytest.raises(StoreCorrupt, match="store repair") as error:
        use(path, use_it)
    assert str(path) in str(error.value)


# Schema --------------------------------------------------------------------------------------------------------


def test_a_new_file_is_of_the_newest_version(path: Path) -> None:
    use(path, nothing)
    assert run_sql(path, "PRAGMA user_version") == [(len(sqlite_file.MIGRATIONS),)]
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]


NEXT = (*sqlite_file.MIGRATIONS, ("ALTER TABLE slots ADD COLUMN note TEXT", "UPDATE slots SET note = owner"))


def test_an_older_file_is_migrated_with_its_rows(path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        await store.apply(commit(await own_all(store), full_change()))

    async def migrate() -> None:
        store = await SqliteStore.open(path, migrations=NEXT)
        assert await load_one(store) == image_of(full_change())
        await store.close()

    use(path, write)
    asyncio.run(migrate())
    assert run_sql(path, "SELECT note FROM slots LIMIT 1") == [("me",)]
    assert run_sql(path, "PRAGMA user_version") == [(len(NEXT),)]
    asyncio.run(migrate())


OLD_ROWS = (
    "INSERT INTO lanes VALUES (5, 5, 0, 7, 10)",
    "INSERT INTO batches VALUES (5, 0, 3, 100, 5, 5, x'6d', CAST('body' AS BLOB))",
    "INSERT INTO batches VALUES (5, 3, 4, 110, 10, 5, x'6d', CAST('body' AS BLOB))",
    "INSERT INTO slots VALUES (5, 7, 'someone')",
    "INSERT INTO outbox VALUES (1, 70, 3, x'64')",
)


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_from_before_the_log_keeps_its_bodies_and_takes_new_ones(path: Path, version: int) -> None:
    run_sql(path, "PRAGMA page_size = 8192", "PRAGMA journal_mode = WAL")
    for statements in sqlite_file.MIGRATIONS[:version]:
        run_sql(path, *statements)
    run_sql(path, f"PRAGMA user_version = {version}", *OLD_ROWS)

    async def use_it(store: SqliteStore) -> None:
        assert await all_batches(store) == batches(3, 4)
        assert await store.outbox(0, 10) == [OutboxRow(1, 70, 3, b"d", slot=6)]
        epochs = await own_all(store)
        assert epochs[5] == 8
        new = batches(2, base=7, body=b"in the log")
        await store.apply(commit(epochs, change(batches=new, first=0), traces=TRACES))
        assert await all_batches(store) == [*batches(3, 4), *new]
        assert await store.heads(LANE, 0, 10, 1000) == [row.head() for row in (*batches(3, 4), *new)]
        assert await store.find_trace("default", "t", 10) == TRACES

    async def use_it_again(store: SqliteStore) -> None:
        epochs = await own_all(store)
        await store.apply(commit(epochs, change(first=3, end=9, bytes_end=20, trim_to=3)))
        assert [row.base for row in await all_batches(store)] == [3, 7]

    use(path, use_it)
    use(path, use_it_again)
    assert run_sql(path, "SELECT base, segment, length(body) FROM batches") == [(3, None, 4), (7, 1, 0)]
    assert run_sql(path, "SELECT segment, live_bytes FROM segments") == [(1, 10)]


def test_a_migration_that_fails_leaves_the_older_version(path: Path) -> None:
    broken = (*NEXT, ("CREATE TABLE more (x INTEGER)", "CREATE TABLE more (x INTEGER)"))
    with pytest.raises(PenstockError, match="already exists"):
        asyncio.run(SqliteStore.open(path, migrations=broken))
    assert run_sql(path, "PRAGMA user_version") == [(len(NEXT),)]
    assert run_sql(path, "SELECT name FROM sqlite_schema WHERE name = 'more'") == []


def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    use(path, nothing)
    run_sql(path, f"PRAGMA user_version = {len(sqlite_file.MIGRATIONS) + 1}")
    before = path.read_bytes()
    open_fails(path, StoreCorrupt, "newer Penstock")
    assert path.read_bytes() == before


# Query plans ---------------------------------------------------------------------------------------------------

STATEMENTS = [
    *((name, SQL[name]) for name in SQL.names),
    *(("lane_deletes", statement) for statement in LANE_DELETES),
    *(("group_deletes", statement) for statement in GROUP_DELETES),
]


def plan_of(path: Path, statement: str) -> list[str]:
    numbers = [int(number) for number in re.findall(r"\?(\d)", statement)]
    values = ["[]"] * (max(numbers) if numbers else statement.count("?"))
    with closing(sqlite3.connect(path)) as connection:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.mark.parametrize(("name", "statement"), STATEMENTS, ids=lambda value: value if value.isidentifier() else "")
def test_no_statement_walks_a_table_or_sorts(path: Path, name: str, statement: str) -> None:
    # The catalog is read whole. What is scanned besides: lists that the caller gave, and rows found by a seek.
    fine = {"SCAN json_each", "SCAN wanted", "SCAN used", "SCAN pragma", "SCAN sqlite_master"}
    if name == "catalog":
        fine.add("SCAN catalog")
    if name in ("log", "put_turn", "put_position", "count_sync", "put_store_id"):
        fine.add("SCAN log")  # it has one row
    if name == "segments":
        fine.add("SCAN segments")  # read once, when a store takes its turn
    # As many rows as there are nodes and slots.
    if name == "drop_trimmed":
        fine.add("SCAN batches")  # once in a repair
    fine |= {"SCAN nodes", "SCAN slots", "SCAN cluster", "SCAN counters"}
    use(path, nothing)
    plan = plan_of(path, statement)
    for step in plan:
        assert "TEMP B-TREE" not in step
        assert not step.startswith("SCAN") or any(step.startswith(known) for known in fine), plan


@pytest.mark.parametrize(
    ("statement", "bounds"),
    [
        (SQL.trim, "(lane=? AND base<?)"),
        (SQL.bases, "(lane=? AND base>? AND base<?)"),
        (SQL.live_in_segment, "(segment=?)"),
        (SQL.sizes, "(lane=? AND base>? AND base<?)"),
        (SQL.batches, "(lane=? AND base>? AND base<?)"),
        (SQL.heads, "(lane=? AND base>?)"),
        (SQL.batch_at, "(lane=? AND base<?)"),
        (SQL.delete_expired_dedup, "(lane=? AND expires_ms<?)"),
        (SQL.find_dedup, "(lane=? AND key=?)"),
        (SQL.outbox, "(rowid>?)"),
        (SQL.find_trace, "(namespace=? AND trace_id=?)"),
        (SQL.delete_expired_traces, "(at_ms<?)"),
    ],
)
def test_ranges_are_bounded_by_the_index(path: Path, statement: str, bounds: str) -> None:
    use(path, nothing)
    assert any(bounds in step for step in plan_of(path, statement))


# The log and the threads ---------------------------------------------------------------------------------------


def log_bytes(path: Path) -> int:
    log = path.with_name(path.name + "-wal")
    return log.stat().st_size if log.exists() else 0


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> int:
    # Each commit goes into the tables by itself, with what is large of it.
    monkeypatch.setattr(index, "BEHIND_MOST", 0)
    monkeypatch.setattr(threads, "CHECKPOINT_BYTES", 1 << 20)
    monkeypatch.setattr(threads, "WAL_BYTES_MOST", 4 << 20)
    return 4 << 20


async def write_some(store: SqliteStore, epochs: dict[int, int], commits: int, start: int = 0) -> None:
    for number in range(start, start + commits):
        rows = batches(1, base=number, meta=bytes(200_000))
        await store.apply(commit(epochs, change(batches=rows, first=0, trim_to=number - 20)))


def test_the_log_stays_short_while_reads_never_pause(
    path: Path, small_log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SQLite itself does not wait at all: it must find no read under way.
    monkeypatch.setattr(sqlite_file, "RESTART_BUSY_MS", 0)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        done = False

        async def read_on() -> None:
            while not done:
                await store.read(LANE, 0, EVERYTHING, EVERYTHING)

        readers = [asyncio.ensure_future(read_on()) for _ in range(4)]
        await write_some(store, epochs, 200)
        done = True
        await asyncio.gather(*readers)
        # 40 MB were written. One commit may come between reaching the limit and starting afresh.
        assert log_bytes(path) < 2 * small_log

    use(path, scenario)


def test_trimmed_room_is_used_again(path: Path, small_log: int) -> None:
    async def scenario(store: SqliteStore) -> None:
        await write_some(store, await own_all(store), 200)

    use(path, scenario)
    assert path.stat().st_size < 60 * 200_000


def test_a_long_read_elsewhere_does_not_stop_commits(
    path: Path, small_log: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "RESTART_BUSY_MS", 1)

    async def scenario(store: SqliteStore) -> None:
        epochs = await own_all(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT * FROM lanes").fetchall()
            await write_some(store, epochs, 60)
            grown = log_bytes(path)
            assert grown > 2 * small_log
            assert "another process reads" in caplog.text
        await write_some(store, epochs, 160, start=60)
        # Another 40 MB, of which the log keeps no more than before plus what comes until its next fresh start.
        assert log_bytes(path) < grown + 2 * small_log

    with caplog.at_level(logging.WARNING):
        use(path, scenario)


def test_close_leaves_one_whole_file_and_no_thread(path: Path) -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        store = await SqliteStore.open(path)
        await write_some(store, await own_all(store), 3)
        await load_one(store)
        with closing(sqlite3.connect(path)) as other:
            other.execute("SELECT * FROM lanes").fetchall()
            assert set(threading.enumerate()) - before
            await store.close()
            # Seen from here: the threads of a store that nobody holds would end by themselves, and the log would
            # go with the last connection.
            assert set(threading.enumerate()) <= before  # those of an earlier test may end meanwhile
            assert log_bytes(path) == 0

    asyncio.run(main())
    shutil.copy(path, path.with_name("copy.db"))
    shutil.copytree(f"{path}-log", f"{path.with_name('copy.db')}-log")

    async def check(store: SqliteStore) -> None:
        assert (await load_one(store)).end == 3
        assert len(await all_batches(store)) == 3

    use(path.with_name("copy.db"), check)


def test_a_restart_of_the_log_that_comes_behind_close_leaves_nothing_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WAL_BYTES_MOST", 0)
    before = set(threading.enumerate())

    async def main() -> None:
        store = await SqliteStore.open(path)
        epochs = await own_all(store)
        last = asyncio.ensure_future(write_some(store, epochs, 1))
        await asyncio.sleep(0)
        await store.close()
        await last
        assert store._writer._idle == []

    asyncio.run(main())
    assert set(threading.enumerate()) <= before  # those of an earlier test may end meanwhile


def test_the_settings_of_the_file(path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        (connection,) = store._writer._idle
        settings = ("synchronous", "journal_mode", "page_size", "secure_delete", "auto_vacuum", "foreign_keys")
        values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
        assert values == [1, "wal", sqlite_file.PAGE_BYTES, 0, 0, 0]

    use(path, scenario)


async def applied(store: SqliteStore, commit: Commit) -> None:
    await store.apply(commit)


def test_a_store_can_be_used_from_one_event_loop_after_another(path: Path) -> None:
    store = asyncio.run(SqliteStore.open(path))
    epochs = asyncio.run(own_all(store))
    asyncio.run(applied(store, Commit(epochs=epochs, lanes=[LaneChange(LANE, 0, 1, 1)])))
    assert asyncio.run(load_one(store)).end == 1
    asyncio.run(store.close())
