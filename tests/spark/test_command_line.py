"""`penstock pipeline …` from flags to exit codes, in the session that the tests share, which it leaves running."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from penstock.cli.main import commands
from penstock.client.sync import Client
from penstock.model import Message
from penstock.spark.session import is_running
from tests.spark.rig import Server

_namespaces = itertools.count(1)


@pytest.fixture
def namespace() -> str:
    return f"command-line-{next(_namespaces)}"


@pytest.fixture
def job(
    spark: SparkSession, server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        variables = {"PENSTOCK_URL": server.url, "PENSTOCK_NAMESPACE": namespace, "COLUMNS": "80"}
        return CliRunner().invoke(commands, ["pipeline", *arguments], env=variables, prog_name="penstock")

    return run


def test_archive_verify_and_route(server: Server, namespace: str, job: Callable[..., Result], tmp_path: Path) -> None:
    with Client(server.url, namespace=namespace) as client:
        client.declare_queue("orders")
        client.declare_queue("eu")
        regions = ["us", "eu", "us", "eu"]
        client.publish_many(
            "orders", [Message(str(n).encode(), headers={"region": region}) for n, region in enumerate(regions)]
        )
        done = job("archive", "orders", "--no-events", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["rows"] == 4
        done = job("verify", "orders", "--no-events")
        assert done.exit_code == 0, done.output
        assert done.stdout.splitlines()[0].split() == ["job", "verify"]
        assert (tmp_path / "lake" / "messages" / "_delta_log").is_dir()
        done = job("route", "eu", "--from", "orders", "--where", "region = 'eu'", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["details"]["routed"] == 2
        assert [one.payload for one in client.read_from("eu").messages] == [b"1", b"3"]
        states = {one["job"]: one["state"] for one in json.loads(job("status", "--json").stdout)}
        assert states == {"archive": "done", "verify": "done", "route": "done"}
        done = job("route", "nowhere", "--from", "orders", "--where", "TRUE")
        assert (done.exit_code, "Traceback" in done.output) == (1, False)
        assert "there is no queue 'nowhere'" in done.stderr
    assert is_running()
