"""The server is killed and started again under producers and consumers.

Nothing is lost, nothing stored twice, order is kept, and what was acked with an answer does not come again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from penstock import AsyncClient, LeaseLost, Message, Received, Retry, Unavailable
from tests.clients.http.rig import PATIENCE_S, ServerProcess, run, until

KILLS = 4
PARTITIONS = 20
PATIENT = Retry(attempts=1_000, seconds=PATIENCE_S, pause_seconds_max=0.2)
"""A full machine may take many seconds to start the server again."""
pytestmark = pytest.mark.timeout(240)


class Trouble:
    """Kills and restarts a server again and again, until it is told to stop."""

    def __init__(self, server: ServerProcess, kills: int = KILLS) -> None:
        self._server = server
        self._kills = kills
        self.count = 0

    async def run(self) -> None:
        while self.count < self._kills:
            await asyncio.sleep(random.uniform(0.1, 0.4))
            self._server.kill()
            await asyncio.sleep(random.uniform(0.0, 0.2))
            await asyncio.to_thread(self._server.start)
            self.count += 1


@pytest.fixture
def server(tmp_path: Path) -> ServerProcess:
    return ServerProcess(tmp_path / "queue.db")


async def stored(client: AsyncClient, queue: str) -> list[Received]:
    found: list[Received] = []
    while True:
        read = await client.read_from(queue, len(found), max=10_000)
        if not read.messages:
            return found
        found += read.messages


async def until_settled(client: AsyncClient) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (await client.stats("q")).groups[0].lag:
        assert time.monotonic() < deadline, "something is left"
        await asyncio.sleep(0.02)


def test_a_producer_loses_nothing_stores_nothing_twice_and_keeps_order(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, retry=PATIENT) as client:
            await client.declare_queue("q", retain_messages=10_000_000)
            trouble = Trouble(server)
            killing = asyncio.ensure_future(trouble.run())
            sent = []
            async with client.producer("q", batch_messages=100, buffer_bytes=200_000) as producer:
                number = 0
                while not killing.done():
                    sent.append(await producer.send(Message(b"%d" % number, partition=f"p{number % PARTITIONS}")))
                    number += 1
                    if number % 50 == 0:
                        await asyncio.sleep(0.001)
            await killing
            messages = await stored(client, "q")
            assert [received.payload for received in messages] == [b"%d" % i for i in range(number)]
            assert [one.result()[0].offset for one in sent] == list(range(number))
            assert number > 100

    server.start()
    try:
        run(main())
    finally:
        server.kill()


def test_publishes_of_many_callers_are_stored_once_each(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, retry=PATIENT) as client:
            await client.declare_queue("q", lanes=2, retain_messages=10_000_000)
            killing = asyncio.ensure_future(Trouble(server).run())
            places: dict[bytes, tuple[int, int]] = {}

            async def publish(caller: int) -> None:
                number = 0
                while not killing.done():
                    payload = b"%d-%d" % (caller, number)
                    if number % 3:
                        place = await client.publish("q", Message(payload))
                    else:
                        place = (await client.publish_many("q", [Message(payload)] + [Message(b"x")] * 40)).first()
                    places[payload] = (place.lane, place.offset)
                    number += 1

            await asyncio.gather(*(publish(caller) for caller in range(10)))
            await killing
            found: Counter[bytes] = Counter()
            for lane in range(2):
                offset = 0
                while (read := await client.read_from("q", offset, lane=lane, max=10_000)).messages:
                    for received in read.messages:
                        if received.payload != b"x":
                            found[received.payload] += 1
                            assert places[received.payload] == (lane, received.offset)
                    offset = read.next_offset
            assert found == Counter(dict.fromkeys(places, 1))
            assert len(places) > 10

    server.start()
    try:
        run(main())
    finally:
        server.kill()


def test_a_consumer_handles_everything_in_order_and_nothing_after_an_answered_ack(server: ServerProcess) -> None:
    total = 3_000

    async def main() -> None:
        async with AsyncClient(server.url, retry=PATIENT) as client:
            await client.declare_queue("q", ordered=True, max_attempts=0, backoff_ms=0)
            for start in range(0, total, 500):
                numbers = range(start, start + 500)
                await client.publish_many("q", [Message(b"%d" % i, partition=f"p{i % PARTITIONS}") for i in numbers])
            acked: set[int] = set()
            settle = client.settle

            async def noted(lease: object, verdicts: object) -> None:
                await settle(lease, verdicts)  # type: ignore[arg-type]
                for verdict in verdicts:  # type: ignore[attr-defined]
                    if verdict.action == "ack":
                        acked.update(range(verdict.start, verdict.end))

            client.settle = noted  # type: ignore[method-assign]
            handled: dict[str | None, list[int]] = defaultdict(list)
            seen: set[int] = set()

            async def handler(received: Received) -> None:
                assert received.offset not in acked, "an acked message came again"
                await asyncio.sleep(0.001)
                handled[received.partition].append(received.offset)
                seen.add(received.offset)

            consumer = client.consumer("q", handler, concurrency=8, lease_seconds=2, prefetch=100, poll_seconds=0.2)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: len(seen) > 100)
            trouble = Trouble(server)
            await trouble.run()
            await until(lambda: len(seen) == total or running.done())
            assert consumer.failed == 0
            await until_settled(client)
            assert not running.done()
            consumer.stop()
            await running
            for offsets in handled.values():
                # One that was handled may come again, with what follows it; a later one never comes before an earlier.
                first = list(dict.fromkeys(offsets))
                assert first == sorted(first)
                for before, after in pairwise(offsets):
                    assert after <= before or after == before + PARTITIONS
            assert seen == set(range(total))

    server.start()
    try:
        run(main())
    finally:
        server.kill()


def test_results_are_settled_when_the_server_is_back(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, retry=Retry(attempts=3, pause_seconds=0.01)) as client:
            await client.declare_queue("q")
            await client.publish_many("q", [Message(b"%d" % i) for i in range(10)])
            attempts: Counter[int] = Counter()
            gate = asyncio.Event()

            async def handler(received: Received) -> None:
                attempts[received.offset] += 1
                await gate.wait()

            consumer = client.consumer("q", handler, concurrency=10, lease_seconds=60, poll_seconds=0.2)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: len(attempts) == 10)
            server.kill()
            gate.set()
            await until(lambda: consumer.handled == 10)
            await asyncio.to_thread(server.start)
            await until_settled(client)
            consumer.stop()
            await running
            assert attempts == Counter(dict.fromkeys(range(10), 1))

    server.start()
    try:
        run(main())
    finally:
        server.kill()


def test_a_stop_while_the_server_is_away_ends(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, retry=Retry(attempts=3, pause_seconds=0.01)) as client:
            await client.declare_queue("q")
            await client.publish_many("q", [Message(b"%d" % i) for i in range(4)])

            async def handler(_: Received) -> None:
                server.kill()
                consumer.stop()

            consumer = client.consumer("q", handler, lease_seconds=1, prefetch=2, poll_seconds=0.2)
            await consumer.run()  # it gives up what it cannot settle when the lease is over
            with pytest.raises(Unavailable):
                await client.stats("q")

    server.start()
    try:
        run(main())
    finally:
        server.kill()


def test_a_server_that_stops_with_care_is_followed_to_its_next_life(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncClient(server.url, retry=PATIENT) as client:
            await client.declare_queue("q")
            waiting = asyncio.ensure_future(client.claim("q", wait=20))
            for _ in range(3):
                await client.publish("q", Message(b""))
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
            first = await waiting
            rest = await client.claim("q", max=10, wait=5)
            assert len(first) + len(rest) == 3
            try:
                await client.ack(first)
            except LeaseLost:
                pytest.fail("a lease outlives a restart")

    server.start()
    try:
        run(main())
    finally:
        server.kill()
