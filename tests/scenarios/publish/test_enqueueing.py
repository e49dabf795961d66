"""What applications enqueue is published once and in order, whatever fails; on a virtual clock and a shaky store."""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from unittest.mock import patch

import msgspec
import pytest

from penstock import Message
from penstock.model.errors import Fenced, InvalidArgument, PenstockError
from penstock.model.rows import Commit, EnqueuedRow
from penstock.node.background import enqueued
from penstock.node.broker import LocalBroker
from penstock.node.cluster.ownership import Ownership
from penstock.node.publish.parts import parts_of_messages
from penstock.store.contract import changes_enqueued
from tests.memory_disk import MemoryEnqueueing
from tests.nodes import node_of
from tests.scenarios.rig import texts
from tests.scenarios.shaky import Machine, ShakyStore, play


def row(id: int, queue: str | None = "work", payload: bytes | None = None, **fields: Any) -> EnqueuedRow:
    made = EnqueuedRow(id, "default", queue, None, b"%d" % id if payload is None else payload)
    return msgspec.structs.replace(made, **fields)


async def opened(machine: Machine, **options: Any) -> tuple[LocalBroker, ShakyStore]:
    """A broker with the queue `work`, kept whole, which knows no dedup ids: a row that is published twice shows."""
    store = ShakyStore(enqueues=True)
    broker = await machine.open(store, **options)
    await broker.declare_queue("work", retain_ms=10**11, dedup_window_ms=0)
    return broker, store


async def published(broker: LocalBroker, queue: str = "work") -> list[str]:
    return texts(await broker.read_from(queue, max=100_000))


def rows_of(store: ShakyStore) -> MemoryEnqueueing:
    return store.enqueued


async def settled(store: ShakyStore) -> None:
    """Until no row waits any more; virtual time costs nothing."""
    for _ in range(20_000):
        if not await rows_of(store).rows(1, 0):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("rows still wait")


def test_rows_are_published_in_order_with_all_that_they_say() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        store.enqueue(
            row(
                2,
                headers='{"n": 1, "raw": {"$base64": "AP8="}}',
                partition="p",
                key="k",
                priority=3,
                ttl_ms=60_000,
                dedup_id="d",
                content_type="text/plain",
                correlation_id="c",
                trace_id="t",
            ),
            row(1, delay_ms=5_000),
            row(3, not_before_ms=machine.now_ms() + 9_000),
        )
        await settled(store)
        found = [received.message for received in (await broker.read_from("work", max=10)).messages]
        assert found == [
            Message(b"1", delay_ms=5_000),
            Message(
                b"2",
                "p",
                "k",
                {"n": 1, "raw": b"\x00\xff"},
                3,
                ttl_ms=60_000,
                dedup_id="d",
                content_type="text/plain",
                correlation_id="c",
                trace_id="t",
            ),
            Message(b"3", not_before_ms=found[2].not_before_ms),
        ]
        assert node_of(broker).counters.enqueued_published == 3
        await broker.close()

    play(story)


@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_commit_that_fails_loses_and_repeats_nothing(
    fails: Literal["before", "after"], nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueued, "ROWS_AT_ONCE", 40)

    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        seen = 0

        def chosen(commit: Commit) -> bool:
            nonlocal seen
            seen += changes_enqueued(commit)
            return changes_enqueued(commit) and seen >= nth

        store.fail(fails, 3, chosen)
        store.enqueue(*(row(id) for id in range(1, 301)))
        await settled(store)
        assert await published(broker) == [str(id) for id in range(1, 301)]
        assert store.fail_times == 0
        await broker.close()

    play(story)


def test_a_row_with_a_lower_id_that_is_committed_later_is_published_too() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        store.enqueue(row(10), row(11))
        await settled(store)
        store.enqueue(row(1), row(12))
        await settled(store)
        assert await published(broker) == ["10", "11", "1", "12"]
        await broker.close()

    play(story)


def test_rows_that_cannot_be_published_are_kept_with_the_reason_and_block_nobody() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        await broker.declare_queue("small", max_message_bytes=2)
        await broker.declare_exchange("orders", kind="topic")
        store.enqueue(
            row(1),
            row(2, "nowhere"),
            row(3, "small", b"xxx"),
            row(4, headers="[1]"),
            row(5, "$events"),
            row(6, None, exchange="orders", key="a"),
            row(7, None, exchange="gone"),
            row(8, priority=999),
            row(9, headers='{"t": {"$time": "yesterday"}}'),
            row(10, None, exchange="orders", mandatory=False),
            row(11),
            row(12, "$events-5"),
        )
        await settled(store)
        assert await published(broker) == ["1", "11"]
        page = await broker.enqueued_failed()
        assert page.next is None
        errors = {failed.id: failed.error for failed in page.failed}
        for id, text in {
            2: "there is no queue 'nowhere'; declare it first",
            3: "payload has 3 bytes; the limit of 'small' is 2",
            4: "headers are a JSON list",
            5: "written by the broker alone",
            6: "no queue for key 'a'",
            7: "no exchange 'gone'",
            8: "priority is 999",
            9: "'yesterday', which is not an ISO 8601 time",
            12: "written by the broker alone",
        }.items():
            assert text in errors.pop(id)
        assert errors == {}
        assert node_of(broker).enqueueing.failed == 9
        assert node_of(broker).counters.enqueued_failed == 9
        first = await broker.enqueued_failed(max=3)
        assert [failed.id for failed in first.failed] == [2, 3, 4]
        assert (await broker.enqueued_failed(after=first.next or 0)).failed[0].id == 5
        assert await broker.in_namespace("other").retry_enqueued() == 0
        assert await broker.purge_enqueued([4, 5, 1_000]) == 2
        assert await broker.retry_enqueued([3]) == 1
        await settled(store)
        assert [failed.id for failed in (await broker.enqueued_failed()).failed] == [2, 3, 6, 7, 8, 9, 12]
        with pytest.raises(InvalidArgument, match="ids must be a list"):
            await broker.purge_enqueued("4")  # type: ignore[arg-type]
        await broker.close()

    play(story)


def test_what_waits_for_a_declaration_is_tried_again_when_it_is_declared() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        store.enqueue(row(1, "later"), row(2, "never"), row(3, "later"), row(4, None, exchange="later", key="k"))
        await settled(store)
        assert len((await broker.enqueued_failed()).failed) == 4
        await broker.declare_queue("later", retain_ms=10**11)
        await asyncio.sleep(0.5)
        assert await published(broker, "later") == ["1", "3"]
        await broker.declare_exchange("later", kind="direct")
        await broker.bind("later", "later", "k")
        await asyncio.sleep(0.5)
        assert await published(broker, "later") == ["1", "3", "4"]
        assert [failed.id for failed in (await broker.enqueued_failed()).failed] == [2]
        assert node_of(broker).enqueueing.failed == 1
        await broker.close()

    play(story)


@pytest.mark.parametrize("pause_ms", range(8))
def test_a_queue_that_is_declared_while_its_row_fails_is_not_missed(pause_ms: int) -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        store.enqueue(row(1, "later"))
        await asyncio.sleep(pause_ms / 4000)
        await broker.declare_queue("later", retain_ms=10**11)
        await asyncio.sleep(3)
        assert await published(broker, "later") == ["1"]
        await broker.close()

    play(story)


def test_a_full_queue_makes_its_own_rows_wait_and_no_others() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        await broker.declare_queue("full", max_length=7)
        store.enqueue(*(row(id, "full" if id % 2 else "work") for id in range(1, 61)))
        await asyncio.sleep(0.5)
        assert await published(broker) == [str(id) for id in range(2, 61, 2)]
        taken: list[str] = []
        while len(taken) < 30:
            claim = await broker.claim("full", max=5, wait=5)
            taken += texts(claim)
            await broker.ack(claim)
        assert taken == [str(id) for id in range(1, 61, 2)]
        assert (await broker.enqueued_failed()).failed == []
        await broker.close()

    play(story)


def test_rows_behind_one_that_waits_do_not_overtake_it_when_there_is_room_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        await broker.declare_queue("full", max_length=2, retain_ms=10**11, dedup_window_ms=0)
        await broker.publish_many("full", [Message(b"x"), Message(b"y")])
        refused = enqueued.Enqueueing._refused

        async def refused_and_freed(self: Any, *arguments: Any) -> None:
            await refused(self, *arguments)
            await broker.claim("full", max=2, ack=True)

        monkeypatch.setattr(enqueued.Enqueueing, "_refused", refused_and_freed)
        store.enqueue(*(row(id, "full") for id in range(1, 5)))
        await asyncio.sleep(10)
        assert await published(broker, "full") == ["x", "y", "1", "2", "3", "4"]
        await broker.close()

    play(story)


def test_rows_keep_their_order_in_a_queue_however_they_come_there() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        await broker.declare_exchange("orders", kind="fanout")
        await broker.bind("orders", "work")
        store.enqueue(*(row(id) if id % 3 else row(id, None, exchange="orders") for id in range(1, 101)))
        await settled(store)
        assert await published(broker) == [str(id) for id in range(1, 101)]
        await broker.close()

    play(story)


def test_an_ephemeral_queue_gets_its_rows() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        await broker.declare_queue("light", ephemeral=True, retain_ms=10**11)
        store.enqueue(row(1, "light"), row(2), row(3, "light"))
        await settled(store)
        assert await published(broker, "light") == ["1", "3"]
        assert await published(broker) == ["2"]
        await broker.close()

    play(story)


def test_a_node_that_lost_the_store_takes_nothing_any_more() -> None:
    async def story(machine: Machine) -> None:
        first, store = await opened(machine)
        await node_of(first).enqueueing.close()  # it stands still with rows in its hands
        store.enqueue(*(row(id) for id in range(1, 11)))
        rows = await rows_of(store).rows(100, 10**9)
        second = await machine.open(store)
        await settled(store)
        taken, failures = await node_of(first).enqueueing._route_all(rows)
        with pytest.raises(PenstockError):
            await node_of(first).enqueueing._publish(taken, failures)
        assert isinstance(node_of(first).lifecycle.fenced, Fenced)
        assert not node_of(first).enqueueing._takes_rows()
        assert await published(second) == [str(id) for id in range(1, 11)]
        await second.close()

    play(story)


def test_a_node_that_is_not_the_registrar_leaves_rows_alone() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        with patch.object(Ownership, "is_registrar", False):
            store.enqueue(row(1))
            await asyncio.sleep(5)
            assert await published(broker) == []
        await asyncio.sleep(5)
        assert await published(broker) == ["1"]
        await broker.close()

    play(story)


def test_without_a_call_rows_are_found_by_looking() -> None:
    async def story(machine: Machine) -> None:
        broker, store = await opened(machine, enqueue_poll=2.0)
        await rows_of(store).watch(lambda: None)
        await asyncio.sleep(0.1)
        store.enqueue(row(1))
        await asyncio.sleep(1.5)
        assert await published(broker) == []
        await asyncio.sleep(0.6)
        assert await published(broker) == ["1"]
        await broker.close()

    play(story)


def test_a_row_that_the_broker_chokes_on_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = parts_of_messages

    def choking(queue: Any, messages: list[Message]) -> Any:
        if any(message.payload == b"50" for message in messages):
            raise RuntimeError("unforeseen")
        return encoded(queue, messages)

    monkeypatch.setattr(enqueued, "parts_of_messages", choking)

    async def story(machine: Machine) -> None:
        broker, store = await opened(machine)
        store.enqueue(*(row(id) for id in range(1, 101)))
        await settled(store)
        assert await published(broker) == [str(id) for id in range(1, 101) if id != 50]
        [failed] = (await broker.enqueued_failed()).failed
        assert (failed.id, "unforeseen" in failed.error) == (50, True)
        await broker.close()

    play(story)
