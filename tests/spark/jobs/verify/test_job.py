"""`verify` finds what is wrong and nothing else; a million messages in queue and lake are the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from penstock import Message
from penstock.batch import encode
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.verify import job
from penstock.spark.jobs.verify.job import VerifyOptions
from penstock.spark.lake.errors import LakeMissing
from penstock.spark.lake.layout import MESSAGES_SCHEMA
from penstock.spark.lake.reading import Choice, read_file
from penstock.spark.lake.source import read_lake
from penstock.spark.lake.writing import PartitionFiles
from tests.spark.lakes import lake_table, options, publish, run_archive
from tests.spark.rig import Server


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def run_verify(spark: SparkSession, server: Server, lake: Path, queue: str, **more: Any) -> Summary:
    given: dict[str, Any] = {"events": False, **more}
    chosen = VerifyOptions(url=server.url, lake=str(lake), queues=queue, **given)
    with Progress("verify", "test") as progress:
        summary = job.run(spark, chosen, progress)
        progress.finish(summary)
    return summary


def differences(summary: Summary) -> list[tuple[int, int, str]]:
    return [(one["start"], one["end"], one["what"]) for one in summary.details["differences"]]


def test_all_is_well_or_named(spark: SparkSession, server: Server, queue: str, lake: Path) -> None:
    client = server.client
    with pytest.raises(LakeMissing, match="there is no lake at"):
        run_verify(spark, server, lake, queue)
    for start in (0, 1_000, 2_000):
        publish(client, queue, start, start + 1_000)
        run_archive(spark, options(server, lake, queue, events=True))
    publish(client, queue, 3_000, 3_100)  # not archived yet: no difference

    summary = run_verify(spark, server, lake, queue, events=True, payload=True)
    assert (summary.details["ok"], differences(summary), summary.details["damaged"]) == (True, [], [])
    [day] = [one for one in summary.details["days"] if one["queue"] == queue]
    assert (day["messages"], day["first"], day["last"], day["contiguous"]) == (3_000, 0, 2_999, True)
    assert summary.details["compared"] >= 3_000

    # A file with other payloads in the place of the real one: found only by those who look at payloads.
    table = lake_table(lake)
    [victim] = [file for file in table.files() if file.offsets == (1_000, 1_499)]  # two tasks, two files a batch
    files = PartitionFiles(table.storage, MESSAGES_SCHEMA)
    for rows in read_file(table.storage, victim, MESSAGES_SCHEMA, Choice()):
        changed = rows.to_pylist()
        changed[7]["payload"] = b"another"
        files.add(victim.queue, victim.date, type(rows).from_pylist(changed, schema=MESSAGES_SCHEMA))
    [forged] = files.finish()
    assert forged.rows == 500
    table = table.replace([victim], [forged])
    assert run_verify(spark, server, lake, queue).details["ok"] is True
    summary = run_verify(spark, server, lake, queue, payload=True)
    assert differences(summary) == [(1_007, 1_008, "different in lake and broker")]

    # The same file twice.
    double = replace(forged, path=forged.path.replace("part-", "part-again-"))
    root = Path(table.storage.url)
    (root / double.path).write_bytes((root / forged.path).read_bytes())
    table = table.append([double], {})
    assert (1_000, 1_500, "more than once in the lake") in differences(run_verify(spark, server, lake, queue))

    # And gone.
    (root / double.path).unlink()
    (root / forged.path).write_bytes(b"PAR1 nothing PAR1")
    summary = run_verify(spark, server, lake, queue)
    assert {one["file"]: one["problem"] for one in summary.details["damaged"]} == {
        double.path: "it is missing",
        forged.path: f"it has 17 bytes; the log says {forged.size}",
    }
    assert summary.details["ok"] is False
    assert set(differences(summary)) == {
        (1_000, 1_500, "missing in the lake"),
        (1_000, 1_500, "in the broker and not in the lake"),
    }


@pytest.mark.timeout(600)
def test_a_million_messages_are_the_same_in_queue_and_lake(spark: SparkSession, server: Server, lake: Path) -> None:
    client = server.client
    client.declare_queue("million", lanes=4)
    batches = [
        encode(
            [Message(f"{number:08} {'x' * 40}".encode(), f"p{number % 50}") for number in range(start, start + 5_000)]
        )
        for start in range(0, 100_000, 5_000)
    ]
    for number in range(200):
        client.publish_batch("million", batches[number % len(batches)])
    began = time.monotonic()
    summary = run_archive(spark, options(server, lake, "million"))
    archived = time.monotonic() - began
    assert summary.rows == 1_000_000
    found = run_verify(spark, server, lake, "million")
    print(f"archived in {archived:.1f} s, verified in {time.monotonic() - began - archived:.1f} s")
    assert (found.details["ok"], found.details["compared"], found.rows) == (True, 1_000_000, 1_000_000)
    assert all(day["contiguous"] for day in found.details["days"])
    # And once more without any sum: both sides as sets of rows.
    names = ["queue_id", "lane", "offset", "partition"]
    in_lake = read_lake(spark, str(lake), columns=names).select(names)
    asked = {"url": server.url, "queue": "million", "columns": ",".join(names)}
    in_queue = spark.read.format("penstock").options(**asked).load().select(names)
    assert in_lake.exceptAll(in_queue).count() == 0
    assert in_queue.exceptAll(in_lake).count() == 0
