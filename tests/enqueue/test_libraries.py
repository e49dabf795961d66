"""Each library that `penstock.enqueue` knows, on a real PostgreSQL with a real server.

What is committed is published once and in order; what is rolled back, as a whole or to a savepoint, is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

import penstock
from penstock import Message
from penstock.enqueue import enqueue, enqueue_async, enqueue_many, enqueue_many_async
from tests.databases.django_default import django_default
from tests.enqueue.rig import Place, received

End = Literal["commit", "rollback"]
Play = Callable[[Place, End], None]
"""Enqueues a; then b, which is rolled back to a savepoint; then c and d together. And ends so."""

REST: list[bytes | Message] = [b"c", Message(b"d", headers={"n": 1, "raw": b"\x00"}, partition="p", trace_id="t")]


class Undone(Exception):
    """Raised inside of a transaction, which then is rolled back."""


# Libraries -----------------------------------------------------------------------------------------------


def with_psycopg(place: Place, end: End) -> None:
    with place.connect() as connection:
        _with_psycopg(connection, connection, place, end)


def with_psycopg_cursor(place: Place, end: End) -> None:
    with place.connect() as connection, connection.cursor() as cursor:
        _with_psycopg(connection, cursor, place, end)


def _with_psycopg(connection: psycopg.Connection[Any], given: Any, place: Place, end: End) -> None:
    connection.execute("INSERT INTO orders DEFAULT VALUES")
    enqueue(given, "mail", b"a", schema=place.schema)
    try:
        with connection.transaction():
            enqueue(given, "mail", b"b", schema=place.schema)
            raise Undone
    except Undone:
        pass
    enqueue_many(given, "mail", REST, schema=place.schema)
    getattr(connection, end)()


def with_psycopg_async(place: Place, end: End) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(place.url) as connection:
            await connection.execute("INSERT INTO orders DEFAULT VALUES")
            async with connection.cursor() as cursor:
                await enqueue_async(cursor, "mail", b"a", schema=place.schema)
            try:
                async with connection.transaction():
                    await enqueue_async(connection, "mail", b"b", schema=place.schema)
                    raise Undone
            except Undone:
                pass
            await enqueue_many_async(connection, "mail", REST, schema=place.schema)
            await getattr(connection, end)()

    asyncio.run(main())


def with_asyncpg(place: Place, end: End) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(place.url)
        try:
            await _with_asyncpg(connection, place, end)
        finally:
            await connection.close()

    asyncio.run(main())


def with_asyncpg_pool(place: Place, end: End) -> None:
    async def main() -> None:
        async with asyncpg.create_pool(place.url, min_size=1) as pool, pool.acquire() as connection:
            await _with_asyncpg(connection, place, end)

    asyncio.run(main())


async def _with_asyncpg(connection: Any, place: Place, end: End) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("INSERT INTO orders DEFAULT VALUES")
    await enqueue_async(connection, "mail", b"a", schema=place.schema)
    try:
        async with connection.transaction():
            await enqueue_async(connection, "mail", b"b", schema=place.schema)
            raise Undone
    except Undone:
        pass
    await enqueue_many_async(connection, "mail", REST, schema=place.schema)
    await getattr(transaction, end)()


INSERT = sqlalchemy.text("INSERT INTO orders DEFAULT VALUES")


def with_sqlalchemy_connection(place: Place, end: End) -> None:
    engine = sqlalchemy.create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.connect() as connection:
            connection.execute(INSERT)
            enqueue(connection, "mail", b"a", schema=place.schema)
            savepoint = connection.begin_nested()
            enqueue(connection, "mail", b"b", schema=place.schema)
            savepoint.rollback()
            enqueue_many(connection, "mail", REST, schema=place.schema)
            getattr(connection, end)()
    finally:
        engine.dispose()


def with_sqlalchemy_session(place: Place, end: End) -> None:
    engine = sqlalchemy.create_engine(place.url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with Session(engine) as session:
            session.execute(INSERT)
            enqueue(session, "mail", b"a", schema=place.schema)
            savepoint = session.begin_nested()
            enqueue(session, "mail", b"b", schema=place.schema)
            savepoint.rollback()
            enqueue_many(session, "mail", REST, schema=place.schema)
            getattr(session, end)()
    finally:
        engine.dispose()


def _with_sqlalchemy_async(place: Place, end: End, driver: str, make: Callable[[Any], Any]) -> None:
    async def main() -> None:
        engine = create_async_engine(place.url.replace("postgresql:", f"postgresql+{driver}:"))
        try:
            connection = make(engine)
            if hasattr(connection, "start"):
                await connection.start()
            try:
                await connection.execute(INSERT)
                await enqueue_async(connection, "mail", b"a", schema=place.schema)
                savepoint = await connection.begin_nested()
                await enqueue_async(connection, "mail", b"b", schema=place.schema)
                await savepoint.rollback()
                await enqueue_many_async(connection, "mail", REST, schema=place.schema)
                await getattr(connection, end)()
            finally:
                await connection.close()
        finally:
            await engine.dispose()

    asyncio.run(main())


def with_sqlalchemy_async_connection(place: Place, end: End) -> None:
    _with_sqlalchemy_async(place, end, "asyncpg", lambda engine: engine.connect())


def with_sqlalchemy_async_session(place: Place, end: End) -> None:
    _with_sqlalchemy_async(place, end, "asyncpg", AsyncSession)


def with_sqlalchemy_scoped_session_of_psycopg(place: Place, end: End) -> None:
    def make(engine: Any) -> Any:
        return async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)

    _with_sqlalchemy_async(place, end, "psycopg", make)


def with_django(place: Place, end: End) -> None:
    connection = django_default(place.url)
    _with_django(connection, connection, place, end)


def with_django_cursor(place: Place, end: End) -> None:
    connection = django_default(place.url)
    with connection.cursor() as cursor:
        _with_django(connection, cursor, place, end)


def _with_django(connection: Any, given: Any, place: Place, end: End) -> None:
    from django.db import transaction

    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO orders DEFAULT VALUES")
            enqueue(given, "mail", b"a", schema=place.schema)
            try:
                with transaction.atomic():
                    enqueue(given, "mail", b"b", schema=place.schema)
                    raise Undone
            except Undone:
                pass
            enqueue_many(given, "mail", REST, schema=place.schema)
            if end == "rollback":
                raise Undone
    except Undone:
        pass
    finally:
        connection.close()


LIBRARIES: list[Play] = [
    with_psycopg,
    with_psycopg_cursor,
    with_psycopg_async,
    with_asyncpg,
    with_asyncpg_pool,
    with_sqlalchemy_connection,
    with_sqlalchemy_session,
    with_sqlalchemy_async_connection,
    with_sqlalchemy_async_session,
    with_sqlalchemy_scoped_session_of_psycopg,
    with_django,
    with_django_cursor,
]


# Tests ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, penstock.Client]]:
    """One server for all: each test leaves the queue empty."""
    folder: Path = tmp_path_factory.mktemp("libraries")
    place = Place(folder)
    with place.served() as (_, client):
        client.declare_queue("mail")
        with place.connect(autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY)")
        yield place, client


def orders(place: Place) -> int:
    with place.connect() as connection:
        count: int = connection.execute("SELECT count(*) FROM orders").fetchone()[0]  # type: ignore[index]
        return count


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_what_is_committed_is_published_and_nothing_else(served: tuple[Place, penstock.Client], library: Play) -> None:
    place, client = served
    before = orders(place)
    library(place, "rollback")
    assert orders(place) == before
    library(place, "commit")
    assert orders(place) == before + 1
    claim = client.claim("mail", max=10, min=3, wait=30, ack=True)
    assert [one.payload for one in claim.messages] == [b"a", b"c", b"d"]
    last = claim.messages[-1].message
    assert (last.headers, last.partition, last.trace_id) == ({"n": 1, "raw": b"\x00"}, "p", "t")


def test_messages_go_to_exchanges_and_namespaces(served: tuple[Place, penstock.Client]) -> None:
    place, client = served
    other = client.in_namespace("büro")
    other.declare_queue("eu")
    other.declare_exchange("orders", kind="topic")
    other.bind("orders", "eu", "eu.#")
    with place.connect() as connection:
        for key, payload in (("eu.new", b"1"), ("us.new", b"2"), ("eu.old", b"3")):
            enqueue(
                connection,
                None,
                payload,
                exchange="orders",
                key=key,
                mandatory=False,
                namespace="büro",
                schema=place.schema,
            )
    assert received(other, "eu", 2) == ["1", "3"]
    assert client.enqueued_failed().failed == []


def test_every_field_and_type_comes_through(served: tuple[Place, penstock.Client]) -> None:
    place, client = served
    headers = {"big": 2**63 - 1, "float": 1e300, "one": 1.0, "nul": "\0", "nested": {"a": [None]}}
    message = Message(bytes(range(256)), "p\"'%s", "k", headers, 7, 1, 2, 600_000, "id", "text/plain", "c", "t")
    with place.connect() as connection:
        enqueue(connection, "mail", message, schema=place.schema)
    [one] = client.claim("mail", wait=30, ack=True).messages
    assert one.message == message
    assert type(one.message.headers["one"]) is float  # type: ignore[index]


def test_a_connection_of_another_database_is_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with (
        engine.connect() as connection,
        pytest.raises(penstock.InvalidArgument, match="is to sqlite; a store that can"),
    ):
        enqueue(connection, "mail", b"x")
    with pytest.raises(penstock.InvalidArgument, match="Engine is no connection"):
        enqueue(engine, "mail", b"x")
    engine.dispose()
