"""Scans through the clients: the same as the broker gives, errors as errors, and the way to Arrow and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AsyncClient, Client, InvalidArgument, InvalidFilter, Message, NotFound, OffsetGone, Overloaded
from penstock.arrow import MESSAGE_SCHEMA, encoded_batch, record_batches
from penstock.arrow.writing import WRITTEN_COLUMNS
from penstock.batch import encode
from penstock.client.transport.channel import Retry
from tests.clients.http.rig import ServerProcess, ToldServer, connected, refusal, run


async def fill(client: AsyncClient, *sizes: int) -> list[Message]:
    await client.declare_queue("log", retain_messages=1_000_000)
    held: list[Message] = []
    for size in sizes:
        batch = [
            Message(b"%d" % number, partition=f"p{number % 3}", headers={"n": number, "b": b"\xff"})
            for number in range(len(held), len(held) + size)
        ]
        await client.publish_batch("log", encode(batch))
        held += batch
    return held


def test_the_client_gives_what_the_broker_gives(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "q.db") as (client, place):
            await fill(client, 5, 5, 5)
            broker = place.broker
            assert await client.lanes("log") == await broker.lanes("log")
            assert await client.lanes("log", 0) == await broker.lanes("log", 0)
            assert (await client.lanes("log", 0)).lanes[0].at_time == 0
            assert (await client.lanes("log")).lanes[0].at_time is None
            await client.claim("log", max=3)
            assert await client.scan("log", 0, 0, 15) == await broker.scan("log", 0, 0, 15)
            options: list[dict[str, Any]] = [
                {"payload": False},
                {"where": "n > 7 OR n = 1"},
                {"group": "default"},
                {"max_bytes": 1},
            ]
            for option in options:
                found = await client.scan("log", 0, 2, 14, **option)
                assert found == await broker.scan("log", 0, 2, 14, **option), option
                assert found != await broker.scan("log", 0, 2, 14), option
            assert await client.scan("log", 0, 2, 14, columns=["offset"]) == await broker.scan(
                "log", 0, 2, 14, columns=["offset"]
            )
            assert await client.extent("log", 0, 3, max_bytes=1) == await broker.extent("log", 0, 3, max_bytes=1)
            assert (await client.extent("log", 0, 3, max_rows=4)).end == 7

    run(main())


def test_errors_are_those_of_the_broker() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("log")
            await client.publish("log", Message(b"a"))
            await client.publish("log", Message(b"b"))
            await client.ack(await client.claim("log"))
            with pytest.raises(OffsetGone, match="offset 0 of queue 'log' is gone; its lane 0 begins at 1"):
                await client.scan("log", 0, 0, 2)
            with pytest.raises(InvalidFilter):
                await client.scan("log", 0, 1, 2, where="a ==")
            with pytest.raises(NotFound):
                await client.scan("other", 0, 1, 2)
            with pytest.raises(NotFound):
                await client.scan("log", 0, 1, 2, group="nobody")
            with pytest.raises(InvalidArgument, match="only lane 0"):
                await client.scan("log", 3, 1, 2)
            with pytest.raises(InvalidArgument, match="did you mean offset"):
                await client.scan("log", 0, 1, 2, columns=["ofset"])
            with pytest.raises(InvalidArgument, match="must be a list of names"):
                await client.scan("log", 0, 1, 2, columns="offset")

    run(main())


def test_a_server_that_is_busy_is_asked_again() -> None:
    async def main() -> None:
        async with ToldServer(lambda _: refusal(429, "overloaded")) as told:
            patience = Retry(attempts=3, pause_seconds=0.0)
            async with AsyncClient(told.url, retry=patience) as client:
                with pytest.raises(Overloaded):
                    await client.scan("log", 0, 0, 1)
            assert len(told.asked) == 3

    run(main())


def test_an_answer_that_cannot_be_read_is_no_scan() -> None:
    async def main() -> None:
        async with (
            ToldServer(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as told,
            AsyncClient(told.url) as client,
        ):
            with pytest.raises(penstock.PenstockError, match="cannot be read"):
                await client.scan("log", 0, 0, 1)

    run(main())


def test_from_queue_to_queue_by_way_of_arrow(tmp_path: Path) -> None:
    """Through a real server in a process of its own that is killed in between: what is scanned is what is there."""
    server = ServerProcess(tmp_path / "q.db")
    server.start()
    try:
        with Client(server.url) as client:
            client.declare_queue("from", retain_messages=10_000)
            client.declare_queue("to", retain_messages=10_000)
            held = [Message(b"%d" % number, key="k", headers={"n": number, "b": b"\xff"}) for number in range(500)]
            for at in range(0, 500, 7):
                client.publish_many("from", held[at : at + 7])
            server.kill()
            server.start()
            columns = [*WRITTEN_COLUMNS]
            [place] = client.lanes("from").lanes
            start = place.first
            while start < place.end:
                found = client.scan("from", 0, start, place.end, max_bytes=4_000, columns=columns)
                assert found.next_offset > start
                for rows in record_batches(found, columns):
                    client.publish_batch("to", encoded_batch(rows))
                start = found.next_offset
            [copied] = client.lanes("to").lanes
            scanned = client.scan("to", 0, copied.first, copied.end)
            assert [one.message for one in scanned.messages()] == held
            rows = [row for batch in record_batches(scanned, MESSAGE_SCHEMA.names) for row in batch.to_pylist()]
            assert [row["payload"] for row in rows] == [message.payload for message in held]
            assert client.extent("to", 0, 0).rows == 500
    finally:
        server.stop()
