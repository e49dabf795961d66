"""Damage in the server's store is a gap: `failOnDataLoss` decides, and the jobs count what they do not get."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.jobs.frame import Progress, Summary
from penstock.spark.jobs.verify import job as verify
from penstock.spark.jobs.verify.job import VerifyOptions
from tests.damage import FLIP, lane_of
from tests.spark.lakes import lake_ids, lake_table, options, publish, run_archive
from tests.spark.rig import PATIENCE_S, Server, running_server

GAP = "lane 0 of queue 'q', offsets 100 to 199: damaged in the server's store"
SOUND = [*range(100), *range(200, 300)]


@pytest.fixture(params=["body", "meta"])
def part(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own with three batches of a hundred messages."""
    with running_server(tmp_path) as server:
        server.client.declare_queue("q", retain_messages=10_000)
        publish(server.client, "q", 0, 300, 100)
        yield server


def damage(server: Server, folder: Path, part: str, base: int = 100) -> None:
    """Turn a byte of one batch over while the server is down."""
    server.stop()
    path = folder / "penstock.db"
    FLIP[part](path, lane_of(path, "q"), base)
    server.restart()


def read(spark: SparkSession, server: Server, **more: str) -> DataFrame:
    given = {"url": server.url, "queue": "q", "columns": "offset,payload", **more}
    return spark.read.format("penstock").options(**given).load()


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row.offset for row in rows.collect())


def run_verify(spark: SparkSession, server: Server, lake: Path) -> Summary:
    chosen = VerifyOptions(url=server.url, lake=str(lake), queues="q", events=False, payload=True)
    with Progress("verify", "test") as progress:
        summary = verify.run(spark, chosen, progress)
        progress.finish(summary)
    return summary


def test_a_read_fails_or_passes_over_it(spark: SparkSession, filled: Server, part: str, tmp_path: Path) -> None:
    damage(filled, tmp_path, part)
    with pytest.raises(Exception, match=GAP) as error:
        read(spark, filled).collect()
    assert "failOnDataLoss=false" in str(error.value)
    assert "penstock store verify" in str(error.value)
    assert offsets(read(spark, filled, failOnDataLoss="false")) == SOUND


def test_a_stream_fails_or_passes_over_it(spark: SparkSession, filled: Server, tmp_path: Path) -> None:
    damage(filled, tmp_path, "body")

    def streamed(**more: str) -> list[int]:
        found: list[int] = []
        given = {"url": filled.url, "queue": "q", "startingOffsets": "earliest", "columns": "offset,payload", **more}
        rows = spark.readStream.format("penstock").options(**given).load()

        def take(batch: DataFrame, _number: int) -> None:
            found.extend(offsets(batch))

        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(int(PATIENCE_S))
        finally:
            query.stop()
        return found

    with pytest.raises(Exception, match=GAP):
        streamed()
    assert streamed(failOnDataLoss="false") == SOUND  # from the same checkpoint


@pytest.mark.parametrize("base", [100, 200])
def test_an_archive_fails_or_records_a_gap(
    spark: SparkSession, filled: Server, part: str, tmp_path: Path, base: int
) -> None:
    """Also at the end of the queue: the mark moves behind it, so that it is told once."""
    damage(filled, tmp_path, part, base)
    lake = tmp_path / "lake"
    with pytest.raises(Exception, match=r"offsets [0-9]+ to [0-9]+: damaged in the server's store"):
        run_archive(spark, options(filled, lake, "q"))
    summary = run_archive(spark, options(filled, lake, "q", allow_gaps=True))
    assert [(gap["start"], gap["end"]) for gap in summary.details["gaps"]] == [(base, base + 100)]
    assert summary.rows == 200
    sound = [offset for offset in range(300) if not base <= offset < base + 100]
    assert [offset for _, _, offset in lake_ids(spark, lake)] == sound
    table = lake_table(lake)
    assert table.mark(filled.client.lanes("q").queue_id, 0) == 300
    again = run_archive(spark, options(filled, lake, "q", allow_gaps=True))
    assert (again.rows, again.details.get("gaps")) == (0, None)
    publish(filled.client, "q", 300, 400)
    assert run_archive(spark, options(filled, lake, "q")).rows == 100
    found = run_verify(spark, filled, lake)
    told = f"missing in the lake (damaged in the broker: offsets {base} to {base + 99})"
    assert differences(found) == [(base, base + 100, told)]


def test_verify_tells_what_the_broker_lost_after_it_was_archived(
    spark: SparkSession, filled: Server, part: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    run_archive(spark, options(filled, lake, "q"))
    damage(filled, tmp_path, part)
    summary = run_verify(spark, filled, lake)
    assert not summary.details["ok"]
    told = "in the lake and not in the broker (damaged in the broker: offsets 100 to 199)"
    assert differences(summary) == [(100, 200, told)]


def differences(summary: Summary) -> list[tuple[Any, Any, Any]]:
    found = json.loads(json.dumps(summary.details["differences"]))
    return [(one["start"], one["end"], one["what"]) for one in found]
