"""`format("penstock")` without a registration call: Spark finds `pyspark_penstock` by itself."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql import SparkSession

import pyspark_penstock
from penstock.cli.dev.checkout import script_environment
from penstock.model import Message
from penstock.spark.source.source import PenstockSource
from tests.spark.rig import Server


def test_the_format_is_there_for_whoever_asks(spark: SparkSession, server: Server, queue: str) -> None:
    assert pyspark_penstock.DefaultSource is PenstockSource
    server.client.publish(queue, Message(payload=b"one"))
    frame = spark.read.format("penstock").option("url", server.url).option("queue", queue).load()
    assert [(row.offset, bytes(row.payload)) for row in frame.collect()] == [(0, b"one")]


def test_where_a_package_is_missing_the_format_says_so_and_hides_no_other() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import pyspark_penstock\n"
        "print(pyspark_penstock.DefaultSource.name())\n"
        "try:\n    pyspark_penstock.DefaultSource({})\nexcept ImportError as failure:\n    print(failure)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=script_environment(), capture_output=True, text=True, check=True
    )
    name, message = done.stdout.splitlines()
    assert name == "penstock"
    assert 'format("penstock") cannot be used' in message
    assert "pyarrow" in message
    assert "pip install 'penstock[spark]'" in message
