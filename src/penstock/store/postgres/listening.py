"""A connection that waits for PostgreSQL to say that applications have enqueued something.

It is reconnected when it is lost, and nothing depends on it: behind a pooler in transaction mode no notification
arrives, and the node polls anyway. Knows no table; next stop: `engine.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.store.postgres.pool import StoreAddress
from penstock.store.postgres.schema import CHANNEL

if TYPE_CHECKING:
    import asyncpg

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 30.0

log = logging.getLogger("penstock.store.postgres")


class Listener:
    """Calls `wake` for each notification of a schema, and whenever the connection is made again."""

    def __init__(self, address: StoreAddress, seconds: float, wake: Callable[[], object]) -> None:
        self._address = address
        self._seconds = seconds
        self._wake = wake
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            try:
                await self._listen()
                pause_s = PAUSE_S
            except Exception as error:  # of whatever kind: the node polls meanwhile
                log.info("no notifications of %s for now: %s", self._address.label, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _listen(self) -> None:
        """Until the connection is lost."""
        import asyncpg

        lost = asyncio.Event()
        connection: asyncpg.Connection[Any] = await asyncpg.connect(
            self._address.url, timeout=self._seconds, command_timeout=self._seconds, statement_cache_size=0
        )
        try:
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(CHANNEL, self._notified)
            self._wake()  # for what came before
            await lost.wait()
        finally:
            with contextlib.suppress(Exception):
                connection.terminate()

    def _notified(self, _connection: object, _pid: int, _channel: str, schema: object) -> None:
        if schema == self._address.schema:
            self._wake()
