"""Names are any text: slashes, dots, spaces, emoji, 255 characters. Namespaces keep them apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock import InvalidArgument, Message, NotFound
from penstock.node.broker import LocalBroker
from tests.scenarios.rig import Home, claim_all, group_stats, play, texts

GOOD = [
    "a/b", "..", "../../etc/passwd", "with some spaces ", " ", "😀 emoji 👩‍👩‍👧", "ü" * 255, "x" * 255, "😀" * 255,
    "'; DROP TABLE batches; --", "%s {0} \\", "null", "0", "-", "a:b#c?d=e&f", "İstanbul",
]  # fmt: skip
BAD = {
    "": r"has 0 characters; it needs 1 to 255",
    "x" * 256: r"has 256 characters; it needs 1 to 255",
    "😀" * 256: r"has 256 characters; it needs 1 to 255",
    "a\nb": "control character",
    "\x00": "control character",
    "\x7f": "control character",
    "\ud800": "lone surrogate",
}


@pytest.mark.parametrize("name", GOOD, ids=lambda name: ascii(name)[:20])
def test_any_text_is_a_name_for_everything(home: Home, name: str) -> None:
    async def scenario(home: Home) -> None:
        broker = (await home.open()).in_namespace(name)
        await broker.declare_queue(name, ordered=True, dead_letter_to=f"queue:{name}"[: 255 + 6])
        await broker.declare_group(name, name)
        await broker.declare_exchange(name, kind="direct")
        await broker.bind(name, name, name)
        await broker.publish_to(name, Message(b"m", partition=name, key=name, dedup_id=name, headers={name: name}))
        broker = (await home.open()).in_namespace(name)
        claim = await broker.claim(name, group=name, consumer=name, partition=name)
        (one,) = claim
        assert (one.message.partition, one.message.key, one.message.headers) == (name, name, {name: name})
        assert one.queue == name
        assert (await broker.publish_to(name, Message(partition=name, key=name, dedup_id=name))).duplicates == 1
        await broker.attach(name, name, consumer=name)
        await broker.detach(name, name, consumer=name)
        claim = await broker.claim(name, group=name, consumer=name)
        await broker.reject(claim)
        (dead,) = await broker.dead(name, name)
        assert (dead.consumer, dead.received.message.partition) == (name, name)
        session = broker.begin_session(name)
        await session.declare_queue(name)
        await session.end_session()
        assert set(await broker.queues()) == {name}

    play(home, scenario)


@pytest.mark.parametrize(("name", "text"), BAD.items(), ids=lambda name: ascii(name)[:20])
def test_what_is_no_name_is_refused_with_its_reason(memory_home: Home, name: str, text: str) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True)
        operations: list[Callable[[], Awaitable[object]]] = [
            lambda: broker.declare_queue(name),
            lambda: broker.declare_group("q", name),
            lambda: broker.declare_exchange(name or "\x01"),
            lambda: broker.claim("q", consumer=name),
            lambda: broker.attach("q", consumer=name),
            lambda: broker.detach("q", consumer=name),
            lambda: broker.declare_queue("r", dead_letter_to=f"queue:{name}"),
            lambda: broker.declare_queue("r", primary_group=name),
            lambda: broker.declare_exchange("x", alternate=name),
            lambda: asyncio.to_thread(broker.begin_session, name),
        ]
        for number, operation in enumerate(operations):
            with pytest.raises(InvalidArgument, match="control character" if number == 2 and not name else text):
                await operation()
        with pytest.raises(InvalidArgument, match=text):
            broker.in_namespace(name)
        assert set(await broker.queues()) == {"q", "$events"}
        assert set(await broker.groups("q")) == set()

    play(memory_home, scenario)


@pytest.mark.parametrize(
    ("field", "limit"),
    [("partition", 1_024), ("key", 255), ("dedup_id", 255), ("content_type", 255), ("correlation_id", 255),
     ("trace_id", 255)],
)  # fmt: skip
def test_texts_of_a_message_at_their_limit_and_one_past_it(home: Home, field: str, limit: int) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True)
        longest = Message(b"m", **{field: "😀" * limit})  # type: ignore[arg-type]
        await broker.publish("q", longest)
        await broker.publish_many("q", [longest] * 40)
        broker = await home.reopen(broker)
        (one,) = await broker.claim("q")
        assert one.message == longest
        too_long = Message(b"m", **{field: "😀" * (limit + 1)})  # type: ignore[arg-type]
        before = (await broker.stats("q")).published
        for batch in ([too_long], [Message(b"")] * 40 + [too_long]):
            with pytest.raises(InvalidArgument, match=f"{field} has {limit + 1} characters; the limit is {limit}"):
                await broker.publish_many("q", batch)
        assert (await broker.stats("q")).published == before

    play(home, scenario)


def test_an_empty_partition_is_none(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        await broker.declare_queue("q", ordered=True)
        await broker.publish_many("q", [Message(b"1", partition=""), Message(b"2", partition=""), Message(b"3")])
        claims = [await broker.claim("q") for _ in range(3)]
        assert [texts(claim) for claim in claims] == [["1"], ["2"], ["3"]]
        with pytest.raises(InvalidArgument, match="partition is empty"):
            await broker.claim("q", partition="")

    play(home, scenario)


def test_namespaces_are_apart(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        spaces: list[LocalBroker] = [broker, broker.in_namespace("a"), broker.in_namespace("b")]
        for number, space in enumerate(spaces):
            await space.declare_queue("q", lease_ms=1_000 + number)
            await space.declare_exchange("x", kind="fanout")
            await space.bind("x", "q")
            await space.publish_to("x", Message(b"%d" % number, dedup_id="same"))
        await spaces[1].declare_queue("only-a")
        broker = await home.reopen(broker)
        spaces = [broker, broker.in_namespace("a"), broker.in_namespace("b")]
        assert set(await spaces[0].queues()) == {"q", "$events"}
        assert set(await spaces[1].queues()) == {"q", "only-a"}
        assert [(await space.queues())["q"] for space in spaces] == [
            {"lease_ms": 1_000 + number} for number in range(3)
        ]
        with pytest.raises(NotFound, match="no queue 'only-a' in namespace 'b'"):
            await spaces[2].publish("only-a", Message(b""))
        await spaces[0].delete_queue("q")
        assert await claim_all(spaces[1], "q") == ["1"]
        assert (await group_stats(spaces[1], "q")).lag == 0
        assert await claim_all(spaces[2], "q") == ["2"]

    play(home, scenario)


def test_names_that_differ_only_in_case_or_form_are_different(home: Home) -> None:
    async def scenario(home: Home) -> None:
        broker = await home.open()
        names = ["q", "Q", "q ", "é", "e\u0301"]
        for name in names:
            await broker.declare_queue(name)
            await broker.publish(name, Message(name.encode()))
        broker = await home.reopen(broker)
        assert [await claim_all(broker, name) for name in names] == [[name] for name in names]

    play(home, scenario)
