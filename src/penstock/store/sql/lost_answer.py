"""Commits whose answer got lost: was the commit applied, or can it still be?

Each open store is a writer with a generation, both in the database's table `writers`. A commit names them, and the
database refuses it when the generation has moved on. When an answer is lost, the store raises its generation before
anything else happens: from then on that commit is either in force or never will be, and a read tells which. It may not
know any database. Next stops: `store/postgres/engine.py`, `store/mysql/engine.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.model.errors import Fenced, InvalidArgument, PenstockError, StoreCorrupt

Result = TypeVar("Result")


class Writer:
    """One open store as the database knows it. One commit at a time."""

    def __init__(self, supersede: Callable[[], Awaitable[int]]) -> None:
        """`supersede` waits for a commit of ours that is under way, and raises and returns our generation."""
        self.name = secrets.token_hex(16)
        self.generation = 1
        self._supersede = supersede
        self._is_unsure = False
        """The answer of a commit was lost, and its generation is still ours."""
        self._settling = asyncio.Lock()
        self._writing = asyncio.Lock()

    async def commit(self, apply: Callable[[], Awaitable[Result]]) -> Result:
        """Apply a commit, once it is certain what became of the one before."""
        async with self._writing:
            await self.settle()
            try:
                return await apply()
            except (Fenced, InvalidArgument, StoreCorrupt):
                raise  # the database said no
            except BaseException as error:
                self._is_unsure = not (isinstance(error, PenstockError) and error.is_refused)
                raise

    async def settle(self) -> None:
        """Make sure that a commit whose answer was lost is in force by now or never will be. Reads wait for it."""
        if not self._is_unsure:
            return
        async with self._settling:
            if self._is_unsure:
                self.generation = await self._supersede()
                self._is_unsure = False

    async def end(self, say_goodbye: Callable[[], Awaitable[None]]) -> None:
        """A last call, behind the last commit."""
        async with self._writing:
            await say_goodbye()
