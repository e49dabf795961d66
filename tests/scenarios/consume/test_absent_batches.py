"""A batch that memory knows and the store does not have yet, as while a slot moves: no damage, and tried again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Message
from penstock.model.errors import Unavailable
from penstock.store.sqlite.engine import SqliteStore


def test_what_is_not_in_the_store_yet_is_given_back_and_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with await penstock.open(tmp_path / "q.db") as broker:
            await broker.declare_queue("q", max_attempts=1)
            await broker.publish("q", Message(b"m"))
        async with await penstock.open(tmp_path / "q.db") as broker:

            async def nothing(*_: Any) -> list[Any]:
                return []

            with monkeypatch.context() as away:
                away.setattr(SqliteStore, "read", nothing)
                with pytest.raises(Unavailable, match="try again"):
                    await broker.claim("q")
            claim = await broker.claim("q", wait=5)
            assert claim.payloads() == [b"m"]
            assert [received.attempt for received in claim] == [1]
            assert (await broker.stats("q")).groups[0].dead == 0

    asyncio.run(scenario())
