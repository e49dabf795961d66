"""Sparks whose Python has not installed Penstock: what must be shipped to them, and that it is enough."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pyspark
import pytest

from penstock import Message
from penstock.cli.dev.checkout import script_environment
from penstock.spark.java import find_java
from penstock.spark.lake.storage import Storage
from penstock.spark.session import QUICK_START, package_archive
from tests.spark.cluster import foreign_python
from tests.spark.rig import PATIENCE_S, Server
from tests.spark.sink_rig import all_messages
from tests.unit.spark.lake.generated_rows import rows
from tests.unit.spark.lake.test_lake import archive, opened

SUBMIT: Final = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")

SUBMITTED: Final = """
import sys
from pyspark.sql import SparkSession

url, queue = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
reader = spark.read.format("penstock").options(url=url, queue=queue)
try:
    reader.load()
except Exception as error:
    print("Failed to find the data source: penstock" in str(error))

import penstock.spark
print(penstock.__file__)
penstock.spark.register(spark)
frame = reader.load()
frame.select("payload").write.format("penstock").options(url=url, queue=queue).mode("append").save()
print(sorted(bytes(row.payload).decode() for row in reader.load().collect()))
"""

CONNECTED: Final = """
import sys
from pyspark.sql import SparkSession
from penstock.spark import package_archive, read_lake, register

url, queue, lake = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.addArtifacts(str(package_archive()), pyfile=True)
register(spark)
register(spark)  # once more does no harm
frame = spark.read.format("penstock").options(url=url, queue=queue).load()
print(sorted(bytes(row.payload).decode() for row in frame.collect()))
print(read_lake(spark, lake, columns=["offset"]).count())
spark.stop()
"""


def variables(folder: Path) -> dict[str, str]:
    """Of a machine where Penstock is not installed."""
    unset = ("PENSTOCK_", "SPARK_", "PYSPARK_", "PYTHON")
    given = {name: value for name, value in script_environment().items() if not name.startswith(unset)}
    python = str(foreign_python(folder))
    return given | {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_SUBMIT_OPTS": QUICK_START,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }


def run(folder: Path, environment: dict[str, str], *command: str) -> list[str]:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=9 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(600)
def test_py_files_and_one_call_are_enough_for_spark_submit(server: Server, queue: str, tmp_path: Path) -> None:
    server.client.publish(queue, Message(b"one"))
    (tmp_path / "job.py").write_text(SUBMITTED)
    settings = ["--master", "local[2]", "--conf", "spark.driver.memory=1g", "--conf", "spark.ui.enabled=false"]
    shipped = ["--py-files", str(package_archive(tmp_path))]
    printed = run(tmp_path, variables(tmp_path), SUBMIT, *settings, *shipped, "job.py", server.url, queue)
    is_missing, place, found = printed[-3:]
    assert is_missing == "True"  # Spark looks no further than installed packages
    assert "penstock.zip" in place
    assert found == "['one', 'one']"
    assert [message.payload for message in all_messages(server.client, queue)] == [b"one", b"one"]


@pytest.mark.timeout(600)
def test_artifacts_and_one_call_are_enough_for_connect(server: Server, queue: str, tmp_path: Path) -> None:
    server.client.publish(queue, Message(b"one"))
    archive(opened(Storage(str(tmp_path / "lake")).under("messages")), rows(0, 30), rows(0, 30, lane=1))
    environment = variables(tmp_path)
    # The client has Penstock, the server that it starts does not: PYTHONPATH would reach both.
    program = f"import sys; sys.path.insert(0, {str(package_archive(tmp_path))!r})\n" + CONNECTED
    client = environment["PYSPARK_PYTHON"]
    printed = run(tmp_path, environment, client, "-c", program, server.url, queue, str(tmp_path / "lake"))
    assert printed[-2:] == ["['one']", "60"]
