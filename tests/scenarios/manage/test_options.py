"""Every option of queues and groups: the least and the most that it takes works, and one past is refused by name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from penstock import AlreadyExists, InvalidArgument, Message, QueueFull, UnknownOption
from penstock.api.options import GroupOptions, QueueOptions
from penstock.core.filters import TEXT_CHARACTERS_MAX
from penstock.model import (
    INTEGER_MAX,
    PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
    ExchangeConfig,
    GroupConfig,
    QueueConfig,
)
from penstock.model.limits import ATTEMPTS_MAX, DESCRIPTION_CHARACTERS_MAX, LANES_MAX, PRIORITY_MAX
from penstock.node.broker import LocalBroker
from tests.scenarios.rig import Home, claim_all, numbered, play, texts, turns, until

NAME = "n" * 255
FILTER = "a = '" + "x" * (TEXT_CHARACTERS_MAX - 6) + "'"

QUEUE: dict[str, tuple[list[Any], list[Any]]] = {
    "lanes": ([1, LANES_MAX], [0, LANES_MAX + 1]),
    "ordered": ([False, True], ["yes"]),
    "prioritized": ([False, True], [1]),
    "priority_max": ([1, PRIORITY_MAX], [0, PRIORITY_MAX + 1]),
    "stream": ([False, True], ["x"]),
    "ephemeral": ([False, True], [None]),
    "exclusive": ([False], [0]),
    "auto_delete": ([False, True], ["no"]),
    "unused_ms": ([None, 60_000, SPAN_MS_MAX], [0, SPAN_MS_MAX + 1]),
    "description": (["", "ü" * DESCRIPTION_CHARACTERS_MAX], ["x" * (DESCRIPTION_CHARACTERS_MAX + 1), "\ud800", 1]),
    "lease_ms": ([1, SPAN_MS_MAX], [0, SPAN_MS_MAX + 1]),
    "max_attempts": ([0, 1, ATTEMPTS_MAX], [-1, ATTEMPTS_MAX + 1]),
    "backoff_ms": ([0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "backoff_factor": ([1, 1.0, 1_000.0], [0.999, 1_000.1, float("nan"), float("inf")]),
    "backoff_max_ms": ([0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "backoff_jitter": ([0, 0.0, 1.0], [-0.1, 1.1, float("nan")]),
    "delay_ms": ([0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "debounce_ms": ([0], [-1, SPAN_MS_MAX + 1]),
    "single_active_consumer": ([False, True], ["x"]),
    "max_in_flight": ([None, 1, INTEGER_MAX], [0, INTEGER_MAX + 1]),
    "rate": ([None, 0.001, 1e9], [0.0, 0.0009, 1.1e9, float("nan")]),
    "dead_letter_to": (
        [None, f"queue:{NAME}", f"exchange:{NAME}", f"exchange:x/{NAME}", "exchange:x/", "exchange:", "exchange:/k"],
        ["", "q", "queue:", f"queue:{NAME}n", f"exchange:{NAME}n", f"exchange:x/{NAME}n", "topic:x"],
    ),
    "dead_kept": ([False, True], ["x"]),
    "paused": ([False, True], ["x"]),
    "ttl_ms": ([None, 0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "expired": (["drop", "dead"], ["", "keep"]),
    "max_length": ([None, 0, INTEGER_MAX], [-1, INTEGER_MAX + 1]),
    "max_bytes": ([None, 0, INTEGER_MAX], [-1, INTEGER_MAX + 1]),
    "overflow": (["reject", "drop_oldest", "dead_letter_oldest"], ["drop"]),
    "max_message_bytes": ([0, PAYLOAD_BYTES_MAX], [-1, PAYLOAD_BYTES_MAX + 1]),
    "dedup_window_ms": ([0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "keep_done_ms": ([0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "retain_ms": ([None, 0, SPAN_MS_MAX], [-1, SPAN_MS_MAX + 1]),
    "retain_bytes": ([None, 0, INTEGER_MAX], [-1, INTEGER_MAX + 1]),
    "retain_messages": ([None, 0, INTEGER_MAX], [-1, INTEGER_MAX + 1]),
    "primary_group": ([None, NAME], ["", NAME + "n"]),
}
GROUP: dict[str, tuple[list[Any], list[Any]]] = {
    "kind": (["work", "stream"], ["", "topic"]),
    "start": (["beginning", "now", 0, TIME_MS_MAX], ["end", -1, TIME_MS_MAX + 1, 1.5]),
    "filter": ([None, FILTER], [FILTER + " ", "a >", ""]),
    "auto_commit": ([True, False], ["x"]),
    "holds": ([False], ["x", True]),  # True is for stream groups: see test_holds.py
    **{name: values for name, values in QUEUE.items() if name in GroupConfig.__struct_fields__},
}
# In a group, None is the queue's value.
GROUP = {
    name: ([None, *good] if getattr(GroupConfig(), name) is None else good, bad) for name, (good, bad) in GROUP.items()
}
CANNOT_DELIVER = {
    ("delay_ms", SPAN_MS_MAX), ("paused", True), ("ttl_ms", 0), ("start", TIME_MS_MAX), ("start", "now"),
    ("filter", FILTER), ("kind", "stream"),
}  # fmt: skip
CANNOT_PUBLISH = {("max_length", 0), ("max_bytes", 0)}


def cases(options: dict[str, tuple[list[Any], list[Any]]], which: int) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{ascii(value)[:24]}")
        for name, values in options.items()
        for value in values[which]
    ]


def test_every_option_is_in_these_tables() -> None:
    assert set(QUEUE) == set(QueueConfig.__struct_fields__)
    assert set(GROUP) == set(GroupConfig.__struct_fields__)


async def work(broker: LocalBroker, queue: str, group: str, option: tuple[str, Any]) -> None:
    """A message goes through, as far as the option lets it."""
    try:
        payload = b"" if option == ("max_message_bytes", 0) else b"m"
        await broker.publish(queue, Message(payload, partition="p", dedup_id="x"))
    except QueueFull:
        assert option in CANNOT_PUBLISH
        return
    assert option not in CANNOT_PUBLISH
    if option == ("kind", "stream"):
        assert len(await broker.read(queue, group)) == 1
        return
    claim = await broker.claim(queue, group=group)
    assert len(claim) == (0 if option in CANNOT_DELIVER else 1)
    if len(claim) and option[:2] != ("lease_ms", 1):
        await broker.nack(claim, error="x")
        await broker.stats(queue)


@pytest.mark.parametrize(("name", "value"), cases(QUEUE, 0))
def test_a_queue_option_at_its_limit_works_and_is_kept(memory_home: Home, name: str, value: Any) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", **cast("QueueOptions", {name: value}))
        expected = {} if getattr(QueueConfig(), name) == value else {name: value}
        assert (await broker.queues())["q"] == expected
        await work(broker, "q", "default", (name, value))
        if (name, value) != ("ephemeral", True):
            broker = await home.reopen(broker)
            assert (await broker.queues())["q"] == expected

    play(memory_home, scenario)


@pytest.mark.parametrize(("name", "value"), cases(QUEUE, 1))
def test_a_queue_option_past_its_limit_is_refused(memory_home: Home, name: str, value: Any) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(InvalidArgument) as refused:
            await broker.declare_queue("q", **cast("QueueOptions", {name: value}))
        assert name in str(refused.value)
        assert "q" not in await broker.queues()
        await broker.declare_queue("q")
        with pytest.raises(InvalidArgument, match=name):
            await broker.declare_queue("q", **cast("QueueOptions", {name: value}))
        assert (await broker.queues())["q"] == {}

    play(memory_home, scenario)


@pytest.mark.parametrize(("name", "value"), cases(GROUP, 0))
def test_a_group_option_at_its_limit_works_and_is_kept(memory_home: Home, name: str, value: Any) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(b""))
        await broker.delete_queue("q")
        await broker.declare_queue("q")
        await broker.declare_group("q", "g", **{name: value})
        expected = {} if getattr(GroupConfig(), name) == value else {name: value}
        assert (await broker.groups("q"))["g"] == expected
        option = (name, value) if value not in ("now", TIME_MS_MAX) else ("", None)
        await work(broker, "q", "g", option)
        broker = await home.reopen(broker)
        assert (await broker.groups("q"))["g"] == expected

    play(memory_home, scenario)


@pytest.mark.parametrize(("name", "value"), cases(GROUP, 1))
def test_a_group_option_past_its_limit_is_refused(memory_home: Home, name: str, value: Any) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        with pytest.raises(InvalidArgument) as refused:
            await broker.declare_group("q", "g", **{name: value})
        assert name in str(refused.value)
        assert await broker.groups("q") == {}

    play(memory_home, scenario)


def test_a_number_past_its_limit_is_named_with_the_limit(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(InvalidArgument, match=f"lanes is {LANES_MAX + 1}; it must be 1 to {LANES_MAX}"):
            await broker.declare_queue("q", lanes=LANES_MAX + 1)
        with pytest.raises(InvalidArgument, match=r"backoff_jitter is 1.5; it must be 0.0 to 1.0"):
            await broker.declare_queue("q", backoff_jitter=1.5)
        with pytest.raises(InvalidArgument, match="debounce_ms is 5, but only an ordered queue can debounce"):
            await broker.declare_queue("q", debounce_ms=5)

    play(memory_home, scenario)


def test_an_unknown_option_is_named_with_those_there_are(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        for operation in (
            broker.declare_queue("r", leese_ms=1),  # type: ignore[call-arg]
            broker.declare_queue("q", leese_ms=1),  # type: ignore[call-arg]
            broker.declare_group("q", "g", leese_ms=1),  # type: ignore[call-arg]
            broker.declare_exchange("x", leese_ms=1),  # type: ignore[call-arg]
        ):
            with pytest.raises(UnknownOption, match=r"unknown option 'leese_ms'; .*\w+ has .*(lease_ms|alternate)"):
                await operation
        known = {"kind", "alternate", "internal", "auto_delete", "ephemeral", "description"}
        assert set(ExchangeConfig.__struct_fields__) == known
        for bad in (
            {"kind": "random"},
            {"alternate": ""},
            {"internal": 1},
            {"description": "x" * 10_000},
            {"auto_delete": "yes"},
            {"ephemeral": 1},
        ):
            with pytest.raises(InvalidArgument, match=next(iter(bad))):
                await broker.declare_exchange("x", **bad)
        await broker.declare_exchange("x", alternate="y" * 255, description="x" * DESCRIPTION_CHARACTERS_MAX)

    play(memory_home, scenario)


def test_options_that_shape_a_queue_or_group_cannot_change(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lease_ms=100)
        await broker.declare_group("q", "g")
        for name, value in (("lanes", 2), ("ordered", True), ("prioritized", True), ("ephemeral", True)):
            with pytest.raises(AlreadyExists, match=f"exists with {name}="):
                await broker.declare_queue("q", **cast("QueueOptions", {name: value}))
        for name, other in (("kind", "stream"), ("start", "now"), ("ordered", True), ("prioritized", True)):
            with pytest.raises(AlreadyExists, match=f"exists with {name}="):
                await broker.declare_group("q", "g", **cast("GroupOptions", {name: other}))
        await broker.declare_queue("q", max_attempts=9)
        assert (await broker.queues())["q"] == {"lease_ms": 100, "max_attempts": 9}
        await broker.declare_queue("q", lease_ms=30_000)
        assert (await broker.queues())["q"] == {"max_attempts": 9}

    play(memory_home, scenario)


def test_zeros_mean_what_they_say(home: Home) -> None:
    async def scenario(home: Home) -> None:
        home.hold_time()
        broker = await home.open()
        await broker.declare_queue("attempts", max_attempts=0, backoff_ms=0)
        await broker.publish("attempts", Message(b"m"))
        for attempt in range(1, 50):
            claim = await broker.claim("attempts")
            assert [one.attempt for one in claim] == [attempt]
            await broker.nack(claim)
        await broker.declare_queue("dedup", dedup_window_ms=0)
        for _ in range(3):
            assert not (await broker.publish("dedup", Message(b"m", dedup_id="x"))).duplicate
        await broker.declare_queue("drop", max_length=0, overflow="drop_oldest")
        await broker.publish_many("drop", numbered(3))
        assert await claim_all(broker, "drop") == []
        await broker.declare_queue("dead", max_length=0, overflow="dead_letter_oldest")
        await broker.publish_many("dead", numbered(3))
        assert len(await broker.dead("dead")) == 3
        await broker.declare_queue("ttl", ttl_ms=0, expired="dead")
        await broker.declare_group("ttl", "default")
        await broker.publish("ttl", Message(b"m"))
        home.pass_time(broker, 0)
        assert await claim_all(broker, "ttl") == []
        assert [dead.reason for dead in await broker.dead("ttl")] == ["expired"]
        await broker.declare_queue("size", max_message_bytes=0)
        await broker.publish("size", Message(b""))
        with pytest.raises(InvalidArgument, match="payload has 1 bytes; the limit is 0"):
            await broker.publish("size", Message(b"1"))
        for option in ("retain_ms", "retain_bytes", "retain_messages"):
            await broker.declare_queue(option, **cast("QueueOptions", {option: 0}))
            await broker.publish_many(option, numbered(3))
        for _ in range(3):
            home.pass_time(broker, 1_000)
            await turns(50)

        async def all_gone() -> bool:
            home.pass_time(broker, 1_000)
            counts = [(await broker.stats(f"retain_{what}")).messages for what in ("ms", "bytes", "messages")]
            return counts == [0, 0, 0]

        await until(all_gone)

    play(home, scenario)


def test_a_queue_of_1024_lanes_keeps_partitions_together_and_delivers_all(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", lanes=LANES_MAX, ordered=True)
        await broker.publish_many("q", [Message(b"%d" % n, partition=f"p{n % 100}") for n in range(1_000)])
        broker = await home.reopen(broker)
        by_partition: dict[str | None, list[int]] = {}
        while len(claim := await broker.claim("q", max=1_000)):
            for one in claim:
                by_partition.setdefault(one.message.partition, []).append(int(one.payload))
            await broker.ack(claim)
        assert by_partition == {f"p{n}": list(range(n, 1_000, 100)) for n in range(100)}

    play(home, scenario)


def test_a_message_of_the_largest_size_goes_through_and_one_byte_more_is_refused(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", Message(bytes(PAYLOAD_BYTES_DEFAULT)))
        with pytest.raises(InvalidArgument, match=f"payload has {PAYLOAD_BYTES_DEFAULT + 1} bytes"):
            await broker.publish("q", Message(bytes(PAYLOAD_BYTES_DEFAULT + 1)))
        broker = await home.reopen(broker, cache_bytes=0)
        assert [len(text) for text in texts(await broker.claim("q", max=5))] == [PAYLOAD_BYTES_DEFAULT]

    play(home, scenario)


def test_a_misspelt_option_is_told_the_nearest_one(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        with pytest.raises(UnknownOption, match="unknown option 'max_attemps'; did you mean 'max_attempts'"):
            await broker.declare_queue("q", max_attemps=3)  # type: ignore[call-arg]
        assert "q" not in await broker.queues()

    play(memory_home, scenario)
