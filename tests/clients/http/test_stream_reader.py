"""Stream readers: one message after the other, commits by themselves or by hand, ends, lost answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, InvalidArgument, Message, PenstockError, Received, Unavailable
from penstock.client.transport.channel import OutcomeUnknown, Reply, Request, Retry
from penstock.model import LOST_TURNS_MAX
from tests.clients.http.rig import ServerProcess, connected, run


async def prepared(client: AsyncClient, count: int = 10, **options: Any) -> None:
    await client.declare_queue("q", retain_messages=1_000_000, **options)
    await client.declare_group("q", "g", kind="stream", auto_commit=False)
    await client.publish_many("q", [Message(b"%d" % i) for i in range(count)])


async def committed(client: AsyncClient) -> int:
    return (await client.stats("q")).groups[0].oldest_offset


def test_messages_come_in_order_and_are_committed_batch_by_batch() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client)
            seen: list[int] = []
            async with client.stream("q", "g", batch=3, wait=0.05) as reader:
                async for received in reader:
                    seen.append(received.offset)
                    assert await committed(client) == received.offset // 3 * 3
            assert seen == list(range(10))
            assert await committed(client) == 10

    run(main())


def test_what_went_through_the_loop_is_committed_and_the_rest_comes_again() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client)
            async with client.stream("q", "g") as reader:
                async for received in reader:
                    if received.offset == 4:
                        break
            assert await committed(client) == 5
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
                async with client.stream("q", "g") as reader:
                    async for received in reader:
                        if received.offset == 7:
                            raise ZeroDivisionError
            assert await committed(client) == 7  # the one that failed comes again
            async with client.stream("q", "g", wait=0.05) as reader:
                assert [received.offset async for received in reader] == [7, 8, 9]

    run(main())


def test_commits_by_hand() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client)
            async with client.stream("q", "g", auto_commit=False, batch=4) as reader:
                async for received in reader:
                    if received.offset == 2:
                        await reader.commit(received)
                    if received.offset == 8:
                        break
            assert await committed(client) == 3
            async with client.stream("q", "g", wait=0.05, auto_commit=False) as reader:
                assert [received.offset async for received in reader] == list(range(3, 10))

    run(main())


def test_a_reader_waits_for_more() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client, 1)
            seen: list[Received] = []

            async def read() -> None:
                async with client.stream("q", "g") as reader:
                    async for received in reader:
                        seen.append(received)
                        if len(seen) == 3:
                            return
                        await client.publish("q", Message(b"more"))

            await read()
            assert [received.offset for received in seen] == [0, 1, 2]

    run(main())


def test_several_readers_share_lanes() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", lanes=3, retain_messages=1_000_000)
            await client.declare_group("q", "g", kind="stream", auto_commit=False)
            await client.publish_many("q", [Message(b"%d" % i, partition=str(i)) for i in range(60)])

            async def read() -> list[bytes]:
                async with client.stream("q", "g", batch=5, wait=0.2) as reader:
                    return [received.payload async for received in reader]

            found = [payload for part in await asyncio.gather(read(), read()) for payload in part]
            assert sorted(found, key=int) == [b"%d" % i for i in range(60)]
            assert (await client.stats("q")).groups[0].lag == 0

    run(main())


class Late:
    """The way to the server, on which the first read is held up: its answer is lost, and it comes all the same."""

    def __init__(self, client: AsyncClient) -> None:
        self._channel = client._channel
        self.timeout_s = client._channel.timeout_s
        self.reads = 0
        self._held: Request | None = None
        self.comes_before = 2
        """The read, by its number, before which the first one arrives."""
        self.error: type[Exception] = OutcomeUnknown

    async def send(self, request: Request, retry: Retry) -> Reply:
        if b"/groups/g/read" not in request.target:
            return await self._channel.send(request, retry)
        self.reads += 1
        if self.reads == 1:
            self._held = request
            raise self.error("simulated: the answer was lost")
        if self.reads == self.comes_before and self._held is not None:
            with suppress(PenstockError):
                await self._channel.send(self._held, retry)
        return await self._channel.send(request, retry)

    def close(self) -> None:
        self._channel.close()


@pytest.mark.parametrize("comes_before", [2, 3])
@pytest.mark.parametrize("error", [OutcomeUnknown, Unavailable])
@pytest.mark.parametrize("is_group_committing", [False, True])
def test_a_read_that_arrives_late_passes_nothing_by(
    comes_before: int, error: type[Exception], is_group_committing: bool
) -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client)
            await client.declare_group("q", "g", auto_commit=is_group_committing)
            client._channel = late = Late(client)
            late.comes_before, late.error = comes_before, error
            async with client.stream("q", "g", batch=3, wait=0.05) as reader:
                seen = [received.offset async for received in reader]
            assert late.reads > comes_before
            assert sorted(set(seen)) == list(range(10))

    run(main())


def test_a_reader_that_nobody_hears_any_more_takes_nothing_that_comes_later() -> None:
    """Its connection is half open: it waits at the server under the name of the one that reads on."""

    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client, 0)
            waiting = asyncio.ensure_future(client.read("q", "g", wait=20, consumer="ann", turn="1"))
            await client.stats("q")
            reading = asyncio.ensure_future(client.read("q", "g", wait=20, consumer="ann", turn="2", lost=["1"]))
            await asyncio.sleep(0.05)  # both wait, or will
            await client.publish("q", Message(b"m"))
            assert (await reading).payloads() == [b"m"]
            with pytest.raises(Unavailable, match="given up"):
                await waiting

    run(main())


@pytest.mark.timeout(180)
def test_nothing_is_passed_by_when_the_server_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        server = ServerProcess(tmp_path / "queue.db")
        server.start()
        try:
            async with AsyncClient(server.url) as client:
                await prepared(client, 500)
                seen: list[int] = []
                async with client.stream("q", "g", batch=7) as reader:
                    async for received in reader:
                        seen.append(received.offset)
                        if len(seen) in (100, 250):
                            server.kill()
                            await asyncio.to_thread(server.start)
                        if received.offset == 499:
                            break
                assert set(seen) == set(range(500))
                assert len(seen) < 600  # what was not committed comes again, and no more
                assert await committed(client) == 500
        finally:
            server.kill()

    run(main())


@pytest.mark.parametrize("count", [LOST_TURNS_MAX, LOST_TURNS_MAX + 1])
def test_lost_reads_have_a_limit(count: int) -> None:
    async def main() -> None:
        async with connected() as (client, place):
            await prepared(client, 1)
            reading = place.broker.read("q", "g", lost=[f"{number}" for number in range(count)])
            if count > LOST_TURNS_MAX:
                with pytest.raises(InvalidArgument, match="17 lost turns; the limit is 16"):
                    await reading
            else:
                assert len(await reading) == 1

    run(main())


def test_options_are_checked() -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            wrong: list[dict[str, Any]] = [{"batch": 0}, {"wait": -1}, {"wait": True}]
            for options in wrong:
                with pytest.raises(InvalidArgument):
                    client.stream("q", "g", **options)

    run(main())


def test_a_commit_never_goes_back() -> None:
    """One that was held up on its way arrives after a later one."""

    async def main() -> None:
        async with connected() as (client, _):
            await prepared(client)
            async with client.stream("q", "g", auto_commit=False, wait=0.05) as reader:
                received = [one async for one in reader]
                await reader.commit(received[7])
                await reader.commit(received[3])
            assert await committed(client) == 8

    run(main())
