"""SQL lives in `.sql` files: each query is described and used, and all migrations make what `docs/schema/` shows."""

from __future__ import annotations

import asyncio
import importlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import penstock.store
from penstock.store.mysql.engine import MysqlStore
from penstock.store.mysql.pool import StoreAddress
from penstock.store.postgres.engine import PostgresStore
from penstock.store.sql import tables
from penstock.store.sql.queries import fill, in_schema, load_migrations, load_queries, quoted, statements
from tests.databases import mariadb, postgres

ROOT = Path(__file__).parents[2]
STORE = Path(penstock.store.__file__).parent
PACKAGE = STORE.parent
FOR_OTHERS = {PACKAGE / "enqueue.py", PACKAGE / "spark" / "tables.py"}
"""Enqueue's statements are for the application's own driver, and it may import no store: they stay with it. The tables
of Spark tell their users what to type."""
ENGINES = ("sqlite", "postgres", "mysql")
FILES = [STORE / engine / "queries.sql" for engine in ENGINES] + [STORE / "postgres" / "functions.sql"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.name}")
def test_every_query_has_a_description_and_a_caller(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r"-- name: (\w+)\n(?!-- )", text) == []
    python = "".join(source.read_text() for source in file.parent.glob("**/*.py"))
    for name in re.findall(r"-- name: (\w+)", text):
        is_part = f"{{{name}}}" in text
        is_function = f"CREATE FUNCTION penstock.{name}(" in text
        assert is_part or is_function or re.search(rf"\.{name}\b|\"{name}\"", python), name


def test_no_module_has_sql_in_it() -> None:
    verb = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|ALTER|DROP)\s+[\w{`\"*(]")
    for source in set(PACKAGE.glob("**/*.py")) - FOR_OTHERS:
        # Docstrings and comments may speak of SQL; texts for people name statements that they run.
        found = [line for line in source.read_text().splitlines() if verb.search(line)]
        allowed = ("ALTER DATABASE", 'startswith("CREATE FUNCTION")', 'b"INSERT INTO leftovers"')
        assert [line for line in found if not any(text in line for text in allowed)] == [], source


def test_queries_are_read_by_name_without_their_comments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "some_engine"
    (folder / "migrations").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "queries.sql").write_text(
        "-- Head\n\n-- name: one\n-- What.\nSELECT 1\n\n-- More ---\n\n-- name: two\nSELECT {x}\n"
    )
    (folder / "migrations" / "0001.sql").write_text("-- a\nCREATE x;\n\nDO $$\nBEGIN;\nEND $$;\n")
    importlib.import_module("some_engine")
    queries = load_queries("some_engine")
    assert (queries.names, queries.one, queries["two"]) == (("one", "two"), "SELECT 1", "SELECT {x}")
    with pytest.raises(AttributeError, match="three"):
        _ = queries.three
    assert load_migrations("some_engine") == (("CREATE x", "DO $$\nBEGIN;\nEND $$"),)
    (folder / "migrations" / "0003.sql").touch()
    with pytest.raises(ValueError, match="gap"):
        load_migrations("some_engine")


def test_parts_and_names_go_in_safely() -> None:
    assert fill("a {x} '{}' {y}\n    {x}", x="1\n2") == "a 1\n2 '{}' {y}\n    1\n    2"
    assert quoted('a"b') == '"a""b"'
    assert quoted("a`b", "`") == "`a``b`"
    assert in_schema("penstock.a 'penstock.b' penstock_c", "penstock", '"x"') == '"x".a \'"x".b\' penstock_c'


def check_columns(engine: str, found: dict[str, list[str]]) -> None:
    """Engines write the columns that there are; PostgreSQL's composites need them in the same order."""
    expected = {table.name: list(table.columns) for table in (*tables.OF_LANES, *tables.OF_NO_LANE)}
    expected["lanes"] = list(tables.LANE_COLUMNS)
    if engine != "sqlite":
        expected["catalog"].append("version")
    for name, columns in expected.items():
        assert found[name] == columns if engine == "postgres" else sorted(found[name]) == sorted(columns), name


# docs/schema = all migrations ------------------------------------------------------------------------------


def schema_of(engine: str) -> list[str]:
    return list(statements((ROOT / "docs" / "schema" / f"{engine}.sql").read_text()))


def squeezed(text: str) -> str:
    """Without any space: SQLite keeps the text that made a table, and adds to it."""
    return re.sub(r"\s", "", text)


def test_all_migrations_of_sqlite_make_its_schema() -> None:
    def made(script: list[str]) -> list[tuple[str, str]]:
        connection = sqlite3.connect(":memory:")
        for statement in script:
            connection.execute(statement)
        rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
        connection.close()
        return [(name, squeezed(sql)) for name, sql in rows]

    migrations = [statement for migration in load_migrations("penstock.store.sqlite") for statement in migration]
    assert made(schema_of("sqlite")) == made(migrations)


def test_rows_have_the_columns_of_their_tables_in_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    for statement in schema_of("sqlite"):
        connection.execute(statement)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in names}
    connection.close()
    check_columns("sqlite", columns)


_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage, a.attidentity,
    a.attcollation, pg_get_expr(d.adbin, d.adrelid)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
    AND c.relname <> 'schema_version'
ORDER BY c.relname, a.attnum"""
_OPTIONS = """
SELECT c.relname, (SELECT array_agg(o ORDER BY o) FROM unnest(c.reloptions) AS o),
    (SELECT array_agg(o ORDER BY o) FROM unnest(t.reloptions) AS o)
FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
WHERE c.relnamespace = $1::regnamespace AND c.relkind = 'r' AND c.relname <> 'schema_version' ORDER BY c.relname"""
_INDEXES = "SELECT replace(indexdef, schemaname || '.', '') FROM pg_indexes WHERE schemaname = $1 ORDER BY indexname"
_CHECKS = """
SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = $1::regnamespace ORDER BY conname"""


def test_all_migrations_of_postgres_make_its_schema(tmp_path: Path) -> None:
    async def described(connection: Any, schema: str) -> list[list[tuple[object, ...]]]:
        found = [await connection.fetch(query, schema) for query in (_COLUMNS, _OPTIONS, _INDEXES, _CHECKS)]
        return [[tuple(row) for row in rows] for rows in found]

    async def main() -> None:
        url, _, migrated = postgres.schema_url(tmp_path).partition("?schema=")
        await (await PostgresStore.open(postgres.schema_url(tmp_path))).close()
        connection = await asyncpg.connect(url)
        written = f"{migrated}_w"
        try:
            await connection.execute(f"CREATE SCHEMA {written}")
            for statement in schema_of("postgres"):
                await connection.execute(in_schema(statement, "penstock", written))
            found = await described(connection, written)
            assert found == await described(connection, migrated)
            columns: dict[str, list[str]] = {}
            for table, column, *_ in found[0]:
                columns.setdefault(str(table), []).append(str(column))
            check_columns("postgres", columns)
        finally:
            await connection.execute(f"DROP SCHEMA {written} CASCADE")
            await connection.close()

    asyncio.run(main())


@pytest.mark.skipif(not mariadb.is_there(), reason=mariadb.MISSING)
def test_all_migrations_of_mysql_make_its_schema(tmp_path: Path) -> None:
    def described(cursor: Any, database: str) -> dict[str, str]:
        cursor.execute(f"USE {database}")
        cursor.execute("SHOW TABLES")
        names = sorted(name for (name,) in cursor.fetchall() if name != "schema_version")
        found = {}
        for name in names:
            cursor.execute(f"SHOW CREATE TABLE `{name}`")
            found[name] = cursor.fetchone()[1]
        return found

    async def make() -> None:
        await (await MysqlStore.open(mariadb.database_url(tmp_path))).close()

    asyncio.run(make())
    migrated = StoreAddress.parse(mariadb.database_url(tmp_path)).database
    written = f"{migrated}_w"
    with mariadb.connected(mariadb.database_url(tmp_path)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {written} CHARACTER SET utf8mb4")
        try:
            cursor.execute(f"USE {written}")
            for statement in schema_of("mysql"):
                cursor.execute(statement)
            found = described(cursor, written)
            assert found == described(cursor, migrated)
            check_columns("mysql", {name: re.findall(r"(?m)^  `(\w+)`", text) for name, text in found.items()})
        finally:
            cursor.execute(f"DROP DATABASE {written}")


def test_a_schema_may_be_called_as_a_word_of_sql(tmp_path: Path) -> None:
    async def main() -> None:
        url = postgres.schema_url(tmp_path).partition("?schema=")[0]
        store = await PostgresStore.open(f"{url}?schema=user")
        try:
            assert (await store.load([5], 10))[0].end == 0
            assert len(await store.acquire(range(64), "me")) == 64
        finally:
            await store.close()
            connection = await asyncpg.connect(url)
            await connection.execute('DROP SCHEMA "user" CASCADE')
            await connection.close()

    asyncio.run(main())
