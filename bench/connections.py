"""`./penstock bench connections`: how much memory and CPU time do many idle connections and waiting claims take?

Starts `penstock serve` on a fresh folder and opens connections of one protocol, logged in and doing nothing; prints the
server's memory (proportional share) before and after, how long opening took, and the CPU that idling costs. Then every
connection is asked for something, so that none of them is counted that was not really there.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from pamqp import frame
from pamqp.commands import Basic, Channel, Connection, Queue

from bench.peers_lib.processes import Process, cpu_seconds, free_port, memory_mb, wait_for_port

ROOT: Final = Path(__file__).resolve().parents[1]
AT_ONCE: Final = 50
ANSWER_SECONDS: Final = 60.0
POLL_SECONDS: Final = 60
SPARE: Final = 2_000
"""Connections beyond those that idle: what is asked for comes over others."""


class Client(ABC):
    """One idle connection."""

    def __init__(self) -> None:
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self, port: int, name: str) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=16_384)
        await asyncio.wait_for(self.log_in(name), ANSWER_SECONDS)

    async def ask(self) -> None:
        await asyncio.wait_for(self.round_trip(), ANSWER_SECONDS)

    def close(self) -> None:
        self._writer.close()

    @abstractmethod
    async def log_in(self, name: str) -> None: ...

    @abstractmethod
    async def round_trip(self) -> None: ...


class Amqp(Client):
    """With an open channel, and with a consumer of its own queue where that is asked for."""

    consumes = False

    async def log_in(self, name: str) -> None:
        self._writer.write(b"AMQP\x00\x00\x09\x01")
        await self._answer(Connection.Start)
        self._send(0, Connection.StartOk(client_properties={}, response="\0guest\0guest"))
        await self._answer(Connection.Tune)
        self._send(0, Connection.TuneOk(0, 0, 0))
        self._send(0, Connection.Open("/"))
        await self._answer(Connection.OpenOk)
        self._send(1, Channel.Open())
        await self._answer(Channel.OpenOk)
        if self.consumes:
            self._send(1, Queue.Declare(queue=name, exclusive=True))
            await self._answer(Queue.DeclareOk)
            self._send(1, Basic.Consume(queue=name))
            await self._answer(Basic.ConsumeOk)

    async def round_trip(self) -> None:
        self._send(1, Basic.Qos(prefetch_count=1))
        await self._answer(Basic.QosOk)

    def _send(self, channel: int, method: frame.FrameTypes) -> None:
        self._writer.write(frame.marshal(method, channel))

    async def _answer(self, kind: type[object]) -> None:
        """The next method, which is of this kind; heartbeats are passed over."""
        while True:
            head = await self._reader.readexactly(7)
            rest = await self._reader.readexactly(int.from_bytes(head[3:]) + 1)
            if head[0] != 8:
                _, _, method = frame.unmarshal(head + rest)
                if not isinstance(method, kind):
                    raise RuntimeError(f"the server answered {method.name}, not {kind.__name__}")
                return


class AmqpConsumer(Amqp):
    consumes = True


class Mqtt(Client):
    """MQTT 3.1.1 without a keep-alive."""

    async def log_in(self, name: str) -> None:
        client = name.encode()
        variable = b"\x00\x04MQTT\x04\x02\x00\x00" + len(client).to_bytes(2) + client
        self._writer.write(b"\x10" + bytes((len(variable),)) + variable)
        await self._expect(b"\x20\x02\x00\x00")

    async def round_trip(self) -> None:
        self._writer.write(b"\xc0\x00")
        await self._expect(b"\xd0\x00")

    async def _expect(self, answer: bytes) -> None:
        told = await self._reader.readexactly(len(answer))
        if told != answer:
            raise RuntimeError(f"the server answered {told!r}, not {answer!r}")


class Poll(Client):
    """HTTP: a claim that waits. All of them stand in line for one queue; each is asked for by one message."""

    async def log_in(self, name: str) -> None:
        await self._request("PUT", "/v1/queues/polls", "{}")
        self._send("POST", "/v1/queues/polls/claim", f'{{"wait": {POLL_SECONDS}, "ack": true, "consumer": "{name}"}}')

    async def round_trip(self) -> None:
        other = Poll()
        other._reader, other._writer = await asyncio.open_connection(*self._writer.get_extra_info("peername")[:2])
        await other._request("POST", "/v1/queues/polls/messages", '{"messages": [{"payload": "come"}]}')
        other.close()
        if b'"come"' not in await self._answer():
            raise RuntimeError("a claim that waited was answered without a message")

    async def _request(self, method: str, path: str, body: str) -> None:
        self._send(method, path, body)
        await self._answer()

    def _send(self, method: str, path: str, body: str) -> None:
        head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())

    async def _answer(self) -> bytes:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith((b"http/1.1 200", b"http/1.1 201")):
            raise RuntimeError(f"the server answered {head[:60]!r}")
        return await self._reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))


KINDS: Final[dict[str, type[Client]]] = {"amqp": Amqp, "amqp-consumer": AmqpConsumer, "mqtt": Mqtt, "poll": Poll}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./penstock bench connections", description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=sorted(KINDS), default="amqp", help="of which kind (default: amqp)")
    parser.add_argument("--connections", type=int, default=5_000, help="how many (default: 5,000)")
    parser.add_argument("--idle", type=float, default=5.0, help="seconds of doing nothing (default: 5)")
    arguments = parser.parse_args()
    if arguments.connections < 1:
        parser.error("--connections must be at least 1")
    allow_files(arguments.connections + SPARE + 200)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        server, port = serve(Path(folder), arguments.kind, arguments.connections)
        try:
            asyncio.run(measure(server, port, KINDS[arguments.kind], arguments.connections, arguments.idle))
        finally:
            server.stop()


def allow_files(needed: int) -> None:
    """Both sides have a file for every connection; the server inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        sys.exit(f"so many connections need {needed} open files, and only {hard} are allowed (ulimit -Hn)")
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def serve(folder: Path, kind: str, count: int) -> tuple[Process, int]:
    port = free_port()
    ports = {
        "mqtt": ["--port", "0", "--no-amqp", "--mqtt-port", str(port), "--set", "mqtt.websocket_port=0"],
        "poll": ["--port", str(port), "--no-amqp", "--no-mqtt"],
    }.get(kind, ["--port", "0", "--no-mqtt", "--amqp-port", str(port)])
    limits = ["--set", f"http.max_connections={count + SPARE}", "--set", f"http.max_long_polls={count + SPARE}"]
    command = [sys.executable, "-m", "penstock.cli", "serve", "--store", str(folder / "penstock.db")]
    command += [*ports, *limits, "--set", "log.level=warning"]
    server = Process(command, folder / "penstock.log", {"PYTHONPATH": str(ROOT / "src")}, folder)
    wait_for_port(port, server)
    return server, port


async def measure(server: Process, port: int, kind: type[Client], count: int, idle: float) -> None:
    roots = [server.pid]
    before_mb = memory_mb(roots)
    clients = [kind() for _ in range(count)]
    began = time.perf_counter()
    await each(clients, lambda index: clients[index].open(port, f"idle-{index}"))
    opened_s = time.perf_counter() - began
    cpu_before = cpu_seconds(roots)
    await asyncio.sleep(idle)
    idling = (cpu_seconds(roots) - cpu_before) / idle if idle else 0.0
    with_mb = memory_mb(roots)
    await each(clients, lambda index: clients[index].ask())
    for client in clients:
        client.close()
    print(f"{count:,} idle connections, all of which answered")
    print(f"  server's memory: {with_mb:.0f} MB, {before_mb:.0f} MB without them: ", end="")
    print(f"{(with_mb - before_mb) * 1024 / count:.1f} KB each")
    print(f"  opened in {opened_s:.1f} s; idling takes {idling * 100:.1f} % of a core")


async def each(clients: list[Client], work: Callable[[int], Awaitable[None]]) -> None:
    """Does it for all, a few at a time."""
    waiting = iter(range(len(clients)))

    async def some() -> None:
        for index in waiting:
            await work(index)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, subprocess.SubprocessError) as problem:
        sys.exit(f"the bench failed: {problem}")
