"""`route`: what a queue would have got, had its filter or its bindings been there before: history → the queue, once.

Which messages those are is decided as live routing decides it, by the same expression or binding compiled to a Spark
column (`filters/columns.py`, `filters/routing.py`). History is the lake and the log beyond it, read as `replay` reads
it; the messages go to the queue as they were, through the public sink, which keeps a ledger of the source offsets that
it has written under the route's name. So a run that was stopped, killed or is repeated later only adds what is missing.

A message that expired since is not routed: it would not be delivered any more either. A ttl goes on counting from when
the message was published, and a delay ends when it would have ended.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, get_args

import msgspec
import numpy as np
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from penstock.client.sync import Client
from penstock.model import Binding, ExchangeConfig, ExchangeKind, check_name
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.filters.columns import filter_column
from penstock.spark.filters.routing import Routes, binding_column, route_column
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.replay import history
from penstock.spark.jobs.replay.history import HistoryOptions, Plan
from penstock.spark.sink.identity import ledger_name, sink_text
from penstock.spark.sink.ledger import Ledger
from penstock.spark.sink.options import write_options
from penstock.spark.source.options import queue_choice
from penstock.spark.source.planning import LaneSlice
from penstock.spark.times import now_ms

SINK: Final = "pipeline/route/"


class RouteOptions(HistoryOptions, frozen=True, kw_only=True):
    """What `penstock pipeline route` is told: which history, to which queue, and in one of three ways which of it.

    Where the binding is live already, let `end` be when it was made.
    """

    to_queue: str
    where: str | None = None
    """A filter expression: what it lets through."""
    exchange: str | None = None
    """An exchange of the server: what would reach the queue from it, by the bindings that are there now."""
    kind: ExchangeKind | None = None
    """A kind of exchange: what one binding of it, given by the next three, would let through."""
    pattern: str = ""
    headers: dict[str, Any] | None = None
    match: str = "all"
    name: str | None = None
    """Names the route: what was routed under this name before is not routed again. None: its condition does."""

    @property
    def sink_name(self) -> str:
        return f"{SINK}{self.to_queue}/{self.name or self._condition_hash()}"

    def _condition_hash(self) -> str:
        asked = msgspec.json.encode([self.where, self.exchange, self.kind, self.pattern, self.headers, self.match])
        return hashlib.sha256(asked).hexdigest()[:16]


def run(spark: SparkSession, options: RouteOptions, progress: Progress) -> Summary:
    """Route what of history is not routed yet; with `dry_run` count it."""
    check(options)
    is_wanted = predicate(options)  # before anything is read: what is wrong with a condition is said at once
    plan = history.planned(spark, options, options.unit_rows)
    plan = Plan([one for one in plan.slices if one.queue != options.to_queue], plan.unit_rows)
    if options.dry_run:
        return _counted(options, plan, history.rows_of(spark, options, plan.slices, is_wanted), progress)
    counts = Counts()
    total = sum(one.rows for one in plan.slices)
    progress.update(done=0, total=total)
    for unit in history.units(plan):
        if progress.stopping:
            break
        found = _route(options, unit, history.rows_of(spark, options, unit, is_wanted))
        counts = Counts(
            *(one + other for one, other in zip(*map(msgspec.structs.astuple, (counts, found)), strict=True))
        )
        progress.update(rows=counts.routed, done=counts.looked_at)
    return progress.summary(
        to=options.to_queue,
        name=options.sink_name,
        **msgspec.structs.asdict(counts),
        routed_before=counts.matched - counts.expired - counts.routed,
        finished=counts.looked_at == total,
    )


def check(options: RouteOptions) -> None:
    """Raise where the route cannot run, before anything is read."""
    check_name(options.to_queue, "to_queue")
    ways = [name for name in ("where", "exchange", "kind") if getattr(options, name) is not None]
    if len(ways) != 1:
        given = " and ".join(ways) or "none of them"
        raise InvalidArgument(f"a route is said by one of where, exchange and kind (with a pattern); given: {given}")
    if options.kind is None and (options.pattern or options.headers is not None):
        raise InvalidArgument("pattern and headers are of a binding: give kind too, the kind of its exchange")
    if options.kind is not None and options.kind not in get_args(ExchangeKind):
        raise InvalidArgument(f"kind is {options.kind!r}; there are {', '.join(get_args(ExchangeKind))}")
    if options.match not in ("all", "any"):
        raise InvalidArgument(f"match is {options.match!r}; it must be all or any")
    options.check()
    if options.to_queue in queue_choice(options.queues).names:
        raise InvalidArgument(f"queue {options.to_queue!r} is where messages come from and where they go to")
    if not options.client.has_queue(options.to_queue):
        raise NotFound(f"there is no queue {options.to_queue!r}: create it before history is routed to it")


# Which messages ------------------------------------------------------------------------------------------


def predicate(options: RouteOptions) -> Column:
    """Live routing's answer, as a column over the source's."""
    if options.where is not None:
        return filter_column(options.where)
    if options.exchange is not None:
        return route_column(routes_of(options.client), options.exchange, options.to_queue)
    assert options.kind is not None
    binding = Binding(
        exchange="history",
        target=options.to_queue,
        pattern=options.pattern,
        headers=options.headers,
        match="any" if options.match == "any" else "all",
    )
    return binding_column(options.kind, binding)


def routes_of(client: Client) -> Routes:
    """The namespace's exchanges and bindings, as they are now."""
    exchanges = {name: msgspec.convert(options, ExchangeConfig) for name, options in client.exchanges().items()}
    return Routes(exchanges, {name: client.bindings(name) for name in exchanges})


# What becomes of them ------------------------------------------------------------------------------------


class Counts(msgspec.Struct):
    """Of some offsets of history."""

    looked_at: int = 0
    matched: int = 0
    expired: int = 0
    """Of the messages that matched."""
    routed: int = 0
    """Of the rest, messages not routed under this name before."""


def _route(options: RouteOptions, unit: list[LaneSlice], rows: DataFrame | None) -> Counts:
    """One unit, as one write of the sink; `rows` are the matching ones."""
    counts = Counts(looked_at=sum(one.rows for one in unit))
    if rows is None:
        return counts
    now = now_ms()
    seen = Observation()
    wanted = {"matched": F.count(F.lit(1)), "expired": F.count_if(~is_alive(now))}
    looked_at = rows.observe(seen, *(column.alias(name) for name, column in wanted.items()))
    asked = {
        **options.source(),
        "queue": options.to_queue,
        "identity": "source",
        "sinkName": options.sink_name,
    }
    before = _written(options, asked, unit)
    # In the order of the log: messages of one partition stay in order.
    alive = looked_at.where(is_alive(now)).orderBy("queue_id", "lane", "offset")
    as_published(alive, options, now).write.format("penstock").mode("append").options(**asked).save()
    found = history.counted(seen, rows, wanted)
    counts.matched, counts.expired = found["matched"], found["expired"]
    counts.routed = _written(options, asked, unit) - before
    return counts


def _written(options: RouteOptions, asked: dict[str, str], unit: list[LaneSlice]) -> int:
    """Of how many offsets of these the sink's ledger says that they are written."""
    text = sink_text(write_options(asked, streaming=False), "source", None)
    ledger = Ledger(options.client, ledger_name(text), text, "source")
    return sum(
        int(ledger.written(f"{one.queue_id}/{one.lane}", np.arange(one.start, one.end, dtype=np.int64)).sum())
        for one in unit
    )


def is_alive(now: int) -> Column:
    """Whether a message has no ttl of its own, or one that is not over."""
    return F.coalesce(F.unix_millis("published_at") + F.col("ttl_ms") > now, F.lit(True))


def as_published(rows: DataFrame, options: RouteOptions, now: int) -> DataFrame:
    """The messages as the sink takes them: as they were, with what is left of a ttl and of a delay."""
    published_ms = F.unix_millis("published_at")
    due_ms = F.greatest(F.unix_millis("not_before"), published_ms + F.col("delay_ms"))
    left = {
        "ttl_ms": published_ms + F.col("ttl_ms") - now,
        "not_before": F.when(due_ms > now, F.timestamp_millis(due_ms)),
        "dedup_id": history.dedup_id(options),
    }
    return rows.withColumns(left).select("queue_id", "queue", "lane", "offset", "not_before", *history.MESSAGE)


def _counted(options: RouteOptions, plan: Plan, rows: DataFrame | None, progress: Progress) -> Summary:
    """What a run would look at and route, one that has routed before included."""
    days = history.days_of(None if rows is None else rows.where(is_alive(now_ms())))
    total = sum(day["count"] for day in days)
    progress.update(rows=total)
    return progress.summary(
        to=options.to_queue,
        name=options.sink_name,
        dry_run=True,
        looked_at=sum(one.rows for one in plan.slices),
        would_route=total,
        days=days,
    )
