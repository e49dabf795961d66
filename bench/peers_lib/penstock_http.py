"""Penstock itself: `penstock serve` as a child process, through its own Python client over HTTP.

`penstock` sends and receives encoded batches, `penstock-postgres` does so on PostgreSQL; `penstock-json` says the same
in plain JSON, as any HTTP client would, through the connections of the Python client.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import penstock
from bench.peers_lib.peer import ROOT, Client, Consumer, Peer
from bench.peers_lib.postgres import Postgres
from bench.peers_lib.processes import Process, free_port, wait_for_port

TAKE_S = 0.2


class Penstock(Peer):
    name = "penstock"
    library = (
        "penstock.AsyncClient as it comes: encoded batches, an id on every publish so that a repeat is known; small "
        "publishes that overlap share requests; consumers of batches claim the next and acknowledge the last at once"
    )
    confirm = (
        "An SQLite file and its synced log: a publish, a lease and an acknowledgement are each answered after "
        "the commit that holds them was forced to disk."
    )

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return penstock.__version__

    def start(self, folder: Path) -> None:
        self.serve(folder, str(folder / "penstock.db"))

    def serve(self, folder: Path, store: str) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", str(self.port)]
        command += ["--store", store, "--no-amqp", "--no-mqtt", "--set", "log.level=warning"]
        self.processes.append(Process(command, folder / "penstock.log", {"PYTHONPATH": str(ROOT / "src")}, folder))
        wait_for_port(self.port, self.processes[-1])

    @staticmethod
    def client(port: int) -> Client:
        return PenstockClient(port)


class PenstockPostgres(Penstock):
    """On the very PostgreSQL that the peer `postgres` has: the same version, the same settings."""

    name = "penstock-postgres"
    confirm = (
        "PostgreSQL with fsync and synchronous_commit on: a publish, a lease and an acknowledgement are each answered "
        "after the commit that holds them was forced to disk. CPU and memory are the node's and the database's."
    )

    def missing(self) -> str | None:
        return Postgres().missing()

    def start(self, folder: Path) -> None:
        database = Postgres()
        below = folder / "database"
        below.mkdir()
        database.start(below)
        self.processes += database.processes
        self.serve(folder, f"postgresql://bench@127.0.0.1:{database.port}/postgres")


class PenstockJson(Penstock):
    name = "penstock-json"
    library = "plain JSON over HTTP, payloads in base64 unless they are text"

    @staticmethod
    def client(port: int) -> Client:
        return PenstockJsonClient(port)


class PenstockClient(Client):
    """Any number of callers share the client, which keeps as many connections as it needs."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def open(self, callers: int) -> None:
        self._client = penstock.AsyncClient(self._url)

    async def close(self) -> None:
        await self._client.close()

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        await self._client.declare_queue(queue)
        # The default group too exists from the first claim on only, and then sees what was published since.
        for group in groups or ["default"]:
            await self._client.declare_group(queue, group)

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        messages = list(map(penstock.Message, payloads))
        if len(messages) == 1:
            await self._client.publish(queue, messages[0])
        else:
            await self._client.publish_many(queue, messages)

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        return PenstockConsumer(self._client, queue, most, group or "default")

    async def take_and_ack(self, queue: str) -> list[bytes]:
        consumer = PenstockConsumer(self._client, queue, 1, "default")
        payloads, token = await consumer.take()
        if payloads:
            await consumer.ack(token)
        return payloads


class PenstockConsumer(Consumer):
    """Claims the next messages with the acknowledgement of the last ones.

    After a full claim there is more: one request does both. After any other the next claim may have to wait, so it is a
    request of its own at the same time.
    """

    def __init__(self, client: Any, queue: str, most: int, group: str) -> None:
        self._client = client
        self._queue = queue
        self._most = most
        self._group = group
        self._ahead: asyncio.Task[Any] | None = None
        self._next: Any = None

    async def take(self) -> tuple[list[bytes], Any]:
        claim, self._next = self._next, None
        if not claim:
            ahead, self._ahead = self._ahead or self._claim(), None
            claim = await ahead
        return claim.payloads(), claim

    def _claim(self) -> asyncio.Task[Any]:
        claim = self._client.claim(self._queue, group=self._group, max=self._most, wait=TAKE_S)
        return asyncio.get_running_loop().create_task(claim)

    async def ack(self, token: Any) -> None:
        if self._most == 1:
            await self._client.ack(token)
        elif len(token) == self._most:
            self._next = await self._client.settle_and_claim(token, max=self._most)
        else:
            self._ahead = self._claim()
            await self._client.ack(token)

    async def close(self) -> None:
        ahead = self._next if self._ahead is None else await self._ahead
        if ahead:
            await self._client.release(ahead)


# Plain JSON ----------------------------------------------------------------------------------------------


class _Json:
    """Requests and answers in JSON over the client's connections."""

    def __init__(self, url: str) -> None:
        from penstock.client.transport.channel import NO_RETRY, Channel

        self._no_retry = NO_RETRY
        self._channel = Channel(url, token=None, timeout_s=60, connect_timeout_s=10, connections_max=1000, tls=None)

    async def send(self, method: bytes, path: str, body: bytes) -> bytes:
        from penstock.client.transport.channel import Request

        headers = b"content-type: application/json\r\naccept: application/json\r\n"
        reply = await self._channel.send(Request(method, path.encode(), body, headers), self._no_retry)
        return reply.body

    def close(self) -> None:
        self._channel.close()


class PenstockJsonClient(Client):
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def open(self, callers: int) -> None:
        self._json = _Json(self._url)

    async def close(self) -> None:
        self._json.close()

    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        await self._json.send(b"PUT", f"/v1/queues/{quote(queue, safe='')}", b"{}")
        for group in groups or ["default"]:
            await self._json.send(b"PUT", f"/v1/queues/{quote(queue, safe='')}/groups/{group}", b"{}")

    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        from penstock.wire.http.shapes import PublishRequest, encode_json, message_body

        body = encode_json(PublishRequest([message_body(penstock.Message(payload)) for payload in payloads]))
        await self._json.send(b"POST", f"/v1/queues/{quote(queue, safe='')}/messages", body)

    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer:
        return PenstockJsonConsumer(self._json, queue, most, group or "default")

    async def take_and_ack(self, queue: str) -> list[bytes]:
        consumer = PenstockJsonConsumer(self._json, queue, 1, "default")
        payloads, token = await consumer.take()
        if payloads:
            await consumer.ack(token)
        return payloads


class PenstockJsonConsumer(Consumer):
    def __init__(self, json: _Json, queue: str, most: int, group: str) -> None:
        import msgspec

        from penstock.wire.http.shapes import ClaimAnswer, ClaimRequest, SettleRequest, VerdictBody, encode_json

        self._json = json
        self._path = f"/v1/queues/{quote(queue, safe='')}/claim"
        self._request = encode_json(ClaimRequest(group=group, max=most, wait=TAKE_S))
        self._decode = msgspec.json.Decoder(ClaimAnswer).decode
        self._settle = encode_json(SettleRequest([VerdictBody(action="ack")]))

    async def take(self) -> tuple[list[bytes], Any]:
        answer = self._decode(await self._json.send(b"POST", self._path, self._request))
        payloads = [
            (message.payload_base64 or b"") if message.payload is None else message.payload.encode()
            for message in answer.messages
        ]
        return payloads, answer.lease

    async def ack(self, token: Any) -> None:
        await self._json.send(b"POST", f"/v1/leases/{token}/settle", self._settle)
