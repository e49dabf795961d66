"""Producers: batching by time and size, order, back-pressure, errors that reach exactly whom they concern, endings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, Closed, InvalidArgument, Message, MessageTooLarge, Retry, Unavailable, Unroutable
from penstock.batch import decode, from_bytes
from penstock.client.producer import MESSAGE_BYTES
from tests.clients.http.rig import Asked, ToldServer, answer, connected, refusal, run, until


def stored(asked: Asked, offset: int = 0) -> bytes:
    count = from_bytes(asked.body).count
    return answer({"count": count, "parts": [{"queue": "q", "lane": 0, "offset": offset, "count": count}]})


def payloads(asked: Asked) -> list[bytes]:
    return [message.payload for message in decode(from_bytes(asked.body))]


def test_everything_is_stored_in_order_and_every_place_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q")
            async with client.producer("q", batch_messages=70) as producer:
                sent = [await producer.send(Message(b"%d" % i)) for i in range(1_000)]
            assert [one.result()[0].offset for one in sent] == list(range(1_000))
            assert (await client.claim("q", max=1_000)).payloads() == [b"%d" % i for i in range(1_000)]

    run(main())


def test_a_batch_goes_when_it_is_full_or_has_lingered() -> None:
    async def main() -> None:
        async with ToldServer(stored) as server, AsyncClient(server.url) as client:
            async with client.producer("q", batch_messages=10, linger_ms=60_000) as producer:
                sent = [await producer.send(Message(b"%d" % i)) for i in range(25)]
                await until(lambda: len(server.asked) == 2)
                assert not sent[-1].done()
                assert producer.pending == 5
            assert [len(payloads(asked)) for asked in server.asked] == [10, 10, 5]
            async with client.producer("q", batch_bytes=2 * (MESSAGE_BYTES + 100), linger_ms=60_000) as producer:
                for _ in range(5):
                    await producer.send(Message(b"x" * 100))
            assert [len(payloads(asked)) for asked in server.asked[3:]] == [2, 2, 1]
            async with client.producer("q", linger_ms=1) as producer:
                assert len(await (await producer.send(Message(b"alone")))) == 1

    run(main())


def test_what_comes_while_a_batch_is_under_way_goes_together() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(asked: Asked) -> bytes:
            await gate.wait()
            return stored(asked)

        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            async with client.producer("q", linger_ms=0) as producer:
                await producer.send(Message(b"first"))
                await until(lambda: len(server.asked) == 1)
                for i in range(100):
                    await producer.send(Message(b"%d" % i))
                await asyncio.sleep(0.02)
                assert len(server.asked) == 1  # one at a time, for the order
                gate.set()
            assert [len(payloads(asked)) for asked in server.asked] == [1, 100]

    run(main())


def test_several_batches_may_be_under_way_where_that_is_wanted() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(asked: Asked) -> bytes:
            await gate.wait()
            return stored(asked)

        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            async with client.producer("q", batch_messages=1, in_flight=3) as producer:
                for _ in range(5):
                    await producer.send(Message(b""))
                await until(lambda: len(server.asked) == 3)
                gate.set()
            assert len(server.asked) == 5

    run(main())


def test_order_is_kept_when_answers_are_lost() -> None:
    async def main() -> None:
        async def flaky(asked: Asked) -> bytes | None:
            if len(server.asked) % 3 == 1:
                return None
            offset = sum(len(payloads(one)) for one in kept.values())
            kept.setdefault(asked.query["publish_id"], asked)
            return stored(asked, offset)

        kept: dict[str, Asked] = {}
        retry = Retry(pause_seconds=0.001)
        async with ToldServer(flaky) as server, AsyncClient(server.url, retry=retry) as client:
            async with client.producer("q", batch_messages=7) as producer:
                sent = [await producer.send(Message(b"%d" % i)) for i in range(100)]
            assert [payload for asked in kept.values() for payload in payloads(asked)] == [
                b"%d" % i for i in range(100)
            ]
            assert [one.result()[0].offset for one in sent] == list(range(100))
            assert len(server.asked) > len(kept)

    run(main())


def test_send_waits_for_room() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def held(asked: Asked) -> bytes:
            await gate.wait()
            return stored(asked)

        size = MESSAGE_BYTES + 1_000
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            async with client.producer("q", buffer_bytes=10 * size, linger_ms=0) as producer:
                for _ in range(10):
                    await producer.send(Message(b"x" * 1_000))
                order: list[int] = []

                async def one(number: int) -> None:
                    await producer.send(Message(b"x" * 1_000 if number else b"y" * 20_000))  # the first: alone
                    order.append(number)

                waiting = [asyncio.ensure_future(one(number)) for number in range(20)]
                await until(lambda: len(server.asked) == 1)
                await asyncio.sleep(0.02)
                assert order == []
                waiting[5].cancel()
                gate.set()
                await asyncio.wait(waiting)
                assert order == [number for number in range(20) if number != 5]
            total = [payload for asked in server.asked for payload in payloads(asked)]
            assert len(total) == 10 + 19

    run(main())


def test_an_error_reaches_exactly_those_whose_messages_failed() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", max_message_bytes=100)
            producer = client.producer("q", batch_messages=64, linger_ms=60_000)
            sent = [await producer.send(Message(b"x" * (101 if i in (5, 40) else i))) for i in range(64)]
            for number, one in enumerate(sent):
                if number in (5, 40):
                    with pytest.raises(MessageTooLarge):
                        await one
                else:
                    assert len(await one) == 1
            await producer.close()  # both were looked at
            assert (await client.claim("q", max=100)).payloads() == [b"x" * i for i in range(64) if i not in (5, 40)]

    run(main())


def test_a_failure_that_nobody_looked_at_is_raised_at_the_end() -> None:
    async def main() -> None:
        missing = refusal(404, "not_found", "no queue")
        async with ToldServer(lambda _: missing) as server:  # noqa: SIM117 - the client needs its address
            async with AsyncClient(server.url) as client:
                producer = client.producer("q")
                await producer.send(Message(b"1"))
                await producer.send(Message(b"2"))
                with pytest.raises(LookupError, match="no queue") as caught:
                    await producer.flush()
                assert "2 of the messages sent to queue 'q' were not stored" in caught.value.__notes__[0]
                await producer.flush()  # said once
                sent = await producer.send(Message(b"3"))
                with pytest.raises(LookupError):
                    await sent
                await producer.close()
                with pytest.raises(LookupError):  # it is not lost when the block ends well
                    async with client.producer("q") as producer:
                        await producer.send(Message(b"4"))

    run(main())


def test_an_error_in_the_block_still_sends_everything() -> None:
    async def main() -> None:
        async with ToldServer(stored) as server, AsyncClient(server.url) as client:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
                async with client.producer("q", linger_ms=60_000) as producer:
                    await producer.send(Message(b"1"))
                    raise ZeroDivisionError
            assert [payloads(asked) for asked in server.asked] == [[b"1"]]

    run(main())


def test_a_server_that_stays_away_is_an_error_and_not_a_silence() -> None:
    async def main() -> None:
        async with ToldServer(lambda _: None) as server:  # noqa: SIM117 - the client needs its address
            async with AsyncClient(server.url, retry=Retry(attempts=3, pause_seconds=0.001)) as client:
                producer = client.producer("q")
                sent = await producer.send(Message(b"1"))
                with pytest.raises(Unavailable):
                    await producer.close()
                assert sent.done()
                assert len(server.asked) == 3
                with pytest.raises(Closed):
                    await producer.send(Message(b"2"))
                assert len(server.asked) == 3
                other = client.producer("q", idempotent=False)
                await other.send(Message(b"1"))
                with pytest.raises(Unavailable, match="not known whether"):
                    await other.close()
                assert len(server.asked) == 4

    run(main())


def test_flush_waits_for_what_was_sent_before_it_and_for_no_more() -> None:
    async def main() -> None:
        gates = [asyncio.Event(), asyncio.Event()]

        async def held(asked: Asked) -> bytes:
            await gates[0 if payloads(asked)[0] == b"before" else 1].wait()
            return stored(asked)

        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            producer = client.producer("q", linger_ms=60_000)
            await producer.send(Message(b"before"))
            flushing = asyncio.ensure_future(producer.flush())
            await until(lambda: len(server.asked) == 1)
            await producer.send(Message(b"after"))
            assert not flushing.done()
            gates[0].set()
            await flushing
            gates[1].set()
            await producer.close()
            assert len(server.asked) == 2

    run(main())


def test_an_exchanges_producer() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_exchange("e", kind="topic")
            await client.declare_queue("a")
            await client.declare_queue("b")
            await client.bind("e", "a", "x.#")
            await client.bind("e", "b", "x.y")
            async with client.producer(exchange="e") as producer:
                sent = [await producer.send(Message(b"", key=key)) for key in ("x.y", "x.z", "nowhere")]
            assert [sorted(place.queue for place in one.result()) for one in sent] == [["a", "b"], ["a"], []]
            producer = client.producer(exchange="e", mandatory=True, linger_ms=60_000)
            sent = [await producer.send(Message(b"", key=key)) for key in ("x.z", "nowhere", "x.z")]
            await asyncio.gather(producer.flush(), return_exceptions=True)
            assert [one.done() for one in sent] == [True] * 3
            with pytest.raises(Unroutable):
                sent[1].result()
            assert len(sent[0].result()) == len(sent[2].result()) == 1

    run(main())


def test_options_are_checked() -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            wrong: list[dict[str, Any]] = [
                {},
                {"queue": "a", "exchange": "b"},
                {"queue": "a", "mandatory": True},
                {"queue": "a", "linger_ms": -1},
                {"queue": "a", "batch_messages": 0},
                {"queue": "a", "batch_messages": 100_001},
                {"queue": "a", "batch_bytes": 0},
                {"queue": "a", "buffer_bytes": 0},
                {"queue": "a", "in_flight": 0},
            ]
            for options in wrong:
                with pytest.raises(InvalidArgument):
                    client.producer(**options)
            with pytest.raises(InvalidArgument):
                await client.producer("q").send("text")  # type: ignore[arg-type]

    run(main())
