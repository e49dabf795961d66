"""kill -9 of drivers, Python workers and the server, in the middle of an archive and of a stream from queue to queue.

Every test compares ids: what was published is in the target and in the lake, each message once and in its order.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import Client, Message
from penstock.cli.dev.checkout import script_environment
from penstock.spark.lake.layout import MESSAGES
from tests.spark.cluster import processes
from tests.spark.lakes import broker_ids, options, run_archive
from tests.spark.rig import PATIENCE_S, Server, until
from tests.spark.sink_rig import all_messages

COUNT: Final = 16_000
STARTS: Final = 3
SMALL: Final = 400
"""Rows of a micro-batch where something is to be killed in the middle of one."""
HAPPENS_S: Final = 4 * PATIENCE_S
NOT_STARTED: Final = "Python worker failed to connect back"
"""What Spark says where a Python process of its own took more than ten seconds to start: the machine is too busy."""
NUMBERED: Final = re.compile(r"\d+")
FILE: Final = re.compile(r'"path":"([^"]+)"')

DRIVER: Final = """
import sys, time
from penstock.spark import spark_session
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.frame import Progress

url, source, target, folder, rows = sys.argv[1:]
local = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": f"{folder}/warehouse"}
spark = spark_session("to be killed", master="local[2,3]", config=local, quick_start=True)
stream = spark.readStream.format("penstock").options(url=url, queue=source, startingOffsets="earliest")
copy = stream.option("maxRowsPerTrigger", rows).load().writeStream.format("penstock")
copy = copy.options(url=url, queue=target, checkpointLocation=f"{folder}/copy").trigger(availableNow=True).start()
while copy.isActive and not copy.lastProgress:
    time.sleep(0.05)
options = archive.ArchiveOptions(
    url=url, lake=f"{folder}/lake", checkpoint=f"{folder}/archive", queues=source, events=False,
    rows_per_batch=int(rows),
)
with Progress("archive", "killed") as progress:
    progress.finish(archive.run(spark, options, progress))
copy.awaitTermination()
spark.stop()
"""


class Scene:
    """A source of two lanes that is full, an empty target of two lanes, and a folder for lake and checkpoints."""

    def __init__(self, server: Server, queue: str, folder: Path) -> None:
        self.server = server
        self.source, self.target = f"{queue}-source", f"{queue}-target"
        self.folder = folder
        self.lake = folder / "lake"
        for name in (self.source, self.target):
            self.client.declare_queue(name, lanes=2)
        for start in range(0, COUNT, 4_000):
            numbers = range(start, start + 4_000)
            messages = [Message(f"{n}".encode(), partition=f"p{n % 7}", headers={"n": f"{n}"}) for n in numbers]
            self.client.publish_many(self.source, messages)

    @property
    def client(self) -> Client:
        return self.server.client

    # How far it is ------------------------------------------------------------------------------------------

    def copied(self) -> int:
        return sum(lane.end for lane in self.client.lanes(self.target).lanes)

    def commits(self) -> int:
        """Of the lake."""
        return len(list((self.lake / MESSAGES / "_delta_log").glob("*.json")))

    def is_between_plan_and_commit(self) -> bool:
        """Whether Spark has written down what a batch of the copy is, and not yet that it is done."""
        planned, done = (newest(self.folder / "copy" / name) for name in ("offsets", "commits"))
        return planned > done

    def has_files_without_a_commit(self) -> bool:
        """Whether a task of the archive has written a file that nobody can see yet."""
        log = self.lake / MESSAGES / "_delta_log"
        written = {path.name for path in (self.lake / MESSAGES).rglob("*.parquet")}
        return not written <= {
            Path(name).name for path in log.glob("*.json") for name in FILE.findall(path.read_text())
        }

    # What is there ------------------------------------------------------------------------------------------

    def archived(self) -> list[tuple[int, int, int, bytes]]:
        """Every row of the lake, in order of its id: one that is there twice is here twice."""
        if not self.commits():
            return []
        table = DeltaTable(str(self.lake / MESSAGES)).to_pyarrow_table(
            columns=["queue_id", "lane", "offset", "payload"]
        )
        return sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))

    def check_no_gap_no_double(self) -> None:
        """At any time: of each lane the lake has what was published up to some offset, and the target nothing twice."""
        known = self.published()
        by_lane = {lane: [row for row in self.archived() if row[1] == lane] for lane in (0, 1)}
        for lane, rows in by_lane.items():
            assert rows == [row for row in known if row[1] == lane][: len(rows)]
        numbers = [int(message.payload) for message in all_messages(self.client, self.target)]
        assert len(numbers) == len(set(numbers))

    def check_all(self) -> None:
        """In the end: lake and target have all of it, once, unchanged and in order."""
        assert self.archived() == self.published()
        given = {message.payload: message for message in all_messages(self.client, self.source)}
        last: dict[str | None, int] = {}
        copies = all_messages(self.client, self.target)
        for copy in copies:
            original = given[copy.payload]
            assert (copy.partition, copy.headers) == (original.partition, original.headers)
            assert last.get(copy.partition, -1) < int(copy.payload), "out of order"
            last[copy.partition] = int(copy.payload)
        assert len(copies) == len(given) == COUNT

    def published(self) -> list[tuple[int, int, int, bytes]]:
        ids = broker_ids(self.client, self.source)
        payloads = [message.payload for message in all_messages(self.client, self.source)]
        return [(*id, payload) for id, payload in zip(ids, payloads, strict=True)]

    # What is done -------------------------------------------------------------------------------------------

    def drive(self, rows: int, until_it: Callable[[], bool]) -> subprocess.Popen[str]:
        """A driver of its own that copies and archives all there is, until something is so, or it has ended."""
        log = ""
        for _ in range(STARTS):
            driver = self._start_driver(rows)
            try:
                until(lambda: until_it() or driver.poll() is not None, "what is waited for", HAPPENS_S)  # noqa: B023
            except BaseException:
                end_group(driver)
                raise
            log = (self.folder / "driver.log").read_text()
            if driver.poll() in (None, 0):
                return driver
            assert NOT_STARTED in log, log
        raise AssertionError(f"Spark did not start in {STARTS} tries: {log}")

    def _start_driver(self, rows: int) -> subprocess.Popen[str]:
        arguments = [self.server.url, self.source, self.target, str(self.folder), str(rows)]
        with (self.folder / "driver.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, *arguments],
                env=script_environment(),
                cwd=self.folder,
                start_new_session=True,
                stdout=log,
                stderr=log,
                text=True,
            )

    def start_copy(self, spark: SparkSession) -> StreamingQuery:
        rows = spark.readStream.format("penstock").options(url=self.server.url, queue=self.source)
        rows = rows.options(startingOffsets="earliest", maxRowsPerTrigger=SMALL)
        copy = rows.load().writeStream.format("penstock").options(url=self.server.url, queue=self.target)
        return copy.option("checkpointLocation", str(self.folder / "copy")).trigger(availableNow=True).start()

    def forget(self) -> None:
        """All that Spark knows of where it was."""
        for name in ("copy", "archive"):
            shutil.rmtree(self.folder / name)


def end_group(driver: subprocess.Popen[str]) -> None:
    """The process that we started, and what it has started."""
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if NUMBERED.fullmatch(path.name)), default=-1)


@pytest.fixture
def scene(server: Server, queue: str, tmp_path: Path) -> Scene:
    return Scene(server, queue, tmp_path)


def grown(measure: Callable[[], int]) -> Callable[[], bool]:
    """Becomes true in the moment in which a number grows for the third time: not at the first batch."""
    seen, times = measure(), 0

    def is_larger() -> bool:
        nonlocal seen, times
        now = measure()
        times += now > seen
        seen = now
        return times >= 3

    return is_larger


def both(first: Callable[[], bool], then: Callable[[], bool]) -> Callable[[], bool]:
    """Becomes true when the second is, after the first was."""
    passed = False

    def is_so() -> bool:
        nonlocal passed
        passed = passed or first()
        return passed and then()

    return is_so


def children(parent: int, command: str) -> list[int]:
    return [pid for pid, above, line in processes() if above == parent and command in line]


# Drivers -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_drivers_are_killed_wherever_they_are(scene: Scene) -> None:
    moments: dict[str, Callable[[], Callable[[], bool]]] = {
        "a batch is planned": lambda: both(grown(scene.copied), scene.is_between_plan_and_commit),
        "a batch is published": lambda: grown(scene.copied),
        "a file is written": lambda: both(grown(scene.commits), scene.has_files_without_a_commit),
        "the lake has a batch": lambda: grown(scene.commits),
    }
    for moment, condition in moments.items():
        driver = scene.drive(SMALL, condition())
        try:
            assert driver.poll() is None, f"it was not killed: {moment}"
            if moment == "a batch is published":
                machines = set(children(driver.pid, "org.apache.spark"))
                os.kill(driver.pid, signal.SIGKILL)  # the program alone: its JVM finds out by itself
                until(lambda: not {pid for pid, _, _ in processes()} & machines, "the JVM ends")  # noqa: B023
        finally:
            end_group(driver)
        if moment == "the lake has a batch":
            scene.server.restart()  # killed as well
        if moment == "a file is written":
            scene.forget()
        scene.check_no_gap_no_double()
        assert scene.copied() < COUNT or len(scene.archived()) < COUNT, f"not in the middle: {moment}"
    driver = scene.drive(COUNT, lambda: False)
    end_group(driver)
    assert driver.returncode == 0
    scene.check_all()


# The server ----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_the_server_is_killed_again_and_again(spark: SparkSession, scene: Scene) -> None:
    """Neither the archive nor the stream fails: they wait for it."""
    moments = [
        both(grown(scene.commits), scene.has_files_without_a_commit),
        grown(scene.copied),
        both(grown(scene.copied), scene.is_between_plan_and_commit),
        grown(scene.commits),
    ]
    kills = 0

    def kill() -> None:
        nonlocal kills
        for happens in moments:
            until(happens, f"moment {kills}", HAPPENS_S)
            if scene.copied() == COUNT and len(scene.archived()) == COUNT:
                return
            scene.server.restart()
            kills += 1

    killer = threading.Thread(target=kill)
    copy = scene.start_copy(spark)
    killer.start()
    try:
        chosen = options(scene.server, scene.lake, scene.source, rows_per_batch=SMALL)
        assert run_archive(spark, chosen).rows == COUNT
        copy.awaitTermination()
    finally:
        copy.stop()
        killer.join()
    assert kills == len(moments)
    scene.check_all()


# Workers -------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_python_workers_are_killed(spark: SparkSession, scene: Scene) -> None:
    """Tasks are tried again. The process that plans a stream is not: its query fails, and is started again."""
    gateway = SparkContext._gateway
    assert gateway is not None
    machine = gateway.proc.pid

    def workers() -> list[int]:
        """Those that run tasks: forked by a daemon, which is the JVM's child."""
        return [pid for daemon in children(machine, "pyspark.daemon pyspark.worker") for pid in children(daemon, "")]

    def planners() -> list[int]:
        return children(machine, "python_streaming_source_runner")

    failures = 0
    for victims in (workers, workers, planners):
        query = scene.start_copy(spark)
        try:
            until(grown(scene.copied), "batches are copied", HAPPENS_S)
            found = victims()
            assert found
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            if victims is planners:
                with pytest.raises(StreamingQueryException):
                    query.awaitTermination()
                failures += 1
            else:
                until(grown(scene.copied), "batches are copied again", HAPPENS_S)
        finally:
            query.stop()
        scene.check_no_gap_no_double()
        assert scene.copied() < COUNT
    assert failures == 1
    scene.start_copy(spark).awaitTermination()
    run_archive(spark, options(scene.server, scene.lake, scene.source))
    scene.check_all()
