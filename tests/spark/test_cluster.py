"""The pipeline on a real standalone cluster, with executors that know of Penstock only what was shipped to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from penstock import Client, Message
from penstock.cli.dev.checkout import script_environment
from penstock.spark.java import find_java
from penstock.spark.session import package_archive
from tests.spark.cluster import CONFIG, Cluster, running_cluster
from tests.spark.lakes import broker_ids
from tests.spark.rig import PATIENCE_S, Server, until
from tests.spark.sink_rig import all_messages
from tests.spark.test_shipping import SUBMIT, SUBMITTED

COUNT: Final = 20_000
ENDS_S: Final = 9 * PATIENCE_S

COPY: Final = """
import json, os, sys
from penstock.spark import spark_session

master, url, source, written, streamed, checkpoint, config = sys.argv[1:]
spark = spark_session("copy", master=master, config=json.loads(config))

def place(_):
    import penstock
    return os.getcwd(), penstock.__file__

print(json.dumps(spark.sparkContext.parallelize(range(8), 8).map(place).distinct().collect()), flush=True)

rows = spark.read.format("penstock").options(url=url, queue=source, minPartitions=4).load()
rows.where("offset % 2 = 0").write.format("penstock").options(url=url, queue=written).mode("append").save()

stream = spark.readStream.format("penstock").options(url=url, queue=source, startingOffsets="earliest")
stream = stream.option("maxRowsPerTrigger", 1_000).load()
copy = stream.writeStream.format("penstock").options(url=url, queue=streamed, checkpointLocation=checkpoint)
copy.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def variables(cluster: Cluster) -> dict[str, str]:
    """The environment of a driver."""
    given = {name: value for name, value in script_environment().items() if not name.startswith("PENSTOCK_")}
    return given | {"PYSPARK_PYTHON": str(cluster.python)}


@pytest.fixture
def source(server: Server, queue: str) -> str:
    """A queue of two lanes with messages that say their number."""
    name = f"{queue}-source"
    server.client.declare_queue(name, lanes=2)
    for start in range(0, COUNT, 5_000):
        messages = [Message(f"{n}".encode(), partition=f"p{n % 7}") for n in range(start, start + 5_000)]
        server.client.publish_many(name, messages)
    return name


def numbers(client: Client, queue: str) -> list[int]:
    return [int(message.payload) for message in all_messages(client, queue)]


def are_in_order(client: Client, queue: str) -> bool:
    """Whether the messages of each partition are in the order in which they were published first."""
    last: dict[str | None, int] = {}
    for message in all_messages(client, queue):
        number = int(message.payload)
        if last.get(message.partition, -1) >= number:
            return False
        last[message.partition] = number
    return True


@pytest.mark.timeout(1_200)
def test_archive_from_the_command_line(
    cluster: Cluster, variables: dict[str, str], server: Server, source: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    flags = [part for name, value in CONFIG.items() for part in ("--conf", f"{name}={value}")]
    command = [sys.executable, "-m", "penstock", "pipeline", "archive", source, "--no-events", "--json"]
    place = ["--lake", str(lake), "--url", server.url, "--master", cluster.url, "--rows-per-batch", "8000"]
    done = subprocess.run(
        [*command, *place, *flags],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
    )
    assert done.returncode == 0, done.stderr + cluster.told()
    summary = json.loads(done.stdout)
    assert summary["rows"] == COUNT
    assert summary["details"]["commits"] == 3

    table = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["queue_id", "lane", "offset", "payload"])
    rows = sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    assert [row[:3] for row in rows] == broker_ids(server.client, source)
    assert [row[3] for row in rows] == [message.payload for message in all_messages(server.client, source)]


@pytest.mark.timeout(1_200)
def test_queue_to_queue_through_an_executor_that_is_killed(
    cluster: Cluster, variables: dict[str, str], server: Server, queue: str, source: str, tmp_path: Path
) -> None:
    streamed = f"{queue}-streamed"
    server.client.declare_queue(streamed)

    def end() -> int:
        return server.client.lanes(streamed).lanes[0].end

    arguments = [cluster.url, server.url, source, queue, streamed, str(tmp_path / "checkpoint"), json.dumps(CONFIG)]
    driver = subprocess.Popen(
        [sys.executable, "-c", COPY, *arguments],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: end() > 0 or driver.poll() is not None, "the first batch is copied", ENDS_S)
        if driver.poll() is None:
            os.kill(cluster.executors()[0], signal.SIGKILL)
            assert end() < COUNT, "the executor was not killed in the middle"
        output, errors = driver.communicate(timeout=ENDS_S)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, errors + cluster.told()
    assert f"exitStatus {128 + signal.SIGKILL}" in cluster.told()

    places = json.loads(output.splitlines()[0])
    assert len({folder for folder, _ in places}) == 2, "not both executors worked"
    assert {Path(file).parent.parent.name for _, file in places} == {"penstock.zip"}

    everything = numbers(server.client, source)
    places_of_all = broker_ids(server.client, source)
    even = [number for number, (_, _, offset) in zip(everything, places_of_all, strict=True) if offset % 2 == 0]
    assert sorted(numbers(server.client, queue)) == sorted(even)
    assert sorted(numbers(server.client, streamed)) == sorted(everything) == list(range(COUNT))
    assert are_in_order(server.client, queue)
    assert are_in_order(server.client, streamed)


@pytest.mark.timeout(1_200)
def test_a_program_that_is_submitted_with_py_files(
    cluster: Cluster, variables: dict[str, str], server: Server, queue: str, tmp_path: Path
) -> None:
    server.client.publish(queue, Message(b"one"))
    (tmp_path / "job.py").write_text(SUBMITTED)
    given = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
    flags = [part for name, value in CONFIG.items() for part in ("--conf", f"{name}={value}")]
    shipped = ["--master", cluster.url, "--py-files", str(package_archive(tmp_path))]
    done = subprocess.run(
        [SUBMIT, *shipped, *flags, "job.py", server.url, queue],
        cwd=tmp_path,
        env=given | {"PYSPARK_DRIVER_PYTHON": str(cluster.python), "JAVA_HOME": str(find_java().home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr + cluster.told()
    assert done.stdout.splitlines()[-1] == "['one', 'one']"
