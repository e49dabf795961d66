"""`./penstock bench spark`: how fast queues are read, written and archived by Spark, all ids checked.

One server on a SQLite file, and then one on PostgreSQL (rows that end in @postgresql), one Spark session on local[2],
all on this machine, 200-byte payloads that do not compress. Beside it what a user would do without Penstock: Spark's
JDBC source and sink on a PostgreSQL table with one row a message. PostgreSQL is that of `./penstock bench peers
--setup`; both are left out where it is missing. What comes second finds the session warm: with few rows, compare
runs of one store each.

Rates are rows a second of wall clock, and rows per CPU-second of everything: server, database, JVM, Python workers,
driver.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench.peers_lib.peer import BENCH
from bench.peers_lib.penstock_http import Penstock, PenstockPostgres
from bench.spark_lib.jdbc import JDBC_WORKLOADS, Database, jar, missing
from bench.spark_lib.measuring import Row, table
from bench.spark_lib.workloads import WORKLOADS, Bench

STORES: dict[str, type[Penstock]] = {"sqlite": Penstock, "postgresql": PenstockPostgres}

EXAMPLES = """\
examples:
  ./penstock bench spark                                 everything, about twenty minutes
  ./penstock bench spark --rows 200000                   a quick look
  ./penstock bench spark --workloads archive --rows 10000000
  ./penstock bench spark --workloads read-count,jdbc --json
  ./penstock bench spark --store postgresql              the server on PostgreSQL alone

workloads:
"""


def main() -> None:
    parser = argument_parser()
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, stop_on_signal)
    names = chosen(parser, arguments.workloads)
    if arguments.rows < 1_000:
        parser.error(f"--rows is {arguments.rows}; a thousand at least")
    without = missing()
    if without and any(name in JDBC_WORKLOADS for name in names):
        say(f"JDBC is left out: {without}; ./penstock bench peers --setup gets it")
        names = [name for name in names if name not in JDBC_WORKLOADS]
    try:
        rows = run(names, stores(parser, arguments.store), arguments.rows, arguments.master, arguments.folder or BENCH)
    except KeyboardInterrupt:
        sys.exit("stopped; the server is down and its data is removed")
    for row in rows if arguments.json else ():
        print(json.dumps(row.as_fields()), flush=True)
    if not arguments.json:
        print(table(rows))
    if any(row.wrong for row in rows):
        sys.exit("rows were lost, doubled or changed: " + "; ".join(row.wrong for row in rows if row.wrong))


def stop_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def argument_parser() -> argparse.ArgumentParser:
    listed = {**WORKLOADS, **JDBC_WORKLOADS}
    parser = argparse.ArgumentParser(
        prog="penstock bench spark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES + "\n".join(f"  {name:<22}{work.__doc__}" for name, work in listed.items()),
    )
    parser.add_argument("--workloads", default="", metavar="X,Y", help="only these")
    parser.add_argument("--store", choices=("both", *STORES), default="both", help="what the server stands on")
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages in the queue (default 2,000,000)")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default local[2])")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of the table")
    parser.add_argument("--folder", type=Path, help="where data is kept (default: .bench/, on this disk)")
    return parser


def chosen(parser: argparse.ArgumentParser, asked: str) -> list[str]:
    known = [*WORKLOADS, *JDBC_WORKLOADS]
    names = [name.strip() for name in asked.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown workload {', '.join(unknown)}; there are {', '.join(known)}")
    return names or known


def stores(parser: argparse.ArgumentParser, asked: str) -> list[str]:
    """Those that are asked for and can be had."""
    names = list(STORES) if asked == "both" else [asked]
    for name in list(names):
        if without := STORES[name]().missing():
            if asked == name:
                parser.error(f"--store {name}: {without} is missing; ./penstock bench peers --setup gets it")
            say(f"the server on {name} is left out: {without} is missing; ./penstock bench peers --setup gets it")
            names.remove(name)
    return names


def run(names: Sequence[str], stores: Sequence[str], count: int, master: str, folder: Path) -> list[Row]:
    from penstock.spark.session import spark_session

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="spark-", dir=folder) as place:
        driver = jar()
        spark = spark_session(
            "penstock bench",
            master=master,
            config={"spark.local.dir": place, "spark.sql.warehouse.dir": f"{place}/warehouse"}
            | ({"spark.jars": str(driver)} if driver else {}),
        )
        rows: list[Row] = []
        try:
            Path(place).chmod(0o755)  # PostgreSQL may have to run as another user
            for store in stores:
                below = Path(place) / store
                below.mkdir()
                with Bench(spark, below, count, STORES[store]()) as bench:
                    say(f"{count:,} messages are in the queue, on {store}")
                    # The peer is the same whatever the server stands on.
                    for name in (name for name in names if name in WORKLOADS or store == stores[0]):
                        rows += measured(name, bench, folder, "" if store == "sqlite" else f"@{store}")
        finally:
            spark.stop()
        return rows


def measured(name: str, bench: Bench, folder: Path, suffix: str) -> list[Row]:
    if name in WORKLOADS:
        rows = WORKLOADS[name](bench)
        for row in rows:
            row.name += suffix
    else:
        with Database(folder) as database:
            rows = JDBC_WORKLOADS[name](bench, database)
    for row in rows:
        say(f"{row.name:<27} {row.short()}")
    return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
