"""Marks and staging through the clients: results, errors, repetition after lost answers, and servers that are killed.

The last ones are the promise itself: a server killed between stage and commit, or in the middle of a commit that is
carried on in pieces, has everything exactly once and in order after a restart.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from penstock import (
    AlreadyCommitted,
    AsyncClient,
    ChunkMissing,
    Client,
    EncodedBatch,
    InvalidArgument,
    MarkMoved,
    MarkPut,
    Message,
    NotFound,
    Retry,
    encode,
)
from tests.clients.http.rig import Asked, ServerProcess, ToldServer, answer, connected, refusal, run, served
from tests.clients.http.test_server_killed import Trouble, stored

pytestmark = pytest.mark.timeout(240)
QUICK = Retry(pause_seconds=0.001, pause_seconds_max=0.01)


def chunk(start: int, count: int = 50) -> EncodedBatch:
    return encode([Message(b"%d" % number) for number in range(start, start + count)])


def test_everything_over_the_asynchronous_client() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q")
            await client.declare_exchange("x", kind="fanout")
            await client.bind("x", "q")
            await client.stage("t/1", "b c", chunk(50), exchange="x", routing_key="k")
            await client.stage("t/1", "a", chunk(0), queue="q")
            shown = await client.staged("t/1")
            assert (shown.state, [part.chunk for part in shown.chunks]) == ("open", ["b c", "a"])
            assert (shown.chunks[0].exchange, shown.chunks[0].routing_key) == ("x", "k")
            done = await client.commit_staged("t/1", ["a", "b c"], marks=[MarkPut("led/ger", {"n": [1, "ü"]}, 0)])
            assert (done.published, done.repeated) == (100, False)
            assert (await client.commit_staged("t/1", ["a", "b c"])).repeated
            assert [one.payload for one in await stored(client, "q")] == [b"%d" % number for number in range(100)]
            mark = await client.mark("led/ger")
            assert (mark.name, mark.version, mark.value) == ("led/ger", 1, {"n": [1, "ü"]})
            assert [one.name for one in await client.marks("led/")] == ["led/ger"]
            assert (await client.put_mark("led/ger", 2, expected_version=1)).version == 2
            with pytest.raises(MarkMoved):
                await client.commit_staged("t/2", [], marks=[MarkPut("led/ger", 3, 1)])
            with pytest.raises(ChunkMissing):
                await client.commit_staged("t/2", ["a"])
            with pytest.raises(AlreadyCommitted):
                await client.abort_staged("t/1")
            await client.abort_staged("t/2")
            await client.delete_mark("led/ger")
            with pytest.raises(NotFound):
                await client.mark("led/ger")
            with pytest.raises(InvalidArgument):
                await client.stage("t", "a", chunk(0))
            assert (await client.in_namespace("other").staged("t/1")).state == "unknown"

    run(main())


def test_more_marks_than_a_page() -> None:
    async def main() -> None:
        async with connected() as (client, place):
            for number in range(1_050):
                await place.broker.put_mark(f"m{number:05}", number)
            assert [mark.value for mark in await client.marks("m")] == list(range(1_050))

    run(main())


def test_the_synchronous_client() -> None:
    async def main() -> None:
        async with served() as place:
            await asyncio.to_thread(use, place.url)

    def use(url: str) -> None:
        with Client(url) as client:
            client.declare_queue("q")
            client.stage("t", "a", chunk(0), queue="q")
            assert client.staged("t").state == "open"
            assert client.commit_staged("t", ["a"], marks=[MarkPut("m", 1)]).published == 50
            assert client.mark("m").value == 1
            assert client.put_mark("m", 2).version == 2
            assert len(client.marks()) == 1
            client.delete_mark("m")
            client.stage("u", "a", chunk(0), queue="q")
            client.abort_staged("u")
            assert client.staged("u").state == "unknown"

    run(main())


# Answers that are lost -----------------------------------------------------------------------------------


def test_a_mark_whose_answer_was_lost_counts_as_put() -> None:
    body = {"name": "m", "version": 5, "value": {"a": 1}, "updated_ms": 1}

    def respond(asked: Asked) -> bytes | None:
        if asked.method == "GET":
            return answer(body)
        return None if len(server.asked) == 1 else refusal(409, "mark_moved")

    server = ToldServer(respond)

    async def main() -> None:
        async with server, AsyncClient(server.url, retry=QUICK) as client:
            assert (await client.put_mark("m", {"a": 1}, expected_version=4)).version == 5
            server.asked.clear()
            with pytest.raises(MarkMoved):  # somebody else's
                await client.put_mark("m", {"a": 2}, expected_version=4)
            server.asked.clear()
            with pytest.raises(MarkMoved):
                await client.put_mark("m", {"a": 1}, expected_version=3)

    run(main())


def test_stages_and_commits_are_sent_again() -> None:
    def respond(asked: Asked) -> bytes | None:
        if len(server.asked) % 3 == 1:
            return None
        if len(server.asked) % 3 == 2:
            return refusal(429, "overloaded")
        return answer({"published": 1, "repeated": True}) if asked.method == "POST" else answer(None, 204)

    server = ToldServer(respond)

    async def main() -> None:
        async with server, AsyncClient(server.url, retry=QUICK) as client:
            await client.stage("t", "a", chunk(0), queue="q")
            assert (await client.commit_staged("t", ["a"])).repeated
            await client.abort_staged("t")
            assert len(server.asked) == 9
            assert len({asked.body for asked in server.asked[:3]}) == 1

    run(main())


# Servers that are killed ---------------------------------------------------------------------------------


def test_a_server_killed_at_any_time_between_stage_and_commit(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "queue.db")

    async def main() -> None:
        async with AsyncClient(server.url, retry=Retry(attempts=10_000, seconds=50, pause_seconds_max=0.2)) as client:
            await client.declare_queue("q", retain_messages=10_000_000)
            trouble = Trouble(server, 6)
            killing = asyncio.ensure_future(trouble.run())
            count = 0
            while not killing.done():
                starts = [count * 200 + part * 50 for part in range(4)]
                await asyncio.gather(
                    *(client.stage(f"t{count}", str(start), chunk(start), queue="q") for start in starts)
                )
                names = [str(start) for start in starts]
                done = await client.commit_staged(f"t{count}", names, marks=[MarkPut("ledger", count, count)])
                assert done.published == 200
                count += 1
            await killing
            assert count > 10
            numbers = [int(one.payload) for one in await stored(client, "q")]
            assert numbers == list(range(count * 200))
            mark = await client.mark("ledger")
            assert (mark.version, mark.value) == (count, count - 1)

    server.start()
    try:
        run(main())
    finally:
        server.kill()


def test_a_server_killed_in_the_middle_of_a_large_commit(tmp_path: Path) -> None:
    """More than 64 MiB: decided at once, published in pieces; killed in between, it is there once, and in order."""
    server = ServerProcess(tmp_path / "queue.db")
    size, each, chunks = 1_000, 5_000, 16
    noise = random.Random(1)
    padding = [noise.randbytes(size - 8) for _ in range(64)]

    def large(part: int) -> EncodedBatch:
        numbers = range(part * each, (part + 1) * each)
        return encode([Message(b"%08d" % number + padding[number % 64]) for number in numbers])

    async def main() -> None:
        states: list[tuple[str, int]] = []
        async with AsyncClient(server.url, retry=Retry(attempts=10_000, seconds=100)) as client:
            await client.declare_queue("q", retain_messages=10_000_000)
            names = [f"{part}" for part in range(chunks)]
            for part, name in enumerate(names):
                await client.stage("t", name, large(part), queue="q")
            commit = asyncio.ensure_future(client.commit_staged("t", names, marks=[MarkPut("m", "done", 0)]))
            while not commit.done():
                shown = await client.staged("t")
                if shown.state == "committing" and (shown.state, shown.published) not in states:
                    states.append((shown.state, shown.published))
                    server.kill()
                    await asyncio.to_thread(server.start)
                    assert (await client.mark("m")).value == "done"
            assert (await commit).published == each * chunks
            # Killed in the middle, with some pieces there and some not.
            assert any(0 < published < each * chunks for _, published in states), states
            assert (await client.mark("m")).version == 1
            offset = 0
            while (read := await client.read_from("q", offset, max=10_000)).messages:
                assert [int(one.payload[:8]) for one in read.messages] == list(range(offset, read.next_offset))
                offset = read.next_offset
            assert offset == each * chunks
            assert (await client.staged("t")).state == "committed"

    server.start()
    try:
        asyncio.run(asyncio.wait_for(main(), 200))
    finally:
        server.kill()
