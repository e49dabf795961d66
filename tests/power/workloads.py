"""What is done while the power may fail: a store in use, a spool whose store is away, backups.

Each is a program for the recorder. It notes, a line of JSON each, what it is about to ask for and what it was answered;
`facts.py` reads these. Everything is made small, so that segments fill, tables are written, checkpoints are made and
room is given back within a few dozen steps. `life` tells processes on the same files apart: their messages have
different names.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from penstock import Message
from penstock.api.ticket import in_task
from penstock.cli.serve.command import lock_store
from penstock.embedded import open_store
from penstock.model.errors import Unavailable
from penstock.model.rows import Commit
from penstock.node.background import retention
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.node.spool.folder import DiskFolder
from penstock.node.spool.spool import SpoolSettings
from penstock.store.sqlite import backup, index, restore, threads
from penstock.store.sqlite.engine import SqliteStore
from penstock.store.sqlite.log import segments, space
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.shipping import Gap, Shipping

STORE: Final = "data/deep/penstock.db"
SPOOL: Final = "spool/deep"
BACKUPS: Final = "backups/deep"
SIZES: Final = (5, 5, 100, 400, 1_500)
LEASE_SECONDS: Final = 600.0
"""Longer than any run: what was claimed stays claimed."""


def make_small(random: Random) -> None:
    """Short steps, and one of the ways in which a commit reaches the disk."""
    index.INDEX_SECONDS = 0.004  # type: ignore[misc]
    index.INDEX_ROWS = 24  # type: ignore[misc]
    segments.SEGMENT_BYTES_FIRST = 1 << 12  # type: ignore[misc]
    segments.SEGMENT_BYTES_MOST = 1 << 14  # type: ignore[misc]
    segments.ZEROS_BYTES = 1 << 11  # type: ignore[misc]
    space.SLACK_SEGMENTS = 0  # type: ignore[misc]
    threads.CHECKPOINT_BYTES = 1 << 17  # type: ignore[misc]
    threads.WAL_BYTES_MOST = 1 << 19  # type: ignore[attr-defined]
    retention.LIMITS_EVERY_MS = 5  # type: ignore[misc]
    way = random.choice(("thread", "loop", "kernel"))
    index.AT_ONCE_SECONDS = 1.0 if way == "loop" else 0.0  # type: ignore[misc]
    index.KERNEL_AFTER = 0 if way == "kernel" else 1 << 30  # type: ignore[misc]


class Awayable(SqliteStore):
    """A store that can be away."""

    is_away = False

    @in_task
    async def apply(self, commit: Commit) -> None:
        if self.is_away:
            raise Unavailable("nobody answers")
        await super().apply(commit)


class Worker:
    """One process's life."""

    def __init__(self, folder: Path, note: int, random: Random, life: int) -> None:
        self.folder = folder
        self.random = random
        self._note = note
        self.life = life
        self._made = 0
        self.broker: LocalBroker

    def note(self, *words: Any) -> None:
        os.write(self._note, json.dumps(words).encode() + b"\n")

    def ids(self, count: int) -> list[str]:
        self._made += count
        return [f"{self.life}.{number}" for number in range(self._made - count, self._made)]

    def messages(self, ids: list[str]) -> list[Message]:
        # Bytes that cannot be compressed: records reach over sectors and segments.
        texts = [f"{id} {self.random.randbytes(self.random.choice(SIZES)).hex()}" for id in ids]
        return [Message(text.encode(), dedup_id=id) for id, text in zip(ids, texts, strict=True)]

    def lock(self) -> None:
        """As a server does, for the rest of this process."""
        lock_store(ExitStack(), self.folder / STORE)

    async def open(self, spool: SpoolSettings | None = None) -> Awayable:
        store = await Awayable.open(self.folder / STORE)
        assert isinstance(store, Awayable)
        self.broker = await open_store(store, SystemClock(), events=False, spool=spool)
        return store

    async def declare(self) -> None:
        for queue in ("work", "risky", "source", "moved", "read"):
            await self.broker.declare_queue(queue, max_attempts=0, dedup_window_ms=600_000)
            if queue != "read":
                await self.broker.declare_group(queue, "default")
        await self.broker.declare_group("read", "audit", kind="stream")
        self.note("declared", ["work", "risky", "source", "moved", "read"])

    async def doom(self, store: Awayable) -> None:
        """Buffer something for a queue that is deleted before it can be replayed: a dead letter of the spool."""
        queue = f"doomed {self.life}"
        await self.broker.declare_queue(queue)
        store.is_away = True
        await self.publish(queue, 2)
        await self.broker.close()
        await self.open()
        await self.broker.delete_queue(queue)
        await self.broker.close()
        await self.open(SpoolSettings(DiskFolder.open(self.folder / SPOOL)))
        await self.replayed()
        await self.broker.close()

    async def replayed(self) -> None:
        while self.broker.spool().messages:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def back_up(self, source: Path, folder: Path, number: int) -> None:
        self.note("back up", number)
        made = await asyncio.to_thread(backup.back_up, source, folder)
        self.note("backed up", number, made.manifest.name)

    async def begin_shipping(self, source: Path, folder: Path) -> Shipping:
        """As `store backup --watch` does: behind a backup, and a new one where the store was faster."""
        while True:
            await self.back_up(source, folder, -1)
            with suppress(Gap):
                return Shipping(source, folder)

    # Steps ------------------------------------------------------------------------------------------------

    async def publish(self, queue: str, count: int = 0) -> None:
        ids = self.ids(count or self.random.choice((1, 1, 2, 7)))
        self.note("publish", queue, ids)
        receipt = await self.broker.publish_many(queue, self.messages(ids))
        self.note("published", queue, ids, [None if one.buffered else one.offset for one in receipt.results()])

    async def ack(self) -> None:
        claim = await self.broker.claim("work", max=self.random.choice((1, 3, 10)), lease_seconds=LEASE_SECONDS)
        ids = [one.payload.decode().split()[0] for one in claim]
        self.note("delivered", "work", ids)
        if ids and self.random.random() < 0.9:
            self.note("ack", "work", ids)
            await self.broker.ack(claim)
            self.note("acked", "work", ids)

    async def reject(self) -> None:
        claim = await self.broker.claim("risky", max=2, lease_seconds=LEASE_SECONDS)
        ids = [one.payload.decode().split()[0] for one in claim]
        self.note("delivered", "risky", ids)
        if ids:
            self.note("reject", "risky", ids)
            await self.broker.reject(claim, error="broken")
            self.note("rejected", "risky", ids)

    async def move(self) -> None:
        claim = await self.broker.claim("source", max=2, lease_seconds=LEASE_SECONDS)
        sources = [one.payload.decode().split()[0] for one in claim]
        if not sources:
            return
        made = self.ids(len(sources))
        self.note("move", sources, made)
        async with self.broker.transaction() as transaction:
            transaction.ack(claim)
            transaction.publish("moved", *self.messages(made))
        self.note("moved", sources, made)

    async def read(self) -> None:
        read = await self.broker.read("read", "audit", max=3)
        self.note("commit", read.next_offset)
        await self.broker.commit("read", "audit", read.next_offset, lane=read.lane)
        self.note("committed", read.next_offset)

    async def take_steps(self, count: int) -> None:
        publishes: list[Callable[[], Awaitable[None]]] = [
            lambda queue=queue: self.publish(queue)  # type: ignore[misc]
            for queue in ("work", "work", "risky", "source", "read")
        ]
        steps = [*publishes, self.ack, self.ack, self.ack, self.reject, self.move, self.read]
        for _ in range(count):
            # One alone, or several in one commit.
            await asyncio.gather(*(step() for step in self.random.sample(steps, self.random.choice((1, 1, 3)))))
            if self.random.random() < 0.3:
                await asyncio.sleep(0.006)


async def use_store(worker: Worker, steps: int) -> None:
    """A store in use, from its making to its orderly end."""
    worker.lock()
    await worker.open()
    await worker.declare()
    await worker.take_steps(steps)
    await worker.broker.close()
    worker.note("closed")


async def use_spool(worker: Worker, steps: int) -> None:
    """A store that is away now and then, and publishes that are buffered, replayed and forgotten."""
    folder = DiskFolder.open(worker.folder / SPOOL)
    store = await worker.open(SpoolSettings(folder, segment_bytes=1 << 11))
    if worker.life == 0:
        await worker.declare()
    for _ in range(max(steps // 8, 1)):
        store.is_away = True
        for _ in range(worker.random.choice((1, 3, 6))):
            await asyncio.gather(*(worker.publish("work") for _ in range(worker.random.choice((1, 1, 2)))))
        store.is_away = False
        await worker.publish("work")
        if worker.random.random() < 0.7:
            await worker.replayed()
            await worker.ack()
    await worker.doom(store)
    worker.note("closed")


async def use_backups(worker: Worker, steps: int) -> None:
    """Backups of a store in use, the oldest of which are given up; its log is copied as it grows."""
    await worker.open()
    await worker.declare()
    source, folder = worker.folder / STORE, worker.folder / BACKUPS
    with Segments(Path(f"{source}-log")).wanted() as wanted_from:
        shipping = await worker.begin_shipping(source, folder)
        wanted_from(shipping.number)
        for number in range(1, max(steps // 8, 2) + 1):
            await worker.take_steps(8)
            worker.note("ship", number)
            try:
                await asyncio.to_thread(shipping.ship)
                worker.note("shipped", number)
            except Gap:
                shipping = await worker.begin_shipping(source, folder)
            wanted_from(shipping.number)
            if number % 2:
                await worker.back_up(source, folder, number)
                worker.note("prune")
                await asyncio.to_thread(backup.prune, folder, 2)
    target = worker.folder / f"restored/deep/{worker.life}.db"
    await asyncio.to_thread(restore.restore, restore.plan(folder), folder, target)
    worker.note("restored", str(target.relative_to(worker.folder)))
    await worker.broker.close()


WORKLOADS: Final[dict[str, Callable[[Worker, int], Coroutine[Any, Any, None]]]] = {
    "store": use_store,
    "spool": use_spool,
    "backup": use_backups,
}


def program(name: str, folder: Path, seed: str, life: int, steps: int) -> Callable[[int], None]:
    """A workload for the recorder."""

    def run(note: int) -> None:
        random = Random(f"{seed}:{life}")
        make_small(random)
        asyncio.run(WORKLOADS[name](Worker(folder, note, random, life), steps))

    return run
