"""How the tests are shared out among workers, for `penstock test`.

The tests of tests/spark share Spark sessions, whose JVM takes seconds to start and half a gigabyte to keep: they go to
two workers, one half to each, and first, for they take longest: one after the other they would still run when all else
is done. A file whose tests share a server of their own stays whole. All others go one by one to whoever is free.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import settings

TOGETHER: Final = "tests/spark/"
SECOND_HALF: Final = tuple(
    f"{TOGETHER}{folder}/" for folder in ("jobs/replay", "jobs/route", "jobs/stats", "jobs/triage", "sink", "source")
)
"""By folder: each half takes about the same time."""
SHARED_BY_FILE: Final = tuple(
    f"tests/{name}"
    for name in (
        "cli/test_apply.py", "clients/amqp/", "conformance/mysql/", "conformance/postgres/",
        "crash/test_database_trouble.py", "crash/test_postgres_trouble.py", "enqueue/test_libraries.py",
        "enqueue/test_mysql.py", "unit/spark/source/test_readers.py",
    )
)  # fmt: skip
"""Files whose tests share a server or a database: every worker that ran some of them would start its own."""
LONG: Final = tuple(
    f"tests/{name}"
    for name in (
        "spark/test_cluster.py", "spark/test_declarative.py", "spark/test_kills.py", "spark/sink/test_killed_driver.py",
    )
)  # fmt: skip
"""Tests that start clusters and drivers of their own and take minutes: run with `--long`, or where they are named."""


QUICK_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For Spark in programs that tests start, which work for seconds: a JVM that optimises much is busy with that alone."""


# A machine that is busy is no finding: hangs are what the timeout of every test is for.
settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")


def pytest_configure() -> None:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_START)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All tests and what they import stay until the end: to look for garbage among them again and again takes time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="also run the tests that take minutes: clusters, killed drivers"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = " ".join(config.invocation_params.args)
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.nodeid.startswith(LONG) and item.path.name not in named]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What `--dist loadgroup` means here: pytest-xdist's own goes by marks, and needs a pytest older than ours."""
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler


def unit_of(test: str) -> str:
    """Tests of the same unit go to the same worker."""
    if test.startswith(TOGETHER):
        return f"{TOGETHER} {'second' if test.startswith(SECOND_HALF) else 'first'} half"
    return test.partition("::")[0] if test.startswith(SHARED_BY_FILE) else test
