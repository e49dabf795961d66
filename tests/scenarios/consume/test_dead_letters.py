"""Dead letters: kept, listed, given again, let go, and copied elsewhere with their history."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Message, NotFound, WrongKind
from penstock.model.rows import Commit
from penstock.node.broker import LocalBroker
from penstock.node.cluster.dead_copies import COPIES_MAX
from tests.nodes import node_of
from tests.scenarios.rig import Home, claim_all, group_stats, is_outbox_empty, numbered, play, texts, until


async def reject(broker: LocalBroker, queue: str, count: int, **options: Any) -> None:
    claim = await broker.claim(queue, max=count)
    assert len(claim) == count
    await broker.reject(claim, **options)


def test_dead_letters_survive_retention_and_restart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", retain_messages=1, retain_ms=1_000)
        await broker.publish("q", Message(b"dead"))
        await reject(broker, "q", 1, error="why")
        for number in range(5):
            await broker.publish("q", Message(b"%d" % number))
            await claim_all(broker, "q")
            home.pass_time(broker, 5_000)
        broker = await home.reopen(broker)
        home.pass_time(broker, 5_000)
        (dead,) = await broker.dead("q")
        assert (dead.received.payload, dead.received.offset, dead.reason, dead.error) == (b"dead", 0, "rejected", "why")
        assert await broker.redrive("q") == 1
        assert await claim_all(broker, "q") == ["dead"]

        async def trimmed() -> bool:
            home.pass_time(broker, 1_000)
            return (await broker.stats("q")).messages == 0

        await until(trimmed)

    play(home, scenario)


def test_dead_letters_are_chosen_by_reason_error_offsets_and_filter(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=1)
        await broker.publish_many("q", [Message(b"%d" % n, headers={"n": n}) for n in range(10)])
        claim = await broker.claim("q", max=10)
        await broker.reject(claim, [0, 1, 2], error="bad input: x")
        await broker.nack(claim, [3, 4, 5], error="timeout")
        await broker.reject(claim, [6, 7, 8], error="bad input: y")
        await broker.ack(claim)
        broker = await home.reopen(broker)

        async def found(**choice: Any) -> list[int]:
            return [dead.received.offset for dead in await broker.dead("q", **choice)]

        assert await found() == list(range(9))
        assert await found(max=2) == [0, 1]
        assert await found(reason="attempts") == [3, 4, 5]
        assert await found(error="input: y") == [6, 7, 8]
        assert await found(offsets=(2, 7)) == [2, 3, 4, 5, 6]
        assert await found(filter="n IN (1, 4, 7)") == [1, 4, 7]
        assert await found(filter="n > 0", reason="rejected", error="x") == [1, 2]
        assert await broker.redrive("q", filter="n = 1 OR n = 8") == 2
        assert await broker.purge_dead("q", reason="attempts", offsets=(4, 100)) == 2
        assert await found() == [0, 2, 3, 6, 7]
        broker = await home.reopen(broker)
        assert await found() == [0, 2, 3, 6, 7]
        assert await claim_all(broker, "q") == ["1", "8"]
        assert await broker.purge_dead("q") == 5
        assert (await broker.stats("q")).messages == 0

    play(home, scenario)


def test_redriven_messages_keep_their_partitions_order(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True)
        await broker.publish_many("q", [Message(b"%d" % n, partition="a") for n in range(4)])
        await reject(broker, "q", 2)
        broker = await home.reopen(broker)
        assert await broker.redrive("q") == 2
        first = await broker.claim("q")
        assert texts(first) == ["0"]
        assert len(await broker.claim("q")) == 0
        await broker.ack(first)
        assert await claim_all(broker, "q") == ["1", "2", "3"]

    play(home, scenario)


def test_dead_letters_are_copied_to_a_queue_with_their_history(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=2, dead_letter_to="queue:graves")
        await broker.declare_queue("graves", dead_letter_to="queue:deeper")
        await broker.declare_queue("deeper")
        message = Message(b"m", key="k", headers={"a": 1}, partition="p", ttl_ms=3_600_000, dedup_id="x")
        await broker.publish("q", message)
        for _ in range(2):
            await broker.nack(await broker.claim("q"), delay=0, error="boom")
        await until(lambda: _holds(broker, "graves", 1))
        claim = await broker.claim("graves")
        (copy,) = claim
        assert (copy.message.payload, copy.message.key, copy.message.partition) == (b"m", "k", "p")
        assert (copy.message.ttl_ms, copy.message.dedup_id) == (None, None)
        headers = copy.message.headers or {}
        (death,) = headers["x-death"]
        assert headers["a"] == 1
        assert {name: death[name] for name in ("queue", "group", "reason", "error", "attempts")} == {
            "queue": "q",
            "group": "default",
            "reason": "attempts",
            "error": "boom",
            "attempts": 2,
        }
        assert len(await broker.dead("q")) == 1  # the original stays
        await broker.reject(claim, error="again")
        await until(lambda: _holds(broker, "deeper", 1))
        (last,) = await broker.claim("deeper")
        deaths = (last.message.headers or {})["x-death"]
        assert [(death["queue"], death["reason"]) for death in deaths] == [("graves", "rejected"), ("q", "attempts")]

    play(home, scenario)


def test_dead_letters_go_through_an_exchange_with_the_key_of_the_target(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_exchange("dlx", kind="topic")
        await broker.declare_queue("own")
        await broker.declare_queue("fixed")
        await broker.bind("dlx", "own", "orders.*")
        await broker.bind("dlx", "fixed", "dead.orders")
        await broker.declare_queue("a", dead_letter_to="exchange:dlx")
        await broker.declare_queue("b", dead_letter_to="exchange:dlx/dead.orders")
        for queue in ("a", "b"):
            await broker.publish(queue, Message(queue.encode(), key="orders.new"))
            await reject(broker, queue, 1)
        await until(lambda: _holds(broker, "own", 1))
        await until(lambda: _holds(broker, "fixed", 1))
        assert await claim_all(broker, "own") == ["a"]
        assert await claim_all(broker, "fixed") == ["b"]

    play(home, scenario)


def test_dead_letters_wait_for_their_target_through_a_restart_and_come_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", dead_letter_to="queue:later")
        await broker.publish_many("q", numbered(5))
        await reject(broker, "q", 5)
        broker = await home.reopen(broker)
        assert "later" not in await broker.queues()
        await broker.declare_queue("later")
        broker = await home.reopen(broker)
        await until(lambda: _holds(broker, "later", 5))
        broker = await home.reopen(broker)
        assert await claim_all(broker, "later") == ["0", "1", "2", "3", "4"]
        await until(lambda: is_outbox_empty(broker))

    play(home, scenario)


def test_a_dead_letter_of_an_expired_message_is_copied_too(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("graves")
        await broker.declare_queue("q", ttl_ms=100, expired="dead", dead_letter_to="queue:graves")
        await broker.declare_group("q", "default")
        await broker.publish("q", Message(b"m"))
        home.pass_time(broker, 100)
        await until(lambda: _holds(broker, "graves", 1))
        (copy,) = await broker.claim("graves")
        assert (copy.message.headers or {})["x-death"][0]["reason"] == "expired"
        assert (await group_stats(broker, "q")).dead == 1

    play(home, scenario)


async def _holds(broker: LocalBroker, queue: str, count: int) -> bool:
    return (await broker.stats(queue)).published == count


def test_many_dead_letters_are_copied_in_order_and_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", dead_letter_to="queue:graves")
        await broker.publish_many("q", [Message(b"%d" % number) for number in range(250)])
        await broker.reject(await broker.claim("q", max=250), error="no")
        broker = await home.reopen(broker)  # the target is declared only now: the copies have waited for it
        await broker.declare_queue("graves")
        await broker.publish("q", Message(b"250"))
        await reject(broker, "q", 1, error="no")

        async def copied() -> bool:
            return (await broker.stats("graves")).published >= 251

        await until(copied)
        assert await claim_all(broker, "graves") == [str(number) for number in range(251)]

    play(home, scenario)


def test_a_deleted_queue_takes_its_promised_copies_along(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", dead_letter_to="queue:graves")
        await broker.publish("q", Message(b"dead"))
        await reject(broker, "q", 1, error="no")
        await broker.delete_queue("q")
        broker = await home.reopen(broker)
        await broker.declare_queue("other")  # may get the lane number of the deleted one
        await broker.publish("other", Message(b"alive"))
        await broker.declare_queue("graves")
        await broker.declare_queue("last", dead_letter_to="queue:graves")
        await broker.publish("last", Message(b"last"))
        await reject(broker, "last", 1, error="no")

        async def copied() -> bool:
            return (await broker.stats("graves")).published >= 1

        await until(copied)
        assert await claim_all(broker, "graves") == ["last"]

    play(home, scenario)


def test_reasons_are_counted_by_reason_and_error_over_all_lanes(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("work", lanes=2, max_attempts=1)
        await broker.declare_group("work", "default")
        assert await broker.dead_reasons("work") == []
        for number, error in enumerate(["a", "b", "b", "", "b"]):
            await broker.publish("work", Message(b"%d" % number, partition=str(number)))
            clock.time_ms += 10
            await broker.nack(await broker.claim("work"), error=error)
        await broker.publish("work", Message(b"odd"))
        await broker.reject(await broker.claim("work"), error="b")
        start_ms, found = clock.time_ms - 50, await broker.dead_reasons("work")
        told = [(one.reason, one.error, one.count, one.oldest_ms - start_ms, one.newest_ms - start_ms) for one in found]
        assert told[0] == ("attempts", "b", 3, 20, 50)
        assert sorted(told[1:]) == [
            ("attempts", "", 1, 40, 40),
            ("attempts", "a", 1, 10, 10),
            ("rejected", "b", 1, 50, 50),
        ]
        assert await broker.purge_dead("work", error="b") == 4
        assert [one.error for one in await broker.dead_reasons("work")] == ["", "a"]

    play(home, scenario)


def test_reasons_of_what_has_none(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("work")
        await broker.declare_group("work", "log", kind="stream")
        with pytest.raises(NotFound, match="no group 'default'"):
            await broker.dead_reasons("work")
        with pytest.raises(WrongKind):
            await broker.dead_reasons("work", "log")

    play(memory_home, scenario)


def test_dead_letters_that_are_not_kept_move_to_their_target(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", dead_letter_to="queue:graves", dead_kept=False)
        await broker.publish_many("q", numbered(250))
        await broker.reject(await broker.claim("q", max=250), error="no")
        broker = await home.reopen(broker)
        assert (await group_stats(broker, "q")).dead == 250  # there is no target yet: nothing is gone
        await broker.declare_queue("graves")

        async def moved() -> bool:
            return (await group_stats(broker, "q")).dead == 0

        await until(moved)
        broker = await home.reopen(broker)
        assert (await group_stats(broker, "q")).dead == 0
        assert await claim_all(broker, "graves") == [str(number) for number in range(250)]
        assert await broker.redrive("q") == 0
        await until(lambda: is_outbox_empty(broker))

    play(home, scenario)


def test_dead_letters_that_are_not_kept_and_go_nowhere_are_gone(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", dead_kept=False)
        await broker.declare_group("q", "careful", dead_kept=True)
        await broker.publish_many("q", numbered(2))
        for group in ("default", "careful"):
            await broker.reject(await broker.claim("q", group=group, max=2))
        assert await broker.dead("q") == []
        assert len(await broker.dead("q", "careful")) == 2
        broker = await home.reopen(broker)
        assert await claim_all(broker, "q") == []

    play(home, scenario)


async def _watched(broker: LocalBroker, **options: Any) -> list[Commit]:
    """Queues `q` and `graves`, where one commit may hold both, and the commits that follow."""
    await broker.declare_queue("graves")
    await broker.declare_queue("q", dead_letter_to="queue:graves", **options)
    await broker.declare_group("q", "default")
    await until(lambda: node_of(broker).dead_copies.behind == set())
    commits: list[Commit] = []
    host = node_of(broker).host
    committed = host.committed

    def watch(sealed: Any, durable: Commit | None) -> None:
        if durable is not None:
            commits.append(durable)
        committed(sealed, durable)

    host.committed = watch  # type: ignore[method-assign]
    return commits


async def _check_moved_at_once(broker: LocalBroker, commits: list[Commit], count: int) -> None:
    """One commit has taken the messages off their queue and put them into their target."""
    await until(lambda: _holds(broker, "graves", count))
    q, graves = (node_of(broker).catalog.queue("default", name).lanes[0] for name in ("q", "graves"))
    assert not any(commit.outbox for commit in commits)
    [moving] = [
        commit for commit in commits if any(change.lane == graves and change.batches for change in commit.lanes)
    ]
    assert q in [change.lane for change in moving.lanes]
    claim = await broker.claim("graves", max=count + 1)
    assert len(claim) == count


@pytest.mark.parametrize("kept", [True, False])
def test_a_message_that_expires_is_in_its_target_by_the_same_commit(whole_home: Home, kept: bool) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        commits = await _watched(broker, ttl_ms=1_000, expired="dead", dead_kept=kept)
        await broker.publish("q", Message(b"m"))
        home.pass_time(broker, 2_000)
        await _check_moved_at_once(broker, commits, 1)
        stats = await group_stats(broker, "q")
        assert (stats.dead, stats.ready) == (int(kept), 0)

    play(whole_home, scenario)


def test_a_message_whose_body_is_not_in_memory_moves_by_one_commit_too(whole_home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", ttl_ms=1_000, expired="dead", dead_letter_to="queue:graves")
        await broker.declare_group("q", "default")
        await broker.publish("q", Message(b"m"))
        broker = await home.reopen(broker)
        commits = await _watched(broker, ttl_ms=1_000, expired="dead")
        assert node_of(broker).cache.bytes == 0
        home.pass_time(broker, 2_000)
        await _check_moved_at_once(broker, commits, 1)

    play(whole_home, scenario)


def test_rejected_messages_are_in_their_target_by_the_same_commit(whole_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        commits = await _watched(broker)
        await broker.publish_many("q", numbered(40))
        await reject(broker, "q", 40)
        await _check_moved_at_once(broker, commits, 40)

    play(whole_home, scenario)


def test_more_than_are_copied_at_once_keep_their_order(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await _watched(broker)
        count = 2 * COPIES_MAX + 7
        await broker.publish_many("q", numbered(count))
        await reject(broker, "q", COPIES_MAX + 3)
        await reject(broker, "q", count - COPIES_MAX - 3)
        await until(lambda: _holds(broker, "graves", count))
        assert await claim_all(broker, "graves") == [str(number) for number in range(count)]
        await until(lambda: node_of(broker).dead_copies.behind == set())

    play(home, scenario)


def test_queues_that_push_their_oldest_to_each_other_come_to_rest(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        full: dict[str, Any] = {"max_length": 50, "overflow": "dead_letter_oldest", "dead_kept": False}
        await broker.declare_queue("a", **full, dead_letter_to="queue:b")
        await broker.declare_queue("b", **full, dead_letter_to="queue:c")
        await broker.declare_queue("c")
        for name in ("b", "a"):
            await broker.publish_many(name, numbered(50))
        await until(lambda: node_of(broker).dead_copies.behind == set())
        await broker.publish_many("a", numbered(10, 50))
        await until(lambda: _holds(broker, "c", 10))
        assert await claim_all(broker, "a") == [str(number) for number in range(10, 60)]
        assert await claim_all(broker, "c") == [str(number) for number in range(10)]

    play(home, scenario)
