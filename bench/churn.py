"""`./penstock bench churn`: does the database stay small while messages go through it?

Publishes, claims and acknowledges batches on a PostgreSQL or MariaDB server of its own, with the server's own
housekeeping on, and prints the tables' sizes as it goes: a table that only ever holds a few rows must not grow with the
messages that went through it. Every message is counted; the end says whether any was lost or came twice.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from array import array
from itertools import cycle
from typing import Any, Final, NamedTuple, Protocol

import penstock
from penstock import Message, encode
from penstock.api.broker import Broker
from tests.databases.mariadb import MariadbServer
from tests.databases.postgres import PostgresServer

PAYLOAD_BYTES: Final = 200
CALLERS: Final = 4
POSTGRES_SIZES: Final = """
SELECT relname, pg_total_relation_size(relid), n_dead_tup, n_tup_upd, n_tup_hot_upd, autovacuum_count
FROM pg_stat_user_tables WHERE schemaname = 'penstock'"""
MARIADB_SIZES: Final = """
SELECT substring_index(name, '/', -1), file_size, 0, 0, 0, 0 FROM information_schema.innodb_sys_tablespaces
WHERE name LIKE 'penstock/%'"""


class Table(NamedTuple):
    name: str
    bytes: int
    dead_rows: int
    updates: int
    hot_updates: int
    vacuums: int


class Server(Protocol):
    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(prog="./penstock bench churn", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="how many go through (default: 2 million)")
    parser.add_argument("--batch", type=int, default=100, help="messages a publish and a claim (default: 100)")
    parser.add_argument(
        "--queues", type=int, default=4, help="queues, each with a publisher and a consumer (default: 4)"
    )
    parser.add_argument("--reports", type=int, default=10, help="how often sizes are printed (default: 10)")
    parser.add_argument("--engine", choices=("postgres", "mysql"), default="postgres")
    parser.add_argument("--backlog", type=int, default=0, help="batches that stay in each queue ahead (default: 0)")
    arguments = parser.parse_args()
    server: Server = PostgresServer() if arguments.engine == "postgres" else MariadbServer(innodb_file_per_table="1")
    try:
        asyncio.run(churn(arguments, server))
    finally:
        server.close()


async def churn(arguments: argparse.Namespace, server: Server) -> None:
    place = f"{server.url}?schema=penstock" if arguments.engine == "postgres" else f"{server.url}/penstock"
    sizes = PostgresSizes(server.url) if arguments.engine == "postgres" else MariadbSizes(place)
    batches_each = max(1, arguments.messages // arguments.batch // arguments.queues)
    total = batches_each * arguments.batch * arguments.queues
    async with await penstock.open(place) as broker:
        run = Run(broker, arguments.batch, arguments.queues, batches_each, arguments.backlog)
        for queue in run.queues:
            await broker.declare_queue(queue)
            await broker.claim(queue)
        started = time.perf_counter()
        async with asyncio.TaskGroup() as work:
            for task in run.tasks():
                work.create_task(task)
            for report in range(1, arguments.reports + 1):
                await run.reached(total * report // arguments.reports)
                await asyncio.to_thread(show, sizes, run.done, time.perf_counter() - started)
        lost, twice = run.verdict()
    print(f"{total:,} messages, {lost} lost, {twice} twice, {total / (time.perf_counter() - started):,.0f} msg/s")
    if lost or twice:
        raise SystemExit(1)


class Run:
    """The publishers and consumers, and what came out."""

    def __init__(self, broker: Broker, batch: int, queues: int, batches_each: int, backlog: int) -> None:
        self._broker = broker
        self._batch = batch
        self._batches_each = batches_each
        self._ahead = [asyncio.Semaphore(CALLERS + backlog) for _ in range(queues)]
        self._seen = [bytearray(batches_each * batch) for _ in range(queues)]
        self._twice = 0
        self.queues = [f"churn-{number}" for number in range(queues)]
        self.done = 0
        self._progress = asyncio.Condition()

    async def reached(self, messages: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self.done >= messages)

    def tasks(self) -> list[Any]:
        numbers = range(len(self.queues))
        return [self._publish(number) for number in numbers] + [self._consume(number) for number in numbers]

    async def _publish(self, number: int) -> None:
        # Nothing to compress: each message has its own piece of it.
        filler = random.Random(number).randbytes(1 << 20)
        length, places = PAYLOAD_BYTES - 8, range(0, (1 << 20) - PAYLOAD_BYTES, PAYLOAD_BYTES)
        for batch in range(self._batches_each):
            await self._ahead[number].acquire()
            ids = array("Q", range(batch * self._batch, (batch + 1) * self._batch)).tobytes()
            pieces = cycle(places[batch * self._batch % len(places) :])
            messages = [
                Message(ids[at : at + 8] + filler[place : place + length])
                for at, place in zip(range(0, len(ids), 8), pieces, strict=False)
            ]
            await self._broker.publish_batch(self.queues[number], encode(messages))

    async def _consume(self, number: int) -> None:
        left = self._batches_each * self._batch
        while left:
            claim = await self._broker.claim(self.queues[number], max=self._batch, wait=10)
            await self._broker.ack(claim)
            for message in claim.messages:
                place = int.from_bytes(message.payload[:8], "little")
                self._twice += self._seen[number][place]
                self._seen[number][place] = 1
            left -= len(claim.messages)
            self.done += len(claim.messages)
            self._ahead[number].release()
            async with self._progress:
                self._progress.notify_all()

    def verdict(self) -> tuple[int, int]:
        """(lost, twice)"""
        return sum(seen.count(0) for seen in self._seen), self._twice


class PostgresSizes:
    def __init__(self, url: str) -> None:
        self._url = url

    def tables(self) -> list[Table]:
        return asyncio.run(self._fetch())

    async def _fetch(self) -> list[Table]:
        import asyncpg

        connection = await asyncpg.connect(self._url)
        try:
            return [Table(*row) for row in await connection.fetch(POSTGRES_SIZES)]
        finally:
            await connection.close()


class MariadbSizes:
    def __init__(self, url: str) -> None:
        self._url = url

    def tables(self) -> list[Table]:
        from penstock.store.mysql.pool import Connection, StoreAddress

        connection = Connection(StoreAddress.parse(self._url), 30.0, None)
        try:
            return [Table(*row) for row in connection.fetch(MARIADB_SIZES.encode())]
        finally:
            connection.close()


def show(sizes: PostgresSizes | MariadbSizes, messages: int, seconds: float) -> None:
    tables = sorted(sizes.tables(), key=lambda table: -table.bytes)
    print(f"{messages:>12,} messages, {seconds:7.1f} s, {sum(table.bytes for table in tables) / 1e6:9.1f} MB in all")
    for table in tables[:6]:
        hot = f"{100 * table.hot_updates // table.updates:3} % of updates in place" if table.updates else ""
        print(
            f"    {table.name:<10} {table.bytes / 1e6:9.2f} MB  {table.dead_rows:>8,} dead rows  "
            f"{table.vacuums:>4} vacuums  {hot}".rstrip(),
            flush=True,
        )


if __name__ == "__main__":
    main()
