"""Whatever a caller gets wrong: a typed error that names it, and nothing of the call is kept."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock import (
    EncodedBatch,
    Forbidden,
    InvalidArgument,
    InvalidBatch,
    InvalidFilter,
    LeaseLost,
    LimitReached,
    Message,
    MessageTooLarge,
    NotFound,
    PenstockError,
    Verdict,
    encode,
)
from penstock.model import BATCH_MESSAGES_MAX
from penstock.model.limits import HEADERS_BYTES_MAX, HEADERS_DEPTH_MAX, HEADERS_MAX
from penstock.node import declarations
from penstock.node.broker import LocalBroker
from penstock.node.limits import Limits
from tests.scenarios.rig import Home, group_stats, numbered, play, texts


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


FINE = Message(b"fine")
BAD_MESSAGES: dict[str, tuple[Any, str]] = {
    "no message": (b"bytes", "must be a penstock.Message"),
    "None": (None, "must be a penstock.Message"),
    "text payload": (Message("text"), "payload must be bytes, not str"),  # type: ignore[arg-type]
    "bytearray payload": (Message(bytearray(b"x")), "payload must be bytes, not bytearray"),  # type: ignore[arg-type]
    "large payload": (Message(bytes(101)), "payload has 101 bytes; the limit is 100"),
    "priority 256": (Message(priority=256), "priority is 256; it must be 0 to 255"),
    "priority -1": (Message(priority=-1), "priority is -1"),
    "priority True": (Message(priority=True), "priority must be a whole number"),
    "priority 1.0": (Message(priority=1.0), "priority must be a whole number"),  # type: ignore[arg-type]
    "delay -1": (Message(delay_ms=-1), "delay_ms is -1"),
    "delay text": (Message(delay_ms="1"), "delay_ms must be a whole number"),  # type: ignore[arg-type]
    "ttl -1": (Message(ttl_ms=-1), "ttl_ms is -1"),
    "not before -1": (Message(not_before_ms=-1), "not_before_ms is -1"),
    "partition number": (Message(partition=1), "partition must be a string"),  # type: ignore[arg-type]
    "partition bytes": (Message(partition=b"p"), "partition must be a string"),  # type: ignore[arg-type]
    "key surrogate": (Message(key="\udc00"), "lone surrogate"),
    "headers list": (Message(headers=[1]), "headers must be a dict"),  # type: ignore[arg-type]
    "header name": (Message(headers={1: 1}), "a header's name must be a string"),  # type: ignore[dict-item]
    "header object": (Message(headers={"h": object()}), "header 'h' has a value of type object"),
    "header set": (Message(headers={"h": {1}}), "header 'h' has a value of type set"),
    "header tuple": (Message(headers={"h": (1,)}), "header 'h' has a value of type tuple"),
    "header 2**63": (Message(headers={"h": 2**63}), "header 'h' is 9223372036854775808"),
    "header naive time": (Message(headers={"h": dt.datetime(2024, 1, 1)}), "without a time zone"),  # noqa: DTZ001
    "header surrogate": (Message(headers={"h": "\ud800"}), "lone surrogate"),
    "too many headers": (
        Message(headers={str(n): 1 for n in range(HEADERS_MAX + 1)}),
        "has 257 headers; the limit is 256",
    ),
    "deep headers": (Message(headers={"h": nested(HEADERS_DEPTH_MAX)}), "nested deeper than 8 levels"),
    "large headers": (Message(headers={"h": "x" * (HEADERS_BYTES_MAX + 1)}), "the limit is 65536"),
}
WAYS: dict[str, Callable[[LocalBroker, Any], Awaitable[Any]]] = {
    "publish": lambda broker, bad: broker.publish("q", bad),
    "a few": lambda broker, bad: broker.publish_many("q", [FINE, bad, FINE]),
    "many": lambda broker, bad: broker.publish_many("q", [FINE] * 40 + [bad]),
    "many lanes": lambda broker, bad: broker.publish_many("lanes", [FINE] * 5 + [bad]),
    "exchange": lambda broker, bad: broker.publish_to("x", [FINE, bad]),
    "exchange, many": lambda broker, bad: broker.publish_to("x", [FINE] * 40 + [bad]),
    "transaction": lambda broker, bad: broker.transaction().publish("q", FINE, bad).commit(),
}


@pytest.mark.parametrize("what", BAD_MESSAGES)
def test_one_bad_message_and_none_is_published(memory_home: Home, what: str) -> None:
    bad, text = BAD_MESSAGES[what]

    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_message_bytes=100)
        await broker.declare_queue("lanes", max_message_bytes=100, lanes=3)
        await broker.declare_exchange("x", kind="fanout")
        await broker.bind("x", "q")
        await broker.bind("x", "lanes")
        for way, publish in WAYS.items():
            with pytest.raises(InvalidArgument) as refused:
                await publish(broker, bad)
            assert text in str(refused.value), way
            for queue in ("q", "lanes"):
                assert (await broker.stats(queue)).published == 0, way
        await broker.publish("q", FINE)

    play(memory_home, scenario)


def test_a_message_at_every_limit_goes_through(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", max_message_bytes=100)
        messages = [
            Message(bytes(100), priority=255, headers={str(n): 1 for n in range(HEADERS_MAX)}),
            Message(headers={"h": nested(HEADERS_DEPTH_MAX - 1)}),
            Message(headers={"h": "x" * (HEADERS_BYTES_MAX - 1)}),
            Message(
                headers={"h": [2**63 - 1, -(2**63), 1.5, None, True, b"\x00", dt.datetime(1, 1, 1, tzinfo=dt.UTC)]}
            ),
        ]
        await broker.publish_many("q", messages)
        broker = await home.reopen(broker)
        assert [one.message for one in await broker.claim("q", max=10)] == messages

    play(home, scenario)


def test_too_much_in_one_call(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        with pytest.raises(
            MessageTooLarge, match=f"{BATCH_MESSAGES_MAX + 1} messages in one call; the limit is 100000"
        ):
            await broker.publish_many("q", [FINE] * (BATCH_MESSAGES_MAX + 1))
        part = bytes(16 << 20)
        with pytest.raises(MessageTooLarge, match="67108865 bytes in one call; the limit is 67108864"):
            await broker.publish_many("q", [*[Message(part)] * 4, Message(b"1")])
        assert (await broker.stats("q")).published == 0
        await broker.publish_many("q", [FINE] * BATCH_MESSAGES_MAX)
        assert len(await broker.claim("q", max=BATCH_MESSAGES_MAX)) == BATCH_MESSAGES_MAX
        with pytest.raises(InvalidArgument, match="max is 100001; it must be 1 to 100000"):
            await broker.claim("q", max=BATCH_MESSAGES_MAX + 1)

    play(memory_home, scenario)


def test_batches_that_are_none(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        good = encode(numbered(3))
        with pytest.raises(InvalidBatch, match="empty"):
            await broker.publish_batch("q", encode([]))
        for bad in (
            EncodedBatch(4, good.meta, good.body),
            EncodedBatch(3, b"\xff", good.body),
            EncodedBatch(3, b"", b""),
        ):
            with pytest.raises(InvalidArgument):
                await broker.publish_batch("q", bad)
        with pytest.raises(InvalidArgument, match="EncodedBatch, not list"):
            await broker.publish_batch("q", [FINE])  # type: ignore[arg-type]
        for nothing in (None, 5, "text", b"bytes", FINE, (message for message in [FINE])):
            with pytest.raises(InvalidArgument):
                await broker.publish_many("q", nothing)  # type: ignore[arg-type]
        assert len(await broker.publish_many("q", [])) == 0
        assert (await broker.stats("q")).published == 0

    play(memory_home, scenario)


def test_what_does_not_exist_is_not_found(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        operations: list[Callable[[], Awaitable[object]]] = [
            lambda: broker.publish("gone", FINE),
            lambda: broker.publish_many("gone", []),
            lambda: broker.publish_batch("gone", encode([FINE])),
            lambda: broker.publish_to("gone", FINE),
            lambda: broker.claim("gone"),
            lambda: broker.claim("q", group="gone"),
            lambda: broker.read("q", "gone"),
            lambda: broker.read_from("gone"),
            lambda: broker.commit("q", "gone", 0),
            lambda: broker.seek("gone", to="first"),
            lambda: broker.seek("q", "gone", to="first"),
            lambda: broker.browse("gone"),
            lambda: broker.browse("q", group="gone"),
            lambda: broker.dead("q", "gone"),
            lambda: broker.redrive("gone"),
            lambda: broker.purge_dead("gone"),
            lambda: broker.purge("gone"),
            lambda: broker.pause("gone"),
            lambda: broker.pause("q", "gone"),
            lambda: broker.resume("gone"),
            lambda: broker.stats("gone"),
            lambda: broker.attach("gone"),
            lambda: broker.detach("gone"),
            lambda: broker.detach("q", "gone"),
            lambda: broker.delete_queue("gone"),
            lambda: broker.delete_group("q", "gone"),
            lambda: broker.delete_exchange("gone"),
            lambda: broker.declare_group("gone", "g"),
            lambda: broker.bind("gone", "q"),
            lambda: broker.bind("gone", "gone"),
            lambda: broker.unbind("gone", "q"),
        ]
        for operation in operations:
            with pytest.raises(NotFound, match="gone"):
                await operation()
        with pytest.raises(NotFound, match="gone"):
            await broker.groups("gone")
        assert set(await broker.queues()) == {"q", "$events"}

    play(memory_home, scenario)


def test_wrong_types_and_numbers_are_named(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker: Any = await home.open()
        await broker.declare_queue("q", ordered=True)
        await broker.declare_queue("two", lanes=2)
        await broker.declare_group("q", "s", kind="stream")
        await broker.publish("q", FINE)
        claim = await broker.claim("q")
        before = await broker.stats("q")
        operations: list[tuple[Callable[[], Awaitable[object]], str]] = [
            (lambda: broker.publish(["q"], FINE), "queue"),
            (lambda: broker.publish(None, FINE), "queue"),
            (lambda: broker.claim({}), "queue"),
            (lambda: broker.claim("q", group=["g"]), "group"),
            (lambda: broker.declare_queue(["q"]), "queue"),
            (lambda: broker.declare_queue(5), "queue"),
            (lambda: broker.declare_group("q", 5), "group"),
            (lambda: broker.declare_exchange(["x"]), "exchange"),
            (lambda: broker.delete_exchange(["x"]), "exchange"),
            (lambda: broker.publish_to(["x"], FINE), "exchange"),
            (lambda: broker.publish_to("", 5), "message"),
            (lambda: broker.bind(["x"], "q"), "exchange"),
            (lambda: broker.bind("x", "q", 5), "pattern|exchange"),
            (lambda: broker.claim("q", max=0), "max is 0"),
            (lambda: broker.claim("q", max=-1), "max is -1"),
            (lambda: broker.claim("q", max=1.5), "max must be a whole number"),
            (lambda: broker.claim("q", max="5"), "max must be a whole number"),
            (lambda: broker.claim("q", max=2, min=3), "min is 3; it must be 1 to 2"),
            (lambda: broker.claim("q", min=0), "min is 0"),
            (lambda: broker.claim("q", wait=-1), "wait is -1"),
            (lambda: broker.claim("q", wait=3_601), "wait is 3601; it must be 0 to 3600 seconds"),
            (lambda: broker.claim("q", wait=float("nan")), "wait is nan"),
            (lambda: broker.claim("q", wait="1"), "wait must be a number of seconds"),
            (lambda: broker.claim("q", lease_seconds=0), "lease_seconds is 0"),
            (lambda: broker.claim("q", lease_seconds=float("inf")), "lease_seconds is inf"),
            (lambda: broker.claim("q", lease_seconds=True), "lease_seconds must be a number"),
            (lambda: broker.claim("q", partition=5), "partition must be a string"),
            (lambda: broker.claim("q", partition="x" * 1_025), "1025 characters; the limit is 1024"),
            (lambda: broker.claim("q", consumer=5), "consumer must be a string"),
            (lambda: broker.detach("q", consumer=["c"]), "consumer must be a string"),
            (lambda: broker.extend(claim, 0), "seconds is 0"),
            (lambda: broker.extend(claim, -5), "seconds is -5"),
            (lambda: broker.nack(claim, delay=-1), "delay is -1"),
            (lambda: broker.nack(claim, error=5), "error must be a string"),
            (lambda: broker.postpone(claim, "soon"), "delay must be a number"),
            (lambda: broker.ack(claim, [-1]), "an offset is -1"),
            (lambda: broker.ack(claim, ["0"]), "an offset must be a whole number"),
            (lambda: broker.ack(claim, 0), "offsets"),
            (lambda: broker.ack(claim, []), "at least one verdict"),
            (lambda: broker.settle(claim, []), "at least one verdict"),
            (lambda: broker.settle(claim, ["ack"]), "a verdict must be a penstock.Verdict, not str"),
            (lambda: broker.settle(claim, [Verdict("eat")]), "unknown verdict 'eat'"),  # type: ignore[arg-type]
            (lambda: broker.settle(claim, [Verdict("ack", 1, 1)]), "1 to 1: an empty range"),
            (lambda: broker.settle(claim, [Verdict("ack", -1, 1)]), "start is -1"),
            (lambda: broker.settle(claim, [Verdict("nack", delay_ms=-1)]), "delay_ms is -1"),
            (lambda: broker.settle(claim, None), "verdict"),
            (lambda: broker.read("q", "s", max=0), "max is 0"),
            (lambda: broker.commit("q", "s", -1), "offset is -1"),
            (lambda: broker.commit("q", "s", "1"), "offset must be a whole number"),
            (lambda: broker.read_from("q", -1), "offset is -1"),
            (lambda: broker.read_from("q", time_ms=-1), "time_ms is -1"),
            (lambda: broker.read_from("q", lane=1), "lane is 1; queue 'q' has only lane 0"),
            (lambda: broker.read_from("q", lane="0"), "lane is '0'; queue 'q' has only lane 0"),
            (lambda: broker.read_from("two", 0), "queue 'two' has lanes 0 to 1: say which one with lane="),
            (lambda: broker.seek("q"), "seek needs one of"),
            (lambda: broker.seek("q", to="first", offset=0), "seek needs one of"),
            (lambda: broker.seek("q", to="middle"), "to is 'middle'"),
            (lambda: broker.seek("q", offset=-1), "offset is -1"),
            (lambda: broker.browse("q", max=0), "max is 0"),
            (lambda: broker.browse("q", state="lost"), "state is 'lost'"),
            (lambda: broker.browse("q", after=(1, 0)), r"after is \(1, 0\); it must be a page's next.*only lane 0"),
            (lambda: broker.browse("q", after=(0, -1)), "after's offset is -1"),
            (lambda: broker.browse("q", after=(0, 0, 0)), "after is"),
            (lambda: broker.browse("q", after="x"), "after is 'x'"),
            (lambda: broker.browse("q", partition=5), "partition must be a string"),
            (lambda: broker.dead("q", offsets=(1,)), r"offsets is \(1,\); it must be \(start, end\)"),
            (lambda: broker.dead("q", offsets=(-1, 5)), "an offset is -1"),
            (lambda: broker.dead("q", max=-1), "max is -1"),
            (lambda: broker.redrive("q", reason=5), "reason must be a string"),
            (lambda: broker.purge_dead("q", error=5), "error must be a string"),
        ]
        await broker.declare_group("q", "default")
        for number, (operation, text) in enumerate(operations):
            with pytest.raises(PenstockError, match=text) as refused:
                await operation()
            assert isinstance(refused.value, InvalidArgument | NotFound), number
        assert await broker.stats("q") == before
        await broker.ack(claim)

    play(memory_home, scenario)


@pytest.mark.parametrize("condition", ["a >", "", "a = 'x", "1 + ", "a LIKE 5", "DROP TABLE x", "a" * 5_000, 5])
def test_a_bad_filter_is_refused_wherever_it_is_used(memory_home: Home, condition: Any) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.declare_group("q", "g")
        await broker.declare_exchange("x", kind="filter")
        for operation in (
            broker.declare_group("q", "bad", filter=condition),
            broker.declare_group("q", "g", filter=condition),
            broker.browse("q", filter=condition),
            broker.dead("q", "g", filter=condition),
            broker.redrive("q", "g", filter=condition),
            broker.purge_dead("q", "g", filter=condition),
            broker.bind("x", "q", condition),
        ):
            with pytest.raises(InvalidArgument if condition == 5 else InvalidFilter):
                await operation
        assert await broker.groups("q") == {"g": {}}

    play(memory_home, scenario)


def test_leases_that_are_none(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker: Any = await home.open()
        await broker.declare_queue("q")
        await broker.declare_queue("r")
        for queue in ("q", "r"):
            await broker.publish_many(queue, numbered(2))
        mine, foreign = await broker.claim("q", max=2), await broker.claim("r", max=2)
        for token in ("", "x", "1-2", "1-2-3-4", "-1-2-3", "1-2-²", "1-2-" + "9" * 20, None, 5, ["1-2-3"]):
            with pytest.raises(InvalidArgument, match="is not a lease"):
                await broker.ack(token)
        lane, group, id = map(int, str(mine.lease).split("-"))
        for token in (f"{lane}-{group}-{id + 1_000}", f"{lane}-999-{id}", f"999-{group}-{id}"):
            for operation in (broker.ack(token), broker.extend(token, 5), broker.transaction().ack(token).commit()):
                with pytest.raises(LeaseLost):
                    await operation
        other_lane = str(foreign.lease).split("-", maxsplit=1)[0]
        with pytest.raises(LeaseLost):
            await broker.ack(f"{other_lane}-{group}-{id}")
        with pytest.raises(LeaseLost, match="5 to 5 are not all in lease"):
            await broker.ack(mine, [0, 5])
        await broker.ack(mine, [0])
        with pytest.raises(LeaseLost, match="0 to 1 are not all in lease"):
            await broker.ack(mine, [0, 1])
        await broker.ack(mine)
        for operation in (broker.ack(mine), broker.nack(mine), broker.release(mine), broker.extend(mine, 1)):
            with pytest.raises(LeaseLost):
                await operation
        assert (await group_stats(broker, "r")).leased == 2
        assert (await group_stats(broker, "q")).lag == 0
        await broker.delete_queue("r")
        with pytest.raises(LeaseLost, match="does not exist any more"):
            await broker.ack(foreign)

    play(memory_home, scenario)


def test_a_long_error_is_cut_and_kept(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q")
        await broker.publish("q", FINE)
        await broker.reject(await broker.claim("q"), error="ü" * 10_000)
        broker = await home.reopen(broker)
        assert [len(dead.error) for dead in await broker.dead("q")] == [2_048]
        assert texts([dead.received for dead in await broker.dead("q", error="üüü")]) == ["fine"]

    play(home, scenario)


def test_nobody_but_the_broker_writes_events(memory_home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_exchange("x", kind="fanout")
        refused: list[Callable[[], Awaitable[Any]]] = [
            lambda: broker.publish("$events", FINE),
            lambda: broker.publish_many("$events", [FINE]),
            lambda: broker.publish_batch("$events", encode([FINE])),
            lambda: broker.bind("x", "$events"),
            lambda: broker.delete_queue("$events"),
            lambda: broker.declare_queue("$mine"),
        ]
        for attempt in refused:
            with pytest.raises(Forbidden):
                await attempt()
        with pytest.raises(Forbidden):
            broker.transaction().publish("$events", FINE)
        with pytest.raises(InvalidArgument, match="queue:\\$events"):
            await broker.declare_queue("q", dead_letter_to="queue:$events")
        receipt = await broker.publish_to("", Message(b"m", key="$events"))
        assert receipt.stored == 0
        assert (await broker.stats("$events")).published == 0

    play(memory_home, scenario)


def test_a_limit_that_is_reached_is_told_from_what_is_forbidden(
    memory_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open(limits=Limits(queues=3))
        await broker.declare_queue("one")
        await broker.declare_queue("two")
        with pytest.raises(LimitReached, match="3 queues already"):  # with the queue of events
            await broker.declare_queue("three")
        await broker.declare_queue("one", description="one that is there may still change")
        monkeypatch.setattr(declarations, "GROUPS_MAX", 1)
        await broker.declare_group("one", "first")
        with pytest.raises(LimitReached, match="1 groups already") as reached:
            await broker.declare_group("one", "second")
        assert not isinstance(reached.value, Forbidden)
        assert (reached.value.row.http, reached.value.row.retryable) == (403, False)

    play(memory_home, scenario)
