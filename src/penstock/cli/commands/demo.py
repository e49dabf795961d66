"""`penstock demo`: the whole product in two minutes. A small shop on a real server, its history in a lake by Spark.

A server is started on a store in a temporary folder. Producers and workers are threads with clients of their own; the
payments' worker fails as real ones do. Then Spark archives what happened, tells it in numbers, and the dead letters are
redriven. Only the public client and the pipeline's own jobs are used, and what is printed is what they answered.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from penstock import Client, Message, Received

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS: Final = 2_000
PRODUCERS: Final = 3
CUSTOMERS: Final = 50
START_SECONDS: Final = 30.0
WORK_SECONDS: Final = 60.0
BROKEN_CARD: Final = 97
"""Every order whose number this divides is paid with a card that no retry mends."""
AWAY_BANK: Final = 20
"""The first attempt at every order whose number this divides finds the bank away."""


def run() -> None:
    console = Console(highlight=False)
    logging.getLogger("penstock").setLevel(logging.ERROR)  # handlers fail on purpose here
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as folder:
        with server(Path(folder)) as url, Client(url) as client:
            say(console, "1. A server", f"on {url}, with its store in a temporary folder")
            shop = Shop(url)
            open_shop(client)
            sell(console, client, shop)
            with history(console) as spark:
                archive(console, spark, url, Path(folder) / "lake")
                tell(console, spark, Path(folder) / "lake")
            redrive(console, client, shop)
        click.echo("")
    console.print(f"[dim]{time.monotonic() - began:.0f} s. The server is stopped and the folder is gone again.[/]")
    console.print(
        "\nTry next:\n"
        "  ./penstock serve          a server of your own, on ./data\n"
        "  docs/quickstart.md        queues in five minutes, with curl and Python\n"
        "  docs/pipeline.md          Spark on queues: read, write, archive, replay"
    )


def say(console: Console, title: str, text: str = "") -> None:
    console.print(f"\n[bold]{title}[/] {text}".rstrip())


# The server ----------------------------------------------------------------------------------------------


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """`penstock serve` on a free port, until the block ends."""
    options = ["--store", str(folder / "shop.db"), "--port", "0", "--log-level", "error"]
    command = [sys.executable, "-m", "penstock", "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"listens on (http://\S+)", line)
        if found:
            # Read all along: a server must not block on a full pipe.
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return found[1]
    raise click.ClickException("the server did not start; try ./penstock serve to see why")


# The shop ------------------------------------------------------------------------------------------------


class Shop:
    """Its workers, and what they did."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.card_works = False
        self.paid = 0
        self.failed = 0

    def pay(self, received: Received) -> None:
        """Now and then the bank is away; a few cards stay broken until the bug is fixed."""
        order = json.loads(received.payload)
        if order["number"] % BROKEN_CARD == 0 and not self.card_works:
            self.failed += 1
            raise ValueError(f"card {order['number']} of {order['customer']} is not valid")
        if order["number"] % AWAY_BANK == 0 and received.attempt == 1:
            self.failed += 1
            raise TimeoutError(f"the bank did not answer in {2 + order['number'] % 7} s")
        self.paid += 1

    def work(self, client: Client) -> None:
        """Run a consumer of the payments until its group has nothing left but dead letters."""
        with Client(self.url) as own:
            consumer = own.consumer("orders", self.pay, group="payments", concurrency=4, batch=None, prefetch=200)
            working = threading.Thread(target=consumer.run)
            working.start()
            try:
                deadline = time.monotonic() + WORK_SECONDS
                while not _is_idle(client):
                    if time.monotonic() > deadline:
                        raise click.ClickException("the workers did not come to an end; is this machine very busy?")
                    time.sleep(0.05)
            finally:
                consumer.stop()
                working.join()


def _is_idle(client: Client) -> bool:
    return next(one for one in client.stats("orders").groups if one.group == "payments").lag == 0


def open_shop(client: Client) -> None:
    client.declare_queue("orders", ordered=True, lanes=2, retain_ms=7 * 86_400_000, max_attempts=3, backoff_ms=50)
    client.declare_group("orders", "payments")
    client.declare_group("orders", "audit", kind="stream")


def sell(console: Console, client: Client, shop: Shop) -> None:
    say(console, "2. A shop", f"{PRODUCERS} producers sell {ORDERS:,} orders while a worker takes the payments")
    began = time.monotonic()
    producers = [threading.Thread(target=_produce, args=(shop.url, number)) for number in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    shop.work(client)
    reasons = client.dead_reasons("orders", "payments")
    dead = sum(reason.count for reason in reasons)
    console.print(
        f"   {shop.paid:,} paid, each customer's in order; {shop.failed:,} attempts failed and were repeated; "
        f"{dead} orders are dead letters  [dim]({time.monotonic() - began:.1f} s)[/]",
        soft_wrap=True,
    )


def _produce(url: str, number: int) -> None:
    with Client(url) as client, client.producer("orders") as producer:
        for index in range(number, ORDERS, PRODUCERS):
            customer = f"customer-{index % CUSTOMERS}"
            order = {"number": index + 1, "customer": customer, "cents": 100 + index % 900}
            producer.send(Message(json.dumps(order).encode(), partition=customer, content_type="application/json"))


# Its history ---------------------------------------------------------------------------------------------


@contextmanager
def history(console: Console) -> Iterator[SparkSession]:
    from penstock.spark.session import spark_session

    say(console, "3. Spark", "starts on this machine (some seconds)")
    spark = spark_session("penstock demo", quick_start=True)
    try:
        yield spark
    finally:
        spark.stop()


def archive(console: Console, spark: SparkSession, url: str, lake: Path) -> None:
    from penstock.spark.jobs.archive import job
    from penstock.spark.jobs.frame import Progress
    from penstock.spark.lake.source import read_lake

    began = time.monotonic()
    with Progress("archive", "demo") as progress:
        progress.finish(job.run(spark, job.ArchiveOptions(url=url, lake=str(lake)), progress))
    rows = read_lake(spark, str(lake), columns=["queue"]).count()
    events = read_lake(spark, str(lake), columns=["queue"], table="events").count()
    files = sum(1 for _ in lake.rglob("*.parquet"))
    say(console, "4. The lake", f"{lake}")
    console.print(
        f"   {rows:,} messages and {events:,} delivery events in {files} Parquet files under a Delta log  "
        f"[dim]({time.monotonic() - began:.1f} s)[/]",
        soft_wrap=True,
    )


def tell(console: Console, spark: SparkSession, lake: Path) -> None:
    from penstock.cli.pipeline.stats import show
    from penstock.spark.jobs.frame import Progress
    from penstock.spark.jobs.stats import job as stats
    from penstock.spark.lake.source import read_lake

    say(console, "5. What happened", "summed up from the lake, as `penstock pipeline stats` does")
    with Progress("stats", "demo") as progress:
        summary = stats.run(spark, stats.StatsOptions(lake=str(lake), queues="orders"), progress)
        progress.finish(summary)
    show(summary)
    events = read_lake(spark, str(lake), queues=["orders"], table="events").where("kind IN ('released', 'postponed')")
    returned = sum(row["messages"] for row in events.select("messages").collect())
    (group,) = (row for row in summary.details["totals"] if row["group"] == "payments")
    console.print(
        f"   [dim]Delivered counts hand-outs: of the {group['delivered']:,}, {returned:,} were given back unopened, "
        f"since an earlier order of the same customer had failed; {group['retried']:,} were repeated.[/]",
        soft_wrap=True,
    )


# Its dead letters ----------------------------------------------------------------------------------------


def redrive(console: Console, client: Client, shop: Shop) -> None:
    say(console, "6. Dead letters", "the cards are mended; all of them are tried again")
    shop.card_works = True
    before = shop.paid
    redriven = client.redrive("orders", "payments")
    shop.work(client)
    left = sum(reason.count for reason in client.dead_reasons("orders", "payments"))
    console.print(f"   {redriven} redriven, {shop.paid - before} paid, {left} dead letters left")
