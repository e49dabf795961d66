"""The declarative project among the examples, run as its README says: once, and again with what is new."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock import Client, Message
from penstock.cli.dev.checkout import root, script_environment
from penstock.spark.java import find_java
from penstock.spark.session import QUICK_START
from tests.spark.rig import PATIENCE_S, running_server

PROJECT: Final = root() / "examples" / "declarative"
RUN: Final = "    spark-pipelines run "
STORAGE: Final = "file:///var/tmp/penstock-shop"
URL: Final = "http://127.0.0.1:7333"


def command() -> list[str]:
    """The one that the README tells to run."""
    (line,) = [line for line in (PROJECT / "README.md").read_text().splitlines() if line.startswith(RUN)]
    return shlex.split(line)


def run(project: Path) -> None:
    unset = ("PENSTOCK_", "SPARK_", "PYSPARK_")
    given = {name: value for name, value in script_environment().items() if not name.startswith(unset)}
    variables = given | {
        # As in a shell where the environment that has Spark is active.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}",
        "JAVA_HOME": str(find_java().home),
        "SPARK_SUBMIT_OPTS": QUICK_START,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(project),
    }
    done = subprocess.run(
        command(), cwd=project, env=variables, capture_output=True, text=True, check=False, timeout=6 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr


def publish(client: Client, start: int, end: int) -> None:
    """Order n is worth n, of one of three customers."""
    orders = [{"order_id": f"o{n}", "customer": f"c{n % 3}", "amount": n} for n in range(start, end)]
    client.publish_many("orders", [Message(json.dumps(order).encode()) for order in orders])


def large_orders(client: Client) -> list[str]:
    found = client.read_from("large-orders", max=1_000).messages
    return sorted(json.loads(one.payload)["order_id"] for one in found)


@pytest.mark.timeout(900)
def test_the_project_runs_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    project = tmp_path / "declarative"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    specification = project / "spark-pipeline.yml"
    assert STORAGE in specification.read_text()
    assert URL in specification.read_text()
    with running_server(tmp_path) as server:
        text = specification.read_text().replace(STORAGE, (project / "storage").as_uri()).replace(URL, server.url)
        specification.write_text(text)
        server.client.declare_queue("orders", lanes=2)
        server.client.declare_queue("large-orders")

        def check(count: int) -> None:
            orders = spark.read.parquet(str(project / "spark-warehouse" / "orders"))
            rows = orders.select("order_id", "lane", "offset", "malformed").collect()
            good = sorted(row.order_id for row in rows if row.malformed is None)
            assert good == sorted(f"o{n}" for n in range(count))
            assert [bytes(row.malformed) for row in rows if row.malformed is not None] == [b"no json"]
            places = [(place.lane, n) for place in server.client.lanes("orders").lanes for n in range(place.end)]
            assert sorted((row.lane, row.offset) for row in rows) == places

            revenue = spark.read.parquet(str(project / "spark-warehouse" / "revenue")).collect()
            assert sorted((row.customer, row.orders, row.amount) for row in revenue) == [
                (f"c{customer}", len(range(customer, count, 3)), float(sum(range(customer, count, 3))))
                for customer in range(3)
            ]
            assert large_orders(server.client) == sorted(f"o{n}" for n in range(100, count))

        publish(server.client, 0, 150)
        server.client.publish("orders", Message(b"no json"))
        run(project)
        check(150)
        files = {path.name for path in (project / "spark-warehouse" / "orders").glob("*.parquet")}

        publish(server.client, 150, 200)
        run(project)
        check(200)
        now = {path.name for path in (project / "spark-warehouse" / "orders").glob("*.parquet")}
        assert files < now, "the table was made anew"
