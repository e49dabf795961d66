"""A real node takes what real transactions enqueue: through its own death, late commits, mistakes, missing rights."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import psycopg
import pytest

from penstock.enqueue import enqueue, enqueue_many
from tests.cli.servers import penstock as command
from tests.cli.servers import until
from tests.enqueue.rig import Place, received

SELDOM = {"PENSTOCK_NODE_ENQUEUE_POLL": "3600"}
"""So that what arrives has arrived because the database said so."""


# Once and in order ---------------------------------------------------------------------------------------


def test_a_node_that_is_killed_again_and_again_publishes_each_row_once_and_in_order(place: Place) -> None:
    rows, step = 10_000, 50
    enqueued = 0

    def enqueue_up_to(count: int, connection: psycopg.Connection[Any]) -> None:
        nonlocal enqueued
        while enqueued < count:
            payloads = [b"%d" % number for number in range(enqueued, enqueued + step)]
            enqueue_many(connection, "mail", payloads, schema=place.schema)
            connection.commit()
            enqueued += step

    published = 0
    with place.connect() as connection:
        for most in (3_000, 6_000, 8_000, rows):
            with place.served() as (server, client):
                client.declare_queue("mail", dedup_window_ms=0)
                first = client.stats("mail").published
                assert first >= published
                while enqueued < most and (published := client.stats("mail").published) < first + 500:
                    enqueue_up_to(enqueued + step, connection)
                server.signal(signal.SIGKILL)  # in the midst of what it takes
                server.end()
            enqueue_up_to(most, connection)
    with place.served() as (_, client):
        found = received(client, "mail", rows)
        assert found == [str(number) for number in range(rows)]
        assert client.stats("mail").published == rows
        assert not client.claim("mail", max=1).messages


def test_a_lower_id_that_is_committed_later_is_published_too(place: Place) -> None:
    with place.served() as (_, client), place.connect() as early, place.connect() as late:
        client.declare_queue("mail")
        enqueue_many(late, "mail", [b"late 1", b"late 2"], schema=place.schema)
        enqueue(early, "mail", b"early", schema=place.schema)
        early.commit()
        assert received(client, "mail", 1) == ["early"]
        late.commit()
        assert received(client, "mail", 2) == ["late 1", "late 2"]


# Who is told, and when -----------------------------------------------------------------------------------


def test_the_database_wakes_the_node(place: Place) -> None:
    with place.served(**SELDOM) as (_, client), place.connect() as connection:
        client.declare_queue("mail")
        seconds = []
        for number in range(5):
            enqueue(connection, "mail", b"%d" % number, schema=place.schema)
            connection.commit()
            began = time.monotonic()
            assert received(client, "mail", 1) == [str(number)]
            seconds.append(time.monotonic() - began)
        assert min(seconds) < 0.5


def test_a_lost_connection_is_made_anew_and_misses_nothing(place: Place) -> None:
    with place.served(**SELDOM) as (_, client), place.connect(autocommit=True) as connection:
        client.declare_queue("mail")
        listens = "query LIKE 'LISTEN%penstock_enqueued%' AND state = 'idle'"
        count = f"SELECT count(*) FROM pg_stat_activity WHERE {listens}"
        until(lambda: connection.execute(count).fetchone() == (1,), "the node listens")
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {listens}")
        enqueue(connection, "mail", b"meanwhile", schema=place.schema)
        assert received(client, "mail", 1) == ["meanwhile"]


def test_without_notifications_rows_are_found_by_looking(place: Place) -> None:
    with (
        place.served("&listen=no", PENSTOCK_NODE_ENQUEUE_POLL="0.1") as (_, client),
        place.connect(autocommit=True) as connection,
    ):
        client.declare_queue("mail")
        enqueue(connection, "mail", b"x", schema=place.schema)
        assert received(client, "mail", 1) == ["x"]
        count = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        assert connection.execute(count).fetchone() == (0,)


# What cannot be published --------------------------------------------------------------------------------


def test_rows_that_cannot_be_published_are_shown_kept_and_retried(place: Place) -> None:
    with place.served() as (server, client), place.connect() as connection:
        client.declare_queue("mail")
        client.declare_queue("small", max_message_bytes=1)
        # The plain INSERT of the documentation, and the function.
        values = "('mail', '1'), ('later', '2'), ('small', '33')"
        connection.execute(f"INSERT INTO {place.schema}.enqueued (queue, payload) VALUES {values}")
        connection.execute(f"SELECT {place.schema}.publish('mail', '4', priority => 3)")
        connection.commit()
        assert received(client, "mail", 2) == ["1", "4"]
        until(lambda: len(client.enqueued_failed().failed) == 2, "the rows have failed")
        later, small = client.enqueued_failed().failed
        assert (later.queue, later.error) == ("later", "there is no queue 'later'; declare it first")
        assert (small.queue, small.size, small.error) == ("small", 2, "payload has 2 bytes; the limit of 'small' is 1")
        rows = connection.execute(
            f"SELECT id, error FROM {place.schema}.enqueued WHERE failed_at IS NOT NULL ORDER BY id"
        )
        assert rows.fetchall() == [(later.id, later.error), (small.id, small.error)]
        connection.commit()
        assert any("cannot be published: there is no queue 'later'" in line for line in server.errors)

        shown = command("enqueued", "failed", "--json", folder=place.folder, PENSTOCK_URL=server.url)
        assert [one["error"] for one in json.loads(shown.stdout)] == [later.error, small.error]
        shown = command("enqueued", "failed", folder=place.folder, PENSTOCK_URL=server.url)
        assert "queue later" in shown.stdout
        page = client._thread.run(_metrics, server.url)
        assert "penstock_enqueued_failed_kept 2.0" in page
        assert "penstock_enqueued_published_total 2.0" in page

        client.declare_queue("later")
        assert received(client, "later", 1) == ["2"]
        client.declare_queue("small", max_message_bytes=2)
        assert received(client, "small", 1) == ["33"]
        assert client.enqueued_failed().failed == []

        enqueue(connection, "nowhere", b"x", schema=place.schema)
        connection.commit()
        until(lambda: len(client.enqueued_failed().failed) == 1, "the row has failed")
        [failed] = client.enqueued_failed().failed
        retried = command("enqueued", "retry", str(failed.id), folder=place.folder, PENSTOCK_URL=server.url)
        assert retried.stdout == "1 message to be tried again.\n"
        until(
            lambda: any(one.failed_ms > failed.failed_ms for one in client.enqueued_failed().failed), "it fails again"
        )
        assert client.in_namespace("other").purge_enqueued() == 0
        purged = command("enqueued", "purge", "--yes", folder=place.folder, PENSTOCK_URL=server.url)
        assert purged.stdout == "1 message purged.\n"
        assert connection.execute(f"SELECT count(*) FROM {place.schema}.enqueued").fetchone() == (0,)


async def _metrics(url: str) -> str:
    import asyncio
    import urllib.request

    def read() -> str:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)


WRONG = [
    ("publish('', 'x')", "queue is ''; it must have 1 to 255 characters"),
    ("publish(repeat('q', 256), 'x')", "it must have 1 to 255 characters"),
    ("publish(E'a\\nb', 'x')", "none of them a control character"),
    ("publish(NULL, 'x')", "one of queue and exchange to be published to, not neither"),
    ("publish('q', NULL)", "a message needs a payload"),
    ("publish('q', convert_to(repeat('x', 16777217), 'UTF8'))", "payload has 16777217 bytes; the limit is 16777216"),
    ("publish('q', 'x', priority => 256)", "priority is 256; it must be 0 to 255"),
    ("publish('q', 'x', delay_ms => -1)", "delay_ms is -1; it must be 0 to"),
    ("publish('q', 'x', ttl_ms => -5)", "ttl_ms is -5"),
    ("publish('q', 'x', partition => repeat('p', 1025))", "partition has 1025 characters; the limit is 1024"),
    ("publish('q', 'x', headers => '[1]')", "headers are a JSON array; they must be an object"),
    ("publish('q', 'x', not_before => 'infinity')", "not_before is infinity; it must be in the years 1970 to 9999"),
    ("publish('q', 'x', namespace => '')", "namespace is ''"),
    ("publish_to('', 'x')", "exchange is ''"),
    ("publish_many('{}')", "messages must be a JSON array of objects"),
    ("""publish_many('[{"queue": "q", "payload": "x", "prio": 1}]')""", "a message has the unknown member 'prio'"),
    ("""publish_many('[{"queue": "q", "payload": "x", "payload_base64": ""}]')""", "both payload and payload_base64"),
    ("""publish_many('[{"queue": "q"}]')""", "a message needs a payload"),
]


def test_the_function_says_what_is_wrong_in_the_applications_transaction(place: Place) -> None:
    with place.served() as (_, client), place.connect() as connection:
        client.declare_queue("q")
        for call, text in WRONG:
            with pytest.raises(psycopg.errors.InvalidParameterValue) as raised:
                connection.execute(f"SELECT {place.schema}.{call}")
            assert text in str(raised.value), call
            connection.rollback()
        assert connection.execute(f"SELECT count(*) FROM {place.schema}.enqueued").fetchone() == (0,)


# Rights --------------------------------------------------------------------------------------------------


def test_a_role_that_may_publish_may_do_nothing_else(place: Place) -> None:
    schema, role = place.schema, f"{place.schema}_app"
    with place.served() as (_, client), place.connect(autocommit=True) as owner:
        client.declare_queue("mail")
        owner.execute(f"CREATE ROLE {role} LOGIN")
        owner.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        with place.connect(user=role, autocommit=True) as application:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):  # everybody is nobody
                enqueue(application, "mail", b"x", schema=schema)
            owner.execute(f"GRANT EXECUTE ON FUNCTION {schema}.publish, {schema}.publish_to TO {role}")
            owner.execute(f"GRANT EXECUTE ON FUNCTION {schema}.publish_many TO {role}")
            enqueue(application, "mail", b"1", schema=schema)
            application.execute(f"SELECT {schema}.publish('mail', '2')")
            for table in ("enqueued", "batches", "catalog", "slots"):
                for statement in ("SELECT * FROM {}", "INSERT INTO {} DEFAULT VALUES", "DELETE FROM {}", "TRUNCATE {}"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        application.execute(statement.format(f"{schema}.{table}"))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                application.execute(f"SELECT {schema}.settle_enqueued('{{1}}', '{{}}', '{{}}', '{{}}', '{{}}')")
            # What it puts in the way of names changes nothing for a function with the owner's rights.
            application.execute("SET search_path = pg_temp, public")
            application.execute("CREATE TEMP TABLE enqueued (id int)")
            enqueue(application, "mail", b"3", schema=schema)
        assert received(client, "mail", 3) == ["1", "2", "3"]
        owner.execute(f"DROP OWNED BY {role}")
        owner.execute(f"DROP ROLE {role}")


def test_a_schema_of_the_version_before_is_brought_up_to_date(place: Place) -> None:
    from penstock.store.postgres import schema as sql
    from penstock.store.postgres.engine import PostgresStore

    async def make() -> None:
        await (await PostgresStore.open(place.store, migrations=sql.MIGRATIONS[:1])).close()

    import asyncio

    asyncio.run(make())
    with place.served() as (_, client), place.connect(autocommit=True) as connection:
        client.declare_queue("mail")
        enqueue(connection, "mail", b"x", schema=place.schema)
        assert received(client, "mail", 1) == ["x"]
