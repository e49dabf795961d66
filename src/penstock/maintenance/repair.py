"""Repair of an SQLite store: a new store with all that can be read of a damaged one, which stays as it is.

`store/sqlite/salvage.py` reads the tables and the log, `mending.py` makes rows fit together, and the new store is
written through the contract, as a copy is. Bytes that could not be read as messages are set aside as files beside the
new store. Nothing is deleted.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic, time_ns
from typing import Final

import msgspec

from penstock.batch import is_intact, read_columns
from penstock.maintenance.copy import Collected, changes_of, commit_rest
from penstock.maintenance.declared import Declared, read_declared
from penstock.maintenance.holding import Held, held, lock_file
from penstock.maintenance.mending import Chain, Mended
from penstock.maintenance.verify import (
    Finding,
    Progress,
    Report,
    finding_of,
    list_all_dedup,
    list_all_lanes,
    no_progress,
    verify,
)
from penstock.model.errors import AlreadyExists, InvalidArgument, PenstockError
from penstock.model.rows import BatchHead, BatchRow, CatalogRow, DedupRow, LaneChange, LaneImage
from penstock.node.catalog import Queue
from penstock.store.damage import Damage
from penstock.store.folders import make_folder
from penstock.store.open import label_of, scheme_of
from penstock.store.sqlite.file import make_private
from penstock.store.sqlite.salvage import Salvaged, salvage
from penstock.store.sqlite.snapshot import Snapshot, connect
from penstock.store.sqlite.statements import SQL

TOOL: Final = "penstock store repair"
HEADS_AT_ONCE: Final = 256
READ_BYTES: Final = 4 << 20


class Repaired(msgspec.Struct):
    """What the new store has, and what it has not."""

    source: str
    target: str
    ok: bool = True
    """Whether the new store is sound. `lost` and `findings` tell what of the old one was not."""
    queues: int = 0
    messages: int = 0
    lost: int = 0
    """Messages that could not be read: none of them is delivered."""
    records: int = 0
    """Records of the log that were applied again."""
    aside: str | None = None
    """The folder with the bytes that were set aside, if there are any."""
    findings: list[Finding] = []
    seconds: float = 0.0


async def repair(source: str, target: str, progress: Progress = no_progress) -> Repaired:
    """Make a sound store of what can be read of a damaged one."""
    started = monotonic()
    _check_places(source, target)
    done = Repaired(label_of(source), label_of(target))
    with ExitStack() as stack:
        lock_file(stack, Path(source), must_exist=True)
        make_folder(Path(target).parent)
        work = Path(tempfile.mkdtemp(prefix=".penstock-repair-", dir=Path(target).parent))
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        progress("what can be read", 0, 1)
        salvaged = salvage(Path(source), work)
        connection = stack.enter_context(closing(connect(salvaged.path)))
        incarnation = _highest(connection, "incarnation")
        async with held(target, TOOL, must_exist=False, above=incarnation) as new:
            rows = Snapshot(salvaged.path, connection, salvaged.segments)
            await _Repair(rows, new, salvaged, done, progress).run(_highest(connection, "ids"))
    report: Report = await verify(target, progress)
    done.ok, done.queues, done.messages = report.ok, report.queues, report.messages
    done.findings += report.findings
    done.seconds = round(monotonic() - started, 3)
    return done


def _check_places(source: str, target: str) -> None:
    for place in (source, target):
        if scheme_of(place):
            raise InvalidArgument(f"{label_of(place)} is a database: restore its own backup")
    if Path(target).exists() or Path(f"{target}-log").exists():
        raise AlreadyExists(f"{target} or its log exists; name a new file")


def _highest(connection: sqlite3.Connection, counter: str) -> int:
    row = connection.execute(SQL.counter, (counter,)).fetchone()
    return int(row[0]) if row else 0


class _Repair:
    """One repair, from what was salvaged to a new store."""

    def __init__(self, rows: Snapshot, new: Held, salvaged: Salvaged, done: Repaired, progress: Progress) -> None:
        self._rows = rows
        self._new = new
        self._salvaged = salvaged
        self._done = done
        self._progress = progress
        self._aside = Aside(Path(f"{done.target}-damaged"))

    async def run(self, last_id: int) -> None:
        catalog = await self._rows.catalog()
        declared = read_declared(catalog)
        self._done.records = self._salvaged.records
        self._tell([*self._salvaged.damage, *declared.damage], declared)
        collected = Collected(self._new.store, self._new.epochs)
        there = await list_all_lanes(self._rows)
        lanes = sorted({*there, *(lane for queue in declared.catalog.by_id.values() for lane in queue.lanes)})
        for number, lane in enumerate(lanes):
            self._progress("mending lanes", number, len(lanes))
            if declared.name_of(lane) is None:
                self._tell([Damage("rows", "nobody has this lane: it is left behind", lane)], declared)
                continue
            async for change in self._lane(lane, declared):
                await collected.put(change)
        await collected.flush()
        kept = _readable(catalog, declared)
        last_id = max([last_id, *(row.id for row in kept)])
        known = {lane for lane in lanes if declared.name_of(lane) is not None}
        await commit_rest(self._rows, self._new, kept, last_id, known)
        self._done.aside = str(self._aside.folder) if self._aside.count else None

    async def _lane(self, lane: int, declared: Declared) -> AsyncIterator[LaneChange]:
        """The changes that make a lane in the new store: first its batches, for by them its groups are mended."""
        [image] = await self._rows.load([lane], 0)
        queue = declared.queue_of(lane)
        chain = Chain(await self._first(image))
        if queue is None:
            batches = self._staged(image, declared)
        else:
            batches = self._mended_batches(image, chain, declared)
        bare = LaneImage(lane, image.first, image.end, image.bytes_end)
        async for change in changes_of(bare, batches=batches):
            yield change
        if queue is not None:
            groups = [group.id for group in queue.groups.values()]
            mended = Mended(image, chain, groups, time_ns() // 1_000_000)
            self._tell(mended.damage, declared)
            image = mended.image
        async for change in changes_of(image, ids=self._ids(image, queue)):
            yield change

    async def _first(self, image: LaneImage) -> int:
        """Where the first batch begins, or should; where the lane's own row is lost, the lane begins there."""
        found = await self._rows.heads(image.lane, 0, 1, 1)
        if not found:
            return image.first
        if image.end == 0:
            image.first = found[0].base
        return min(image.first, found[0].base)

    async def _mended_batches(self, image: LaneImage, chain: Chain, declared: Declared) -> AsyncIterator[BatchRow]:
        """Every batch that is whole, and something in the place of each that is not."""
        lane = image.lane
        async for head, row in self._batches(lane):
            for filler in chain.fill(head.base) if head.base > chain.end else ():
                yield filler
            if head.base < chain.end:
                self._set_aside(lane, head, row, "another batch holds its offsets too", declared)
            elif row is None:
                self._set_aside(lane, head, None, "the messages cannot be read", declared)
            elif _is_whole(row):
                yield chain.keep(row)
            else:
                self._set_aside(lane, head, row, "the messages fail their checksum", declared)
            for filler in chain.fill(head.end, head) if head.end > chain.end else ():
                yield filler
        for filler in chain.fill(image.end) if image.end > chain.end else ():
            yield filler
        for start, end in chain.lost:
            self._done.lost += end - start
            self._tell([Damage("offsets", "lost: never delivered", lane, start, end)], declared)

    async def _staged(self, image: LaneImage, declared: Declared) -> AsyncIterator[BatchRow]:
        """Batches of a staged transaction as they are; without one that is damaged its commit fails."""
        async for head, row in self._batches(image.lane):
            if row is not None and _is_whole(row):
                yield row
            else:
                self._set_aside(image.lane, head, row, "a staged chunk is lost: abort its transaction", declared)

    async def _batches(self, lane: int) -> AsyncIterator[tuple[BatchHead, BatchRow | None]]:
        """Every batch, by its row; None where its body cannot be had."""
        start = 0
        while page := await self._rows.heads(lane, start, HEADS_AT_ONCE, READ_BYTES):
            for head in page:
                yield head, await self._read(lane, head)
            start = page[-1].end

    async def _read(self, lane: int, head: BatchHead) -> BatchRow | None:
        try:
            found = await self._rows.read(lane, head.base, head.base + 1, 1)
        except PenstockError:
            return None
        return next((row for row in found if row.base == head.base), None)

    async def _ids(self, image: LaneImage, queue: Queue | None) -> AsyncIterator[DedupRow]:
        async for row in list_all_dedup(self._rows, image.lane):
            if queue is None or 0 <= row.offset < image.end:
                yield row

    def _set_aside(self, lane: int, head: BatchHead, row: BatchRow | None, why: str, declared: Declared) -> None:
        file = self._aside.put(lane, head, b"" if row is None else row.body)
        self._tell([Damage("checksum", why, lane, head.base, head.end, str(file))], declared)

    def _tell(self, damage: list[Damage], declared: Declared) -> None:
        self._done.findings += [finding_of(one, declared) for one in damage]


class Aside:
    """The folder for bytes that are no messages any more, named by numbers alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def put(self, lane: int, head: BatchHead, body: bytes) -> Path:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        base = f"lane-{lane}-offsets-{head.base}-{head.end - 1}"
        for kind, data in (("meta", head.meta), ("body", body)):
            path = self.folder / f"{base}.{kind}"
            make_private(path)
            path.write_bytes(data)
        self.count += 1
        return self.folder / f"{base}.body"


def _is_whole(row: BatchRow) -> bool:
    try:
        read_columns(row.meta, row.count, frozenset())
    except PenstockError:
        return False
    return row.is_intact or is_intact(row.body)


def _readable(catalog: list[CatalogRow], declared: Declared) -> list[CatalogRow]:
    """The rows that could be taken in."""
    known = {(row.kind, row.id) for row in declared.catalog.rows()}
    return [row for row in catalog if row.kind == "ids" or (row.kind, row.id) in known]
