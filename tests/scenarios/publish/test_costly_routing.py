"""Publishes through bindings that cost much, and of many messages: in turns with others, and in one commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from penstock import Message, encode
from penstock.batch import EncodedBatch
from penstock.core.filters import Filter
from penstock.model.verdict import Verdict
from penstock.model.work import SLICE_WORK
from penstock.node.broker import LocalBroker
from penstock.node.publish import parts
from penstock.node.publish.parts import PART_MESSAGES
from tests.scenarios.rig import Home, cancelled, play, texts

LENGTH = 10_000
LONG = Message(b"m", headers={"text": "a" * LENGTH})
QUEUES = 30
AT_ONCE = SLICE_WORK + LENGTH


class Meter:
    """The work of filters, and the most of it within one turn of the event loop."""

    def __init__(self) -> None:
        self.work = self.most = self._seen = 0
        self.begun = asyncio.Event()

    def patched(self) -> Any:
        original = Filter.work

        def counted(condition: Filter, headers: Any) -> int:
            work = original(condition, headers)
            self.work += work
            self.begun.set()
            return work

        return patch.object(Filter, "work", counted)

    async def watch(self) -> None:
        while True:
            self.most = max(self.most, self.work - self._seen)
            self._seen = self.work
            await asyncio.sleep(0)


async def bind_costly(broker: LocalBroker) -> None:
    """Queues behind conditions that a long header is looked through for; the message is for each of them."""
    await broker.declare_exchange("x", kind="filter")
    for number in range(QUEUES):
        await broker.declare_queue(f"q{number}")
        await broker.bind("x", f"q{number}", f"text LIKE '%{number}_b%' OR $priority = 0")


async def counts(broker: LocalBroker, first: int = 0) -> set[int]:
    return {len((await broker.browse(f"q{number}")).messages) for number in range(first, QUEUES)}


def test_a_publish_through_costly_bindings_lets_others_have_their_turn(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await bind_costly(broker)
        for published in ([LONG], [LONG] * 3, encode([LONG] * 3)):
            meter = Meter()
            with meter.patched():
                watching = asyncio.create_task(meter.watch())
                ticket = broker.publish_to("x", published)
                assert not ticket.in_order
                receipt = await ticket
                await cancelled(watching)
            count = published.count if isinstance(published, EncodedBatch) else len(published)
            assert meter.work >= count * QUEUES * LENGTH
            assert meter.most <= AT_ONCE
            assert sum(appended.count for _, _, appended, _ in receipt.parts) == count * QUEUES
        assert await counts(broker) == {7}

    play(home, scenario)


def test_a_publish_that_nobody_waits_for_ends_at_a_stop_and_publishes_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await bind_costly(broker)
        meter = Meter()
        with meter.patched():
            publishing = asyncio.ensure_future(broker.publish_to("x", LONG))
            await meter.begun.wait()
            await cancelled(publishing)
        assert meter.work < QUEUES * LENGTH
        assert await counts(broker) == {0}

    play(home, scenario)


def test_a_queue_that_is_deleted_while_a_message_is_routed_is_left_out(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await bind_costly(broker)
        ticket = broker.publish_to("x", [LONG] * 10)
        await broker.delete_queue("q0")
        await ticket
        assert await counts(broker, 1) == {10}

    play(home, scenario)


def test_a_transaction_routes_in_turns_with_others(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await bind_costly(broker)
        await broker.publish("q0", Message(b"first"))
        claim = await broker.claim("q0")
        assert claim.lease is not None
        meter = Meter()
        with meter.patched():
            watching = asyncio.create_task(meter.watch())
            unit = broker.transaction().settle(claim.lease, [Verdict("ack")])
            receipt = await unit.publish("q1", Message(b"one")).publish_to("x", LONG).publish("q1", LONG).commit()
            await cancelled(watching)
        assert meter.most <= AT_ONCE
        places = [(index, place.queue) for index, place in receipt.numbered()]
        assert places[0] == (0, "q1")
        assert places[-1] == (2, "q1")
        assert {index for index, _ in places[1:-1]} == {1}
        assert texts((await broker.claim("q1", max=10)).messages) == ["one", "m", "m"]

    play(home, scenario)


class Encoded:
    """How many messages were encoded or checked in one turn of the event loop, and where."""

    def __init__(self) -> None:
        self.on_loop: list[int] = []
        self.on_threads: list[int] = []

    def patched(self, name: str) -> Any:
        original = getattr(parts, name)

        def noted(listed: Sequence[Message] | EncodedBatch, *rest: Any) -> Any:
            count = listed.count if isinstance(listed, EncodedBatch) else len(listed)
            is_on_loop = threading.current_thread() is threading.main_thread()
            (self.on_loop if is_on_loop else self.on_threads).append(count)
            return original(listed, *rest)

        return patch.object(parts, name, noted)


MANY = 2 * PART_MESSAGES + 100


def test_many_messages_of_a_transaction_are_encoded_in_slices(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_exchange("x", kind="fanout")
        await broker.bind("x", "q")
        messages = [Message(str(number).encode()) for number in range(MANY)]
        encoded = Encoded()
        with encoded.patched("encode"):
            await broker.transaction().publish("q", *messages).publish("q", Message(b"last")).commit()
            await broker.publish_to("x", messages)
        assert encoded.on_loop == 2 * [PART_MESSAGES, PART_MESSAGES, 100]
        found: list[str] = []
        while len(found) < 2 * MANY + 1:
            found += texts((await broker.claim("q", max=100_000, ack=True)).messages)
        assert found == [*map(str, range(MANY)), "last", *map(str, range(MANY))]

    play(home, scenario)


def test_many_messages_under_one_id_are_encoded_on_a_thread(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=2)
        messages = [Message(str(number).encode()) for number in range(MANY)]
        encoded = Encoded()
        with encoded.patched("encode"), encoded.patched("check"):
            first = await broker.publish_many("q", messages, publish_id="once")
            again = await broker.publish_many("q", messages, publish_id="once")
        assert (encoded.on_loop, encoded.on_threads) == ([], 4 * [MANY])
        assert sum(appended.count for _, _, appended, _ in [*first.parts, *again.parts]) == MANY

    play(home, scenario)


def test_a_large_batch_is_checked_and_cut_on_a_thread(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=2)
        await broker.declare_exchange("x", kind="topic")
        await broker.bind("x", "q", "#")
        await broker.declare_queue("odd")
        await broker.bind("x", "odd", "1")
        batch = encode([Message(key=str(number % 2), partition=str(number)) for number in range(MANY)])
        encoded = Encoded()
        with encoded.patched("check"), encoded.patched("select"):
            receipt = await broker.publish_batch("q", batch)
            routed = await broker.publish_to("x", batch, publish_id="once")
            again = await broker.publish_to("x", batch, publish_id="once")
        assert encoded.on_loop == []
        assert min(encoded.on_threads) >= MANY // 2 > PART_MESSAGES
        assert sum(appended.count for _, _, appended, _ in receipt.parts) == MANY
        assert sum(appended.count for _, _, appended, _ in [*routed.parts, *again.parts]) == MANY + MANY // 2

    play(home, scenario)
