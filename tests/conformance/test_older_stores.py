"""Stores written before leases named their session: they open, keep everything, and every lease has no session."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import msgspec
import pytest

from penstock.model.rows import LaneImage, LeaseRow
from penstock.store.contract import Store
from penstock.store.mysql.pool import StoreAddress as MysqlAddress
from penstock.store.sqlite.log.records import draft, parse_rows
from tests.conformance.conftest import prepared
from tests.conformance.engines import ENGINES, Engine
from tests.conformance.samples import CATALOG, commit, full_change, image_of, load_one, own_all
from tests.databases import mariadb, postgres


async def _age_sqlite(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "penstock.db", isolation_level=None)) as connection:
        connection.execute("ALTER TABLE leases DROP COLUMN session")
        connection.execute("PRAGMA user_version = 4")


async def _age_postgres(folder: Path) -> None:
    url, _, schema = postgres.schema_url(folder).partition("?schema=")
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"ALTER TABLE {schema}.leases DROP COLUMN session")
        await connection.execute(f"UPDATE {schema}.schema_version SET version = 7")
    finally:
        await connection.close()


async def _age_mysql(folder: Path) -> None:
    url = mariadb.database_url(folder)
    with mariadb.connected(url) as session, session.cursor() as cursor:
        cursor.execute(f"USE {MysqlAddress.parse(url).database}")
        cursor.execute("ALTER TABLE leases DROP COLUMN session")
        cursor.execute("REPLACE INTO schema_version VALUES (1, 1)")
        session.commit()


AGE = {"sqlite": _age_sqlite, "postgres": _age_postgres, "mysql": _age_mysql}


def without_sessions(image: LaneImage) -> LaneImage:
    leases = [msgspec.structs.replace(row, session="") for row in image.leases]
    return msgspec.structs.replace(image, leases=leases)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine.durable], ids=lambda engine: engine.name)
def test_a_store_from_before_sessions_keeps_everything(engine: Engine, tmp_path: Path) -> None:
    prepared(engine)

    async def write(store: Store) -> None:
        await store.apply(commit(await own_all(store), full_change(), catalog=CATALOG))

    async def check(store: Store) -> None:
        assert await load_one(store) == without_sessions(image_of(full_change()))
        assert await store.catalog() == CATALOG
        await store.apply(commit(await own_all(store), full_change()))
        assert await load_one(store) == image_of(full_change())

    engine.run(tmp_path, write)
    asyncio.run(AGE[engine.name](tmp_path))
    engine.run(tmp_path, check)


def test_a_record_from_before_sessions_is_read() -> None:
    rows = msgspec.msgpack.decode(draft(commit({5: 1}, full_change())).rows)
    leases = rows[1][0][6]
    assert [lease[5] for lease in leases] == ["session-1", ""]
    rows[1][0][6] = [lease[:5] for lease in leases]
    (lane,) = parse_rows(msgspec.msgpack.encode(rows)).lanes
    assert lane.leases == (LeaseRow(1, 10, 5000, "worker", b"\x01"), LeaseRow(2, 10, 6000, "other", b"\x02"))
