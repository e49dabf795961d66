"""Schedules: one message a tick, whatever fails or restarts. On a virtual clock, and once on each real engine."""

from __future__ import annotations

import asyncio
import datetime as dt
from functools import partial
from typing import Any, Literal

import msgspec
import pytest

from penstock import Forbidden, InvalidArgument, LimitReached, Message, MessageTooLarge, NotFound, Unavailable
from penstock.api.ticket import in_task
from penstock.core.schedule import PAYLOAD_BYTES_MAX, ScheduleDocument
from penstock.model.limits import HEADERS_MAX
from penstock.model.rows import Commit
from penstock.node.background.schedules import RETRY_MS
from penstock.node.broker import LocalBroker
from penstock.node.limits import Limits
from tests.nodes import node_of
from tests.scenarios.rig import Home, is_outbox_empty, until
from tests.scenarios.rig import play as play_at_home
from tests.scenarios.shaky import Machine, at, play

START_MS = at("2024-01-01T00:00+00:00")
MINUTE_MS = 60_000


async def fired(broker: LocalBroker, count: int) -> bool:
    return (await broker.schedule("every")).fired == count


async def ticks(broker: LocalBroker, queue: str = "work") -> list[int]:
    """The ticks whose messages a queue holds, in their order."""
    return [received.headers["scheduled_ms"] for received in (await broker.read_from(queue, max=10_000)).messages]


def minutes(*numbers: int) -> list[int]:
    return [START_MS + number * MINUTE_MS for number in numbers]


async def opened(machine: Machine, **options: Any) -> LocalBroker:
    """A broker with the queue `work`, kept whole, and the schedule `every` that fires each minute.

    The queue knows no dedup ids: a tick that is fired twice shows.
    """
    broker = await machine.open()
    await broker.declare_queue("work", retain_ms=10**11, dedup_window_ms=0)
    wanted: dict[str, Any] = {"message": Message(b"x"), "queue": "work", "cron": "* * * * *"} | options
    await broker.declare_schedule("every", **wanted)
    return broker


def fires(commit: Commit) -> bool:
    """Whether a commit says that a schedule fired."""
    documents = [row.document for row in commit.catalog if row.kind == "schedule"]
    return any(msgspec.msgpack.decode(document, type=ScheduleDocument).fired for document in documents)


# Ticks -------------------------------------------------------------------------------------------------------------


def test_each_tick_publishes_one_message_with_its_name_and_time() -> None:
    async def story(machine: Machine) -> None:
        message = Message(b"x", partition="p", headers={"mine": 1}, trace_id="t", priority=3)
        broker = await opened(machine, message=message, description="why")
        assert (await broker.schedule("every")).next_ms == minutes(1)[0]
        await machine.until(minutes(3)[0] + 1_000)
        [first, *_] = (await broker.read_from("work")).messages
        headers = {"mine": 1, "schedule": "every", "scheduled_ms": minutes(1)[0]}
        dedup_id = f"schedule/default/every/{minutes(1)[0]}"
        assert first.message == msgspec.structs.replace(message, headers=headers, dedup_id=dedup_id)
        assert await ticks(broker) == minutes(1, 2, 3)
        [schedule] = await broker.schedules()
        assert schedule == await broker.schedule("every")
        assert (schedule.next_ms, schedule.last_ms, schedule.fired) == (*minutes(4, 3), 3)
        assert (schedule.message, schedule.description, schedule.last_error) == (message, "why", "")

    play(story, START_MS + 500)


def test_an_interval_does_not_drift() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine, cron=None, interval_ms=700)
        await machine.until(START_MS + 70_000)
        first = START_MS // 700 * 700 + 700
        assert await ticks(broker) == list(range(first, machine.now_ms(), 700))

    play(story, START_MS + 123)


@pytest.mark.parametrize(
    ("start", "cron", "expected"),
    [
        ("2024-03-30T12:00+01:00", "30 2 * * *", ["2024-03-31T03:00+02:00", "2024-04-01T02:30+02:00"]),
        ("2024-10-26T12:00+02:00", "30 2 * * *", ["2024-10-27T02:30+02:00", "2024-10-28T02:30+01:00"]),
        ("2024-10-26T12:00+02:00", "*/30 2 27 * *", ["2024-10-27T02:00+02:00", "2024-10-27T02:30+02:00",
                                                     "2024-10-27T02:00+01:00", "2024-10-27T02:30+01:00"]),
    ],
)  # fmt: skip
def test_where_the_clocks_change(start: str, cron: str, expected: list[str]) -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine, cron=cron, timezone="Europe/Berlin")
        await machine.until(at(start) + 2 * 24 * 60 * MINUTE_MS)
        assert await ticks(broker) == [at(text) for text in expected]

    play(story, at(start))


def test_a_thousand_schedules_on_one_tick_share_a_few_commits() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work", retain_ms=10**11)
        for number in range(1_000):
            await broker.declare_schedule(f"s{number}", message=Message(b"x"), queue="work", cron="0 * * * *")
        await machine.until(START_MS + 60 * MINUTE_MS - 1)
        before = len(machine.store.commits)
        await machine.until(START_MS + 61 * MINUTE_MS)
        received = (await broker.read_from("work", max=10_000)).messages
        assert sorted(one.headers["schedule"] for one in received) == sorted(f"s{number}" for number in range(1_000))
        assert all(schedule.fired == 1 for schedule in await broker.schedules())
        assert len(machine.store.commits) - before < 10

    play(story, START_MS)


# Restarts and failures ---------------------------------------------------------------------------------------------


def test_what_was_missed_while_no_node_ran_is_made_up_for_by_one_message() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        await machine.until(minutes(2)[0] + 1_000)
        await broker.close()
        await machine.until(minutes(7)[0] + 1_000)
        broker = await machine.open()
        await machine.until(minutes(9)[0] + 1_000)
        assert await ticks(broker) == minutes(1, 2, 7, 8, 9)
        assert (await broker.schedule("every")).fired == 5

    play(story, START_MS)


def test_a_restart_between_two_ticks_makes_nothing_up() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        for minute in (1, 2, 3):
            await machine.until(minutes(minute)[0] + 30_000)
            await broker.close()
            broker = await machine.open()
        await machine.until(minutes(4)[0] + 1_000)
        assert await ticks(broker) == minutes(1, 2, 3, 4)

    play(story, START_MS)


def test_two_nodes_on_one_store_fire_each_tick_once() -> None:
    async def story(machine: Machine) -> None:
        first = await opened(machine)
        await machine.until(minutes(2)[0] + 1_000)
        second = await machine.open()
        await machine.until(minutes(5)[0] + 1_000)
        assert await ticks(second) == minutes(1, 2, 3, 4, 5)
        assert node_of(first).lifecycle.fenced is not None
        before = machine.store.tries
        await machine.until(minutes(8)[0] + 1_000)
        assert machine.store.tries == before + 3, "the first one does not try any more"

    play(story, START_MS)


@pytest.mark.parametrize(("when", "times"), [("before", 1), ("before", 3), ("after", 1), ("after", 3)])
def test_a_tick_whose_commit_fails_is_fired_once(when: Literal["before", "after"], times: int) -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        machine.store.fail(when, times, fires)
        await machine.until(minutes(1)[0] + RETRY_MS // 2)
        if when == "before":
            assert await ticks(broker) == []
        await machine.until(minutes(1)[0] + 4 * RETRY_MS)
        assert await ticks(broker) == minutes(1)
        await machine.until(minutes(4)[0] + 4 * RETRY_MS)
        assert await ticks(broker) == minutes(1, 2, 3, 4)
        assert (await broker.schedule("every")).fired == 4
        assert machine.store.fail_times == 0

    play(story, START_MS)


def test_a_lane_that_cannot_be_loaded_at_the_tick_is_asked_for_again() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        await broker.close()
        broker = await machine.open(events=False)
        machine.store.fail_loads = 4  # one of them goes to what a node looks at when it opens
        await machine.until(minutes(1)[0] + RETRY_MS // 2)
        assert (machine.store.fail_loads, (await broker.schedule("every")).fired) == (2, 0)
        await machine.until(minutes(1)[0] + 4 * RETRY_MS)
        assert await ticks(broker) == minutes(1)
        assert (await broker.schedule("every")).last_error == ""

    play(story, START_MS)


def test_a_declaration_that_failed_but_was_done_counts() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        machine.store.fail("after", 1, lambda commit: bool(commit.catalog))
        with pytest.raises(Unavailable):
            await broker.declare_schedule("second", message=Message(b"x"), queue="work", cron="* * * * *")
        machine.store.fail("after", 1, lambda commit: bool(commit.catalog_deleted))
        with pytest.raises(Unavailable):
            await broker.delete_schedule("every")
        await machine.until(minutes(2)[0] + 4 * RETRY_MS)
        received = (await broker.read_from("work")).messages
        assert [one.headers["schedule"] for one in received] == ["second", "second"]
        assert [(schedule.name, schedule.next_ms) for schedule in await broker.schedules()] == [
            ("second", minutes(3)[0])
        ]

    play(story, START_MS)


def test_a_store_that_is_away_for_long_costs_one_message_and_few_tries() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        machine.store.fail("before", 10**9, fires)
        await machine.until(minutes(5)[0] + 30_000)
        tries = 10**9 - machine.store.fail_times
        assert 10 < tries <= 280, "it tries again after a pause, not all the time"
        machine.store.fail_times = 0
        await machine.until(minutes(7)[0] + 1_000)
        assert await ticks(broker) == minutes(5, 6, 7)

    play(story, START_MS)


def test_message_and_state_are_one_commit() -> None:
    """Whatever commit a crash leaves as the last one, a node on it finds as many messages as fires."""

    async def story(machine: Machine) -> None:
        images: list[Any] = []
        apply = machine.store.apply

        @in_task
        async def remember(commit: Commit) -> None:
            await apply(commit)
            images.append(machine.store.clone())

        machine.store.apply = remember  # type: ignore[method-assign]
        await opened(machine)
        await machine.until(minutes(4)[0] + 1_000)
        seen = set()
        for image in images[2:]:
            broker = await machine.open(image)
            found = [one.headers["scheduled_ms"] for one in (await broker.read_from("work")).messages]
            assert len(found) == (await broker.schedule("every")).fired
            assert found == minutes(1, 2, 3, 4)[: len(found)]
            seen.add(len(found))
            await broker.close()
        assert seen == {0, 1, 2, 3, 4}

    play(story, START_MS)


def test_a_schedule_outlives_the_process(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        start_ms = clock.time_ms // MINUTE_MS * MINUTE_MS
        message = Message(bytes(range(256)), headers={"when": dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "raw": b"\0"})
        broker = await home.open()
        await broker.declare_queue("work", retain_ms=10**11)
        declared = await broker.declare_schedule("every", message=message, queue="work", cron="* * * * *")
        home.pass_time(broker, MINUTE_MS)
        await until(partial(fired, broker, 1))
        broker = await home.reopen(broker)
        after = await broker.schedule("every")
        assert after.message == declared.message == message
        assert (after.fired, after.last_ms) == (1, start_ms + MINUTE_MS)
        clock.time_ms += 10 * MINUTE_MS
        broker = await home.reopen(broker)
        await until(partial(fired, broker, 2))
        await until(lambda: is_outbox_empty(broker))
        assert await ticks(broker) == [start_ms + MINUTE_MS, start_ms + 11 * MINUTE_MS]

    play_at_home(home, scenario)


# Pause, change, delete ---------------------------------------------------------------------------------------------


def test_a_pause_is_not_made_up_for() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        options: dict[str, Any] = {"message": Message(b"x"), "queue": "work", "cron": "* * * * *"}
        await machine.until(minutes(1)[0] + 1_000)
        paused = await broker.declare_schedule("every", **options, paused=True)
        assert (paused.paused, paused.next_ms, paused.fired) == (True, None, 1)
        await machine.until(minutes(3)[0] + 1_000)
        await broker.close()
        broker = await machine.open()
        await machine.until(minutes(5)[0] + 1_000)
        resumed = await broker.declare_schedule("every", **options)
        assert resumed.next_ms == minutes(6)[0]
        await machine.until(minutes(7)[0] + 1_000)
        assert await ticks(broker) == minutes(1, 6, 7)

    play(story, START_MS)


def test_declaring_replaces_all_of_it_but_the_count() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine, description="old")
        await broker.declare_queue("other", retain_ms=10**11)
        await machine.until(minutes(2)[0] + 1_000)
        new = await broker.declare_schedule("every", message=Message(b"new"), queue="other", interval_ms=30_000)
        assert (new.cron, new.description, new.queue, new.fired) == (None, "", "other", 2)
        await machine.until(minutes(3)[0] + 1_000)
        assert await ticks(broker) == minutes(1, 2)
        assert await ticks(broker, "other") == [minutes(2)[0] + 30_000, minutes(3)[0]]

    play(story, START_MS)


def test_the_same_timing_declared_again_loses_and_repeats_no_tick() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        commits = len(machine.store.commits)
        await broker.declare_schedule("every", message=Message(b"x"), queue="work", cron="* * * * *")
        assert len(machine.store.commits) == commits, "nothing changed, so nothing is written"
        # The store is away at the tick, and the schedule is declared anew before the tick is fired.
        machine.store.fail("before", 1, fires)
        await machine.until(minutes(1)[0] + 100)
        await broker.declare_schedule("every", message=Message(b"y"), queue="work", cron="* * * * *")
        await machine.until(minutes(2)[0] + 2_000)
        assert await ticks(broker) == minutes(1, 2)

    play(story, START_MS)


def test_a_deleted_schedule_fires_no_more() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        await machine.until(minutes(1)[0] + 1_000)
        await broker.delete_schedule("every")
        assert await broker.schedules() == []
        with pytest.raises(NotFound, match="no schedule 'every'"):
            await broker.schedule("every")
        with pytest.raises(NotFound, match="no schedule 'every'"):
            await broker.delete_schedule("every")
        await machine.until(minutes(3)[0])
        await broker.close()
        broker = await machine.open()
        await machine.until(minutes(5)[0])
        assert await ticks(broker) == minutes(1)

    play(story, START_MS)


def test_namespaces_are_worlds_of_their_own() -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        other = broker.in_namespace("other")
        await other.declare_queue("work", retain_ms=10**11)
        await other.declare_schedule("every", message=Message(b"theirs"), queue="work", cron="*/2 * * * *")
        await machine.until(minutes(4)[0] + 1_000)
        assert await ticks(broker) == minutes(1, 2, 3, 4)
        assert await ticks(other) == minutes(2, 4)
        await broker.delete_schedule("every")
        assert [schedule.cron for schedule in await other.schedules()] == ["*/2 * * * *"]

    play(story, START_MS)


# Targets -----------------------------------------------------------------------------------------------------------


def test_a_queue_that_is_gone_is_an_error_that_shows_and_passes(caplog: pytest.LogCaptureFixture) -> None:
    async def story(machine: Machine) -> None:
        broker = await opened(machine)
        await machine.until(minutes(1)[0] + 1_000)
        await broker.delete_queue("work")
        await machine.until(minutes(3)[0] + 1_000)
        broken = await broker.schedule("every")
        assert "no queue 'work'" in broken.last_error
        assert (broken.fired, broken.last_ms, broken.next_ms) == (1, *minutes(1, 4))
        assert "no queue 'work'" in caplog.text
        await broker.declare_queue("work", retain_ms=10**11)
        await machine.until(minutes(5)[0] + 1_000)
        assert await ticks(broker) == minutes(4, 5)
        assert ((await broker.schedule("every")).fired, (await broker.schedule("every")).last_error) == (3, "")

    play(story, START_MS)


def test_a_full_queue_costs_the_tick() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work", max_length=1)
        await broker.declare_schedule("every", message=Message(b"x"), queue="work", cron="* * * * *")
        await machine.until(minutes(3)[0] + 1_000)
        assert "max_length" in (await broker.schedule("every")).last_error
        claim = await broker.claim("work", max=10)
        assert [one.headers["scheduled_ms"] for one in claim] == minutes(1)
        await broker.ack(claim)
        await machine.until(minutes(4)[0] + 1_000)
        assert [one.headers["scheduled_ms"] for one in await broker.claim("work")] == minutes(4)

    play(story, START_MS)


def test_through_an_exchange_to_every_queue_that_is_bound() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_exchange("news", kind="topic")
        for name in ("a", "b"):
            await broker.declare_queue(name, retain_ms=10**11)
        await broker.declare_schedule("every", message=Message(b"x", key="eu.de"), exchange="news", cron="* * * * *")
        await machine.until(minutes(1)[0] + 1_000)
        assert "no queue for key 'eu.de'" in (await broker.schedule("every")).last_error
        await broker.bind("news", "a", "eu.*")
        await broker.bind("news", "b", "#")
        await machine.until(minutes(2)[0] + 1_000)
        assert await ticks(broker, "a") == await ticks(broker, "b") == minutes(2)
        assert (await broker.schedule("every")).fired == 1
        await broker.delete_exchange("news")
        await machine.until(minutes(3)[0] + 1_000)
        assert "no exchange 'news'" in (await broker.schedule("every")).last_error

    play(story, START_MS)


# What is refused ---------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"message": Message(b"x"), "queue": "work", "cron": "* * * * *"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"name": ""}, InvalidArgument, "a schedule's name"),
        ({"name": 5}, InvalidArgument, "a schedule's name"),
        ({"queue": None}, InvalidArgument, "not neither"),
        ({"exchange": "e"}, InvalidArgument, "not both"),
        ({"queue": "nowhere"}, NotFound, "no queue 'nowhere'"),
        ({"queue": None, "exchange": "nowhere"}, NotFound, "no exchange 'nowhere'"),
        ({"queue": None, "exchange": "inner"}, Forbidden, "internal"),
        ({"queue": "$events"}, Forbidden, "by the broker alone"),
        ({"queue": "own"}, Forbidden, "exclusive"),
        ({"cron": None}, InvalidArgument, "not neither"),
        ({"interval_ms": 1_000}, InvalidArgument, "not both"),
        ({"cron": "0 0 30 2 *"}, InvalidArgument, "0 0 30 2"),
        ({"timezone": "Mars"}, InvalidArgument, "Mars"),
        ({"paused": 1}, InvalidArgument, "paused"),
        ({"description": "x" * 1_025}, InvalidArgument, "description"),
        ({"message": b"x"}, InvalidArgument, "penstock.Message"),
        ({"message": Message(bytes(PAYLOAD_BYTES_MAX + 1))}, MessageTooLarge, str(PAYLOAD_BYTES_MAX)),
        ({"message": Message(dedup_id="mine")}, InvalidArgument, "dedup_id 'mine'"),
        ({"message": Message(headers={"schedule": 1})}, InvalidArgument, "header 'schedule'"),
        ({"message": Message(headers={"scheduled_ms": 1})}, InvalidArgument, "header 'scheduled_ms'"),
        ({"message": Message(headers={f"h{n}": 1 for n in range(HEADERS_MAX - 1)})}, InvalidArgument, "257 headers"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open()
        await broker.declare_queue("work")
        await broker.declare_exchange("inner", internal=True)
        async with broker.session() as session:
            await session.declare_queue("own", exclusive=True)
            options = {"name": "every"} | GOOD | changes
            with pytest.raises(error, match=words):
                await session.declare_schedule(options.pop("name"), **options)
            assert await broker.schedules() == []

    play(story, START_MS)


def test_the_schedules_of_a_namespace_publish_no_more_than_they_may() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open(limits=Limits(schedule_rate=20.0))
        await broker.declare_queue("work")
        often: dict[str, Any] = {"message": Message(b"x"), "queue": "work", "interval_ms": 100}
        for name in ("a", "b"):
            await broker.declare_schedule(name, **often)
        with pytest.raises(LimitReached, match=r"'c' would publish 0.0166667 .* publish 20, .* may publish 20 \("):
            await broker.declare_schedule("c", message=Message(b"x"), queue="work", cron="* * * * *")
        await broker.declare_schedule("c", paused=True, **often)
        with pytest.raises(LimitReached, match="'c' would publish 10 messages a second"):
            await broker.declare_schedule("c", **often)
        await broker.declare_schedule("a", **often)  # it takes no more than it had
        elsewhere = broker.in_namespace("elsewhere")
        await elsewhere.declare_queue("work")
        await elsewhere.declare_schedule("c", **often)
        await broker.declare_schedule("a", paused=True, **often)
        await broker.declare_schedule("c", **often)
        with pytest.raises(LimitReached, match="'d' would publish 1 messages"):
            await broker.declare_schedule("d", message=Message(b"x"), queue="work", cron="* * * * * *")
        await asyncio.sleep(0.25)
        counters = (await broker.measures()).counters
        fired = [schedule.fired for schedule in (*await broker.schedules(), *await elsewhere.schedules())]
        assert counters.schedules_refused == 3
        assert counters.schedules_fired == sum(fired) > 0

    play(story, START_MS)


def test_at_the_limits() -> None:
    async def story(machine: Machine) -> None:
        broker = await machine.open(limits=Limits(schedules=2))
        broker = broker.in_namespace("n" * 255)
        await broker.declare_queue("work", retain_ms=10**11)
        full = Message(bytes(PAYLOAD_BYTES_MAX), headers={f"h{n}": 1 for n in range(HEADERS_MAX - 2)})
        names = ["x" * 254 + end for end in "ab"]
        for name in names:
            await broker.declare_schedule(name, **(GOOD | {"message": full, "description": "d" * 1_024}))
        with pytest.raises(LimitReached, match="2 schedules already"):
            await broker.in_namespace("elsewhere").declare_schedule("c", **(GOOD | {"queue": None, "exchange": ""}))
        await broker.declare_schedule(names[0], **GOOD)
        await machine.until(minutes(2)[0] + 1_000)
        # Names as long as can be leave no room for them in a dedup id, and are still told apart.
        received = (await broker.read_from("work")).messages
        assert sorted(one.headers["schedule"] for one in received) == sorted(names * 2)
        assert len({one.message.dedup_id for one in received}) == 4

    play(story, START_MS)
