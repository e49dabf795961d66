"""`triage`: dead letters of the live server grouped by what they died of, and redriven group by group.

Where dead letters are, and why they died, the server tells without reading a message (`dead_ranges`): tasks page
through it, a lane each. Spark makes the error texts comparable (`reasons.py`) and groups them. Each group is a
redrive plan (`plans.py`), kept on the server under a number. Running one asks the server again where its letters
are, and redrives these, for that group alone, a piece at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from penstock.client.sync import Client
from penstock.model.errors import NotFound
from penstock.spark.clients import Access, client_of
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.lakes import ServerOptions, check_least, check_positive
from penstock.spark.jobs.triage.plans import PLANS_MAX, Found, Plan, Plans, load_plans, pieces, plans_id, save_plans
from penstock.spark.jobs.triage.reasons import normalised
from penstock.spark.source.options import chosen_queues, queue_choice
from penstock.spark.times import now_ms

SCHEMA: Final = (
    "queue STRING, queue_id BIGINT, `group` STRING, lane INT, start BIGINT, end BIGINT, reason STRING, text STRING, "
    "attempts INT, consumer STRING, dead_ms BIGINT"
)
PIECE: Final = 10_000
"""Letters that one request redrives at most."""
PAYLOAD_CHARACTERS: Final = 120
EXAMPLE_PLANS: Final = 100
"""How many groups get examples; the others say where theirs are."""


class TriageOptions(ServerOptions, frozen=True, kw_only=True):
    """What `penstock pipeline triage` is told."""

    queues: str = "*"
    """Names, patterns or both, with commas in between."""
    group: str | None = None
    """Only this group's dead letters."""
    examples: int = 3
    """How many examples of each group to show."""
    redrive: list[int] = msgspec.field(default_factory=list)
    """Run these plans of the last triage of the same queues and group, and look for nothing new."""
    rate: float | None = None
    """At most this many letters a second."""


class DeadLane(msgspec.Struct, frozen=True):
    """One lane of a queue with dead letters of a group."""

    queue: str
    queue_id: int
    group: str
    lane: int


def run(spark: SparkSession, options: TriageOptions, progress: Progress) -> Summary:
    """Find groups of dead letters, or redrive some."""
    check_least(options, examples=0)
    check_positive(options, "rate")
    client = options.client
    if options.redrive:
        plans = load_plans(client, plans_id(options.queues, options.group), options.redrive)
        return _redriven(spark, options, client, plans, progress)
    return _listed(spark, options, client, progress)


# Dead letters --------------------------------------------------------------------------------------------


def _places(client: Client, queues: list[str], group: str | None) -> list[DeadLane]:
    found = []
    for queue in queues:
        groups = [one.group for one in client.stats(queue).groups if one.dead and group in (None, one.group)]
        if groups:
            lanes = client.lanes(queue)
            found += [DeadLane(queue, lanes.queue_id, name, one.lane) for name in groups for one in lanes.lanes]
    return found


def _letters(spark: SparkSession, options: TriageOptions, places: list[DeadLane]) -> DataFrame:
    """The dead letters of these places, a row for each range that died together, with a comparable `error`."""
    ranges = spark.sparkContext.parallelize(places, max(1, len(places))).flatMap(partial(_read, options.access))
    return spark.createDataFrame(ranges, SCHEMA).withColumn("error", normalised(F.col("text")))


def _read(access: Access, place: DeadLane) -> Iterator[tuple[Any, ...]]:
    """The dead letters of a lane, in a task."""
    client = client_of(access)
    names = ("lane", "start", "end", "reason", "error", "attempts", "consumer", "dead_ms")
    after: tuple[int, int] | None = (place.lane, 0)
    while after is not None and after[0] == place.lane:
        page = client.dead_ranges(place.queue, place.group, after=after)
        for one in page.ranges:
            if one.lane != place.lane:
                return
            yield place.queue, place.queue_id, place.group, *(getattr(one, name) for name in names)
        after = page.next


# Groups --------------------------------------------------------------------------------------------------


def _listed(spark: SparkSession, options: TriageOptions, client: Client, progress: Progress) -> Summary:
    queues = chosen_queues(queue_choice(options.queues), sorted(client.queues()))
    places = _places(client, queues, options.group)
    total, count, groups = _grouped(_letters(spark, options, places), options.examples) if places else (0, 0, [])
    plans = [_plan(number, row) for number, row in enumerate(groups, 1)]
    save_plans(client, plans_id(options.queues, options.group), Plans(now_ms(), plans))
    shown = [
        _shown(client, plan, row, fetch=plan.number <= EXAMPLE_PLANS) for plan, row in zip(plans, groups, strict=True)
    ]
    progress.update(rows=total)
    return progress.summary(dead=total, groups=count, plans=shown)


def _grouped(letters: DataFrame, examples: int) -> tuple[int, int, list[dict[str, Any]]]:
    """How many letters and groups there are, and the groups by size, as far as there are plans; with first letters."""
    keys = ("queue", "queue_id", "group", "reason", "error")
    numbered = letters.withColumn("row", F.row_number().over(Window.partitionBy(*keys).orderBy("lane", "start")))
    example = F.when(F.col("row") <= examples, F.struct("lane", "start", "text", "attempts", "dead_ms"))
    groups = numbered.groupBy(*keys).agg(
        F.sum(F.col("end") - F.col("start")).alias("dead"),
        F.min("dead_ms").alias("first_ms"),
        F.max("dead_ms").alias("last_ms"),
        F.max("attempts").alias("attempts"),
        F.sort_array(F.collect_list(example)).alias("examples"),
    )
    groups.persist()  # asked twice, and the server may tell of others the second time
    try:
        [sums] = groups.agg(
            F.coalesce(F.sum("dead"), F.lit(0)).alias("dead"), F.count(F.lit(1)).alias("groups")
        ).collect()
        largest = groups.orderBy(F.desc("dead"), *keys).limit(PLANS_MAX).collect()
    finally:
        groups.unpersist()
    return sums["dead"], sums["groups"], [row.asDict(recursive=True) for row in largest]


def _plan(number: int, row: dict[str, Any]) -> Plan:
    names = ("queue", "queue_id", "group", "reason", "error", "dead", "first_ms", "last_ms")
    return Plan(number=number, **{name: row[name] for name in names})


def _shown(client: Client, plan: Plan, row: dict[str, Any], *, fetch: bool) -> dict[str, Any]:
    """A plan as the summary has it."""
    examples = []
    for example in row["examples"]:
        offset = example["start"]
        found = {"lane": example["lane"], "offset": offset, "error": example["text"], "attempts": example["attempts"]}
        if fetch:
            found |= _looked_at(client, plan, example["lane"], offset)
        examples.append(found)
    times = {"first_ms": plan.first_ms, "last_ms": plan.last_ms}
    return _told(plan) | {"attempts": row["attempts"], **times, "examples": examples}


def _told(plan: Plan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in ("number", "queue", "group", "reason", "error", "dead")}


def _looked_at(client: Client, plan: Plan, lane: int, offset: int) -> dict[str, Any]:
    """Where the message belongs and how it begins; nothing if it is dead no more."""
    for one in client.dead(plan.queue, plan.group, lane=lane, offsets=(offset, offset + 1), max=1):
        start = one.received.payload[: 4 * PAYLOAD_CHARACTERS].decode(errors="replace")
        return {"partition": one.received.message.partition, "payload": start[:PAYLOAD_CHARACTERS]}
    return {}


# Redriving -----------------------------------------------------------------------------------------------


def _redriven(
    spark: SparkSession, options: TriageOptions, client: Client, plans: list[Plan], progress: Progress
) -> Summary:
    progress.update(done=0, total=sum(plan.dead for plan in plans))
    pace = Pace(options.rate, progress)
    told = []
    for plan in plans:
        if client.lanes(plan.queue).queue_id != plan.queue_id:
            raise NotFound(f"queue {plan.queue!r} was deleted and declared again since plan {plan.number} was made")
        before = progress.rows
        is_whole = _redrive(spark, options, client, plan, pace, progress)
        told.append(_told(plan) | {"redriven": progress.rows - before, "finished": is_whole})
    return progress.summary(redriven=progress.rows, plans=told)


def _redrive(
    spark: SparkSession, options: TriageOptions, client: Client, plan: Plan, pace: Pace, progress: Progress
) -> bool:
    """Redrive what is still dead of a plan; whether it was done to the end."""
    places = _places(client, [plan.queue], plan.group)
    if not places:
        return True
    letters = _letters(spark, options, places).where(
        (F.col("reason") == plan.reason) & (F.col("dead_ms") <= plan.last_ms)
    )
    wanted = (F.col("error") == plan.error).alias("is_wanted")
    rows = letters.select("lane", "start", "end", wanted).orderBy("lane", "start").toLocalIterator()
    found = (Found(row["lane"], row["start"], row["end"], row["is_wanted"]) for row in rows)
    for piece in pieces(found, pace.piece):
        if progress.stopping:
            return False
        # What is left between the ends but is not the plan's is not dead, or died later: the server looks again.
        count = client.redrive(
            plan.queue,
            plan.group,
            reason=plan.reason,
            lane=piece.lane,
            offsets=(piece.start, piece.end),
            until_ms=plan.last_ms,
        )
        progress.add(count)
        progress.update(done=progress.rows)
        pace.wait(count)
    return True


class Pace:
    """Not more than `rate` letters a second, over the whole run."""

    def __init__(self, rate: float | None, progress: Progress) -> None:
        self._rate = rate
        self._progress = progress
        self._due = time.monotonic()
        self.piece = PIECE if rate is None else max(1, min(PIECE, int(rate)))

    def wait(self, count: int) -> None:
        """Wait until the rate allows more; a stop ends the wait."""
        if self._rate is None:
            return
        self._due = max(self._due, time.monotonic()) + count / self._rate
        self._progress.wait(max(0.0, self._due - time.monotonic()))
