"""A claim whose answer is late: what others may have had meanwhile is not handed out."""

from __future__ import annotations

import asyncio

import pytest

from penstock import Message
from penstock.api.ticket import in_task
from penstock.embedded import open_store
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit
from tests.memory_disk import MemoryDisk
from tests.nodes import node_of
from tests.scenarios.rig import ManualClock, turns


class SlowStore(MemoryDisk):
    """Commits wait while the test holds the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    @in_task
    async def apply(self, commit: Commit) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        await super().apply(commit)


def test_a_claim_fails_if_other_nodes_may_own_the_queue_before_its_answer() -> None:
    async def scenario() -> None:
        store = SlowStore()
        broker = await open_store(store, ManualClock())
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"one"))
        store.gate.clear()
        late = asyncio.ensure_future(broker.claim("q"))
        await turns()
        assert store.waiting == 1
        node_of(broker).ownership.lease_for(2.0)  # and nothing was heard of the store since
        store.gate.set()
        with pytest.raises(Unavailable, match="others may own the queue"):
            await late
        await broker.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
