"""A batch that a read does not find: damage if it had to be there, and otherwise read again."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from penstock import LeaseLost, Unavailable
from penstock.model.rows import BatchRow
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios import shaky
from tests.scenarios.rig import numbered, texts


class Absent:
    """The store of a broker with an empty cache: the next read finds nothing, once it is told to answer."""

    def __init__(self, broker: LocalBroker) -> None:
        self._node = node_of(broker)
        self._read = self._node.store.read
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def _nothing(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        if start > 0:
            return await self._read(lane, start, end, bytes_most)
        self.asked.set()
        await self.answers.wait()
        return []

    def __enter__(self) -> Absent:
        self._node.cache.clear()
        self._patch = patch.object(self._node.store, "read", self._nothing)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()


async def two(machine: shaky.Machine) -> LocalBroker:
    """A queue of two batches."""
    broker = await machine.open()
    await broker.declare_queue("q", max_attempts=1)
    await broker.publish_many("q", numbered(1))
    await broker.publish_many("q", numbered(1, 1))
    return broker


def test_what_is_not_in_the_store_is_damaged_and_keeps_nobody_from_the_others() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await two(machine)
        with Absent(broker) as absent:
            absent.answers.set()
            assert texts(await broker.claim("q", max=2)) == ["1"]
        assert node_of(broker).damage.notes() != []
        assert [one.received.offset for one in await broker.dead("q")] == [0]

    shaky.play(story)


@pytest.mark.parametrize("is_trimmed", [True, False])
def test_what_has_changed_while_it_was_read_is_no_damage(is_trimmed: bool) -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await two(machine)
        with Absent(broker) as absent:
            claiming = asyncio.ensure_future(broker.claim("q"))
            await absent.asked.wait()
            await asyncio.sleep(0.01)
            if is_trimmed:
                await broker.seek("q", "default", to="last")
            else:
                machine.store.fail("before", 1, lambda _: True)
                with pytest.raises(Unavailable):
                    await broker.publish_many("q", numbered(1))
            absent.answers.set()
            with pytest.raises(LeaseLost if is_trimmed else Unavailable):
                await claiming
        assert node_of(broker).damage.notes() == []
        assert await broker.dead("q") == []

    shaky.play(story)
