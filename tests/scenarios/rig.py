"""What the scenarios stand on: a place to open brokers in again and again, a clock in the test's hand, and waits.

A restart of the memory engine finds a clone of its rows, so that every scenario with a restart runs on both engines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock import Claim, Message
from penstock.api.inspect import GroupStats
from penstock.embedded import open_store
from penstock.node.broker import LocalBroker
from penstock.node.clock import Clock, SystemClock
from penstock.store.contract import Store
from penstock.store.sqlite.engine import SqliteStore
from tests.local import open_local
from tests.memory_disk import MemoryDisk
from tests.nodes import node_of

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing test waits so long."""

Result = TypeVar("Result")
Scenario = Callable[["Home"], Coroutine[Any, Any, None]]


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms


class Home:
    """One store: brokers are opened on it, closed, or left for dead."""

    def __init__(self, path: Path | None, memory: type[MemoryDisk] = MemoryDisk) -> None:
        self.path = path
        self._kind = memory
        self.clock: Clock = SystemClock()
        self._memory: MemoryDisk | None = None
        self._opened: list[LocalBroker] = []

    @property
    def spans_slots(self) -> bool:
        """Whether one commit may be of several slots."""
        return self._kind.capabilities.spans_slots

    @property
    def engine(self) -> str:
        return "memory" if self.path is None else "sqlite"

    async def open(self, **options: Any) -> LocalBroker:
        """A broker on what the last one left. Opened without closing the last one, it is what follows a crash."""
        if self.path is not None and isinstance(self.clock, SystemClock):
            broker = await open_local(self.path, **options)
        else:
            broker = await open_store(await self.store(), self.clock, **options)
        self._opened.append(broker)
        return broker

    async def store(self) -> Store:
        if self.path is not None:
            return await SqliteStore.open(self.path)
        self._memory = self._kind() if self._memory is None else self._memory.clone()
        return self._memory

    async def reopen(self, broker: LocalBroker, **options: Any) -> LocalBroker:
        await broker.close()
        return await self.open(**options)

    async def close(self) -> None:
        for broker in self._opened:
            await broker.close()

    # Time -------------------------------------------------------------------------------------------------

    def hold_time(self) -> ManualClock:
        """From the next `open` on, time passes only in `pass_time`."""
        clock = ManualClock()
        self.clock = clock
        return clock

    def pass_time(self, broker: LocalBroker, span_ms: int) -> None:
        """Let time pass and do what has become due, as the event loop's timer would."""
        assert isinstance(self.clock, ManualClock)
        self.clock.time_ms += span_ms
        node_of(broker).timers._fire()


def play(home: Home, scenario: Scenario) -> None:
    """Run a scenario in an event loop of its own; whatever it opened is closed."""

    async def main() -> None:
        try:
            await asyncio.wait_for(scenario(home), 100)
        finally:
            await home.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition; fails when it does not come in time."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while True:
        answer = condition()
        if await answer if inspect.isawaitable(answer) else answer:
            return
        assert asyncio.get_running_loop().time() < deadline, f"{condition} did not come true in {PATIENCE_S} s"
        await asyncio.sleep(0.003)


async def is_outbox_empty(broker: LocalBroker) -> bool:
    """Whether all that was promised has been carried out."""
    return not await node_of(broker).store.outbox(0, 1)


async def soon(work: Awaitable[Result]) -> Result:
    """What must not hang: the result, or a failure after the test's patience."""
    return await asyncio.wait_for(work, PATIENCE_S)


async def turns(count: int = 20) -> None:
    """Let everything that is ready to run do so."""
    for _ in range(count):
        await asyncio.sleep(0)


def messages(*payloads: str, **fields: Any) -> list[Message]:
    return [Message(payload.encode(), **fields) for payload in payloads]


def numbered(count: int, start: int = 0, **fields: Any) -> list[Message]:
    return [Message(b"%d" % number, **fields) for number in range(start, start + count)]


def texts(received: Any) -> list[str]:
    """The payloads of a claim, a read, a page or a list of messages."""
    found = received.messages if hasattr(received, "messages") else received
    return [one.payload.decode() for one in found]


async def claim_all(broker: LocalBroker, queue: str, **options: Any) -> list[str]:
    """Claim and acknowledge until nothing more comes; the payloads in the order of delivery."""
    found: list[str] = []
    while True:
        claim = await broker.claim(queue, **({"max": 1_000} | options))
        if not len(claim):
            return found
        found += texts(claim)
        await broker.ack(claim)


async def group_stats(broker: LocalBroker, queue: str, group: str = "default") -> GroupStats:
    stats = await broker.stats(queue)
    return next(found for found in stats.groups if found.group == group)


def lease(claim: Claim) -> str:
    """The token of a claim's lease, as it would travel through another process."""
    assert claim.lease is not None
    return str(claim.lease)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
