"""`archive`: chosen queues and delivery events → the lake, exactly once.

A stream of the public source; tasks write every micro-batch (`lake/writing.py`), and it becomes visible by one Delta
commit for each table (`lake/landing.py`), which also moves the marks of the lanes in it. The marks decide what is new:
neither Spark's checkpoint nor a batch's number is trusted, so a lost, stale or deleted checkpoint changes nothing. By
default there is none that outlives the run, and the source starts at the marks.

Behind the marks, never beyond them, follows a stream group on each queue: it shows the lag, and with `hold` retention
keeps what it has not passed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession

from penstock.model.errors import NotFound, PenstockError
from penstock.spark.jobs.archive.upkeep import Upkeep
from penstock.spark.jobs.frame import Progress, Summary, follow
from penstock.spark.jobs.lakes import (
    LakeOptions,
    check_positive,
    in_tasks,
    marks,
    offsets_json,
    queues_json,
    tables_to_write,
)
from penstock.spark.lake import landing, sink
from penstock.spark.lake.errors import LakeConflict
from penstock.spark.lake.layout import MESSAGES, MESSAGES_SCHEMA
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable, LaneKey
from penstock.spark.lake.writing import Report
from penstock.spark.source.cursor import Cursor
from penstock.spark.source.heads import HeadReader
from penstock.spark.source.offsets import QueuePosition
from penstock.spark.source.options import EARLIEST, as_pattern
from penstock.spark.source.planning import Heads

TRIES: Final = 5
"""How often a batch is written again when another archive moved a mark first."""
COLUMNS: Final = [name for name in MESSAGES_SCHEMA.names if name != "date"]


class ArchiveOptions(LakeOptions, frozen=True, kw_only=True):
    """What `penstock pipeline archive` is told."""

    watch: bool = False
    """Keep running; without it, archive what the queues hold now and end."""
    interval_seconds: float = 10.0
    """With `watch`: time between two micro-batches; each makes a file for each partition, so not too short."""
    rows_per_batch: int = 1_000_000
    """Rows of one commit: more make larger files, and need more memory on the way."""
    cursor: str = "archive"
    """The stream group that follows the marks."""
    hold: bool | None = None
    """Retention waits for the archive (True), does not (False), or stays as it was declared (None)."""
    allow_gaps: bool = False
    """Go on where messages were removed before they were archived, or are damaged; gaps are recorded and counted."""
    checkpoint: str | None = None
    """Spark's checkpoint; None: one that ends with the run."""
    keep_days: int | None = None
    """How long a version of the lake can still be read after it was changed; None: as it is, 7 for a new lake."""
    tidy: bool = True
    """With `watch`: merge small files, clean the lake's log and free files that it does not keep."""


def run(spark: SparkSession, options: ArchiveOptions, progress: Progress) -> Summary:
    """Archive until there is nothing more, or with `watch` until the job is stopped."""
    heads = check(options)
    sink.register(spark)
    archive = Archive(options, heads, progress)
    archive.follow_marks(heads)
    upkeep = _upkeep(spark, options, progress)
    with ExitStack() as cleanup:
        checkpoint = options.checkpoint
        if checkpoint is None:
            folder = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-archive-"))
            checkpoint = Path(folder).as_uri()
        rows = _stream(spark, options, archive.starting_offsets(heads), heads)
        writer = rows.writeStream.foreachBatch(archive.land).option("checkpointLocation", checkpoint)
        if options.watch:
            writer = writer.trigger(processingTime=f"{options.interval_seconds} seconds")
        else:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        cleanup.callback(query.stop)
        try:
            follow(query, progress, partial(_look, archive, upkeep))
        except Exception:
            if archive.failure is not None:
                raise archive.failure from None  # what Spark raises has the same text within pages of its own
            raise
    return archive.summary(**({} if upkeep is None else msgspec.structs.asdict(upkeep.done)))


def check(options: ArchiveOptions) -> Heads:
    """What is to be archived; raises where nothing can be."""
    check_positive(options, "interval_seconds", "rows_per_batch", "keep_days")
    heads = options.heads()
    if not heads:
        raise NotFound(f"no queue is called {options.queues!r}: there is nothing to archive")
    return heads


def _look(archive: Archive, upkeep: Upkeep | None) -> None:
    """About once a second, while the query runs."""
    archive.look()
    if upkeep is not None:
        upkeep.look()


def _upkeep(spark: SparkSession, options: ArchiveOptions, progress: Progress) -> Upkeep | None:
    if not options.watch or not options.tidy:
        return None
    lake = Storage(options.lake, options.storage_options)
    return Upkeep(lake, progress, spark.sparkContext.defaultParallelism, partial(in_tasks, spark))


def _stream(spark: SparkSession, options: ArchiveOptions, starting: str, heads: Heads) -> DataFrame:
    asked = {
        **options.source(),
        "queue": _queue_option(options, heads),
        "columns": ",".join(COLUMNS),
        "packed": "true",
        "startingOffsets": starting,
        "maxRowsPerTrigger": str(options.rows_per_batch),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
        "failOnDataLoss": str(not options.allow_gaps).lower(),
    }
    return spark.readStream.format("penstock").options(**asked).load()


def _queue_option(options: ArchiveOptions, heads: Heads) -> str:
    """With `watch`, patterns stay patterns: queues that come later, of events too, are archived as well."""
    choice = options.choice
    if not options.watch or not choice.patterns:
        return queues_json(heads)
    items = [*choice.patterns, *(as_pattern(name) for name in choice.names if name in heads)]
    return ",".join(sorted(items, key=lambda item: item.startswith("[")))  # what begins so would be a list in JSON


class Archive:
    """The driver's side of one run. `land` is called by Spark, in a thread of its own, one batch after the other."""

    def __init__(self, options: ArchiveOptions, heads: Heads, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._tables = self._opened(heads)
        self._heads = HeadReader(options.access, options.choice)
        self._cursor = Cursor(options.access, options.cursor, options.hold)
        self._marks: dict[LaneKey, int] = {}
        """The marks that this run has seen or set."""
        self.failure: PenstockError | None = None
        self.rows = self.repeated = self.commits = self.files = 0
        self.gaps: list[landing.Gap] = []

    def _opened(self, heads: Heads) -> dict[str, LakeTable]:
        """The tables, told how long to keep old versions where that is asked for or was never said."""
        found = tables_to_write(self._options, heads)
        for name, table in found.items():
            if self._options.keep_days is not None or not table.says_what_it_keeps:
                found[name] = table.keep_for(self._options.keep_days or table.keep_days)
        return found

    def starting_offsets(self, heads: Heads) -> str:
        """Go on where the lake ends, or begin at the earliest."""
        known = marks(self._tables, heads).items()
        return offsets_json(
            {
                queue: {lane: EARLIEST if mark is None else mark for lane, mark in lanes.items()}
                for queue, lanes in known
            }
        )

    def follow_marks(self, heads: Heads) -> None:
        """Declare the groups, and bring them to where the lake is: the run before may have ended in between."""
        for queue, lanes in marks(self._tables, heads).items():
            place = QueuePosition(heads[queue].id, {lane: mark for lane, mark in lanes.items() if mark is not None})
            self._cursor.declare({queue: place})
            self._cursor.advance({queue: place})
            self._marks |= {(place.id, lane): mark for lane, mark in place.lanes.items()}

    # One batch --------------------------------------------------------------------------------------------

    def land(self, batch: DataFrame, _number: int) -> None:
        """Write a micro-batch and commit it. Whatever fails leaves the lake as it was."""
        try:
            for attempt in range(TRIES):
                try:
                    return self._land(batch)
                except LakeConflict:
                    if attempt + 1 == TRIES:
                        raise
                    self._tables = {name: table.reopened() for name, table in self._tables.items()}
        except PenstockError as error:
            self.failure = error
            raise

    def _land(self, batch: DataFrame) -> None:
        if MESSAGES not in self._tables:  # the run began with events alone; there may be queues by now
            self._tables |= self._opened(self._heads.now())
        reports = sink.write_files(batch, self._tables)
        for name, found in reports.items():
            landed = landing.commit(self._tables[name], found, self._first, allow_gaps=self._options.allow_gaps)
            self._tables[name] = landed.table
            self._count(landed, found)

    def _count(self, landed: landing.Landed, reports: Iterable[Report]) -> None:
        self.rows += landed.rows
        self.repeated += landed.repeated
        self.gaps += landed.gaps
        self._progress.update(rows=self.rows)
        if not landed.marks:
            return
        self.commits += 1
        self.files += sum(len(report.files) for report in reports)
        queues = {(run.queue_id, run.lane): run.queue for report in reports for run in report.runs}
        for lane, queue in queues.items():
            # Read back from the log, which is on the disk by now: what is durable, and nothing else.
            mark = landed.table.mark(*lane)
            if mark is not None:
                self._marks[lane] = mark
                self._cursor.advance({queue: QueuePosition(lane[0], {lane[1]: mark})})

    def _first(self, queue: str, queue_id: int, lane: int) -> int:
        """The oldest offset that the broker has of a lane that the lake has nothing of."""
        found = self._options.client.lanes(queue)
        if found.queue_id != queue_id:
            return 0  # deleted since: nothing can be asked any more, so all of it is expected
        return next(one.first for one in found.lanes if one.lane == lane)

    # What is told -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """The lag: what the broker has and the lake has not. New queues are followed, before their first batch."""
        lag = 0
        for queue, head in self._heads.recent().items():
            if self._options.watch:
                with suppress(NotFound):  # gone again
                    self._cursor.declare({queue: QueuePosition(head.id, {})})
            for lane, one in head.lanes.items():
                lag += one.end - max(one.first, self._marks.get((head.id, lane), 0))
        self._progress.update(lag=max(0, lag))

    def summary(self, **more: int) -> Summary:
        return self._progress.summary(
            lake=self._options.lake,
            tables=", ".join(sorted(self._tables)),
            commits=self.commits,
            files=self.files,
            repeated=self.repeated,
            **more,
            **({"gaps": msgspec.to_builtins(self.gaps)} if self.gaps else {}),
        )
