"""Every operation of the API, asked of a node that owns nothing of what it is about: in process, and over HTTP.

`CASES` names each method of the `Broker` protocol; one that is missing there fails a test. The node that is asked is
neither the owner of the queue nor the registrar, and a case passes only if its answer is the owner's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest

from penstock import AsyncClient
from penstock.api.broker import Broker
from penstock.api.results import Claim
from penstock.api.staging import MarkPut
from penstock.batch import encode
from penstock.model import Message
from penstock.model.errors import NotFound
from penstock.model.rows import REGISTRAR_SLOT, home_slot
from penstock.model.verdict import Verdict
from penstock.node.broker.cluster import ClusterBroker
from tests.scenarios.cluster.test_broker import reaching
from tests.scenarios.cluster.test_slots import SharedStore
from tests.scenarios.rig import until

Case = Callable[[Broker, Broker, str], Awaitable[None]]
"""Takes the broker that is asked, the owner's own, and the name of a queue of the owner's."""
CASES: Final[dict[str, Case]] = {}
LOCAL: Final = {
    "close": "ends the broker that is asked, and nothing else",
    "in_namespace": "makes a view of the broker; no operation",
    "queue": "makes a handle, whose methods are these operations",
    "exchange": "makes a handle, whose methods are these operations",
}


def case(*names: str) -> Callable[[Case], Case]:
    def add(story: Case) -> Case:
        CASES.update(dict.fromkeys(names, story))
        return story

    return add


async def held(asked: Broker, queue: str, count: int = 1) -> Claim:
    """A claim of new messages."""
    await asked.publish_many(queue, [Message(b"%d" % number) for number in range(count)])
    claim = await asked.claim(queue, max=count, lease_seconds=600)
    assert len(claim) == count
    return claim


# Messages ------------------------------------------------------------------------------------------------


@case("publish", "publish_many", "publish_batch")
async def publish(asked: Broker, owner: Broker, queue: str) -> None:
    first = await asked.publish(queue, Message(b"1"))
    again = await asked.publish_many(queue, [Message(b"2"), Message(b"3")], publish_id="p")
    known = await asked.publish_many(queue, [Message(b"2"), Message(b"3")], publish_id="p")
    batch = await asked.publish_batch(queue, encode([Message(b"4")]))
    places = [first, again.first(), known.first(), batch.first()]
    assert [place.offset for place in places] == [0, 1, 1, 3]
    assert known.duplicates == 2
    assert (await owner.claim(queue, max=10)).payloads() == [b"1", b"2", b"3", b"4"]


@case("publish_to", "declare_exchange", "bind", "unbind", "bindings", "exchanges", "delete_exchange")
async def exchange(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.declare_exchange("x", kind="topic")
    await asked.bind("x", queue, "a.*")
    assert [binding.target for binding in await asked.bindings("x")] == [queue]
    assert "x" in await asked.exchanges()
    assert "x" in await owner.exchanges()
    receipt = await asked.publish_to("x", [Message(b"1", key="a.b"), Message(b"2", key="c")])
    assert receipt.queues == [queue]
    assert (await owner.claim(queue, max=10)).payloads() == [b"1"]
    await asked.unbind("x", queue, "a.*")
    assert await owner.bindings("x") == []
    await asked.delete_exchange("x")
    assert "x" not in await owner.exchanges()


@case("claim", "settle", "ack", "nack", "reject", "postpone", "release", "extend", "dead")
async def settle(asked: Broker, owner: Broker, queue: str) -> None:
    claim = await held(asked, queue, 6)
    assert await asked.extend(claim, 900) > claim.deadline_ms
    await asked.settle(claim, [Verdict("ack", 0, 1)])
    await asked.ack(claim, [1])
    await asked.nack(claim, [2], delay=0)
    await asked.reject(claim, [3], error="bad")
    await asked.postpone(claim, 600, [4])
    await asked.release(claim, [5])
    again = await asked.claim(queue, max=10)
    assert again.offsets() == [2, 5]
    assert [message.attempt for message in again] == [2, 1]
    assert [letter.error for letter in await asked.dead(queue)] == ["bad"]


@case("settle_and_claim")
async def settle_and_claim(asked: Broker, owner: Broker, queue: str) -> None:
    claim = await held(asked, queue)
    await owner.publish(queue, Message(b"next"))
    assert (await asked.settle_and_claim(claim)).payloads() == [b"next"]


@case("transaction")
async def transaction(asked: Broker, owner: Broker, queue: str) -> None:
    claim = await held(asked, queue)
    async with asked.transaction() as together:
        together.ack(claim).publish(queue, Message(b"result"))
    assert together.receipt is not None
    assert together.receipt.queues == [queue]
    assert (await owner.claim(queue, max=10)).payloads() == [b"result"]


@case("read", "commit", "read_from", "seek")
async def streams(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.declare_group(queue, "audit", kind="stream")
    await asked.publish_many(queue, [Message(b"1"), Message(b"2")])
    await asked.seek(queue, "audit", offset=0)
    assert (await asked.read(queue, "audit", wait=5)).payloads() == [b"1", b"2"]
    await asked.commit(queue, "audit", 1)
    assert [group.lag for group in (await owner.stats(queue)).groups if group.group == "audit"] == [1]
    assert (await asked.read_from(queue, 1)).payloads() == [b"2"]


# What is declared ----------------------------------------------------------------------------------------


@case("declare_queue", "queue_options", "has_queue", "queues", "delete_queue", "pause", "resume")
async def queues(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.declare_queue(queue, max_attempts=7)
    assert await asked.queue_options(queue) == await owner.queue_options(queue) == {"max_attempts": 7}
    assert queue in await asked.queues()
    await asked.pause(queue)
    await asked.publish(queue, Message(b"1"))
    assert len(await owner.claim(queue)) == 0
    await asked.resume(queue)
    assert len(await owner.claim(queue)) == 1
    await asked.delete_queue(queue)
    assert not await asked.has_queue(queue)
    assert not await owner.has_queue(queue)


@case("declare_group", "groups", "delete_group")
async def groups(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.declare_group(queue, "g", max_attempts=3)
    assert (await asked.groups(queue))["g"] == (await owner.groups(queue))["g"] == {"max_attempts": 3}
    await asked.delete_group(queue, "g")
    assert "g" not in await owner.groups(queue)


@case("attach", "detach", "stop_waiting")
async def consumers(asked: Broker, owner: Broker, queue: str) -> None:
    assert await asked.attach(queue, consumer="ann") == "ann"
    assert (await owner.stats(queue)).consumers == 1
    waiting = asyncio.ensure_future(asked.claim(queue, wait=60, consumer="ann"))
    await asyncio.sleep(0.2)
    await asked.stop_waiting(queue, consumer="ann")
    assert len(await asyncio.wait_for(waiting, 10)) == 0
    await asked.detach(queue, consumer="ann")
    assert (await owner.stats(queue)).consumers == 0


@case("declare_schedule", "schedule", "schedules", "delete_schedule")
async def schedules(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.declare_schedule("s", message=Message(b"tick"), queue=queue, interval_ms=3_600_000)
    assert (await asked.schedule("s")).name == "s"
    assert [schedule.name for schedule in await asked.schedules()] == ["s"]
    assert [schedule.name for schedule in await owner.schedules()] == ["s"]
    await asked.delete_schedule("s")
    assert await owner.schedules() == []


# Looking -------------------------------------------------------------------------------------------------


@case("browse", "history", "stats", "lanes", "scan", "extent")
async def inspect(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.publish_many(queue, [Message(b"1"), Message(b"2")])
    await asked.claim(queue, lease_seconds=600)
    page = await asked.browse(queue, group="default")
    assert [(message.payload, message.state) for message in page.messages] == [(b"1", "leased"), (b"2", "ready")]
    assert await asked.history(queue, 0) == await owner.history(queue, 0)
    assert await asked.stats(queue) == await owner.stats(queue)
    (lane,) = (await asked.lanes(queue)).lanes
    assert (lane.first, lane.end) == (0, 2)
    assert [message.payload for message in (await asked.scan(queue, 0, 0, 2)).messages()] == [b"1", b"2"]
    assert await asked.extent(queue, 0, 0) == await owner.extent(queue, 0, 0)


@case("dead_ranges", "dead_reasons", "redrive", "purge_dead", "purge")
async def dead_letters(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.reject(await held(asked, queue, 3), error="bad")
    assert [(found.start, found.end) for found in (await asked.dead_ranges(queue)).ranges] == [(0, 3)]
    assert [(reason.error, reason.count) for reason in await asked.dead_reasons(queue)] == [("bad", 3)]
    assert await asked.redrive(queue, offsets=(0, 1)) == 1
    assert await asked.purge_dead(queue, offsets=(1, 2)) == 1
    assert [letter.received.offset for letter in await owner.dead(queue)] == [2]
    assert await asked.purge(queue) == 1
    assert len(await owner.claim(queue)) == 0


@case("trace_event", "trace")
async def traces(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.publish(queue, Message(b"1", trace_id="t-1"))
    await asked.trace_event("t-1", "seen", queue=queue, offset=0)

    async def noted() -> bool:
        return "seen" in [entry.name for entry in (await asked.trace("t-1")).entries]

    await until(noted)
    assert await asked.trace("t-1") == await owner.trace("t-1")


@case("check_ready")
async def ready(asked: Broker, owner: Broker, queue: str) -> None:
    assert await asked.check_ready() == "ready"


# Beside queues -------------------------------------------------------------------------------------------


@case("put_mark", "mark", "marks", "delete_mark")
async def marks(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.put_mark("m", {"at": 1})
    assert (await asked.put_mark("m", {"at": 2}, expected_version=1)).version == 2
    assert (await asked.mark("m")).value == (await owner.mark("m")).value == {"at": 2}
    assert [mark.name for mark in await asked.marks()] == ["m"]
    await asked.delete_mark("m")
    with pytest.raises(NotFound):
        await owner.mark("m")


@case("stage", "staged", "commit_staged", "abort_staged")
async def staging(asked: Broker, owner: Broker, queue: str) -> None:
    await asked.stage("t", "c", encode([Message(b"1")]), queue=queue)
    assert [chunk.chunk for chunk in (await asked.staged("t")).chunks] == ["c"]
    committed = await asked.commit_staged("t", ["c"], marks=[MarkPut("m", 1)])
    assert not committed.repeated
    assert (await owner.claim(queue, wait=5)).payloads() == [b"1"]
    await asked.stage("u", "c", encode([Message(b"2")]), queue=queue)
    await asked.abort_staged("u")
    assert (await owner.staged("u")).state == "unknown"


@case("enqueued_failed", "retry_enqueued", "purge_enqueued")
async def enqueued(asked: Broker, owner: Broker, queue: str) -> None:
    assert (await asked.enqueued_failed()).failed == []
    assert await asked.retry_enqueued() == 0
    assert await asked.purge_enqueued() == 0


@case("session")
async def session(asked: Broker, owner: Broker, queue: str) -> None:
    await owner.publish(queue, Message(b"1"))
    async with asked.session() as mine:
        await mine.declare_queue(f"{queue}-own", exclusive=True)
        assert (await mine.claim(queue, lease_seconds=600)).payloads() == [b"1"]
        assert len(await owner.claim(queue)) == 0
    assert (await owner.claim(queue, wait=5)).payloads() == [b"1"]
    assert not await owner.has_queue(f"{queue}-own")


# -----------------------------------------------------------------------------------------------------------


def test_the_table_has_every_operation() -> None:
    operations = {name for name in dir(Broker) if not name.startswith("_")}
    assert set(CASES) | set(LOCAL) == operations
    assert not set(CASES) & set(LOCAL)


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[ClusterBroker, ClusterBroker, str]]:
    """The node that is asked, the one that owns everything that cases use, and the URL of the first."""
    store = SharedStore()
    async with reaching(store, "one") as (first, one), reaching(store, "two") as (second, two):
        await until(lambda: _is_balanced(first, second))
        assert one.ownership.owns(REGISTRAR_SLOT)
        (row,) = [row for row in two.ownership.view.nodes if row.incarnation == two.ownership.incarnation]
        yield second, first, row.url


async def _is_balanced(*brokers: ClusterBroker) -> bool:
    return all(len(broker.cluster.ownership.owned) == 32 for broker in brokers)


async def _play(story: Case, asked: Broker, owner: ClusterBroker) -> None:
    owned = owner.cluster.ownership.owned
    queue = next(name for name in map("q{}".format, range(999)) if home_slot("default", name) in owned)
    await owner.declare_queue(queue)
    await story(asked, owner._local, queue)


STORIES: Final = sorted({story.__name__: story for story in CASES.values()}.items())


@pytest.mark.parametrize("story", [story for _, story in STORIES], ids=[name for name, _ in STORIES])
def test_in_process(story: Case) -> None:
    async def scene() -> None:
        async with two_nodes() as (asked, owner, _):
            before = asked._forwarder.forwarded
            await _play(story, asked, owner)
            assert asked._forwarder.forwarded > before or story is ready

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("story", [story for _, story in STORIES], ids=[name for name, _ in STORIES])
def test_over_http(story: Case) -> None:
    async def scene() -> None:
        async with two_nodes() as (asked, owner, url), AsyncClient(url, token="secret") as client:
            before = asked._forwarder.forwarded
            await _play(story, client, owner)
            assert asked._forwarder.forwarded > before or story is ready

    asyncio.run(asyncio.wait_for(scene(), 60))
