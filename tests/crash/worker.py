"""A process that lives dangerously: children work on one file, are killed at random moments, and the next goes on.

`python worker.py FOLDER SEED KILLS` imports everything once and forks the children, so that a life costs little.
Each child publishes, claims, settles and commits transactions, and notes what it is about to do and what it was
answered, a line each, in an append-only journal. A kill takes nothing of what was written there: the kernel has it.
The last child is not killed: it drains the queues. `checker.py` reads the journal.

Queues: `ordered` (partitions, dedup ids, no attempt limit), `source` (moved by transactions to `moved`),
`risky` (three attempts, then dead). Lines: a word, then what it is about.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import penstock
from penstock import Claim, Message, Verdict
from penstock.node.broker import LocalBroker
from penstock.store.sqlite import index, threads
from penstock.store.sqlite.log import segments, space
from tests.local import open_local

LEASE_MS = 150
DRAIN_SECONDS_MAX = 60
"""Queues that cannot be drained by then hold something back for ever."""
PARTITIONS = ("p0", "p1", "p2", "p3")


class Journal:
    """What a child says: written in one piece, so that a kill cuts no line."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, *words: Any) -> None:
        os.write(self._file, json.dumps(words).encode() + b"\n")


class Child:
    """One life."""

    def __init__(self, folder: Path, seed: str, life: int, numbers: dict[str, int], unsure: dict[str, int]) -> None:
        self.folder = folder
        self.chance = random.Random(f"{seed}:{life}")
        self.life = life
        self.journal = Journal(folder / "journal")
        self.numbers = numbers
        self.unsure = unsure
        self.broker: LocalBroker

    def note(self, *words: Any) -> None:
        self.journal.note(*words)

    async def live(self) -> None:
        self.note("born", self.life)
        if self.life % 4 == 0:  # in every fourth life the kernel syncs: to begin with it takes a tenth of a second
            index.KERNEL_AFTER = 0  # type: ignore[misc]
        self.broker = await open_local(self.folder / "penstock.db")
        await self._declare()
        self.note("open", self.life)
        await asyncio.gather(
            *(self._publish_in_order(partition) for partition in PARTITIONS),
            self._publish("source"),
            self._publish("risky"),
            *(self._consume_in_order(f"c{number}") for number in range(2)),
            self._move(),
            self._risk(),
        )

    async def _declare(self) -> None:
        await self.broker.declare_queue("ordered", ordered=True, lease_ms=LEASE_MS, max_attempts=0, backoff_ms=1)
        await self.broker.declare_queue("source", lease_ms=LEASE_MS, max_attempts=0, backoff_ms=1)
        await self.broker.declare_queue("moved", lease_ms=LEASE_MS, max_attempts=0)
        await self.broker.declare_queue("risky", lease_ms=LEASE_MS, max_attempts=3, backoff_ms=1)
        for queue in ("ordered", "source", "moved", "risky"):
            await self.broker.declare_group(queue, "default")

    # Producers --------------------------------------------------------------------------------------------

    async def _publish_in_order(self, partition: str) -> None:
        """One after the other; what was not answered in the last life is published again under its dedup id."""
        number = self.unsure.get(partition, self.numbers.get(partition, 0))
        while True:
            id = f"{partition}.{number}"
            self.note("publish", "ordered", [id])
            published = await self.broker.publish("ordered", Message(id.encode(), partition=partition, dedup_id=id))
            self.note("published", "ordered", [id], published.offset)
            number += 1
            await self._pause()

    async def _publish(self, queue: str) -> None:
        number = 0
        while True:
            count = self.chance.choice((1, 1, 2, 40))
            ids = [f"{queue}.{self.life}.{number + step}" for step in range(count)]
            self.note("publish", queue, ids)
            receipt = await self.broker.publish_many(queue, [Message(id.encode()) for id in ids])
            assert len(receipt) == count
            self.note("published", queue, ids, receipt.results()[0].offset)
            number += count
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.004)))

    # Consumers --------------------------------------------------------------------------------------------

    async def _claim(self, queue: str, most: int, consumer: str = "c") -> Claim:
        claim = await self.broker.claim(queue, max=most, wait=60, consumer=consumer)
        self.note("delivered", queue, [[one.payload.decode(), one.offset, one.attempt] for one in claim])
        return claim

    async def _consume_in_order(self, consumer: str) -> None:
        while True:
            claim = await self._claim("ordered", self.chance.choice((1, 3, 10)), consumer)
            try:
                await self._settle("ordered", claim)
            except penstock.LeaseLost:
                self.note("lost", "ordered")

    async def _settle(self, queue: str, claim: Claim) -> None:
        """Acks, nacks, releases in any mix; some are forgotten and come back when their lease ends."""
        chosen: dict[str, list[int]] = {"ack": [], "nack": [], "release": [], "": []}
        for offset in claim.offsets():
            chosen[self.chance.choices(("ack", "nack", "release", ""), (80, 10, 5, 5))[0]].append(offset)
        verdicts = [
            Verdict(action, offset, offset + 1)  # type: ignore[arg-type]
            for action, offsets in chosen.items()
            if action
            for offset in offsets
        ]
        names = {one.offset: one.payload.decode() for one in claim}
        acked = [names[offset] for offset in chosen["ack"]]
        if verdicts:
            self.note("ack", queue, acked)
            await self.broker.settle(claim, verdicts)
            self.note("acked", queue, acked)

    async def _move(self) -> None:
        """Ack here and publish there, as one: each source message gives exactly one moved one."""
        for number in itertools.count():
            claim = await self._claim("source", self.chance.choice((1, 4, 30)))
            names = [one.payload.decode() for one in claim]
            # A name for each try: on a slow disk a lease ends before its transaction, and the same life tries again.
            made = [f"{name}>{self.life}.{number}" for name in names]
            self.note("move", names, made)
            try:
                async with self.broker.transaction() as transaction:
                    transaction.ack(claim)
                    transaction.publish("moved", *(Message(name.encode()) for name in made))
            except penstock.LeaseLost:
                self.note("lost", "source")
            else:
                self.note("moved", names, made)

    async def _risk(self) -> None:
        """Mostly failures: messages die after three attempts."""
        while True:
            claim = await self._claim("risky", self.chance.choice((1, 5, 20)))
            try:
                if self.chance.random() < 0.5:
                    await self.broker.nack(claim, error="unlucky")
                else:
                    await self._settle("risky", claim)
            except penstock.LeaseLost:
                self.note("lost", "risky")

    # The last life ----------------------------------------------------------------------------------------

    async def drain(self) -> None:
        self.note("born", self.life)
        self.broker = await open_local(self.folder / "penstock.db")
        self.note("open", self.life)
        self.note("drain")
        for queue in ("ordered", "source", "moved", "risky"):
            while (await self.broker.stats(queue)).groups[0].lag:
                claim = await self.broker.claim(queue, max=500, wait=LEASE_MS / 1000, lease_seconds=60)
                names = [one.payload.decode() for one in claim]
                self.note("delivered", queue, [[one.payload.decode(), one.offset, one.attempt] for one in claim])
                if names:
                    self.note("ack", queue, names)
                    await self.broker.ack(claim)
                    self.note("acked", queue, names)
        dead = await self.broker.dead("risky", max=100_000)
        self.note("dead", [[one.received.payload.decode(), one.attempts] for one in dead])
        await self.broker.close()
        self.note("end")


# The parent ----------------------------------------------------------------------------------------------


class Progress:
    """Where each partition's producer goes on: after what was answered, or again with what was not."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._read = 0
        self.numbers: dict[str, int] = {}
        self.unsure: dict[str, int] = {}

    def read_on(self) -> None:
        """Take in what the last child wrote."""
        with self._journal.open("rb") as file:
            file.seek(self._read)
            lines = file.readlines()
        self._read += sum(map(len, lines))
        for line in lines:
            word, *rest = json.loads(line)
            if word in ("publish", "published") and rest[0] == "ordered":
                partition, number = rest[1][0].split(".")
                if word == "publish":
                    self.unsure[partition] = int(number)
                else:
                    self.unsure.pop(partition, None)
                    self.numbers[partition] = int(number) + 1


def one_life(folder: Path, seed: str, life: int, progress: Progress) -> None:
    """In a forked child: never returns."""
    try:
        child = Child(folder, seed, life, progress.numbers, progress.unsure)
        asyncio.run(child.live())
    except BaseException as error:  # the journal is all that the parent sees
        Journal(folder / "journal").note("failed", life, repr(error))
        os._exit(1)
    os._exit(0)


def main(folder: Path, seed: str, kills: int) -> None:
    # Small steps, so that kills fall into all of them: the tables brought up to date, segments begun, emptied and
    # deleted, checkpoints and restarts of SQLite's own log.
    index.INDEX_SECONDS = 0.01  # type: ignore[misc]
    index.INDEX_ROWS = 40  # type: ignore[misc]
    segments.SEGMENT_BYTES_FIRST = 1 << 12  # type: ignore[misc]
    segments.SEGMENT_BYTES_MOST = 1 << 13  # type: ignore[misc]
    space.SLACK_SEGMENTS = 0  # type: ignore[misc]
    threads.CHECKPOINT_BYTES = 1 << 19  # type: ignore[misc]
    threads.WAL_BYTES_MOST = 1 << 21  # type: ignore[attr-defined]
    chance = random.Random(seed)
    Journal(folder / "journal")
    progress = Progress(folder / "journal")
    for life in range(kills):
        progress.read_on()
        child = os.fork()
        if child == 0:
            one_life(folder, seed, life, progress)
        # Most die at work, some while they open the file.
        time.sleep(chance.uniform(0.001, 0.03) if chance.random() < 0.2 else chance.uniform(0.03, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(f"life {life} ended before it was killed: {status}")
    asyncio.run(asyncio.wait_for(Child(folder, seed, kills, {}, {}).drain(), DRAIN_SECONDS_MAX))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
