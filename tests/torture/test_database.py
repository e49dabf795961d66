"""The database of torture: what was answered is there after promotions and crashes, with a standby that has it too."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.databases.postgres import is_there
from tests.torture.database import TorturedDatabase

pytestmark = pytest.mark.skipif(not is_there(), reason="there is no PostgreSQL")


def asked(database: TorturedDatabase, statement: str, *values: object, seconds: float = 60) -> list[Any]:
    """The first column of what a statement finds."""

    async def main() -> list[Any]:
        connection = await asyncpg.connect(f"postgresql://penstock@127.0.0.1:{database.port}/postgres")
        try:
            return [row[0] for row in await asyncio.wait_for(connection.fetch(statement, *values), seconds)]
        finally:
            await connection.close()

    return asyncio.run(main())


def test_each_promotion_keeps_what_was_answered() -> None:
    led_by: list[int] = []
    database = TorturedDatabase(led_by.append)
    try:
        led_by.append(database.port)
        asked(database, "CREATE TABLE answered (number integer)")
        for number, happen in enumerate((database.fail_over, database.crash, database.fail_over)):
            asked(database, "INSERT INTO answered VALUES ($1)", number)
            happen(0.0)
            database.heal()
            assert asked(database, "SELECT number FROM answered ORDER BY number") == list(range(number + 1))
            assert asked(database, "SELECT sync_state FROM pg_stat_replication") == ["sync"]
        assert len(set(led_by)) == 3
        assert led_by[-1] == database.port
    finally:
        database.close()


def test_no_promotion_without_a_standby_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the leader killed; and it answers no commit that is on its own disk alone."""
    database = TorturedDatabase(lambda _: None)
    try:
        assert database._standby is not None
        database._standby.stop()
        leader = database.port
        monkeypatch.setattr("tests.torture.database.IN_SYNC_S", 0.5)
        with pytest.raises(AssertionError, match="does not follow"):
            database.fail_over(0.0)
        assert database.port == leader
        with pytest.raises(TimeoutError):
            asked(database, "CREATE TABLE alone ()", seconds=1)
    finally:
        monkeypatch.undo()
        database.close()
