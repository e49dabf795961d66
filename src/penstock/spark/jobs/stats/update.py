"""Brings the table `stats` up to what the archive has: each event and each message is summed up exactly once.

The table keeps marks of its own, for lanes of events queues and of others: up to where they are in it. A piece of work
is what lies between its marks and the archive's; the commit that adds its rows moves the marks. So a run that is killed
leaves nothing behind that counts, and an event that is archived late is a part of its minute that comes later.

The time in the queue needs an event and a message, which are archived independently of each other. A pair is summed up
when the second of the two is: new messages meet the events below the mark, new events the messages below theirs. That
is only right if no one moves the one mark while the other is worked with: so every commit also moves a mark that all
have in common, and the second of two runs finds that the table has changed, and looks again.

May not know: how numbers are made of events (`rows.py`), or how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.filters.columns import joined
from penstock.spark.jobs.frame import Progress
from penstock.spark.jobs.stats import rows as stats_rows
from penstock.spark.jobs.stats.lanes import (
    Block,
    Span,
    Spans,
    cut,
    cut_by_messages,
    event_lanes,
    first_ranges,
    message_lanes,
    surveyed,
    within,
)
from penstock.spark.lake.errors import LakeConflict, LakeMissing
from penstock.spark.lake.files import DataFile, meets
from penstock.spark.lake.layout import EVENTS, MESSAGES, NAMESPACE_PROPERTY, SERVER_PROPERTY, STATS, STATS_SCHEMA
from penstock.spark.lake.reading import Choice, LaneRange
from penstock.spark.lake.sink import write_summaries
from penstock.spark.lake.source import frame
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable, LaneKey

TRIES: Final = 20
"""Another run that is at work is met again and again; this bounds the retries."""
HOUR_US: Final = 3_600_000_000
SLACK_US: Final = 60_000_000
"""Clocks of several nodes: an event may seem to be earlier than the message that it is about."""
COMMITS: Final = (-1, 0)
"""The mark that every commit moves: of no queue, and it counts them."""
TIME_COLUMNS: Final = ("queue_id", "lane", "offset", "published_at")


class Done(msgspec.Struct):
    """What an update did."""

    messages: int = 0
    events: int = 0
    """Messages of events queues, each with all that happened in one commit."""
    commits: int = 0
    missed_events: int = 0
    """Events that left the lake before they were summed up."""


class Update:
    """One run. It takes what the archive has at its beginning, or when another run came in between."""

    def __init__(
        self, spark: SparkSession, storage: Storage, progress: Progress, *, lookback_hours: int, unit_messages: int
    ) -> None:
        self._spark = spark
        self._progress = progress
        self._lookback_us = lookback_hours * HOUR_US
        self._unit = unit_messages
        self._storage = storage
        archived = _opened(storage.under(EVENTS)) or _opened(storage.under(MESSAGES))
        if archived is None:
            raise LakeMissing(f"there is no lake at {storage.url}: archive something first (penstock pipeline archive)")
        owner = [archived.properties[name] for name in (SERVER_PROPERTY, NAMESPACE_PROPERTY)]
        self._stats = LakeTable.open_for(storage.under(STATS), STATS_SCHEMA, *owner)
        self._look()
        self.done = Done(missed_events=self._missed())

    def _look(self) -> None:
        """See what the archive has: always after the summaries, whose marks may then not be beyond what is seen."""
        self._events = _opened(self._storage.under(EVENTS))
        self._messages = _opened(self._storage.under(MESSAGES))
        self._event_ends = event_lanes(self._spark, self._events)
        self._message_ends = message_lanes(self._spark, self._messages)

    def run(self) -> Done:
        """Until all that was archived is summed up, or the job is stopped."""
        conflicts = 0
        while not self._progress.stopping:
            try:
                if not (self._add_messages() or self._add_events()):
                    break
                conflicts = 0
            except LakeConflict:  # another run has summed up some of it: go on from where it is now
                conflicts += 1
                if conflicts == TRIES:
                    raise
                self._stats = self._stats.reopened()
                self._look()
            self._progress.update(rows=self.done.messages + self.done.events, lag=self._lag())
        return self.done

    # What is to be done -----------------------------------------------------------------------------------

    def _open_spans(self, table: LakeTable | None, ends: Mapping[LaneKey, int]) -> Spans:
        """What the archive has and the summaries have not, by lane."""
        spans = {lane: Span(self._start(table, lane), end) for lane, end in ends.items()}
        return {lane: span for lane, span in spans.items() if span.length > 0}

    def _start(self, table: LakeTable | None, lane: LaneKey) -> int:
        floor = None if table is None else table.floor(*lane)
        return max(self._stats.mark(*lane) or 0, floor or 0)

    def _missed(self) -> int:
        """Events that expired from the lake in between: known by a floor above the mark."""
        marks = {lane: self._stats.mark(*lane) for lane in self._event_ends}
        return sum(self._start(self._events, lane) - mark for lane, mark in marks.items() if mark is not None)

    def _lag(self) -> int:
        spans = [self._open_spans(self._messages, self._message_ends), self._open_spans(self._events, self._event_ends)]
        return sum(span.length for found in spans for span in found.values())

    # Messages ---------------------------------------------------------------------------------------------

    def _add_messages(self) -> bool:
        """A piece of new messages, with the hand-outs that were summed up before them; whether there was one."""
        spans = cut(self._open_spans(self._messages, self._message_ends), self._unit)
        if not spans or self._messages is None:
            return False
        ranges = tuple(LaneRange(*lane, span.start, span.end) for lane, span in spans.items())
        columns = ("queue", *TIME_COLUMNS, "payload")
        parts = [stats_rows.published(frame(self._spark, self._messages, columns, Choice(ranges=ranges)))]
        claims = self._claims_before(ranges)
        if claims is not None:
            times = frame(self._spark, self._messages, TIME_COLUMNS, Choice(ranges=ranges))
            parts.append(stats_rows.waited(stats_rows.first_claims(claims), times))
        self._commit(parts, spans)
        self.done.messages += sum(span.length for span in spans.values())
        return True

    def _claims_before(self, ranges: tuple[LaneRange, ...]) -> DataFrame | None:
        """Hand-outs of these messages that were summed up already; None where there can be none."""
        assert self._messages is not None
        below = {lane: Span(0, self._stats.mark(*lane) or 0) for lane in self._event_ends}
        if not any(span.length for span in below.values()):
            return None
        earliest, _ = _times(Choice(ranges=ranges).files(self._messages.files()))
        since_us = None if earliest is None else earliest - SLACK_US
        return self._event_rows(below, since_us).where("kind = 'claimed'").where(_overlaps(ranges))

    # Events -----------------------------------------------------------------------------------------------

    def _add_events(self) -> bool:
        """A piece of new events; whether there was one."""
        ahead = cut(self._open_spans(self._events, self._event_ends), self._unit)
        if not ahead:
            return False
        # In one read: these events, and the hand-outs before them, which another server may have told elsewhere.
        every = {lane: Span(0, end) for lane, end in self._event_ends.items()}
        every |= {lane: Span(0, span.end) for lane, span in ahead.items()}
        first, last = _times(self._files(ahead))
        since_us = None if first is None else first - self._lookback_us
        rows = self._event_rows(every, since_us, None if last is None else last + SLACK_US)
        rows = rows.where(_in_spans(ahead) | (F.col("kind") == "claimed"))
        rows.persist()
        try:
            blocks = surveyed(rows.where(_in_spans(ahead)))
            spans = cut_by_messages(ahead, blocks, self._unit)
            events = rows.where(_in_spans(spans))
            parts = [stats_rows.counted(events), stats_rows.reasons(events)]
            self._commit(parts + self._times(rows, spans, within(blocks, spans)), spans)
        finally:
            rows.unpersist()
        self.done.events += sum(span.length for span in spans.values())
        return True

    def _times(self, rows: DataFrame, spans: Spans, blocks: list[Block]) -> list[DataFrame]:
        """How long messages waited that these events hand out for the first time, and how long acked ones took."""
        if not blocks:
            return []
        events, claims = rows.where(_in_spans(spans)), rows.where("kind = 'claimed'")
        parts = [stats_rows.worked(events.where("kind = 'acked'"), claims)]
        marks = {lane: self._stats.mark(*lane) or 0 for lane in self._message_ends}
        ranges = tuple(first_ranges(blocks, marks))
        if ranges and self._messages is not None:
            earlier = claims.where(self._summed_up())
            first = stats_rows.first_claims(events.where("kind = 'claimed'"), earlier)
            times = frame(self._spark, self._messages, TIME_COLUMNS, Choice(ranges=ranges))
            parts.append(stats_rows.waited(first, times))
        return parts

    def _files(self, spans: Spans) -> list[DataFile]:
        """The archive's files that can have events with these offsets."""
        assert self._events is not None
        return [
            file
            for file in self._events.files()
            if any(
                meets(file.event_queue_ids, lane[0], lane[0] + 1) and meets(file.offsets, span.start, span.end)
                for lane, span in spans.items()
            )
        ]

    def _summed_up(self) -> Column:
        """Events that earlier pieces were about."""
        return _in_spans({lane: Span(0, self._start(self._events, lane)) for lane in self._event_ends})

    def _event_rows(self, spans: Spans, since_us: int | None, until_us: int | None = None) -> DataFrame:
        """The archive's events with these offsets, between two times."""
        assert self._events is not None
        inside = {file.path for file in self._files(spans)}
        without = [file.path for file in self._events.files() if file.path not in inside]
        chosen = Choice(start_us=since_us, end_us=until_us, time="at")
        rows = frame(self._spark, self._events, stats_rows.EVENT_COLUMNS, chosen, without)
        return rows.where(_in_spans(spans))

    # The commit -------------------------------------------------------------------------------------------

    def _commit(self, parts: list[DataFrame], spans: Spans) -> None:
        """Add rows and move marks, if no other run has moved any since this one looked."""
        files = write_summaries(stats_rows.summed(parts), self._stats)
        marks = {lane: span.end for lane, span in spans.items()}
        marks[COMMITS] = (self._stats.mark(*COMMITS) or 0) + 1
        try:
            self._stats = self._stats.append(files, marks)
        except LakeConflict:
            for file in files:
                self._stats.storage.remove(file.path)
            raise
        self.done.commits += 1


def _opened(storage: Storage) -> LakeTable | None:
    try:
        return LakeTable.open(storage)
    except LakeMissing:
        return None


def _times(files: Sequence[DataFile]) -> tuple[int | None, int | None]:
    """The first and the last time in some files, in microseconds since 1970; None where the log does not tell."""
    bounds = [file.times_us for file in files if file.times_us is not None]
    if not files or len(bounds) < len(files):
        return None, None
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _in_spans(spans: Spans) -> Column:
    """Events whose own place is in one of these."""
    places = [LaneRange(*lane, span.start, span.end) for lane, span in spans.items()]
    return _in_lanes(places, "event_", "event_offset", "event_offset + 1")


def _overlaps(ranges: Sequence[LaneRange]) -> Column:
    """Events about one of these messages."""
    return _in_lanes(ranges, "", "start_offset", "end_offset")


def _in_lanes(ranges: Sequence[LaneRange], prefix: str, start: str, end: str) -> Column:
    """Rows whose offsets [start, end) meet one of the ranges."""
    return joined(
        Column.__or__,
        [
            (F.col(f"{prefix}queue_id") == one.queue_id)
            & (F.col(f"{prefix}lane") == one.lane)
            & (F.expr(start) < one.end)
            & (F.expr(end) > one.start)
            for one in ranges
        ],
    )
