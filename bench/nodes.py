"""`./penstock bench nodes`: several nodes on one PostgreSQL, all on this machine, every id checked.

takeover     the owner of a queue is killed again and again under a publisher: how long until the next answer
one, two     publish + claim + ack over HTTP, two queues, through one node and through two, by as many messages at
             once as --batch says and as many producers and consumers as --callers says; with --prepared the clients
             encode before the measured time and decode after it, which leaves their cores to nodes and database
partitions   1,001 ordered partitions, 50 connections, batches of 10: publish + claim + ack
steady       10,000 ordered partitions at a steady 2,000 messages a second: time in the queue, p99.9 and maximum
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench.peers_lib.peer import library_path  # noqa: E402
from bench.peers_lib.postgres import Postgres  # noqa: E402
from bench.peers_lib.processes import Process, cpu_seconds, free_port, wait_for_port  # noqa: E402
from penstock import AsyncClient, Claim, Message, Retry, encode  # noqa: E402
from penstock.rows import home_slot  # noqa: E402

PAYLOAD: Final = 200
AHEAD_BATCHES: Final = 64
PREPARED_MOST: Final = 800_000
"""Messages of a queue that are encoded ahead of the measured time; what goes beyond is encoded within it."""
PATIENCE_S: Final = 60.0


class Nodes:
    """A PostgreSQL and nodes on it."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._database = Postgres()
        below = folder / "database"
        below.mkdir()
        self._database.start(below)
        self.ports = [free_port() for _ in range(count)]
        self.processes: list[Process | None] = [None] * count
        for index in range(count):
            self.start(index)

    def start(self, index: int) -> None:
        store = f"postgresql://bench@127.0.0.1:{self._database.port}/postgres"
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", str(self.ports[index]), "--store", store,
                   "--no-amqp", "--no-mqtt", "--set", "log.level=warning"]  # fmt: skip
        environment = {"PYTHONPATH": str(ROOT / "src"), **library_path()}
        process = Process(command, self._folder / f"node-{index}.log", environment, self._folder)
        self.processes[index] = process
        wait_for_port(self.ports[index], process)

    def kill(self, index: int) -> None:
        process = self.processes[index]
        assert process is not None
        process.stop(9)
        self.processes[index] = None

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def cpu_seconds(self) -> tuple[float, float]:
        """What the nodes have used, and what the database has."""
        nodes = [one.pid for one in self.processes if one is not None]
        return cpu_seconds(nodes), cpu_seconds([one.pid for one in self._database.processes])

    def stop(self) -> None:
        for process in self.processes:
            if process is not None:
                process.stop()
        self._database.stop()

    async def owner_of(self, queue: str) -> int:
        """The index of the node that owns a queue, when the slots are shared out among all that run."""
        running = [index for index, process in enumerate(self.processes) if process is not None]
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            async with AsyncClient(self.urls[running[0]]) as client:
                found = json.loads(await client._send(b"GET", b"/v1/cluster"))
            counts = {node["url"]: node["slots"] for node in found["nodes"] if node["is_live"]}
            share = -(-64 // len(running))
            if len(counts) == len(running) and sum(counts.values()) == 64 and max(counts.values()) <= share:
                slot = home_slot("default", queue)
                name = next(one["owner"] for one in found["slots"] if one["slot"] == slot)
                url = next(node["url"] for node in found["nodes"] if node["name"] == name)
                return self.urls.index(url)
            await asyncio.sleep(0.1)
        raise TimeoutError("the slots are not shared out")

    async def queue_of(self, index: int, prefix: str) -> str:
        """The name of a queue that a node owns."""
        for number in itertools.count():
            if await self.owner_of(f"{prefix}{number}") == index:
                return f"{prefix}{number}"
        raise AssertionError


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


# Takeover --------------------------------------------------------------------------------------------------


async def takeover(folder: Path, kills: int) -> dict[str, Any]:
    """From the last answer before a SIGKILL of the owner to the first after it, as a publisher sees it."""
    nodes = await asyncio.to_thread(Nodes, folder, 3)
    times: list[float] = []
    published: list[str] = []
    try:
        retry = Retry(attempts=1_000, seconds=60.0, pause_seconds=0.01, pause_seconds_max=0.05)
        async with AsyncClient(nodes.urls, retry=retry) as client:
            await client.declare_queue("q", retain_messages=10_000_000)
            for kill in range(kills):
                owner = await nodes.owner_of("q")
                stop = asyncio.Event()
                answers: list[float] = []

                async def publish(kill: int = kill, stop: asyncio.Event = stop, answers: list[float] = answers) -> None:
                    for number in itertools.count():
                        if stop.is_set():
                            return
                        id = f"{kill}.{number}"
                        await client.publish("q", Message(id.encode()))
                        published.append(id)
                        answers.append(time.monotonic())

                publishing = asyncio.ensure_future(publish())
                await asyncio.sleep(0.5)
                await asyncio.to_thread(nodes.kill, owner)
                killed = time.monotonic()
                while answers[-1] < killed:
                    await asyncio.wait([publishing], timeout=0.005)
                times.append(min(at for at in answers if at > killed) - max(at for at in answers if at <= killed))
                stop.set()
                await publishing
                await asyncio.to_thread(nodes.start, owner)
            stored: list[str] = []
            while (read := await client.read_from("q", len(stored), max=10_000)).messages:
                stored += [one.payload.decode() for one in read.messages]
    finally:
        await asyncio.to_thread(nodes.stop)
    return {
        "workload": "takeover", "kills": kills, "p50_s": round(percentile(times, 0.5), 3),
        "p99_s": round(percentile(times, 0.99), 3), "max_s": round(max(times), 3),
        "lost": len(set(published) - set(stored)), "duplicated": len(stored) - len(set(stored)),
    }  # fmt: skip


# Throughput ------------------------------------------------------------------------------------------------


class Flow:
    """Producers and consumers of one queue by batches; ids are checked at the end."""

    def __init__(
        self, client: AsyncClient, queue: str, size: int, partitions: int = 0, *, is_prepared: bool = False
    ) -> None:
        self._client = client
        self._queue = queue
        self._size = size
        self._partitions = partitions
        self._is_prepared = is_prepared
        self.published = 0
        self.acked = 0
        self._room = asyncio.Event()
        self._numbers: list[int] = []
        self._claims: list[Claim] = []
        """Of a prepared flow: what is opened at the end."""
        self._filler = os.urandom(PAYLOAD - 16)
        prepared = range(0, PREPARED_MOST if is_prepared else 0, size)
        self._batches = {start: encode(self._messages(start)) for start in prepared}

    async def declare(self) -> None:
        await self._client.declare_queue(self._queue, ordered=self._partitions > 0)
        await self._client.declare_group(self._queue, "default")

    async def produce(self, until: float) -> None:
        while time.monotonic() < until:
            start, self.published = self.published, self.published + self._size
            batch = self._batches.pop(start, None)
            if batch is not None:
                await self._client.publish_batch(self._queue, batch)
            else:
                await self._client.publish_many(self._queue, self._messages(start))
            while self.published - self.acked > AHEAD_BATCHES * self._size:
                self._room.clear()
                await self._room.wait()

    def _messages(self, start: int) -> list[Message]:
        return [self._message(number) for number in range(start, start + self._size)]

    def _message(self, number: int) -> Message:
        partition = f"p{number % self._partitions}" if self._partitions else None
        return Message(b"%016d" % number + self._filler, partition=partition)

    async def consume(self, until: float) -> None:
        """Claims the next messages while it acknowledges the last ones, as the client's consumer runner does."""
        claim = await self._claim()
        while time.monotonic() < until or self.acked < self.published:
            following = asyncio.ensure_future(self._claim())
            await self._settle(claim)
            claim = await following
        await self._settle(claim)

    async def _claim(self) -> Claim:
        return await self._client.claim(self._queue, max=self._size, wait=0.2)

    async def _settle(self, claim: Claim) -> None:
        if claim:
            if self._is_prepared:
                self._claims.append(claim)
            else:
                self._open(claim)
            await self._client.ack(claim)
            self.acked += len(claim)
            self._room.set()

    def _open(self, claim: Claim) -> None:
        self._numbers += [int(payload[:16]) for payload in claim.payloads()]

    def lost_and_duplicated(self) -> tuple[int, int]:
        for claim in self._claims:
            self._open(claim)
        self._claims.clear()
        different = len(set(self._numbers))
        return self.published - different, len(self._numbers) - different


async def throughput(folder: Path, name: str, count: int, size: int, seconds: float, *, partitions: int = 0,
                     callers: int = 4, is_prepared: bool = False) -> dict[str, Any]:  # fmt: skip
    nodes = await asyncio.to_thread(Nodes, folder, count)
    try:
        flows: list[Flow] = []
        clients: list[AsyncClient] = []
        for index in range(2 if not partitions else 1):
            home = index % count
            client = AsyncClient(nodes.urls[home])
            clients.append(client)
            queue = await nodes.queue_of(home, f"{name}-{index}-")
            flow = Flow(client, queue, size, partitions, is_prepared=is_prepared)
            await flow.declare()
            flows.append(flow)
        before, client_cpu, began = nodes.cpu_seconds(), time.process_time(), time.monotonic()
        until = began + seconds
        each = max(1, callers // len(flows))
        await asyncio.gather(
            *(flow.produce(until) for flow in flows for _ in range(each)),
            *(flow.consume(until) for flow in flows for _ in range(each)),
        )
        spent, client_cpu = time.monotonic() - began, time.process_time() - client_cpu
        nodes_cpu, database_cpu = (now - then for now, then in zip(nodes.cpu_seconds(), before, strict=True))
        for client in clients:
            await client.close()
    finally:
        await asyncio.to_thread(nodes.stop)
    total = sum(flow.published for flow in flows)
    verdicts = [flow.lost_and_duplicated() for flow in flows]
    return {
        "workload": name, "nodes": count, "callers": callers, "batch": size, "prepared": is_prepared, "msgs": total,
        "msg_per_s": round(total / spent), "msg_per_server_cpu_s": round(total / (nodes_cpu + database_cpu)),
        # Of each message, and how many of the machine's cores all three kept busy.
        "nodes_us": round(1e6 * nodes_cpu / total, 2), "database_us": round(1e6 * database_cpu / total, 2),
        "clients_us": round(1e6 * client_cpu / total, 2),
        "cores": round((nodes_cpu + database_cpu + client_cpu) / spent, 2),
        "lost": sum(lost for lost, _ in verdicts), "duplicated": sum(twice for _, twice in verdicts),
    }  # fmt: skip


async def steady(folder: Path, seconds: float, rate: int) -> dict[str, Any]:
    """Time in the queue at a steady rate by tens, over 10,000 partitions."""
    nodes = await asyncio.to_thread(Nodes, folder, 1)
    waits: list[float] = []
    sent = 0
    try:
        async with AsyncClient(nodes.urls) as client:
            await client.declare_queue("steady", ordered=True)
            await client.declare_group("steady", "default")
            until = time.monotonic() + seconds

            async def produce() -> None:
                nonlocal sent
                began = time.monotonic()
                while time.monotonic() < until:
                    now = b"%016d" % time.monotonic_ns()
                    messages = [Message(now, partition=f"p{(sent + one) * 7919 % 10_000}") for one in range(10)]
                    await client.publish_many("steady", messages)
                    sent += 10
                    await asyncio.sleep(max(0.0, began + sent / rate - time.monotonic()))

            async def consume() -> None:
                while time.monotonic() < until or len(waits) < sent:
                    claim = await client.claim("steady", max=100, wait=0.2)
                    if claim:
                        now = time.monotonic_ns()
                        waits.extend((now - int(payload)) / 1e6 for payload in claim.payloads())
                        await client.ack(claim)

            await asyncio.gather(produce(), *(consume() for _ in range(4)))
    finally:
        await asyncio.to_thread(nodes.stop)
    return {
        "workload": "steady", "msgs": sent, "msg_per_s": round(sent / seconds),
        "p50_ms": round(percentile(waits, 0.5), 1),
        "p99_ms": round(percentile(waits, 0.99), 1), "p999_ms": round(percentile(waits, 0.999), 1),
        "max_ms": round(max(waits), 1), "lost": sent - len(waits), "duplicated": 0,
    }  # fmt: skip


Work = Callable[[Path], Coroutine[Any, Any, dict[str, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="penstock bench nodes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help="takeover, one, two, partitions, steady; all without")
    parser.add_argument("--kills", type=int, default=20, help="of takeover (default 20)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the others (default 5)")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--callers", type=int, default=16, help="producers, and consumers, of one and two (default 16)")
    parser.add_argument("--batch", default="1000,100", metavar="N,M", help="messages at once of one and two")
    parser.add_argument("--prepared", action="store_true", help="one and two: clients encode and decode unmeasured")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # its servers end with it
    seconds = options.seconds
    if not all(part.isdigit() and int(part) > 0 for part in options.batch.split(",")):
        parser.error(f"--batch {options.batch!r} must be whole numbers above 0, with commas between them")
    sizes = [int(part) for part in options.batch.split(",")]

    def flow(name: str, nodes: int, size: int) -> Work:
        return lambda folder: throughput(
            folder, name, nodes, size, seconds, callers=options.callers, is_prepared=options.prepared
        )

    works: dict[str, list[Work]] = {
        "one": [flow("one", 1, size) for size in sizes],
        "two": [flow("two", 2, size) for size in sizes],
        "partitions": [lambda f: throughput(f, "partitions", 1, 10, seconds, partitions=1_001, callers=25)],
        "steady": [lambda f: steady(f, 2 * seconds, 2_000)],
        "takeover": [lambda f: takeover(f, options.kills)],
    }
    unknown = set(options.workloads) - set(works)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(works)}")
    for name in options.workloads or works:
        for work in works[name]:
            with tempfile.TemporaryDirectory(prefix="penstock-nodes-", ignore_cleanup_errors=True) as folder:
                Path(folder).chmod(0o755)
                found = asyncio.run(work(Path(folder)))
            print(
                json.dumps(found) if options.json else "  ".join(f"{key} {value}" for key, value in found.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
