"""Groups on one queue: each has its own view, and none harms another. Streams, starts, dead letters apart."""

from __future__ import annotations

import os

import pytest

from penstock import InvalidArgument, Message, NotFound, OffsetGone, WrongKind
from penstock.model.options import Start
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, group_stats, messages, numbered, play, texts


def test_a_slow_group_never_loses_what_a_fast_group_finished(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "fast")
        await broker.declare_group("q", "slow")
        for start in range(0, 300, 50):
            await broker.publish_many("q", numbered(50, start))
            assert await claim_all(broker, "q", group="fast") == [str(n) for n in range(start, start + 50)]
        broker = await home.reopen(broker)
        assert (await broker.stats("q")).messages == 300
        assert await claim_all(broker, "q", group="slow", max=7) == [str(number) for number in range(300)]
        assert (await broker.stats("q")).messages == 0

    play(home, scenario)


def test_a_groups_dead_letter_is_untouched_for_another_group(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "a")
        await broker.declare_group("q", "b")
        await broker.publish_many("q", messages("bad", "good"))
        await broker.reject(await broker.claim("q", group="a"), error="cannot read it")
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q", group="b") == ["bad", "good"]
        assert [dead.received.payload for dead in await broker.dead("q", "a")] == [b"bad"]
        assert await broker.dead("q", "b") == []

    play(home, scenario)


def test_a_redrive_is_seen_by_one_group_only_with_all_attempts(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=2)
        for group in ("a", "b"):
            await broker.declare_group("q", group)
        await broker.publish("q", Message(b"m"))
        assert await claim_all(broker, "q", group="b") == ["m"]
        for _ in range(2):
            await broker.nack(await broker.claim("q", group="a"), delay=0)
        assert await broker.redrive("q", "b") == 0
        assert await broker.redrive("q", "a") == 1
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q", group="b") == []
        claim = await broker.claim("q", group="a")
        assert [(one.payload, one.attempt) for one in claim] == [(b"m", 1)]
        assert await broker.dead("q", "a") == []

    play(home, scenario)


def test_a_group_made_after_the_messages_begins_where_it_says(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "keeper")
        times = []
        for number in range(4):
            times.append(clock.time_ms)
            await broker.publish("q", Message(b"%d" % number))
            home.pass_time(broker, 1_000)
        starts: dict[str, Start] = {
            "first": "beginning",
            "last": "now",
            "at": times[2],
            "between": times[2] + 1,
            "zero": 0,
            "future": clock.time_ms + 1,
        }
        for name, start in starts.items():
            await broker.declare_group("q", name, start=start)
        broker = await home.reopen(broker)
        await broker.publish("q", Message(b"4"))
        found = {name: await claim_all(broker, "q", group=name) for name in starts}
        assert found == {
            "first": ["0", "1", "2", "3", "4"],
            "last": ["4"],
            "at": ["2", "3", "4"],
            "between": ["3", "4"],
            "zero": ["0", "1", "2", "3", "4"],
            "future": ["4"],
        }

    play(home, scenario)


def test_a_group_made_after_others_were_done_gets_only_what_is_kept(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(3))
        assert len(await claim_all(broker, "q")) == 3
        await broker.publish_many("q", numbered(2, 3))
        await broker.declare_group("q", "late")
        assert await claim_all(broker, "q", group="late") == ["3", "4"]

    play(home, scenario)


def test_a_filtered_group_gets_only_what_matches_and_holds_back_nothing(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "eu", filter="region = 'eu' AND amount > 10")
        for number in range(20):
            region = "eu" if number % 2 else "us"
            await broker.publish("q", Message(b"%d" % number, headers={"region": region, "amount": number}))
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q", group="eu") == ["11", "13", "15", "17", "19"]
        assert (await broker.stats("q")).messages == 0

    play(home, scenario)


def test_groups_have_their_own_settings_over_the_queues(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=5, lease_ms=1_000)
        await broker.declare_group("q", "strict", max_attempts=1)
        await broker.declare_group("q", "slow", lease_ms=60_000)
        await broker.publish("q", Message(b"m"))
        await broker.claim("q", group="strict")
        await broker.claim("q", group="slow")
        await broker.claim("q")
        home.pass_time(broker, 1_000)
        assert [dead.attempts for dead in await broker.dead("q", "strict")] == [1]
        assert (await group_stats(broker, "q", "slow")).leased == 1
        assert [one.attempt for one in await broker.claim("q")] == [2]

    play(home, scenario)


# Streams -------------------------------------------------------------------------------------------------


def test_a_stream_that_commits_by_itself_goes_on_after_the_last_read_but_one(home: Home) -> None:
    """The next read says that the one before was processed; the last one comes again after a crash."""

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        await broker.publish_many("q", numbered(10))
        for expected in (["0", "1", "2"], ["3", "4", "5"]):
            assert texts(await broker.read("q", "s", max=3, consumer="c")) == expected
        broker = await home.open()
        read = await broker.read("q", "s", max=100, consumer="c")
        assert texts(read) == [str(number) for number in range(3, 10)]
        assert read.next_offset == 10
        assert texts(await broker.read("q", "s", consumer="c")) == []
        broker = await home.open()
        assert texts(await broker.read("q", "s", consumer="c")) == []

    play(home, scenario)


def test_a_stream_with_manual_commit_goes_on_where_it_was_committed(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream", auto_commit=False)
        await broker.publish_many("q", numbered(10))
        assert len(await broker.read("q", "s", max=4)) == 4
        assert texts(await broker.read("q", "s", max=4)) == ["4", "5", "6", "7"]
        broker = await home.reopen(broker)
        assert texts(await broker.read("q", "s", max=4)) == ["0", "1", "2", "3"]
        await broker.commit("q", "s", 3)
        broker = await home.reopen(broker)
        assert texts(await broker.read("q", "s", max=4)) == ["3", "4", "5", "6"]
        assert (await group_stats(broker, "q", "s")).lag == 7
        with pytest.raises(InvalidArgument, match="offset 11, but the lane ends at 10"):
            await broker.commit("q", "s", 11)

    play(home, scenario)


def test_a_stream_holds_what_it_has_not_committed_unless_limits_say_otherwise(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream", auto_commit=False)
        await broker.declare_group("q", "default")
        await broker.publish_many("q", numbered(10))
        assert len(await claim_all(broker, "q")) == 10
        assert (await broker.stats("q")).messages == 10
        await broker.read("q", "s", max=10)
        await broker.commit("q", "s", 10)
        await broker.publish("q", Message(b"x"))
        await claim_all(broker, "q")
        assert (await broker.stats("q")).messages == 1

    play(home, scenario)


def test_stream_reads_are_marked_with_what_the_primary_group_has_done(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", retain_messages=1_000, primary_group="workers")
        await broker.declare_group("q", "workers")
        await broker.declare_group("q", "s", kind="stream")
        await broker.publish_many("q", numbered(6))
        claim = await broker.claim("q", group="workers", max=4)
        await broker.ack(claim, [0, 2])
        await broker.reject(claim, [3])
        broker = await home.reopen(broker)
        read = await broker.read("q", "s")
        assert [one.done for one in read.messages] == [True, False, True, False, False, False]
        assert read.primary_committed == 1
        await broker.ack(str(claim.lease))
        again = await broker.read_from("q", 0)
        assert [one.done for one in again.messages] == [True, True, True, False, False, False]
        assert again.primary_committed == 4

    play(home, scenario)


def test_a_seek_moves_a_stream(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        await broker.publish_many("q", numbered(5))
        await broker.read("q", "s")
        await broker.seek("q", "s", offset=3)
        broker = await home.reopen(broker)
        assert texts(await broker.read("q", "s")) == ["3", "4"]
        await broker.seek("q", "s", to="last")
        assert texts(await broker.read("q", "s")) == []

    play(home, scenario)


def test_a_reader_that_left_leaves_what_it_read_to_the_next(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        await broker.publish_many("q", numbered(4))
        assert texts(await broker.read("q", "s", max=2, consumer="a")) == ["0", "1"]
        await broker.detach("q", "s", consumer="a")
        assert texts(await broker.read("q", "s", max=2, consumer="b")) == ["0", "1"]

    play(home, scenario)


def test_reads_by_offset_and_time_need_no_group(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q")
        for number in range(3):
            await broker.publish("q", Message(b"%d" % number))
            home.pass_time(broker, 10)
        assert texts(await broker.read_from("q")) == ["0", "1", "2"]
        assert texts(await broker.read_from("q", 2)) == ["2"]
        assert texts(await broker.read_from("q", time_ms=clock.time_ms - 20)) == ["1", "2"]
        assert texts(await broker.read_from("q", 3)) == []
        await claim_all(broker, "q")
        with pytest.raises(OffsetGone, match="offset 0 of queue 'q' is gone"):
            await broker.read_from("q", 0)

    play(home, scenario)


def test_work_and_stream_operations_do_not_mix(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "s", kind="stream")
        await broker.declare_group("q", "w")
        await broker.publish("q", Message(b"m"))
        with pytest.raises(WrongKind):
            await broker.claim("q", group="s")
        with pytest.raises(WrongKind):
            await broker.claim("q", group="s", wait=60)
        with pytest.raises(WrongKind):
            await broker.read("q", "w")
        with pytest.raises(WrongKind):
            await broker.commit("q", "w", 1)
        with pytest.raises(WrongKind):
            await broker.dead("q", "s")
        with pytest.raises(WrongKind):
            await broker.redrive("q", "s")
        with pytest.raises(WrongKind):
            await broker.purge("q", "s")
        with pytest.raises(NotFound, match="no group 'nobody'"):
            await broker.read("q", "nobody")

    play(memory_home, scenario)


def test_what_is_published_behind_a_long_backlog_is_not_kept_in_memory(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open(cache_bytes=40_000)
        await broker.declare_queue("q")
        await broker.declare_group("q", "slow")
        cache = node_of(broker).cache
        for _ in range(30):
            await broker.publish_many("q", [Message(os.urandom(1_000))] * 2)
        [lane] = node_of(broker).catalog.queue("default", "q").lanes
        assert not cache.has(lane, 58)
        await broker.declare_group("q", "quick", start="now")  # one that keeps up has it from memory
        await broker.publish_many("q", [Message(os.urandom(1_000))] * 2)
        assert cache.has(lane, 60)
        assert len(await broker.claim("q", group="quick", max=10)) == 2
        seen: list[int] = []
        while claim := await broker.claim("q", group="slow", max=7):
            seen += claim.offsets()
            await broker.ack(claim)
        assert seen == list(range(62))

    play(home, scenario)
