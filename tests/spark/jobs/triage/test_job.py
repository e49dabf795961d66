"""Triage of dead letters on a real server: what is grouped, what a plan redrives, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import Client, Message
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.triage import job
from penstock.spark.jobs.triage.job import TriageOptions
from penstock.spark.jobs.triage.reasons import SHOWN_CHARACTERS, normalised
from tests.spark.rig import Server


def run(spark: SparkSession, server: Server, progress: Progress | None = None, **options: Any) -> Summary:
    with progress or Progress("triage", "test") as entered:
        summary = job.run(spark, TriageOptions(url=server.url, **options), entered)
        entered.finish(summary)
    return summary


def die(client: Client, queue: str, error_of: Callable[[int, int], str], group: str = "default") -> None:
    """Everything that waits for a group dies, each message with an error made of its lane and offset."""
    while claim := client.claim(queue, group=group, max=100):
        for one in claim.messages:
            client.nack(claim, [one.offset], error=error_of(one.lane, one.offset))


def dead(client: Client, queue: str, group: str = "default") -> set[tuple[int, int]]:
    return {(one.received.lane, one.received.offset) for one in client.dead(queue, group, max=10_000)}


def test_texts_that_differ_in_details_are_the_same(spark: SparkSession) -> None:
    texts = {
        "no route to 10.0.0.7:443 for order 4711": "no route to <number> for order <number>",
        "user 'ann' is unknown": "user <text> is unknown",
        "user \"ann 'x'\" can't pay": "user <text> can't pay",
        "it doesn't know `a b`": "it doesn't know <text>",
        "GET https://api.example.com/v1/x?id=7 answered 503": "GET <url> answered <number>",
        "mail to ann.bee+7@mail.example.org bounced": "mail to <email> bounced",
        "order 123e4567-e89b-12d3-a456-426614174000 is gone": "order <uuid> is gone",
        "at 0x7ffe12 and deadbeef01 in /var/lib/a.db": "at <hex> and <hex> in <path>",
        "C:\\data\\x.csv is locked": "<path> is locked",
        "either/or, -3.5 degrees": "either/or, <number> degrees",
        "decade and facade stay": "decade and facade stay",
        "a\n  b\tc ": "a b c",
        "Traceback (most recent call last)\n  File \"/a/b.py\", line 7, in f\nKeyError: 'x7'\n": "KeyError: <text>",
        "": "",
        "Füße 12 €": "Füße <number> €",
        "x" * 5_000: "x" * SHOWN_CHARACTERS,
    }
    rows = spark.createDataFrame(list(enumerate(texts)), "id INT, text STRING")
    found = rows.select("text", normalised(F.col("text")).alias("error")).collect()
    assert {row["text"]: row["error"] for row in found} == texts
    assert spark.sql("SELECT CAST(NULL AS STRING) AS text").select(normalised(F.col("text"))).first() == (None,)


def test_groups_plans_and_redriving_one(spark: SparkSession, server: Server) -> None:
    client = server.client
    client.declare_queue("sick", lanes=2, max_attempts=1)
    for group in ("billing", "mail"):
        client.declare_group("sick", group, start="beginning")
    client.publish_many("sick", [Message(b"order %d" % n, f"p{n % 9}") for n in range(60)])
    # The same offsets of both lanes die of different things.
    die(
        client,
        "sick",
        lambda lane, offset: f"timeout after {offset} ms" if offset % 3 == lane else "no 'x' here",
        "billing",
    )
    die(client, "sick", lambda lane, offset: f"timeout after {offset} ms", "mail")
    listed = client.dead("sick", "billing", max=1_000)
    timeouts = [one for one in listed if one.error.startswith("timeout")]
    others = [one for one in listed if not one.error.startswith("timeout")]
    assert timeouts
    assert others

    summary = run(spark, server, queues="sick", group="billing", examples=2)
    assert (summary.details["dead"], summary.details["groups"]) == (len(listed), 2)
    by_error = {plan["error"]: plan for plan in summary.details["plans"]}
    assert {error: plan["dead"] for error, plan in by_error.items()} == {
        "timeout after <number> ms": len(timeouts),
        "no <text> here": len(others),
    }
    assert [plan["number"] for plan in summary.details["plans"]] == [1, 2]
    assert summary.details["plans"][0]["dead"] >= summary.details["plans"][1]["dead"]
    plan = by_error["timeout after <number> ms"]
    assert (plan["queue"], plan["group"], plan["reason"], plan["attempts"]) == ("sick", "billing", "attempts", 1)
    assert plan["first_ms"] == min(one.dead_ms for one in timeouts)
    assert plan["last_ms"] == max(one.dead_ms for one in timeouts)
    first = min(timeouts, key=lambda one: (one.received.lane, one.received.offset))
    assert len(plan["examples"]) == 2
    assert plan["examples"][0] == {
        "lane": first.received.lane,
        "offset": first.received.offset,
        "error": first.error,
        "attempts": 1,
        "partition": first.received.message.partition,
        "payload": first.received.payload.decode(),
    }

    # Nothing but the plan's letters is redriven, for this group alone.
    mail_before = dead(client, "sick", "mail")
    done = run(spark, server, queues="sick", group="billing", redrive=[plan["number"]])
    assert done.details["redriven"] == done.rows == len(timeouts)
    assert done.details["plans"][0]["finished"]
    assert dead(client, "sick", "billing") == {(one.received.lane, one.received.offset) for one in others}
    assert dead(client, "sick", "mail") == mail_before

    # Again: nothing is dead any more. What died again since, of the same, is left alone.
    assert run(spark, server, queues="sick", group="billing", redrive=[plan["number"]]).rows == 0
    die(client, "sick", lambda _lane, offset: f"timeout after {offset} ms", "billing")
    assert dead(client, "sick", "billing") == {(one.received.lane, one.received.offset) for one in listed}
    assert run(spark, server, queues="sick", group="billing", redrive=[plan["number"]]).rows == 0

    # All groups of the queue at once; a plan of each.
    every = run(spark, server, queues="sick", examples=0)
    assert every.details["dead"] == len(listed) + len(mail_before)
    assert all(plan["examples"] == [] for plan in every.details["plans"])
    numbers = [plan["number"] for plan in every.details["plans"] if plan["group"] == "mail"]
    assert run(spark, server, queues="sick", redrive=numbers).rows == len(mail_before)
    assert dead(client, "sick", "mail") == set()


class StoppingAfter(Progress):
    """Asks the job to stop when so many letters were redriven."""

    def __init__(self, rows: int) -> None:
        super().__init__("triage", "test")
        self._most = rows

    def add(self, rows: int) -> None:
        super().add(rows)
        if self.rows >= self._most:
            self.stop()


def test_a_redrive_that_is_stopped_goes_on_and_keeps_to_its_rate(
    spark: SparkSession, server: Server, queue: str
) -> None:
    client = server.client
    client.declare_group(queue, "work", start="beginning", max_attempts=1)
    client.publish_many(queue, [Message(b"%d" % n) for n in range(30)])
    die(client, queue, lambda _lane, offset: f"odd {offset}" if offset % 2 else f"even {offset}", "work")
    assert run(spark, server, queues=queue, group="work").details["groups"] == 2
    part = run(spark, server, StoppingAfter(5), queues=queue, group="work", redrive=[1], rate=5)
    assert (part.rows, part.details["plans"][0]["finished"]) == (5, False)
    rest = run(spark, server, queues=queue, group="work", redrive=[1], rate=20.0)
    assert (rest.rows, rest.details["plans"][0]["finished"]) == (10, True)
    assert rest.seconds >= 10 / 20
    assert {one.error.split()[0] for one in client.dead(queue, "work", max=100)} == {"odd"}


def test_what_cannot_be_is_told(spark: SparkSession, server: Server, queue: str) -> None:
    assert run(spark, server, queues=queue, group="nobody").details["plans"] == []
    with pytest.raises(InvalidArgument, match="there is no redrive plan 1; the last triage made 0"):
        run(spark, server, queues=queue, group="nobody", redrive=[1])
    with pytest.raises(NotFound, match="run the triage without --redrive first"):
        run(spark, server, queues=queue, group="never asked", redrive=[1])
    with pytest.raises(InvalidArgument, match="rate is 0"):
        run(spark, server, queues=queue, redrive=[1], rate=0)
    with pytest.raises(InvalidArgument, match="examples is -1"):
        run(spark, server, queues=queue, examples=-1)
    client = server.client
    client.declare_queue("short-lived", max_attempts=1)
    client.publish("short-lived", Message(b"x"))
    die(client, "short-lived", lambda *_: "boom")
    assert run(spark, server, queues="short-lived").details["groups"] == 1
    client.delete_queue("short-lived")
    client.declare_queue("short-lived", max_attempts=1)
    client.publish("short-lived", Message(b"x"))
    die(client, "short-lived", lambda *_: "boom")
    with pytest.raises(NotFound, match="was deleted and declared again"):
        run(spark, server, queues="short-lived", redrive=[1])
    assert len(dead(client, "short-lived")) == 1
