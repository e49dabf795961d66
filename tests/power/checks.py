"""What must be so when the power is back: files are opened as a server does, and held against what was answered.

The rows are read by the store's own contract, and every offset must be where the facts allow it: not handed out,
leased, dead or done. A store that cannot be opened, or that `store verify` finds fault with, is a finding too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

from penstock import Message
from penstock.batch import EncodedBatch, decode
from penstock.core.group.entries import decode_entries
from penstock.embedded import open_store
from penstock.maintenance.declared import read_declared
from penstock.maintenance.verify import verify
from penstock.model.errors import PenstockError
from penstock.model.rows import LaneImage
from penstock.node.catalog import Queue
from penstock.node.clock import SystemClock
from penstock.node.spool.folder import DiskFolder
from penstock.node.spool.records import dead_of
from penstock.node.spool.spool import SpoolSettings
from penstock.store.sqlite import backup, restore
from penstock.store.sqlite.engine import SqliteStore
from tests.power.facts import Facts
from tests.power.workloads import BACKUPS, SPOOL, STORE

REPLAY_SECONDS_MAX = 30.0


async def check(workload: str, folder: Path, notes: list[bytes], random: Random) -> list[str]:
    """Everything that is wrong with the files that survived."""
    facts = Facts.read(notes)
    found = list(facts.broken)
    try:
        if workload == "spool":
            await _replay(folder)
            # What was buffered for a queue that is deleted by now is a dead letter of the spool.
            letters = _letters(folder / SPOOL)
            for queue in facts.queues.values():
                queue.settling |= letters
        else:
            found += [f"verify: {text}" for text in await _verified(folder / STORE, facts)]
        found += await _check_store(folder / STORE, facts, facts)
        if workload == "backup":
            found += await _check_backups(folder, notes, facts)
        if random.random() < 0.2:
            await _go_on(folder / STORE, facts)
            found += [f"verify, after it went on: {text}" for text in await _verified(folder / STORE, facts)]
    except (PenstockError, AssertionError) as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


async def _verified(path: Path, facts: Facts) -> list[str]:
    """What `store verify` says; of a store that was still being made it may say anything."""
    if not facts.declared:
        return []
    return [finding.problem for finding in (await verify(path)).findings]


async def _check_store(path: Path, answered: Facts, begun: Facts) -> list[str]:
    """A store against what had been answered at one time and begun by a later one."""
    store = await SqliteStore.open(path)
    try:
        catalog = read_declared(await store.catalog()).catalog
        found = [f"the queue {name} is lost" for name in answered.declared if ("default", name) not in catalog.queues]
        views = {queue.name: await _View.of(store, queue) for queue in catalog.by_id.values()}
        for name, view in views.items():
            found += view.check(answered, begun, name)
        for name in answered.queues.keys() - views.keys():
            told, tried = answered.queues[name].published, begun.queues[name].settling
            found += [f"{name}: {id} is lost with its queue" for id in told if id not in tried]
        found += _check_moves(views, begun)
        # A torn end of the log is what a loss of power leaves; no other kind is.
        return found + [note for note in store.damage() if "never written whole" not in note]
    finally:
        await store.close()


class _View:
    """A queue of one lane as it is stored: what is at each offset, and which its group is not done with."""

    def __init__(self, queue: Queue, image: LaneImage, stored: dict[int, str]) -> None:
        self.image = image
        self.stored = stored
        group = next(iter(queue.groups.values()), None)
        rows = [row for row in image.groups if group is not None and row.group == group.id]
        self.next = rows[0].next if rows else 0
        self.committed = rows[0].committed if rows else 0
        self.dead = {offset for row in image.dead for offset in range(row.start, row.end)}
        self.held = {
            offset
            for entries in (*(row.entries for row in image.leases), *(row.entries for row in image.waiting))
            for entry in decode_entries(entries)
            for offset in range(entry.start, entry.end)
        }
        self.done = {id for offset, id in stored.items() if offset < self.next and offset not in self.dead | self.held}

    @classmethod
    async def of(cls, store: SqliteStore, queue: Queue) -> _View:
        [lane] = queue.lanes
        [image] = await store.load([lane], 0)
        stored: dict[int, str] = {}
        for row in await store.read(lane, image.first, image.end, 1 << 40):
            texts = (one.payload.decode().split()[0] for one in decode(EncodedBatch(row.count, row.meta, row.body)))
            stored.update(zip(range(row.base, row.end), texts, strict=True))
        return cls(queue, image, stored)

    def check(self, answered: Facts, begun: Facts, name: str) -> Iterator[str]:
        if name == "read":
            if not answered.committed <= self.committed <= begun.committing:
                yield f"read: committed up to {self.committed}, answered {answered.committed}, begun {begun.committing}"
        else:
            yield from (f"{name}: {text}" for text in self._check_verdicts(answered, begun, name))
        yield from (f"{name}: {text}" for text in self._check_messages(answered, begun, name))

    def _check_messages(self, answered: Facts, begun: Facts, name: str) -> Iterator[str]:
        told, tried = answered.queues[name], begun.queues[name]
        ids = list(self.stored.values())
        yield from (f"{id} was never published" for id in ids if id not in tried.begun)
        if len(set(ids)) < len(ids):
            yield f"stored twice: {sorted(id for id in set(ids) if ids.count(id) > 1)}"
        for id, offset in told.published.items():
            if offset is not None and offset >= self.image.first and self.stored.get(offset) != id:
                yield f"{id} at {offset} is lost; {self.stored.get(offset)} is there"
            if id not in ids and id not in tried.settling:
                yield f"{id} is lost"

    def _check_verdicts(self, answered: Facts, begun: Facts, name: str) -> Iterator[str]:
        told, tried = answered.queues[name], begun.queues[name]
        for offset, id in self.stored.items():
            if id in self.done and id not in tried.settling:
                yield f"{id} is done without an ack"
            if id in told.acked and id not in self.done:
                yield f"{id} comes again after its ack was answered"
            if id in told.rejected and offset not in self.dead:
                yield f"{id} is not dead although its reject was answered"
            if offset in self.dead and id not in tried.rejecting:
                yield f"{id} is dead without a reject"


def _check_moves(views: dict[str, _View], begun: Facts) -> Iterator[str]:
    if "source" not in views or "moved" not in views:
        return
    source, moved = views["source"], set(views["moved"].stored.values())
    left = set(source.stored.values()) - source.done
    for sources, made in begun.moves:
        is_there = moved.intersection(made)
        if is_there and (len(is_there) < len(made) or left.intersection(sources)):
            yield f"half a transaction: {sources} to {made}, of which {sorted(is_there)} are there"


async def _check_backups(folder: Path, notes: list[bytes], facts: Facts) -> list[str]:
    found = []
    listed = [one.name for one in backup.backups(folder / BACKUPS)] if (folder / BACKUPS).is_dir() else []
    if not facts.pruned:
        found += [f"the backup {name} is lost" for name in facts.backups if name not in listed]
    for name in listed:
        target = folder / f"again-{name}" / "penstock.db"
        restore.restore(restore.plan(folder / BACKUPS, name), folder / BACKUPS, target)
        answered = Facts.read(notes[: facts.backups[name]]) if name in facts.backups else Facts()
        found += [f"backup {name}: {text}" for text in await _check_store(target, answered, facts)]
    if facts.shipped:
        target = folder / "newest" / "penstock.db"
        restore.restore(restore.plan(folder / BACKUPS), folder / BACKUPS, target)
        answered = Facts.read(notes[: facts.shipped])
        found += [f"the newest moment: {text}" for text in await _check_store(target, answered, facts)]
    for path, before in facts.restored.items():
        answered = Facts.read(notes[:before])
        found += [f"restored {path}: {text}" for text in await _check_store(folder / path, answered, facts)]
    return found


async def _replay(folder: Path) -> None:
    """Open the store with its spool and wait until nothing is left in it."""
    spool = SpoolSettings(DiskFolder.open(folder / SPOOL))
    broker = await open_store(await SqliteStore.open(folder / STORE), SystemClock(), events=False, spool=spool)
    async with broker, asyncio.timeout(REPLAY_SECONDS_MAX):
        while broker.spool().messages:  # type: ignore[union-attr]  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def _letters(spool: Path) -> set[str]:
    records = [dead_of(path.read_bytes(), path.name).record for path in spool.glob("*.letter")]
    return {one.payload.decode().split()[0] for record in records for one in decode(record.batch)}


async def _go_on(path: Path, facts: Facts) -> None:
    """Use the store: what was published before is known by its id, and more can be published."""
    broker = await open_store(await SqliteStore.open(path), SystemClock(), events=False)
    async with broker:
        await broker.declare_queue("afterwards")
        await broker.publish("afterwards", Message(b"afterwards"))
        known = [(id, offset) for id, offset in facts.queues["work"].published.items() if offset is not None]
        for id, offset in known[-1:]:
            again = await broker.publish("work", Message(b"again", dedup_id=id))
            assert (again.duplicate, again.offset) == (True, offset), f"{id} was stored at {offset}, and again: {again}"
