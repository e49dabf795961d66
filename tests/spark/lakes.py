"""What the tests of the lake's jobs share: options for one queue, runs without a display, ids on both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock import Client, Message
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.archive.job import ArchiveOptions
from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.lake.layout import MESSAGES
from penstock.spark.lake.source import read_lake
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from tests.spark.rig import Server

Identity = tuple[int, int, int]


def options(server: Server, lake: Path, queue: str, **more: Any) -> ArchiveOptions:
    given = {"url": server.url, "lake": str(lake), "queues": queue, "events": False, **more}
    return ArchiveOptions(**given)


def run_archive(spark: SparkSession, chosen: ArchiveOptions) -> Summary:
    with Progress("archive", "test") as progress:
        summary = archive.run(spark, chosen, progress)
        progress.finish(summary)
    return summary


def publish(client: Client, queue: str, start: int, end: int, size: int = 1_000) -> None:
    """Messages whose payload says their number, in batches."""
    for first in range(start, end, size):
        numbers = range(first, min(first + size, end))
        client.publish_many(queue, [Message(f"message {number}".encode(), f"p{number % 7}") for number in numbers])


def lake_ids(spark: SparkSession, lake: Path) -> list[Identity]:
    """Every row of the lake, by identity: a row that is there twice is here twice."""
    frame = read_lake(spark, str(lake), columns=["queue_id", "lane", "offset"])
    return sorted((row.queue_id, row.lane, row.offset) for row in frame.collect())


def broker_ids(client: Client, queue: str) -> list[Identity]:
    found = client.lanes(queue)
    return [(found.queue_id, one.lane, offset) for one in found.lanes for offset in range(one.first, one.end)]


def lake_table(lake: Path, name: str = MESSAGES) -> LakeTable:
    return LakeTable.open(Storage(str(lake)).under(name))
