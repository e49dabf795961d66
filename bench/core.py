"""`./penstock bench core`: how fast the embedded broker is, on a real SQLite file, with every id checked.

Each workload runs in a process of its own, so that its CPU seconds and its memory are its own. Messages have 200
bytes that do not compress (`--payload json` for ones that do): an id, the time of publishing, and filler.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock import EncodedBatch, Message, encode
from penstock.api.broker import Broker

PAYLOAD_BYTES = 200
HEAD_BYTES = 16
BACKLOG_TURNS = 10
QUIET_TURNS = 5
JSON_FILLER = (
    b'{"order":"A-1041","customer":"c-88213","status":"paid","currency":"EUR","amount":129.90,"lines":3,'
    b'"note":"leave at the door","source":"web","region":"eu-central","version":7,"flags":[]}'
)


class Result(NamedTuple):
    """One line of the table."""

    workload: str
    msgs: int
    msg_per_s: float
    msg_per_cpu_s: float
    p50_ms: float
    p99_ms: float
    peak_mb: float
    lost: int
    duplicated: int
    note: str = ""


class Options(NamedTuple):
    folder: Path
    scale: float
    payload: str


# Messages with ids ---------------------------------------------------------------------------------------


class Source:
    """Makes payloads: 8 bytes of id, 8 of time, then filler."""

    def __init__(self, kind: str) -> None:
        length = PAYLOAD_BYTES - HEAD_BYTES
        if kind == "json":
            self._fillers = [(JSON_FILLER * 2)[:length]]
        else:
            pool = random.Random(1).randbytes(length * 1024)
            self._fillers = [pool[start : start + length] for start in range(0, len(pool), length)]
        self.next_id = 0

    def messages(self, count: int) -> list[Message]:
        return list(map(Message, self.payloads(count)))

    def batch(self, count: int) -> EncodedBatch:
        return encode(self.messages(count))

    def payloads(self, count: int) -> list[bytes]:
        first = self.next_id
        self.next_id += count
        heads = array("Q", bytes(HEAD_BYTES * count))
        heads[0::2] = array("Q", range(first, first + count))
        heads[1::2] = array("Q", [time.monotonic_ns()]) * count
        packed = heads.tobytes()
        places = range(0, HEAD_BYTES * count, HEAD_BYTES)
        return [packed[at : at + HEAD_BYTES] + filler for at, filler in zip(places, cycle(self._fillers), strict=False)]


class Ids:
    """Reads ids out of payloads. Groups that are given the same payloads share one: what equals what was read last
    has the same ids, and to compare costs less than to read them again."""

    def __init__(self) -> None:
        self._payloads: list[bytes] = []
        self._ids = array("Q")

    def of(self, payloads: list[bytes]) -> array[int]:
        if payloads != self._payloads:
            # One large piece of memory, not two: the checker shall not cost more than what it checks.
            words = memoryview(b"".join(payloads)).cast("Q")
            self._payloads, self._ids = payloads, array("Q", words[:: PAYLOAD_BYTES // 8].tobytes())
        return self._ids


class Checker:
    """Collects ids as they are acknowledged, and times in queue."""

    def __init__(self, reading: Ids | None = None) -> None:
        self.times_ms: list[float] = []
        self._reading = reading or Ids()
        self._parts: list[array[int]] = []

    @property
    def ids(self) -> array[int]:
        """All of them, in the order in which they came."""
        return array("Q", b"".join(self._parts))

    def add(self, payloads: list[bytes]) -> None:
        self._parts.append(self._reading.of(payloads))
        stamp = int.from_bytes(payloads[0][8:16], "little")
        self.times_ms.append((time.monotonic_ns() - stamp) / 1e6)

    def verdict(self, expected: int) -> tuple[int, int]:
        """(lost, duplicated) against the ids 0 to expected."""
        ids = self.ids
        seen = set(ids)
        return expected - len(seen & set(range(expected))), len(ids) - len(seen)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.times_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Meter:
    """Wall and CPU time of a stretch of work, all threads of this process."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0

    def __enter__(self) -> Meter:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s += time.perf_counter() - self._wall
        self.cpu_s += time.process_time() - self._cpu


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def result(
    name: str, count: int, meter: Meter, checker: Checker, expected: int | None = None, note: str = ""
) -> Result:
    peak = peak_mb()  # before the check itself takes memory
    lost, duplicated = checker.verdict(count if expected is None else expected)
    return Result(
        name,
        count,
        count / meter.wall_s,
        count / max(meter.cpu_s, 1e-9),
        checker.percentile(0.50),
        checker.percentile(0.99),
        peak,
        lost,
        duplicated,
        note,
    )


# Workloads -----------------------------------------------------------------------------------------------


async def through(
    broker: Broker, options: Options, total: int, size: int, producers: int, consumers: int
) -> tuple[Meter, Checker]:
    """Producers and consumers at once, everything published is claimed and acknowledged."""
    source, checker = Source(options.payload), Checker()
    room = asyncio.Semaphore(64)
    left = total // size
    done = 0

    async def produce() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await room.acquire()
            await broker.publish_batch("bench", source.batch(size))

    async def consume() -> None:
        nonlocal done
        while done < total:
            claim = await broker.claim("bench", max=size, wait=0.2)
            if claim:
                checker.add(claim.payloads())
                await broker.ack(claim)
                done += len(claim)
                room.release()

    with Meter() as meter:
        await asyncio.gather(*(produce() for _ in range(producers)), *(consume() for _ in range(consumers)))
    return meter, checker


async def batches_of_1000(options: Options) -> list[Result]:
    return [await _through("batch-1000", options, int(2_000_000 * options.scale), 1000)]


async def batches_of_100(options: Options) -> list[Result]:
    return [await _through("batch-100", options, int(600_000 * options.scale), 100)]


async def _through(name: str, options: Options, total: int, size: int) -> Result:
    async with await penstock.open(options.folder / "bench.db") as broker:
        await broker.declare_queue("bench")
        await broker.claim("bench")
        total -= total % size
        callers = 8 if size >= 1000 else 16
        meter, checker = await through(broker, options, total, size, callers, callers)
    return result(name, total, meter, checker)


async def singles(options: Options) -> list[Result]:
    """A hundred callers, each publishing one message, claiming one and acknowledging it, over and over."""
    total = int(50_000 * options.scale)
    source, checker = Source(options.payload), Checker()
    left = total

    async with await penstock.open(options.folder / "bench.db") as broker:
        await broker.declare_queue("bench")
        await broker.claim("bench")

        async def call() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await broker.publish("bench", source.messages(1)[0])
                claim = await broker.claim("bench", wait=5)
                checker.add(claim.payloads())
                await broker.ack(claim)

        with Meter() as meter:
            await asyncio.gather(*(call() for _ in range(100)))
    return [result("singles-100-callers", total, meter, checker)]


class Backlog:
    """A queue in a file of its own that holds so many messages, and what it cost to pass others through it."""

    def __init__(self, path: Path, held: int, payload: str) -> None:
        self.held = held
        self._path = path
        self._source, self._checker = Source(payload), Checker()
        self._fill, self._meter = Meter(), Meter()
        self._opened_s = 0.0

    async def fill(self) -> None:
        async with await penstock.open(self._path) as broker:
            await broker.declare_queue("bench")
            await broker.claim("bench")
            with self._fill:
                for start in range(0, self.held, 4000):
                    batches = range(start, min(start + 4000, self.held), 1000)
                    await asyncio.gather(*(broker.publish_batch("bench", self._source.batch(1000)) for _ in batches))

    async def open(self) -> None:
        before = time.perf_counter()
        self._broker = await penstock.open(self._path)
        claim = await self._broker.claim("bench", max=1000)
        self._opened_s = time.perf_counter() - before
        self._checker.add(claim.payloads())
        await self._broker.ack(claim)

    async def work(self, rounds: int) -> None:
        with self._meter:
            await _steady(self._broker, self._source, self._checker, rounds)

    async def end(self, peak: float) -> Result:
        ids = sorted(self._checker.ids)
        count = len(ids) - 1000
        lost = 0 if ids == list(range(len(ids))) else 1
        stats = await self._broker.stats("bench")
        lost += max(0, self.held + count - len(ids) - stats.messages)
        await self._broker.close()
        filled = f"filled at {self.held / self._fill.wall_s:,.0f} msg/s"
        return Result(
            f"backlog-{self.held // 1000}k",
            count,
            count / self._meter.wall_s,
            count / self._meter.cpu_s,
            self._checker.percentile(0.5),
            self._checker.percentile(0.99),
            peak,
            lost,
            0,
            f"open+first claim {self._opened_s:.2f} s; {filled}",
        )


async def backlogs(options: Options) -> list[Result]:
    """The cost of a message with ten thousand before it and with ten million, a little of each in turns: whatever else
    the machine does costs both the same. And how fast such a file opens."""
    both = [
        Backlog(options.folder / f"{held}.db", held, options.payload)
        for held in (10_000, int(10_000_000 * options.scale))
    ]
    for backlog in both:
        await backlog.fill()
    for backlog in both:
        await backlog.open()
    for _ in range(BACKLOG_TURNS):
        for backlog in both:
            await backlog.work(int(2_000 * min(1.0, options.scale * 10)) // BACKLOG_TURNS // 4 * 4)
    peak = peak_mb()
    small, large = [await backlog.end(peak) for backlog in both]
    share = large.msg_per_cpu_s / small.msg_per_cpu_s
    return [small, large._replace(note=f"{share:.2f} times the small one's msg/CPU-s; {large.note}")]


async def _steady(broker: Broker, source: Source, checker: Checker, rounds: int) -> None:
    """As many in as out: the backlog stays what it is."""

    room = asyncio.Semaphore(16)

    async def one_way_in() -> None:
        for _ in range(rounds // 4):
            await room.acquire()
            await broker.publish_batch("bench", source.batch(1000))

    async def one_way_out() -> None:
        for _ in range(rounds // 4):
            claim = await broker.claim("bench", max=1000, wait=10)
            checker.add(claim.payloads())
            await broker.ack(claim)
            room.release()

    await asyncio.gather(*(one_way_in() for _ in range(4)), *(one_way_out() for _ in range(4)))


async def many_queues(options: Options) -> list[Result]:
    """A hundred thousand queues with one message each: created, published, claimed, acknowledged, opened again."""
    total = int(100_000 * options.scale)
    source, checker = Source(options.payload), Checker()
    path = options.folder / "bench.db"
    with Meter() as meter:
        async with await penstock.open(path) as broker:
            await _each(total, 500, lambda index: broker.declare_queue(f"queue-{index}"))
            await _each(total, 500, lambda index: broker.publish(f"queue-{index}", source.messages(1)[0]))

            async def consume(index: int) -> None:
                claim = await broker.claim(f"queue-{index}")
                checker.add(claim.payloads())
                await broker.ack(claim)

            await _each(total, 500, consume)
    before = time.perf_counter()
    async with await penstock.open(path) as broker:
        opened_s = time.perf_counter() - before
        assert len(await broker.queues()) == total + 1
    return [result(f"queues-{total // 1000}k", total, meter, checker, note=f"catalog open {opened_s:.2f} s")]


async def _each(total: int, workers: int, work: Callable[[int], Awaitable[Any]]) -> None:
    indexes: Iterator[int] = iter(range(total))

    async def worker() -> None:
        for index in indexes:
            await work(index)

    await asyncio.gather(*(worker() for _ in range(workers)))


async def partitions(options: Options) -> list[Result]:
    """A million partitions in one ordered queue."""
    total = int(1_000_000 * options.scale)
    source, checker = Source(options.payload), Checker()
    async with await penstock.open(options.folder / "bench.db") as broker:
        await broker.declare_queue("bench", ordered=True)
        await broker.claim("bench")
        left, done = total // 1000, 0
        room = asyncio.Semaphore(64)

        async def produce() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await room.acquire()
                first = source.next_id
                payloads = source.payloads(1000)
                batch = encode([Message(payload, f"p-{first + i}") for i, payload in enumerate(payloads)])
                await broker.publish_batch("bench", batch)

        async def consume() -> None:
            nonlocal done
            while done < total // 1000 * 1000:
                claim = await broker.claim("bench", max=1000, wait=0.2)
                if claim:
                    checker.add(claim.payloads())
                    await broker.ack(claim)
                    done += len(claim)
                    room.release()

        with Meter() as meter:
            await asyncio.gather(*(produce() for _ in range(2)), *(consume() for _ in range(2)))
    return [result("partitions-1M", total // 1000 * 1000, meter, checker)]


async def hot_partition(options: Options) -> list[Result]:
    """Time in queue of ten thousand quiet partitions, without and with a hot one that lags, in turns."""
    both = [
        Quiet(options.folder / f"{name}.db", name, options.payload, is_hot=is_hot)
        for name, is_hot in (("quiet-10k", False), ("quiet-10k-beside-hot", True))
    ]
    for quiet in both:
        await quiet.open()
    for _ in range(QUIET_TURNS):
        for quiet in both:
            await quiet.work(max(1, int(40_000 * options.scale) // QUIET_TURNS // 40))
    return [await quiet.end() for quiet in both]


class Quiet:
    """An ordered queue with messages of quiet partitions and, perhaps, as many of a hot one, which lags."""

    def __init__(self, path: Path, name: str, payload: str, *, is_hot: bool) -> None:
        self._path = path
        self._name = name
        self._is_hot = is_hot
        self._source, self._checker, self._meter = Source(payload), Checker(), Meter()
        self._chance = random.Random(7)
        self._done = 0

    async def open(self) -> None:
        self._broker = await penstock.open(self._path)
        await self._broker.declare_queue("bench", ordered=True)
        await self._broker.claim("bench")

    async def work(self, rounds: int) -> None:
        with self._meter:
            expected = self._source.next_id + 40 * rounds
            await asyncio.gather(self._produce(rounds), *(self._consume(expected) for _ in range(8)))

    async def end(self) -> Result:
        await self._broker.close()
        return result(self._name, self._source.next_id, self._meter, self._checker)

    async def _produce(self, rounds: int) -> None:
        for _ in range(rounds):
            payloads = self._source.payloads(40)
            messages = [Message(payload, f"quiet-{self._chance.randrange(10_000)}") for payload in payloads]
            if self._is_hot:
                filler = bytes(PAYLOAD_BYTES)
                messages = [part for message in messages for part in (message, Message(filler, "hot"))]
            await self._broker.publish_many("bench", messages)
            await asyncio.sleep(0.01)

    async def _consume(self, expected: int) -> None:
        while self._done < expected:
            claim = await self._broker.claim("bench", max=20, wait=0.1)
            for received in claim:
                if received.message.partition != "hot":
                    self._checker.add([received.payload])
                    self._done += 1
            hot = [received.offset for received in claim if received.message.partition == "hot"]
            others = [received.offset for received in claim if received.message.partition != "hot"]
            if others:
                await self._broker.ack(claim, others)
            if hot:
                await asyncio.sleep(0.05)
                await self._broker.ack(claim, hot)


async def ten_groups(options: Options) -> list[Result]:
    """One group, then ten: what publishing costs, and how many deliveries a second come out."""
    results: list[Result] = []
    for groups in (1, 10):
        folder = options.folder / f"groups-{groups}"
        folder.mkdir()
        results += await _groups(options, folder, groups)
    return results


async def _groups(options: Options, folder: Path, groups: int) -> list[Result]:
    total = int(300_000 * options.scale) // 1000 * 1000
    source = Source(options.payload)
    reading = Ids()
    checkers = [Checker(reading) for _ in range(groups)]
    async with await penstock.open(folder / "bench.db") as broker:
        await broker.declare_queue("bench")
        for index in range(groups):
            await broker.declare_group("bench", f"g{index}")
        with Meter() as publishing:
            for _ in range(total // 4000):
                await asyncio.gather(*(broker.publish_batch("bench", source.batch(1000)) for _ in range(4)))
        published = total // 4000 * 4000

        async def consume(index: int) -> None:
            done = 0
            while done < published:
                claim = await broker.claim("bench", group=f"g{index}", max=1000, wait=0.2)
                if claim:
                    checkers[index].add(claim.payloads())
                    await broker.ack(claim)
                    done += len(claim)

        with Meter() as delivering:
            await asyncio.gather(*(consume(index) for index in range(groups)))
    peak = peak_mb()
    lost = sum(checker.verdict(published)[0] for checker in checkers)
    duplicated = sum(checker.verdict(published)[1] for checker in checkers)
    rows = [("publish", published, publishing), ("deliver", published * groups, delivering)]
    return [
        Result(
            f"{what}-{groups}-groups",
            count,
            count / meter.wall_s,
            count / meter.cpu_s,
            0.0,
            0.0,
            peak,
            lost,
            duplicated,
        )
        for what, count, meter in rows
    ]


WORKLOADS: dict[str, Callable[[Options], Coroutine[Any, Any, list[Result]]]] = {
    "batch-1000": batches_of_1000,
    "batch-100": batches_of_100,
    "singles": singles,
    "backlog": backlogs,
    "queues": many_queues,
    "partitions": partitions,
    "hot-partition": hot_partition,
    "groups": ten_groups,
}


# Running and printing ------------------------------------------------------------------------------------


def run_one(name: str, options: Options) -> list[Result]:
    """In this process, on uvloop where it is installed."""
    try:
        import uvloop

        return uvloop.run(WORKLOADS[name](options))
    except ImportError:
        return asyncio.run(WORKLOADS[name](options))


def run_apart(name: str, arguments: argparse.Namespace, folder: Path) -> list[Result]:
    """In a process and a folder of its own."""
    command = [sys.executable, __file__, "--inside", name, "--folder", str(folder), "--scale", str(arguments.scale)]
    command += ["--payload", arguments.payload]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"the workload {name} failed with exit code {done.returncode}")
    return [Result(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def print_table(results: list[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("workload", "messages", "msg/s", "msg/CPU-s", "p50 ms", "p99 ms", "peak MB", "lost", "dup", "note")
    for row in results:
        table.add_row(
            row.workload,
            f"{row.msgs:,}",
            f"{row.msg_per_s:,.0f}",
            f"{row.msg_per_cpu_s:,.0f}",
            f"{row.p50_ms:.1f}",
            f"{row.p99_ms:.1f}",
            f"{row.peak_mb:.0f}",
            str(row.lost),
            str(row.duplicated),
            row.note,
        )
    Console(width=160).print(table)


def main() -> None:
    """Parse the arguments, run the workloads one after the other, print what they did."""
    parser = argparse.ArgumentParser(
        prog="penstock bench core",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  ./penstock bench core\n  ./penstock bench core batch-1000 singles --json\n"
        "  ./penstock bench core --scale 0.01   a quick look",
    )
    parser.add_argument("workloads", nargs="*", help=f"which of {', '.join(WORKLOADS)}; all without")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of messages")
    parser.add_argument("--payload", choices=("random", "json"), default="random", help="filler of the messages")
    parser.add_argument("--folder", type=Path, default=None, help="where to put the files (default: a temporary one)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        options = Options(arguments.folder, arguments.scale, arguments.payload)
        for row in run_one(arguments.inside, options):
            print(json.dumps(row._asdict()))
        return
    unknown = set(arguments.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"unknown workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    run_all(arguments)


def run_all(arguments: argparse.Namespace) -> None:
    results: list[Result] = []
    for name in arguments.workloads or WORKLOADS:
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=arguments.folder or Path.cwd()))
        try:
            if not arguments.json:
                print(f"running {name} …", file=sys.stderr)
            for row in run_apart(name, arguments, folder):
                results.append(row)
                if arguments.json:
                    print(json.dumps(row._asdict()), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if not arguments.json:
        print_table(results)
    if any(row.lost or row.duplicated for row in results):
        sys.exit("messages were lost or delivered twice")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
