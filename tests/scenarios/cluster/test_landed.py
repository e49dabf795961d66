"""Where messages of another node's publish went, asked of an owner that did not append them itself."""

from __future__ import annotations

import pytest

from penstock import Message
from penstock.model.appended import Appended
from penstock.node.cluster.remote_publish import Landing
from tests.nodes import node_of
from tests.scenarios.rig import Home, play


@pytest.mark.parametrize("count", [3, 60])
def test_duplicates_of_a_publish_are_found_where_they_were_first(memory_home: Home, count: int) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("a", dedup_window_ms=60_000)
        await broker.publish("a", Message(b"0", dedup_id="id-1"))
        messages = [Message(b"x", dedup_id=f"id-{index}" if index % 3 else None) for index in range(count)]
        receipt = await broker.publish_many("a", messages, publish_id="p")
        node = node_of(broker)
        [lane] = node.catalog.queue("default", "a").lanes
        ids = [(message.partition, message.dedup_id) for message in messages]
        [found] = await node.outbox.landed([Landing(1, lane, count, "p", ids)])
        assert found.duplicates == {1: 0}
        assert Appended(found.base, found.count, found.duplicates).offsets() == [place.offset for place in receipt]

    play(memory_home, scenario)
