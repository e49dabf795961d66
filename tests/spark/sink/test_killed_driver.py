"""A driver of a stream that is killed in the middle of its batches; another one goes on from its checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock import Message
from penstock.cli.dev.checkout import script_environment
from tests.spark.rig import Server, until
from tests.spark.sink_rig import all_messages

DRIVER: Final = """
import sys
from penstock.spark import spark_session

url, source, target, checkpoint, local = sys.argv[1:]
spark = spark_session("killed", master="local[2,3]", config={"spark.local.dir": local}, quick_start=True)
rows = spark.readStream.format("penstock").options(url=url, queue=source, startingOffsets="earliest")
rows = rows.option("maxRowsPerTrigger", 500).load()
query = rows.writeStream.format("penstock").options(url=url, queue=target, checkpointLocation=checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.timeout(900)
def test_a_driver_that_is_killed(spark: SparkSession, server: Server, queue: str, tmp_path: Path) -> None:
    source, count = f"{queue}-source", 20_000
    server.client.declare_queue(source, lanes=2)
    for start in range(0, count, 5_000):
        messages = [Message(str(n).encode(), partition=f"p{n % 7}") for n in range(start, start + 5_000)]
        server.client.publish_many(source, messages)
    checkpoint = tmp_path / "checkpoint"
    arguments = [server.url, source, queue, str(checkpoint), str(tmp_path)]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments],
        env=script_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(
            lambda: server.client.lanes(queue).lanes[0].end >= 2_000 or driver.poll() is not None, "some is copied", 240
        )
        assert driver.poll() is None, "the driver ended by itself"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # its JVM is in the same group
        driver.wait()
    copied = server.client.lanes(queue).lanes[0].end
    assert copied < count, "it was not killed in the middle"

    def run() -> None:
        rows = spark.readStream.format("penstock").options(url=server.url, queue=source, startingOffsets="earliest")
        query = rows.load().writeStream.format("penstock").options(url=server.url, queue=queue)
        query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run()
    numbers = [int(message.payload) for message in all_messages(server.client, queue)]
    assert sorted(numbers) == list(range(count))
    shutil.rmtree(checkpoint)
    run()
    assert [int(message.payload) for message in all_messages(server.client, queue)] == numbers
