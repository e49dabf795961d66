"""What only the PostgreSQL engine promises: lost answers, schemas, several processes, text, settings that lose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import penstock
from penstock import Message, encode
from penstock.model.errors import Fenced, InvalidArgument, PenstockError, Unavailable
from penstock.model.rows import CatalogRow, Commit, DeadRow, DedupRow, GroupRow, Member, OutboxRow
from penstock.store.postgres import schema as sql
from penstock.store.postgres import vacuum
from penstock.store.postgres.apply import ARGUMENTS, commit_values, kept, restored
from penstock.store.postgres.engine import PostgresStore
from penstock.store.postgres.pool import is_closed
from tests.conformance.samples import LANE, batches, change, commit, full_change, image_of, load_one, own_all
from tests.databases.postgres import PostgresServer, schema_url, shared_url
from tests.databases.proxy import Proxy


@pytest.fixture
def url(tmp_path: Path) -> str:
    return schema_url(tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that a test may kill."""
    made = PostgresServer()
    yield made
    made.close()


async def backends(url: str, schema: str, end: bool = False, waits: bool = False) -> int:
    """Count the connections whose last statement names a schema. `waits`: those at a lock only. `end`: end them too."""
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        what = "pg_terminate_backend(pid)" if end else "pid"
        rows = await connection.fetch(
            f"SELECT {what} FROM pg_stat_activity WHERE query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid() "
            "AND state IN ('active', 'idle') AND (NOT $2 OR wait_event_type = 'Lock')",
            schema,
            waits,
        )
        return len(rows)
    finally:
        await connection.close()


async def under_way(url: str) -> None:
    """Wait until a commit holds its slots and stands at the lock that a test has taken on its rows."""
    deadline = asyncio.get_running_loop().time() + 30
    while not await backends(url, f'"{schema_of(url)}".apply_commit', waits=True):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


def schema_of(url: str) -> str:
    return url.partition("schema=")[2]


# Closing -------------------------------------------------------------------------------------------------


def test_close_waits_for_a_read_that_opens_a_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        await store.apply(commit(await own_all(store), full_change()))
        taken = await store._pool._acquire()
        connect, asked, may_go_on = asyncpg.Pool._get_new_connection, asyncio.Event(), asyncio.Event()

        async def connect_late(pool: asyncpg.Pool[Any]) -> Any:
            asked.set()
            await may_go_on.wait()
            return await connect(pool)

        monkeypatch.setattr(asyncpg.Pool, "_get_new_connection", connect_late)
        reading = asyncio.ensure_future(store.catalog())
        await asked.wait()
        closing = asyncio.ensure_future(store.close())
        asyncio.get_running_loop().call_later(0.2, may_go_on.set)  # long after a pool that does not wait is closing
        assert await reading == []
        await store._pool._release(taken)
        await closing

    asyncio.run(scenario())


# An answer that was lost ---------------------------------------------------------------------------------


def test_a_commit_whose_connection_was_cut_is_decided_before_anything_else_is_read(url: str) -> None:
    """The commit is held up inside of the database; its connection is cut; then the lock is let go."""

    async def scenario() -> None:
        store = await PostgresStore.open(url)
        blocker = await asyncpg.connect(url.partition("?")[0])
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, full_change()))
            before = await load_one(store)
            holding = blocker.transaction()
            await holding.start()
            await blocker.execute(f"LOCK TABLE {schema_of(url)}.batches IN SHARE MODE")
            write = asyncio.ensure_future(
                store.apply(commit(epochs, change(batches=batches(1, base=7), first=0, end=8)))
            )
            await under_way(url)
            await backends(url, f'"{schema_of(url)}".apply_commit', end=True)
            with pytest.raises(Unavailable):
                await write
            await holding.rollback()
            image = await load_one(store)
            assert image == before
            # And the next one is taken, under the new generation.
            await store.apply(commit(epochs, change(batches=batches(1, base=7), first=0, end=8)))
            assert (await load_one(store)).end == 8
        finally:
            await blocker.close()
            await store.close()

    asyncio.run(scenario())


def test_a_connection_that_is_cut_inside_of_a_commit(url: str) -> None:
    """As above, but the database does not know of the cut: what it holds up may still come into force."""
    port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
    proxy = Proxy(port)

    async def scenario() -> None:
        store = await PostgresStore.open(url.replace(f":{port}/", f":{proxy.port}/"))
        blocker = await asyncpg.connect(url.partition("?")[0])
        next_one: dict[str, Any] = {"batches": batches(1, base=7), "first": 0, "end": 8}
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, full_change()))
            before = await load_one(store)
            holding = blocker.transaction()
            await holding.start()
            await blocker.execute(f"LOCK TABLE {schema_of(url)}.batches IN SHARE MODE")
            write = asyncio.ensure_future(store.apply(commit(epochs, change(**next_one))))
            await under_way(url)
            proxy.cut()
            with pytest.raises(Unavailable):
                await write
            reading = asyncio.ensure_future(load_one(store))
            done, _ = await asyncio.wait([reading], timeout=0.3)
            assert not done, "it was read while the commit might still come into force"
            await holding.rollback()
            image = await reading
            assert image.end in (before.end, 8)
            assert await load_one(store) == image
            await store.apply(commit(epochs, change(**next_one)))
            assert (await load_one(store)).end == 8
        finally:
            await blocker.close()
            await store.close()

    try:
        asyncio.run(scenario())
    finally:
        proxy.close()


def test_a_commit_that_arrives_after_it_was_given_up_is_refused(url: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        try:
            epochs = await own_all(store)
            late = store._writer.generation
            store._writer._is_unsure = True  # as after a lost answer
            await load_one(store)
            assert store._writer.generation == late + 1
            store._writer.generation = late
            with pytest.raises(Unavailable, match="given up"):
                await store.apply(commit(epochs, full_change()))
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_commit_reads_no_table_as_a_whole(url: str) -> None:
    """A plan is made while the tables are empty and kept while they grow."""

    async def scenario() -> None:
        store = await PostgresStore.open(url)
        connection = await asyncpg.connect(url.partition("?")[0])
        try:
            epochs = await own_all(store)
            backlog = change(batches=batches(*[4] * 300))
            await store.apply(commit(epochs, full_change()))
            await store.apply(commit(epochs, backlog))
            later = full_change()
            later.batches = []
            later.leases_deleted, later.waiting_deleted, later.dead_deleted = [(1, 10)], [(1, 0)], [(1, 2)]
            later.trim_to, later.dedup_expired_ms = 4, 1000
            made = commit(epochs, later)
            values = (store._writer.name, store._writer.generation, list(made.epochs), list(made.epochs.values()))
            apply = sql.queries_in(schema_of(url)).apply
            async with connection.transaction():
                await connection.fetch(apply, *values, *commit_values(made))
                read = await connection.fetch(
                    "SELECT relname, seq_scan, idx_scan, idx_tup_fetch FROM pg_stat_xact_user_tables "
                    "WHERE schemaname = $1",
                    schema_of(url),
                )
                settings = await connection.fetchval(
                    "SELECT proconfig FROM pg_proc WHERE proname = 'apply_commit' AND pronamespace = $1::regnamespace",
                    schema_of(url),
                )
            assert "jit=off" in settings, "in a large table each commit would be compiled, for milliseconds"
            assert "plan_cache_mode=force_generic_plan" in settings, "each commit would plan its fence anew"
            scans = {name: values for name, *values in read}
            wanted = ("lanes", "groups", "leases", "waiting", "dead", "dedup", "batches")
            assert {name: scans[name][0] for name in wanted} == dict.fromkeys(wanted, 0)
            assert all(by_index > 0 for _, by_index, _ in (scans[name] for name in wanted))
            assert scans["batches"][2] < 10, "only the batches that go are looked at, not all of the lane"
        finally:
            await connection.close()
            await store.close()

    asyncio.run(scenario())


def test_what_every_commit_updates_stays_out_of_the_indexes(url: str) -> None:
    """Lanes, groups and the mark of a node's last commit: each new version is put beside the old one."""

    async def scenario() -> None:
        store = await PostgresStore.open(url)
        connection = await asyncpg.connect(url.partition("?")[0])
        try:
            epochs = await own_all(store)
            apply = sql.queries_in(schema_of(url)).apply
            async with connection.transaction():
                for number in range(4):
                    marked = change(groups=[GroupRow(1, number, 0)], dedup=[DedupRow(b"mark", number, 1000)])
                    made = commit(epochs, marked)
                    fence = (
                        store._writer.name,
                        store._writer.generation,
                        list(made.epochs),
                        list(made.epochs.values()),
                    )
                    await connection.fetch(apply, *fence, *commit_values(made))
                read = await connection.fetch(
                    "SELECT relname, n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE schemaname = $1",
                    schema_of(url),
                )
            updates = {name: tuple(values) for name, *values in read}
            assert [updates[name] for name in ("lanes", "groups", "dedup")] == [(3, 3)] * 3
        finally:
            await connection.close()
            await store.close()

    asyncio.run(scenario())


def test_the_server_is_killed_and_comes_back(server: PostgresServer) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(f"{server.url}?schema=killed", seconds=5.0)
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, full_change()))
            server.stop(9)
            with pytest.raises(Unavailable):
                await store.apply(commit(epochs, change(batches=batches(1, base=7), first=0, end=8)))
            with pytest.raises(Unavailable):
                await load_one(store)
            await asyncio.to_thread(server.start)
            assert await load_one(store) == image_of(full_change())
            await store.apply(commit(epochs, change(batches=batches(1, base=7), first=0, end=8)))
            assert (await load_one(store)).end == 8
        finally:
            await store.close()

    asyncio.run(scenario())


# Several processes ---------------------------------------------------------------------------------------


def test_who_acquires_waits_for_the_commit_under_way_and_fences_the_next(url: str) -> None:
    async def scenario() -> None:
        first, second = await PostgresStore.open(url), await PostgresStore.open(url)
        blocker = await asyncpg.connect(url.partition("?")[0])
        try:
            epochs = await own_all(first)
            holding = blocker.transaction()
            await holding.start()
            await blocker.execute(f"LOCK TABLE {schema_of(url)}.batches IN SHARE MODE")
            write = asyncio.ensure_future(first.apply(commit(epochs, full_change())))
            await under_way(url)
            taking = asyncio.ensure_future(second.acquire([LANE], "other"))
            done, _ = await asyncio.wait([taking], timeout=0.3)
            assert not done, "the slot was taken over under a commit"
            await holding.rollback()
            await write
            await taking
            assert await load_one(second) == image_of(full_change())
            with pytest.raises(Fenced, match="other"):
                await first.apply(commit(epochs, full_change()))
        finally:
            await blocker.close()
            await first.close()
            await second.close()

    asyncio.run(scenario())


def test_many_that_open_a_new_schema_at_once(url: str) -> None:
    async def scenario() -> None:
        stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(6)))
        try:
            assert len({store._writer.name for store in stores}) == 6
        finally:
            for store in stores:
                await store.close()

    asyncio.run(scenario())


# What is in the database ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "plain", "a\0b", "\x01marked", "\\0", "\\\0\\", "\x01\0\\\\0", "ünï\0"])
def test_text_with_characters_that_postgresql_has_not(text: str, url: str) -> None:
    assert restored(kept(text)) == text
    assert "\0" not in kept(text)

    async def scenario() -> None:
        store = await PostgresStore.open(url)
        try:
            epochs = await own_all(store)
            row = DeadRow(1, 0, 1, 1, text, text, text, 5)
            await store.apply(commit(epochs, change(dead=[row])))
            assert (await load_one(store)).dead == [row]
        finally:
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("schema", ["", "Upper", "a-b", "a;DROP", 'a"b', "1a", "x" * 64])
def test_a_schema_that_cannot_stand_in_a_statement_is_refused(schema: str) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        asyncio.run(PostgresStore.open(f"postgresql://nobody@127.0.0.1:1/x?schema={schema}"))


def test_tables_of_somebody_else_and_a_newer_version_are_left_alone(url: str) -> None:
    async def scenario() -> None:
        connection = await asyncpg.connect(url.partition("?")[0])
        schema = schema_of(url)
        try:
            await connection.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.mine (x int)")
            with pytest.raises(InvalidArgument, match="did not make"):
                await PostgresStore.open(url)
            await connection.execute(f"DROP TABLE {schema}.mine")
            await (await PostgresStore.open(url)).close()
            await connection.execute(f"UPDATE {schema}.schema_version SET version = {len(sql.MIGRATIONS) + 1}")
            with pytest.raises(InvalidArgument, match="newer Penstock"):
                await PostgresStore.open(url)
        finally:
            await connection.close()

    asyncio.run(scenario())


def test_a_schema_of_the_first_version_is_brought_up_to_date_with_what_is_in_it(url: str) -> None:
    async def scenario() -> None:
        await (await PostgresStore.open(url, migrations=sql.MIGRATIONS[:1])).close()
        connection = await asyncpg.connect(url.partition("?")[0])
        schema = schema_of(url)
        try:
            # What its own function has written, which gave nothing back.
            await connection.execute(f"""
                INSERT INTO {schema}.lanes VALUES ({LANE}, {LANE % 64}, 0, 7, 70);
                INSERT INTO {schema}.outbox VALUES (1, {LANE}, 0, 'x');
                INSERT INTO {schema}.catalog VALUES ('queue', 1, 0, 'default', 'q', 'x');
                INSERT INTO {schema}.slots VALUES (1, 9, 'before');
                DROP FUNCTION {schema}.apply_commit; DROP FUNCTION {schema}.sweep;
                CREATE FUNCTION {schema}.apply_commit(x integer) RETURNS void
                LANGUAGE sql AS $$ SELECT NULL::void $$""")
        finally:
            await connection.close()
        store = await PostgresStore.open(url)
        try:
            assert (await load_one(store)).end == 7
            assert await store.outbox(0, 10, [LANE % 64]) == [OutboxRow(1, LANE, 0, b"x", LANE % 64)]
            assert (await store.catalog_since(0)).rows == [CatalogRow("queue", 1, 0, "default", "q", b"x")]
            joined = await store.join(Member("one", "", "1", 60_000))
            assert joined.incarnation > 9
            await store.apply(commit(await store.take(range(64), joined.incarnation), lanes_deleted=[LANE]))
            assert (await load_one(store)).end == 0
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_schema_of_the_third_version_is_brought_up_to_date_with_what_is_in_it(url: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        epochs = await own_all(store)
        await store.apply(commit(epochs, full_change()))
        await store.close()
        connection = await asyncpg.connect(url.partition("?")[0])
        schema = schema_of(url)
        try:
            # Back to what the third version had: no leftovers, and a function of the same name that gave nothing back.
            await connection.execute(f"""
                DROP TABLE {schema}.leftovers; DROP INDEX {schema}.outbox_by_lane; DROP FUNCTION {schema}.sweep;
                DROP FUNCTION {schema}.apply_commit;
                CREATE FUNCTION {schema}.apply_commit(x integer) RETURNS void LANGUAGE sql AS $$ SELECT NULL::void $$;
                UPDATE {schema}.schema_version SET version = 3""")
        finally:
            await connection.close()
        store = await PostgresStore.open(url)
        try:
            assert await load_one(store) == image_of(full_change())
            await store.apply(commit(await own_all(store), lanes_deleted=[LANE]))
            assert (await load_one(store)).end == 0
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_schema_of_the_fourth_version_gets_the_functions_of_now(url: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        await store.apply(commit(await own_all(store), full_change()))
        await store.close()
        connection = await asyncpg.connect(url.partition("?")[0])
        body = "SELECT prosrc FROM pg_proc WHERE oid = to_regproc($1)"
        name = f"{schema_of(url)}.check_fence"
        try:
            before = await connection.fetchval(body, name)
            await connection.execute(f"""
                CREATE OR REPLACE FUNCTION {name}(writer text, generation bigint, slots integer[], epochs bigint[])
                RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'of the fourth version'; END $$;
                UPDATE {schema_of(url)}.schema_version SET version = 4""")
            store = await PostgresStore.open(url)
            assert await connection.fetchval(body, name) == before
        finally:
            await connection.close()
        try:
            assert await load_one(store) == image_of(full_change())
            await store.apply(Commit(epochs=await own_all(store)))
        finally:
            await store.close()

    asyncio.run(scenario())


def test_an_empty_array_means_the_same_as_none(url: str) -> None:
    """Older nodes send one, and go on while others are upgraded, as long as no table gains a column."""

    async def scenario() -> None:
        store = await PostgresStore.open(url)
        connection = await asyncpg.connect(url.partition("?")[0])
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, full_change()))
            added = change(batches=batches(1, base=7), first=0, end=8)
            values = [[] if value is None else value for value in commit_values(commit(epochs, added))]
            values[[name for name, _ in ARGUMENTS].index("expired_traces")] = None  # no array
            fence = (store._writer.name, store._writer.generation, list(epochs), list(epochs.values()))
            assert await connection.fetchval(sql.queries_in(schema_of(url)).apply, *fence, *values) is False
            assert (await load_one(store)).end == 8
        finally:
            await connection.close()
            await store.close()

    asyncio.run(scenario())


def test_a_connection_that_was_ended_between_two_commits_costs_no_error(url: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, full_change()))
            handed_out = store._pool._kept
            assert handed_out is not None
            assert await backends(url, f'"{schema_of(url)}".apply_commit', end=True) == 1
            deadline = asyncio.get_running_loop().time() + 30
            while not is_closed(handed_out):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.01)
            await store.apply(commit(epochs, change(batches=batches(1, base=7), first=0, end=8)))
            assert (await load_one(store)).end == 8
        finally:
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("query", ["prepared=maybe", "listen=maybe", "schema=no good"])
def test_a_wrong_url_is_refused_with_the_value(query: str) -> None:
    with pytest.raises(InvalidArgument, match=query.partition("=")[2].split()[0]):
        asyncio.run(PostgresStore.open(f"postgresql://nobody@127.0.0.1:1/x?{query}"))


def test_what_is_no_url_is_refused_without_its_password() -> None:
    with pytest.raises(InvalidArgument, match="Invalid IPv6") as caught:
        asyncio.run(PostgresStore.open("postgresql://me:hidden@[x/db"))
    assert "hidden" not in str(caught.value)


def test_a_server_that_is_not_there_is_unavailable_and_no_password_is_shown() -> None:
    with pytest.raises(Unavailable) as caught:
        asyncio.run(PostgresStore.open("postgresql://me:hidden@127.0.0.1:1/x"))
    assert "hidden" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


def test_settings_that_lose_messages_are_refused(url: str) -> None:
    async def scenario() -> None:
        connection = await asyncpg.connect(shared_url())
        try:
            await connection.execute("CREATE ROLE hasty LOGIN SUPERUSER")
            await connection.execute("ALTER ROLE hasty SET synchronous_commit = off")
            with pytest.raises(InvalidArgument, match="synchronous_commit"):
                await PostgresStore.open(url.replace("penstock@", "hasty@"))
        finally:
            await connection.execute("DROP ROLE IF EXISTS hasty")
            await connection.close()

    asyncio.run(scenario())


def test_no_superuser_is_needed_and_no_prepared_statement_where_that_is_asked_for(url: str) -> None:
    async def scenario() -> None:
        owner = await asyncpg.connect(shared_url())
        role = f"plain_{schema_of(url)}"
        try:
            await owner.execute(f"CREATE ROLE {role} LOGIN")
            await owner.execute(f"CREATE DATABASE {role} OWNER {role}")
        finally:
            await owner.close()
        place = shared_url().replace("penstock@", f"{role}@").replace("/postgres", f"/{role}")
        store = await PostgresStore.open(f"{place}?prepared=no")
        try:
            epochs = await own_all(store)
            await store.apply(commit(epochs, full_change()))
            assert await load_one(store) == image_of(full_change())
            kept: Any = await store._pool.fetch("SELECT count(*) FROM pg_prepared_statements")
            assert kept[0][0] == 0
        finally:
            await store.close()

    asyncio.run(scenario())


# What must not wedge, nor grow ----------------------------------------------------------------------------


class _Releasing:
    """A pool that cannot take a connection back, as asyncpg's cannot when a cancelled statement never answers."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    async def release(self, connection: Any) -> None:
        await self._pool.release(connection)
        raise TimeoutError


def test_a_connection_that_cannot_be_taken_back_changes_no_answer(url: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        try:
            epochs = await own_all(store)
            store._pool._pool = _Releasing(store._pool._pool)
            await store.apply(commit(epochs, full_change()))
            assert await load_one(store) == image_of(full_change())
            with pytest.raises(PenstockError, match="nowhere"):
                await store._pool.fetch("SELECT 1 FROM nowhere")
        finally:
            await store.close()

    asyncio.run(scenario())


def test_heads_are_not_fetched_beyond_the_bytes_that_are_asked_for(url: str) -> None:
    async def scenario() -> None:
        store = await PostgresStore.open(url)
        try:
            epochs = await own_all(store)
            rows = batches(*([1] * 50), meta=b"m" * 10_000)
            await store.apply(commit(epochs, change(batches=rows, first=0, end=50)))
            fetched: list[int] = []
            fetch = store._pool.fetch

            async def counted(statement: str, *values: Any) -> list[Any]:
                found = await fetch(statement, *values)
                if statement == store._sql.heads:  # the store looks after its tables too
                    fetched.append(len(found))
                return found

            store._pool.fetch = counted  # type: ignore[method-assign]
            assert await store.heads(LANE, 10, 16_384, 25_000) == [row.head() for row in rows[10:12]]
            assert await store.heads(LANE, 10, 16_384, 1) == [rows[10].head()]
            assert fetched == [2, 1]
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_writer_whose_row_was_swept_away_goes_on(url: str) -> None:
    """Rows of writers that were not seen for a month go when somebody opens the schema: also one that is at work."""

    async def scenario() -> None:
        store = await PostgresStore.open(url)
        try:
            epochs = await own_all(store)
            await store._pool.fetch(f"UPDATE {schema_of(url)}.writers SET seen = now() - interval '31 days'")
            await (await PostgresStore.open(url)).close()
            with pytest.raises(Unavailable):
                await store.apply(commit(epochs, full_change()))
            await store.apply(commit(epochs, full_change()))
            assert await load_one(store) == image_of(full_change())
        finally:
            await store.close()

    asyncio.run(scenario())


def test_an_isolation_under_which_no_fence_holds_is_refused(url: str) -> None:
    """A snapshot that is taken before the locks does not see the epoch that was raised under them."""

    async def scenario() -> None:
        connection = await asyncpg.connect(shared_url())
        try:
            await connection.execute("CREATE ROLE strict LOGIN SUPERUSER")
            await connection.execute("ALTER ROLE strict SET default_transaction_isolation = 'repeatable read'")
            with pytest.raises(InvalidArgument, match="default_transaction_isolation"):
                await PostgresStore.open(url.replace("penstock@", "strict@"))
        finally:
            await connection.execute("DROP ROLE IF EXISTS strict")
            await connection.close()

    asyncio.run(scenario())


def test_room_of_batches_that_are_gone_is_used_again_without_waiting_for_the_server(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are few and large: by its own count PostgreSQL would have nothing to do."""
    monkeypatch.setattr(vacuum, "EVERY_BYTES", 1_000_000)
    monkeypatch.setattr(vacuum, "REST_S", 0.0)
    body = random.Random(1).randbytes(100_000)
    count = 150

    async def scenario() -> None:
        broker = await penstock.open(url)
        try:
            await broker.declare_queue("q")
            for _ in range(count):
                await broker.publish_batch("q", encode([Message(body)]))
                await broker.ack(await broker.claim("q"))
        finally:
            await broker.close()
        connection = await asyncpg.connect(shared_url())
        try:
            size = await connection.fetchval("SELECT pg_total_relation_size($1::regclass)", f"{schema_of(url)}.batches")
        finally:
            await connection.close()
        assert size < count * len(body) / 2

    asyncio.run(scenario())
