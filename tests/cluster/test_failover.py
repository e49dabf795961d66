"""Servers that die, stop, pause and join under load: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from penstock.api.results import Claim
from penstock.client.client import AsyncClient
from penstock.client.transport.channel import NO_RETRY, Retry
from penstock.model import Message
from penstock.model.errors import LeaseLost, PenstockError
from tests.cli.servers import Server, until
from tests.cluster.rig import nodes

PARTITIONS = 7
LEASE_S = 2.0
"""What a server that dies had handed out comes again after it."""
WAIT_S = 0.3


class Load:
    """A producer and a consumer, and everything that they were told."""

    def __init__(self, urls: Sequence[str], queue: str, *, retries: bool = True) -> None:
        self._urls = ",".join(urls)
        self._queue = queue
        self._retries = retries
        self._numbers = itertools.count()
        self.published: list[int] = []
        self.acked: set[int] = set()
        self.unsure: set[int] = set()
        """The ack was sent, and its answer lost with a server: it was done, or they come again."""
        self.last_by_partition: dict[str, int] = {}
        self.problems: list[str] = []
        self.errors: list[str] = []
        self.answered_at: list[float] = []
        self.stopping = False

    def _client(self) -> AsyncClient:
        """One that goes on to another server where one does not answer for two seconds."""
        return AsyncClient(self._urls, timeout=2.0, retry=Retry() if self._retries else NO_RETRY)

    async def produce(self) -> None:
        async with self._client() as client:
            while not self.stopping:
                number = next(self._numbers)
                message = Message(b"%d" % number, partition=f"p{number % PARTITIONS}")
                try:
                    await client.publish(self._queue, message)
                except PenstockError as error:
                    self.errors.append(f"publish {number}: {error!r}")
                    continue
                self.published.append(number)
                self.answered_at.append(time.monotonic())

    async def consume(self) -> None:
        async with self._client() as client:
            quiet = 0
            while not (self.stopping and quiet * WAIT_S > LEASE_S + 0.5):
                try:
                    claim = await client.claim(self._queue, max=20, wait=WAIT_S)
                    quiet = 0 if claim else quiet + 1
                    await self._settle(client, claim)
                except PenstockError as error:
                    self.errors.append(f"consume: {error!r}")

    async def _settle(self, client: AsyncClient, claim: Claim) -> None:
        if not claim:
            return
        numbers = [int(payload) for payload in claim.payloads()]
        for number in numbers:
            if number in self.acked:
                self.problems.append(f"{number} was handed out after its ack was answered")
        try:
            await client.ack(claim)
        except LeaseLost:
            self.unsure.update(numbers)
            return
        for number in numbers:
            partition = f"p{number % PARTITIONS}"
            if self.last_by_partition.get(partition, -1) > number:
                self.problems.append(f"{number} was acked after {self.last_by_partition[partition]} of {partition}")
            self.last_by_partition[partition] = number
        self.acked.update(numbers)

    def check(self) -> None:
        lost = set(self.published) - self.acked - self.unsure
        assert not lost, f"{len(lost)} of {len(self.published)} were lost, such as {sorted(lost)[:5]}"
        assert self.problems == []
        assert len(self.unsure) <= 40, "as many as were in one or two claims"

    def longest_gap(self) -> float:
        return max(b - a for a, b in itertools.pairwise(self.answered_at))


async def with_fault(load: Load, fault: Callable[[], Awaitable[None]], seconds: float = 0.3) -> None:
    """Load before, while and after something happens."""
    producing = asyncio.create_task(load.produce())
    consuming = asyncio.create_task(load.consume())
    try:
        await fault()
        await asyncio.sleep(seconds)
    finally:
        load.stopping = True
        await asyncio.wait_for(asyncio.gather(producing, consuming), 60)


def declare(server: Server, queue: str) -> None:
    status, answer = server.request("PUT", f"/v1/queues/{queue}", {"ordered": True, "lease_ms": int(LEASE_S * 1000)})
    assert status == 201, answer


def test_an_owner_that_is_killed_is_taken_over(tmp_path: Path, store: str) -> None:
    with nodes(tmp_path, store=store) as cluster:
        first, second, third = cluster.start(), cluster.start(), cluster.start()
        cluster.until_balanced(first, second, third)
        queue = cluster.queue_of(second)
        declare(first, queue)
        load = Load([first.url, second.url, third.url], queue)

        async def kill() -> None:
            await asyncio.to_thread(until, lambda: len(load.acked) > 100, "the load runs")
            second.process.kill()
            known = len(load.published)
            await asyncio.to_thread(until, lambda: len(load.published) > known + 100, "publishes go on")

        asyncio.run(with_fault(load, kill))
        load.check()
        print(f"takeover after SIGKILL: {load.longest_gap():.2f} s without an answered publish")
        assert load.longest_gap() < 3.0


def test_an_owner_that_is_paused_is_fenced_and_joins_again(tmp_path: Path, store: str) -> None:
    with nodes(tmp_path, store=store) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)
        queue = cluster.queue_of(second)
        declare(first, queue)
        before = {node["incarnation"] for node in cluster.cluster(first)["nodes"]}
        load = Load([first.url, second.url], queue)

        async def pause() -> None:
            await asyncio.to_thread(until, lambda: len(load.acked) > 100, "the load runs")
            second.signal(signal.SIGSTOP)
            try:
                await asyncio.to_thread(
                    until, lambda: cluster.slots(first).get(first.url) == 64, "the paused one's slots are taken"
                )
                known = len(load.published)
                await asyncio.to_thread(until, lambda: len(load.published) > known + 20, "publishes go on")
            finally:
                second.signal(signal.SIGCONT)
            await asyncio.to_thread(cluster.until_balanced, first, second)

        asyncio.run(with_fault(load, pause))
        load.check()
        after = {node["incarnation"] for node in cluster.cluster(first)["nodes"]}
        assert len(after - before) == 1, "it has joined again, as another incarnation"
        assert any("declared dead" in line for line in second.errors)


def test_servers_stop_and_join_without_an_error_for_clients(tmp_path: Path) -> None:
    """With retries switched off: requests wait for the new owner where one is being changed."""
    with nodes(tmp_path) as cluster:
        first, second = cluster.start(), cluster.start()
        cluster.until_balanced(first, second)
        queues = [cluster.queue_of(first, "a"), cluster.queue_of(second, "b")]
        for queue in queues:
            declare(first, queue)
        loads = [Load([first.url], queue, retries=False) for queue in queues]

        async def changes() -> None:
            await asyncio.to_thread(until, lambda: all(len(load.acked) > 50 for load in loads), "the load runs")
            third = await asyncio.to_thread(cluster.start)
            await asyncio.to_thread(cluster.until_balanced, first, second, third)
            assert await asyncio.to_thread(second.stop) == 0
            await asyncio.to_thread(cluster.until_balanced, first, third)

        done = asyncio.Event()

        async def changes_seen() -> None:
            await done.wait()

        async def all_of_it() -> None:
            async def first_load() -> None:
                try:
                    await with_fault(loads[0], changes)
                finally:
                    done.set()

            await asyncio.gather(first_load(), with_fault(loads[1], changes_seen))

        asyncio.run(all_of_it())
        for load in loads:
            load.check()
            assert load.errors == []
            print(f"join and stop: {load.longest_gap():.2f} s without an answered publish at the longest")
