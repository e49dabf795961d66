"""The example programs, run as they stand: the streams on the shared session, the report as a program of its own."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from examples import clean_and_enrich, daily_report, windowed_totals
from penstock import Client, Message
from penstock.cli.dev.checkout import script_environment
from penstock.spark.jobs.archive import job as archive
from penstock.spark.jobs.frame import Progress
from tests.spark.rig import Server, running_server

ROOT = Path(__file__).resolve().parents[2]
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def moment(seconds: float) -> str:
    return (NOON + dt.timedelta(seconds=seconds)).isoformat()


def publish(client: Client, queue: str, *bodies: Any) -> None:
    payloads = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    client.publish_many(queue, [Message(payload) for payload in payloads])


def received(client: Client, queue: str) -> list[Any]:
    """All that is in a queue."""
    return [json.loads(one.payload) for one in client.read_from(queue, max=1_000).messages]


def test_clean_and_enrich(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client
        for queue in ("orders", "payments", "paid-orders", "rejected"):
            client.declare_queue(queue)
        orders = [
            {"order_id": f"o{n}", "customer": f"Customer-{n % 3}", "amount": n + 0.5, "placed_at": moment(n)}
            for n in range(20)
        ]
        publish(client, "orders", *orders, b"no json")
        late = [{"order_id": "o19", "method": "card", "paid_at": moment(7_000)}]
        paid = [{"order_id": f"o{n}", "method": "card", "paid_at": moment(n + 60)} for n in range(15)]
        publish(client, "payments", *paid, *late, b"\xff\xfe")

        def run() -> None:
            for query in clean_and_enrich.start(spark, server.url, str(tmp_path / "checkpoint"), watch=False):
                query.awaitTermination()

        run()
        found = received(client, "paid-orders")
        assert sorted(one["order_id"] for one in found) == sorted(f"o{n}" for n in range(15))
        assert {one["customer"] for one in found} == {"customer-0", "customer-1", "customer-2"}
        rejected = client.read_from("rejected", max=10).messages
        assert {one.payload for one in rejected} == {b"no json", b"\xff\xfe"}
        assert {(one.message.headers or {})["from"] for one in rejected} == {"orders/0/20", "payments/0/16"}

        # A payment that comes later meets its order in a later run, and nothing comes twice.
        publish(client, "payments", {"order_id": "o17", "method": "cash", "paid_at": moment(100)})
        run()
        assert sorted(one["order_id"] for one in received(client, "paid-orders")) == sorted(
            f"o{n}" for n in (*range(15), 17)
        )


def test_windowed_totals(spark: SparkSession, tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        client = server.client
        for queue in ("sales", "totals"):
            client.declare_queue(queue)
        sales = [{"shop": f"s{n % 2}", "cents": n, "sold_at": moment(n)} for n in range(300)]
        publish(client, "sales", *sales)
        windowed_totals.start(spark, server.url, str(tmp_path / "checkpoint"), watch=False).awaitTermination()
        first = received(client, "totals")
        publish(client, "sales", {"shop": "s0", "cents": 1, "sold_at": moment(3_600)})
        windowed_totals.start(spark, server.url, str(tmp_path / "checkpoint"), watch=False).awaitTermination()
        found = received(client, "totals")

        expected: dict[tuple[str, int], list[int]] = {}
        for n in range(300):
            expected.setdefault((f"s{n % 2}", n // 60), []).append(n)
        totals = {
            (one["shop"], dt.datetime.fromisoformat(one["minute"])): (one["sales"], one["cents"], one["largest"])
            for one in found
        }
        assert len(totals) == len(found), "a minute was summed up twice"
        assert totals == {
            (shop, NOON + dt.timedelta(minutes=minute)): (len(cents), sum(cents), max(cents))
            for (shop, minute), cents in expected.items()
        }
        assert found[: len(first)] == first
        assert "windowed-totals" in client.groups("sales")


def test_daily_report(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with running_server(tmp_path) as own:
        own.client.declare_queue("orders")
        own.client.declare_group("orders", "kept")
        bodies = [{"order_id": f"o{n}", "customer": f"c{n % 4}", "amount": 10.25} for n in range(100)]
        publish(own.client, "orders", *bodies, b"{")
        lake = str(tmp_path / "lake")
        options = archive.ArchiveOptions(url=own.url, lake=lake, queues="orders")
        with Progress("archive", "test") as progress:
            progress.finish(archive.run(spark, options, progress))
    today = dt.datetime.now(dt.UTC).date()
    best = daily_report.best_customers(daily_report.orders_of(spark, lake, today)).collect()
    if not best:  # midnight passed meanwhile
        today -= dt.timedelta(days=1)
        best = daily_report.best_customers(daily_report.orders_of(spark, lake, today)).collect()
    assert [tuple(row) for row in best] == [(f"c{n}", 25, 256.25) for n in range(4)]

    command = [sys.executable, "examples/daily_report.py", "--lake", lake, "--day", today.isoformat()]
    done = subprocess.run(command, cwd=ROOT, env=script_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"101 orders on {today}, 1 of them unreadable" in done.stdout
