"""Answers are bounded by the bytes that they decode to: messages that compress to nothing are still large."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

import penstock
from penstock import Message
from penstock.api.broker import Broker
from penstock.api.front_broker import FrontBroker
from penstock.api.options import QueueOptions
from penstock.api.results import Received
from penstock.core.group.claim import CLAIM_BYTES_MAX

MEGABYTE = 1024 * 1024
SIZES = [5 * MEGABYTE, 5 * MEGABYTE, 3 * MEGABYTE, 7 * MEGABYTE, 15 * MEGABYTE, 15 * MEGABYTE, 1, 2, 3]
"""Of messages of zeros, each a few hundred bytes in the store."""
Answers = list[list[int]]
"""The sizes of the payloads of each answer."""


async def _claims(broker: Broker) -> Answers:
    answers: Answers = []
    while claim := await broker.claim("folded", max=1_000):
        answers.append(_sizes(claim.messages))
        assert {received.attempt for received in claim} == {1}
        await broker.ack(claim)
    return answers


async def _claims_settled(broker: Broker) -> Answers:
    answers: Answers = []
    while claim := await broker.claim("folded", max=1_000, ack=True):
        answers.append(_sizes(claim.messages))
    return answers


async def _reads(broker: Broker) -> Answers:
    await broker.declare_group("folded", "s", kind="stream", start="beginning")
    answers: Answers = []
    while read := await broker.read("folded", "s", max=1_000):
        answers.append(_sizes(read.messages))
    return answers


async def _reads_from(broker: Broker) -> Answers:
    answers: Answers = []
    offset = 0
    while read := await broker.read_from("folded", offset, max=1_000):
        answers.append(_sizes(read.messages))
        offset = read.next_offset
    return answers


async def _browses(broker: Broker) -> Answers:
    answers: Answers = []
    page = await broker.browse("folded", max=1_000)
    while True:
        answers.append(_sizes(page.messages))
        if page.next is None:
            return answers
        page = await broker.browse("folded", max=1_000, after=page.next)


async def _dead_pages(broker: Broker) -> Answers:
    await _kill_all(broker)
    answers: Answers = []
    front = cast("FrontBroker", broker)
    page = await front.dead_page("folded", max=1_000)
    while True:
        answers.append(_sizes([dead.received for dead in page.dead]))
        if page.next is None:
            return answers
        page = await front.dead_page("folded", max=1_000, after=page.next)


async def _dead_lists(broker: Broker) -> Answers:
    await _kill_all(broker)
    answers: Answers = []
    while dead := await broker.dead("folded", max=1_000):
        answers.append(_sizes([one.received for one in dead]))
        await broker.purge_dead("folded", offsets=(0, dead[-1].received.offset + 1))
    return answers


async def _kill_all(broker: Broker) -> None:
    while claim := await broker.claim("folded", max=1_000):
        await broker.reject(claim)


def _sizes(messages: Sequence[Received]) -> list[int]:
    return [len(received.payload) for received in messages]


READERS = [_claims, _claims_settled, _reads, _reads_from, _browses, _dead_pages, _dead_lists]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_an_answer_is_bounded_by_what_it_decodes_to(
    tmp_path: Path, reader: Callable[[Broker], Awaitable[Answers]], together: bool
) -> None:
    asyncio.run(_all_in_bounds(tmp_path, reader, together))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_an_answer_of_batches_that_do_not_say_how_far_they_unfold(
    tmp_path: Path,
    reader: Callable[[Broker], Awaitable[Answers]],
    together: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.batch.assemble.unfolded_bytes", lambda body, count: 0)
    asyncio.run(_all_in_bounds(tmp_path, reader, together))


async def _all_in_bounds(tmp_path: Path, reader: Callable[[Broker], Awaitable[Answers]], together: bool) -> None:
    async with await penstock.open(tmp_path / "folded.db") as broker:
        await broker.declare_queue("folded")
        messages = [Message(bytes(size)) for size in SIZES]
        if together:
            await broker.publish_many("folded", messages)
        else:
            for message in messages:
                await broker.publish("folded", message)
    async with await penstock.open(tmp_path / "folded.db") as broker:  # as a store that another version wrote
        answers = [answer for answer in await reader(broker) if answer]
        assert [size for answer in answers for size in answer] == SIZES
        assert all(sum(answer) <= CLAIM_BYTES_MAX for answer in answers)
        assert len(answers) < len(SIZES)


@pytest.mark.parametrize("say", [True, False], ids=["said", "not said"])
@pytest.mark.parametrize("options", [{"ordered": True}, {"prioritized": True}], ids=str)
def test_what_is_over_comes_next_in_order(
    tmp_path: Path, options: QueueOptions, say: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not say:
        monkeypatch.setattr("penstock.batch.assemble.unfolded_bytes", lambda body, count: 0)

    async def main() -> None:
        async with await penstock.open(tmp_path / "folded.db") as broker:
            await broker.declare_queue("folded", **options)
            await broker.publish_many(
                "folded", [Message(bytes(MEGABYTE), key=str(i), partition=f"p{i % 2}") for i in range(60)]
            )
            seen: list[int] = []
            while claim := await broker.claim("folded", max=1_000):
                assert sum(len(received.payload) for received in claim) <= CLAIM_BYTES_MAX
                assert {received.attempt for received in claim} == {1}
                seen += [int(received.key or "") for received in claim]
                await broker.ack(claim)
            for partition in range(2):
                assert [i for i in seen if i % 2 == partition] == list(range(partition, 60, 2))

    asyncio.run(main())
