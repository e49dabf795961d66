"""Publishing while the store is away: buffered, in order, replayed exactly once, through every kind of failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock import InvalidArgument, Message, StoreCorrupt, Unavailable, encode
from penstock.api.ticket import in_task
from penstock.batch import EncodedBatch, decode
from penstock.model.rows import BatchRow, Commit, DedupRow, LaneImage
from penstock.node.broker import LocalBroker
from penstock.node.spool.log import FREE_BYTES
from penstock.node.spool.positions import ROWS_KEPT_MS
from penstock.node.spool.spool import SpoolSettings
from tests.nodes import node_of
from tests.scenarios.rig import claim_all, messages, numbered, texts
from tests.scenarios.shaky import Machine, play
from tests.simulation.spool_folder import MemoryFolder

HOUR_MS = 3_600_000


class Away:
    """A machine whose store can be taken away, with a spool on a disk of its own."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.folder = MemoryFolder()
        self.is_away = False
        self._ids = 0
        store, apply, load, find = machine.store, machine.store.apply, machine.store.load, machine.store.find_dedup

        @in_task
        async def applied(commit: Commit) -> None:
            self._check()
            await apply(commit)

        async def loaded(lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
            self._check()
            return await load(lanes, dedup_most)

        async def found(lane: int, keys: Sequence[bytes]) -> list[DedupRow]:
            self._check()
            return await find(lane, keys)

        store.apply, store.load, store.find_dedup = applied, loaded, found  # type: ignore[method-assign]

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("nobody answers")

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:016x}"

    async def open(self, **options: Any) -> LocalBroker:
        settings = SpoolSettings(self.folder, new_id=self._new_id, **options)
        return await self.machine.open(spool=settings)

    async def kill(self, broker: LocalBroker, **options: Any) -> LocalBroker:
        """The node dies where it stands; the next one finds its files."""
        node_of(broker).lifecycle.closed = True
        await node_of(broker).spool.replay.stop()
        self.folder.sever()
        self.folder = self.folder.again()
        return await self.open(**options)

    async def empty(self, broker: LocalBroker) -> None:
        """Until everything was replayed."""
        for _ in range(1_000):
            if not spool_of(broker).messages and not node_of(broker).spool_state.held:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the spool is not replayed: {broker.spool()}")

    async def stored(self) -> list[bytes]:
        """The payloads on the disk, queue by queue, in the order of the log."""
        rows: list[BatchRow] = []
        for lane in sorted({change.lane for commit in self.machine.store.commits for change in commit.lanes}):
            rows += await self.machine.store.read(lane, 0, 1 << 40, 1 << 40)
        return [message.payload for row in rows for message in decode(EncodedBatch(row.count, row.meta, row.body))]


def spool_of(broker: LocalBroker) -> Any:
    numbers = broker.spool()
    assert numbers is not None
    return numbers


def has_batches(commit: Commit) -> bool:
    return any(change.batches for change in commit.lanes)


def test_publishes_are_buffered_while_the_store_is_away_and_stored_when_it_is_back() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        assert (await broker.publish("work", Message(b"0"))).offset == 0
        away.is_away = True
        first = await broker.publish("work", Message(b"1"))
        assert (first.buffered, first.queue, first.lane, first.offset) == (True, "work", -1, -1)
        many = await broker.publish_many("work", messages("2", "3"))
        assert (many.buffered, len(many), many.stored, [place.buffered for place in many]) == (True, 2, 0, [True, True])
        assert (await broker.publish_batch("work", encode(messages("4")))).buffered
        assert (spool_of(broker).messages, spool_of(broker).is_away) == (4, True)
        assert await broker.check_ready() == "buffering"
        with pytest.raises(Unavailable):
            await broker.claim("work")
        away.is_away = False
        await away.empty(broker)
        assert await broker.check_ready() == "ready"
        assert (await broker.publish("work", Message(b"5"))).offset == 5
        assert await claim_all(broker, "work") == ["0", "1", "2", "3", "4", "5"]
        assert [name for name in away.folder.files if name.endswith(".spool")] == []
        await broker.close()

    play(story)


def test_the_mark_of_a_commit_changes_nothing_that_a_database_has_an_index_on() -> None:
    """Its time is the same for a day; and however late in the day, the mark is kept long enough."""

    async def story(machine: Machine) -> None:
        broker = await Away(machine).open()
        await broker.declare_queue("work")
        for number in range(3):
            await broker.publish("work", Message(b"%d" % number))
        rows = [row for commit in machine.store.commits for change in commit.lanes for row in change.dedup]
        marks = [row for row in rows if row.key.startswith(b"commit:")]
        assert [mark.offset for mark in marks] == [1, 2, 3]
        assert len({(mark.key, mark.expires_ms) for mark in marks}) == 1
        left_ms = marks[0].expires_ms - machine.now_ms()
        assert ROWS_KEPT_MS < left_ms <= ROWS_KEPT_MS + 24 * HOUR_MS
        await broker.close()

    play(story)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_whose_outcome_is_unknown_is_neither_lost_nor_doubled(when: Any) -> None:
    """Its publishes are in the spool with a doubt, which the mark of the commit resolves."""

    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work", lanes=3)
        await broker.declare_queue("other")
        machine.store.fail(when, 1, has_batches)
        receipts = await asyncio.gather(
            *(broker.publish("work", Message(b"%d" % n, partition=f"p{n}")) for n in range(5)),
            broker.publish("other", Message(b"x")),
        )
        assert all(receipt.buffered for receipt in receipts)
        await away.empty(broker)
        assert sorted(await away.stored()) == [b"0", b"1", b"2", b"3", b"4", b"x"]
        await broker.close()

    play(story)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_outcome_is_resolved_by_the_next_process_too(when: Any) -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")

        def and_goes(commit: Commit) -> bool:
            away.is_away = has_batches(commit)
            return away.is_away

        machine.store.fail(when, 1, and_goes)
        assert (await broker.publish("work", Message(b"1"))).buffered
        assert (await broker.publish("work", Message(b"2"))).buffered
        away.is_away = False
        broker = await away.kill(broker)
        await away.empty(broker)
        assert await away.stored() == [b"1", b"2"]
        await broker.close()

    play(story)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_replay_whose_outcome_is_unknown_is_not_repeated(when: Any, killed: bool) -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work", lanes=4)
        away.is_away = True
        for number in range(20):
            assert (await broker.publish("work", Message(b"%02d" % number))).buffered
        machine.store.fail(when, 1, has_batches)
        away.is_away = False
        await machine.comes(lambda: not machine.store.fail_times)
        if killed:
            broker = await away.kill(broker)
        await away.empty(broker)
        assert sorted(await away.stored()) == [b"%02d" % number for number in range(20)]
        await broker.close()

    play(story)


def test_order_is_kept_while_publishers_go_on_through_the_replay() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work", lanes=3)
        receipts: list[bool] = []

        async def publisher(name: str) -> None:
            for number in range(800):
                place = await broker.publish("work", Message(b"%d" % number, partition=name))
                receipts.append(place.buffered)
                await asyncio.sleep(0.001)

        async def trouble() -> None:
            for _ in range(5):
                await asyncio.sleep(0.02)
                away.is_away = True
                await asyncio.sleep(0.05)
                away.is_away = False

        await asyncio.gather(*(publisher(f"p{index}") for index in range(5)), trouble())
        await away.empty(broker)
        found: dict[str, list[int]] = {}
        while claim := await broker.claim("work", max=1_000):
            for one in claim:
                found.setdefault(one.message.partition or "", []).append(int(one.payload))
            await broker.ack(claim)
        assert found == {f"p{index}": list(range(800)) for index in range(5)}
        assert set(receipts) == {False, True}
        assert not receipts[-1], "publishing is direct again although publishers never paused"
        await broker.close()

    play(story)


def test_a_repetition_under_a_publish_id_is_recognised_after_an_outage_longer_than_the_window() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work", dedup_window_ms=HOUR_MS)
        await broker.publish_many("work", messages("a", "b"), publish_id="first")
        await broker.publish("work", Message(b"c", dedup_id="own"))
        away.is_away = True
        assert (await broker.publish("work", Message(b"-"))).buffered
        assert (await broker.publish_many("work", messages("a", "b"), publish_id="first")).buffered
        assert (await broker.publish("work", Message(b"c", dedup_id="own"))).buffered
        assert (await broker.publish("work", Message(b"d"), publish_id="second")).buffered
        assert (await broker.publish("work", Message(b"d"), publish_id="second")).buffered
        await asyncio.sleep(3 * HOUR_MS / 1000)
        away.is_away = False
        await away.empty(broker)
        assert await claim_all(broker, "work") == ["a", "b", "c", "-", "d"]
        assert (await broker.publish("work", Message(b"d"), publish_id="second")).duplicate
        await broker.close()

    play(story)


def test_an_exchange_is_routed_when_it_is_replayed_and_holds_its_queues() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_exchange("all", kind="fanout")
        for name in ("left", "right"):
            await broker.declare_queue(name)
            await broker.bind("all", name)
        away.is_away = True
        receipt = await broker.publish_to("all", messages("1", "2"))
        assert (receipt.buffered, receipt.first().queue) == (True, "")
        assert (await broker.publish("left", Message(b"3"))).buffered
        away.is_away = False
        await away.empty(broker)
        assert await claim_all(broker, "left") == ["1", "2", "3"]
        assert await claim_all(broker, "right") == ["1", "2"]
        await broker.close()

    play(story)


def test_what_cannot_be_published_any_more_becomes_a_dead_letter_and_blocks_nobody() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        await broker.declare_queue("gone")
        await broker.declare_queue("anew")
        await broker.declare_queue("small", max_length=2)
        await broker.declare_exchange("all", kind="fanout")
        await broker.declare_queue("bound")
        await broker.bind("all", "bound")
        away.is_away = True
        for queue in ("gone", "anew", "small", "work"):
            assert (await broker.publish_many(queue, numbered(3))).buffered
        assert (await broker.publish_to("all", messages("x"))).buffered
        away.is_away = False
        # Another node of the same store deletes them while this one is dead.
        second = await machine.open()
        for name in ("gone", "anew", "bound"):
            await second.delete_queue(name)
        await second.declare_queue("anew")
        await second.close()
        broker = await away.kill(broker)
        await away.empty(broker)
        assert await claim_all(broker, "work") == ["0", "1", "2"]
        assert spool_of(broker).dead == 4
        letters = [name for name in away.folder.files if name.endswith(".letter")]
        assert len(letters) == 4
        # A restart neither tries them again nor forgets them.
        await broker.close()
        away.folder = away.folder.again()
        broker = await away.open()
        assert (spool_of(broker).dead, spool_of(broker).messages) == (4, 0)
        await broker.close()

    play(story)


def test_a_limit_and_a_full_disk_refuse_and_say_what_to_do() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open(bytes=1_000)
        await broker.declare_queue("work")
        away.is_away = True
        count = 0
        while spool_of(broker).bytes + 200 < 1_000:
            assert (await broker.publish("work", Message(b"x" * 100))).buffered
            count += 1
        with pytest.raises(Unavailable, match=r"spool\.bytes is 1000"):
            await broker.publish("work", Message(b"x" * 200))
        assert 1 < count < 10
        away.is_away = False
        await away.empty(broker)
        assert (await broker.stats("work")).published == count
        away.is_away, away.folder.free = True, FREE_BYTES
        with pytest.raises(Unavailable, match="Make room"):
            await broker.publish("work", Message(b"x"))
        away.is_away, away.folder.free = False, 1 << 40
        await away.empty(broker)
        assert (await broker.publish("work", Message(b"x"))).offset == count
        await broker.close()

    play(story)


def test_a_write_that_fails_is_told_and_leaves_nothing_behind() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        away.is_away = True
        assert (await broker.publish("work", Message(b"1"))).buffered
        away.folder.fail_appends = 1
        with pytest.raises(Unavailable, match="the disk says no"):
            await broker.publish("work", Message(b"2"))
        assert (await broker.publish("work", Message(b"3"))).buffered
        away.is_away = False
        await away.empty(broker)
        assert await claim_all(broker, "work") == ["1", "3"]
        await broker.close()

    play(story)


def test_a_segment_whose_beginning_never_reached_the_disk_is_kept_aside() -> None:
    """A loss of power may keep the second sector of a new file without its first."""

    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        away.folder.files["0000000001.spool"] = torn = bytes(512) + b"the rest"
        broker = await away.kill(broker)
        assert away.folder.files == {"0000000001.spool.torn": torn}
        away.is_away = True
        assert (await broker.publish("work", Message(b"1"))).buffered
        away.is_away = False
        await away.empty(broker)
        assert await claim_all(broker, "work") == ["1"]
        await broker.close()

    play(story)


@pytest.mark.parametrize("torn", [b"\x07", b"\x20\0\0\0\1\2\3\4abc", bytes(64)], ids=["byte", "part", "zeros"])
def test_a_torn_end_is_cut_and_kept_aside(torn: bytes) -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        away.is_away = True
        for number in range(3):
            assert (await broker.publish("work", Message(b"%d" % number))).buffered
        [name] = [name for name in away.folder.files if name.endswith(".spool")]
        away.folder.files[name] += torn
        away.is_away = False
        broker = await away.kill(broker)
        await away.empty(broker)
        assert await claim_all(broker, "work") == ["0", "1", "2"]
        assert away.folder.files[f"{name}.torn"] == torn
        await broker.close()

    play(story)


@pytest.mark.parametrize("place", [0.3, 0.9])
def test_damage_before_later_records_is_refused(place: float) -> None:
    """Records of a later file must not be replayed before those that cannot be read."""

    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open(segment_bytes=300)
        await broker.declare_queue("work")
        away.is_away = True
        for number in range(20):
            assert (await broker.publish("work", Message(b"%d" % number))).buffered
        first, *others = sorted(name for name in away.folder.files if name.endswith(".spool"))
        assert others
        data = bytearray(away.folder.files[first])
        data[int(len(data) * place)] ^= 1
        away.folder.files[first] = bytes(data)
        away.is_away = False
        with pytest.raises(StoreCorrupt, match=f"{first} is damaged"):
            await away.kill(broker)

    play(story)


def test_a_spool_of_another_store_is_refused() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        away.is_away = True
        assert (await broker.publish("work", Message(b"1"))).buffered
        files = away.folder.files
        other = Away(Machine(machine._loop, machine._start_ms))
        other._ids = 50
        other.folder.files = files
        with pytest.raises(InvalidArgument, match="for another store"):
            await other.open()

    play(story)


def test_transactions_and_declarations_are_not_buffered_and_do_not_overtake() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"0"))
        claim = await broker.claim("work")
        away.is_away = True
        assert (await broker.publish("work", Message(b"1"))).buffered
        with pytest.raises(Unavailable):
            await broker.declare_queue("more")
        with pytest.raises(Unavailable, match="in the spool"):
            async with broker.transaction() as unit:
                unit.ack(claim).publish("work", Message(b"2"))
        away.is_away = False
        await away.empty(broker)
        async with broker.transaction() as unit:
            unit.ack(claim).publish("work", Message(b"2"))
        assert texts(await broker.claim("work", max=10)) == ["1", "2"]
        await broker.close()

    play(story)


def test_ephemeral_queues_go_on_without_the_store() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        await broker.declare_queue("scratch", ephemeral=True)
        away.is_away = True
        assert (await broker.publish("work", Message(b"1"))).buffered
        assert (await broker.publish("scratch", Message(b"2"))).offset == 0
        away.is_away = False
        await away.empty(broker)
        await broker.close()

    play(story)


def test_a_healthy_store_writes_no_file() -> None:
    async def story(machine: Machine) -> None:
        away = Away(machine)
        broker = await away.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", numbered(100))
        assert away.folder.files == {}
        await broker.close()

    play(story)
