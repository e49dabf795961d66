"""What the simulation found in the node, each as the smallest story that shows it. No real time passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from unittest.mock import patch

import pytest

from penstock.api.ticket import in_task
from penstock.batch import encode
from penstock.model import Message
from penstock.model.errors import NotFound, Unavailable
from penstock.model.rows import BatchRow, CatalogRow, Commit, DedupRow, LaneImage
from penstock.node.broker import LocalBroker
from penstock.node.catalog_writer import NAME_LOCKS_MAX
from penstock.node.node import Node
from penstock.node.publish.parts import parts_of_messages
from penstock.store.memory.engine import MemoryStore
from tests.nodes import node_of
from tests.simulation.virtual_loop import SimulatedClock, VirtualLoop, run

Story = Callable[[LocalBroker, "ShakyStore"], Awaitable[None]]


class ShakyStore(MemoryStore):
    """A memory store that can be told to be slow or to fail at its next steps."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.fail_after = 0
        self.fail_reads = 0
        self.apply_s = 0.0
        self.load_s = 0.0
        self.dedup_s = 0.0
        self.catalog_s = 0.0

    async def catalog(self) -> list[CatalogRow]:
        await asyncio.sleep(self.catalog_s)
        return await super().catalog()

    @in_task
    async def apply(self, commit: Commit) -> None:
        await asyncio.sleep(self.apply_s)
        await super().apply(commit)
        self.commits += 1
        if self.fail_after:
            self.fail_after -= 1
            raise Unavailable("failed after it was done")

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        images = await super().load(lanes, dedup_most)
        await asyncio.sleep(self.load_s)
        return images

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        if self.fail_reads:
            self.fail_reads -= 1
            raise Unavailable("cannot be read now")
        return await super().read(lane, start, end, bytes_most)

    async def find_dedup(self, lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
        rows = await super().find_dedup(lane, keys)
        await asyncio.sleep(self.dedup_s)
        return rows

    async def close(self) -> None:
        """Stays open for the next node."""


def play(story: Story, *, cache_bytes: int = 1 << 20, dedup_s: float = 0.0) -> ShakyStore:
    loop, store = VirtualLoop(turns_max=20_000), ShakyStore()
    store.dedup_s = dedup_s

    async def main() -> None:
        node = Node(store, SimulatedClock(loop), events=False, cache_bytes=cache_bytes)
        await node.open("first")
        await story(LocalBroker(node, "default"), store)

    run(loop, main())
    return store


async def reopen(store: MemoryStore) -> LocalBroker:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    node = Node(store, SimulatedClock(loop), events=False)
    await node.open("second")
    return LocalBroker(node, "default")


def test_a_claim_that_waits_for_more_does_not_commit_in_circles() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        claim = asyncio.create_task(broker.claim("work", max=5, min=2, wait=10, consumer="patient"))
        await asyncio.sleep(0)
        await broker.publish("work", Message(b"1", partition="a"))
        await broker.publish("work", Message(b"2", partition="a", delay_ms=60_000))
        assert len(await claim) == 1
        assert store.commits < 20

    play(story)


def test_keep_done_does_not_spin_while_a_commit_is_slow() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work", keep_done_ms=100)
        await broker.publish("work", Message(b"1"))
        await broker.ack(await broker.claim("work"))
        store.apply_s = 5.0
        await broker.publish("work", Message(b"2"))

    play(story)


def test_a_cancelled_declaration_makes_no_second_group() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        store.apply_s = 1.0
        first = asyncio.create_task(broker.claim("work"))
        await asyncio.sleep(0.5)
        first.cancel()
        await broker.claim("work")
        groups = [row for row in await store.catalog() if row.kind == "group"]
        assert [row.name for row in groups] == ["default"]

    play(story)


@pytest.mark.parametrize("pause_s", [0.0, 0.5, 1.5])
def test_a_group_declared_while_its_queue_is_deleted_bricks_nothing(pause_s: float) -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        store.apply_s = 1.0
        claim = asyncio.create_task(broker.claim("work"))
        await asyncio.sleep(pause_s)
        await broker.delete_queue("work")
        await asyncio.gather(claim, return_exceptions=True)
        second = await reopen(store)
        assert await second.queues() == {}
        assert [row for row in await store.catalog() if row.kind == "group"] == []

    play(story)


def test_nothing_is_written_to_a_lane_after_its_deletion() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"1"))
        store.apply_s = 1.0
        claims = [asyncio.create_task(broker.claim("work")) for _ in range(2)]
        await asyncio.sleep(0)
        await broker.delete_queue("work")
        await asyncio.gather(*claims, return_exceptions=True)
        await asyncio.sleep(60)
        assert (await store.load([1], 0))[0].end == 0

    play(story)


def test_an_ephemeral_queue_can_be_deleted() -> None:
    async def story(broker: LocalBroker, _: ShakyStore) -> None:
        await broker.declare_queue("scratch", ephemeral=True)
        await broker.publish("scratch", Message(b"1"))
        await broker.delete_queue("scratch")
        assert await broker.queues() == {}

    play(story)


def test_a_stream_read_that_failed_is_read_again() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("log")
        await broker.declare_group("log", "readers", kind="stream")
        await broker.publish("log", Message(b"1"))
        store.fail_reads = 1
        with pytest.raises(Unavailable):
            await broker.read("log", "readers", consumer="one")
        assert [message.payload for message in (await broker.read("log", "readers", consumer="one")).messages] == [b"1"]

    play(story, cache_bytes=0)


def test_dead_letters_of_a_commit_that_failed_after_it_was_done_are_copied() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("graves")
        await broker.declare_queue("work", dead_letter_to="queue:graves")
        await broker.publish("work", Message(b"1"))
        claim = await broker.claim("work")
        store.fail_after = 1
        with pytest.raises(Unavailable):
            await broker.reject(claim)
        assert (await broker.claim("graves", wait=30)).payloads() == [b"1"]

    play(story)


def test_a_death_while_a_node_opens_replaces_no_promise() -> None:
    """Both died while nobody relayed; the second dies by itself, as the next node opens."""

    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work", dead_letter_to="queue:graves", lease_ms=1_000, max_attempts=1)
        await broker.publish_many("work", [Message(b"1"), Message(b"2")])
        await broker.reject(await broker.claim("work"))
        await broker.claim("work")
        await broker.close()
        await asyncio.sleep(5)
        store.load_s = 0.0
        second = await reopen(store)
        await asyncio.sleep(1)
        assert len(await store.outbox(0, 10)) == 2
        await second.declare_queue("graves")
        await asyncio.sleep(120)
        assert sorted((await second.claim("graves", max=5)).payloads()) == [b"1", b"2"]

    play(story)


def test_an_old_image_of_a_lane_is_never_taken_for_a_new_one() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        lane = node_of(broker).catalog.queue("default", "work").lanes[0]
        store.load_s = 2.0
        old = asyncio.create_task(node_of(broker).lanes.load(lane))
        await asyncio.sleep(0.1)
        await broker.publish("work", Message(b"1"))
        store.fail_after = 1
        with pytest.raises(Unavailable):
            await broker.publish("work", Message(b"2"))
        assert (await broker.publish("work", Message(b"3"))).offset == 2
        await old

    play(story)


def test_a_lane_that_is_read_back_knows_a_group_whose_declaration_seemed_to_fail() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"1"))
        store.fail_after = 1
        with pytest.raises(Unavailable):
            await broker.declare_group("work", "late")
        await node_of(broker).writer.known()
        assert (await broker.claim("work", group="late", wait=5)).payloads() == [b"1"]

    play(story)


def test_a_batch_without_ids_is_taken_by_a_lane_with_more_ids_than_it_keeps() -> None:
    async def story(broker: LocalBroker, _: ShakyStore) -> None:
        await broker.declare_queue("work")
        await broker.publish_many("work", [Message(b"%d" % n, dedup_id=f"{n}") for n in range(3)])
        receipt = await broker.publish_batch("work", encode([Message(b"x", partition="a"), Message(b"y")]))
        assert receipt.stored == 2

    with patch("penstock.core.dedup.IDS_IN_MEMORY_MAX", 1), patch("penstock.node.lanes.IDS_IN_MEMORY_MAX", 1):
        play(story)


def test_messages_that_a_filter_leaves_out_do_not_hold_the_log() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        await broker.declare_group("work", "default", filter="color = 'red'")
        await broker.publish("work", Message(b"1", headers={"color": "blue"}))
        assert len(await broker.claim("work", wait=1)) == 0
        image = (await store.load(node_of(broker).catalog.queue("default", "work").lanes, 0))[0]
        assert (image.first, image.groups[0].next) == (1, 1)

    play(story)


def test_a_claim_tries_every_lane_also_while_others_claim() -> None:
    """One that waits for its first lane must not be led to that lane again by those who turn the rotation on."""

    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work", lanes=2)
        await broker.claim("work")
        queue = node_of(broker).catalog.queue("default", "work")
        place = await broker.publish("work", Message(b"1"))
        empty = 1 - place.lane
        node_of(broker).lanes.drop({queue.lanes[empty]})
        queue.rotation, store.load_s = empty, 1.0
        claim = asyncio.create_task(broker.claim("work"))
        await asyncio.sleep(0.5)
        queue.rotation = 1 - empty
        assert (await claim).payloads() == [b"1"]

    play(story)


def test_an_id_is_found_while_a_publish_to_several_lanes_waits() -> None:
    """Between the question to the store and the append, no lane may forget an id."""

    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("one")
        await broker.declare_queue("two")
        await broker.declare_exchange("both", kind="fanout")
        for name in ("one", "two"):
            await broker.bind("both", name)
            await broker.publish(name, Message(b"x", dedup_id="before"))
        slow = asyncio.create_task(broker.publish_to("both", Message(b"again", dedup_id="same")))
        await asyncio.sleep(1.5)
        store.dedup_s = 0.0
        await broker.publish("one", Message(b"first", dedup_id="same"))
        for number in range(3):
            await broker.publish("one", Message(b"y", dedup_id=f"{number}"))
        assert (await slow).duplicates == 1

    with (
        patch("penstock.core.dedup.IDS_IN_MEMORY_MAX", 0),
        patch("penstock.node.lanes.IDS_IN_MEMORY_MAX", 0),
        patch("penstock.core.seen.Seen.may_hold", return_value=True),  # else there would be no question
    ):
        play(story, dedup_s=1.0)


def test_a_publish_that_had_begun_does_not_write_to_a_lane_whose_deletion_seemed_to_fail() -> None:
    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        await broker.declare_queue("work")
        node = node_of(broker)
        queue = node.catalog.queue("default", "work")
        begun = parts_of_messages(queue, [Message(b"late")])
        store.fail_after, store.catalog_s = 1, 1.0
        with pytest.raises(Unavailable):
            await broker.delete_queue("work")
        with pytest.raises((NotFound, Unavailable)):
            await node.publisher.publish(1, begun, 1)
        assert await store.read(queue.lanes[0], 0, 10, 1_000) == []

    play(story)


def test_a_catalog_that_fails_in_an_unexpected_way_is_read_again() -> None:
    """Whatever an engine raises: until the catalog is read, nothing can be declared, staged or marked."""

    async def story(broker: LocalBroker, store: ShakyStore) -> None:
        store.fail_after = 1
        with patch.object(store, "catalog", side_effect=[TimeoutError(), await store.catalog()]):
            with pytest.raises(Unavailable):
                await broker.declare_queue("work")
            await broker.declare_queue("other")

    play(story)


def test_the_lock_of_a_name_is_kept_while_somebody_waits_for_it() -> None:
    """One that was just given back has a new holder who has not had his turn yet: it is not free."""

    async def story(broker: LocalBroker, _store: ShakyStore) -> None:
        writer = node_of(broker).writer
        lock = writer._name_lock("mark", "default", "wanted")
        await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(0)
        lock.release()
        for number in range(NAME_LOCKS_MAX + 10):
            writer._name_lock("mark", "default", f"{number}")
        assert writer._name_lock("mark", "default", "wanted") is lock
        await waiting

    play(story)
