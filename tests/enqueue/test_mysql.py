"""`penstock.enqueue` and plain INSERTs on a real MariaDB with a real server: PyMySQL, SQLAlchemy and Django.

What is committed is published once and in order; what is rolled back, as a whole or to a savepoint, is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pymysql
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import penstock
from penstock import Message
from penstock.enqueue import enqueue, enqueue_many
from penstock.store.mysql.pool import StoreAddress
from tests.cli.servers import running
from tests.databases import mariadb
from tests.databases.django_default import django_mysql
from tests.enqueue.rig import received

pytestmark = pytest.mark.skipif(not mariadb.is_there(), reason=mariadb.MISSING)

End = Literal["commit", "rollback"]
Play = Callable[[str, End], None]
"""Enqueues a; then b, which is rolled back to a savepoint; then c and d together. And ends so."""

REST: list[bytes | Message] = [b"c", Message(b"d", headers={"n": 1, "raw": b"\x00"}, partition="p", trace_id="t")]
INSERT = "INSERT INTO orders VALUES ()"


class Undone(Exception):
    """Raised inside of a transaction, which then is rolled back."""


def schema_of(url: str) -> str:
    return StoreAddress.parse(url).database


# Libraries -----------------------------------------------------------------------------------------------


def with_pymysql(url: str, end: End) -> None:
    with mariadb.connected(url) as connection:
        _with_pymysql(connection, connection, schema_of(url), end)


def with_pymysql_cursor(url: str, end: End) -> None:
    with mariadb.connected(url) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        _with_pymysql(connection, cursor, schema_of(url), end)


def _with_pymysql(connection: Any, given: Any, schema: str, end: End) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT)
        enqueue(given, "mail", b"a", schema=schema)
        cursor.execute("SAVEPOINT here")
        enqueue(given, "mail", b"b", schema=schema)
        cursor.execute("ROLLBACK TO SAVEPOINT here")
    enqueue_many(given, "mail", REST, schema=schema)
    getattr(connection, end)()


def with_sqlalchemy_connection(url: str, end: End) -> None:
    _with_sqlalchemy(url, end, lambda engine: engine.connect(), "mysql+pymysql:")


def with_sqlalchemy_session(url: str, end: End) -> None:
    _with_sqlalchemy(url, end, Session, "mariadb+pymysql:")


def _with_sqlalchemy(url: str, end: End, make: Callable[[Any], Any], scheme: str) -> None:
    schema = schema_of(url)
    engine = sqlalchemy.create_engine(url.replace("mysql:", scheme))
    try:
        with make(engine) as connection:
            connection.execute(sqlalchemy.text(INSERT))
            enqueue(connection, "mail", b"a", schema=schema)
            savepoint = connection.begin_nested()
            enqueue(connection, "mail", b"b", schema=schema)
            savepoint.rollback()
            enqueue_many(connection, "mail", REST, schema=schema)
            getattr(connection, end)()
    finally:
        engine.dispose()


def with_django(url: str, end: End) -> None:
    from django.db import transaction

    schema = schema_of(url)
    connection = django_mysql(url)
    try:
        with transaction.atomic(using=connection.alias):
            with connection.cursor() as cursor:
                cursor.execute(INSERT)
                enqueue(cursor, "mail", b"a", schema=schema)
            try:
                with transaction.atomic(using=connection.alias):
                    enqueue(connection, "mail", b"b", schema=schema)
                    raise Undone
            except Undone:
                pass
            enqueue_many(connection, "mail", REST, schema=schema)
            if end == "rollback":
                raise Undone
    except Undone:
        pass
    finally:
        connection.close()


LIBRARIES: list[Play] = [
    with_pymysql,
    with_pymysql_cursor,
    with_sqlalchemy_connection,
    with_sqlalchemy_session,
    with_django,
]


# Tests ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, penstock.Client]]:
    """One server for all: each test leaves the queue empty."""
    folder: Path = tmp_path_factory.mktemp("mysql")
    url = mariadb.database_url(folder)
    with running(folder, "--store", url) as server, penstock.Client(server.url) as client:
        client.declare_queue("mail")
        with mariadb.connected(url, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY)")
        yield url, client


def orders(url: str) -> int:
    with mariadb.connected(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        return int(cursor.fetchone()[0])


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__)
def test_what_is_committed_is_published_and_nothing_else(served: tuple[str, penstock.Client], library: Play) -> None:
    url, client = served
    before = orders(url)
    library(url, "rollback")
    assert orders(url) == before
    library(url, "commit")
    assert orders(url) == before + 1
    claim = client.claim("mail", max=10, min=3, wait=30, ack=True)
    assert [one.payload for one in claim.messages] == [b"a", b"c", b"d"]
    last = claim.messages[-1].message
    assert (last.headers, last.partition, last.trace_id) == ({"n": 1, "raw": b"\x00"}, "p", "t")


def test_messages_go_to_exchanges_and_namespaces(served: tuple[str, penstock.Client]) -> None:
    url, client = served
    other = client.in_namespace("büro")
    other.declare_queue("eu")
    other.declare_exchange("orders", kind="topic")
    other.bind("orders", "eu", "eu.#")
    with mariadb.connected(url) as connection:
        for key, payload in (("eu.new", b"1"), ("us.new", b"2"), ("eu.old", b"3")):
            enqueue(
                connection,
                None,
                payload,
                exchange="orders",
                key=key,
                mandatory=False,
                namespace="büro",
                schema=schema_of(url),
            )
        connection.commit()
    assert received(other, "eu", 2) == ["1", "3"]
    assert client.enqueued_failed().failed == []


def test_every_field_and_type_comes_through(served: tuple[str, penstock.Client]) -> None:
    url, client = served
    headers = {"big": 2**63 - 1, "float": 1e300, "one": 1.0, "nul": "\0", "nested": {"a": [None]}}
    message = Message(bytes(range(256)), "p\"'%s\\", "k", headers, 7, 1, 2, 600_000, "id", "text/plain", "c", "😀")
    with mariadb.connected(url, autocommit=True) as connection:
        enqueue(connection, "mail", message, schema=schema_of(url))
    [one] = client.claim("mail", wait=30, ack=True).messages
    assert one.message == message
    assert type(one.message.headers["one"]) is float  # type: ignore[index]


def test_what_cannot_be_published_is_kept_and_tried_again(served: tuple[str, penstock.Client]) -> None:
    url, client = served
    with mariadb.connected(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO enqueued (queue, payload) VALUES ('parcels', 'x'), ('mail', 'y')")
    assert received(client, "mail", 1) == ["y"]
    while not (failed := client.enqueued_failed().failed):
        client.claim("mail", wait=0.1)
    assert "there is no queue 'parcels'" in failed[0].error
    client.declare_queue("parcels")
    assert received(client, "parcels", 1) == ["x"]
    assert client.enqueued_failed().failed == []


@pytest.mark.parametrize("mode", ["STRICT_ALL_TABLES", ""])
@pytest.mark.parametrize(
    ("columns", "values", "said"),
    [
        ("queue, payload, priority", ("mail", "x", 300), "priority_is_0_to_255"),
        ("queue, exchange, payload", ("mail", "mail", "x"), "one_of_queue_and_exchange"),
        ("payload", ("x",), "one_of_queue_and_exchange"),
        ("queue, payload", ("", "x"), "queue_has_1_to_255_characters"),
        ("queue, payload", ("q" * 300, "x"), "queue_has_1_to_255_characters"),
        ("queue, payload, dedup_id", ("mail", "x", "ü" * 256), "dedup_id_has_at_most_255_characters"),
        ("queue, payload, headers", ("mail", "x", "[1]"), "headers_are_a_json_object"),
        ("queue, payload, headers", ("mail", "x", "{"), "headers_are_a_json_object"),
        ("queue, payload, ttl_ms", ("mail", "x", -1), "ttl_ms_is_0_to"),
        ("queue, payload", ("mail", None), "payload"),
    ],
)
def test_a_mistake_is_an_error_of_the_application(
    served: tuple[str, penstock.Client], mode: str, columns: str, values: tuple[object, ...], said: str
) -> None:
    url, _ = served
    with mariadb.connected(url, autocommit=True, sql_mode=mode) as connection, connection.cursor() as cursor:
        places = ", ".join(["%s"] * len(values))
        with pytest.raises(pymysql.MySQLError, match=said):
            cursor.execute(f"INSERT INTO enqueued ({columns}) VALUES ({places})", values)


def test_the_right_to_insert_is_enough_and_gives_nothing_else(served: tuple[str, penstock.Client]) -> None:
    url, client = served
    schema = schema_of(url)
    with mariadb.connected(url, autocommit=True) as owner, owner.cursor() as cursor:
        cursor.execute("CREATE USER shop@'%' IDENTIFIED BY 'shop'")
        cursor.execute("CREATE DATABASE shop")
        try:
            cursor.execute("GRANT ALL ON shop.* TO shop@'%'")
            cursor.execute(f"GRANT INSERT ON {schema}.enqueued TO shop@'%'")
            address = StoreAddress.parse(url)
            with mariadb.connected(f"mysql://shop:shop@{address.host}:{address.port}/shop") as connection:
                enqueue_many(connection, "mail", [b"1", b"2"], schema=schema)
                connection.commit()
                with connection.cursor() as reading, pytest.raises(pymysql.MySQLError, match="denied"):
                    reading.execute(f"SELECT * FROM {schema}.enqueued")
        finally:
            cursor.execute("DROP USER shop@'%'")
            cursor.execute("DROP DATABASE shop")
    assert received(client, "mail", 2) == ["1", "2"]
