"""A store that does four commits at once, of slots that have nothing in common, and ends them in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.api.ticket import in_task
from penstock.model.rows import Commit
from penstock.store.contract import Capabilities
from tests.memory_disk import MemoryDisk


class OverlappingStore(MemoryDisk):
    """Every other commit takes longer than the one after it; two of one slot never run side by side."""

    capabilities = Capabilities(commits_under_way=4)

    def __init__(self, now_ms: Callable[[], int] | None = None, *, enqueues: bool = False) -> None:
        super().__init__(now_ms, enqueues=enqueues)
        self._applying: list[set[int]] = []
        self._count = 0
        self.overlaps = 0
        """Commits that began while another was under way."""

    def clone(self) -> MemoryDisk:
        copy = OverlappingStore()
        vars(copy).update(vars(super().clone()))
        return copy

    @in_task
    async def apply(self, commit: Commit) -> None:
        slots = set(commit.epochs)
        assert len(self._applying) < self.capabilities.commits_under_way
        assert all(slots.isdisjoint(others) for others in self._applying), "two commits of one slot at once"
        self._applying.append(slots)
        self.overlaps += len(self._applying) > 1
        self._count += 1
        try:
            for _ in range(self._count % 2 * 6):
                await asyncio.sleep(0)
            await super().apply(commit)
        finally:
            self._applying.remove(slots)
