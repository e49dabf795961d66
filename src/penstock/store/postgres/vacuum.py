"""Vacuums the table of batches after a number of bytes, so that the space of trimmed batches is reused.

Autovacuum looks once a minute and counts rows: a row here is a batch, and a thousand of them may be a gigabyte. Where
another process vacuums the table already, nothing is done. May not know what a batch is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.model.errors import PenstockError

EVERY_BYTES: Final = 128 * 1024 * 1024
"""Bytes stored between two vacuums."""
REST_S: Final = 5.0
"""At least this long between two vacuums: commits come first."""

log = logging.getLogger("penstock.store")


class Vacuum:
    """Counts what is stored, and has the table vacuumed beside the commits."""

    def __init__(self, vacuum: Callable[[], Awaitable[object]]) -> None:
        self._vacuum = vacuum
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    def stored(self, size: int) -> None:
        """Count bytes that were stored."""
        self._bytes += size
        if self._bytes >= EVERY_BYTES and self._task is None:
            self._bytes = 0
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._vacuum()
        except PenstockError as error:
            log.info("the table of batches could not be vacuumed, PostgreSQL does it in time: %s", error)
        await asyncio.sleep(REST_S)
        self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
