"""Redis Streams with consumer groups, through redis-py on asyncio with hiredis."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers_lib.peer import Client, Consumer, Peer, library_path, program
from bench.peers_lib.processes import Process, free_port, wait_for_port

TAKE_MS = 200
DEFAULT_GROUP = "default"


class Redis(Peer):
    name = "redis"
    library = "redis-py on asyncio with hiredis, one connection a caller, commands of a batch in one pipeline"
    confirm = (
        "Streams, appendonly with appendfsync always: an answer leaves after the command was written to the "
        "append-only file and forced to disk; acknowledgements (XACK) too. Entries that are done stay in the stream: "
        "trimming is not counted."
    )

    def _server(self) -> Path | None:
        return program("usr/bin/redis-server", "usr/local/bin/redis-server")

    def missing(self) -> str | None:
        return None if self._server() else "the package redis-server"

    def version(self) -> str:
        printed = subprocess.run(
            [str(self._server()), "--version"], env=library_path(), capture_output=True, text=True, check=False
        )
        return printed.stdout.partition("v=")[2].split(" ")[0] or "?"

    def start(self, folder: Path) -> None:
        server = self._server()
        assert server is not None
        self.port = free_port()
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(folder),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        command = [str(server), *(part for name, value in settings.items() for part in (f"--{name}", value))]
        self.processes.append(Process(command, folder / "server.log", library_path(), folder))
        wait_for_port(self.port, self.processes[0])

    @staticmethod
    def client(port: int) -> Client:
        return RedisClient(port)


class RedisClient(Client):
    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        self._connections: list[Any] = []

    async def open(self, callers: int) -> None:
        for _ in range(callers):
            self._idle.put_nowait(await self._connect())

    async def _connect(self) -> Any:
        from redis.asyncio import Redis as Connection

        connection = Connection(host="127.0.0.1", port=self._port, single_connection_client=True)
        await connection.initialize()
        self._connections.append(connection)
        return connection

    async def close(self) -> None:
        for connection in self._connections:
            await connection.aclose()

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        connection = await self._idle.get()
        try:
            for group in groups or [DEFAULT_GROUP]:
                await connection.xgroup_create(queue, group, id="0", mkstream=True)
        finally:
            self._idle.put_nowait(connection)

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        connection = await self._idle.get()
        try:
            if len(payloads) == 1:
                await connection.execute_command("XADD", queue, "*", "p", payloads[0])
                return
            pipeline = connection.pipeline(transaction=False)
            for payload in payloads:
                pipeline.execute_command("XADD", queue, "*", "p", payload)
            await pipeline.execute()
        finally:
            self._idle.put_nowait(connection)

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        return RedisConsumer(await self._connect(), queue, group or DEFAULT_GROUP, most, f"c{len(self._connections)}")

    async def take_and_ack(self, queue: str) -> list[bytes]:
        connection = await self._idle.get()
        try:
            consumer = RedisConsumer(connection, queue, DEFAULT_GROUP, 1, "c")
            payloads, token = await consumer.take()
            if payloads:
                await consumer.ack(token)
            return payloads
        finally:
            self._idle.put_nowait(connection)


class RedisConsumer(Consumer):
    def __init__(self, connection: Any, queue: str, group: str, most: int, name: str) -> None:
        self._connection = connection
        self._queue = queue
        self._group = group
        self._most = most
        self._name = name

    async def take(self) -> tuple[list[bytes], Any]:
        answer = await self._connection.xreadgroup(
            self._group, self._name, {self._queue: ">"}, count=self._most, block=TAKE_MS
        )
        if not answer:
            return [], None
        # A list of streams, or a dictionary where the connection speaks the newer protocol.
        [entries] = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
        if isinstance(answer, dict):
            [entries] = entries
        return [fields[b"p"] for _, fields in entries], [id for id, _ in entries]

    async def ack(self, token: Any) -> None:
        await self._connection.execute_command("XACK", self._queue, self._group, *token)
