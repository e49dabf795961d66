"""Staging: chunks that nobody sees, published in order by one commit together with marks, once; and freed otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

from penstock import (
    AlreadyCommitted,
    ChunkMissing,
    Closed,
    EncodedBatch,
    Forbidden,
    InvalidArgument,
    InvalidBatch,
    LimitReached,
    MarkMoved,
    MarkPut,
    Message,
    MessageTooLarge,
    NotFound,
    Overloaded,
    QueueFull,
    Unavailable,
    encode,
)
from penstock.model.rows import SLOTS, BatchRow, CatalogRow, Commit
from penstock.node.broker import LocalBroker
from penstock.node.catalog_writer import IDS_AT_ONCE
from penstock.node.limits import Limits
from penstock.node.staging import ledger, staging
from tests.nodes import node_of
from tests.scenarios import shaky
from tests.scenarios.rig import Home, claim_all, messages, numbered, play, soon, turns, until


def chunk(start: int, count: int = 40, **fields: Any) -> EncodedBatch:
    return encode(numbered(count, start, **fields))


def counted(*starts: int, count: int = 40) -> list[str]:
    return [str(number) for start in starts for number in range(start, start + count)]


async def stored(broker: LocalBroker) -> tuple[int, int]:
    """(lanes with batches that belong to no queue, rows of transactions and chunks in the catalog)"""
    node = node_of(broker)
    rows = await node.store.catalog()
    lanes = 0
    blocks = range(1, node.catalog._next_id, IDS_AT_ONCE)  # one for each start; none of them is used up
    for lane in (id * SLOTS for first in blocks for id in range(first, min(first + 100, node.catalog._next_id))):
        if lane not in node.catalog.by_lane and await node.store.read(lane, 0, 1 << 60, 0):
            lanes += 1
    return lanes, sum(row.kind in ("staged", "chunk") for row in rows)


def carry_on_in_pieces(broker: LocalBroker) -> None:
    node_of(broker).staging.commit_bytes = 100
    node_of(broker).staging.finisher.piece_bytes = 0


def gated(broker: LocalBroker, pieces: int) -> asyncio.Semaphore:
    """So many pieces of large commits are published; each release lets one more through."""
    gate, carrying = asyncio.Semaphore(pieces), node_of(broker).staging.finisher
    original = carrying._piece

    async def piece(*arguments: Any) -> None:
        await gate.acquire()
        await original(*arguments)

    carrying._piece = piece  # type: ignore[assignment, method-assign]
    return gate


# The way of a chunk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [False, True], ids=["one commit", "pieces"])
def test_chunks_are_published_in_the_order_of_the_commit_with_the_marks(home: Home, pieces: bool) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        if pieces:
            carry_on_in_pieces(broker)
        await broker.stage("t", "b", chunk(40), queue="q")
        await broker.stage("t", "a", chunk(0), queue="q")
        await broker.stage("t", "unlisted", chunk(1_000), queue="q")
        await broker.stage("other", "a", chunk(2_000), queue="q")
        assert (await broker.browse("q")).messages == []
        assert (await broker.stats("q")).published == 0
        assert list(await broker.queues()) == ["$events", "q"]
        done = await broker.commit_staged("t", ["a", "b"], marks=[MarkPut("m", {"n": 1}, 0)])
        assert (done.published, done.repeated) == (80, False)
        assert (await broker.mark("m")).value == {"n": 1}
        assert await claim_all(broker, "q") == counted(0, 40)
        assert (await broker.staged("t")).state == "committed"
        assert (await broker.staged("other")).state == "open"
        assert await stored(broker) == (1, 2), "only the other transaction is left"

    play(home, scenario)


def test_what_is_staged_survives_a_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.stage("t", "a", chunk(0), queue="q")
        await broker.stage("t", "b", chunk(40), queue="q")
        broker = await home.reopen(broker)
        shown = await broker.staged("t")
        assert [(part.chunk, part.queue, part.messages) for part in shown.chunks] == [("a", "q", 40), ("b", "q", 40)]
        await broker.stage("t", "c", chunk(80), queue="q")
        await broker.stage("t", "b", chunk(500), queue="q")  # the first one under a name is kept
        broker = await home.open()  # as after a crash
        assert (await broker.commit_staged("t", ["a", "b", "c"])).published == 120
        assert await claim_all(broker, "q") == counted(0, 40, 80)
        assert await stored(broker) == (0, 0)

    play(home, scenario)


def test_a_repeated_commit_answers_the_same_and_does_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.stage("t", "a", chunk(0), queue="q")
        await broker.commit_staged("t", ["a"], marks=[MarkPut("m", 1, 0)])
        for _ in range(2):
            # A writer that begins anew stages the same chunks, with what it knew of the marks.
            await broker.stage("t", "a", chunk(0), queue="q")
            done = await broker.commit_staged("t", ["a"], marks=[MarkPut("m", 1, 0)])
            assert (done.published, done.repeated) == (40, True)
            broker = await home.reopen(broker)
        assert (await broker.mark("m")).version == 1
        assert await claim_all(broker, "q") == counted(0)
        with pytest.raises(AlreadyCommitted):
            await broker.abort_staged("t")
        clock.time_ms += ledger.REMEMBERED_MS - 60_000
        assert (await broker.staged("t")).state == "committed"
        home.pass_time(broker, 2 * 3600 * 1000)

        async def forgotten() -> bool:
            return (await node_of(broker).store.load([ledger.LEDGER_LANE], 10))[0].dedup == []

        await until(forgotten)
        assert (await broker.staged("t")).state == "unknown"

    play(home, scenario)


def test_a_commit_without_chunks_puts_marks_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        assert not (await broker.commit_staged("t", [], marks=[MarkPut("m", 1)])).repeated
        assert (await broker.commit_staged("t", [], marks=[MarkPut("m", 2)])).repeated
        assert (await broker.mark("m")).value == 1

    play(home, scenario)


def test_exchanges_route_and_give_their_key(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_exchange("x", kind="topic")
        for queue, pattern in (("eu", "eu.#"), ("all", "#")):
            await broker.declare_queue(queue)
            await broker.bind("x", queue, pattern)
        await broker.stage("t", "keys", encode([Message(b"1", key="eu.a"), Message(b"2", key="us.a")]), exchange="x")
        batch = encode([Message(b"3", key="no", headers={"h": 1}), Message(b"4", partition="p")])
        await broker.stage("t", "given", batch, exchange="x", routing_key="eu.b")
        await broker.commit_staged("t", ["keys", "given"])
        assert await claim_all(broker, "all") == ["1", "2", "3", "4"]
        found = (await broker.claim("eu", max=10)).messages
        assert [(one.payload, one.message.key) for one in found] == [(b"1", "eu.a"), (b"3", "eu.b"), (b"4", "eu.b")]
        assert (found[1].message.headers, found[2].message.partition) == ({"h": 1}, "p")

    play(home, scenario)


def test_lanes_partitions_and_dedup_ids_are_those_of_any_publish(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("wide", lanes=4)
        named = [Message(b"%d" % n, partition=f"p{n % 7}", dedup_id=f"id{n}") for n in range(100)]
        await broker.publish_many("wide", named[:10])
        await broker.stage("t", "a", encode(named[:60]), queue="wide")
        await broker.stage("t", "b", encode(named[40:]), queue="wide")
        await broker.commit_staged("t", ["a", "b"])
        found = await claim_all(broker, "wide")
        assert sorted(found, key=int) == counted(0, count=100)
        for partition in range(7):
            own = [int(text) for text in found if int(text) % 7 == partition]
            assert own == sorted(own)

    play(home, scenario)


def test_a_publish_id_names_chunks_across_transactions(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        for transaction, names in (("one", ["a", "b"]), ("two", ["a", "b", "c"])):
            for place, name in enumerate(names):
                await broker.stage(transaction, name, chunk(place * 40), queue="q")
            await broker.commit_staged(transaction, names, publish_id="load-7")
        assert await claim_all(broker, "q") == counted(0, 40, 80)

    play(home, scenario)


def test_an_ephemeral_queue_takes_chunks_too(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("memory", ephemeral=True)
        await broker.stage("t", "a", chunk(0), queue="memory")
        await broker.commit_staged("t", ["a"])
        assert await claim_all(broker, "memory") == counted(0)

    play(home, scenario)


def test_many_stage_at_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        both = [
            (name, name * 40) for name in range(30) for _ in range(2)
        ]  # each chunk twice, as by a slow task's double
        await asyncio.gather(*(broker.stage("t", str(name), chunk(start), queue="q") for name, start in both))
        order = [str(name) for name in reversed(range(30))]
        results = await asyncio.gather(*(broker.commit_staged("t", order) for _ in range(3)))
        assert sorted(done.repeated for done in results) == [False, True, True]
        assert await claim_all(broker, "q") == counted(*(int(name) * 40 for name in order))

    play(home, scenario)


async def spin(condition: Callable[[], bool]) -> None:
    """Let others run, step by step, until a condition holds that does not hold for long."""
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


def test_a_commit_and_an_abort_wait_for_chunks_that_are_on_their_way() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        places = node_of(broker).catalog.stages.by_key
        for transaction in ("t", "u"):
            await broker.stage(transaction, "a", chunk(0), queue="q")
        coming = asyncio.ensure_future(broker.stage("t", "b", chunk(40), queue="q"))
        await spin(lambda: bool(places["default", "t"].coming))
        assert (await broker.commit_staged("t", ["a", "b"])).published == 80
        await coming
        coming = asyncio.ensure_future(broker.stage("u", "b", chunk(40), queue="q"))
        await spin(lambda: bool(places["default", "u"].coming))
        await broker.abort_staged("u")
        await coming
        assert await claim_all(broker, "q") == counted(0, 40)
        assert await stored(broker) == (0, 0)
        await broker.close()

    shaky.play(story)


def test_a_chunk_that_comes_while_its_transaction_ends_is_not_left_behind() -> None:
    async def story(machine: shaky.Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("q")
        await broker.stage("t", "a", chunk(0), queue="q")
        ending = asyncio.ensure_future(broker.commit_staged("t", ["a"]))
        await spin(lambda: ("default", "t") in node_of(broker).staging._ending)
        await broker.stage("t", "late", chunk(40), queue="q")
        assert (await ending).published == 40
        assert await stored(broker) == (0, 0)
        await broker.close()

    shaky.play(story)


# Refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [False, True], ids=["one commit", "pieces"])
def test_a_commit_that_cannot_be_done_does_nothing(home: Home, pieces: bool) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        if pieces:
            carry_on_in_pieces(broker)
        await broker.declare_queue("q")
        await broker.declare_queue("gone")
        await broker.declare_queue("full", max_length=50)
        await broker.declare_exchange("x")
        await broker.put_mark("m", 1)
        await broker.stage("t", "a", chunk(0, 200), queue="q")
        await broker.stage("t", "gone", chunk(0, 200), queue="gone")
        await broker.stage("t", "full", chunk(0, 60), queue="full")
        await broker.stage("t", "x", chunk(0, 200), exchange="x")
        await broker.delete_queue("gone")
        await broker.delete_exchange("x")
        mark = MarkPut("n", 1)
        with pytest.raises(ChunkMissing, match="'b' and 1 others of transaction 't'"):
            await broker.commit_staged("t", ["a", "b", "c"], marks=[mark])
        with pytest.raises(ChunkMissing):
            await broker.commit_staged("never", ["a"], marks=[mark])
        with pytest.raises(MarkMoved):
            await broker.commit_staged("t", ["a"], marks=[mark, MarkPut("m", 2, 3)])
        with pytest.raises(NotFound, match="gone"):
            await broker.commit_staged("t", ["a", "gone"], marks=[mark])
        with pytest.raises(NotFound, match="x"):
            await broker.commit_staged("t", ["a", "x"], marks=[mark])
        with pytest.raises(QueueFull, match="max_length 50"):
            await broker.commit_staged("t", ["a", "full"], marks=[mark])
        with pytest.raises(InvalidArgument, match="twice"):
            await broker.commit_staged("t", ["a", "a"], marks=[mark])
        assert [found.name for found in await broker.marks()] == ["m"]
        assert (await broker.browse("q")).messages == []
        assert len((await broker.staged("t")).chunks) == 4
        assert (await broker.commit_staged("t", ["a"], marks=[mark])).published == 200
        assert len(await claim_all(broker, "q")) == 200

    play(home, scenario)


def test_what_is_no_chunk_is_refused(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_message_bytes=3)
        good = chunk(0)
        with pytest.raises(InvalidArgument, match="neither"):
            await broker.stage("t", "a", good)
        with pytest.raises(InvalidArgument, match="both"):
            await broker.stage("t", "a", good, queue="q", exchange="x")
        with pytest.raises(InvalidArgument, match="routing_key"):
            await broker.stage("t", "a", good, queue="q", routing_key="k")
        for transaction, name in (("", "a"), ("t", ""), ("t\n", "a"), ("t", "x" * 256), ("t", "commit")):
            with pytest.raises(InvalidArgument):
                await broker.stage(transaction, name, good, queue="q")
        with pytest.raises(NotFound):
            await broker.stage("t", "a", good, queue="none")
        with pytest.raises(NotFound):
            await broker.stage("t", "a", good, exchange="none")
        with pytest.raises(Forbidden):
            await broker.stage("t", "a", good, queue="$events")
        with pytest.raises(MessageTooLarge):
            await broker.stage("t", "a", encode(messages("four")), queue="q")
        with pytest.raises(InvalidBatch):
            await broker.stage("t", "a", EncodedBatch(40, good.meta, good.body[:-1]), queue="q")
        with pytest.raises(InvalidArgument, match="EncodedBatch"):
            await broker.stage("t", "a", b"bytes", queue="q")  # type: ignore[arg-type]
        async with broker.session() as session:
            await session.declare_queue("own", exclusive=True)
            with pytest.raises(Forbidden, match="exclusive"):
                await session.stage("t", "a", good, queue="own")
        assert (await broker.staged("t")).state == "unknown"
        assert await stored(broker) == (0, 0)

    play(memory_home, scenario)


# Bounds --------------------------------------------------------------------------------------------------


def test_staged_bytes_are_bounded_and_freed(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        size = chunk(0).size
        broker = await home.open(limits=Limits(staging_bytes=3 * size))
        await broker.declare_queue("q")
        for name in "abc":
            await broker.stage(name, "only", chunk(0), queue="q")
        with pytest.raises(Overloaded, match="staging_bytes"):
            await broker.stage("d", "only", chunk(0), queue="q")
        await broker.stage("a", "only", chunk(0), queue="q")  # what is there needs no room
        for end in (broker.commit_staged("a", ["only"]), broker.abort_staged("b")):
            await end
            await broker.stage("d", "only", chunk(0), queue="q")
            await broker.abort_staged("d")
        assert await stored(broker) == (1, 2)
        await broker.abort_staged("never")
        broker = await home.reopen(broker, limits=Limits(staging_bytes=2 * size))
        await broker.stage("c", "more", chunk(0), queue="q")
        with pytest.raises(Overloaded):
            await broker.stage("c", "again", chunk(0), queue="q")

    play(home, scenario)


def test_counts_are_bounded(memory_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNKS_MAX", 2)
    monkeypatch.setattr(staging, "CHUNKS_ALL_MAX", 3)
    monkeypatch.setattr(staging, "TRANSACTIONS_MAX", 2)

    async def scenario(home: Home) -> None:
        broker = await home.open(limits=Limits(batch_messages=40))
        await broker.declare_queue("q")
        with pytest.raises(MessageTooLarge, match="limit is 40"):
            await broker.stage("t", "a", chunk(0, 41), queue="q")
        await broker.stage("t", "a", chunk(0), queue="q")
        await broker.stage("t", "b", chunk(0), queue="q")
        with pytest.raises(LimitReached, match="larger ones"):
            await broker.stage("t", "c", chunk(0), queue="q")
        await broker.stage("u", "a", chunk(0), queue="q")
        with pytest.raises(Overloaded, match="chunks"):
            await broker.stage("u", "b", chunk(0), queue="q")
        with pytest.raises(Overloaded, match="transactions"):
            await broker.stage("v", "b", chunk(0), queue="q")

    play(memory_home, scenario)


def test_what_is_never_committed_expires_after_its_last_chunk(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        limits = Limits(staging_ttl=100.0)
        broker = await home.open(limits=limits)
        await broker.declare_queue("q")
        await broker.stage("t", "a", chunk(0), queue="q")
        home.pass_time(broker, 60_000)
        await broker.stage("t", "b", chunk(0), queue="q")
        expires_ms = (await broker.staged("t")).expires_ms
        assert expires_ms == home.clock.now_ms() + 100_000
        home.pass_time(broker, 60_000)
        await turns(50)
        assert (await broker.staged("t")).state == "open"
        broker = await home.reopen(broker, limits=limits)
        home.pass_time(broker, 40_000)

        async def dropped() -> bool:
            return (await broker.staged("t")).state == "unknown"

        await until(dropped)
        assert await stored(broker) == (0, 0)
        with pytest.raises(ChunkMissing):
            await broker.commit_staged("t", ["a"])

    play(home, scenario)


# Large commits -------------------------------------------------------------------------------------------


def test_a_large_commit_waits_for_room_after_its_decision(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        carry_on_in_pieces(broker)
        await broker.declare_queue("q", max_length=300)
        for number in range(3):
            await broker.stage("t", str(number), chunk(number * 100, 100), queue="q")
        gate = gated(broker, 0)
        commit = asyncio.ensure_future(broker.commit_staged("t", ["0", "1", "2"]))
        await until_decided(broker, "t")
        await broker.publish("q", Message(b"-1"))  # a rival takes room before all pieces are there
        for _ in range(1_000):
            gate.release()

        async def waits() -> bool:
            return "staged transaction 't' waits" in caplog.text

        await until(waits)
        assert (await broker.staged("t")).published == 200
        assert not commit.done()
        found: list[str] = []

        async def drained() -> bool:
            found.extend(await claim_all(broker, "q"))
            return commit.done()

        await until(drained)
        found += await claim_all(broker, "q")
        assert (await commit).published == 300
        assert [text for text in found if text != "-1"] == counted(0, count=300)

    play(home, scenario)


def test_what_is_published_under_a_mark_stays_in_its_order_behind_a_large_commit(home: Home) -> None:
    """A sink whose driver was killed in the middle of one, and which goes on with the next batch, a small one."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        carry_on_in_pieces(broker)
        await broker.declare_queue("q")
        for number in range(3):
            await broker.stage("large", str(number), chunk(number * 40), queue="q")
        await broker.stage("small", "a", chunk(120, 1), queue="q")
        await broker.stage("rival", "a", chunk(1_000, 1), queue="q")
        gate = gated(broker, 1)
        killed = asyncio.ensure_future(broker.commit_staged("large", ["0", "1", "2"], marks=[MarkPut("sink", 1, 0)]))
        await until_decided(broker, "large")
        killed.cancel()
        following = asyncio.ensure_future(broker.commit_staged("small", ["a"], marks=[MarkPut("sink", 2, 1)]))
        assert (await broker.commit_staged("rival", ["a"], marks=[MarkPut("another", 1)])).published == 1
        assert not following.done()
        assert (await broker.mark("sink")).value == 1
        for _ in range(2):
            gate.release()
        assert (await following).published == 1
        assert (await broker.mark("sink")).value == 2
        found = await claim_all(broker, "q")
        assert [text for text in found if text != "1000"] == counted(0, count=121)

    play(home, scenario)


async def until_decided(broker: LocalBroker, transaction: str) -> None:
    async def decided() -> bool:
        return (await broker.staged(transaction)).state == "committing"

    await until(decided)


def test_a_large_commit_goes_on_after_a_restart_by_itself(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        carry_on_in_pieces(broker)
        await broker.declare_queue("q")
        names = [str(number) for number in range(20)]
        for number, name in enumerate(names):
            await broker.stage("t", name, chunk(number * 40), queue="q")
        gated(broker, 7)
        commit = asyncio.ensure_future(broker.commit_staged("t", names, marks=[MarkPut("m", "done")]))

        async def begun() -> bool:
            return (await broker.staged("t")).published == 280

        await until(begun)
        await broker.close()
        with pytest.raises(Closed):
            await commit
        broker = await home.open()
        assert (await broker.mark("m")).value == "done"
        done = await soon(broker.commit_staged("t", names, marks=[MarkPut("m", "done", 0)]))
        assert (done.published, done.repeated) == (800, True)
        assert await claim_all(broker, "q") == counted(*range(0, 800, 40))
        assert await stored(broker) == (0, 0)

    play(home, scenario)


def test_a_queue_that_is_deleted_after_the_decision_takes_its_share_along(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        carry_on_in_pieces(broker)
        await broker.declare_queue("q")
        await broker.declare_queue("brief")
        await broker.stage("t", "first", chunk(0, 100), queue="q")
        await broker.stage("t", "second", chunk(0, 100), queue="brief")
        await broker.declare_exchange("x")
        await broker.stage("t", "third", chunk(0, 100), exchange="x")
        await broker.stage("t", "fourth", chunk(0, 100), queue="q")
        gate = gated(broker, 1)
        commit = asyncio.ensure_future(broker.commit_staged("t", ["first", "second", "third", "fourth"]))

        await until_decided(broker, "t")
        await broker.delete_queue("brief")
        await broker.declare_queue("brief")
        await broker.delete_exchange("x")
        for _ in range(1_000):
            gate.release()
        assert (await soon(commit)).published == 400
        assert len(await claim_all(broker, "q")) == 200
        assert await claim_all(broker, "brief") == []

    play(home, scenario)


# Commits that fail ---------------------------------------------------------------------------------------


class SlowStore(shaky.ShakyStore):
    """Reads so slowly that what is known in memory is read anew while somebody still works with what was before."""

    async def catalog(self) -> list[CatalogRow]:
        await asyncio.sleep(0.08)
        return await super().catalog()

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        await asyncio.sleep(0.06)
        return await super().read(lane, start, end, bytes_most)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("pieces", [False, True], ids=["one commit", "pieces"])
@pytest.mark.parametrize("store", [shaky.ShakyStore, SlowStore], ids=["quick", "slow"])
def test_whichever_store_commit_fails_everything_happens_once(
    when: Literal["before", "after"], pieces: bool, store: type[shaky.ShakyStore]
) -> None:
    """Each store commit of a whole story fails in turn, with and without having happened; its caller asks again."""
    names = [str(number) for number in range(5)]

    async def story(machine: shaky.Machine, failing: int) -> bool:
        machine.store = store()
        broker = await machine.open(events=False)
        if pieces:
            carry_on_in_pieces(broker)
        await broker.declare_queue("q")
        await broker.put_mark("m", 0)
        seen = 0

        def chosen(_: Commit) -> bool:
            nonlocal seen
            seen += 1
            return seen == failing + 1

        machine.store.fail(when, 1, chosen)
        for number, name in enumerate(names):
            await _again(partial(broker.stage, "t", name, chunk(number * 40), queue="q"))
        puts = [MarkPut("m", 1, 1), MarkPut("new", 1, 0)]
        done = await _again(lambda: broker.commit_staged("t", names, marks=puts))
        assert done.published == 200
        again = await broker.commit_staged("t", names, marks=puts)
        assert (again.published, again.repeated) == (200, True)
        assert [(mark.name, mark.version) for mark in await broker.marks()] == [("m", 2), ("new", 1)]
        has_failed = machine.store.fail_times == 0
        machine.store.fail_times = 0
        assert await claim_all(broker, "q") == counted(0, 40, 80, 120, 160)
        assert await stored(broker) == (0, 0)
        await broker.close()
        return has_failed

    results: list[bool] = []

    async def one(machine: shaky.Machine) -> None:
        results.append(await story(machine, len(results)))

    while not results or results[-1]:
        shaky.play(one)
    assert len(results) > 6, "every commit of the story had its turn"


async def _again(call: Any) -> Any:
    for _ in range(5):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.2)
    raise AssertionError("it failed again and again")
