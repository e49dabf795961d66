"""The attacks: each is legal, each asks for much. `ATTACKS` names them in the order of the table."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import ClassVar, Final
from urllib.parse import quote

from bench.polite_lib.attack import Attack
from bench.polite_lib.http import ARROW, BATCH, BATCHES, JSON, Connection, request
from penstock import Message, encode
from penstock.batch import to_bytes

LARGE: Final = 15_000_000
MANY: Final = 100_000
HEADER: Final = 60_000
UNREAD_S: Final = 5.0
LEASE: Final = re.compile(rb'"lease": ?"([^"]+)"')


def publish(queue: str, body: bytes | object, kind: str = JSON) -> bytes:
    return request("POST", f"/v1/queues/{queue}/messages", body, kind)


def binary(messages: list[Message]) -> bytes:
    return to_bytes(encode(messages))


# Large bodies --------------------------------------------------------------------------------------------


class LargeBodies(Attack):
    """15 MB published and claimed, again and again: bytes that do not compress, as an encoded batch."""

    compresses: ClassVar[bool] = False
    as_json: ClassVar[bool] = False

    async def prepare(self) -> None:
        for number in range(self.clients):
            await self.declare(f"large-{number}")
        size = self.scaled(LARGE)
        payload = b"all the same " * (size // 13) if self.compresses else random.Random(1).randbytes(size)
        self._body: bytes | object = binary([Message(payload)])
        if self.as_json:
            self._body = {"messages": [{"payload": payload.hex()[:size]}]}

    async def client(self, number: int) -> None:
        kind, accept = (JSON, JSON) if self.as_json else (BATCH, BATCHES)
        sent = publish(f"large-{number}", self._body, kind)
        claim = request("POST", f"/v1/queues/large-{number}/claim", {"ack": True}, accept=accept)
        connection = self.connection()
        while True:
            await self.ask(connection, sent)
            await self.ask(connection, claim)


class LargeCompressible(LargeBodies):
    """15 MB that compress to a few KB."""

    compresses = True


class LargeJson(LargeBodies):
    """15 MB as JSON text."""

    as_json = True


class LargeClaims(Attack):
    """Claims of sixty messages of 15 MB that compress well, handed out and given back: 900 MB if nobody bounds it."""

    async def prepare(self) -> None:
        await self.declare("sixty")
        body = binary([Message(b"all the same " * (self.scaled(LARGE) // 13))])
        await self.setup(*[publish("sixty", body, BATCH)] * 60)

    async def client(self, number: int) -> None:
        connection = self.connection()
        while True:
            claim = request("POST", "/v1/queues/sixty/claim", {"max": 60, "wait": 1})
            found = LEASE.search((await self.ask(connection, claim)).start)
            if found:
                give_back = {"verdicts": [{"action": "release"}]}
                await self.ask(connection, request("POST", f"/v1/leases/{found[1].decode()}/settle", give_back))


# Large batches -------------------------------------------------------------------------------------------


class JsonBatches(Attack):
    """100,000 messages published in one request, claimed in one, and settled with alternating verdicts, as JSON."""

    clients = 1

    async def prepare(self) -> None:
        count = self.scaled(MANY)
        self._body: bytes | object = {"messages": [{"payload": "x"}] * count}
        self._kind = JSON
        verdicts = [{"action": ("ack", "reject")[at % 2], "start": at, "end": at + 1} for at in range(count)]
        self._verdicts = json.dumps({"verdicts": verdicts}).encode()
        self._claim = {"max": count, "lease_seconds": 600}
        self._cycles = 0

    async def client(self, number: int) -> None:
        connection = self.connection()
        while True:
            # A queue of its own each time: the offsets of the verdicts begin at 0.
            self._cycles += 1
            queue = f"batches-{self._cycles}"
            await self.ask(connection, request("PUT", f"/v1/queues/{queue}", {}))
            await self.fill(connection, queue)
            claimed = await self.ask(connection, request("POST", f"/v1/queues/{queue}/claim", self._claim))
            if found := LEASE.search(claimed.start):
                await self.settle(connection, queue, found[1].decode())
            await self.ask(connection, request("DELETE", f"/v1/queues/{queue}"))

    async def fill(self, connection: Connection, queue: str) -> None:
        await self.ask(connection, publish(queue, self._body, self._kind))

    async def settle(self, connection: Connection, queue: str, lease: str) -> None:
        await self.ask(connection, request("POST", f"/v1/leases/{lease}/settle", self._verdicts))


class BinaryBatches(JsonBatches):
    """The same, published as one encoded batch and claimed as batches."""

    async def prepare(self) -> None:
        await super().prepare()
        self._body, self._kind = binary([Message(b"x")] * self.scaled(MANY)), BATCH


class Transactions(JsonBatches):
    """100,000 messages of a lease settled and 100,000 published in one transaction."""

    async def settle(self, connection: Connection, queue: str, lease: str) -> None:
        verdicts = self._verdicts.removeprefix(b'{"verdicts": ')[:-1]
        messages = json.dumps(self._body).removeprefix('{"messages": ')[:-1]
        settled = b'{"settle": [{"lease": "%s", "verdicts": %s}], ' % (lease.encode(), verdicts)
        published = f'"publish": [{{"queue": "{queue}", "messages": {messages}}}]}}'.encode()
        await self.ask(connection, request("POST", "/v1/transactions", settled + published))


# Many connections ----------------------------------------------------------------------------------------


class SlowReaders(Attack):
    """200 connections that ask for 15 MB and do not read the answer; each gives way to a new one after five seconds."""

    clients = 200
    connects = True

    async def prepare(self) -> None:
        await self.declare("unread")
        await self.setup(publish("unread", binary([Message(random.Random(2).randbytes(self.scaled(LARGE)))]), BATCH))

    async def client(self, number: int) -> None:
        while True:
            connection = self.connection()
            await connection.send(request("GET", "/v1/queues/unread/log"))
            self.there()
            self.count()
            await asyncio.sleep(UNREAD_S)
            connection.close()


class Connections(Attack):
    """10,000 connections that do nothing; two more that open and close one after the other."""

    connects = True

    async def prepare(self) -> None:
        """Nothing: the connections are opened in the turn."""

    async def client(self, number: int) -> None:
        if number == 0:
            for _ in range(self.scaled(10_000)):
                await self.connection().open()
                self.count()
        self.there()
        while True:
            connection = Connection(self._port)
            await self.ask(connection, request("GET", "/healthz"))
            connection.close()


class Polls(Attack):
    """8,000 claims that wait for messages of one queue; each message is for one of them, and it claims again."""

    clients = 8_001
    connects = True

    async def prepare(self) -> None:
        await self.declare("polls")

    async def client(self, number: int) -> None:
        connection = self.connection()
        await connection.open()
        self.there()
        if number == 0:
            while True:
                await self.ask(connection, publish("polls", {"messages": [{"payload": "come"}]}))
                await asyncio.sleep(0.01)
        while True:
            await self.ask(connection, request("POST", "/v1/queues/polls/claim", {"wait": 30, "ack": True}))


# Filters -------------------------------------------------------------------------------------------------

SLOW_LIKE: Final = "name LIKE '%" + "_" * 250 + "x" + "_" * 250 + "%'"


class Browse(Attack):
    """Pages of 2,000 messages with headers of 60 kB, looked through for a pattern with runs of `_`."""

    async def prepare(self) -> None:
        await self.declare("headers")
        message = Message(b"x", headers={"name": "y" * self.scaled(HEADER)})
        await self.setup(*[publish("headers", binary([message] * 20), BATCH)] * self.scaled(100))

    async def client(self, number: int) -> None:
        connection = self.connection()
        while True:
            path = f"/v1/queues/headers/messages?max=2000&filter={quote(SLOW_LIKE)}"
            await self.ask(connection, request("GET", path))


class GroupFilter(Attack):
    """Claims of a group whose filter is such a pattern, over the same messages, from the beginning each time."""

    async def prepare(self) -> None:
        await Browse.prepare(self)  # type: ignore[arg-type]
        for number in range(self.clients):
            options = {"filter": SLOW_LIKE, "start": "beginning"}
            await self.setup(request("PUT", f"/v1/queues/headers/groups/slow-{number}", options))

    async def client(self, number: int) -> None:
        connection, group = self.connection(), f"slow-{number}"
        while True:
            await self.ask(connection, request("POST", f"/v1/queues/headers/groups/{group}/seek", {"to": "first"}))
            await self.ask(connection, request("POST", "/v1/queues/headers/claim", {"group": group, "max": 2_000}))


class Bindings(Attack):
    """Messages with headers of 60 kB, published to an exchange with a hundred such patterns."""

    async def prepare(self) -> None:
        await self.declare("bound")
        await self.setup(request("PUT", "/v1/exchanges/patterns", {"kind": "filter"}))
        for number in range(self.scaled(100)):
            pattern = f"name LIKE '%{'_' * (100 + number)}x{'_' * 250}%'"
            await self.setup(request("POST", "/v1/exchanges/patterns/bind", {"target": "bound", "pattern": pattern}))

    async def client(self, number: int) -> None:
        message = {"payload": "x", "headers": {"name": "y" * self.scaled(HEADER)}}
        sent = request("POST", "/v1/exchanges/patterns/messages", {"messages": [message] * 20})
        connection = self.connection()
        while True:
            await self.ask(connection, sent)


# Reading, and much of everything -------------------------------------------------------------------------


class Scans(Attack):
    """Ten clients that read a queue of 200 MB as Arrow, 64 MiB at a time."""

    clients = 10
    accept: ClassVar[str] = ARROW

    async def prepare(self) -> None:
        await self.declare("scanned")
        source = random.Random(3)
        messages = [Message(source.randbytes(200)) for _ in range(self.scaled(10_000))]
        await self.setup(*[publish("scanned", binary(messages), BATCH)] * self.scaled(100))

    async def client(self, number: int) -> None:
        connection = self.connection()
        path = f"/v1/queues/scanned/lanes/0/scan?start=0&end={1 << 40}&max_bytes={64 << 20}"
        while True:
            await self.ask(connection, request("GET", path, accept=self.accept))


class Queues(Attack):
    """100,000 queues: one published to after the other, all of them listed, counted and measured."""

    clients = 4

    async def prepare(self) -> None:
        self._count = self.scaled(MANY)
        await self.setup(*(request("PUT", f"/v1/queues/many-{number}", {}) for number in range(self._count)))

    async def client(self, number: int) -> None:
        connection = self.connection()
        if number == 0:
            while True:
                for path in ("/v1/queues?limit=10000", "/v1/stats?limit=1000", "/metrics"):
                    await self.ask(connection, request("GET", path))
        while True:
            queue = f"many-{random.randrange(self._count)}"
            await self.ask(connection, publish(queue, {"messages": [{"payload": "x"}]}))


ATTACKS: Final[dict[str, type[Attack]]] = {
    "large bodies": LargeBodies,
    "large bodies, compressible": LargeCompressible,
    "large bodies, JSON": LargeJson,
    "large claims": LargeClaims,
    "batches, JSON": JsonBatches,
    "batches, binary": BinaryBatches,
    "transactions": Transactions,
    "slow readers": SlowReaders,
    "connections": Connections,
    "polls": Polls,
    "filters, browse": Browse,
    "filters, group": GroupFilter,
    "filters, bindings": Bindings,
    "scans": Scans,
    "queues": Queues,
}
