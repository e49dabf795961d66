"""`verify`: is everything that was archived in the lake, once, and the same as in the broker?

Three questions, each table for itself. Are the files that the log names there and readable? Does the lake have every
offset of each lane, from its floor to its mark, exactly once? And of what the broker still has: are the rows the same,
by a hash of their ids (and, if asked, of their payloads)? Answers are ranges of offsets; nothing is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.model.errors import NotFound, OffsetGone
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.lakes import LakeOptions, in_tasks, read_log, tables_to_read
from penstock.spark.jobs.verify.rows import (
    MESSAGE_IDS,
    cell_of,
    compared_columns,
    shaped,
    summed,
    told_events,
)
from penstock.spark.lake import comparison
from penstock.spark.lake.comparison import Cell, Difference, Lane, Span
from penstock.spark.lake.files import DataFile
from penstock.spark.lake.layout import EVENTS, MESSAGES, table_of
from penstock.spark.lake.reading import Choice, LaneRange, grouped, problem
from penstock.spark.lake.source import frame
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.source.options import chosen_queues
from penstock.spark.source.planning import Heads

TRIES: Final = 3
"""Retention may remove messages while they are compared: then it is done again with what is left."""
CELLS_MAX: Final = 50
"""How many differing pieces are compared row by row; of the rest only the pieces are reported."""


class VerifyOptions(LakeOptions, frozen=True, kw_only=True):
    """What `penstock pipeline verify` is told."""

    payload: bool = False
    """Compare payloads and headers too, and read every page of every file."""


class Findings(msgspec.Struct):
    """What is wrong, and what was looked at."""

    damaged: list[dict[str, str]] = []
    differences: list[Difference] = []
    cells: list[Cell] = []
    """The lake's, for the table of days."""
    compared: int = 0
    """Messages that both sides have."""


def run(spark: SparkSession, options: VerifyOptions, progress: Progress) -> Summary:
    """Look at all; what was found is in the summary, whose `ok` says whether it is well."""
    findings = Findings()
    for name, table in check(options).items():
        progress.update(note=f"table {name}")
        Verification(spark, options, name, table, findings, progress).run()
    days = _days(findings.cells)
    progress.update(rows=sum(day["messages"] for day in days))
    return progress.summary(
        ok=not findings.damaged and not findings.differences,
        lake=options.lake,
        compared=findings.compared,
        damaged=findings.damaged,
        differences=msgspec.to_builtins(findings.differences),
        days=days,
    )


def check(options: VerifyOptions) -> dict[str, LakeTable]:
    """What is to be verified; raises where there is nothing."""
    return tables_to_read(options)


class Verification:
    """One table."""

    def __init__(
        self,
        spark: SparkSession,
        options: VerifyOptions,
        name: str,
        table: LakeTable,
        findings: Findings,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._options = options
        self._name = name
        self._table = table
        self._findings = findings
        self._progress = progress
        self._without: list[str] = []
        self._names: dict[int, str] = {}
        """The broker's queues by id."""

    def run(self) -> None:
        self._check_files()
        heads = self._heads()
        for attempt in range(TRIES):
            spans = self._spans(heads)
            cells = self._lake_cells(spans)
            if attempt == 0:
                self._findings.cells += [cell for cell, _ in cells]
                self._find_holes([cell for cell, _ in cells], heads)
            broker = self._broker_cells(spans)
            heads = self._heads()
            if attempt + 1 < TRIES and self._spans(heads) != spans:
                continue  # retention was at work: some of what was compared is gone
            shared = [cell for cell, is_shared in cells if is_shared]
            self._findings.compared += sum(cell.messages for cell in shared)
            self._find_differences(comparison.totals(shared), comparison.totals(broker), spans)
            return

    # Files ------------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        files = self._files()
        columns = None if self._options.payload else compared_columns(self._name)
        groups = grouped(files, 4 * self._spark.sparkContext.defaultParallelism)
        for part in in_tasks(self._spark, partial(_problems, self._table.storage, columns), groups):
            for path, wrong in part:
                self._without.append(path)
                self._findings.damaged.append({"table": self._name, "file": path, "problem": wrong})

    def _files(self) -> list[DataFile]:
        files = self._table.files()
        if self._name == EVENTS:  # partitioned by what happened, archived by where it was told
            return files
        return Choice(self._queues(files)).files(files)

    def _queues(self, files: Iterable[DataFile]) -> tuple[str, ...]:
        return tuple(chosen_queues(self._options.choice, sorted({file.queue for file in files})))

    # Spans ------------------------------------------------------------------------------------------------

    def _heads(self) -> Heads:
        heads = {queue: head for queue, head in self._options.heads().items() if table_of(queue) == self._name}
        self._names |= {head.id: queue for queue, head in heads.items()}
        return heads

    def _lane_heads(self, heads: Heads) -> list[tuple[Lane, Any]]:
        return [(Lane(queue, head.id, lane), one) for queue, head in heads.items() for lane, one in head.lanes.items()]

    def _span(self, lane: Lane) -> Span | None:
        """What the lake promises to have."""
        mark = self._table.mark(lane.queue_id, lane.lane)
        return None if mark is None else (self._table.floor(lane.queue_id, lane.lane) or 0, mark)

    def _spans(self, heads: Heads) -> dict[Lane, Span]:
        """What both sides should have, of each lane; empty spans among them."""
        spans: dict[Lane, Span] = {}
        for lane, one in self._lane_heads(heads):
            promised = self._span(lane)
            if promised is not None:
                low, high = max(promised[0], one.first), min(promised[1], one.end)
                spans[lane] = (low, max(low, high))
        return spans

    # Cells ------------------------------------------------------------------------------------------------

    def _lake_cells(self, spans: Mapping[Lane, Span]) -> list[tuple[Cell, bool]]:
        """The lake's, each with whether the broker should have it too."""
        rows = self._lake_rows(Choice(None if self._name == EVENTS else self._queues(self._table.files())))
        starts = [(lane.queue_id, lane.lane, low, high) for lane, (low, high) in spans.items()]
        shared = self._spark.createDataFrame(starts, "queue_id bigint, lane int, low bigint, high bigint")
        joined = rows.join(F.broadcast(shared), ["queue_id", "lane"], "left")
        is_shared = F.coalesce((F.col("offset") >= F.col("low")) & (F.col("offset") < F.col("high")), F.lit(False))
        found = summed(joined.withColumn("is_shared", is_shared), "is_shared")
        return [(cell_of(row), bool(row["is_shared"])) for row in found.collect()]

    def _broker_cells(self, spans: Mapping[Lane, Span]) -> list[Cell]:
        rows = self._broker_rows(spans)
        return [] if rows is None else [cell_of(row) for row in summed(rows).collect()]

    def _lake_rows(self, choice: Choice) -> DataFrame:
        columns = [*compared_columns(self._name), *(("payload", "typed_headers") if self._deep else ())]
        rows = frame(self._spark, self._table, columns, choice, self._without)
        return shaped(rows, self._name, self._deep, self._names)

    @property
    def _deep(self) -> bool:
        return self._options.payload and self._name == MESSAGES

    def _broker_rows(self, spans: Mapping[Lane, Span]) -> DataFrame | None:
        """What the broker has of these spans; None if that is nothing."""
        if not any(high > low for low, high in spans.values()):
            return None
        low: dict[str, dict[int, int]] = defaultdict(dict)
        high: dict[str, dict[int, int]] = defaultdict(dict)
        for lane, one in self._lane_heads(self._heads()):
            span = spans.get(lane, (one.first, one.first))
            low[lane.queue][lane.lane], high[lane.queue][lane.lane] = span
        queues = [queue for queue in low if any(high[queue][lane] > low[queue][lane] for lane in low[queue])]
        columns = ["queue", "queue_id", "lane", "offset"]
        columns += ["payload", "published_at"] if self._name == EVENTS else list(MESSAGE_IDS)
        columns += ["payload", "typed_headers"] if self._deep else []
        start, end = ({queue: ends[queue] for queue in queues} for ends in (low, high))
        rows = read_log(self._spark, self._options, start, end, columns, failOnDataLoss="false")
        if self._name == EVENTS:
            rows = told_events(rows, self._names)
        return shaped(rows, self._name, self._deep, self._names)

    # What is wrong ----------------------------------------------------------------------------------------

    def _find_holes(self, cells: Sequence[Cell], heads: Heads) -> None:
        lanes = {cell.lane for cell in cells} | {lane for lane, _ in self._lane_heads(heads)}
        spans = {lane: span for lane in lanes if (span := self._span(lane)) is not None}
        # Below the floor are rows that expiry left because their day is younger: they do no harm.
        inside = [cell for cell in cells if cell.lane in spans and cell.last >= spans[cell.lane][0]]
        wrong = comparison.incomplete(comparison.totals(inside), spans)
        for lane, number in wrong[:CELLS_MAX]:
            rows = self._collected(self._lake_rows(self._piece(lane, number)), lane, number)
            kept = [offset for offset, _ in rows if offset >= spans[lane][0]]
            self._findings.differences += self._with_damage(lane, comparison.holes(lane, kept, spans[lane], number))
        self._tell_rest(wrong[CELLS_MAX:], "not as it should be in the lake")

    def _with_damage(self, lane: Lane, found: Iterable[Difference]) -> list[Difference]:
        """Differences, each with what of it is damaged in the broker's store: that is no fault of the lake."""
        told = []
        for one in found:
            damaged = "; ".join(f"offsets {start} to {end - 1}" for start, end in self._damaged(lane, one))
            told.append(replace(one, what=f"{one.what} (damaged in the broker: {damaged})") if damaged else one)
        return told

    def _damaged(self, lane: Lane, one: Difference) -> Iterator[Span]:
        client, offset = self._options.client, one.start
        with suppress(NotFound, OffsetGone):
            while offset < one.end:
                scan = client.scan(lane.queue, lane.lane, offset, one.end)
                if scan.next_offset == offset:
                    return
                yield from ((gap.start, gap.end) for gap in scan.damaged)
                offset = scan.next_offset

    def _find_differences(self, lake: comparison.Totals, broker: comparison.Totals, spans: Mapping[Lane, Span]) -> None:
        wrong = comparison.unequal(lake, broker)
        for lane, number in wrong[:CELLS_MAX]:
            low, high = spans[lane]
            broker_rows = self._broker_rows({lane: self._cut((low, high), number)})
            here = {
                offset: hashed
                for offset, hashed in self._collected(self._lake_rows(self._piece(lane, number)), lane, number)
                if low <= offset < high
            }
            there = {} if broker_rows is None else dict(self._collected(broker_rows, lane, number))
            self._findings.differences += self._with_damage(lane, comparison.row_differences(lane, here, there))
        self._tell_rest(wrong[CELLS_MAX:], "different in lake and broker")

    def _tell_rest(self, wrong: Iterable[tuple[Lane, int]], what: str) -> None:
        for lane, number in wrong:
            start, end = comparison.cell_span(number)
            self._findings.differences.append(Difference(lane.queue, lane.queue_id, lane.lane, start, end, what))

    def _piece(self, lane: Lane, number: int) -> Choice:
        if self._name == EVENTS:
            return Choice()
        return Choice((lane.queue,), ranges=(LaneRange(lane.queue_id, lane.lane, *comparison.cell_span(number)),))

    def _cut(self, span: Span, number: int) -> Span:
        start, end = comparison.cell_span(number)
        low = max(span[0], start)
        return low, max(low, min(span[1], end))

    def _collected(self, rows: DataFrame, lane: Lane, number: int) -> list[tuple[int, int]]:
        """(offset, hash) of every message of one piece."""
        start, end = comparison.cell_span(number)
        mine = rows.where(
            (F.col("queue_id") == lane.queue_id)
            & (F.col("lane") == lane.lane)
            & (F.col("offset") >= start)
            & (F.col("offset") < end)
        )
        if self._name == EVENTS:
            mine = mine.groupBy("offset").agg(F.bit_xor("hash").alias("hash"))
        return [(row["offset"], row["hash"]) for row in mine.select("offset", "hash").collect()]


def _problems(storage: Storage, columns: Sequence[str] | None, files: Sequence[DataFile]) -> list[tuple[str, str]]:
    """The files that are not what the log says, in a task."""
    found = ((file.path, problem(storage, file, columns)) for file in files)
    return [(path, wrong) for path, wrong in found if wrong is not None]


# For people ---------------------------------------------------------------------------------------------


def _days(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """The lake by queue, lane and day, for people."""
    found: dict[tuple[Lane, str], dict[str, Any]] = {}
    for cell in cells:
        day = found.setdefault(
            (cell.lane, cell.date), {"messages": 0, "first": cell.first, "last": cell.last, "hash": 0}
        )
        day["messages"] += cell.messages
        day["first"], day["last"] = min(day["first"], cell.first), max(day["last"], cell.last)
        day["hash"] ^= cell.hash
    return [
        {
            "queue": lane.queue,
            "queue_id": lane.queue_id,
            "lane": lane.lane,
            "date": date,
            **day,
            "contiguous": day["messages"] == day["last"] - day["first"] + 1,
            "hash": f"{day['hash'] & 0xFFFF_FFFF_FFFF_FFFF:016x}",
        }
        for (lane, date), day in sorted(found.items(), key=lambda item: (item[0][0].queue, item[0][0].lane, item[0][1]))
    ]
