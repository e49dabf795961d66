"""One claim hands out a bounded number of bytes, whatever it asks for, and loses nothing of the rest."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import penstock
from penstock import Message
from penstock.api.options import QueueOptions
from penstock.core.group.claim import CLAIM_BYTES_MAX

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"prioritized": True}], ids=str)
@pytest.mark.parametrize("settled", [False, True], ids=["leased", "at most once"])
def test_a_claim_is_cut_to_its_bytes(tmp_path: Path, options: QueueOptions, settled: bool) -> None:
    asyncio.run(_claim_all(tmp_path, options, settled))


async def _claim_all(tmp_path: Path, options: QueueOptions, settled: bool) -> None:
    async with await penstock.open(tmp_path / "large.db") as broker:
        await broker.declare_queue("large", **options)
        payload = os.urandom(MEGABYTE)
        for index in range(40):
            await broker.publish("large", Message(b"%02d" % index + payload, partition=f"p{index % 3}"))
        seen: list[int] = []
        sizes: list[int] = []
        while claim := await broker.claim("large", max=1000, ack=settled):
            sizes.append(sum(len(received.payload) for received in claim))
            assert {received.attempt for received in claim} == {1}
            seen += [int(received.payload[:2]) for received in claim]
            if not settled:
                await broker.ack(claim)
        assert sorted(seen) == list(range(40))
        for partition in range(3):  # between partitions an ordered group is fair, not in sequence
            assert [index for index in seen if index % 3 == partition] == list(range(partition, 40, 3))
        assert max(sizes) <= CLAIM_BYTES_MAX < min(sizes[:-1]) + 2 * MEGABYTE


def test_a_message_larger_than_the_bound_is_handed_out_alone(tmp_path: Path) -> None:
    asyncio.run(_one_by_one(tmp_path))


async def _one_by_one(tmp_path: Path) -> None:
    async with await penstock.open(tmp_path / "large.db") as broker:
        await broker.declare_queue("large")
        payload = os.urandom(15 * MEGABYTE)
        await broker.publish_many("large", [Message(payload)] * 4)
        counts = []
        while claim := await broker.claim("large", max=10):
            counts.append(len(claim))
            await broker.ack(claim)
        assert counts == [1, 1, 1, 1]
