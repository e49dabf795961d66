"""The consumer runner: verdicts, concurrency, partitions, leases, stopping; against the real server."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import AsyncClient, InvalidArgument, LeaseLost, Message, NotFound, Postpone, Received, Reject, Retry
from penstock.api.inspect import GroupStats
from penstock.client.consumer import units_of
from penstock.client.lease_keeper import merged
from penstock.model.verdict import Verdict
from tests.clients.http.rig import PATIENCE_S, Asked, ToldServer, connected, refusal, run, until
from tests.nodes import node_of

QUICK: dict[str, Any] = {"poll_seconds": 0.1}


async def state(client: AsyncClient, queue: str = "q") -> GroupStats:
    return (await client.stats(queue)).groups[0]


async def until_leased(client: AsyncClient, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (await state(client)).leased != count:
        assert time.monotonic() < deadline, f"there are not {count} leased"
        await asyncio.sleep(0.005)


async def published(client: AsyncClient, count: int, **options: Any) -> None:
    await client.declare_queue("q", **options)
    await client.declare_group("q", "default")
    await client.publish_many("q", [Message(b"%d" % i) for i in range(count)])


# Verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coroutine", "plain", "object", "returns awaitable"])
def test_what_returns_is_acked(kind: str) -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 200)
            seen: list[Received] = []
            threads: set[str] = set()

            def note(received: Received) -> None:
                threads.add(threading.current_thread().name)
                seen.append(received)
                if len(seen) == 200:
                    asyncio.run_coroutine_threadsafe(stop(), loop)

            async def stop() -> None:
                consumer.stop()

            async def coroutine(received: Received) -> None:
                note(received)

            class Object:
                async def __call__(self, received: Received) -> None:
                    note(received)

            async def later() -> None:
                await asyncio.sleep(0)

            def returning(received: Received) -> Any:
                note(received)
                return later()

            loop = asyncio.get_running_loop()
            handlers: dict[str, Callable[[Received], Any]] = {
                "coroutine": coroutine,
                "plain": note,
                "object": Object(),
                "returns awaitable": returning,
            }
            consumer = client.consumer("q", handlers[kind], concurrency=8, **QUICK)
            await consumer.run()
            assert Counter(received.offset for received in seen) == Counter(range(200))
            assert (consumer.handled, consumer.failed, (await state(client)).lag) == (200, 0, 0)
            assert (threads == {"MainThread"}) == (kind in ("coroutine", "object"))

    run(main())


def test_what_raises_is_nacked_with_the_error() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 5, max_attempts=2, backoff_ms=0)
            attempts: Counter[int] = Counter()

            async def handler(received: Received) -> None:
                attempts[received.offset] += 1
                if received.offset == 1:
                    raise ValueError("é" * 5_000)
                if received.offset == 2:
                    raise Reject("never")
                if received.offset == 3:
                    raise Postpone(600)
                if received.offset == 4 and attempts[4] == 1:
                    raise KeyError("x\ud800")

            consumer = client.consumer("q", handler, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: attempts == {0: 1, 1: 2, 2: 1, 3: 1, 4: 2})
            consumer.stop()
            await running
            dead = {one.received.offset: one for one in await client.dead("q")}
            assert sorted(dead) == [1, 2]
            assert dead[1].error.startswith("ValueError: éé")
            assert len(dead[1].error) == 1_000
            assert (dead[2].reason, dead[2].error, dead[2].attempts) == ("rejected", "never", 1)
            history = await client.history("q", 4)
            assert [entry.kind for entry in history] == ["claimed", "nacked", "claimed", "acked"]
            assert history[1].detail == "KeyError: 'x\\ud800'"
            group = await state(client)
            assert (group.scheduled, group.dead, group.leased, group.ready) == (1, 2, 0, 0)
            assert (consumer.handled, consumer.failed) == (2, 5)

    run(main())


def test_batches() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 100, backoff_ms=0)
            sizes: list[int] = []
            done: list[int] = []

            async def handler(batch: list[Received]) -> None:
                sizes.append(len(batch))
                if len(sizes) == 2:
                    raise ValueError("this time not")
                done.extend(received.offset for received in batch)

            consumer = client.consumer("q", handler, batch=30, concurrency=2, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: len(done) == 100)
            consumer.stop()
            await running
            assert sorted(done) == list(range(100))
            assert max(sizes) == 30
            assert consumer.failed == sizes[1]
            assert (await state(client)).lag == 0

    run(main())


def test_verdicts_go_out_together() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 1_000)
            settles = 0
            settle = client.settle

            async def counted(*arguments: Any) -> None:
                nonlocal settles
                settles += 1
                await settle(*arguments)

            client.settle = counted  # type: ignore[method-assign, assignment]

            async def handler(_: Received) -> None:
                await asyncio.sleep(0)
                if consumer.handled == 999:
                    consumer.stop()

            consumer = client.consumer("q", handler, concurrency=50, prefetch=1_000, **QUICK)
            await consumer.run()
            assert (await state(client)).lag == 0
            assert settles < 200

    run(main())


def test_verdicts_are_merged_to_ranges() -> None:
    verdicts = [
        Verdict("ack", 3, 4),
        Verdict("ack", 1, 2),
        Verdict("ack", 2, 3),
        Verdict("nack", 4, 5, None, "x"),
        Verdict("nack", 5, 6, None, "x"),
        Verdict("nack", 6, 7, None, "y"),
        Verdict("ack", 9, 10),
    ]
    assert merged(verdicts) == [
        Verdict("ack", 1, 4),
        Verdict("nack", 4, 6, None, "x"),
        Verdict("nack", 6, 7, None, "y"),
        Verdict("ack", 9, 10),
    ]


def test_at_most_once() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 20)
            seen: list[int] = []

            async def handler(received: Received) -> None:
                seen.append(received.offset)
                raise ValueError("lost")

            consumer = client.consumer("q", handler, ack=True, concurrency=4, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: len(seen) == 20)
            consumer.stop()
            await running
            assert sorted(seen) == list(range(20))
            group = await state(client)
            assert (group.lag, group.dead) == (0, 0)

    run(main())


# Concurrency and partitions -------------------------------------------------------------------------------


def test_as_many_handlers_run_as_allowed_and_no_more() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 60)
            at_once = most = 0

            async def handler(_: Received) -> None:
                nonlocal at_once, most
                at_once += 1
                most = max(most, at_once)
                await asyncio.sleep(0.005)
                at_once -= 1

            consumer = client.consumer("q", handler, concurrency=7, prefetch=20, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            while consumer.handled < 60:
                assert consumer._held <= 20
                assert (await state(client)).leased <= 40  # with those whose verdicts are on their way
            consumer.stop()
            await running
            assert most == 7

    run(main())


@pytest.mark.parametrize("batch", [None, 5])
def test_a_partition_is_handled_in_order_and_never_twice_at_a_time(batch: int | None) -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", ordered=True, backoff_ms=10)
            total = 300
            await client.publish_many(
                "q", [Message(b"%d" % i, partition=None if i % 10 == 9 else f"p{i % 10}") for i in range(total)]
            )
            running_now: Counter[str] = Counter()
            done: list[Received] = []
            failed: set[int] = set()
            at_once = 0

            async def handler(given: Any) -> None:
                nonlocal at_once
                messages: list[Received] = [given] if isinstance(given, Received) else given
                names = {received.partition for received in messages if received.partition is not None}
                running_now.update(names)
                at_once = max(at_once, running_now.total())
                assert all(running_now[name] == 1 for name in names)
                await asyncio.sleep(0.001)
                running_now.subtract(names)
                for received in messages:
                    if received.offset % 41 == 0 and received.offset not in failed:
                        failed.add(received.offset)
                        raise ValueError("once")
                done.extend(messages)

            consumer = client.consumer("q", handler, concurrency=4, batch=batch, prefetch=100, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: len(done) >= total)
            consumer.stop()
            await running
            assert Counter(received.offset for received in done) == Counter(range(total))
            for name in {received.partition for received in done} - {None}:
                offsets = [received.offset for received in done if received.partition == name]
                assert offsets == sorted(offsets)
            assert at_once > 1
            assert len(failed) == total // 41 + 1

    run(main())


def test_units() -> None:
    def made(*partitions: str | None) -> list[Received]:
        return [Received(Message(b"", partition=name), "q", 0, offset, 0) for offset, name in enumerate(partitions)]

    def offsets(partitions: list[str | None], batch: int | None) -> list[list[list[int]]]:
        return [[[one.offset for one in piece] for piece in unit] for unit in units_of(made(*partitions), batch)]

    assert offsets([None, "a", "b", "a", None], None) == [[[0]], [[4]], [[1], [3]], [[2]]]
    assert offsets([None] * 5, 2) == [[[0, 1]], [[2, 3]], [[4]]]
    assert offsets(["a", "b", "a", "c", "a"], 2) == [[[0, 2], [4]], [[1, 3]]]
    assert offsets(["a", "b", "b", "c"], 2) == [[[0]], [[1, 2]], [[3]]]
    assert offsets([], 2) == []


# Leases ---------------------------------------------------------------------------------------------------


def test_a_lease_is_renewed_while_its_handler_runs() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 3)
            seen: list[tuple[int, int]] = []

            async def handler(received: Received) -> None:
                seen.append((received.offset, received.attempt))
                await asyncio.sleep(2.5)

            consumer = client.consumer("q", handler, concurrency=3, lease_seconds=1.0, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: consumer.handled == 3)
            consumer.stop()
            await running
            assert sorted(seen) == [(0, 1), (1, 1), (2, 1)]
            assert (await state(client)).lag == 0

    run(main())


def test_a_lost_lease_ends_what_is_left_of_the_claim() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q")
            await client.publish_many("q", [Message(b"", partition="one") for _ in range(5)])
            seen: list[tuple[int, int]] = []

            async def handler(received: Received) -> None:
                seen.append((received.offset, received.attempt))
                if len(seen) == 2:
                    await client.seek("q", offset=4)  # takes the lease away, and all before is done
                    await asyncio.sleep(0.6)  # a renewal or a settle finds out

            consumer = client.consumer("q", handler, prefetch=5, lease_seconds=1.0, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: consumer.handled == 3)
            consumer.stop()
            await running
            assert [offset for offset, _ in seen] == [0, 1, 4]
            assert (await state(client)).lag == 0

    run(main())


# Stopping -------------------------------------------------------------------------------------------------


def test_a_stop_finishes_what_was_begun_and_gives_the_rest_back() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 50)
            gate = asyncio.Event()
            begun: list[int] = []

            async def handler(received: Received) -> None:
                begun.append(received.offset)
                await gate.wait()

            consumer = client.consumer("q", handler, concurrency=4, prefetch=20, **QUICK)
            running = asyncio.ensure_future(consumer.run())
            await until(lambda: len(begun) == 4)
            await until_leased(client, 20)
            consumer.stop()
            assert consumer.is_stopping
            await until_leased(client, 4)  # those not begun go back before those begun are finished
            assert not running.done()
            gate.set()
            await running
            group = await state(client)
            assert (group.leased, group.lag, len(begun)) == (0, 46, 4)
            attempts = {received.attempt for received in (await client.claim("q", max=100)).messages}
            assert attempts == {1}  # none was spent on what was given back

    run(main())


def test_a_stop_in_a_partition_gives_back_what_is_behind() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", ordered=True)
            await client.publish_many("q", [Message(b"", partition="p") for _ in range(10)])

            async def handler(received: Received) -> None:
                if received.offset == 3:
                    consumer.stop()

            consumer = client.consumer("q", handler, prefetch=10, **QUICK)
            await consumer.run()
            assert consumer.handled == 4
            [first] = (await client.claim("q")).messages
            assert (first.offset, first.attempt) == (4, 1)

    run(main())


def test_a_stop_at_an_idle_queue_loses_nothing() -> None:
    async def main() -> None:
        async with connected() as (client, place):
            await client.declare_queue("q")
            for _ in range(20):
                consumer = client.consumer("q", lambda _: None, poll_seconds=0.2)
                running = asyncio.ensure_future(consumer.run())
                await until(lambda: node_of(place.broker).waiters.count == 1)
                published_now = asyncio.ensure_future(client.publish("q", Message(b"")))
                consumer.stop()
                await running
                await published_now
            group = await state(client)
            assert group.leased == 0
            assert all(received.attempt == 1 for received in (await client.claim("q", max=100)).messages)

    run(main())


def test_signals_stop_it() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 3)
            before = signal.getsignal(signal.SIGTERM)

            async def handler(_: Received) -> None:
                if consumer.handled == 2:
                    os.kill(os.getpid(), signal.SIGTERM)

            consumer = client.consumer("q", handler, **QUICK)
            await consumer.run_forever()
            assert (await state(client)).lag == 0
            assert signal.getsignal(signal.SIGTERM) == before
            with pytest.raises(NotFound):
                await client.consume("nowhere", handler)

    run(main())


def test_a_handler_that_is_interrupted_stops_the_consumer_and_keeps_its_message() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await published(client, 2)

            class Enough(BaseException):
                pass

            def handler(_: Received) -> None:
                raise Enough

            consumer = client.consumer("q", handler, prefetch=1, **QUICK)
            await consumer.run()
            [first] = (await client.claim("q")).messages
            assert (first.offset, first.attempt) == (0, 1)

    run(main())


# Trouble --------------------------------------------------------------------------------------------------


def test_a_queue_that_is_not_there_is_an_error() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            with pytest.raises(NotFound):
                await client.consumer("nowhere", lambda _: None).run()

    run(main())


def test_a_server_that_is_away_is_waited_for() -> None:
    async def main() -> None:
        def respond(asked: Asked) -> bytes | None:
            return None if len(server.asked) < 10 else refusal(404, "not_found")

        retry = Retry(attempts=2, pause_seconds=0.001)
        async with ToldServer(respond) as server, AsyncClient(server.url, retry=retry) as client:
            with pytest.raises(NotFound):
                await client.consumer("q", lambda _: None, **QUICK).run()
            assert len(server.asked) == 10

    run(main())


def test_options_are_checked() -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            wrong: list[dict[str, Any]] = [
                {"concurrency": 0},
                {"batch": 0},
                {"prefetch": 0},
                {"lease_seconds": 0.05},
                {"settle_ms": -1},
                {"poll_seconds": 0},
                {"handler": 5},
            ]
            for options in wrong:
                with pytest.raises(InvalidArgument):
                    client.consumer("q", **({"handler": print} | options))
            with pytest.raises(InvalidArgument):
                Postpone(-1)
            consumer = client.consumer("q", print)
            first = asyncio.ensure_future(consumer.run())
            await asyncio.sleep(0)
            with pytest.raises(InvalidArgument, match="runs already"):
                await consumer.run()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert not issubclass(LeaseLost, InvalidArgument)

    run(main())
