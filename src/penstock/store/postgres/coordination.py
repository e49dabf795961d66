"""Members and slots on PostgreSQL: a connection of their own, and what their queries answer.

Every change of membership is one call of one function: one statement, so a node that is paused in the middle holds no
lock for longer than the database needs. The clock is the database's. Next stop: `queries.sql`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penstock.model.rows import ClusterView, NodeRow, SlotRow
from penstock.store.postgres.pool import Pool, StoreAddress


class MemberCalls:
    """A connection of its own for membership, opened when first wanted: a heartbeat never waits behind reads."""

    def __init__(self, url: str, seconds: float) -> None:
        self._url = url
        self._seconds = seconds
        self._pool: Pool | None = None
        self._opening = asyncio.Lock()

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        async with self._opening:
            if self._pool is None:
                self._pool = await Pool.open(StoreAddress.parse(self._url), connections=1, seconds=self._seconds)
        return await self._pool.fetch(statement, *values)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()


def view_of(row: Any) -> ClusterView:
    """What a heartbeat answers."""
    now_ms, is_member, version, nodes, slots = row
    return ClusterView(
        now_ms,
        is_member,
        version,
        [_node(*values) for values in msgspec.json.decode(nodes or "[]")],
        [SlotRow(*values) for values in msgspec.json.decode(slots or "[]")],
    )


def _node(incarnation: int, name: str, url: str, version: str, lease_ms: int, joined_ms: int, age_ms: int) -> NodeRow:
    return NodeRow(incarnation, name, url, version, lease_ms, joined_ms, max(age_ms, 0))
