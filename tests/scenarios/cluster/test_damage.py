"""Damage that another node meets: what its owner passes over is named in the answer of the node that was asked."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from penstock import AsyncClient, DamagedRange
from penstock.api.broker import Broker
from penstock.model.rows import home_slot
from penstock.node.broker.cluster import ClusterBroker
from penstock.store.memory.engine import MemoryStore
from tests.damage import flipped
from tests.nodes import node_of
from tests.scenarios.cluster.test_every_operation import two_nodes
from tests.scenarios.rig import numbered, texts

GAP = DamagedRange(0, 2, 4)


async def damaged_queue(owner: ClusterBroker, part: str) -> str:
    """A queue of the owner's with three batches, of which the second is damaged where it is stored."""
    owned = owner.cluster.ownership.owned
    queue = next(name for name in map("q{}".format, range(999)) if home_slot("default", name) in owned)
    await owner.declare_queue(queue)
    for batch in range(3):
        await owner.publish_many(queue, numbered(2, batch * 2, key="k"))
    node = node_of(owner._local)
    [lane] = node.catalog.queue("default", queue).lanes
    assert isinstance(node.store, MemoryStore)
    rows = node.store._lanes[lane].batches
    rows[2] = msgspec.structs.replace(rows[2], **{part: flipped(getattr(rows[2], part), -1)})
    node.lanes.drop({lane})
    node.cache.forget_lanes({lane})
    return queue


async def look(asked: Broker, queue: str) -> None:
    read = await asked.read_from(queue, 0)
    assert (texts(read), read.damaged) == (["0", "1", "4", "5"], [GAP])
    page = await asked.browse(queue)
    assert (texts(page), page.damaged) == (["0", "1", "4", "5"], [GAP])
    scan = await asked.scan(queue, 0, 0, 6)
    assert ([one.offset for one in scan.messages()], scan.damaged) == ([0, 1, 4, 5], [GAP])
    await asked.declare_group(queue, "s", kind="stream")
    reads = [await asked.read(queue, "s", max=2) for _ in range(3)]
    assert [(texts(one), one.damaged) for one in reads] == [(["0", "1"], []), ([], [GAP]), (["4", "5"], [])]
    claim = await asked.claim(queue, max=10)
    assert claim.payloads() == [b"0", b"1", b"4", b"5"]
    await asked.reject(claim)
    dead = await asked.dead(queue)
    assert ([one.received.offset for one in dead], dead.damaged) == ([0, 1, 4, 5], [GAP])


@pytest.mark.parametrize("part", ["body", "meta"])
def test_in_process_and_over_http(part: str) -> None:
    async def scene() -> None:
        async with two_nodes() as (asked, owner, url):
            queue = await damaged_queue(owner, part)
            await look(asked, queue)
            dead, damaged, after = [], [], None
            while True:
                page = await asked.dead_page(queue, after=after, max=1)
                dead += [one.received.offset for one in page.dead]
                damaged += page.damaged
                after = page.next
                if after is None:
                    break
            assert (dead, damaged) == ([0, 1, 4, 5], [GAP])
            await owner.delete_queue(queue)
            queue = await damaged_queue(owner, part)
            async with AsyncClient(url, token="secret") as client:
                await look(client, queue)

    asyncio.run(asyncio.wait_for(scene(), 60))
