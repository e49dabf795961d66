"""The workloads, written once for all peers: they see a `Client`, a source of messages and a checker.

All callers, producers and consumers of a workload are tasks of one process. A workload ends when its messages are
through, or when its time is up: then it reports the messages that it did, and drains the rest outside the measured
time, so that every id that was confirmed is checked. Next stop: `client.py`, which runs one of these in its process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from bench.peers_lib.payloads import Checker, Source, percentile
from bench.peers_lib.peer import Client, Consumer, each
from bench.peers_lib.processes import cpu_seconds

QUEUE: Final = "bench"
BODY_BYTES: Final = 200
LARGE_BYTES: Final = 10_240
CALLERS: Final = 4
"""Producers and consumers of every workload whose name does not say another number."""
GROUPS: Final = 10
BACKLOG_BATCHES: Final = 64
PACED_PER_S: Final = 2_000
PACED_CALLERS: Final = 32
"""Connections for publishes that overlap."""
DRAIN_IDLE_S: Final = 10.0
"""Messages that do not come within this time are lost."""
QUIET_S: Final = 2.0
QUIET_STEP_S: Final = 0.1
QUIET_SHARE: Final = 0.25


class Options(NamedTuple):
    scale: float
    seconds: float
    payload: str
    roots: tuple[int, ...]
    """The server's processes."""


class Outcome(NamedTuple):
    """What one run of a workload gave."""

    msgs: int
    wall_s: float
    server_cpu_s: float
    client_cpu_s: float
    p50_ms: float
    p99_ms: float
    lost: int
    duplicated: int
    note: str = ""


class Meter:
    """Wall time, and CPU time of server and client apart.

    What the server still does after the last answer is its work too: its CPU time is read once it has come to rest.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        self._roots = roots
        self.wall_s = self.server_cpu_s = self.client_cpu_s = 0.0
        self._is_marked = False

    async def __aenter__(self) -> Meter:
        self._server = cpu_seconds(self._roots)
        self._client, self.started = time.process_time(), time.perf_counter()
        return self

    def mark(self) -> None:
        """The work was done by now, unless another mark follows: a consumer that waits in vain is no work."""
        self.wall_s = time.perf_counter() - self.started
        self.client_cpu_s = time.process_time() - self._client
        self._is_marked = True

    async def __aexit__(self, *_: object) -> None:
        if not self._is_marked:
            self.mark()
        self.server_cpu_s = await self._at_rest() - self._server

    async def _at_rest(self) -> float:
        used = cpu_seconds(self._roots)
        for _ in range(int(QUIET_S / QUIET_STEP_S)):
            await asyncio.sleep(QUIET_STEP_S)
            before, used = used, cpu_seconds(self._roots)
            if used - before <= QUIET_SHARE * QUIET_STEP_S:
                break
        return used


class Deadline:
    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def is_open(self) -> bool:
        return time.perf_counter() < self._end


def outcome(
    msgs: int, meter: Meter, times_ms: list[float], checkers: Sequence[Checker], expected: int, note: str = ""
) -> Outcome:
    verdicts = [checker.verdict(expected) for checker in checkers]
    return Outcome(
        msgs,
        meter.wall_s,
        meter.server_cpu_s,
        meter.client_cpu_s,
        percentile(times_ms, 0.50),
        percentile(times_ms, 0.99),
        sum(lost for lost, _ in verdicts),
        sum(twice for _, twice in verdicts),
        note,
    )


async def drain(client: Client, checker: Checker, expected: int, group: str | None = None) -> None:
    """Takes what is left, until all ids are there or nothing has come for a while."""
    consumer = await client.consumer(QUEUE, 1000, group)
    idle = Deadline(DRAIN_IDLE_S)
    while len(checker.ids) < expected and idle.is_open():
        payloads, token = await consumer.take()
        if payloads:
            await consumer.ack(token)
            checker.add(payloads)
            idle = Deadline(DRAIN_IDLE_S)
    await consumer.close()


async def warm_up(client: Client, options: Options, callers: int, groups: Sequence[str] = ()) -> None:
    """Connections, prepared statements and code: used once before anything is measured. Leaves the queue empty."""
    source = Source(options.payload, BODY_BYTES)
    await asyncio.gather(*(client.publish(QUEUE, source.payloads(1)) for _ in range(callers * 2)))
    names: Sequence[str | None] = groups or [None]
    for group in names:
        await drain(client, Checker(options.payload), callers * 2, group=group)


async def publish_all(
    client: Client, source: Source, callers: int, size: int, total: int, seconds: float
) -> tuple[int, list[float]]:
    """Callers that publish one batch after the other; how many messages were confirmed, and each call's time."""
    deadline, left, published = Deadline(seconds), total // size, 0
    times_ms: list[float] = []

    async def call() -> None:
        nonlocal left, published
        while left > 0 and deadline.is_open():
            left -= 1
            before = time.perf_counter()
            await client.publish(QUEUE, source.payloads(size))
            times_ms.append((time.perf_counter() - before) * 1000)
            published += size

    await asyncio.gather(*(call() for _ in range(callers)))
    return published, times_ms


# One direction -------------------------------------------------------------------------------------------


def publish(callers: int, size: int, messages: int) -> Workload:
    """Confirmed publishes; the times are those of a call."""

    async def run(client: Client, options: Options) -> Outcome:
        source, checker = Source(options.payload, BODY_BYTES), Checker(options.payload)
        total = max(callers * size, int(messages * options.scale))
        await client.declare(QUEUE)
        await warm_up(client, options, callers)
        async with Meter(options.roots) as meter:
            published, times_ms = await publish_all(client, source, callers, size, total, options.seconds)
        await drain(client, checker, published)
        return outcome(published, meter, times_ms, [checker], published)

    return Workload(run, callers)


def consume(size: int, messages: int) -> Workload:
    """Taking and acknowledging messages that are there already; the times are those of both calls together."""

    async def run(client: Client, options: Options) -> Outcome:
        source, checker = Source(options.payload, BODY_BYTES), Checker(options.payload)
        total = max(CALLERS * size, int(messages * options.scale))
        await client.declare(QUEUE)
        await warm_up(client, options, CALLERS)
        filled, _ = await publish_all(client, source, CALLERS, min(size * 10, 1000, total), total, options.seconds * 2)
        consumers = [await client.consumer(QUEUE, size) for _ in range(CALLERS)]
        times_ms: list[float] = []
        meter, deadline = Meter(options.roots), Deadline(options.seconds)

        async def call(consumer: Consumer) -> None:
            while len(checker.ids) < filled and deadline.is_open():
                before = time.perf_counter()
                payloads, token = await consumer.take()
                if payloads:
                    await consumer.ack(token)
                    times_ms.append((time.perf_counter() - before) * 1000)
                    checker.add(payloads)
                    meter.mark()

        async with meter:
            await asyncio.gather(*map(call, consumers))
            consumed = len(checker.ids)
        for consumer in consumers:
            await consumer.close()
        await drain(client, checker, filled)
        return outcome(consumed, meter, times_ms, [checker], filled)

    return Workload(run, CALLERS)


# Both directions -----------------------------------------------------------------------------------------


def through(size: int, messages: int, length: int = BODY_BYTES, groups: int = 0) -> Workload:
    """Producers and consumers at full speed, at most 64 batches in the queue; the times are those in the queue.

    With groups there is one consumer a group, and a message counts as often as it is delivered.
    """

    async def run(client: Client, options: Options) -> Outcome:
        source = Source(options.payload, length)
        names = [f"group{index}" for index in range(groups)]
        await client.declare(QUEUE, names)
        await warm_up(client, options, CALLERS, names)
        if groups:
            consumers = [await client.consumer(QUEUE, size, name) for name in names]
            checkers = [Checker(options.payload) for _ in names]
            pairs = list(zip(consumers, checkers, strict=True))
        else:
            checkers = [Checker(options.payload)]
            pairs = [(await client.consumer(QUEUE, size), checkers[0]) for _ in range(CALLERS)]
        total = max(CALLERS * size, int(messages * options.scale))
        async with Meter(options.roots) as meter:
            published = await _flow(client, source, pairs, size, total, options.seconds, meter)
        times_ms = [time for checker in checkers for time in checker.times_ms]
        return outcome(published * len(checkers), meter, times_ms, checkers, published)

    return Workload(run, CALLERS)


async def _flow(
    client: Client,
    source: Source,
    pairs: list[tuple[Consumer, Checker]],
    size: int,
    total: int,
    seconds: float,
    meter: Meter,
) -> int:
    """How many messages went in; returns when all of them came out, or nothing came for a while."""
    deadline, left, started = Deadline(seconds), total // size, 0
    checkers = list({id(checker): checker for _, checker in pairs}.values())
    room = asyncio.Event()
    ended = False

    async def produce() -> None:
        nonlocal left, started
        while left > 0 and deadline.is_open():
            if started - min(len(checker.ids) for checker in checkers) >= BACKLOG_BATCHES * size:
                room.clear()
                await room.wait()
                continue
            left -= 1
            started += size
            await client.publish(QUEUE, source.payloads(size))

    async def take(consumer: Consumer, checker: Checker) -> None:
        idle = Deadline(DRAIN_IDLE_S)
        while not (ended and len(checker.ids) >= started) and idle.is_open():
            payloads, token = await consumer.take()
            if payloads:
                await consumer.ack(token)
                checker.add(payloads)
                meter.mark()
                room.set()
                idle = Deadline(DRAIN_IDLE_S)
        room.set()

    takers = [asyncio.create_task(take(*pair)) for pair in pairs]
    await asyncio.gather(*(produce() for _ in range(CALLERS)))
    ended = True
    await asyncio.gather(*takers)
    return started


def paced() -> Workload:
    """Single messages at a fixed rate, whether or not the ones before are confirmed; the times are from when each was
    due to be sent to when it was acknowledged, so a server that falls behind cannot hide it.
    """

    async def run(client: Client, options: Options) -> Outcome:
        source, checker = Source(options.payload, BODY_BYTES), Checker(options.payload, time_all=True)
        total = max(CALLERS * 50, int(PACED_PER_S * options.seconds * min(1.0, options.scale)))
        await client.declare(QUEUE)
        await warm_up(client, options, PACED_CALLERS)
        consumers = [await client.consumer(QUEUE, 100) for _ in range(CALLERS)]
        publishes: set[asyncio.Task[None]] = set()
        meter = Meter(options.roots)
        start = time.monotonic_ns() + 50_000_000

        async def produce(first: int) -> None:
            for index in range(first, total, CALLERS):
                due = start + index * 1_000_000_000 // PACED_PER_S
                await asyncio.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
                task = asyncio.create_task(client.publish(QUEUE, source.payloads(1, due)))
                publishes.add(task)
                task.add_done_callback(publishes.discard)

        async def take(consumer: Consumer) -> None:
            idle = Deadline(DRAIN_IDLE_S)
            while len(checker.ids) < total and idle.is_open():
                payloads, token = await consumer.take()
                if payloads:
                    await consumer.ack(token)
                    checker.add(payloads)
                    meter.mark()
                    idle = Deadline(DRAIN_IDLE_S)

        async with meter:
            await asyncio.gather(*map(produce, range(CALLERS)), *map(take, consumers))
        await asyncio.gather(*publishes)
        return outcome(total, meter, checker.times_ms, [checker], total)

    return Workload(run, PACED_CALLERS)


# Many queues ---------------------------------------------------------------------------------------------


def many_queues(queues: int) -> Workload:
    """Each queue is declared, gets one message, and gives it out; the times are those of a publish."""

    async def run(client: Client, options: Options) -> Outcome:
        source, checker = Source(options.payload, BODY_BYTES), Checker(options.payload)
        wanted = [f"queue-{index}" for index in range(max(20, int(queues * options.scale)))]
        deadline = Deadline(options.seconds * 8)
        times_ms: list[float] = []

        async def put(queue: str) -> None:
            before = time.perf_counter()
            await client.publish(queue, source.payloads(1))
            times_ms.append((time.perf_counter() - before) * 1000)

        async def take(queue: str) -> None:
            if payloads := await client.take_and_ack(queue):
                checker.add(payloads)

        async with Meter(options.roots) as meter:
            declared = await client.declare_many(wanted, deadline.is_open)
            declared_s = time.perf_counter() - meter.started
            await each(wanted[:declared], 20, put, lambda: True)
            await each(wanted[:declared], 20, take, lambda: True)
        note = f"declared at {declared / declared_s:,.0f}/s"
        if declared < len(wanted):
            note = f"only {declared:,} of {len(wanted):,} queues in {options.seconds * 8:.0f} s; {note}"
        return outcome(declared, meter, times_ms, [checker], declared, note)

    return Workload(run, 20)


class Workload(NamedTuple):
    run: Callable[[Client, Options], Coroutine[Any, Any, Outcome]]
    callers: int
    """How many connections a client without multiplexing should open."""


WORKLOADS: Final[dict[str, Workload]] = {
    "publish-1": publish(callers=1, size=1, messages=20_000),
    "publish-1-100-callers": publish(callers=100, size=1, messages=100_000),
    "publish-100": publish(callers=CALLERS, size=100, messages=600_000),
    "publish-1000": publish(callers=CALLERS, size=1000, messages=1_500_000),
    "consume-1": consume(size=1, messages=30_000),
    "consume-100": consume(size=100, messages=400_000),
    "consume-1000": consume(size=1000, messages=1_200_000),
    "4+4-by-100": through(size=100, messages=400_000),
    "4+4-by-1000": through(size=1000, messages=1_000_000),
    "4+4-paced-2000": paced(),
    "4+4-10kB": through(size=100, messages=60_000, length=LARGE_BYTES),
    "fan-out-10": through(size=100, messages=100_000, groups=GROUPS),
    "queues-10k": many_queues(10_000),
}

WHAT: Final[dict[str, str]] = {
    "publish-1": "one caller, one message at a time; p50/p99 of the call",
    "publish-1-100-callers": "100 callers, one message at a time each; p50/p99 of the call",
    "publish-100": "4 callers, 100 messages a call; p50/p99 of the call",
    "publish-1000": "4 callers, 1000 messages a call; p50/p99 of the call",
    "consume-1": "4 consumers, take 1 and acknowledge it; p50/p99 of both calls together",
    "consume-100": "4 consumers, take up to 100 and acknowledge them; p50/p99 of both calls together",
    "consume-1000": "4 consumers, take up to 1000 and acknowledge them; p50/p99 of both calls together",
    "4+4-by-100": "4 producers and 4 consumers at full speed, by 100, backlog at most 6,400; p50/p99 in the queue",
    "4+4-by-1000": "4 producers and 4 consumers at full speed, by 1000, backlog at most 64,000; p50/p99 in the queue",
    "4+4-paced-2000": "4 producers and 4 consumers, single messages, 2,000 a second; p50/p99 from due to acknowledged",
    "4+4-10kB": "as 4+4-by-100 with messages of 10 KB",
    "fan-out-10": "4 producers by 100, 10 groups with a consumer each; counted are deliveries; p50/p99 in the queue",
    "queues-10k": "10,000 queues: declare each, publish one message, take and acknowledge it; p50/p99 of a publish",
}
