"""From delivery events and messages to summaries of minutes: Spark's functions on columns, and nothing else.

Every function here gives *parts*: rows with `queue`, `queue_id`, `group`, `at` (a minute) and some numbers of them.
`summed` puts parts together, one row for each minute, with the times as KLL sketches. Sums add up and sketches merge:
it does not matter in how many runs the parts of a minute were made.

Three things about events decide how they are matched. All that a group did in one commit is one message of an events
queue, and within it the events of one kind are gathered: their order inside says nothing. An event tells one time for
all its offsets: when it happened to the first of them. And a lane that passes from one server to another goes on in
another events queue: inside one, events are in the order of their offsets, and between two in that of their times.

May not know: tables, marks, or which events are new.
"""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.spark.jobs.triage.reasons import normalised

EVENT_COLUMNS: Final = (
    "queue",
    "event_queue_id",
    "event_lane",
    "event_offset",
    "event_index",
    "queue_id",
    "lane",
    "group",
    "kind",
    "start_offset",
    "end_offset",
    "messages",
    "at",
    "attempt",
    "detail",
)
CLAIM_COLUMNS: Final = (
    "event_queue_id",
    "event_lane",
    "event_offset",
    "queue_id",
    "lane",
    "group",
    "start_offset",
    "end_offset",
    "at",
    "attempt",
)
PLACE: Final = ("event_queue_id", "event_lane", "event_offset")
MINUTE_MS: Final = 60_000
BUCKET: Final = 1_000
"""Offsets per bucket: ranges and offsets are joined by bucket, an equality join however long the ranges are."""

KEYS: Final = ("queue", "queue_id", "group", "at", "reason", "error")
COUNTS: Final = ("published", "bytes", "delivered", "acked", "retried", "dead", "died")
TIMES: Final = {"waited": "waited_ms", "worked": "worked_ms"}

DONE: Final = ("acked", "committed")
"""A stream group commits; a work group acks."""
CAUSES: Final = ("nacked", "expired", "left")
"""Events that say why an attempt failed; `dead` follows in the same message when it was the last."""


def floor_to(time: Column, milliseconds: int) -> Column:
    """The beginning of the minute, hour or day (UTC, whatever the session's time zone is)."""
    return F.timestamp_millis(F.unix_millis(time) - F.pmod(F.unix_millis(time), F.lit(milliseconds)))


def milliseconds_between(start: Column, end: Column) -> Column:
    """At least 0: events that share a commit are only as exact as their first offset."""
    return F.greatest(F.unix_millis(end) - F.unix_millis(start), F.lit(0).cast("bigint"))


# Counts --------------------------------------------------------------------------------------------------


def published(messages: DataFrame) -> DataFrame:
    """How many messages each minute brought, and how many bytes of payload."""
    minute = floor_to(F.col("published_at"), MINUTE_MS)
    return (
        messages.groupBy("queue", "queue_id", minute.alias("at"))
        .agg(F.count(F.lit(1)).alias("published"), F.sum(F.octet_length("payload")).alias("bytes"))
        .withColumn("group", F.lit(None).cast("string"))
    )


def counted(events: DataFrame) -> DataFrame:
    """What became of messages. Those handed out more than once are delivered each time, and retried from the second."""
    kind, attempt = F.col("kind"), F.col("attempt")
    return _part(
        events.where(kind.isin("claimed", "dead", *DONE)),
        delivered=_messages(kind == "claimed"),
        acked=_messages(kind.isin(*DONE)),
        retried=_messages((kind == "claimed") & (attempt > 1)),
        dead=_messages(kind == "dead"),
    )


def _part(rows: DataFrame, **numbers: Column) -> DataFrame:
    """Numbers by queue, group and minute."""
    minute = floor_to(F.col("at"), MINUTE_MS).alias("at")
    return rows.select("queue", "queue_id", "group", minute, *(column.alias(name) for name, column in numbers.items()))


def _messages(condition: Column) -> Column:
    return F.when(condition, F.col("messages"))


def reasons(events: DataFrame) -> DataFrame:
    """Why messages died: `dead` events, with the failure in the same commit that they followed from."""
    dead = events.where("kind = 'dead'").withColumn("key", F.monotonically_increasing_id()).alias("dead")
    causes = (
        events.where(F.col("kind").isin(*CAUSES))
        .select(
            *PLACE,
            "attempt",
            F.col("start_offset").alias("low"),
            F.col("end_offset").alias("high"),
            F.col("detail").alias("cause"),
        )
        .alias("cause")
    )
    overlap = F.least("end_offset", "high") - F.greatest("start_offset", "low")
    matched = dead.join(
        causes,
        [F.col(f"dead.{name}") == F.col(f"cause.{name}") for name in PLACE]
        + [F.col("dead.attempt").eqNullSafe(F.col("cause.attempt")), overlap > 0],
    )
    error = normalised(F.col("cause"))
    explained = _part(matched, key=F.col("dead.key"), reason=F.col("dead.detail"), error=error, died=overlap)
    # What nothing in the commit explains: rejected, expired, overflown.
    known = explained.groupBy("key").agg(F.sum("died").alias("known"))
    rest = F.col("messages") - F.coalesce("known", F.lit(0))
    nothing = F.lit(None).cast("string")
    unexplained = _part(dead.join(known, "key", "left"), reason=F.col("detail"), error=nothing, died=rest)
    return explained.drop("key").unionByName(unexplained.where("died > 0"))


# Times ---------------------------------------------------------------------------------------------------


def worked(acks: DataFrame, claims: DataFrame) -> DataFrame:
    """From the hand-out of each acked message to its ack."""
    one_each = _per_offset(acks.select(*EVENT_COLUMNS)).alias("ack")
    spans = _per_bucket(claims).alias("claim")
    # The latest hand-out of this attempt: a released message is handed out with the same number again.
    same = ("queue_id", "lane", "group", "attempt", "bucket")
    pairs = one_each.join(
        spans,
        [F.col(f"ack.{name}") == F.col(f"claim.{name}") for name in same] + [_covers("claim", "ack"), _precedes()],
    )
    found = pairs.groupBy(
        *(F.col(f"ack.{name}") for name in ("queue", "queue_id", "lane", "group", *PLACE, "event_index")),
        F.col("ack.offset"),
        F.col("ack.at"),
    ).agg(F.max("claim.at").alias("claimed_at"))
    return _part(found, worked_ms=milliseconds_between(F.col("claimed_at"), F.col("at")))


def _precedes() -> Column:
    """Whether the hand-out was told before the ack."""
    claim, ack = ([F.col(f"{side}.{name}") for name in (*PLACE, "at")] for side in ("claim", "ack"))
    is_same_lane = (claim[0] == ack[0]) & (claim[1] == ack[1])
    return F.when(is_same_lane, claim[2] <= ack[2]).otherwise(claim[3] <= ack[3])


def first_claims(claims: DataFrame, earlier: DataFrame | None = None) -> DataFrame:
    """The first hand-out of each message to each group, without messages that `earlier` claims handed out."""
    place = ("queue", "queue_id", "lane", "group", "offset", "bucket")
    first = _per_offset(claims.where("attempt = 1").select(*EVENT_COLUMNS)).groupBy(*place).agg(F.min("at").alias("at"))
    if earlier is None:
        return first
    spans = _per_bucket(earlier.where("attempt = 1")).alias("claim")
    same = ("queue_id", "lane", "group", "bucket")
    conditions = [F.col(f"first.{name}") == F.col(f"claim.{name}") for name in same]
    return first.alias("first").join(spans, [*conditions, _covers("claim", "first")], "left_anti")


def waited(first: DataFrame, messages: DataFrame) -> DataFrame:
    """From publishing to the first hand-out, of the messages that are in both."""
    known = messages.select("queue_id", "lane", "offset", "published_at")
    both = first.join(known, ["queue_id", "lane", "offset"])
    return _part(both, waited_ms=milliseconds_between(F.col("published_at"), F.col("at")))


def _per_offset(events: DataFrame) -> DataFrame:
    offsets = F.sequence(F.col("start_offset"), F.col("end_offset") - 1)
    exploded = events.where("messages > 0").withColumn("offset", F.explode(offsets))
    return exploded.withColumn("bucket", F.expr(f"offset div {BUCKET}"))


def _per_bucket(claims: DataFrame) -> DataFrame:
    buckets = F.expr(f"sequence(start_offset div {BUCKET}, (end_offset - 1) div {BUCKET})")
    return claims.select(*CLAIM_COLUMNS).where("end_offset > start_offset").withColumn("bucket", F.explode(buckets))


def _covers(span: str, one: str) -> Column:
    offset = F.col(f"{one}.offset")
    return (F.col(f"{span}.start_offset") <= offset) & (offset < F.col(f"{span}.end_offset"))


# Together ------------------------------------------------------------------------------------------------


def summed(parts: list[DataFrame]) -> DataFrame:
    """One row for each queue, group, minute and reason, as the lake keeps them; without `date`."""
    every = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    kinds = dict.fromkeys((*COUNTS, *TIMES.values()), "bigint") | {"reason": "string", "error": "string"}
    for name, kind in kinds.items():
        if name not in every.columns:
            every = every.withColumn(name, F.lit(None).cast(kind))
    sums = [F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name) for name in COUNTS]
    times = [
        column
        for name, values in TIMES.items()
        for column in (
            F.count(values).alias(name),
            F.max(values).alias(f"{name}_max_ms"),
            F.when(F.count(values) > 0, F.kll_sketch_agg_bigint(values)).alias(f"{name}_sketch"),
        )
    ]
    return every.groupBy(*KEYS).agg(*sums, *times)
