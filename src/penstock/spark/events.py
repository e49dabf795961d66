"""Delivery events as a flat table: one row for each event and range of offsets, whichever server wrote it.

| column | type | meaning |
| --- | --- | --- |
| `event_queue`, `event_lane`, `event_offset` | string, int, bigint | the place of the event's message |
| `event_index`, `range_index` | int | which event of that message, which of its ranges: all five name a row for good |
| `namespace`, `queue`, `queue_id`, `lane`, `group` | string, string, bigint, int, string | where it happened |
| `kind` | string | claimed, acked, nacked, dead … |
| `start_offset`, `end_offset` | bigint | the offsets, the end not included |
| `messages` | bigint | how many they are |
| `at` | timestamp | when it first happened to one of them |
| `consumer`, `attempt`, `detail` | string, int, string | null where there is none |

The format is told in `docs/events.md`. Made with Spark's own functions: no per-row Python.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.model import EVENTS_QUEUE
from penstock.model.errors import InvalidArgument

DELIVERY: Final = (
    "namespace STRING, queue STRING, queue_id BIGINT, lane INT, `group` STRING, "
    "events ARRAY<STRUCT<kind: STRING, ranges: ARRAY<ARRAY<BIGINT>>, at_ms: BIGINT, consumer: STRING, attempt: INT, "
    "detail: STRING>>"
)
"""The payload of one message of an events queue."""

COLUMNS: Final = "queue,lane,offset,payload"
"""What has to be read of events queues."""
PLACE: Final = ("event_queue", "event_lane", "event_offset")


def delivery_events(spark: SparkSession, url: str, *, streaming: bool = False, **options: str) -> DataFrame:
    """The events of all servers of a store, as a table or with `streaming` as a stream; `options` are the source's.

    They are kept for a week or 256 MiB: a stream that stood longer than that has a gap, which is an error unless
    `failOnDataLoss="false"` is given.
    """
    for name in ("queue", "columns", "includePayload", "path"):
        if name.lower() in {given.lower() for given in options}:
            raise InvalidArgument(f"option {name} is settled for delivery events: leave it out")
    reader = spark.readStream if streaming else spark.read
    chosen = {"url": url, "queue": EVENTS_QUEUE, "columns": COLUMNS, **options}
    return event_rows(reader.format("penstock").options(**chosen).load())


def event_rows(df: DataFrame) -> DataFrame:
    """Rows of events queues (queue, lane, offset and payload of the source) as the flat table of above.

    An event's message that cannot be read fails the query: none is dropped silently.
    """
    if missing := [name for name in COLUMNS.split(",") if name not in df.columns]:
        raise InvalidArgument(
            f"delivery events need the columns queue, lane, offset and payload; {missing[0]!r} is not there"
        )
    delivery = F.from_json(F.col("payload").cast("string"), DELIVERY, {"mode": "FAILFAST"})
    messages = df.select(
        *(F.col(name.removeprefix("event_")).alias(name) for name in PLACE), delivery.alias("delivery")
    )
    events = messages.select(*PLACE, "delivery", F.posexplode("delivery.events").alias("event_index", "event"))
    ranges = events.select(
        *PLACE,
        "event_index",
        "delivery",
        "event",
        F.posexplode("event.ranges").alias("range_index", "span"),
    )
    start, end = F.col("span")[0], F.col("span")[1]
    return ranges.select(
        *PLACE,
        "event_index",
        "range_index",
        "delivery.namespace",
        "delivery.queue",
        "delivery.queue_id",
        "delivery.lane",
        "delivery.group",
        "event.kind",
        start.alias("start_offset"),
        end.alias("end_offset"),
        (end - start).alias("messages"),
        F.timestamp_millis("event.at_ms").alias("at"),
        "event.consumer",
        "event.attempt",
        "event.detail",
    )
