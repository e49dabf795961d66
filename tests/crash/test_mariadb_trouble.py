"""A real MariaDB whose statements take too long and whose connections are all taken.

What it has in common with other databases is in `test_database_trouble.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from penstock.store.mysql.engine import MysqlStore
from tests.crash.trouble import come, held, on_store, play, progress, under_load
from tests.databases import mariadb
from tests.databases.mariadb import MariadbServer, connected

pytestmark = pytest.mark.skipif(not mariadb.is_there(), reason=mariadb.MISSING)
TOO_MANY_CONNECTIONS = 1040


@pytest.fixture
def server() -> Iterator[MariadbServer]:
    made = MariadbServer(max_connections="20")
    yield made
    made.close()


def test_statements_that_take_too_long_and_connections_that_are_all_taken(
    server: MariadbServer, tmp_path: Path
) -> None:
    """Somebody holds the tables for longer than a call may take; statements get a millisecond; then somebody has every
    connection.
    """
    url = f"{server.url}/slow"

    async def scenario() -> None:
        store = await MysqlStore.open(url, readers=1, seconds=1.0)
        broker = await on_store(store, tmp_path / "spool")
        with connected(url, autocommit=True) as rival:

            def say(statement: str) -> None:
                rival.query(statement)

            async with under_load(broker) as load:
                await progress(load)
                await asyncio.to_thread(say, "LOCK TABLES lanes WRITE, batches WRITE")
                await away(load, broker)
                await asyncio.to_thread(say, "UNLOCK TABLES")
                await come(lambda: not held(broker))
                await asyncio.to_thread(say, "SET GLOBAL max_statement_time = 0.000001")
                await asyncio.to_thread(end_others, rival)
                await away(load, broker)
                await asyncio.to_thread(say, "SET GLOBAL max_statement_time = 0")
                await asyncio.to_thread(end_others, rival)
                await come(lambda: not held(broker))
                others = await asyncio.to_thread(take_all, server, rival)
                await away(load, broker)
                for other in others:
                    other.close()
            assert load.buffered
        await broker.close()

    play(scenario)


async def away(load: Any, broker: Any) -> None:
    """Until publishes are buffered, and go on."""
    await come(lambda: held(broker))
    await progress(load, 5)


def take_all(server: MariadbServer, rival: Any) -> list[Any]:
    """Every connection that the server gives, those of the store too."""
    found: list[Any] = []
    while True:
        end_others(rival, {other.thread_id() for other in found})
        try:
            while True:
                found.append(
                    pymysql.connect(host="127.0.0.1", port=server.port, user=mariadb.USER, password=mariadb.PASSWORD)
                )
        except pymysql.MySQLError as error:
            if error.args[0] != TOO_MANY_CONNECTIONS:
                raise
        if not end_others(rival, {other.thread_id() for other in found}):
            return found


def end_others(rival: Any, kept: Collection[int] = ()) -> int:
    """End all but these and this one; how many there were."""
    with rival.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'penstock'"
        )
        others = [id for (id,) in cursor.fetchall() if id not in kept]
        for id in others:
            try:
                cursor.execute(f"KILL {id}")
            except pymysql.MySQLError:
                continue  # it has ended by itself
        return len(others)
