"""Verification of a store, on any engine: every checksum, dense offsets, and rows that fit together.

A server may go on meanwhile: what is found wrong with a lane is looked at a second time, and only what is still wrong
is told. Nothing is written. For SQLite, `store/sqlite/verify.py` looks at the files too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

import msgspec

from penstock.maintenance.declared import Declared, read_declared
from penstock.maintenance.lanes import Density, check_batch, check_dedup, check_image
from penstock.model import INTEGER_MAX
from penstock.model.errors import StoreCorrupt
from penstock.model.rows import BatchRow, CatalogRow, DedupRow, LaneImage, OutboxRow
from penstock.node.catalog import EPHEMERAL_FROM
from penstock.store.damage import Damage
from penstock.store.open import label_of, open_engine, scheme_of
from penstock.store.sqlite import snapshot as sqlite_snapshot
from penstock.store.sqlite.verify import LogCheck, check_pages, log_bytes

LANES_AT_ONCE: Final = 500
IDS_AT_ONCE: Final = 10_000
ROWS_AT_ONCE: Final = 1_000
READ_BYTES: Final = 8 << 20
FINDINGS_MOST: Final = 1_000
"""Findings that are kept; more are counted."""

Progress = Callable[[str, int, int], None]
"""Called with what is looked at, how much of it is done, and how much there is."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is wrong, as an operator reads it."""

    check: str
    problem: str
    queue: str | None = None
    """Namespace and name."""
    lane: int | None = None
    """Its place in the queue, from 0 on."""
    start: int | None = None
    end: int | None = None
    """The messages that it concerns, [start, end)."""
    file: str | None = None


class Report(msgspec.Struct):
    """What was looked at, and what was found."""

    store: str
    ok: bool = True
    queues: int = 0
    lanes: int = 0
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    ids: int = 0
    segments: int | None = None
    records: int | None = None
    """Of SQLite's log."""
    seconds: float = 0.0
    findings: list[Finding] = []
    more_findings: int = 0
    """Findings that are not listed."""
    warnings: list[str] = []

    def add(self, finding: Finding) -> None:
        self.ok = False
        if len(self.findings) < FINDINGS_MOST:
            self.findings.append(finding)
        else:
            self.more_findings += 1


class Rows(Protocol):
    """What is read of a store."""

    async def load(self, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
        """As in the contract."""

    async def read(self, lane: int, start: int, end: int, bytes_most: int) -> list[BatchRow]:
        """As in the contract."""

    async def catalog(self) -> list[CatalogRow]:
        """As in the contract."""

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        """As in the contract."""

    async def list_lanes(self, after: int, most: int) -> list[int]:
        """As in the contract."""

    async def list_dedup(self, lane: int, after: bytes | None, most: int, from_offset: int = 0) -> list[DedupRow]:
        """As in the contract."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Nobody looks."""


async def verify(place: str | Path, progress: Progress = no_progress) -> Report:
    """Look at everything in a store; `ok` of the report says whether all is well."""
    started = monotonic()
    report = Report(label_of(place))
    if scheme_of(place):
        store = await open_engine(place, must_exist=True)
        try:
            await Verification(store, report, progress).run()
        finally:
            await store.close()
    else:
        await _verify_file(Path(place), report, progress)
    report.seconds = round(monotonic() - started, 3)
    return report


async def _verify_file(path: Path, report: Report, progress: Progress) -> None:
    damage: list[Damage] = []
    try:
        with sqlite_snapshot.taken(path) as snapshot:
            await _verify_snapshot(snapshot, report, progress, damage)
    except StoreCorrupt as error:
        # So damaged that nothing more can be read of it.
        for one in (*damage, Damage("file", str(error), file=str(path))):
            report.add(finding_of(one, None))


async def _verify_snapshot(
    snapshot: sqlite_snapshot.Snapshot, report: Report, progress: Progress, damage: list[Damage]
) -> None:
    """`damage` gets what is wrong with the files, as it is found."""
    progress("pages of the file", 0, 1)
    damage += check_pages(snapshot)
    total, done = log_bytes(snapshot), 0

    def told(size: int) -> None:
        nonlocal done
        done += size
        progress("log", done, total)

    check = LogCheck(snapshot, told)
    damage += check.run()
    report.segments, report.records, report.warnings = check.segments, check.records, check.warnings
    await Verification(snapshot, report, progress, damage).run()


class Verification:
    """One walk over the rows of a store."""

    def __init__(self, rows: Rows, report: Report, progress: Progress, damage: Iterable[Damage] = ()) -> None:
        """`damage` was found before, and is told with the names of the queues."""
        self._rows = rows
        self._report = report
        self._progress = progress
        self._damage = damage

    async def run(self) -> None:
        declared = read_declared(await self._rows.catalog())
        report = self._report
        report.queues = len(declared.catalog.by_id)
        for one in (*self._damage, *declared.damage):
            report.add(finding_of(one, declared))
        lanes = await list_all_lanes(self._rows)
        for number, lane in enumerate(lanes):
            self._progress("lanes", number, len(lanes))
            for one in await self._lane(lane, declared):
                report.add(finding_of(one, declared))
        self._progress("lanes", len(lanes), len(lanes))
        for one in await self._outbox(set(lanes)):
            report.add(finding_of(one, declared))

    async def _lane(self, lane: int, declared: Declared) -> list[Damage]:
        found = await self._look(lane, declared, self._report)
        if found:
            # A server may have changed it between two reads: what is really damaged is so the second time too.
            again = await self._look(lane, read_declared(await self._rows.catalog()), Report(""))
            found = [one for one in found if one in again]
        return found

    async def _look(self, lane: int, declared: Declared, report: Report) -> list[Damage]:
        try:
            [image] = await self._rows.load([lane], 0)
            found = [*check_image(image, declared.queue_of(lane))]
            if declared.name_of(lane) is None and image != LaneImage(lane):  # it may be deleted by now
                found.append(Damage("rows", "neither a queue nor a staged transaction has this lane", lane))
            report.lanes += 1
            found += await self._batches(image, declared, report)
            async for row in list_all_dedup(self._rows, lane):
                report.ids += 1
                if declared.queue_of(lane) is not None:
                    found += check_dedup(image, row)
        except StoreCorrupt as error:
            return [Damage("rows", str(error), lane)]
        return found

    async def _batches(self, image: LaneImage, declared: Declared, report: Report) -> list[Damage]:
        found: list[Damage] = []
        density = Density(image) if declared.queue_of(image.lane) is not None else None
        async for row in read_all(self._rows, image):
            report.batches += 1
            report.messages += row.count
            report.bytes += row.size
            found += check_batch(image.lane, row)
            if density is not None:
                found += density.check(row)
        if density is not None:
            found += density.end()
        return found

    async def _outbox(self, lanes: set[int]) -> list[Damage]:
        unknown = await self._promised_elsewhere(lanes)
        if unknown:
            # A row goes with its lane, so one that is still there although its lane is not is no server's doing.
            again = await self._promised_elsewhere(set(await list_all_lanes(self._rows)))
            unknown = [row for row in unknown if row in again]
        return [Damage("rows", f"the outbox has row {row.id} of a lane that is not there", row.lane) for row in unknown]

    async def _promised_elsewhere(self, lanes: set[int]) -> list[OutboxRow]:
        """Rows of the outbox that are of none of these lanes, nor of an ephemeral queue's, which no store has."""
        found: list[OutboxRow] = []
        after = -1
        while rows := await self._rows.outbox(after, ROWS_AT_ONCE):
            after = rows[-1].id
            found += [row for row in rows if row.lane not in lanes and row.lane < EPHEMERAL_FROM]
        return found


async def list_all_lanes(rows: Rows) -> list[int]:
    """Every lane that a store has rows of."""
    lanes: list[int] = []
    while page := await rows.list_lanes(lanes[-1] if lanes else -1, LANES_AT_ONCE):
        lanes += page
    return lanes


async def list_all_dedup(rows: Rows, lane: int, from_offset: int = 0) -> AsyncIterator[DedupRow]:
    """Every id of a lane, of offsets from one on."""
    after: bytes | None = None
    while page := await rows.list_dedup(lane, after, IDS_AT_ONCE, from_offset):
        for row in page:
            yield row
        after = page[-1].key


async def read_all(rows: Rows, image: LaneImage) -> AsyncIterator[BatchRow]:
    """Every batch of a lane; that of a staged transaction has some behind the end that its image tells."""
    start = 0
    while page := await rows.read(image.lane, start, INTEGER_MAX, READ_BYTES):
        for row in page:
            yield row
        start = page[-1].end


def finding_of(damage: Damage, declared: Declared | None) -> Finding:
    """The same for people: with the name of the queue."""
    lane, queue = damage.lane, None
    if lane is not None and declared is not None:
        owner = declared.queue_of(lane)
        queue = declared.name_of(lane)
        lane = lane if owner is None else owner.index_of(lane)
    return Finding(damage.check, damage.problem, queue, lane, damage.start, damage.end, damage.file)
