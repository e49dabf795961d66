"""A batch that a read does not find: damage if it had to be there, and otherwise read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from unittest.mock import patch

import pytest

from penstock import DeadMessage, LeaseLost, Unavailable
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios import shaky
from tests.scenarios.rig import numbered, texts


class Absent:
    """The store of a broker with an empty cache: the next read finds nothing, once it is told to answer.

    With `is_late`, that read finds what the store has when it is told to answer.
    """

    def __init__(self, broker: LocalBroker, method: str = "read", *, is_late: bool = False) -> None:
        self._node = node_of(broker)
        self._method = method
        self._is_late = is_late
        self._read: Callable[..., Awaitable[Sequence[object]]] = getattr(self._node.store, method)
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def _nothing(self, lane: int, start: int, *rest: int) -> Sequence[object]:
        if start > 0:
            return await self._read(lane, start, *rest)
        self.asked.set()
        await self.answers.wait()
        return await self._read(lane, start, *rest) if self._is_late else []

    def __enter__(self) -> Absent:
        self._node.cache.clear()
        self._patch = patch.object(self._node.store, self._method, self._nothing)
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


@pytest.mark.parametrize("in_pages", [False, True])
def test_dead_letters_that_go_while_they_are_listed_are_listed(in_pages: bool) -> None:
    """No claim or reader needs their batches any more, nor does the lane: only the list does."""

    async def listed(broker: LocalBroker) -> Sequence[DeadMessage]:
        return (await broker.dead_page("q")).dead if in_pages else await broker.dead("q")

    async def story(machine: shaky.Machine) -> None:
        broker = await two(machine)
        claim = await broker.claim("q", max=2)
        await broker.reject(claim)
        with Absent(broker, is_late=True) as absent:
            listing = asyncio.ensure_future(listed(broker))
            await absent.asked.wait()
            assert await broker.purge_dead("q") == 2
            await broker.publish_many("q", numbered(1, 2))
            absent.answers.set()
            assert [one.received.offset for one in await listing] == [0, 1]
        await broker.publish_many("q", numbered(1, 3))
        assert (await broker.lanes("q")).lanes[0].first == 2

    shaky.play(story)


@pytest.mark.parametrize(
    ("method", "ask"), [("read", lambda broker: broker.scan("q", 0, 0, 2)), ("heads", lambda broker: broker.lanes("q"))]
)
def test_a_look_at_a_lane_that_was_given_up_meanwhile_finds_no_damage(
    method: str, ask: Callable[[LocalBroker], Awaitable[object]]
) -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await two(machine)
        node = node_of(broker)
        node.lanes.drop({node.catalog.queues["default", "q"].lanes[0]})  # it is loaded without heads
        with Absent(broker, method) as absent:
            asking = asyncio.ensure_future(ask(broker))
            await absent.asked.wait()
            machine.store.fail("before", 1, lambda _: True)
            with pytest.raises(Unavailable):
                await broker.publish_many("q", numbered(1))
            absent.answers.set()
            with pytest.raises(Unavailable, match="changed while it was read"):
                await asking

    shaky.play(story)
