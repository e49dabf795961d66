"""One caller alone, and callers beside each other: who of them lets the event loop wait for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.model.rows import Commit
from penstock.node.commit.loop import ALONE_COMMITS
from penstock.store.sqlite.engine import SqliteStore


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each commit said of being alone."""
    apply_soon, said = SqliteStore.apply_soon, list[bool]()

    def listen(
        store: SqliteStore, commit: Commit, done: Callable[[Exception | None], None], *, is_alone: bool = False
    ) -> bool:
        said.append(is_alone)
        return apply_soon(store, commit, done, is_alone=is_alone)

    monkeypatch.setattr(SqliteStore, "apply_soon", listen)
    return said


def test_one_caller_is_soon_taken_to_be_alone_until_the_next_look(tmp_path: Path, said: list[bool]) -> None:
    async def main() -> None:
        async with await penstock.open(tmp_path / "penstock.db") as broker:
            await broker.declare_queue("jobs")
            said.clear()
            for _ in range(4 * ALONE_COMMITS):
                await broker.publish("jobs", penstock.Message(b"1"))
            assert not any(said[: ALONE_COMMITS - 8])
            assert any(said)
            assert not all(said[2 * ALONE_COMMITS :])

    asyncio.run(main())


def test_a_second_caller_ends_it(tmp_path: Path, said: list[bool]) -> None:
    async def main() -> None:
        async with await penstock.open(tmp_path / "penstock.db") as broker:
            await broker.declare_queue("jobs")

            async def call(count: int) -> None:
                for _ in range(count):
                    await broker.publish("jobs", penstock.Message(b"1"))

            await call(2 * ALONE_COMMITS)
            assert any(said)
            await asyncio.gather(call(3 * ALONE_COMMITS), call(3 * ALONE_COMMITS))
            assert not any(said[-ALONE_COMMITS:])

    asyncio.run(main())
