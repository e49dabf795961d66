"""`replay`: messages of the lake, and of the log beyond it, → a queue or an exchange, once.

A replay has a name. Its plan, ranges of offsets for each lane, is settled when it first runs and kept as a mark on the
server, with how far it has come. It runs in units of offsets: each is one write of the public sink, whose
transaction is named after the replay and the unit, so that a unit that runs again publishes nothing again. Where a
message is read from, lake or log, is decided when its unit runs; its offset decides that it is read once.

Original place, time and ids travel in headers `x-original-…`.
"""

from __future__ import annotations

import time
from functools import reduce
from typing import Any, Final

import msgspec
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.core.filters import parse
from penstock.model import check_name
from penstock.model.errors import InvalidArgument, MarkMoved, NotFound, PenstockError
from penstock.spark.filters.columns import filter_column
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.lakes import check_positive
from penstock.spark.jobs.replay import history
from penstock.spark.jobs.replay.history import HistoryOptions, Plan
from penstock.spark.source.planning import LaneSlice

MARK: Final = "replay/"
ASKED: Final = (
    "lake",
    "queues",
    "to_queue",
    "to_exchange",
    "routing_key",
    "start",
    "end",
    "partitions",
    "headers",
    "where",
    "live",
    "keep_dedup_ids",
)
"""Options that decide what is published: a replay does not change on its way."""
PACED_SECONDS: Final = 2.0
"""With a rate, a unit is what may be published in this many seconds."""
_VALUE: Final = "struct<kind:string,text:string,integer:bigint,float:double>"


class ReplayOptions(HistoryOptions, frozen=True, kw_only=True):
    """What `penstock pipeline replay` is told."""

    name: str
    """Names the replay: the same name again goes on with it, or finds it done."""
    to_queue: str | None = None
    to_exchange: str | None = None
    """One of the two: where messages go. An exchange routes by their own keys, or by `routing_key`."""
    routing_key: str | None = None
    partitions: list[str] | None = None
    """Only messages of these partitions."""
    headers: dict[str, str] | None = None
    """Only messages whose headers have these values (as text; other types as JSON)."""
    where: str | None = None
    """Only messages that this filter expression lets through."""
    rate: float | None = None
    """Messages a second at the most."""


class State(msgspec.Struct):
    """The mark of a replay."""

    asked: dict[str, Any]
    """The options of `ASKED`."""
    plan: Plan
    done: int = 0
    """Units that are published."""
    rows: int = 0


def run(spark: SparkSession, options: ReplayOptions, progress: Progress) -> Summary:
    """Publish what is left of the replay; with `dry_run` count it."""
    check(options)
    wanted(options)  # what cannot be a column is said before anything is read
    if options.dry_run:
        return _counted(spark, options, progress)
    state, version = _state(spark, options)
    todo = history.units(state.plan)
    total = sum(piece.rows for unit in todo for piece in unit)
    progress.update(done=sum(piece.rows for unit in todo[: state.done] for piece in unit), total=total)
    already = state.done
    rows = 0
    while state.done < len(todo) and not progress.stopping:
        began = time.monotonic()
        count = _publish(spark, options, state.done, todo[state.done])
        state.done, state.rows, rows = state.done + 1, state.rows + count, rows + count
        version = _save(options, state, version)
        progress.update(rows=rows, done=sum(piece.rows for unit in todo[: state.done] for piece in unit))
        if options.rate is not None:
            progress.wait(count / options.rate - (time.monotonic() - began))
    return progress.summary(
        replay=options.name,
        to=options.to_queue or options.to_exchange,
        units=len(todo),
        units_done=state.done,
        units_before=already,
        published=state.rows,
        finished=state.done == len(todo),
    )


def check(options: ReplayOptions) -> None:
    """Raise where the replay cannot run, before anything is read."""
    check_name(options.name, "a replay's name")
    if (options.to_queue is None) == (options.to_exchange is None) and not options.dry_run:
        raise InvalidArgument("a replay goes to a queue or to an exchange: give one of to_queue and to_exchange")
    if options.routing_key is not None and options.to_exchange is None:
        raise InvalidArgument("routing_key is for exchanges: give to_exchange too")
    options.check()
    check_positive(options, "rate")
    if options.where is not None:
        parse(options.where)
    if options.to_queue is not None and not options.client.has_queue(options.to_queue):
        raise NotFound(f"there is no queue {options.to_queue!r}: create it before messages are replayed to it")
    if options.to_exchange is not None and options.to_exchange not in options.client.exchanges():
        raise NotFound(f"there is no exchange {options.to_exchange!r}: create it before messages are replayed to it")


# State ---------------------------------------------------------------------------------------------------


def _state(spark: SparkSession, options: ReplayOptions) -> tuple[State, int]:
    """What the server knows of the replay, or a new plan."""
    try:
        mark = options.client.mark(MARK + options.name)
    except NotFound:
        state = State(_asked(options), history.planned(spark, options, _unit_rows(options)))
        return state, _save(options, state, 0)
    state = msgspec.convert(mark.value, State)
    changed = sorted(name for name, value in _asked(options).items() if state.asked.get(name) != value)
    if changed:
        raise InvalidArgument(
            f"the replay {options.name!r} was begun with {changed[0]}={state.asked.get(changed[0])!r}, not "
            f"{_asked(options)[changed[0]]!r}: go on with what it was begun with, or give the new one another name"
        )
    return state, mark.version


def _asked(options: ReplayOptions) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins({name: getattr(options, name) for name in ASKED})
    return found


def _save(options: ReplayOptions, state: State, version: int) -> int:
    try:
        return options.client.put_mark(
            MARK + options.name, msgspec.to_builtins(state), expected_version=version
        ).version
    except MarkMoved as error:
        raise PenstockError(
            f"another run of the replay {options.name!r} is at work: it goes on, and this one ends; nothing is "
            "published twice"
        ) from error


def _unit_rows(options: ReplayOptions) -> int:
    if options.rate is None:
        return options.unit_rows
    return max(1, min(options.unit_rows, int(options.rate * PACED_SECONDS)))


# Units ---------------------------------------------------------------------------------------------------


def _publish(spark: SparkSession, options: ReplayOptions, number: int, unit: list[LaneSlice]) -> int:
    """One unit, as one transaction of the sink; how many messages."""
    rows = history.rows_of(spark, options, unit, wanted(options))
    if rows is None:
        return 0
    seen = Observation()
    # In the order of the log: messages of one partition stay in order.
    count = F.count(F.lit(1))
    ordered = rows.orderBy("queue_id", "lane", "offset").observe(seen, count.alias("rows"))
    target = {"queue": options.to_queue} if options.to_queue is not None else {"exchange": options.to_exchange or ""}
    if options.routing_key is not None:
        target["routingKey"] = options.routing_key
    asked = {**options.source(), **target, "transactionId": f"{MARK}{options.name}/{number}"}
    published(ordered, options).write.format("penstock").mode("append").options(**asked).save()
    return history.counted(seen, rows, {"rows": count})["rows"]


def _counted(spark: SparkSession, options: ReplayOptions, progress: Progress) -> Summary:
    plan = history.planned(spark, options, _unit_rows(options))
    days = history.days_of(history.rows_of(spark, options, plan.slices, wanted(options)))
    total = sum(day["count"] for day in days)
    progress.update(rows=total)
    return progress.summary(
        replay=options.name,
        dry_run=True,
        would_publish=total,
        looked_at=sum(piece.rows for piece in plan.slices),
        days=days,
    )


# Messages ------------------------------------------------------------------------------------------------


def wanted(options: ReplayOptions) -> Column:
    """Which messages are replayed, of those within the times."""
    conditions: list[Column] = [F.lit(True)]
    if options.partitions is not None:
        conditions.append(F.col("partition").isin(options.partitions))
    for name, value in (options.headers or {}).items():
        conditions.append(F.col("headers")[name] == value)
    if options.where is not None:
        conditions.append(filter_column(options.where))
    return reduce(Column.__and__, conditions)


def published(rows: DataFrame, options: ReplayOptions) -> DataFrame:
    """The messages as the sink takes them. Delays are over; a ttl counts from now on."""
    changed = {"typed_headers": _headers(options), "dedup_id": history.dedup_id(options)}
    return rows.withColumns(changed).select(*history.MESSAGE)


def _headers(options: ReplayOptions) -> Column:
    """The message's own, and where it was; those of an earlier replay give way."""
    time = F.date_format("published_at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    added = {
        "x-original-queue": _value("text", text=F.col("queue")),
        "x-original-queue-id": _value("integer", integer=F.col("queue_id")),
        "x-original-lane": _value("integer", integer=F.col("lane").cast("bigint")),
        "x-original-offset": _value("integer", integer=F.col("offset")),
        "x-original-published-at": _value("time", text=time),
        "x-original-dedup-id": _value("text", text=F.col("dedup_id")),
        "x-replay": _value("text", text=F.lit(options.name)),
    }
    own = F.coalesce(F.col("typed_headers"), F.create_map().cast(f"map<string,{_VALUE}>"))
    names = [F.lit(name) for name in added]
    kept = F.map_filter(own, lambda name, _: ~name.isin(names))
    more = F.create_map(*(item for name, value in added.items() for item in (F.lit(name), value)))
    known = F.map_filter(more, lambda _, value: value["text"].isNotNull() | value["integer"].isNotNull())
    return F.map_concat(kept, known)


def _value(kind: str, *, text: Column | None = None, integer: Column | None = None) -> Column:
    """One typed header."""
    return F.struct(
        F.lit(kind).alias("kind"),
        (F.lit(None).cast("string") if text is None else text).alias("text"),
        (F.lit(None).cast("bigint") if integer is None else integer).alias("integer"),
        F.lit(None).cast("double").alias("float"),
    )
