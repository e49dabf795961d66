"""Traces: the timeline of one id across queues, through failures, restarts and its own retention."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from penstock import EncodedBatch, InvalidArgument, Message, NotFound, TraceEntry, encode
from penstock.model.rows import Commit
from penstock.node.broker import LocalBroker
from penstock.node.observe import traces
from penstock.node.observe.traces import EXPIRE_SPAN_MS, PLACES_MAX, TRACE_RETAIN_MS
from tests.nodes import node_of
from tests.scenarios.rig import Home
from tests.scenarios.rig import play as play_at_home
from tests.scenarios.shaky import Machine, play

DAY_MS = 24 * 3600 * 1000


def places(entries: list[TraceEntry], kind: str = "published") -> list[tuple[str | None, int | None, int | None]]:
    return [(entry.queue, entry.lane, entry.offset) for entry in entries if entry.kind == kind]


async def published(broker: LocalBroker, trace_id: str) -> list[tuple[str | None, int | None, int | None]]:
    return places((await broker.trace(trace_id)).entries)


# The timeline ------------------------------------------------------------------------------------------------------


def test_one_id_across_queues_by_time() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("dead")
        await broker.declare_queue(
            "orders", max_attempts=2, backoff_ms=1_000, backoff_jitter=0, dead_letter_to="queue:dead"
        )
        await broker.publish("orders", Message(b"other", trace_id="u"))
        await broker.publish("orders", Message(b"mine", trace_id="t"))
        start_ms = machine.now_ms()
        for seconds in (1, 5):
            await machine.until(start_ms + seconds * 1_000)
            claim = await broker.claim("orders", max=2, consumer="ann")
            place: dict[str, Any] = {"queue": "orders", "offset": 1, "consumer": "ann"}
            await machine.until(start_ms + seconds * 1_000 + 100)
            await broker.trace_event("t", "charged", detail=f"{seconds} EUR", **place)
            await machine.until(start_ms + seconds * 1_000 + 200)
            await broker.nack(claim, [1], error="no funds")
        await machine.until(start_ms + 10_000)
        claim = await broker.claim("dead", consumer="bob")
        await broker.ack(claim)
        await machine.until(start_ms + 11_000)
        await broker.trace_event("t", "called")
        trace = await broker.trace("t")
        assert trace.trace_id == "t"
        assert len(trace) == len(trace.entries)
        told = [(e.kind, e.queue, e.offset, e.group, e.consumer, e.attempt, e.name, e.detail) for e in trace.entries]
        assert told == [
            ("published", "orders", 1, "", "", 0, "", ""),
            ("claimed", "orders", 1, "default", "ann", 1, "", ""),
            ("event", "orders", 1, "", "ann", 0, "charged", "1 EUR"),
            ("nacked", "orders", 1, "default", "ann", 1, "", "no funds"),
            ("claimed", "orders", 1, "default", "ann", 2, "", ""),
            ("event", "orders", 1, "", "ann", 0, "charged", "5 EUR"),
            ("nacked", "orders", 1, "default", "ann", 2, "", "no funds"),
            ("dead", "orders", 1, "default", "ann", 2, "", "attempts"),
            ("published", "dead", 0, "", "", 0, "", ""),
            ("claimed", "dead", 0, "default", "bob", 1, "", ""),
            ("acked", "dead", 0, "default", "bob", 1, "", ""),
            ("event", None, None, "", broker.consumer_name, 0, "called", ""),
        ]
        times = [entry.at_ms for entry in trace.entries]
        assert times == sorted(times)
        assert times[1] >= start_ms + 1_000
        assert [entry.lane for entry in trace.entries] == [0] * 11 + [None]

    play(story)


def test_every_way_of_publishing_leaves_its_places() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("plain")
        await broker.declare_queue("lanes", lanes=3)
        await broker.declare_exchange("all", kind="fanout")
        for queue in ("plain", "lanes"):
            await broker.bind("all", queue)
        mixed = [Message(b"%d" % n, trace_id="a" if n % 2 else None, headers={"n": n}) for n in range(40)]
        await broker.publish_many("plain", mixed)
        assert await published(broker, "a") == [("plain", 0, n) for n in range(1, 40, 2)]
        await broker.publish_batch("plain", encode([Message(b"x", trace_id="b", key="k")] * 3))
        assert await published(broker, "b") == [("plain", 0, n) for n in (40, 41, 42)]
        receipt = await broker.publish_many("lanes", [Message(b"x", partition=str(n), trace_id="c") for n in range(9)])
        assert sorted(await published(broker, "c"), key=repr) == sorted(
            [("lanes", one.lane, one.offset) for one in receipt.results()], key=repr
        )
        await broker.publish_to("all", Message(b"x", trace_id="d", partition="1"))
        assert sorted(queue or "" for queue, _, _ in await published(broker, "d")) == ["lanes", "plain"]
        async with broker.transaction() as transaction:
            transaction.publish("plain", Message(b"x", trace_id="e"))
        assert await published(broker, "e") == [("plain", 0, 44)]
        for _ in range(2):
            await broker.publish("plain", Message(b"x", trace_id="f", dedup_id="once"))
        assert await published(broker, "f") == [("plain", 0, 45)]
        await broker.publish("plain", Message(b"x", trace_id=""))
        assert all(row.trace_id for commit in machine.store.commits for row in commit.traces)

    play(story)


def test_things_of_one_time_are_all_kept() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        # The clock of this machine stands still but for commits: events that are sent together share one.
        await asyncio.gather(*(broker.trace_event("t", "same") for _ in range(20)))
        entries = (await broker.trace("t")).entries
        assert len(entries) == 20
        assert len({entry.at_ms for entry in entries}) == 1

    play(story)


def test_ids_of_rows_go_on_after_a_restart() -> None:
    async def story(machine: Machine) -> None:
        clock, machine.now_ms = machine.now_ms(), lambda: clock  # type: ignore[method-assign]
        for _ in range(3):
            broker = await machine.open()
            await broker.trace_event("t", "started")
            await broker.close()
        entries = (await (await machine.open()).trace("t")).entries
        assert [(entry.name, entry.at_ms) for entry in entries] == [("started", clock)] * 3

    play(story)


def test_namespaces_do_not_see_each_others_traces() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        other = broker.in_namespace("other")
        for world in (broker, other):
            await world.declare_queue("work")
        for _ in range(10):
            await other.trace_event("t", "theirs")
        await broker.publish("work", Message(b"x", trace_id="t"))
        await broker.ack(await broker.claim("work"))
        assert [entry.kind for entry in (await broker.trace("t", max=5)).entries] == ["published", "claimed", "acked"]
        assert {entry.name for entry in (await other.trace("t")).entries} == {"theirs"}
        assert (await broker.in_namespace("third").trace("t")).entries == []

    play(story)


def test_a_later_queue_of_the_same_name_is_another() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"x", trace_id="old"))
        await broker.ack(await broker.claim("work", consumer="first"))
        await broker.delete_queue("work")
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"y", trace_id="new"))
        await broker.ack(await broker.claim("work", consumer="second"))
        for trace_id, consumer in (("old", "first"), ("new", "second")):
            entries = (await broker.trace(trace_id)).entries
            assert [entry.kind for entry in entries] == ["published", "claimed", "acked"]
            assert {entry.consumer for entry in entries[1:]} == {consumer}

    play(story)


def test_events_are_read_once_for_a_bounded_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", [Message(b"x", trace_id="t")] * (PLACES_MAX + 1))
        await broker.ack(await broker.claim("work", max=100))
        reads = 0
        streams = node_of(broker).streams
        read = streams.read_offsets

        async def counted(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*arguments)

        monkeypatch.setattr(streams, "read_offsets", counted)
        entries = (await broker.trace("t")).entries
        assert len(places(entries)) == PLACES_MAX + 1
        assert places(entries, "acked") == [("work", 0, offset) for offset in range(PLACES_MAX)]
        assert reads == 2, "one page, and the end"
        assert len((await broker.trace("t", max=7)).entries) == 7

    play(story)


def test_without_events_there_is_still_a_trace() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open(events=False)
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"x", trace_id="t"))
        await broker.ack(await broker.claim("work"))
        assert [entry.kind for entry in (await broker.trace("t")).entries] == ["published"]

    play(story)


def test_of_ephemeral_queues_only_what_a_consumer_notes_is_kept() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("fast", ephemeral=True)
        before = len(machine.store.commits)
        await broker.publish("fast", Message(b"x", trace_id="t"))
        assert (await broker.trace("t")).entries == []
        assert len(machine.store.commits) == before
        await broker.trace_event("t", "seen", queue="fast", offset=0)
        assert places((await broker.trace("t")).entries, "event") == [("fast", 0, 0)]

    play(story)


# Commits -----------------------------------------------------------------------------------------------------------


def test_rows_are_in_the_commit_of_their_messages() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work")
        await broker.publish_many("work", [Message(b"x", trace_id="t"), Message(b"y"), Message(b"z", trace_id="u")])
        [commit] = [commit for commit in machine.store.commits if commit.traces]
        [batch] = [row for change in commit.lanes for row in change.batches]
        assert batch.count == 3
        assert [(row.trace_id, row.offset, row.at_ms) for row in commit.traces] == [
            ("t", 0, batch.published_ms),
            ("u", 2, batch.published_ms),
        ]

    play(story)


@pytest.mark.parametrize(("when", "stored"), [("before", 0), ("after", 1)])
def test_a_failed_commit_has_both_or_neither(when: Literal["before", "after"], stored: int) -> None:
    async def story(machine: Machine) -> None:
        def has_rows(commit: Commit) -> bool:
            return bool(commit.traces)

        broker = await machine.open()
        await broker.declare_queue("work")
        machine.store.fail(when, 1, has_rows)
        with pytest.raises(Exception, match=f"failed {when}"):
            await broker.publish("work", Message(b"x", trace_id="t"))
        await machine.until(machine.now_ms() + 5_000)
        assert (await broker.stats("work")).messages == stored
        assert await published(broker, "t") == [("work", 0, 0)] * stored
        await broker.publish("work", Message(b"x", trace_id="t"))
        assert await published(broker, "t") == [("work", 0, offset) for offset in range(stored + 1)]

    play(story)


# Retention ---------------------------------------------------------------------------------------------------------


def test_rows_go_after_a_week_and_not_before() -> None:
    async def story(machine: Machine) -> None:
        start_ms = machine.now_ms()
        broker = await machine.open()
        await broker.trace_event("t", "first")
        await machine.until(start_ms + DAY_MS)
        await broker.trace_event("t", "second")
        await machine.until(start_ms + TRACE_RETAIN_MS - 1_000)
        assert [entry.name for entry in (await broker.trace("t")).entries] == ["first", "second"]
        await machine.until(start_ms + TRACE_RETAIN_MS + EXPIRE_SPAN_MS)
        assert [entry.name for entry in (await broker.trace("t")).entries] == ["second"]
        await broker.close()
        broker = await machine.open()
        await machine.until(start_ms + TRACE_RETAIN_MS + DAY_MS + EXPIRE_SPAN_MS)
        assert (await broker.trace("t")).entries == []
        assert await machine.store.oldest_trace() is None
        assert len([commit for commit in machine.store.commits if commit.traces_expired_ms is not None]) == 2
        before = len(machine.store.commits)
        await machine.until(start_ms + TRACE_RETAIN_MS + 9 * DAY_MS)
        assert len(machine.store.commits) == before, "nothing is left to mind"

    play(story)


def test_what_is_overdue_goes_in_small_commits_also_when_they_fail() -> None:
    async def story(machine: Machine) -> None:
        start_ms = machine.now_ms()
        broker = await machine.open()
        for number in range(10):
            await machine.until(start_ms + number * EXPIRE_SPAN_MS * 2)
            await broker.trace_event("t", f"e{number}")
        await broker.close()
        await machine.until(start_ms + TRACE_RETAIN_MS + DAY_MS)
        machine.store.fail("before", 1, lambda commit: commit.traces_expired_ms is not None)
        broker = await machine.open()
        await machine.until(machine.now_ms() + 2 * EXPIRE_SPAN_MS)
        assert machine.store.fail_times == 0
        assert (await broker.trace("t")).entries == []
        expiries = [commit.traces_expired_ms for commit in machine.store.commits if commit.traces_expired_ms]
        assert len(expiries) == 10

    play(story)


# On each engine ----------------------------------------------------------------------------------------------------


def test_a_trace_outlives_the_process(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"x", trace_id="t\0é"))
        claim = await broker.claim("work")
        await broker.trace_event("t\0é", "seen", detail="x" * 4_096, queue="work", offset=0)
        await broker.ack(claim)
        before = await broker.trace("t\0é")
        assert [entry.kind for entry in before.entries] == ["published", "claimed", "event", "acked"]
        broker = await home.reopen(broker)
        assert await broker.trace("t\0é") == before

    play_at_home(home, scenario)


# What is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"trace_id": ""}, InvalidArgument, "trace_id is empty"),
        ({"trace_id": "t" * 256}, InvalidArgument, "trace_id has 256"),
        ({"trace_id": None}, InvalidArgument, "trace_id must be a string"),
        ({"trace_id": "\ud800"}, InvalidArgument, "lone surrogate"),
        ({"name": ""}, InvalidArgument, "an event's name"),
        ({"name": "n" * 256}, InvalidArgument, "an event's name has 256"),
        ({"name": 5}, InvalidArgument, "an event's name"),
        ({"detail": "d" * 4_097}, InvalidArgument, "detail has 4097"),
        ({"detail": None}, InvalidArgument, "detail must be a string"),
        ({"consumer": ""}, InvalidArgument, "consumer"),
        ({"queue": "work"}, InvalidArgument, "queue and offset"),
        ({"offset": 0}, InvalidArgument, "queue and offset"),
        ({"lane": 0}, InvalidArgument, "queue and offset"),
        ({"queue": "nowhere", "offset": 0}, NotFound, "no queue 'nowhere'"),
        ({"queue": "work", "offset": 1}, InvalidArgument, "offset is 1; queue 'work' ends at 1"),
        ({"queue": "work", "offset": -1}, InvalidArgument, "offset is -1"),
        ({"queue": "work", "offset": 0, "lane": 1}, InvalidArgument, "lane is 1"),
        ({"queue": "wide", "offset": 0}, InvalidArgument, "say which one"),
        ({"queue": "wide", "offset": 0, "lane": 1}, InvalidArgument, "lane 1 of queue 'wide' ends at 0"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work")
        await broker.declare_queue("wide", lanes=2)
        await broker.publish("work", Message(b"x"))
        options: dict[str, Any] = {"trace_id": "t", "name": "seen"} | changes
        with pytest.raises(error, match=words):
            await broker.trace_event(**options)
        assert (await broker.trace("t")).entries == []

    play(story)


def test_at_the_limits() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work")
        await broker.publish("work", Message(b"x"))
        await broker.ack(await broker.claim("work"))
        longest = "t" * 255
        await broker.trace_event(longest, "n" * 255, detail="d" * 4_096, queue="work", offset=0, lane=0)
        assert len((await broker.trace(longest, max=traces.ENTRIES_MAX)).entries) == 1
        for most in (0, traces.ENTRIES_MAX + 1, True):
            with pytest.raises(InvalidArgument, match="max"):
                await broker.trace(longest, max=most)
        for wrong in ("", "t" * 256, None, b"t"):
            with pytest.raises(InvalidArgument, match="trace_id"):
                await broker.trace(wrong)  # type: ignore[arg-type]
        # A producer's own batch with a trace id past the limit never gets as far as a row.
        batch = encode([Message(b"x", trace_id=longest + "t")])
        with pytest.raises(InvalidArgument, match="trace_id"):
            await broker.publish_batch("work", EncodedBatch(batch.count, batch.meta, batch.body))

    play(story)
