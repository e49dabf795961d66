"""kill -9 of the archive's driver and of its workers, in the middle of batches: nothing is lost, nothing is double."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.cli.dev.checkout import script_environment
from penstock.spark.lake import sink
from penstock.spark.lake.sink import FilesWriter, LakeFiles, Written
from penstock.spark.source.packing import unpacked
from tests.spark.lakes import broker_ids, lake_ids, lake_table, options, publish, run_archive
from tests.spark.rig import PATIENCE_S, Server, until

DRIVER = """
import sys
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.frame import Progress
from penstock.spark.session import spark_session
url, lake, queue = sys.argv[1:]
spark = spark_session("archive to be killed", master="local[2,3]", quick_start=True)
options = archive.ArchiveOptions(url=url, lake=lake, queues=queue, events=False, rows_per_batch=500)
with Progress("archive", "killed") as progress:
    progress.finish(archive.run(spark, options, progress))
"""


def has_entries(log: Path, more_than: int) -> Callable[[], bool]:
    return lambda: log.exists() and len(list(log.glob("*.json"))) > more_than


@pytest.mark.timeout(600)
def test_the_driver_is_killed_with_all_its_processes(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    publish(server.client, queue, 0, 20_000)
    seen = 0
    for more in (2, 3):
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, server.url, str(lake), queue],
            env=script_environment(),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(has_entries(lake / "messages" / "_delta_log", seen + more), "commits", 3 * PATIENCE_S)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the process that we started, and what it has started
            process.wait()
        seen = lake_table(lake).version
        done = len(lake_ids(spark, lake))
        assert 0 < done < 20_000
        assert done == lake_table(lake).mark(server.client.lanes(queue).queue_id, 0)
    run_archive(spark, options(server, lake, queue))
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)


class FatalFiles(LakeFiles):
    """The same sink, whose first worker dies when it has written half of its rows."""

    def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
        real = super().writer(schema, overwrite)
        return FatalWriter(real._places, real._folder)


class FatalWriter(FilesWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        root = self._places["messages"].storage.root
        assert root is not None
        been = root.parent / "been here"

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in chain.from_iterable(map(unpacked, iterator)):
                yield batch.slice(0, batch.num_rows // 2)
                if not been.exists():
                    been.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch.slice(batch.num_rows // 2)

        return super().write(rows())


def test_a_worker_is_killed_in_the_middle_of_its_file(
    spark: SparkSession, server: Server, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    publish(server.client, queue, 0, 3_000)
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # workers do not know the tests
    try:
        monkeypatch.setattr(sink, "register", lambda session: session.dataSource.register(FatalFiles))
        run_archive(spark, options(server, lake, queue))
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    assert (lake / "been here").exists()
    assert lake_ids(spark, lake) == broker_ids(server.client, queue)
    table = lake_table(lake)
    files = {file.path for file in table.files()}
    left = {str(path.relative_to(lake / "messages")) for path in (lake / "messages").rglob("*.parquet")} - files
    assert len(left) == 1  # of the worker that died: invisible, and gone with a vacuum when it is old
    for path in left:
        os.utime(lake / "messages" / path, (0, 0))
    assert table.vacuum(1) == list(left)
