"""What a user does without Penstock: a PostgreSQL table, one row a message, and Spark's JDBC source and sink."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.peers_lib.peer import program
from bench.peers_lib.postgres import Postgres
from bench.spark_lib.measuring import Row, timed
from bench.spark_lib.workloads import Bench, wrong_ids

DRIVER: Final = "org.postgresql.Driver"
TABLE: Final = "messages"
BATCH: Final = "10000"
"""Rows a round trip, both ways: measured to be the best of the powers of ten."""


def jar() -> Path | None:
    """PostgreSQL's JDBC driver."""
    return program("usr/share/java/postgresql.jar")


def missing() -> str | None:
    if jar() is None:
        return "the package libpostgresql-jdbc-java is missing"
    what = Postgres().missing()
    return f"{what} is missing" if what else None


class Database:
    """A PostgreSQL server with an empty folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="postgres-", dir=folder)
        self.server = Postgres()

    def __enter__(self) -> Database:
        Path(self._folder.name).chmod(0o755)
        self.server.start(Path(self._folder.name))
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.server.port}/postgres?user=bench&reWriteBatchedInserts=true"


def jdbc(bench: Bench, database: Database) -> list[Row]:
    """Spark's JDBC sink and then source, on a PostgreSQL table with one row a message"""
    frame = bench.parquet().selectExpr("offset AS id", "payload").repartition(2)
    columns = {"createTableColumnTypes": "id bigint, payload binary"}
    with timed("jdbc-write", bench.count, database.server.roots) as written:
        options = {"url": database.url, "dbtable": TABLE, "driver": DRIVER, "batchsize": BATCH, **columns}
        frame.write.format("jdbc").options(**options).mode("append").save()
    reader = bench.spark.read.format("jdbc").options(
        url=database.url,
        dbtable=TABLE,
        driver=DRIVER,
        fetchsize=BATCH,
        partitionColumn="id",
        lowerBound="0",
        upperBound=str(bench.count),
        numPartitions="2",
    )
    counting = reader.load()
    with timed("jdbc-read-count", bench.count, database.server.roots) as counted:
        found = counting.count()
    counted.wrong = "" if found == bench.count else f"{found:,} rows counted of {bench.count:,}"
    with timed("jdbc-read-all", bench.count, database.server.roots) as read:
        reader.load().write.format("noop").mode("append").save()
    written.wrong = wrong_ids(reader.load(), bench.count)
    return [written, counted, read]


JDBC_WORKLOADS: Final[dict[str, Callable[[Bench, Database], list[Row]]]] = {"jdbc": jdbc}
