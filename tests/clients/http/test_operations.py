"""Every operation of the client against the real server: the broker's names, parameters, results and errors."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import (
    AsyncClient,
    Client,
    Forbidden,
    InvalidArgument,
    InvalidBatch,
    InvalidFilter,
    LeaseLost,
    Message,
    MessageTooLarge,
    NotFound,
    QueueFull,
    UnknownOption,
    Unroutable,
    Verdict,
    WrongKind,
    encode,
)
from tests.clients.http.rig import connected, run, served, until
from tests.nodes import node_of


def test_large_messages_come_back_as_they_were_sent() -> None:
    """So large that they are sent, received and stored in parts: by each way in, and each way out."""
    messages = [Message(os.urandom(20_000), key=f"k{number}") for number in range(60)]

    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", retain_messages=1_000)
            await client.declare_group("q", "default")
            await client.declare_exchange("x", kind="fanout")
            await client.bind("x", "q")
            await client.publish("q", Message(messages[0].payload * 10))
            await client.publish_many("q", messages)
            await client.publish_batch("q", encode(messages))
            await client.publish_to("x", messages)
            await client.stage("t", "chunk", encode(messages), queue="q")
            await client.commit_staged("t", ["chunk"])
            expected = [Message(messages[0].payload * 10), *messages * 4]
            claim = await client.claim("q", max=61)
            found = [received.message for received in claim.messages]
            while claim := await client.settle_and_claim(claim, max=45):
                found += [received.message for received in claim.messages]
            assert found == expected
            read = await client.read_from("q", offset=0, max=1_000)
            assert [received.message for received in read.messages] == expected[: len(read)]
            assert len(read) > 61

    run(main())


def test_a_message_comes_back_as_it_was_sent() -> None:
    message = Message(
        payload=bytes(range(256)),
        partition="part/ition",
        key="k",
        headers={"a": b"\xff", "t": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "n": [1, None]},
        priority=3,
        not_before_ms=5,
        ttl_ms=60_000,
        dedup_id="dedup",
        content_type="text/plain",
        correlation_id="corr",
        trace_id="trace",
    )

    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q")
            place = await client.publish("q", message)
            assert (place.queue, place.lane, place.offset, place.duplicate) == ("q", 0, 0, False)
            assert (await client.publish("q", message)).duplicate
            [received] = (await client.browse("q")).messages
            assert received.message == message
            [received] = (await client.read_from("q")).messages
            assert received.message == message
            claim = await client.claim("q", wait=5, lease_seconds=30)
            [received] = claim.messages
            assert (received.message, received.attempt, received.offset) == (message, 1, 0)
            assert claim.payloads() == [message.payload]
            await client.ack(claim)

    run(main())


def test_names_of_every_kind() -> None:
    names = ["a/b", "ä ö", "?x=1&y", "%2F", ".", "..", "#", "+", "x" * 255, "🐟", '"']

    async def main() -> None:
        async with connected() as (client, place):
            for name in names:
                await client.declare_queue(name)
                await client.declare_group(name, name, kind="stream")
                await client.publish(name, Message(name.encode()))
                assert (await client.read(name, name)).payloads() == [name.encode()]
            assert set(names) <= set(await client.queues())
            other = client.in_namespace("a/b ?&")
            await other.declare_queue("mine")
            assert list(await other.queues()) == ["mine"]
            assert list(await place.broker.in_namespace("a/b ?&").queues()) == ["mine"]

    run(main())


def test_more_queues_than_a_page() -> None:
    async def main() -> None:
        async with connected() as (client, place):
            for number in range(1_005):
                await place.broker.declare_queue(f"q{number}", ephemeral=True)
            assert len(await client.queues()) == 1_005 + 1  # and $events

    run(main())


def test_declarations() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", lanes=2, max_attempts=3)
            await client.declare_queue("q", max_attempts=4)
            assert await client.queue_options("q") == {"lanes": 2, "max_attempts": 4}
            assert await client.has_queue("q")
            assert not await client.has_queue("p")
            await client.declare_group("q", "g", kind="stream")
            assert await client.groups("q") == {"g": {"kind": "stream"}}
            await client.delete_group("q", "g")
            assert await client.groups("q") == {}
            await client.declare_exchange("e", kind="headers")
            await client.bind("e", "q", headers={"x": b"\x00", "y": 1}, match="any")
            assert (await client.exchanges())["e"] == {"kind": "headers"}
            [binding] = await client.bindings("e")
            assert (binding.target, binding.headers, binding.match) == ("q", {"x": b"\x00", "y": 1}, "any")
            assert (await client.publish_to("e", Message(b"1", headers={"y": 1}))).queues == ["q"]
            await client.unbind("e", "q", headers={"x": b"\x00", "y": 1}, match="any")
            assert await client.bindings("e") == []
            await client.delete_exchange("e")
            await client.delete_queue("q")
            assert not await client.has_queue("q")
            with pytest.raises(NotFound):
                await client.delete_queue("q")

    run(main())


def test_publish_receipts() -> None:
    async def main() -> None:
        async with connected() as (client, place):
            await client.declare_queue("q", lanes=3)
            messages = [Message(b"%d" % i, partition=str(i % 7), dedup_id=str(i // 2)) for i in range(40)]
            ours = await client.publish_many("q", messages)
            await place.broker.declare_queue("p", lanes=3)
            theirs = await place.broker.publish_many("p", messages)
            assert [(one.lane, one.offset, one.duplicate) for one in ours] == [
                (one.lane, one.offset, one.duplicate) for one in theirs
            ]
            assert (len(ours), ours.stored, ours.duplicates) == (40, theirs.stored, theirs.duplicates)
            assert len(await client.publish_many("q", [])) == 0
            again = await client.publish_batch("q", encode(messages))
            assert again.stored == 0
            assert [one.offset for one in again] == [one.offset for one in ours]

    run(main())


def test_publishing_again_under_the_same_id_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        many = [Message(b"%d" % i, partition=None if i % 3 else f"p{i % 5}") for i in range(100)]
        async with connected(tmp_path / "queue.db") as (client, _):
            for lanes in (1, 3):
                name = f"q{lanes}"
                await client.declare_queue(name, lanes=lanes)
                for messages in (many[:1], many[:20], many):
                    id = f"{len(messages)}"
                    first = await client.publish_many(name, messages, publish_id=id)
                    again = await client.publish_many(name, messages, publish_id=id)
                    assert (first.stored, again.stored, again.duplicates) == (len(messages), 0, len(messages))
                    assert [(one.lane, one.offset) for one in first] == [(one.lane, one.offset) for one in again]
                published = (await client.stats(name)).published
                assert published == 121
            await client.declare_exchange("e", kind="fanout")
            await client.bind("e", "q1")
            await client.bind("e", "q3")
            first = await client.publish_to("e", many, publish_id="routed")
            again = await client.publish_to("e", many, publish_id="routed")
            assert (first.stored, again.stored) == (200, 0)
            # Only this very id, in this very queue, is known.
            assert (await client.publish_many("q1", many, publish_id="routed2")).stored == 100
        async with connected(tmp_path / "queue.db") as (client, _):
            assert (await client.publish_many("q1", many, publish_id="100")).stored == 0  # kept with the queue
            with pytest.raises(InvalidArgument, match="publish_id"):
                await client.publish("q1", Message(b""), publish_id="")

    run(main())


def test_a_repeated_publish_finds_the_messages_that_were_duplicates_by_their_own_id() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", max_length=10)
            await client.publish("q", Message(b"0", dedup_id="a"))
            messages = [Message(b"1"), Message(b"2", dedup_id="a"), Message(b"3", dedup_id="b"), Message(b"4")]
            first = await client.publish_many("q", messages, publish_id="x")
            assert [(one.offset, one.duplicate) for one in first] == [(1, False), (0, True), (2, False), (3, False)]
            await client.publish_many("q", [Message(b"")] * 6)
            with pytest.raises(QueueFull):
                await client.publish("q", Message(b""))
            again = await client.publish_many("q", messages, publish_id="x")  # though the queue is full
            assert [(one.offset, one.duplicate) for one in again] == [(1, True), (0, True), (2, True), (3, True)]

    run(main())


def test_settling() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", backoff_ms=0)
            await client.publish_many("q", [Message(b"%d" % i) for i in range(8)])
            claim = await client.claim("q", max=8, lease_seconds=30)
            before = claim.deadline_ms
            assert await client.extend(claim, 500) > before
            assert claim.lease is not None
            await client.ack(claim, [0, 1])
            await client.nack(str(claim.lease), [2], delay=600, error="tired")
            await client.reject(claim.lease, [3], error="bad")
            await client.postpone(claim, 600, [4])
            await client.release(claim, [5])
            await client.settle(claim, [Verdict("ack", 6, 7), Verdict("nack", 7, 8, 600_000, "x")])
            with pytest.raises(LeaseLost):
                await client.ack(claim)
            [group] = (await client.stats("q")).groups
            assert (group.ready, group.leased, group.scheduled, group.dead) == (1, 0, 3, 1)
            [dead] = await client.dead("q")
            assert (dead.received.offset, dead.reason, dead.error, dead.attempts) == (3, "rejected", "bad", 1)
            [reason] = await client.dead_reasons("q")
            assert (reason.error, reason.count) == ("bad", 1)
            assert await client.redrive("q", error="bad") == 1
            assert await client.purge("q") > 0
            assert await client.purge_dead("q", offsets=(0, 100)) == 0
            with pytest.raises(InvalidArgument, match="no lease"):
                await client.ack(await client.claim("q"))
            with pytest.raises(InvalidArgument, match="at least one verdict"):
                await client.settle(claim, [])
            with pytest.raises(InvalidArgument, match="not a lease"):
                await client.ack("nonsense")

    run(main())


def test_settling_and_claiming_in_one_request() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", backoff_ms=0)
            await client.declare_group("q", "default")
            await client.publish_many("q", [Message(b"%d" % i) for i in range(8)])
            first = await client.claim("q", max=2)
            second = await client.settle_and_claim(first, max=2, lease_seconds=500, consumer="bob")
            assert second.payloads() == [b"2", b"3"]
            assert second.deadline_ms > first.deadline_ms + 400_000
            assert second.lease is not None
            verdicts = [Verdict("ack", 2, 3), Verdict("reject", 3, 4, None, "bad")]
            third = await client.settle_and_claim(str(second.lease), verdicts)
            assert third.payloads() == [b"4"]
            fourth = await client.settle_and_claim(third, [Verdict("release")], max=9)
            assert [(one.payload, one.attempt) for one in fourth] == [(b"%d" % i, 1) for i in range(4, 8)]
            last = await client.settle_and_claim(fourth)
            assert (len(last), last.lease, last.queue) == (0, None, "q")
            [group] = (await client.stats("q")).groups
            assert (group.ready, group.leased, group.dead) == (0, 0, 1)
            for lease in (first, second, fourth):
                with pytest.raises(LeaseLost):
                    await client.settle_and_claim(lease)
            with pytest.raises(InvalidArgument, match="no lease"):
                await client.settle_and_claim(last)
            with pytest.raises(InvalidArgument, match="at least one verdict"):
                await client.settle_and_claim(fourth, [])
            with pytest.raises(InvalidArgument, match="max"):
                await client.settle_and_claim(fourth, max=0)

    run(main())


def test_claims_wait_and_take_as_asked() -> None:
    async def main() -> None:
        async with connected() as (client, place):
            await client.declare_queue("q", ordered=True)
            waiting = asyncio.ensure_future(client.claim("q", wait=30, consumer="ann"))
            await until(lambda: node_of(place.broker).waiters.count == 1)
            await client.publish("q", Message(b"a", partition="1"))
            assert (await waiting).payloads() == [b"a"]
            assert len(await client.claim("q", partition="2")) == 0
            await client.publish("q", Message(b"b", partition="2"))
            claim = await client.claim("q", partition="2", ack=True)
            assert (claim.payloads(), claim.lease) == ([b"b"], None)
            history = await client.history("q", 0)
            assert (history[0].kind, history[0].consumer) == ("claimed", "ann")
            cancelled = asyncio.ensure_future(client.claim("q", wait=600))
            await until(lambda: node_of(place.broker).waiters.count == 1)
            cancelled.cancel()
            await until(lambda: node_of(place.broker).waiters.count == 0)  # the server noticed

    run(main())


def test_a_transaction_without_a_verdict_on_a_lease_is_done_only_while_that_holds() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("in")
            await client.declare_queue("out")
            await client.publish("in", Message(b"1"))
            claim = await client.claim("in")
            for payload in (b"a", b"b"):
                await client.transaction().settle(claim, ()).publish("out", Message(payload)).commit()
            await client.ack(claim)
            with pytest.raises(LeaseLost):
                await client.transaction().settle(claim, ()).publish("out", Message(b"never")).commit()
            assert (await client.claim("out", max=9)).payloads() == [b"a", b"b"]

    run(main())


def test_transactions_are_all_or_nothing() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("in")
            await client.declare_queue("out")
            await client.declare_exchange("e", kind="fanout")
            await client.bind("e", "out")
            await client.publish_many("in", [Message(b"1"), Message(b"2")])
            claim = await client.claim("in", max=2)
            async with client.transaction() as transaction:
                transaction.ack(claim, [0]).publish("out", Message(b"a"), Message(b"\xff"))
                transaction.nack(claim, [1], error="x").publish_to("e", Message(b"c"))
            assert transaction.receipt is not None
            assert [(one.queue, one.offset) for one in transaction.receipt] == [("out", 0), ("out", 1), ("out", 2)]
            with pytest.raises(InvalidArgument, match="committed before"):
                await transaction.commit()
            with pytest.raises(LeaseLost):
                async with client.transaction() as transaction:
                    transaction.publish("out", Message(b"never")).ack(claim)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
                async with client.transaction() as transaction:
                    transaction.publish("out", Message(b"never"))
                    raise ZeroDivisionError
            async with client.transaction() as transaction:
                pass
            assert (await client.claim("out", max=9)).payloads() == [b"a", b"\xff", b"c"]

    run(main())


def test_streams() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", primary_group="work", retain_messages=1_000)
            await client.declare_group("q", "work")
            await client.declare_group("q", "g", kind="stream", auto_commit=False)
            await client.publish_many("q", [Message(b"%d" % i) for i in range(5)])
            await client.ack(await client.claim("q", group="work", max=2))
            read = await client.read("q", "g", max=3)
            assert [(one.offset, one.done) for one in read.messages] == [(0, True), (1, True), (2, False)]
            assert (read.next_offset, read.primary_committed, read.lane) == (3, 2, 0)
            await client.commit("q", "g", 2)
            await client.seek("q", "g", offset=1)
            assert (await client.read("q", "g")).payloads() == [b"1", b"2", b"3", b"4"]
            assert (await client.read_from("q", 3, max=1)).payloads() == [b"3"]
            assert len(await client.read("q", "g", wait=0.05)) == 0
            with pytest.raises(WrongKind):
                await client.claim("q", group="g")

    run(main())


def test_looking() -> None:
    async def main() -> None:
        async with connected() as (client, place):
            await client.declare_queue("q", lanes=2)
            await client.publish_many(
                "q", [Message(b"\xff%d" % i, partition=f"p{i}", headers={"x": 1}) for i in range(10)]
            )
            seen, after = [], None
            while True:
                page = await client.browse("q", max=3, after=after, filter="x = 1")
                seen += page.messages
                after = page.next
                if after is None:
                    break
            theirs = (await place.broker.browse("q")).messages
            assert sorted((one.lane, one.offset, one.payload) for one in seen) == sorted(
                (one.lane, one.offset, one.payload) for one in theirs
            )
            assert await client.stats("q") == await place.broker.stats("q")
            with pytest.raises(InvalidArgument, match="lanes 0 to 1"):
                await client.history("q", 0)
            assert await client.history("q", 0, lane=1) == []
            await client.pause("q")
            assert len(await client.claim("q")) == 0
            await client.resume("q")
            assert len(await client.claim("q")) == 1
            await client.pause("q", "default")
            assert len(await client.claim("q")) == 0
            await client.check_ready()

    run(main())


def test_traces_and_schedules() -> None:
    async def main() -> None:
        async with connected(consumer="me") as (client, _):
            await client.declare_queue("q")
            await client.publish("q", Message(b"x", trace_id="t1"))
            await client.trace_event("t1", "seen", detail="twice", queue="q", offset=0)
            trace = await client.trace("t1")
            assert trace.trace_id == "t1"
            assert ("event", "seen", "twice", "me") in [
                (entry.kind, entry.name, entry.detail, entry.consumer) for entry in trace.entries
            ]
            made = await client.declare_schedule("s", message=Message(b"\xfe", key="k"), queue="q", cron="0 5 * * *")
            assert (made.name, made.cron, made.message) == ("s", "0 5 * * *", Message(b"\xfe", key="k"))
            assert await client.schedule("s") == made
            assert await client.schedules() == [made]
            await client.delete_schedule("s")
            assert await client.schedules() == []
            with pytest.raises(NotFound):
                await client.schedule("s")

    run(main())


def test_consumers_that_come_and_go() -> None:
    async def main() -> None:
        async with connected(consumer="me") as (client, _):
            await client.declare_queue("q", auto_delete=True)
            assert await client.attach("q") == "me"
            await client.publish("q", Message(b"x"))
            assert len(await client.claim("q")) == 1
            await client.detach("q")
            assert not await client.has_queue("q")

    run(main())


def test_handles() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            queue = await client.queue("q").declare(max_attempts=2)
            group = await queue.group("g").declare(kind="stream")
            exchange = await client.exchange("e").declare(kind="fanout")
            await exchange.bind("q")
            assert (await queue.publish(Message(b"1"))).offset == 0
            assert len(await queue.publish_many([Message(b"2")])) == 1
            assert len(await exchange.publish(Message(b"3"), mandatory=True)) == 1
            assert (await group.read()).payloads() == [b"1", b"2", b"3"]
            await group.commit(3)
            await group.seek(to="first")
            assert len(await group.read()) == 3
            claim = await queue.claim(max=3)
            await client.reject(claim)
            assert len(await queue.group().dead()) == 3
            assert await queue.group().redrive() == 3
            assert len(await queue.group().claim()) == 1
            await queue.pause()
            await queue.resume()
            await group.pause()
            await group.resume()
            assert (await queue.stats()).published == 3
            await group.delete()
            await exchange.delete()
            await queue.delete()
            assert "q" not in await client.queues()

    run(main())


def test_what_the_server_refuses() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q", max_message_bytes=10, max_length=1)
            calls: list[tuple[type[Exception], Any]] = [
                (NotFound, client.publish("nowhere", Message(b""))),
                (UnknownOption, client.declare_queue("q", lanez=1)),  # type: ignore[call-arg]
                (MessageTooLarge, client.publish("q", Message(b"x" * 11))),
                (MessageTooLarge, client.publish_many("q", [Message(b"x" * 11)])),
                (QueueFull, client.publish_many("q", [Message(b"")] * 2)),
                (Forbidden, client.publish("$events", Message(b""))),
                (InvalidFilter, client.browse("q", filter="a = = b")),
                (NotFound, client.declare_group("nowhere", "g")),
                (InvalidArgument, client.claim("q", max=0)),
                (InvalidArgument, client.claim("q", wait=-1)),
                (InvalidArgument, client.claim("q", wait=1e9)),
                (NotFound, client.publish_to("nowhere", Message(b""))),
            ]
            for kind, call in calls:
                with pytest.raises(kind):
                    await call
            await client.declare_exchange("e")
            with pytest.raises(Unroutable):
                await client.publish_to("e", Message(b"", key="k"), mandatory=True)
            assert (await client.publish_to("e", Message(b"", key="k"))).stored == 0

    run(main())


def test_what_the_client_refuses_by_itself() -> None:
    async def main() -> None:
        async with connected() as (client, _):
            await client.declare_queue("q")
            bad: list[Any] = [
                Message("text"),  # type: ignore[arg-type]
                Message(b"", partition=1),  # type: ignore[arg-type]
                Message(b"", headers={"t": (1, 2)}),
                Message(b"", headers={"t": dt.datetime(2026, 1, 1)}),  # noqa: DTZ001 - without a zone is the point
                Message(b"", priority=256),
                "no message",
            ]
            for message in bad:
                with pytest.raises(InvalidArgument):
                    await client.publish("q", message)
                with pytest.raises(InvalidArgument):
                    await client.publish_many("q", [Message(b"fine"), message])
            with pytest.raises(InvalidArgument):
                await client.publish_many("q", 5)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                await client.publish_batch("q", b"bytes")  # type: ignore[arg-type]
            with pytest.raises(InvalidBatch):
                await client.publish_batch("q", encode([]))
            assert (await client.stats("q")).published == 0

    run(main())


def test_a_token() -> None:
    async def main() -> None:
        async with served(token="secret") as place:
            async with AsyncClient(place.url) as client:
                with pytest.raises(Forbidden) as caught:
                    await client.queues()
                assert caught.value.code == "unauthorized"
            async with AsyncClient(place.url, token="secret") as client:
                assert await client.queues()

    run(main())


def test_the_package_gives_the_clients_out_by_name() -> None:
    assert penstock.Client is Client
    assert set(penstock.__all__) == set(dir(penstock)) >= {*penstock._HOME_OF, "sync", "__version__"}
    for name in set(penstock.__all__) - {"sync", "__version__"}:
        assert getattr(penstock, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        _ = penstock.Nobody
