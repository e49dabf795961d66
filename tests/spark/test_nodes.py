"""Spark beside several servers on one PostgreSQL: whatever one of them wrote, owned or left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock import Client, Message
from penstock.spark.events import delivery_events
from penstock.spark.jobs import stats, triage, verify
from penstock.spark.jobs.archive import ArchiveOptions
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.stats import StatsOptions
from penstock.spark.jobs.triage import TriageOptions
from penstock.spark.jobs.verify import VerifyOptions
from penstock.spark.lake.layout import EVENTS
from penstock.spark.lake.source import read_lake
from tests.cli.servers import until
from tests.cluster.rig import nodes
from tests.spark.lakes import lake_table, run_archive


def run(job: Any, spark: SparkSession, options: Any) -> Summary:
    with Progress(job.__name__.rpartition(".")[2], "test") as progress:
        summary: Summary = job.run(spark, options, progress)
        progress.finish(summary)
    return summary


def counts(events: DataFrame, queues: list[str]) -> dict[tuple[str, str], int]:
    rows = events.where(events["queue"].isin(queues)).groupBy("queue", "kind").sum("messages").collect()
    return {(row["queue"], row["kind"]): row["sum(messages)"] for row in rows}


def test_delivery_events_of_every_server(spark: SparkSession, tmp_path: Path) -> None:
    """Each server tells what happened in a queue of its own: the source and every job know them all."""
    lake = str(tmp_path / "lake")
    with nodes(tmp_path) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)
        url = f"{second.url},{first.url}"
        with Client(url) as client:
            queues = [cluster.queue_of(server, "told-") for server in (first, second)]
            leases = []
            for queue in queues:
                client.declare_queue(queue)
                client.declare_group(queue, "work", max_attempts=1, lease_ms=600_000)
                client.publish_many(queue, [Message(b"%d" % number) for number in range(20)])
                claim = client.claim(queue, group="work", max=12)
                client.ack(claim, [0, 1, 2])
                client.nack(claim, [3, 4], error="no route to host 7")
                leases.append(claim)
            # One that a server began while the slots were still shared out has nothing in it.
            events_queues = [queue for queue in client.queues("$events") if client.lanes(queue).lanes[0].end]
            assert len(events_queues) == 2

            expected = {
                (queue, kind): number
                for queue in queues
                for kind, number in {"claimed": 12, "acked": 3, "nacked": 2, "dead": 2}.items()
            }
            told = delivery_events(spark, url)
            assert counts(told, queues) == expected
            places = told.select("event_queue", "event_lane", "event_offset", "event_index", "range_index")
            assert places.distinct().count() == told.count()
            assert {row["event_queue"] for row in told.select("event_queue").distinct().collect()} == set(events_queues)

            chosen = ",".join(queues)
            archive = ArchiveOptions(url=url, lake=lake, queues=chosen)
            ends = {queue: client.lanes(queue) for queue in events_queues}
            run_archive(spark, archive)
            assert counts(read_lake(spark, lake, table=EVENTS), queues) == expected
            marks = {queue: lake_table(tmp_path / "lake", EVENTS).mark(ends[queue].queue_id, 0) for queue in ends}
            assert all((marks[queue] or 0) >= ends[queue].lanes[0].end for queue in ends)
            checked = run(verify, spark, VerifyOptions(url=url, lake=lake, queues=chosen))
            assert (checked.details["ok"], checked.details["differences"]) == (True, [])
            days = {day["queue"]: day["messages"] for day in checked.details["days"]}
            assert days == {**dict.fromkeys(queues, 20), **marks}

            plans = run(triage, spark, TriageOptions(url=url, queues=chosen)).details["plans"]
            assert sorted((plan["queue"], plan["dead"]) for plan in plans) == sorted((queue, 2) for queue in queues)

            # The second goes in good order: what it handed out is acked by the first, which tells of it elsewhere.
            second.stop()
            until(lambda: cluster.slots(first).get(first.url) == 64, "the first has everything")
            for claim in leases:
                client.ack(claim, [5, 6])
            assert run_archive(spark, archive).details["repeated"] == 0
            found = run(stats, spark, StatsOptions(lake=lake)).details["totals"]
            rows = {row["queue"]: row for row in found if row["group"] == "work"}
            for queue in queues:
                numbers = [rows[queue][name] for name in ("delivered", "acked", "dead")]
                assert numbers == [12, 5, 2], queue
                assert (rows[queue]["waited_ms"]["count"], rows[queue]["worked_ms"]["count"]) == (12, 5)
            assert run(verify, spark, VerifyOptions(url=url, lake=lake, queues=chosen)).details["ok"] is True
