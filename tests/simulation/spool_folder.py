"""A spool's folder in memory that outlives its node: slow, failing, and torn where the node dies in the middle of it.

What a finished append has written stays. Of one that the death of its node interrupts, any part may be there.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, Protocol

from penstock.model.errors import Unavailable
from tests.simulation.faulty_store import Chances

DELAYS_MS: Final = (0, 0, 1, 3)
APPENDS_CRASH: Final = 8
"""So much likelier than elsewhere is a death in the middle of an append: there are few, and there it matters."""


class Host(Protocol):
    """The world around the folder."""

    fault_random: Random

    @property
    def chances(self) -> Chances:
        """How likely each fault is now."""

    def crash(self, index: int) -> None:
        """The node of this index dies here and now."""


class MemoryFolder:
    """The files, and one node's way to them."""

    def __init__(self, host: Host | None = None, index: int = 0) -> None:
        self._host = host
        self._index = index
        self.place = f"node-{index}"
        self.files: dict[str, bytes] = {}
        self.free = 1 << 40
        self.fail_appends = 0
        self.is_severed = False
        self.is_open = False

    @property
    def label(self) -> str:
        return "memory"

    def again(self) -> MemoryFolder:
        """The same files for the next node."""
        folder = MemoryFolder(self._host)
        folder.files, folder.place = self.files, self.place
        return folder

    def sever(self) -> None:
        """Its node is dead: nothing of it arrives any more."""
        self.is_severed = True

    async def names(self) -> list[str]:
        await self._step()
        return sorted(self.files)

    async def read(self, name: str, start: int = 0, size: int = -1) -> bytes:
        await self._step()
        return self.files[name][start : None if size < 0 else start + size]

    async def append(self, name: str, data: bytes) -> None:
        await self._step()
        before = self.files.get(name, b"")
        if self._host is not None:
            # Until it returns, some of it is there, or all of it, or zeros in its place.
            cut = self._host.fault_random.randrange(len(data) + 1)
            torn = data[:cut] + bytes(len(data) - cut) if self._host.fault_random.random() < 0.2 else data[:cut]
            self.files[name] = before + torn
            await self._step(APPENDS_CRASH)
        if self.fail_appends:
            self.fail_appends -= 1
            raise Unavailable("the disk says no")
        self.files[name] = before + data

    async def truncate(self, name: str, size: int) -> None:
        await self._step()
        self.files[name] = self.files[name][:size]

    async def remove(self, name: str) -> None:
        await self._step()
        self.files.pop(name, None)

    async def free_bytes(self) -> int:
        return self.free

    async def close(self) -> None:
        self.is_open = False

    async def _step(self, times: int = 1) -> None:
        if self.is_severed:
            await asyncio.get_running_loop().create_future()
        if self._host is None:
            return
        chances, random = self._host.chances, self._host.fault_random
        if chances.crash and random.random() < chances.crash * times:
            self._host.crash(self._index)
        if chances.delay and not self.is_severed:
            await asyncio.sleep(random.choice(DELAYS_MS) / 1000)
        if self.is_severed:
            await asyncio.get_running_loop().create_future()
