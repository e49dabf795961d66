"""PostgreSQL as a queue: a table a queue, SKIP LOCKED, through asyncpg.

`postgres` leases messages as pgmq does: taking sets a time until which others do not see them, and acknowledging
deletes them. `postgres-tx` deletes them in a transaction that stays open until they are acknowledged: cheaper, but a
consumer holds a connection and row locks for as long as it works.
"""

from __future__ import annotations

import abc
import asyncio
import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers_lib.peer import LEASE_S, Client, Consumer, Peer, library_path, program
from bench.peers_lib.processes import Process, StartFailed, free_port, wait_for_port

POOL = 32
TAKE_S = 0.2
POLL_S = 0.005
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "max_connections": "120",
    "logging_collector": "off",
    "max_locks_per_transaction": "256",
}


class Postgres(Peer):
    name = "postgres"
    library = "asyncpg, a pool of 32 connections, prepared statements, arrays for a batch"
    confirm = (
        "A table a queue, read with FOR UPDATE SKIP LOCKED under a visibility timeout and deleted on acknowledgement, "
        "as pgmq does it; fsync and synchronous_commit on: publishes, leases and acknowledgements are each forced to "
        "disk before they are answered. Waiting consumers ask again every 5 ms."
    )

    def _program(self, name: str) -> Path | None:
        return program(f"usr/lib/postgresql/*/bin/{name}", f"usr/local/bin/{name}")

    def missing(self) -> str | None:
        return None if self._program("postgres") and self._program("initdb") else "the package postgresql"

    def version(self) -> str:
        printed = subprocess.run(
            [str(self._program("postgres")), "--version"],
            env=library_path(),
            capture_output=True,
            text=True,
            check=False,
        )
        return next((word for word in printed.stdout.split() if word[0].isdigit()), "?")

    def start(self, folder: Path) -> None:
        server, initialise = self._program("postgres"), self._program("initdb")
        assert server is not None
        assert initialise is not None
        user = self._hand_over(folder)
        data = folder / "data"
        made = subprocess.run(
            [
                str(initialise),
                "--pgdata",
                str(data),
                "--username=bench",
                "--auth=trust",
                "--no-sync",
                "--no-locale",
                "--encoding=UTF8",
            ],
            env=os.environ | library_path(),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        if made.returncode != 0:
            raise StartFailed(f"initdb failed: {made.stdout}{made.stderr}")
        self.port = free_port()
        settings = SETTINGS | {"port": str(self.port), "unix_socket_directories": ""}
        command = [
            str(server),
            "-D",
            str(data),
            *(part for item in settings.items() for part in ("-c", "=".join(item))),
        ]
        self.processes.append(Process(command, folder / "server.log", library_path(), folder, user))
        wait_for_port(self.port, self.processes[0])

    def _hand_over(self, folder: Path) -> int | None:
        """PostgreSQL refuses to run as root: then the folder and the processes are those of the user nobody."""
        if os.geteuid() != 0:
            return None
        user = pwd.getpwnam("nobody").pw_uid
        os.chown(folder, user, user)
        return user

    @staticmethod
    def client(port: int) -> Client:
        return PostgresClient(port)


class PostgresInTransaction(Postgres):
    name = "postgres-tx"
    confirm = (
        "The same tables; taking deletes with FOR UPDATE SKIP LOCKED in a transaction that stays open, and "
        "acknowledging commits it. Publishes and acknowledgements are forced to disk before they are answered. A "
        "consumer holds a connection and locks while it works, and there is no lease."
    )

    @staticmethod
    def client(port: int) -> Client:
        return PostgresClient(port, in_transaction=True)


CREATE = """
CREATE TABLE "{table}" (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, reads int NOT NULL DEFAULT 0,
    published timestamptz NOT NULL DEFAULT now(), visible timestamptz NOT NULL DEFAULT now(), payload bytea NOT NULL
);
CREATE INDEX ON "{table}" (visible);
"""
INSERT = 'INSERT INTO "{table}" (payload) SELECT unnest($1::bytea[])'
LEASE = """
WITH chosen AS (
    SELECT id FROM "{table}" WHERE visible <= clock_timestamp() ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE "{table}" SET visible = clock_timestamp() + make_interval(secs => $2), reads = reads + 1
FROM chosen WHERE "{table}".id = chosen.id RETURNING "{table}".id, payload
"""
DELETE = 'DELETE FROM "{table}" WHERE id = ANY($1::bigint[])'
TAKE = """
DELETE FROM "{table}" WHERE id = ANY(ARRAY(SELECT id FROM "{table}" ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING payload
"""


class PostgresClient(Client):
    def __init__(self, port: int, *, in_transaction: bool = False) -> None:
        self._port = port
        self._in_transaction = in_transaction
        self._groups: dict[str, Sequence[str]] = {}

    async def open(self, callers: int) -> None:
        import asyncpg

        size = min(callers, POOL)
        self._pool: Any = await asyncpg.create_pool(
            host="127.0.0.1",
            port=self._port,
            user="bench",
            database="postgres",
            ssl=False,
            min_size=size,
            max_size=size + 16,
        )

    async def close(self) -> None:
        self._pool.terminate()

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        self._groups[queue] = groups
        async with self._pool.acquire() as connection, connection.transaction():
            for table in self._tables(queue):
                await connection.execute(CREATE.format(table=table))

    def _tables(self, queue: str) -> list[str]:
        return [f"{queue}.{group}" for group in self._groups.get(queue, ())] or [queue]

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        tables = self._tables(queue)
        async with self._pool.acquire() as connection:
            if len(tables) == 1:
                await connection.execute(INSERT.format(table=queue), payloads)
                return
            async with connection.transaction():
                for table in tables:
                    await connection.execute(INSERT.format(table=table), payloads)

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        table = queue if group is None else f"{queue}.{group}"
        kind = TransactionConsumer if self._in_transaction else LeaseConsumer
        return kind(self._pool, await self._pool.acquire(), table, most)

    async def take_and_ack(self, queue: str) -> list[bytes]:
        consumer = await self.consumer(queue, 1)
        try:
            payloads, token = await consumer.take()
            if payloads:
                await consumer.ack(token)
            return payloads
        finally:
            await consumer.close()


class _PollingConsumer(Consumer):
    """PostgreSQL has no call that waits for rows: look, sleep, look again."""

    def __init__(self, pool: Any, connection: Any, table: str, most: int) -> None:
        self._pool = pool
        self._connection = connection
        self._table = table
        self._most = most

    async def take(self) -> tuple[list[bytes], Any]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TAKE_S
        while True:
            payloads, token = await self._look()
            if payloads or loop.time() >= deadline:
                return payloads, token
            await asyncio.sleep(POLL_S)

    @abc.abstractmethod
    async def _look(self) -> tuple[list[bytes], Any]:
        """What is there now."""

    async def close(self) -> None:
        await self._pool.release(self._connection)


class LeaseConsumer(_PollingConsumer):
    async def _look(self) -> tuple[list[bytes], Any]:
        rows = await self._connection.fetch(LEASE.format(table=self._table), self._most, float(LEASE_S))
        return [row[1] for row in rows], [row[0] for row in rows]

    async def ack(self, token: Any) -> None:
        await self._connection.execute(DELETE.format(table=self._table), token)


class TransactionConsumer(_PollingConsumer):
    async def _look(self) -> tuple[list[bytes], Any]:
        transaction = self._connection.transaction()
        await transaction.start()
        rows = await self._connection.fetch(TAKE.format(table=self._table), self._most)
        if not rows:
            await transaction.rollback()
        return [row[0] for row in rows], transaction

    async def ack(self, token: Any) -> None:
        await token.commit()
