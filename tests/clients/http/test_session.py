"""A client's session: exclusive queues and leases that end with it, and the renewal that keeps it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock import Client, Closed, Forbidden, InvalidArgument, Message, NotFound
from tests.clients.http.rig import ServerProcess, connected, run, until


def test_a_request_and_its_answer_through_an_exclusive_queue() -> None:
    async def story() -> None:
        async with connected() as (client, _):
            await client.declare_queue("questions")
            async with client.session() as session:
                await session.declare_queue("answers", exclusive=True)
                await client.publish("questions", Message(b"6 x 7", headers={"reply": "answers"}))

                claim = await client.claim("questions")
                reply_to = claim.messages[0].message.headers
                assert reply_to is not None
                await client.publish(str(reply_to["reply"]), Message(b"42"))
                await client.ack(claim)

                with pytest.raises(Forbidden):
                    await client.claim("answers")
                answer = await session.claim("answers", wait=5)
                assert answer.payloads() == [b"42"]
            assert "answers" not in await client.queues()

    run(story())


def test_what_a_session_claimed_returns_at_its_end() -> None:
    async def story() -> None:
        async with connected() as (client, _):
            await client.declare_queue("work")
            await client.publish("work", Message(b"m"))
            async with client.session() as session:
                assert (await session.claim("work", lease_seconds=600)).messages[0].attempt == 1
                assert not await client.claim("work")
            assert (await client.claim("work", wait=5)).messages[0].attempt == 2

    run(story())


def test_a_session_is_renewed_for_as_long_as_it_is_open() -> None:
    async def story() -> None:
        async with connected() as (client, _), client.session(seconds=1) as session:
            await session.declare_queue("mine", exclusive=True)
            deadline = asyncio.get_running_loop().time() + 3.5  # three lives of a session that nobody renews
            while asyncio.get_running_loop().time() < deadline:
                assert "mine" in await client.queues()
                await asyncio.sleep(0.1)

    run(story())


def test_a_session_that_the_server_has_forgotten_says_so_and_ends_quietly(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "queue.db")
    server.start()
    try:
        with Client(server.url) as client, client.session() as session:
            session.declare_queue("mine", exclusive=True)
            server.kill()
            server.start()
            assert "mine" not in client.queues()
            with pytest.raises(NotFound, match="session"):
                session.declare_queue("mine", exclusive=True)
    finally:
        server.kill()


def test_a_client_that_dies_is_missed() -> None:
    """What a process leaves behind when it is killed: a session that nobody renews."""

    async def story() -> None:
        async with connected() as (client, place):
            begun = client.session(seconds=1)
            session = await begun.__aenter__()
            await session.declare_queue("mine", exclusive=True)
            await client.close()  # no renewal reaches the server any more
            await until(lambda: not place.broker.knows_queue("mine", "browse"))
            with pytest.raises(Closed):
                await begun.__aexit__(None, None, None)

    run(story())


def test_a_wrong_time_is_refused() -> None:
    async def story() -> None:
        async with connected() as (client, _):
            with pytest.raises(InvalidArgument, match="seconds"):
                async with client.session(seconds=0.1):
                    pass

    run(story())
