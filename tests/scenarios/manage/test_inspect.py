"""Looking without touching: browse, `$events`, history and numbers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Forbidden, Message, NotFound
from penstock.model.events import Delivery, decode_delivery
from penstock.node.observe import events
from tests.scenarios.rig import Home, claim_all, group_stats, messages, numbered, play, texts, until


def test_browse_by_offset_time_partition_state_and_filter(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", retain_messages=100)
        for number in range(10):
            await broker.publish("q", Message(b"%d" % number, partition="ab"[number % 2], headers={"n": number}))
            home.pass_time(broker, 10)
        claim = await broker.claim("q", max=6)
        await broker.ack(claim, [0, 1])
        await broker.nack(claim, [2], delay=3_600)
        await broker.reject(claim, [3])
        broker = await home.reopen(broker)

        async def found(**options: Any) -> list[str]:
            return texts(await broker.browse("q", **options))

        page = await broker.browse("q")
        assert [(one.state, one.attempt) for one in page.messages] == [
            ("done", 0),
            ("done", 0),
            ("waiting", 1),
            ("dead", 1),
            ("leased", 1),
            ("leased", 1),
            ("ready", 0),
            ("ready", 0),
            ("ready", 0),
            ("ready", 0),
        ]
        assert page.next is None
        assert await found(offset=7) == ["7", "8", "9"]
        assert await found(time_ms=clock.time_ms - 30) == ["7", "8", "9"]
        assert await found(partition="b") == ["1", "3", "5", "7", "9"]
        assert await found(state="leased") == ["4", "5"]
        assert await found(state="dead") == ["3"]
        assert await found(state="done") == ["0", "1"]
        assert await found(filter="n BETWEEN 2 AND 4", state="leased") == ["4"]
        assert await found(offset=10) == []
        before = await broker.stats("q")
        pages, after = [], None
        while True:
            page = await broker.browse("q", max=3, after=after)
            pages.append(texts(page))
            after = page.next
            if after is None:
                break
        assert [text for found_page in pages for text in found_page] == [str(number) for number in range(10)]
        assert await broker.stats("q") == before

    play(home, scenario)


def test_browse_goes_through_every_lane(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=4)
        await broker.publish_many("q", [Message(b"%d" % n, partition=str(n)) for n in range(50)])
        found: list[str] = []
        after = None
        while True:
            page = await broker.browse("q", max=7, after=after)
            found += texts(page)
            after = page.next
            if after is None:
                break
        assert sorted(map(int, found)) == list(range(50))

    play(home, scenario)


def test_browse_of_a_group(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "a")
        await broker.declare_group("q", "b")
        await broker.publish_many("q", numbered(2))
        await broker.ack(await broker.claim("q", group="a"))
        assert [one.state for one in (await broker.browse("q", group="a")).messages] == ["done", "ready"]
        assert [one.state for one in (await broker.browse("q", group="b")).messages] == ["ready", "ready"]
        assert [one.state for one in (await broker.browse("q")).messages] == ["", ""]
        with pytest.raises(NotFound, match="no group 'default'"):
            await broker.browse("q", state="ready")

    play(home, scenario)


# Events --------------------------------------------------------------------------------------------------


def test_events_tell_the_life_of_every_message(home: Home) -> None:
    async def scenario(home: Home) -> None:
        clock = home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", max_attempts=2, lease_ms=1_000)
        await broker.publish_many("q", messages("ok", "fails", "expires", "given back"))
        start_ms = clock.time_ms
        claim = await broker.claim("q", max=4, consumer="c1")
        await broker.ack(claim, [0])
        await broker.nack(claim, [1], delay=0, error="boom")
        await broker.release(claim, [3])
        home.pass_time(broker, 1_000)
        again = await broker.claim("q", max=4, consumer="c2")
        assert again.offsets() == [1, 2, 3]
        await broker.reject(again, [2], error="no")
        await broker.nack(again, [1], error="boom again")
        await broker.redrive("q", offsets=(1, 2))
        await broker.purge_dead("q")
        broker = await home.reopen(broker)
        told: dict[int, list[tuple[str, str, int, str]]] = {offset: [] for offset in range(4)}
        for delivery in await deliveries(broker):
            assert (delivery.namespace, delivery.queue, delivery.group) == ("default", "q", "default")
            for event in delivery.events:
                assert start_ms <= event.at_ms <= clock.time_ms
                for low, high in event.ranges:
                    for offset in range(low, high):
                        told[offset].append((event.kind, event.consumer, event.attempt, event.detail))
        assert told == {
            0: [("claimed", "c1", 1, ""), ("acked", "c1", 1, "")],
            1: [
                ("claimed", "c1", 1, ""),
                ("nacked", "c1", 1, "boom"),
                ("claimed", "c2", 2, ""),
                ("nacked", "c2", 2, "boom again"),
                ("dead", "c2", 2, "attempts"),
                ("redriven", "", 0, "attempts"),
            ],
            2: [
                ("claimed", "c1", 1, ""),
                ("expired", "c1", 1, "the lease expired"),
                ("claimed", "c2", 2, ""),
                ("dead", "c2", 2, "rejected"),
                ("purged", "", 0, "dead"),
            ],
            3: [("claimed", "c1", 1, ""), ("released", "c1", 1, ""), ("claimed", "c2", 1, "")],
        }
        history = await broker.history("q", 0)
        assert [(entry.kind, entry.consumer) for entry in history] == [("claimed", "c1"), ("acked", "c1")]

    async def deliveries(broker: Any) -> list[Delivery]:
        read = await broker.read_from("$events", max=1_000)
        return [decode_delivery(one.payload) for one in read.messages]

    play(home, scenario)


def test_events_can_be_followed_and_turned_off_and_are_the_systems(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open(events=False)
        await broker.declare_queue("q")
        await broker.publish("q", Message(b"m"))
        await claim_all(broker, "q")
        assert set(await broker.queues()) == {"q"}
        broker = await home.reopen(broker)
        await broker.declare_group("$events", "follower", kind="stream")
        await broker.publish("q", Message(b"m"))
        await claim_all(broker, "q")
        kinds = [
            event.kind
            for one in (await broker.read("$events", "follower", wait=5)).messages
            for event in decode_delivery(one.payload).events
        ]
        assert kinds[0] == "claimed"
        for operation in (broker.delete_queue("$events"), broker.declare_queue("$mine")):
            with pytest.raises(Forbidden, match=r"\$"):
                await operation

    play(home, scenario)


@pytest.mark.parametrize("most", [1, 3, 4])
def test_events_of_one_commit_may_be_more_than_a_row_holds(
    home: Home, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(events, "ROW_MESSAGES_MAX", most)
    groups = [f"g{index}" for index in range(4)]

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        for group in groups:
            await broker.declare_group("q", group)
        await broker.publish("q", Message(b"m"))
        await asyncio.gather(*(broker.claim("q", group=group) for group in groups))
        broker = await home.reopen(broker)
        read = await broker.read_from("$events", max=100)
        assert {one.message.content_type for one in read.messages} == {"application/json"}
        told = [decode_delivery(one.payload) for one in read.messages]
        assert [(one.group, one.events[0].kind) for one in told] == [(group, "claimed") for group in groups]

    play(home, scenario)


# Numbers -------------------------------------------------------------------------------------------------


def test_stats_count_every_state_once(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("q", lanes=1)
        await broker.publish_many("q", [*numbered(10), Message(b"later", delay_ms=60_000)])
        claim = await broker.claim("q", max=6)
        await broker.ack(claim, [0, 1])
        await broker.nack(claim, [2], delay=60)
        await broker.reject(claim, [3])
        await broker.claim("q", max=5)
        broker = await home.reopen(broker)
        stats = await broker.stats("q")
        group = await group_stats(broker, "q")
        assert (stats.messages, stats.published) == (11, 11)
        assert (group.ready, group.leased, group.scheduled, group.dead, group.lag) == (0, 6, 2, 1, 8)
        assert group.oldest_offset == 2

    play(home, scenario)


def test_purge_leaves_leases_and_dead_letters(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish_many("q", numbered(10))
        claim = await broker.claim("q", max=3)
        await broker.reject(claim, [0])
        await broker.nack(claim, [1], delay=60)
        assert await broker.purge("q") == 8
        broker = await home.reopen(broker)
        group = await group_stats(broker, "q")
        assert (group.ready, group.scheduled, group.leased, group.dead) == (0, 0, 1, 1)
        await broker.publish("q", Message(b"new"))
        assert await claim_all(broker, "q") == ["new"]

        async def quiet() -> bool:
            return (await group_stats(broker, "q")).lag == 1

        await until(quiet)

    play(home, scenario)
