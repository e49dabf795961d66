"""Penstock's Python client as it goes a path, in a process of its own whose instructions are counted.

    python -m bench.instructions_lib.client PATH PORT FIFO

It says `ready` before the rounds that count and `done` after them, and goes on when the FIFO is opened. It does what
`paths.py` does over plain sockets, as a program that uses the client would. Knows no server's process.
"""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio import gather
from collections.abc import AsyncIterator, Callable
from pathlib import Path as File
from typing import Final

import uvloop

import penstock
from bench.instructions_lib.paths import (
    BATCH,
    CALLERS,
    COLUMNS,
    CONSUMERS,
    GROUPS,
    PATHS,
    PAYLOAD_BYTES,
    SCANNED,
    WARM_UP,
    Path,
)
from penstock import Message

QUEUE: Final = "bench"
Run = Callable[[penstock.AsyncClient, Path], AsyncIterator[None]]
_chance: Final = random.Random(1)


def some(count: int) -> list[Message]:
    return [Message(_chance.randbytes(PAYLOAD_BYTES)) for _ in range(count)]


async def fill(client: penstock.AsyncClient, path: Path, rounds_beyond: int = 0) -> None:
    """Publish what the rounds will claim."""
    for _ in range(path.rounds + WARM_UP + rounds_beyond):
        await client.publish_many(QUEUE, some(path.messages))


async def publish(client: penstock.AsyncClient, path: Path) -> AsyncIterator[None]:
    while True:
        yield
        await gather(*(client.publish(QUEUE, message) for message in some(CALLERS)))


async def publish_many(client: penstock.AsyncClient, path: Path) -> AsyncIterator[None]:
    while True:
        yield
        await gather(*(client.publish_many(QUEUE, some(BATCH)) for _ in range(CONSUMERS)))


async def claim(client: penstock.AsyncClient, path: Path) -> AsyncIterator[None]:
    await fill(client, path)
    while True:
        yield
        size = path.messages // CONSUMERS
        claims = await gather(*(client.claim(QUEUE, max=size) for _ in range(CONSUMERS)))
        await gather(*(client.ack(claim) for claim in claims))


async def settle_and_claim(client: penstock.AsyncClient, path: Path) -> AsyncIterator[None]:
    await fill(client, path, 1)
    claims = await gather(*(client.claim(QUEUE) for _ in range(CONSUMERS)))
    while True:
        yield
        claims = await gather(*(client.settle_and_claim(claim) for claim in claims))


async def fan_out(client: penstock.AsyncClient, path: Path) -> AsyncIterator[None]:
    for group in GROUPS:
        await client.declare_group(QUEUE, group)
    while True:
        yield
        await client.publish_many(QUEUE, some(BATCH))
        claims = await gather(*(client.claim(QUEUE, group=group, max=BATCH) for group in GROUPS))
        await gather(*(client.ack(claim) for claim in claims))


async def scan(client: penstock.AsyncClient, path: Path) -> AsyncIterator[None]:
    from penstock.arrow import record_batches

    for _ in range(SCANNED // BATCH):
        await client.publish_many(QUEUE, some(BATCH))
    while True:
        yield
        offset = rows = 0
        while offset < SCANNED:
            found = await client.scan(QUEUE, 0, offset, SCANNED, columns=COLUMNS)
            rows += sum(batch.num_rows for batch in record_batches(found, COLUMNS))
            offset = found.next_offset
        assert rows == SCANNED, rows


RUNS: Final[dict[str, Run]] = {
    "publish": publish,
    "claim": claim,
    "next": settle_and_claim,
    "publish-100": publish_many,
    "claim-100": claim,
    "fan-out": fan_out,
    "scan": scan,
}
"""The paths that a program goes with Penstock's client; other protocols have clients of others."""


async def go(path: Path, port: int, fifo: File) -> None:
    async with penstock.AsyncClient(f"http://127.0.0.1:{port}") as client:
        await client.declare_queue(QUEUE)
        await client.declare_group(QUEUE, "default")
        rounds = RUNS[path.name](client, path)
        await anext(rounds)
        for _ in range(WARM_UP):
            await anext(rounds)
        wait("ready", fifo)
        for _ in range(path.rounds):
            await anext(rounds)
        wait("done", fifo)


def wait(said: str, fifo: File) -> None:
    """Until somebody opens the FIFO, and closes it again."""
    print(said, flush=True)
    fifo.read_bytes()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(go(PATHS[sys.argv[1]], int(sys.argv[2]), File(sys.argv[3])))
