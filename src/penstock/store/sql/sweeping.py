"""Sweeping leftovers: rows that are trimmed or deleted already, removed in slices beside the commits.

Trimming or deleting a long log at once would be a statement of minutes. A commit removes some and notes the rest in the
database; what is noted is invisible from then on. Here is the task that goes on with it until nothing is noted, also
after a restart. It may not know any database. Next stops: `store/postgres/engine.py`, `store/mysql/engine.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from penstock.model.errors import PenstockError, Unavailable

Result = TypeVar("Result")

REST_S: Final = 0.02
"""At the least between two slices: the database is for the commits first."""
AGAIN_S: Final = 5.0
"""After a slice that failed."""

SLICE: Final = 1000
"""Batches that one commit, or one slice of sweeping, removes of a lane at the most."""
SMALL_SLICE: Final = 5 * SLICE
"""The same of rows without a body."""
SWEEPS_MOST: Final = 3
"""How often a commit waits for what is left of its lane's past to be swept, before it fails."""

log = logging.getLogger("penstock.store")


class LeftOver(Unavailable):
    """A commit writes where leftovers are: they have to be swept first. Nothing of the commit is applied."""

    code = "left_over"
    is_refused = True


async def apply_swept(
    apply: Callable[[], Awaitable[Result]], lanes: Sequence[int], sweep: Callable[[int], Awaitable[bool]]
) -> Result:
    """Apply a commit to these lanes; where rows are in its way, remove them first."""
    for _ in range(SWEEPS_MOST):
        try:
            return await apply()
        except LeftOver:
            for lane in lanes:
                while await sweep(lane):
                    pass
    return await apply()


class Sweeper:
    """Runs slices, one after another, whenever there may be something to sweep."""

    def __init__(self, sweep: Callable[[], Awaitable[bool]]) -> None:
        """`sweep` removes a slice and says whether there was anything to remove."""
        self._sweep = sweep
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False

    def wake(self) -> None:
        """There may be something to sweep."""
        self._is_wanted = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._is_wanted:
            self._is_wanted = False
            started = loop.time()
            try:
                found = await self._sweep()
            except PenstockError as error:
                log.warning("sweeping what was trimmed or deleted goes on in %.0f s: %s", AGAIN_S, error)
                self._is_wanted = True
                await asyncio.sleep(AGAIN_S)
                continue
            if found:
                self._is_wanted = True
                # As long at rest as at work.
                await asyncio.sleep(max(REST_S, loop.time() - started))
        self._task = None
