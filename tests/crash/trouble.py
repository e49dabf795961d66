"""Publishers and a consumer on a broker whose database is in trouble, and the check of every message afterwards.

What was answered, stored or buffered, must be in the log once and in its partition's order. It may not know which
database it is, nor what happens to it: that is in the tests.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import Message, PenstockError
from penstock.embedded import open_store, spool_settings
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.store.contract import Store

PATIENCE_S = 60.0
PARTITIONS = 4


class Load:
    """Publishers, each with a partition of its own and one publish at a time, and a consumer."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker
        self._stopped = False
        self.answered: Counter[str] = Counter()
        self.buffered = 0
        self.consumed: set[tuple[str, int]] = set()
        self.acked: set[tuple[str, int]] = set()
        self.faults: list[str] = []

    async def publisher(self, name: str) -> None:
        while not self._stopped:
            number = self.answered[name]
            place = await self._broker.publish("work", Message(b"%d" % number, partition=name))
            self.buffered += place.buffered
            self.answered[name] += 1
            await asyncio.sleep(0.001)

    async def consumer(self) -> None:
        # Of an ack whose answer was lost nobody knows: what counts is that everything was handed out.
        while not (self._stopped and len(self.consumed) >= self.answered.total()):
            try:
                claim = await self._broker.claim("work", max=500, wait=0.2)
                keys = [(one.message.partition or "", int(one.payload)) for one in claim]
                if again := self.acked.intersection(keys):
                    self.faults.append(f"delivered after an answered ack: {sorted(again)[:3]}")
                self.consumed.update(keys)
                if keys:
                    await self._broker.ack(claim)
                    self.acked.update(keys)
            except PenstockError:
                await asyncio.sleep(0.02)  # the store is away

    def stop(self) -> None:
        self._stopped = True


@asynccontextmanager
async def under_load(broker: LocalBroker) -> AsyncIterator[Load]:
    """Trouble happens inside; then everything must come to rest, and every message is checked."""
    await broker.declare_queue("work", lanes=2, keep_done_ms=3_600_000, lease_ms=2_000)
    load = Load(broker)
    publishers = [asyncio.create_task(load.publisher(f"p{index}")) for index in range(PARTITIONS)]
    consumer = asyncio.create_task(load.consumer())
    yield load
    load.stop()
    await asyncio.wait_for(asyncio.gather(*publishers), PATIENCE_S)
    await come(lambda: not held(broker))
    await asyncio.wait_for(consumer, PATIENCE_S)
    assert not load.faults
    assert await logged(broker) == {f"p{index}": list(range(load.answered[f"p{index}"])) for index in range(PARTITIONS)}


def held(broker: LocalBroker) -> bool:
    numbers = broker.spool()
    return numbers is not None and bool(numbers.messages or numbers.is_away)


async def logged(broker: LocalBroker) -> dict[str, list[int]]:
    """The numbers of each partition in the order of the log."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for lane in range(2):
        start = 0
        while True:
            scan = await broker.scan("work", lane, start, 1 << 40)
            for one in scan.messages():
                found[one.message.partition or ""].append(int(one.payload))
            if scan.next_offset >= scan.end:
                break
            start = scan.next_offset
    return dict(found)


async def come(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{condition} did not come true"
        await asyncio.sleep(0.01)


async def progress(load: Load, more: int = 20) -> None:
    """Until every publisher has gone on, stored or buffered."""
    goals = {f"p{index}": load.answered[f"p{index}"] + more for index in range(PARTITIONS)}
    await come(lambda: all(load.answered[name] >= goal for name, goal in goals.items()))


async def direct_again(load: Load) -> None:
    """Until publishers who never pause are answered with offsets again."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    buffered = -1
    while buffered != load.buffered:
        assert asyncio.get_running_loop().time() < deadline, "publishes are still buffered"
        buffered = load.buffered
        await progress(load)


async def on_store(store: Store, spool: Path) -> LocalBroker:
    """A broker that has a store for itself, with a spool."""
    return await open_store(store, SystemClock(), spool=spool_settings(spool))


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scenario(), 110)

    asyncio.run(main())
