"""What `verify` compares of a row, and how rows are summed up to cells: Spark columns for `lake/comparison.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.model import EVENTS_QUEUE
from penstock.spark.events import event_rows
from penstock.spark.lake.comparison import CELL_OFFSETS, Cell, Lane
from penstock.spark.lake.layout import EVENTS

MESSAGE_IDS: Final = (
    "partition",
    "key",
    "priority",
    "content_type",
    "dedup_id",
    "trace_id",
    "correlation_id",
    "delay_ms",
    "not_before",
    "ttl_ms",
    "published_at",
)
EVENT_IDS: Final = (
    "event_index",
    "range_index",
    "namespace",
    "queue",
    "queue_id",
    "lane",
    "group",
    "kind",
    "start_offset",
    "end_offset",
    "at",
    "consumer",
    "attempt",
    "detail",
)


def compared_columns(name: str) -> list[str]:
    """The lake's columns that are compared."""
    if name == EVENTS:
        return ["date", "event_queue_id", "event_lane", "event_offset", *EVENT_IDS]
    return ["queue", "date", "queue_id", "lane", "offset", *MESSAGE_IDS]


def told_events(rows: DataFrame, names: Mapping[int, str]) -> DataFrame:
    """The broker's events with the columns of the lake's; `names` are those of the events queues, by id."""
    queue_id = F.coalesce(*(F.when(F.col("event_queue") == name, F.lit(id)) for id, name in names.items()))
    return event_rows(rows).withColumn("event_queue_id", queue_id).withColumn("date", F.to_date("at"))


def shaped(rows: DataFrame, name: str, deep: bool, names: Mapping[int, str]) -> DataFrame:
    """queue, queue_id, lane, offset, date, weight (1 for one row of each message, else 0) and hash.

    `names` are those of the events queues, by id; one that the broker does not have is called `$events`.
    """
    if name == EVENTS:
        first = (F.col("event_index") == 0) & (F.col("range_index") == 0)
        known = (F.when(F.col("event_queue_id") == id, F.lit(name)) for id, name in names.items())
        return rows.select(
            F.coalesce(*known, F.lit(EVENTS_QUEUE)).alias("queue"),
            F.col("event_queue_id").alias("queue_id"),
            F.col("event_lane").alias("lane"),
            F.col("event_offset").alias("offset"),
            F.col("date").cast("string").alias("date"),
            first.cast("int").alias("weight"),
            F.xxhash64("event_lane", "event_offset", *EVENT_IDS).alias("hash"),
        )
    hashed: list[Column | str] = ["queue_id", "lane", "offset", *MESSAGE_IDS]
    if deep:
        hashed += ["payload", F.map_entries("typed_headers")]
    return rows.select(
        "queue",
        "queue_id",
        "lane",
        "offset",
        F.to_date("published_at").cast("string").alias("date"),
        F.lit(1).alias("weight"),
        F.xxhash64(*hashed).alias("hash"),
    )


def summed(rows: DataFrame, *more: str) -> DataFrame:
    place = F.col("offset") % CELL_OFFSETS
    number = F.floor(F.col("offset") / CELL_OFFSETS).cast("bigint")
    return rows.groupBy("queue", "queue_id", "lane", "date", number.alias("number"), *more).agg(
        F.sum("weight").alias("messages"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.sum(place * F.col("weight")).alias("places"),
        F.sum(place * place * F.col("weight")).alias("squares"),
        F.bit_xor("hash").alias("hash"),
    )


def cell_of(row: Any) -> Cell:
    sums = {name: row[name] for name in Cell.__struct_fields__ if name != "lane"}
    return Cell(lane=Lane(row["queue"], row["queue_id"], row["lane"]), **sums)
