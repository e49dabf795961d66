"""Renews a member's lease from a thread. asyncpg needs an event loop, so the thread has one, with its own connection.

Next stop: `node/cluster/renewal.py`.
"""

from __future__ import annotations

import asyncio

from penstock.store.postgres.pool import MemberCalls, StoreAddress


class PostgresRenewing:
    """Used from one thread, which is not the event loop's."""

    def __init__(self, address: StoreAddress, statement: str, seconds: float) -> None:
        self._calls = MemberCalls(address, seconds)
        self._statement = statement
        self._runner: asyncio.Runner | None = None

    def renew(self, incarnation: int) -> bool:
        if self._runner is None:
            self._runner = asyncio.Runner()
        [(_, is_member, *_)] = self._runner.run(self._calls.fetch(self._statement, incarnation))
        return bool(is_member)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.run(self._calls.close())
            self._runner.close()
