"""Which offsets of which lanes an update of the summaries takes next, and what must be known of them beforehand.

Pieces are bounded by messages, not by events: an event may speak of a hundred thousand of them, and each has times of
its own.

May not know: how summaries are made, or where they go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.spark.lake.layout import IDENTITY, time_column
from penstock.spark.lake.reading import Choice, LaneRange
from penstock.spark.lake.source import frame
from penstock.spark.lake.table import LakeTable, LaneKey

EVENT_LANES: Final = (0, 63)
"""The first and the last lane that an events queue may have."""
BLOCK: Final = 100
"""Event offsets that are never cut apart."""


class Span(msgspec.Struct, frozen=True):
    """Offsets [start, end)."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


Spans = dict[LaneKey, Span]


class Block(msgspec.Struct, frozen=True):
    """What some neighbouring events say of one lane of one queue."""

    event_lane: LaneKey
    """Where they were told."""
    end: int
    """The event offset after the block."""
    queue_id: int
    lane: int
    messages: int
    """How many they hand out and settle."""
    first: Span | None
    """Where those are that are handed out for the first time, as it seems; None if none is."""


# Lanes of the archive ------------------------------------------------------------------------------------


def event_lanes(spark: SparkSession, table: LakeTable | None) -> dict[LaneKey, int]:
    """The archive's marks of all events queues that it has events of, by lane."""
    return _marked(spark, table, "event_queue_ids", ("event_queue_id",))


def message_lanes(spark: SparkSession, table: LakeTable | None) -> dict[LaneKey, int]:
    """The archive's marks of all queues that it has messages of, by lane."""
    return _marked(spark, table, "queue_ids", IDENTITY[:2])


def _marked(spark: SparkSession, table: LakeTable | None, ids: str, columns: Sequence[str]) -> dict[LaneKey, int]:
    """By lane, the marks of what the files hold; `columns` tell the queue, and the lane where rows have it."""
    if table is None:
        return {}
    found: set[LaneKey] = set()
    known: list[str] = []
    for file in table.files():
        queue_ids, lanes = getattr(file, ids), file.lanes if len(columns) > 1 else EVENT_LANES
        if queue_ids is not None and lanes is not None and queue_ids[0] == queue_ids[1]:
            known.append(file.path)
            found |= {(queue_ids[0], lane) for lane in range(lanes[0], lanes[1] + 1)}
    # A file of several queues: merged events of several servers, or a queue that was declared again.
    if len(known) < len(table.files()):
        rest = frame(spark, table, columns, Choice(time=time_column(table.schema)), known).distinct().collect()
        every = range(EVENT_LANES[0], EVENT_LANES[1] + 1)
        found |= {(row[0], lane) for row in rest for lane in (row[1:] or every)}
    marks = {lane: table.mark(*lane) for lane in found}
    return {lane: mark for lane, mark in sorted(marks.items()) if mark is not None}


# Pieces --------------------------------------------------------------------------------------------------


def cut(spans: Mapping[LaneKey, Span], limit: int) -> Spans:
    """The beginning of all these, at most `limit` offsets long in all."""
    found: Spans = {}
    for lane, span in sorted(spans.items()):
        room = limit - sum(one.length for one in found.values())
        if room <= 0:
            break
        found[lane] = Span(span.start, min(span.end, span.start + room))
    return found


def cut_by_messages(spans: Mapping[LaneKey, Span], blocks: Iterable[Block], limit: int) -> Spans:
    """The beginning of these spans of events, up to the block that brings `limit` messages; at least a block."""
    sizes: dict[tuple[LaneKey, int], int] = {}
    for block in blocks:
        sizes[block.event_lane, block.end] = sizes.get((block.event_lane, block.end), 0) + block.messages
    found: Spans = {}
    room = limit
    for key, span in sorted(spans.items()):
        found[key] = span
        for (lane, end), messages in sorted(sizes.items()):
            if lane != key:
                continue
            room -= messages
            if room <= 0:
                found[key] = Span(span.start, min(end, span.end))
                return found
    return found


def surveyed(events: DataFrame) -> list[Block]:
    """The blocks of some events, on the driver: a row for each hundred events and lane that they speak of."""
    block = F.expr(f"event_offset div {BLOCK}")
    is_first = (F.col("kind") == "claimed") & (F.col("attempt") == 1)
    rows = (
        events.where(F.col("kind").isin("claimed", "acked"))
        .groupBy("event_queue_id", "event_lane", block.alias("block"), "queue_id", "lane")
        .agg(
            F.sum("messages").alias("messages"),
            F.min(F.when(is_first, F.col("start_offset"))).alias("low"),
            F.max(F.when(is_first, F.col("end_offset"))).alias("high"),
        )
        .collect()
    )
    return [
        Block(
            (row["event_queue_id"], row["event_lane"]),
            (row["block"] + 1) * BLOCK,
            row["queue_id"],
            row["lane"],
            row["messages"],
            None if row["low"] is None else Span(row["low"], row["high"]),
        )
        for row in rows
    ]


def within(blocks: Iterable[Block], spans: Mapping[LaneKey, Span]) -> list[Block]:
    """The blocks that lie in these spans of events; a block that a span ends in is."""
    return [block for block in blocks if block.event_lane in spans and block.end - BLOCK < spans[block.event_lane].end]


def first_ranges(blocks: Iterable[Block], marks: Mapping[LaneKey, int]) -> list[LaneRange]:
    """Where messages are that the blocks seem to hand out for the first time, as far as the marks go."""
    found: dict[LaneKey, Span] = {}
    for block in blocks:
        if block.first is None:
            continue
        lane = block.queue_id, block.lane
        known = found.get(lane, block.first)
        found[lane] = Span(min(known.start, block.first.start), max(known.end, block.first.end))
    ranges = [LaneRange(*lane, span.start, min(span.end, marks.get(lane, 0))) for lane, span in sorted(found.items())]
    return [one for one in ranges if one.start < one.end]
