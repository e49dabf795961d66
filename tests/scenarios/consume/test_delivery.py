"""Claims, settles and what comes back: the scenarios that queues get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock import Closed, InvalidArgument, LeaseLost, Message, NotFound, Verdict, WrongKind
from penstock.api.ticket import in_task
from penstock.model.options import Expired
from penstock.model.rows import Commit, LaneImage
from penstock.node.broker import LocalBroker
from tests.memory_disk import MemoryDisk
from tests.nodes import node_of
from tests.scenarios.rig import (
    Home,
    cancelled,
    claim_all,
    group_stats,
    is_outbox_empty,
    lease,
    messages,
    numbered,
    play,
    soon,
    texts,
    turns,
    until,
)


def test_a_reader_never_skips_a_late_writer(home: Home) -> None:
    """Offsets are given in commit order: whatever producers do at once, a reader that follows sees every message."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "reader", kind="stream", auto_commit=False)
        offsets: dict[str, int] = {}

        async def produce(name: str) -> None:
            for number in range(40):
                published = await broker.publish("q", Message(f"{name}{number}".encode()))
                offsets[f"{name}{number}"] = published.offset
                await turns(number % 3)

        seen: list[tuple[int, str]] = []

        async def follow() -> None:
            while len(seen) < 120:
                read = await broker.read("q", "reader", max=7, wait=5)
                seen.extend((one.offset, one.payload.decode()) for one in read.messages)

        await soon(asyncio.gather(follow(), produce("a"), produce("b"), produce("c")))
        assert [offset for offset, _ in seen] == list(range(120))
        assert {text: offset for offset, text in seen} == offsets
        for name in "abc":
            assert [text for _, text in seen if text[0] == name] == [f"{name}{number}" for number in range(40)]

    play(home, scenario)


def test_acks_out_of_order_then_a_crash_bring_back_only_the_unacked(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=10_000)
        await broker.publish_many("q", numbered(10))
        claim = await broker.claim("q", max=10)
        for offsets in ([7], [2, 3], [9], [0]):
            await broker.ack(claim, offsets)
        broker = await home.open()  # the first was never closed
        assert len(await broker.claim("q", max=10)) == 0
        home.pass_time(broker, 10_000)
        again = await broker.claim("q", max=10)
        assert again.offsets() == [1, 4, 5, 6, 8]
        assert {one.attempt for one in again} == {2}

    play(home, scenario)


def test_a_lease_outlives_a_restart_and_can_still_be_settled(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(3))
        token = lease(await broker.claim("q", max=3))
        broker = await home.reopen(broker)
        assert (await group_stats(broker, "q")).leased == 3
        await broker.ack(token, [1])
        broker = await home.reopen(broker)
        await broker.ack(token)
        assert (await group_stats(broker, "q")).lag == 0
        with pytest.raises(LeaseLost):
            await broker.ack(token)

    play(home, scenario)


def test_a_mixed_settle_of_success_failure_success_is_one_step(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", backoff_ms=500, backoff_jitter=0)
        await broker.publish_many("q", numbered(3))
        claim = await broker.claim("q", max=3)
        await broker.settle(claim, [Verdict("ack", 0, 1), Verdict("nack", 1, 2, error="boom"), Verdict("ack", 2, 3)])
        assert len(await broker.claim("q", max=3)) == 0
        broker = await home.reopen(broker)
        home.pass_time(broker, 500)
        again = await broker.claim("q", max=3)
        assert [(one.offset, one.attempt) for one in again] == [(1, 2)]

    play(home, scenario)


def test_a_settle_with_one_wrong_verdict_does_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(3))
        claim = await broker.claim("q", max=2)
        with pytest.raises(LeaseLost, match="2 to 2"):
            await broker.settle(claim, [Verdict("ack", 0, 1), Verdict("ack", 2, 3)])
        with pytest.raises(InvalidArgument, match="settled twice"):
            await broker.settle(claim, [Verdict("ack", 0, 2), Verdict("nack", 1, 2)])
        assert (await group_stats(broker, "q")).leased == 2
        await broker.ack(claim)

    play(home, scenario)


def test_a_stuck_head_holds_back_nobody(file_home: Home) -> None:
    """One message is held for ever: 10,000 behind it flow, through a cache of 64 KiB, and leave one lease behind."""

    async def scenario(home: Home) -> None:
        broker = await home.open(cache_bytes=64 * 1024)
        await broker.declare_queue("q", lease_ms=3_600_000)
        await broker.publish("q", Message(b"stuck"))
        stuck = await broker.claim("q")
        for start in range(0, 10_000, 500):
            await broker.publish_many(
                "q", [Message(b"%d" % number + bytes(90)) for number in range(start, start + 500)]
            )
        found: list[int] = []
        while len(claim := await broker.claim("q", max=250)):
            found += [int(payload[:-90]) for payload in claim.payloads()]
            await broker.ack(claim)
            assert node_of(broker).cache.bytes <= 64 * 1024
        assert found == list(range(10_000))
        (image,) = await node_of(broker).store.load(node_of(broker).catalog.queue("default", "q").lanes, 10)
        assert (len(image.leases), len(image.waiting), len(image.dead)) == (1, 0, 0)
        assert (await group_stats(broker, "q")).oldest_offset == 0
        broker = await home.reopen(broker)
        await broker.ack(lease(stuck))
        assert (await broker.stats("q")).messages == 0

    play(file_home, scenario)


def test_a_stuck_partition_holds_back_only_itself(home: Home) -> None:
    """5,000 messages stand behind a partition's stuck head; 5,000 of other partitions flow between them."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True, lease_ms=3_600_000)
        await broker.publish("q", Message(b"head", partition="stuck"))
        stuck = await broker.claim("q")
        for start in range(0, 10_000, 1_000):
            await broker.publish_many(
                "q",
                [
                    Message(b"%d" % number, partition="stuck" if number % 2 else f"p{number % 40}")
                    for number in range(start, start + 1_000)
                ],
            )
        assert sorted(map(int, await claim_all(broker, "q", max=700))) == list(range(0, 10_000, 2))
        broker = await home.reopen(broker)
        assert len(await broker.claim("q", max=10)) == 0
        await broker.ack(lease(stuck))
        assert list(map(int, await claim_all(broker, "q", max=700))) == list(range(1, 10_000, 2))

    play(home, scenario)


def test_a_poison_message_whose_consumer_always_dies_is_dead_after_its_attempts(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=3, lease_ms=1_000)
        await broker.publish_many("q", messages("poison", "fine"))
        for attempt in (1, 2, 3):
            claim = await broker.claim("q", consumer=f"victim-{attempt}")
            assert [(one.payload, one.attempt) for one in claim] == [(b"poison", attempt)]
            broker = await home.open()  # the consumer took its broker along
            home.pass_time(broker, 1_000)
            await until(lambda broker=broker: _nothing_leased(broker))
        (dead,) = await broker.dead("q")
        assert (dead.received.payload, dead.reason, dead.attempts, dead.consumer) == (
            b"poison",
            "attempts",
            3,
            "victim-3",
        )
        assert dead.error == "the lease expired"
        assert await claim_all(broker, "q") == ["fine"]

    async def _nothing_leased(broker: LocalBroker) -> bool:
        return (await group_stats(broker, "q")).leased == 0

    play(home, scenario)


def test_backoff_grows_and_dies_after_the_last_attempt(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue(
            "q", max_attempts=4, backoff_ms=100, backoff_factor=3, backoff_max_ms=500, backoff_jitter=0
        )
        await broker.publish("q", Message(b"m"))
        for wait_ms in (100, 300, 500):
            await broker.nack(await broker.claim("q"), error="no")
            home.pass_time(broker, wait_ms - 1)
            assert len(await broker.claim("q")) == 0
            home.pass_time(broker, 1)
        await broker.nack(await broker.claim("q"), error="the last")
        assert [(dead.attempts, dead.error) for dead in await broker.dead("q")] == [(4, "the last")]

    play(home, scenario)


def test_release_and_postpone_spend_no_attempt_and_nack_does(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=2)
        await broker.publish("q", Message(b"m"))
        for _ in range(5):
            claim = await broker.claim("q")
            assert [one.attempt for one in claim] == [1]
            await broker.release(claim)
        for _ in range(3):
            await broker.postpone(await broker.claim("q"), 2.5)
            home.pass_time(broker, 2_499)
            assert len(await broker.claim("q")) == 0
            home.pass_time(broker, 1)
        await broker.nack(await broker.claim("q"), delay=0)
        assert [one.attempt for one in await broker.claim("q")] == [2]

    play(home, scenario)


def test_extend_keeps_a_lease_past_its_deadline(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=1_000)
        await broker.publish("q", Message(b"m"))
        claim = await broker.claim("q")
        assert claim.deadline_ms == clock.time_ms + 1_000
        home.pass_time(broker, 900)
        assert await broker.extend(claim, 2) == clock.time_ms + 2_000
        home.pass_time(broker, 1_999)
        assert len(await broker.claim("q")) == 0
        home.pass_time(broker, 1)
        with pytest.raises(LeaseLost):
            await broker.extend(claim, 2)
        with pytest.raises(LeaseLost):
            await broker.ack(claim)
        assert [one.attempt for one in await broker.claim("q")] == [2]

    play(home, scenario)


def test_the_deadline_that_a_consumer_is_told_is_the_one_that_holds() -> None:
    """A slow commit takes from the lease's time; the consumer must not believe in more than is left."""

    home = Home(None)
    clock = home.hold_time()
    slow = False

    class SlowStore(MemoryDisk):
        @in_task
        async def apply(self, commit: Commit) -> None:
            if slow:
                clock.time_ms += 400
            await super().apply(commit)

        def clone(self) -> MemoryDisk:
            return self

    home._memory = SlowStore()

    async def scenario(home: Home) -> None:
        nonlocal slow
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=1_000)
        await broker.claim("q")
        await broker.publish("q", Message(b"m"))
        asked_ms, slow = clock.time_ms, True
        claim = await broker.claim("q")
        slow = False
        assert claim.deadline_ms == asked_ms + 1_000

    play(home, scenario)


def test_at_most_once_settles_as_it_hands_out(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(5))
        claim = await broker.claim("q", max=3, ack=True)
        assert (texts(claim), claim.lease) == (["0", "1", "2"], None)
        with pytest.raises(InvalidArgument, match="holds no lease"):
            await broker.ack(claim)
        broker = await home.open()
        assert await claim_all(broker, "q") == ["3", "4"]

    play(home, scenario)


# Waiting -------------------------------------------------------------------------------------------------


def test_a_long_poll_is_woken_by_the_publish_and_not_by_time(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        order: list[str] = []

        async def consume() -> None:
            order.append(texts(await broker.claim("q", wait=3_600))[0])

        poll = asyncio.create_task(consume())
        await until(lambda: node_of(broker).waiters.count == 1)
        await broker.publish("q", Message(b"first"))
        order.append("published")
        await soon(poll)
        await broker.publish("q", Message(b"second"))
        order.append("published again")
        assert sorted(order[:2]) == ["first", "published"]
        assert order[2] == "published again"

    play(home, scenario)


@pytest.mark.parametrize("how", ["nack", "release", "delay", "lease", "resume", "redrive", "seek", "leave"])
def test_a_long_poll_is_woken_by_whatever_makes_a_message_claimable(home: Home, how: str) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=50 if how == "lease" else 60_000, keep_done_ms=60_000)
        await broker.publish("q", Message(b"m", delay_ms=50 if how == "delay" else 0))
        claim = await broker.claim("q", consumer="holder") if how not in ("delay", "resume") else None
        if how == "resume":
            await broker.pause("q")
        if how == "redrive":
            assert claim is not None
            await broker.reject(claim)
        if how == "seek":
            assert claim is not None
            await broker.ack(claim)
        poll = asyncio.create_task(broker.claim("q", wait=3_600, consumer="waiter"))
        await until(lambda: node_of(broker).waiters.count == 1 or poll.done())  # 50 ms may be over by then
        if how == "nack":
            assert claim is not None
            await broker.nack(claim, delay=0.05)
        elif how == "release":
            assert claim is not None
            await broker.release(claim)
        elif how == "resume":
            await broker.resume("q")
        elif how == "redrive":
            assert await broker.redrive("q") == 1
        elif how == "seek":
            await broker.seek("q", offset=0)
        elif how == "leave":
            await broker.detach("q", consumer="holder")
        assert texts(await soon(poll)) == ["m"]

    play(home, scenario)


def test_waiting_consumers_are_served_in_their_order_and_each_message_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        polls = []
        for number in range(20):
            polls.append(asyncio.create_task(broker.claim("q", wait=60, consumer=f"c{number}")))
            await until(lambda number=number: node_of(broker).waiters.count == number + 1)
        for number in range(20):
            await broker.publish("q", Message(b"%d" % number))
        claims = await soon(asyncio.gather(*polls))
        assert [texts(claim) for claim in claims] == [[str(number)] for number in range(20)]

    play(home, scenario)


def test_a_poll_on_several_lanes_misses_nothing_that_comes_while_a_lane_is_loaded(memory_home: Home) -> None:
    """The first lane was looked at, the second is being read from the store: a message comes to the first."""

    held: set[int] = set()

    class HeldStore(MemoryDisk):
        loading: asyncio.Event
        go_on: asyncio.Event

        async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
            if held & set(lanes):
                self.loading.set()
                await self.go_on.wait()
            return await super().load(lanes, dedup_most)

        def clone(self) -> MemoryDisk:
            return self

    async def scenario(home: Home) -> None:
        store = home._memory = HeldStore()
        store.loading, store.go_on = asyncio.Event(), asyncio.Event()
        broker = await home.open()
        await broker.declare_queue("q", lanes=2)
        await broker.claim("q")
        queue = node_of(broker).catalog.queue("default", "q")
        node_of(broker).lanes.drop({queue.lanes[1]})
        queue.rotation = 0
        held.add(queue.lanes[1])
        poll = asyncio.create_task(broker.claim("q", wait=3_600))
        await soon(store.loading.wait())
        queue.rotation = 0
        assert (await broker.publish("q", Message(b"m"))).lane == 0
        store.go_on.set()
        assert texts(await soon(poll)) == ["m"]

    play(memory_home, scenario)


def test_a_stream_reader_misses_nothing_that_is_committed_while_it_looks(home: Home) -> None:
    """The read and the publish share one commit: the reader looked before it, and must look again after it."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        for number in range(20):
            read, _ = await soon(
                asyncio.gather(broker.read("q", "s", wait=3_600), broker.publish("q", Message(b"%d" % number)))
            )
            assert texts(read) == [str(number)]

    play(home, scenario)


def test_a_claim_waits_for_its_minimum(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(2))
        poll = asyncio.create_task(broker.claim("q", min=4, max=10, wait=3_600))
        await until(lambda: node_of(broker).waiters.count == 1)
        await broker.publish("q", Message(b"2"))
        await turns()
        assert not poll.done()
        await broker.publish_many("q", numbered(2, 3))
        assert texts(await soon(poll)) == ["0", "1", "2", "3", "4"]

    play(home, scenario)


def test_a_claim_that_waited_in_vain_for_its_minimum_takes_what_there_is(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(2))
        claim = await soon(broker.claim("q", min=4, max=10, wait=0.05))
        assert texts(claim) == ["0", "1"]
        assert {one.attempt for one in claim} == {1}
        assert texts(await broker.claim("q", min=4, max=10)) == []

    play(home, scenario)


def test_a_claim_that_waits_for_its_minimum_keeps_the_broker_quiet(home: Home) -> None:
    """Two messages are ready and three delayed: a claim for at least three cannot be served, and costs nothing."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", [*numbered(2), *numbered(3, 2, delay_ms=3_600_000)])
        poll = asyncio.create_task(broker.claim("q", min=3, max=10, wait=3_600))
        await until(lambda: node_of(broker).waiters.count == 1)
        await turns(200)
        before = node_of(broker).commits.count
        await asyncio.sleep(0.1)
        assert node_of(broker).commits.count - before <= 2
        assert not poll.done()
        await broker.publish("q", Message(b"5"))
        assert texts(await soon(poll)) == ["0", "1", "5"]
        await until(lambda: is_outbox_empty(broker))
        events = [texts(await broker.read_from("$events", max=1_000))]
        assert "".join(events[0]).count("claimed") == 1

    play(home, scenario)


def test_a_cancelled_claim_gives_its_messages_back_unspent(home: Home) -> None:
    """Cancelled at every moment between the question and the answer."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=3_600_000)
        await broker.claim("q")
        for steps in range(12):
            for waiting in (False, True):
                if not waiting:
                    await broker.publish("q", Message(b"m"))
                claim = asyncio.create_task(broker.claim("q", wait=60))
                if waiting:
                    await until(lambda: node_of(broker).waiters.count == 1)
                    publish = asyncio.create_task(broker.publish("q", Message(b"m")))
                    await until(lambda publish=publish: publish.done())
                await turns(steps)
                await cancelled(claim)
                if not claim.cancelled():
                    await broker.ack(claim.result())
                    continue
                again = await soon(broker.claim("q", wait=60))
                assert [(one.payload, one.attempt) for one in again] == [(b"m", 1)], (steps, waiting)
                await broker.ack(again)
        assert (await group_stats(broker, "q")).lag == 0

    play(home, scenario)


def test_closing_ends_every_poll_with_closed(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        polls = [asyncio.create_task(broker.claim("q", wait=3_600)) for _ in range(3)]
        reads = [asyncio.create_task(broker.read("q", "s", wait=3_600)) for _ in range(3)]
        await until(lambda: node_of(broker).waiters.count == 3)
        await turns(100)
        await soon(broker.close())
        for ended in (*polls, *reads):
            with pytest.raises(Closed):
                await soon(ended)
        with pytest.raises(Closed):
            await broker.publish("q", Message(b""))
        with pytest.raises(Closed):
            await broker.claim("q")
        await broker.close()

    play(home, scenario)


def test_deleting_a_queue_or_group_ends_its_polls(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        for name in ("q", "r"):
            await broker.declare_queue(name)
            await broker.declare_group(name, "w")
            await broker.declare_group(name, "s", kind="stream")
        polls = [asyncio.create_task(broker.claim(name, group="w", wait=3_600)) for name in ("q", "r")]
        reads = [asyncio.create_task(broker.read(name, "s", wait=3_600)) for name in ("q", "r")]
        await until(lambda: node_of(broker).waiters.count == 2)
        await turns(100)
        await broker.delete_queue("q")
        await broker.delete_group("r", "w")
        await broker.delete_group("r", "s")
        for ended in (*polls, *reads):
            with pytest.raises(NotFound):
                await soon(ended)

    play(home, scenario)


# Order, partitions, limits -------------------------------------------------------------------------------


def test_a_claim_by_partition_takes_only_that_partition(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True)
        await broker.publish_many("q", [Message(b"%d" % n, partition="ab"[n % 2]) for n in range(6)])
        b = await broker.claim("q", partition="b", max=2)
        assert texts(b) == ["1", "3"]
        assert texts(await broker.claim("q", partition="b", max=2)) == []
        poll = asyncio.create_task(broker.claim("q", partition="b", wait=3_600, max=5))
        await until(lambda: node_of(broker).waiters.count == 1)
        await broker.ack(b)
        assert texts(await soon(poll)) == ["5"]
        assert texts(await broker.claim("q", max=10)) == ["0", "2", "4"]

    play(home, scenario)


def test_a_claim_by_partition_needs_an_ordered_group(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"m", partition="a"))
        with pytest.raises(WrongKind, match="ordered"):
            await broker.claim("q", partition="a")

    play(home, scenario)


def test_an_ordered_partition_goes_on_only_after_its_head(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", ordered=True, backoff_ms=1_000, backoff_jitter=0)
        await broker.publish_many(
            "q", [Message(b"%s%d" % (p, n), partition=p.decode()) for n in range(3) for p in (b"a", b"b")]
        )
        first = await broker.claim("q", max=1)
        assert texts(first) == ["a0"]
        assert texts(await broker.claim("q", max=1)) == ["b0"]
        assert len(await broker.claim("q", max=10)) == 0
        await broker.nack(first)
        assert len(await broker.claim("q", max=10)) == 0
        broker = await home.reopen(broker)
        home.pass_time(broker, 1_000)
        assert texts(await broker.claim("q", max=10)) == ["a0", "a1", "a2"]

    play(home, scenario)


def test_priority_goes_first_and_is_fifo_inside(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", prioritized=True)
        for number, priority in enumerate([0, 255, 7, 0, 255, 7]):
            await broker.publish("q", Message(b"%d" % number, priority=priority))
        broker = await home.reopen(broker)
        order = [texts(await broker.claim("q"))[0] for _ in range(6)]
        assert order == ["1", "4", "2", "5", "0", "3"]

    play(home, scenario)


def test_debounce_withholds_a_partition_until_it_is_quiet(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", ordered=True, debounce_ms=1_000)
        await broker.publish("q", Message(b"1", partition="a"))
        home.pass_time(broker, 900)
        await broker.publish("q", Message(b"2", partition="a"))
        home.pass_time(broker, 900)
        assert len(await broker.claim("q", max=5)) == 0
        home.pass_time(broker, 100)
        assert texts(await broker.claim("q", max=5)) == ["1", "2"]

    play(home, scenario)


def test_only_one_consumer_is_active_and_the_next_takes_over_when_it_leaves(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", single_active_consumer=True)
        await broker.publish_many("q", numbered(3))
        first = await broker.claim("q", consumer="a")
        assert texts(first) == ["0"]
        waiting = asyncio.create_task(broker.claim("q", consumer="b", wait=3_600, max=5))
        await until(lambda: node_of(broker).waiters.count == 1)
        assert texts(await broker.claim("q", consumer="a")) == ["1"]
        assert not waiting.done()
        await broker.ack(first)
        await broker.detach("q", consumer="a")
        assert texts(await soon(waiting)) == ["1", "2"]

    play(home, scenario)


def test_a_silent_active_consumer_is_replaced_after_its_lease(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", single_active_consumer=True, lease_ms=1_000)
        await broker.publish_many("q", numbered(2))
        await broker.claim("q", consumer="a")
        waiting = asyncio.create_task(broker.claim("q", consumer="b", wait=3_600, max=5))
        await until(lambda: node_of(broker).waiters.count == 1)
        home.pass_time(broker, 999)
        await turns()
        assert not waiting.done()
        home.pass_time(broker, 1)
        assert texts(await soon(waiting)) == ["0", "1"]
        broker = await home.open()
        assert len(await broker.claim("q", consumer="a")) == 0

    play(home, scenario)


def test_max_in_flight_bounds_what_is_leased_and_an_ack_makes_room(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_in_flight=3)
        await broker.publish_many("q", numbered(10))
        claim = await broker.claim("q", max=10)
        assert len(claim) == 3
        waiting = asyncio.create_task(broker.claim("q", wait=3_600, max=10))
        await until(lambda: node_of(broker).waiters.count == 1)
        await broker.ack(claim, [0, 2])
        assert texts(await soon(waiting)) == ["3", "4"]
        broker = await home.open()
        assert len(await broker.claim("q", max=10)) == 0

    play(home, scenario)


def test_rate_hands_out_no_faster(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", rate=10)
        await broker.publish_many("q", numbered(100))
        assert len(await broker.claim("q", max=100)) == 10
        assert len(await broker.claim("q", max=100)) == 0
        home.pass_time(broker, 300)
        assert len(await broker.claim("q", max=100)) == 3
        home.pass_time(broker, 60_000)
        assert len(await broker.claim("q", max=100)) == 10

    play(home, scenario)


def test_a_poll_held_by_the_rate_is_served_when_the_rate_allows(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", rate=20)
        await broker.publish_many("q", numbered(22))
        assert len(await broker.claim("q", max=100)) == 20
        assert texts(await soon(broker.claim("q", wait=3_600))) == ["20"]
        assert texts(await soon(broker.claim("q", wait=3_600))) == ["21"]

    play(home, scenario)


def test_pause_hands_out_nothing_settles_still_work_and_it_survives_a_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "other")
        await broker.publish_many("q", numbered(3))
        claim = await broker.claim("q")
        await broker.pause("q")
        broker = await home.reopen(broker)
        assert len(await broker.claim("q")) == 0
        assert len(await broker.claim("q", group="other")) == 0
        await broker.ack(lease(claim))
        await broker.publish("q", Message(b"3"))
        await broker.resume("q")
        assert await claim_all(broker, "q") == ["1", "2", "3"]
        await broker.pause("q", "other")
        assert (await group_stats(broker, "q", "other")).paused
        assert len(await broker.claim("q", group="other")) == 0
        await broker.publish("q", Message(b"4"))
        assert await claim_all(broker, "q") == ["4"]
        await broker.resume("q", "other")
        assert await claim_all(broker, "q", group="other") == ["0", "1", "2", "3", "4"]

    play(home, scenario)


def test_seek_while_leases_are_out_ends_them(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", retain_messages=100)
        await broker.publish_many("q", numbered(10))
        held = await broker.claim("q", max=4)
        await broker.ack(held, [0])
        await broker.nack(held, [1])
        await broker.seek("q", offset=2)
        with pytest.raises(LeaseLost):
            await broker.ack(held)
        with pytest.raises(LeaseLost):
            await broker.extend(held, 5)
        assert await claim_all(broker, "q") == [str(number) for number in range(2, 10)]
        await broker.seek("q", to="first")
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q") == [str(number) for number in range(10)]
        await broker.seek("q", offset=7)
        await broker.seek("q", to="last")
        assert await claim_all(broker, "q") == []
        with pytest.raises(InvalidArgument, match="offset is 11; the lane has 0 to 10"):
            await broker.seek("q", offset=11)

    play(home, scenario)


def test_seek_to_a_time(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", retain_messages=100)
        times = []
        for number in range(5):
            times.append(clock.time_ms)
            await broker.publish("q", Message(b"%d" % number))
            home.pass_time(broker, 1_000)
        assert len(await claim_all(broker, "q")) == 5
        await broker.seek("q", time_ms=times[3])
        assert await claim_all(broker, "q") == ["3", "4"]
        await broker.seek("q", time_ms=times[3] + 1)
        assert await claim_all(broker, "q") == ["4"]
        await broker.seek("q", time_ms=clock.time_ms)
        assert await claim_all(broker, "q") == []

    play(home, scenario)


def test_delay_not_before_and_ttl(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", delay_ms=100)
        await broker.declare_queue("t", ttl_ms=1_000, expired="dead")
        start = clock.time_ms
        await broker.publish("q", Message(b"both", delay_ms=400, not_before_ms=start + 300))
        await broker.publish("q", Message(b"later", not_before_ms=start + 900))
        await broker.publish("q", Message(b"plain"))
        await broker.publish("q", Message(b"gone", delay_ms=50, ttl_ms=149))
        await broker.publish("t", Message(b"t"))
        await broker.publish("t", Message(b"short", ttl_ms=10))
        await broker.claim("q", max=0 + 1)
        broker = await home.reopen(broker)
        await broker.claim("t", group="default", max=1)
        seen = {}
        for _ in range(100):
            for text in await claim_all(broker, "q"):
                seen[text] = clock.time_ms - start
            home.pass_time(broker, 10)
        assert seen == {"plain": 100, "both": 500, "later": 900}

    play(home, scenario)


def test_what_outlives_its_ttl_is_dropped_or_dead_without_any_consumer(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        kinds: tuple[Expired, ...] = ("drop", "dead")
        for expired in kinds:
            name = expired
            await broker.declare_queue(name, ttl_ms=1_000, expired=expired)
            await broker.declare_group(name, "default")
            await broker.publish_many(name, numbered(3))
        home.pass_time(broker, 999)
        assert (await group_stats(broker, "drop")).ready == 3
        home.pass_time(broker, 1)
        assert (await group_stats(broker, "drop")).lag == 0
        assert (await group_stats(broker, "dead")).lag == 0
        assert await broker.dead("drop") == []
        assert [dead.reason for dead in await broker.dead("dead")] == ["expired"] * 3

    play(home, scenario)


def test_ttl_and_age_are_minded_after_a_restart_though_nobody_comes(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", ttl_ms=1_000, expired="dead", dead_letter_to="queue:d")
        await broker.declare_group("q", "default")
        await broker.declare_queue("d")
        await broker.declare_queue("s", retain_ms=1_000)
        await broker.publish("q", Message(b"m"))
        await broker.publish("s", Message(b"m"))
        broker = await home.reopen(broker)
        await until(lambda: len(node_of(broker).lanes.loaded()) >= 3)  # those two and $events
        for _ in range(3):
            home.pass_time(broker, 1_000)
            await turns(100)

        async def both() -> bool:
            return (await broker.stats("d")).messages == 1 and (await broker.stats("s")).messages == 0

        await until(both)

    play(home, scenario)


def test_of_claims_that_wait_the_one_with_the_higher_priority_is_served_first(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        served: list[int] = []

        async def consume(priority: int) -> None:
            assert len(await broker.claim("q", wait=10, priority=priority)) == 1
            served.append(priority)

        async with asyncio.TaskGroup() as group:
            for priority in (0, 5, -1, 5, 9):
                group.create_task(consume(priority))
                await asyncio.sleep(0)
            for number in range(5):
                await broker.publish("q", Message(b"%d" % number))
                await until(lambda count=number + 1: _has(served, count))
        assert served == [9, 5, 5, 0, -1]

    play(home, scenario)


async def _has(served: list[int], count: int) -> bool:
    return len(served) == count
