"""Background work of a node: tasks that nobody waits for, ended when the node is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("penstock.node")


class Tasks:
    """The tasks that run now."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background; a failure is logged, and ends nothing else."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("background work failed: %s", error)

    async def close(self) -> None:
        """Cancel every task, and wait for the last."""
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
