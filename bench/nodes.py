"""`./penstock bench nodes`: several nodes on one PostgreSQL, all on this machine, every id checked.

takeover     the owner of a queue is killed again and again under a publisher: how long until the next answer
one, two     publish + claim + ack over HTTP, two queues, through one node and through two, by as many messages at
             once as --batch says and as many producers and consumers as --callers says
partitions   1,001 ordered partitions, 50 connections, batches of 10: publish + claim + ack
steady       10,000 ordered partitions at a steady 2,000 messages a second: time in the queue, p99.9 and maximum

Of one and two:

--prepared   The clients send requests that were made before the measured time, over plain sockets, and look for the
             ids after it: what they still cost leaves the cores to nodes and database. It needs some memory, 2 GB for
             5 seconds by 1000.
--api        batches are what the Python client sends and takes, json what any HTTP client would.
--payload    random does not compress; documents are orders in JSON, of which a batch of 100 is compressed to a sixth.
--partitions Ordered queues with so many partitions.

    bench nodes one two --prepared --callers 64
    bench nodes one two --prepared --api json --batch 1,100
    bench nodes one two --prepared --partitions 1001 --batch 10 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from bench.nodes_lib import prepared  # noqa: E402
from bench.peers_lib.peer import library_path  # noqa: E402
from bench.peers_lib.postgres import Postgres  # noqa: E402
from bench.peers_lib.processes import Process, cpu_seconds, free_port, machine_seconds, wait_for_port  # noqa: E402
from penstock import AsyncClient, Claim, Message, Retry  # noqa: E402
from penstock.model.rows import home_slot  # noqa: E402

AHEAD_BATCHES: Final = prepared.AHEAD_BATCHES
PREPARED_PER_S: Final = 400_000
PREPARED_REQUESTS_PER_S: Final = 6_000
"""So much is prepared for each second of a queue, more than was ever seen; what goes beyond is made within it."""
PATIENCE_S: Final = 60.0


class Spent(NamedTuple):
    """CPU seconds so far."""

    nodes: float
    database: float
    machine: float


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
        command = [
            sys.executable,
            "-m",
            "penstock.cli",
            "serve",
            "--port",
            str(self.ports[index]),
            "--store",
            store,
            "--no-amqp",
            "--no-mqtt",
            "--set",
            "log.level=warning",
        ]
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

    def cpu_seconds(self) -> Spent:
        nodes = [one.pid for one in self.processes if one is not None]
        database = [one.pid for one in self._database.processes]
        return Spent(cpu_seconds(nodes), cpu_seconds(database), machine_seconds())

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
        "workload": "takeover",
        "kills": kills,
        "p50_s": round(percentile(times, 0.5), 3),
        "p99_s": round(percentile(times, 0.99), 3),
        "max_s": round(max(times), 3),
        "lost": len(set(published) - set(stored)),
        "duplicated": len(stored) - len(set(stored)),
    }


# Throughput ------------------------------------------------------------------------------------------------


class Flow:
    """Producers and consumers of one queue by batches, through the Python client; ids are checked at the end."""

    def __init__(self, client: AsyncClient, queue: str, size: int, partitions: int, payload: str) -> None:
        self._client = client
        self._queue = queue
        self._size = size
        self._partitions = partitions
        self.published = 0
        self.acked = 0
        self._room = asyncio.Event()
        self._numbers: list[int] = []
        self._fillers = prepared.Fillers(payload)

    async def produce(self, until: float) -> None:
        while time.monotonic() < until:
            start, self.published = self.published, self.published + self._size
            numbers = range(start, start + self._size)
            messages = [prepared.message(number, self._fillers, self._partitions) for number in numbers]
            await self._client.publish_many(self._queue, messages)
            while self.published - self.acked > AHEAD_BATCHES * self._size:
                self._room.clear()
                await self._room.wait()

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
            self._numbers += [int(payload[:16]) for payload in claim.payloads()]
            await self._client.ack(claim)
            self.acked += len(claim)
            self._room.set()

    def lost_and_duplicated(self) -> tuple[int, int]:
        different = len(set(self._numbers))
        return self.published - different, len(self._numbers) - different


@dataclasses.dataclass(frozen=True)
class Shape:
    """What one and two are asked for: see the options of the same names."""

    size: int
    callers: int = 4
    partitions: int = 0
    is_prepared: bool = False
    is_json: bool = False
    payload: str = "random"
    queues: int = 2


async def throughput(folder: Path, name: str, count: int, shape: Shape, seconds: float) -> dict[str, Any]:
    nodes = await asyncio.to_thread(Nodes, folder, count)
    try:
        homes = [index % count for index in range(shape.queues)]
        queues = [await nodes.queue_of(home, f"{name}-{index}-") for index, home in enumerate(homes)]
        for home, queue in zip(homes, queues, strict=True):
            async with AsyncClient(nodes.urls[home]) as client:
                await client.declare_queue(queue, ordered=shape.partitions > 0)
                await client.declare_group(queue, "default")
        drive = drive_prepared if shape.is_prepared else drive_clients
        found = await drive(nodes, [nodes.ports[home] for home in homes], queues, shape, seconds)
    finally:
        await asyncio.to_thread(nodes.stop)
    return {"workload": name, "nodes": count} | found


async def drive_clients(
    nodes: Nodes, ports: list[int], queues: list[str], shape: Shape, seconds: float
) -> dict[str, Any]:
    clients = [AsyncClient(f"http://127.0.0.1:{port}") for port in ports]
    flows = [
        Flow(client, queue, shape.size, shape.partitions, shape.payload)
        for client, queue in zip(clients, queues, strict=True)
    ]
    before, client_cpu, began = nodes.cpu_seconds(), time.process_time(), time.monotonic()
    until = began + seconds
    each = max(1, shape.callers // len(flows))
    await asyncio.gather(
        *(flow.produce(until) for flow in flows for _ in range(each)),
        *(flow.consume(until) for flow in flows for _ in range(each)),
    )
    spent, client_cpu = time.monotonic() - began, time.process_time() - client_cpu
    servers_cpu = nodes.cpu_seconds()
    for client in clients:
        await client.close()
    return measured(shape, flows, spent, client_cpu, before, servers_cpu)


async def drive_prepared(
    nodes: Nodes, ports: list[int], queues: list[str], shape: Shape, seconds: float
) -> dict[str, Any]:
    flows = [
        prepared.PreparedFlow(port, queue, shape.size, shape.partitions, shape.payload, is_json=shape.is_json)
        for port, queue in zip(ports, queues, strict=True)
    ]
    for flow in flows:
        flow.prepare(int(seconds * min(PREPARED_PER_S, PREPARED_REQUESTS_PER_S * shape.size)))
    before = nodes.cpu_seconds()
    each = max(1, shape.callers // len(flows))
    spent, client_cpu = await asyncio.to_thread(prepared.run, flows, each, seconds)
    return measured(shape, flows, spent, client_cpu, before, nodes.cpu_seconds())


def measured(
    shape: Shape,
    flows: Sequence[Flow | prepared.PreparedFlow],
    spent: float,
    client_cpu: float,
    before: Spent,
    after: Spent,
) -> dict[str, Any]:
    nodes_cpu, database_cpu, machine_cpu = (now - then for now, then in zip(after, before, strict=True))
    all_cpu = nodes_cpu + database_cpu + client_cpu
    total = sum(flow.published for flow in flows)
    verdicts = [flow.lost_and_duplicated() for flow in flows]
    return {
        "callers": shape.callers,
        "batch": shape.size,
        "partitions": shape.partitions,
        "payload": shape.payload,
        "api": "json" if shape.is_json else "batches",
        "prepared": shape.is_prepared,
        "msgs": total,
        "msg_per_s": round(total / spent),
        "msg_per_server_cpu_s": round(total / (nodes_cpu + database_cpu)),
        # Of each message, how many of the machine's cores all three kept busy, and how many were somebody else's.
        "nodes_us": round(1e6 * nodes_cpu / total, 2),
        "database_us": round(1e6 * database_cpu / total, 2),
        "clients_us": round(1e6 * client_cpu / total, 2),
        "cores": round(all_cpu / spent, 2),
        "others": round((machine_cpu - all_cpu) / spent, 2),
        "lost": sum(lost for lost, _ in verdicts),
        "duplicated": sum(twice for _, twice in verdicts),
    }


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
        "workload": "steady",
        "msgs": sent,
        "msg_per_s": round(sent / seconds),
        "p50_ms": round(percentile(waits, 0.5), 1),
        "p99_ms": round(percentile(waits, 0.99), 1),
        "p999_ms": round(percentile(waits, 0.999), 1),
        "max_ms": round(max(waits), 1),
        "lost": sent - len(waits),
        "duplicated": 0,
    }


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
    parser.add_argument("--prepared", action="store_true", help="one and two: see above")
    parser.add_argument("--api", choices=("batches", "json"), default="batches", help="of --prepared (default batches)")
    parser.add_argument("--payload", choices=prepared.PAYLOADS, default="random", help="one and two (default random)")
    parser.add_argument("--partitions", type=int, default=0, help="one and two: see above (default 0, not ordered)")
    parser.add_argument("--rounds", type=int, default=1, help="one and two: so many times, in turns (default 1)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # its servers end with it
    seconds = options.seconds
    if not all(part.isdigit() and int(part) > 0 for part in options.batch.split(",")):
        parser.error(f"--batch {options.batch!r} must be whole numbers above 0, with commas between them")
    if options.api == "json" and not options.prepared:
        parser.error("--api json needs --prepared: the Python client speaks in batches")
    shapes = [
        Shape(int(part), options.callers, options.partitions, options.prepared, options.api == "json", options.payload)
        for part in options.batch.split(",")
    ]
    ordered = Shape(10, 25, 1_001, queues=1)

    def flow(name: str, nodes: int, shape: Shape) -> Work:
        return lambda folder: throughput(folder, name, nodes, shape, seconds)

    works: dict[str, list[Work]] = {
        "one": [flow("one", 1, shape) for shape in shapes],
        "two": [flow("two", 2, shape) for shape in shapes],
        "partitions": [flow("partitions", 1, ordered)],
        "steady": [lambda f: steady(f, 2 * seconds, 2_000)],
        "takeover": [lambda f: takeover(f, options.kills)],
    }
    unknown = set(options.workloads) - set(works)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {', '.join(works)}")
    names = options.workloads or list(works)
    again = [name for name in names if name in ("one", "two")] * (options.rounds - 1)
    for name in names + again:
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
