"""One real Spark session and one real server for all Spark tests of a worker; each test has queues of its own on it.

Two workers run the tests of this folder, one half each (tests/conftest.py), so that there are two of each at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import spark_session
from tests.spark.rig import Server, end_spark, running_server

FOLDER: Final = Path(__file__).parent
TIMEOUT_S: Final = 300
"""For one test here: the first of its kind warms a JVM up, on cores that other tests are using."""

_queues = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two tasks at once, three tries each; small enough for a machine of two cores."""
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "penstock tests",
        master="local[2,3]",
        config={"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")},
        quick_start=True,
    )
    yield session
    end_spark(session)


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    """The server that all tests share. A test may kill it: the next one finds it running again."""
    yield one_server
    if not one_server.is_running:
        one_server.restart()


@pytest.fixture
def queue(server: Server) -> str:
    """The name of a queue that exists, with one lane, and that no other test uses."""
    name = f"queue-{next(_queues)}"
    server.client.declare_queue(name)
    return name
