"""Spark beside several servers on one PostgreSQL: what each of them writes and owns, and what happens when they die."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Client, Message
from penstock.spark.events import delivery_events
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.archive.job import ArchiveOptions
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.stats import job as stats
from penstock.spark.jobs.stats.job import StatsOptions
from penstock.spark.jobs.triage import job as triage
from penstock.spark.jobs.triage.job import TriageOptions
from penstock.spark.jobs.verify import job as verify
from penstock.spark.jobs.verify.job import VerifyOptions
from penstock.spark.lake.layout import EVENTS, MESSAGES
from penstock.spark.lake.source import read_lake
from tests.cli.servers import Server
from tests.cluster.rig import Nodes, nodes
from tests.spark.lakes import broker_ids, lake_table, run_archive
from tests.spark.rig import PATIENCE_S, until
from tests.spark.sink_rig import all_messages

PARTITIONS: Final = 7
AT_ONCE: Final = 20
"""Messages of one publish."""
BATCH: Final = 1_000
"""Rows of a micro-batch at most."""


def run(job: Any, spark: SparkSession, options: Any) -> Summary:
    with Progress(job.__name__.rpartition(".")[2], "test") as progress:
        summary: Summary = job.run(spark, options, progress)
        progress.finish(summary)
    return summary


def counts(events: list[Row], queues: list[str]) -> dict[tuple[str, str], int]:
    found: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event["queue"] in queues:
            found[event["queue"], event["kind"]] += event["messages"]
    return found


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
            told = delivery_events(spark, url).collect()
            assert counts(told, queues) == expected
            place = ("event_queue", "event_lane", "event_offset", "event_index", "range_index")
            assert len({tuple(event[name] for name in place) for event in told}) == len(told)
            assert {event["event_queue"] for event in told} == set(events_queues)

            chosen = ",".join(queues)
            archived = ArchiveOptions(url=url, lake=lake, queues=chosen)
            ends = {queue: client.lanes(queue) for queue in events_queues}
            run_archive(spark, archived)
            assert counts(read_lake(spark, lake, table=EVENTS).collect(), queues) == expected
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
            assert run_archive(spark, archived).details["repeated"] == 0
            found = run(stats, spark, StatsOptions(lake=lake)).details["totals"]
            rows = {row["queue"]: row for row in found if row["group"] == "work"}
            for queue in queues:
                numbers = [rows[queue][name] for name in ("delivered", "acked", "dead")]
                assert numbers == [12, 5, 2], queue
                assert (rows[queue]["waited_ms"]["count"], rows[queue]["worked_ms"]["count"]) == (12, 5)
            assert run(verify, spark, VerifyOptions(url=url, lake=lake, queues=chosen)).details["ok"] is True


# Servers that die ------------------------------------------------------------------------------------------------


class Scene:
    """Three servers, a queue that is written to and copied to another by Spark, and an archive of it, all at once."""

    def __init__(self, spark: SparkSession, cluster: Nodes, folder: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._folder = folder
        self.lake = folder / "lake"
        servers = [cluster.start() for _ in range(3)]
        cluster.until_balanced(*servers)
        self.url = ",".join(server.url for server in servers)
        self.client = Client(self.url)
        self.source, self.target = (cluster.queue_of(server, "copied-") for server in servers[:2])
        for queue in (self.source, self.target):
            self.client.declare_queue(queue, lanes=2)
        self.published = 0
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(2)
        self._progress = Progress("archive", "test")

    # What goes on -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._copy = self._start_copy()
        self._archive = self._threads.submit(self._run_archive)
        self._producer = self._threads.submit(self._produce)

    def _start_copy(self) -> StreamingQuery:
        rows = self._spark.readStream.format("penstock").options(url=self.url, queue=self.source)
        rows = rows.options(startingOffsets="earliest", maxRowsPerTrigger=BATCH)
        copy = rows.load().writeStream.format("penstock").options(url=self.url, queue=self.target)
        return copy.option("checkpointLocation", str(self._folder / "copy")).start()

    def _run_archive(self) -> Summary:
        options = ArchiveOptions(
            url=self.url,
            lake=str(self.lake),
            queues=self.source,
            watch=True,
            interval_seconds=0.2,
            rows_per_batch=BATCH,
        )
        with self._progress:
            summary = archive.run(self._spark, options, self._progress)
            self._progress.finish(summary)
        return summary

    def _produce(self) -> None:
        with Client(self.url, timeout=2.0) as client:
            while not self._is_over.wait(0.1):
                numbers = range(self.published, self.published + AT_ONCE)
                messages = [Message(b"%d" % number, partition=f"p{number % PARTITIONS}") for number in numbers]
                client.publish_many(self.source, messages)
                self.published += AT_ONCE

    def finish(self) -> None:
        """Publish no more, wait until everything is where it belongs, and end what runs."""
        self._is_over.set()
        self._producer.result()
        self.until(lambda: self.copied() >= self.published and self.archived() >= self.published, "all is copied")
        self.end()
        assert "gaps" not in self._archive.result().details

    def end(self) -> None:
        self._is_over.set()
        self._progress.stop()
        self._copy.stop()
        self._threads.shutdown()
        self.client.close()

    def until(self, holds: Any, what: str) -> None:
        """Wait; or tell at once what went wrong."""

        def is_so() -> bool:
            for running in (self._archive, self._producer):
                if running.done() and not self._is_over.is_set():
                    running.result()
                    raise AssertionError("it ended by itself")
            if not self._copy.isActive:
                raise self._copy.exception() or AssertionError("the copy ended by itself")
            return bool(holds())

        until(is_so, what, 2 * PATIENCE_S)

    def goes_on(self) -> None:
        """Wait until both have done what was published after this moment."""
        published = self.published + AT_ONCE
        self.until(lambda: self.copied() >= published and self.archived() >= published, "what comes now is copied")

    def copied(self) -> int:
        return sum(lane.end for lane in self.client.lanes(self.target).lanes)

    def archived(self) -> int:
        """As the group says that follows the lake's marks."""
        groups = self.client.stats(self.source).groups
        lags = [one.lag for one in groups if one.group == "archive"]
        return sum(lane.end for lane in self.client.lanes(self.source).lanes) - (lags[0] or 0) if lags else 0

    # What happens to servers --------------------------------------------------------------------------------

    def living(self) -> list[Server]:
        return [server for server in self._cluster.all if server.process.poll() is None]

    def owner_of(self, queue: str) -> Server:
        return self._cluster.owner_of(queue, self.living()[-1])

    def other(self) -> Server:
        """One that owns neither queue: it only passes on."""
        owners = {self.owner_of(queue).url for queue in (self.source, self.target)}
        return next(server for server in self.living() if server.url not in owners)

    def kill(self, server: Server) -> None:
        server.signal(signal.SIGKILL)
        server.end()

    def replace(self, server: Server) -> None:
        """Another where one was, which takes its share from the others."""
        self._cluster.start("--port", str(server.port))
        self._cluster.until_balanced(*self.living())

    # What must be so ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Lake and target have all that was published, once, unchanged and in the order of its partition."""
        with Client(self.url) as client:
            given = [int(message.payload) for message in all_messages(client, self.source)]
            assert sorted(given) == list(range(self.published))
            last: dict[str | None, int] = {}
            copies = all_messages(client, self.target)
            for copy in copies:
                number = int(copy.payload)
                assert copy.partition == f"p{number % PARTITIONS}"
                assert last.get(copy.partition, -1) < number, "out of order"
                last[copy.partition] = number
            assert sorted(int(copy.payload) for copy in copies) == sorted(given)
            lake = rows_of(self.lake, MESSAGES, "queue_id", "lane", "offset", "payload")
            payloads = [message.payload for message in all_messages(client, self.source)]
            assert lake == [
                (*place, text) for place, text in zip(broker_ids(client, self.source), payloads, strict=True)
            ]
        # Of every server's events, those that did not live long enough to be archived are the last.
        told = rows_of(self.lake, EVENTS, "event_queue_id", "event_offset", "event_index", "range_index")
        assert len(told) == len(set(told))
        offsets: dict[int, list[int]] = {}
        for queue_id, offset, index, number in told:
            if (index, number) == (0, 0):
                offsets.setdefault(queue_id, []).append(offset)
        assert len(offsets) > 1
        assert all(found == list(range(len(found))) for found in offsets.values())


def rows_of(lake: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Every row of a table, in order: one that is there twice is here twice. Without Spark."""
    found = DeltaTable(str(lake / table)).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))


def test_servers_are_killed_and_stopped_under_a_stream_and_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    """Neither fails; nothing is lost, and nothing is there twice."""
    with nodes(tmp_path) as cluster:
        scene = Scene(spark, cluster, tmp_path)
        try:
            scene.start()
            scene.goes_on()
            other = scene.other()
            scene.kill(other)
            scene.goes_on()
            scene.replace(other)
            scene.kill(scene.owner_of(scene.source))
            scene.goes_on()
            scene.owner_of(scene.target).stop()
            scene.goes_on()
            scene.finish()
        finally:
            scene.end()
        scene.check()
