"""What goes by itself: done and old messages, queues of sessions and consumers that left, queues nobody uses."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock import Forbidden, Message, NotFound, OffsetGone
from penstock.node.broker import LocalBroker
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, group_stats, numbered, play, soon, texts, turns, until


async def kept(broker: LocalBroker, queue: str = "q") -> int:
    return (await broker.stats(queue)).messages


# Retention -----------------------------------------------------------------------------------------------


def test_retention_by_age(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", retain_ms=10_000)
        await broker.declare_group("q", "s", kind="stream")
        for _ in range(4):
            await broker.publish_many("q", numbered(5))
            home.pass_time(broker, 4_000)

        async def two_left() -> bool:
            return await kept(broker) == 10

        await until(two_left)
        broker = await home.reopen(broker)
        assert (await broker.read("q", "s")).messages[0].offset == 10
        with pytest.raises(OffsetGone):
            await broker.read_from("q", 9)

        async def none_left() -> bool:
            home.pass_time(broker, 1_000)
            return await kept(broker) == 0

        await until(none_left)

    play(home, scenario)


def test_retention_by_count_and_by_bytes_keeps_whole_batches(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("count", retain_messages=12)
        await broker.declare_queue("bytes", retain_bytes=3_000)
        for _ in range(10):
            await broker.publish_many("count", numbered(5))
            await broker.publish("bytes", Message(random.Random(0).randbytes(990)))
        home.pass_time(broker, 2_000)

        async def trimmed() -> bool:
            return await kept(broker, "count") == 15 and 3 <= await kept(broker, "bytes") <= 4

        await until(trimmed)
        assert (await broker.read_from("count", 35)).messages[0].payload == b"0"
        broker = await home.reopen(broker)
        assert await kept(broker, "count") == 15

    play(home, scenario)


def test_what_a_work_group_still_needs_is_kept_past_every_limit(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", retain_messages=1, retain_ms=1, retain_bytes=1)
        await broker.declare_group("q", "default")
        for number in range(20):
            await broker.publish("q", Message(b"%d" % number))
        held = await broker.claim("q", max=5)
        for _ in range(3):
            home.pass_time(broker, 2_000)
            await turns(50)
        assert await kept(broker) == 20
        await broker.ack(held)

        async def trimmed() -> bool:
            home.pass_time(broker, 1_000)
            return await kept(broker) == 15

        await until(trimmed)
        assert await claim_all(broker, "q") == [str(number) for number in range(5, 20)]

    play(home, scenario)


def test_done_messages_are_kept_as_long_as_the_queue_says(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", keep_done_ms=10_000)
        await broker.publish_many("q", numbered(3))
        await claim_all(broker, "q")
        home.pass_time(broker, 9_000)
        await broker.publish_many("q", numbered(3, 3))
        await claim_all(broker, "q")
        assert await kept(broker) == 6
        await broker.seek("q", to="first")
        assert len(await claim_all(broker, "q")) == 6
        home.pass_time(broker, 10_001)

        async def gone() -> bool:
            home.pass_time(broker, 10)
            return await kept(broker) == 0

        await until(gone)

    play(home, scenario)


def test_room_of_done_messages_is_given_back(file_home: Home) -> None:
    async def scenario(home: Home) -> None:
        assert home.path is not None
        broker = await home.open(events=False)
        await broker.declare_queue("q")
        for _ in range(40):
            await broker.publish_many("q", [Message(bytes(10_000)) for _ in range(40)])
            await claim_all(broker, "q")
        await broker.close()
        assert home.path.stat().st_size < 4_000_000  # of 16 MB published

    play(file_home, scenario)


# Queues that go ------------------------------------------------------------------------------------------


def test_an_exclusive_queue_is_its_sessions_alone_and_ends_with_it(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(Forbidden, match="only a session can declare it"):
            await broker.declare_queue("q", exclusive=True)
        async with broker.session() as session:
            await session.declare_queue("q", exclusive=True)
            await session.publish("q", Message(b"m"))
            assert (await broker.stats("q")).messages == 1  # whoever watches the broker sees all that it holds
            with pytest.raises(Forbidden, match="exclusive to another session"):
                await broker.claim("q")
            await broker.publish("q", Message(b"an answer"))  # what such a queue is for
            async with broker.session() as other:
                for operation in (other.claim("q"), other.declare_queue("q", exclusive=True), other.delete_queue("q")):
                    with pytest.raises(Forbidden):
                        await operation
            assert texts(await session.claim("q", max=2)) == ["m", "an answer"]
        assert (await broker.queues()).keys() == {"$events"}

    play(home, scenario)


def test_an_exclusive_queue_does_not_survive_a_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("shared")
        session = broker.session()
        await (await session.__aenter__()).declare_queue("q", exclusive=True)
        broker = await home.open()
        assert (await broker.queues()).keys() == {"$events", "shared"}

    play(home, scenario)


def test_what_a_session_held_returns_when_it_ends(home: Home) -> None:
    """With and without `attach`: the session's consumer is gone either way."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        for namespace in ("default", "other"):
            await broker.in_namespace(namespace).declare_queue("q")
        for attach in (True, False):
            for namespace in ("default", "other"):
                await broker.in_namespace(namespace).publish("q", Message(b"m"))
                async with broker.session() as session:
                    here = session.in_namespace(namespace)
                    if attach:
                        await here.attach("q")
                    assert texts(await here.claim("q")) == ["m"]
                again = await broker.in_namespace(namespace).claim("q")
                assert [one.attempt for one in again] == [2], (attach, namespace)
                await broker.ack(again)

    play(home, scenario)


def test_an_auto_delete_queue_goes_with_its_last_consumer(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", auto_delete=True)
        await broker.publish("q", Message(b"m"))
        await broker.attach("q", consumer="a")
        await broker.attach("q", consumer="b")
        await broker.detach("q", consumer="a")
        assert texts(await broker.claim("q", consumer="b")) == ["m"]
        await broker.detach("q", consumer="b")
        with pytest.raises(NotFound):
            await broker.publish("q", Message(b"m"))
        await broker.declare_queue("q", auto_delete=True)
        assert await claim_all(broker, "q") == []

    play(home, scenario)


def test_an_unused_queue_is_deleted_and_use_keeps_it(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", unused_ms=10_000)
        for _ in range(3):
            home.pass_time(broker, 9_000)
            await broker.claim("q")
        broker = await home.reopen(broker)
        home.pass_time(broker, 9_999)
        await broker.attach("q", consumer="c")
        home.pass_time(broker, 60_000)
        assert "q" in await broker.queues()
        await broker.detach("q", consumer="c")

        async def gone() -> bool:
            home.pass_time(broker, 5_000)
            await turns()
            return "q" not in await broker.queues()

        await until(gone)

    play(home, scenario)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_read_that_ended_does_not_keep_an_unused_queue(home: Home, how: str) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", unused_ms=10_000)
        await broker.declare_group("q", "s", kind="stream")
        read = asyncio.create_task(broker.read("q", "s", wait=3_600))
        await until(lambda: bool(node_of(broker).waiters._readers))
        if how == "cancel":
            read.cancel()
            with pytest.raises(asyncio.CancelledError):
                await read
        else:
            home.pass_time(broker, 3_600_000)
            assert node_of(broker).waiters._readers
            read.cancel()
            await asyncio.wait([read])

        async def gone() -> bool:
            home.pass_time(broker, 5_000)
            await turns()
            return "q" not in await broker.queues()

        await until(gone)

    play(home, scenario)


def test_a_read_whose_time_was_over_is_forgotten(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        for _ in range(3):
            assert len(await broker.read("q", "s", wait=0.01)) == 0
        assert not node_of(broker).waiters.has_waiters(node_of(broker).catalog.queue("default", "q"))

    play(memory_home, scenario)


def test_an_ephemeral_queue_does_everything_and_is_gone_after_a_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("durable")
        await broker.declare_queue("q", ephemeral=True, max_attempts=1, dead_letter_to="queue:durable")
        await broker.declare_exchange("x", kind="fanout")
        await broker.bind("x", "q")
        await broker.bind("x", "durable")
        await broker.publish_to("x", numbered(3))
        claim = await broker.claim("q", max=3)
        await broker.ack(claim, [0, 1])
        await broker.nack(claim, [2])
        assert (await group_stats(broker, "q")).dead == 1

        async def copied() -> bool:
            return (await broker.stats("durable")).published == 4

        await until(copied)
        async with broker.transaction() as transaction:
            transaction.publish("q", Message(b"t"))
            transaction.publish("durable", Message(b"t"))
        assert texts(await broker.claim("q")) == ["t"]
        broker = await home.reopen(broker)
        assert "q" not in await broker.queues()
        await broker.publish_to("x", Message(b"3"))
        assert await claim_all(broker, "durable") == ["0", "1", "2", "2", "t", "3"]

    play(home, scenario)


def test_a_full_house_of_refused_publishes_keeps_nobody_waiting(memory_home: Home) -> None:
    """What was refused no longer counts as pending: the next publish does not wait for a commit that never comes."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("full", max_length=0)
        await broker.declare_queue("q")
        lanes = set(node_of(broker).catalog.queue("default", "full").lanes)
        for _ in range(20):
            node_of(broker).lanes.drop(lanes)  # the long way in: the lane must be loaded first
            with pytest.raises(Exception, match="max_length"):
                await soon(broker.publish("full", Message(bytes(1 << 22))))
        await soon(broker.publish("q", Message(bytes(1 << 22))))

    play(memory_home, scenario)


def test_the_id_of_a_deleted_queue_is_never_given_again(file_home: Home) -> None:
    """Whoever kept offsets of the old one, in a checkpoint or a lake, must not take the new one for it."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        first = (await broker.lanes("q")).queue_id
        await broker.delete_queue("q")
        broker = await home.open()
        await broker.declare_queue("q")
        assert (await broker.lanes("q")).queue_id > first

    play(file_home, scenario)
