"""Queues as tables of Spark's catalog, in SQL alone: in this session, and through Spark Connect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock import Message
from penstock.cli.dev.checkout import script_environment
from penstock.spark.java import find_java
from penstock.spark.session import QUICK_START
from tests.spark.rig import PATIENCE_S, Server
from tests.spark.sink_rig import all_messages

CONNECT: Final = """
import sys
from pyspark.sql import SparkSession

url, queue, warehouse = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.sql.warehouse.dir", warehouse).getOrCreate()
assert "connect" in type(spark).__module__
spark.sql(f"CREATE TABLE orders USING penstock OPTIONS (url '{url}', queue '{queue}')")
spark.sql("INSERT INTO orders (payload, partition) VALUES (CAST('two' AS BINARY), 'p'), (CAST('three' AS BINARY), 'p')")
found = spark.sql("SELECT offset, CAST(payload AS STRING), partition FROM orders ORDER BY offset").collect()
print([tuple(row) for row in found])
spark.stop()
"""


@pytest.fixture
def table(spark: SparkSession, server: Server, queue: str) -> Iterator[str]:
    """A table of a queue with one message."""
    server.client.publish(queue, Message(b"one", partition="a"))
    name = queue.replace("-", "_")
    spark.sql(f"CREATE TABLE {name} USING penstock OPTIONS (url '{server.url}', queue '{queue}')")
    yield name
    spark.sql(f"DROP TABLE {name}")


def test_a_table_is_read_and_written(spark: SparkSession, server: Server, queue: str, table: str) -> None:
    spark.sql(f"INSERT INTO {table} (payload, partition, priority) VALUES (CAST('two' AS BINARY), 'b', 3)")
    found = spark.sql(
        f"SELECT queue, offset, CAST(payload AS STRING), partition, priority FROM {table} ORDER BY offset"
    )
    assert [tuple(row) for row in found.collect()] == [(queue, 0, "one", "a", 0), (queue, 1, "two", "b", 3)]
    # A row of the table goes in as it comes out: its place is the new one's source, and the queue gives it another.
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE offset = 1")
    assert [message.payload for message in all_messages(server.client, queue)] == [b"one", b"two", b"two"]
    rows = spark.table(table).writeTo(table)
    rows.append()
    assert spark.table(table).count() == 6


def test_a_table_is_read_as_a_stream(spark: SparkSession, table: str, tmp_path: Path) -> None:
    rows = spark.readStream.option("startingOffsets", "earliest").table(table)
    query = rows.writeStream.format("memory").queryName(f"{table}_seen").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert spark.table(f"{table}_seen").count() == 1


def test_a_table_of_some_columns_and_options_of_both_ways(spark: SparkSession, server: Server, queue: str) -> None:
    server.client.publish_many(queue, [Message(b"1"), Message(b"2")])
    options = f"url '{server.url}', queue '{queue}', columns 'offset,payload', maxRowsPerTrigger '5', timeout '9s'"
    spark.sql(f"CREATE TABLE narrow USING Penstock OPTIONS ({options}) COMMENT 'c' TBLPROPERTIES ('owned.by' = 'us')")
    try:
        assert spark.table("narrow").columns == ["offset", "payload"]
        spark.sql("INSERT INTO narrow (payload) VALUES (CAST('3' AS BINARY))")
        assert spark.sql("SELECT count(*) FROM narrow").first() == (3,)
        within = f'SELECT count(*) FROM narrow WITH (endingOffsets = \'{{"{queue}": {{"0": 2}}}}\')'
        assert spark.sql(within).first() == (2,)
    finally:
        spark.sql("DROP TABLE narrow")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("CREATE TABLE x USING penstock OPTIONS (url 'u', queue 'q', quque 'q')", "no option 'quque'"),
        ("CREATE TABLE x USING penstock OPTIONS (url 'u')", "option queue is missing"),
        ("CREATE TABLE x USING penstock OPTIONS (url 'u', queue 'q', token 't')", "PENSTOCK_TOKEN"),
        ("CREATE TABLE x USING penstock OPTIONS (url 'u', queue 'q', transactionId 't')", "names one write"),
        ("CREATE TABLE x USING penstock OPTIONS (url 'u', queue 'q') AS SELECT 'a' AS payload", "not AS SELECT"),
    ],
)
def test_what_a_table_cannot_be_is_said_when_it_is_made(spark: SparkSession, statement: str, words: str) -> None:
    with pytest.raises(Exception, match=words):
        spark.sql(statement)
    spark.sql("DROP TABLE IF EXISTS x")


def test_a_list_of_columns_is_refused_with_the_way_out(spark: SparkSession, server: Server, queue: str) -> None:
    spark.sql(f"CREATE TABLE listed (payload BINARY) USING penstock OPTIONS (url '{server.url}', queue '{queue}')")
    try:
        with pytest.raises(Exception, match="create the table without a list of columns"):
            spark.table("listed").collect()
        with pytest.raises(Exception, match="create the table without a list of columns"):
            spark.sql("INSERT INTO listed VALUES (CAST('a' AS BINARY))")
    finally:
        spark.sql("DROP TABLE listed")


@pytest.mark.timeout(600)
def test_tables_through_connect(server: Server, queue: str, tmp_path: Path) -> None:
    server.client.publish(queue, Message(b"one", partition="a"))
    unset = ("PENSTOCK_", "SPARK_", "PYSPARK_")
    given = {name: value for name, value in script_environment().items() if not name.startswith(unset)}
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, server.url, queue, str(tmp_path / "warehouse")],
        cwd=tmp_path,
        env=given
        | {
            "JAVA_HOME": str(find_java().home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": QUICK_START,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=9 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[(0, 'one', 'a'), (1, 'two', 'p'), (2, 'three', 'p')]"
