"""Publishes of single messages that overlap: what goes together, who is told what, and what never is mixed up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AsyncClient, Closed, InvalidArgument, Message, NotFound, Published, QueueFull, Retry, Unavailable
from penstock.batch import decode, from_bytes
from penstock.client.publish_coalescer import BYTES_MAX, LARGE_BYTES, MESSAGES_MAX, UNDER_WAY_MAX, WAYS_KEPT
from tests.clients.http.rig import Asked, Responder, ToldServer, answer, connected, refusal, run, until


def payloads(asked: Asked) -> list[bytes]:
    return [message.payload for message in decode(from_bytes(asked.body))]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages wait for company as long as it takes."""
    monkeypatch.setattr("penstock.client.publish_coalescer.WAIT_S", 60.0)


class Held:
    """A server that stores what is published, but answers only once the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.end = 0

    async def __call__(self, asked: Asked) -> bytes:
        await self.gate.wait()
        return self.stored(asked)

    def stored(self, asked: Asked) -> bytes:
        count = from_bytes(asked.body).count
        self.end += count
        part = {"queue": "q", "lane": 0, "offset": self.end - count, "count": count}
        return answer({"count": count, "parts": [part]})


def begin(client: AsyncClient, *bodies: bytes) -> list[asyncio.Task[Published]]:
    return [asyncio.ensure_future(client.publish("q", Message(body))) for body in bodies]


async def fill(client: AsyncClient, server: ToldServer) -> list[asyncio.Task[Published]]:
    """As many publishes under way as go by themselves."""
    tasks = begin(client, *(b"alone",) * UNDER_WAY_MAX)
    await until(lambda: len(server.asked) == UNDER_WAY_MAX)
    return tasks


def test_a_caller_who_is_alone_never_waits_for_others() -> None:
    async def main() -> None:
        held = Held()
        held.gate.set()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            for number in range(5):
                assert (await client.publish("q", Message(b"x"))).offset == number
            assert [len(payloads(asked)) for asked in server.asked] == [1] * 5

    run(main())


@pytest.mark.usefixtures("patient")
def test_those_that_come_while_some_are_under_way_go_together_and_each_is_told_its_place() -> None:
    async def main() -> None:
        held = Held()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            alone = await fill(client, server)
            others = begin(client, *(b"%d" % number for number in range(50)))
            await asyncio.sleep(0.02)
            assert len(server.asked) == UNDER_WAY_MAX  # they wait
            held.gate.set()
            places = await asyncio.gather(*others)
            await asyncio.gather(*alone)
            assert payloads(server.asked[-1]) == [b"%d" % number for number in range(50)]
            assert len(server.asked) == UNDER_WAY_MAX + 1
            assert [place.offset for place in places] == list(range(UNDER_WAY_MAX, UNDER_WAY_MAX + 50))
            ids = [asked.query["publish_id"] for asked in server.asked]
            assert len(set(ids)) == len(ids)

    run(main())


@pytest.mark.usefixtures("patient")
def test_callers_in_step_stay_together() -> None:
    async def main() -> None:
        held = Held()
        held.gate.set()

        async def call(client: AsyncClient) -> None:
            for _ in range(20):
                await client.publish("q", Message(b"x"))

        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            await asyncio.gather(*(call(client) for _ in range(40)))
            assert held.end == 40 * 20
            # The first few go by themselves, and at most so many rounds are not whole.
            assert len(server.asked) <= 40
            assert max(len(payloads(asked)) for asked in server.asked) == 40
            # Once there is one caller again, he goes by himself.
            before = len(server.asked)
            for _ in range(3):
                await client.publish("q", Message(b"alone"))
            assert len(server.asked) == before + 3

    run(main())


@pytest.mark.usefixtures("patient")
def test_a_few_wait_for_the_many_who_are_under_way_and_soon_come_again() -> None:
    async def main() -> None:
        held, gates = Held(), [asyncio.Event() for _ in range(4)]

        async def respond(asked: Asked) -> bytes:
            await gates[server.asked.index(asked)].wait()
            return held.stored(asked)

        async with ToldServer(respond) as server, AsyncClient(server.url) as client:
            tasks = await fill(client, server)
            tasks += begin(client, *(b"%d" % number for number in range(10)))
            await asyncio.sleep(0)
            gates[0].set()
            await until(lambda: len(server.asked) == 3)
            tasks += begin(client, b"one")
            gates[1].set()
            await tasks[1]
            await asyncio.sleep(0.02)
            assert len(server.asked) == 3
            gates[2].set()
            gates[3].set()
            await asyncio.gather(*tasks)
            assert [len(payloads(asked)) for asked in server.asked] == [1, 1, 10, 1]

    run(main())


@pytest.mark.usefixtures("patient")
def test_nobody_overtakes_those_who_wait() -> None:
    """Not even one who is answered and comes again before they have left."""

    async def main() -> None:
        held, gates = Held(), [asyncio.Event() for _ in range(4)]

        async def respond(asked: Asked) -> bytes:
            await gates[server.asked.index(asked)].wait()
            return held.stored(asked)

        async def twice(client: AsyncClient) -> None:
            await client.publish("q", Message(b"first"))
            await client.publish("q", Message(b"again"))

        async with ToldServer(respond) as server, AsyncClient(server.url) as client:
            tasks: list[asyncio.Task[Any]] = [asyncio.ensure_future(twice(client))]
            await until(lambda: len(server.asked) == 1)
            tasks += begin(client, *(b"alone",) * (UNDER_WAY_MAX - 1))
            await until(lambda: len(server.asked) == UNDER_WAY_MAX)
            tasks += begin(client, b"waits")
            await asyncio.sleep(0)
            gates[0].set()
            await until(lambda: len(server.asked) == UNDER_WAY_MAX + 1)
            for gate in gates:
                gate.set()
            await asyncio.gather(*tasks)
            assert payloads(server.asked[UNDER_WAY_MAX]) == [b"waits", b"again"]

    run(main())


def test_they_go_without_waiting_longer_where_no_answer_comes() -> None:
    async def main() -> None:
        held = Held()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            alone = await fill(client, server)
            others = begin(client, b"a", b"b")
            await until(lambda: len(server.asked) == UNDER_WAY_MAX + 1)  # nothing was answered
            assert payloads(server.asked[-1]) == [b"a", b"b"]
            held.gate.set()
            await asyncio.gather(*alone, *others)

    run(main())


@pytest.mark.usefixtures("patient")
def test_full_groups_and_large_messages_go_at_once() -> None:
    async def main() -> None:
        held = Held()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            tasks = await fill(client, server)
            tasks += begin(client, b"x" * LARGE_BYTES)
            await until(lambda: len(server.asked) == UNDER_WAY_MAX + 1)
            tasks += begin(client, *(b"%d" % number for number in range(MESSAGES_MAX)))
            await until(lambda: len(server.asked) == UNDER_WAY_MAX + 2)
            assert len(payloads(server.asked[-1])) == MESSAGES_MAX
            tasks += begin(client, *(b"y" * (LARGE_BYTES - 1),) * (BYTES_MAX // (LARGE_BYTES - 1) + 1))
            await until(lambda: len(server.asked) == UNDER_WAY_MAX + 3)
            held.gate.set()
            await asyncio.gather(*tasks)

    run(main())


def test_queues_and_namespaces_are_never_mixed(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            other = client.in_namespace("other")
            for one in (client, other):
                await one.declare_queue("a")
                await one.declare_queue("b")
            work = []
            for number in range(60):
                for name, one in (("here", client), ("other", other)):
                    for queue in "ab":
                        body = f"{name} {queue} {number}".encode()
                        work.append(one.publish(queue, Message(body)))
            await asyncio.gather(*work)
            for name, one in (("here", client), ("other", other)):
                for queue in "ab":
                    found = (await one.claim(queue, max=100)).payloads()
                    assert sorted(found) == sorted(f"{name} {queue} {number}".encode() for number in range(60))

    run(main())


def test_all_of_a_message_arrives_and_its_place_is_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q")
            messages = [
                Message(b"%d" % number, key=f"k{number}", headers={"n": number}, priority=number % 3)
                for number in range(80)
            ]
            places = await asyncio.gather(*(client.publish("q", message) for message in messages))
            assert sorted(place.offset for place in places) == list(range(80))
            found = {received.offset: received for received in (await client.claim("q", max=100)).messages}
            for message, place in zip(messages, places, strict=True):
                received = found[place.offset]
                assert received.payload == message.payload
                assert (received.key, received.headers, received.message.priority) == (
                    message.key,
                    message.headers,
                    message.priority,
                )

    run(main())


def test_a_message_with_an_id_of_its_own_is_known_again_in_any_company(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q")
            first = await client.publish("q", Message(b"once", dedup_id="id"))
            twice = [Message(b"x", dedup_id=name) for name in ("id", "new", "new")]
            plain = [Message(b"%d" % number) for number in range(10)]
            places = await asyncio.gather(*(client.publish("q", message) for message in (*plain, *twice, *plain)))
            again, new, same = places[10:13]
            assert (again.duplicate, again.offset) == (True, first.offset)
            assert (new.duplicate, same.duplicate, same.offset) == (False, True, new.offset)
            assert sum(place.duplicate for place in places) == 2
            assert len(await client.claim("q", max=100)) == 1 + 10 + 1 + 10

    run(main())


@pytest.mark.usefixtures("patient")
def test_publishes_of_many_share_requests_too_and_each_is_told_its_own_places() -> None:
    async def main() -> None:
        held = Held()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            alone = await fill(client, server)
            many = [
                asyncio.ensure_future(client.publish_many("q", [Message(b"%d %d" % (of, at)) for at in range(count)]))
                for of, count in enumerate((3, 1, 5))
            ]
            one = begin(client, b"single")
            await asyncio.sleep(0)
            held.gate.set()
            receipts = await asyncio.gather(*many)
            await asyncio.gather(*alone)
            assert payloads(server.asked[-1]) == [
                b"0 0",
                b"0 1",
                b"0 2",
                b"1 0",
                *(b"2 %d" % at for at in range(5)),
                b"single",
            ]
            begins = [UNDER_WAY_MAX, UNDER_WAY_MAX + 3, UNDER_WAY_MAX + 4]
            for receipt, count, start in zip(receipts, (3, 1, 5), begins, strict=True):
                assert len(receipt) == receipt.stored == count
                assert [place.offset for place in receipt] == list(range(start, start + count))
            assert (await one[0]).offset == UNDER_WAY_MAX + 9

    run(main())


def test_many_publishers_of_many_over_several_lanes(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q", lanes=3)

            async def call(caller: int) -> dict[tuple[int, int], bytes]:
                found = {}
                for turn in range(8):
                    batch = [
                        Message(b"%d %d %d" % (caller, turn, at), partition=f"p{(caller + at) % 7}") for at in range(9)
                    ]
                    receipt = await client.publish_many("q", batch)
                    assert len(receipt) == 9
                    for at, place in receipt.numbered():
                        found[place.lane, place.offset] = batch[at].payload
                return found

            told: dict[tuple[int, int], bytes] = {}
            for found in await asyncio.gather(*map(call, range(12))):
                told |= found
            assert len(told) == 12 * 8 * 9
            there: dict[tuple[int, int], bytes] = {}
            while claim := await client.claim("q", max=1_000):
                there |= {(one.lane, one.offset): one.payload for one in claim}
                await client.ack(claim)
            assert there == told

    run(main())


def test_what_is_no_list_of_messages_is_refused_in_company_as_it_is_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q")
            wrong: list[Any] = ["text", [b"bytes"], [Message(b"x"), None], [Message("text")], 7]  # type: ignore[arg-type]
            for value in wrong:
                tasks = begin(client, *(b"%d" % number for number in range(20)))
                with pytest.raises(InvalidArgument):
                    await client.publish_many("q", value)
                assert len(await client.publish_many("q", [])) == 0
                assert len(await client.publish_many("q", (Message(b"a"), Message(b"b")))) == 2
                await asyncio.gather(*tasks)
            assert len(await client.claim("q", max=1_000)) == len(wrong) * 22

    run(main())


@pytest.mark.usefixtures("patient")
def test_threads_that_share_a_client_share_its_requests() -> None:
    async def main() -> None:
        held = Held()
        async with ToldServer(held) as server:
            client = await asyncio.to_thread(penstock.Client, server.url)

            def start(count: int) -> list[asyncio.Future[Published]]:
                work = asyncio.to_thread
                return [asyncio.ensure_future(work(client.publish, "q", Message(b"x"))) for _ in range(count)]

            threads = start(UNDER_WAY_MAX)
            await until(lambda: len(server.asked) == UNDER_WAY_MAX)
            threads += start(3)
            assert isinstance(client._inner, AsyncClient)
            (way,) = client._inner._sharing._ways.values()
            await until(lambda: len(way._waiting) == 3)
            held.gate.set()
            assert sorted([(await thread).offset for thread in threads]) == list(range(UNDER_WAY_MAX + 3))
            assert len(server.asked) == UNDER_WAY_MAX + 1
            await asyncio.to_thread(client.close)

    run(main())


def test_a_message_that_is_refused_costs_its_company_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q", max_message_bytes=100)
            bodies = [b"x" * (200 if number == 7 else 10) for number in range(20)]
            results = await asyncio.gather(
                *(client.publish("q", Message(body)) for body in bodies), return_exceptions=True
            )
            assert isinstance(results[7], InvalidArgument)
            assert all(isinstance(result, Published) for result in results[:7] + results[8:])
            assert len(await client.claim("q", max=100)) == 19

    run(main())


def test_a_queue_takes_as_many_as_it_has_room_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path / "queue.db") as (client, _):
            await client.declare_queue("q", max_length=12)
            await client.declare_group("q", "default")
            results = await asyncio.gather(
                *(client.publish("q", Message(b"x")) for _ in range(30)), return_exceptions=True
            )
            assert sum(isinstance(result, Published) for result in results) == 12
            assert sum(isinstance(result, QueueFull) for result in results) == 18
            assert len(await client.claim("q", max=100)) == 12

    run(main())


async def told_of_a_group(held: Held, respond: Responder, *bodies: bytes) -> tuple[list[Any], list[Asked]]:
    """What each of a group is told, and what the server was asked from the group's request on."""
    async with ToldServer(respond) as server, AsyncClient(server.url, retry=Retry(pause_seconds=0.001)) as client:
        alone = await fill(client, server)
        others = begin(client, *bodies)
        await asyncio.sleep(0)
        held.gate.set()
        await asyncio.gather(*alone)
        return await asyncio.gather(*others, return_exceptions=True), server.asked[UNDER_WAY_MAX:]


def test_an_error_that_is_nobodys_fault_is_told_to_all() -> None:
    async def main() -> None:
        held = Held()

        async def respond(asked: Asked) -> bytes:
            stored = await held(asked)
            return stored if len(payloads(asked)) == 1 else refusal(404, "not_found")

        results, asked = await told_of_a_group(held, respond, b"a", b"b", b"c")
        assert [type(result) for result in results] == [NotFound] * 3
        assert len(asked) == 1  # not one by one

    run(main())


def test_a_lost_answer_is_asked_for_again_under_the_same_id() -> None:
    async def main() -> None:
        held, lost = Held(), 0

        async def respond(asked: Asked) -> bytes | None:
            nonlocal lost
            stored = await held(asked)
            if len(payloads(asked)) == 3 and not lost:
                lost += 1
                return None
            return stored

        results, (first, again) = await told_of_a_group(held, respond, b"a", b"b", b"c")
        assert [type(result) for result in results] == [Published] * 3
        assert payloads(first) == payloads(again) == [b"a", b"b", b"c"]
        assert first.query["publish_id"] == again.query["publish_id"]

    run(main())


def test_a_refusal_of_a_repeat_is_told_as_it_is_and_nothing_is_sent_anew() -> None:
    """The first attempt may have stored them all: one by one, under new ids, they could be stored twice."""

    async def main() -> None:
        held, seen = Held(), 0

        async def respond(asked: Asked) -> bytes | None:
            nonlocal seen
            stored = await held(asked)
            if len(payloads(asked)) == 1:
                return stored
            seen += 1
            return None if seen == 1 else refusal(429, "queue_full")

        results, asked = await told_of_a_group(held, respond, b"a", b"b")
        assert [type(result) for result in results] == [QueueFull] * 2
        assert len(asked) == 2

    run(main())


def test_one_who_goes_away_takes_nobody_along() -> None:
    async def main() -> None:
        held = Held()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            alone = await fill(client, server)
            waiting = begin(client, b"a", b"b", b"c")
            await asyncio.sleep(0)
            waiting[1].cancel()  # before it was sent
            await until(lambda: len(server.asked) == UNDER_WAY_MAX + 1)
            assert payloads(server.asked[-1]) == [b"a", b"c"]
            waiting[2].cancel()  # after
            held.gate.set()
            assert (await waiting[0]).queue == "q"
            await asyncio.gather(*alone)

    run(main())


def test_closing_the_client_tells_those_who_wait() -> None:
    async def main() -> None:
        async with ToldServer(Held()) as server:
            client = AsyncClient(server.url, retry=Retry(attempts=1))
            tasks = await fill(client, server)
            tasks += begin(client, b"a", b"b")
            await asyncio.sleep(0)
            await client.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, Closed | Unavailable) for result in results)

    run(main())


def test_any_number_of_queues_leaves_nothing_behind() -> None:
    async def main() -> None:
        held = Held()
        held.gate.set()
        async with ToldServer(held) as server, AsyncClient(server.url) as client:
            for number in range(WAYS_KEPT + 50):
                await client.publish(f"q{number}", Message(b"x"))
            assert len(client._sharing._ways) <= WAYS_KEPT

    run(main())
