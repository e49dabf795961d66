"""The parts of the MQTT front that need no socket: tables, topics by level, mapping, filters of keys, packet ids."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Message
from penstock.core.filters import parse
from penstock.core.routing.tries import Target, Trie, mqtt_targets
from penstock.embedded import open_store
from penstock.fronts.key_filter import key_filter
from penstock.fronts.mqtt.mapping import ANY_ORIGIN, Publisher, as_text, origin_of, properties_of
from penstock.fronts.mqtt.queues import place
from penstock.fronts.mqtt.session.window import PACKET_IDS, Flight, Window, packet_id_of
from penstock.fronts.mqtt.subscription.subscriptions import Subscription, Subscriptions
from penstock.fronts.mqtt.subscription.topic_tree import TopicTree
from penstock.fronts.mqtt.table import COPIED, HOLDING_GROUP, Table
from penstock.model import work
from penstock.model.errors import InvalidArgument
from penstock.model.work import MESSAGE_WORK, Budget, at_once
from penstock.node.broker import LocalBroker
from penstock.node.clock import SystemClock
from penstock.store.memory.engine import MemoryStore
from penstock.wire.mqtt.packets import NO_PROPERTIES, PublishProperties
from penstock.wire.mqtt.properties import publish_parts

LEVELS = st.sampled_from(["", "a", "b", "$x", "%", "_", "!", "'"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, end: "/".join([*levels, *end]) or "+",
    st.lists(LEVELS | st.just("+"), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)


def matches(pattern: str, topic: str) -> bool:
    trie = Trie()
    trie.add(pattern.split("/"), Target("queue", "q"))
    return any(mqtt_targets(trie, topic, Budget()))


# Tables ----------------------------------------------------------------------------------------------------


def with_broker(test: Callable[[LocalBroker], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def run() -> None:
        async with await open_store(MemoryStore(), SystemClock()) as broker:
            await test(broker)

    def wrapped() -> None:
        asyncio.run(run())

    wrapped.__name__ = test.__name__
    return wrapped


class Heard:
    """What a table says of its rows."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}

    def __call__(self, key: str, message: Message | None) -> None:
        if message is None:
            del self.rows[key]  # each goes once
        else:
            self.rows[key] = message.payload


def table(broker: LocalBroker, *, compact_after: int = 10**9) -> tuple[Table, dict[str, bytes]]:
    heard = Heard()
    return Table(broker, "t", "", heard, compact_after=compact_after), heard.rows


def row(key: str, payload: bytes, **headers: Any) -> Message:
    return Message(payload, key=key, headers=headers or None)


@with_broker
async def test_a_table_that_nobody_wrote_to_has_no_queue(broker: LocalBroker) -> None:
    one, rows = table(broker)
    await one.catch_up()
    assert not await broker.has_queue("t")
    await one.put([row("a", b"1")])
    assert await broker.has_queue("t")
    assert rows == {"a": b"1"}


@with_broker
async def test_the_last_word_on_a_key_holds_and_others_hear_of_it(broker: LocalBroker) -> None:
    one, rows = table(broker)
    other, others_rows = table(broker)
    await one.put([row("a", b"1"), row("b", b"1", x=1), row("a", b"2")])
    await one.put([row("b", b"")])
    assert rows == {"a": b"2"}
    await other.catch_up()
    assert others_rows == rows
    await other.put([row("b", b"3")])
    await one.catch_up()
    assert one.get("b") == row("b", b"3")
    assert rows == {"a": b"2", "b": b"3"}


@with_broker
async def test_a_word_that_follows_another_counts_only_if_no_other_came_between(broker: LocalBroker) -> None:
    one, rows = table(broker)
    other, others_rows = table(broker)
    await one.put([row("a", b"1")])
    late = one.following(row("a", b"late", x=1))
    await other.catch_up()
    await other.put([other.following(row("a", b"2", x=1)), other.following(row("b", b"1"))])
    await one.put([late])
    assert rows == others_rows == {"a": b"2", "b": b"1"}
    assert one.get("a") == row("a", b"2", x=1)
    await one.put([one.following(row("a", b"3"))])
    await one.compact()
    later, later_rows = table(broker)
    await later.catch_up()
    await other.catch_up()
    assert rows == others_rows == later_rows == {"a": b"3", "b": b"1"}


@with_broker
async def test_a_table_is_read_to_its_end_where_its_rows_are_large(broker: LocalBroker) -> None:
    one, rows = table(broker)
    for number in range(5):
        await one.put([row(f"k{number}", bytes(7_000_000))])
    later, later_rows = table(broker)
    await later.catch_up()
    assert later_rows.keys() == rows.keys() == {"k0", "k1", "k2", "k3", "k4"}


@with_broker
async def test_compacting_keeps_what_holds_and_lets_the_rest_go(broker: LocalBroker) -> None:
    one, rows = table(broker)
    for number in range(50):
        await one.put([row(f"k{number % 5}", b"%d" % number, n=number)])
    await one.put([row("k0", b"")])
    await one.compact()
    group = next(one for one in (await broker.stats("t")).groups if one.group == HOLDING_GROUP)
    assert group.lag == 4
    later, later_rows = table(broker)
    await broker.seek("t", HOLDING_GROUP, offset=51)  # as retention leaves it
    await later.catch_up()
    assert later_rows == rows == {"k1": b"46", "k2": b"47", "k3": b"48", "k4": b"49"}
    assert later.get("k1") == row("k1", b"46", n=46)


@with_broker
async def test_a_long_log_is_compacted_by_itself(broker: LocalBroker) -> None:
    one, rows = table(broker, compact_after=100)
    for number in range(150):
        await one.put([row("k", b"%d" % number)])
    await one.close()
    assert rows == {"k": b"149"}
    for _ in range(200):
        if (await broker.stats("t")).groups[0].lag < 100:
            break
        await asyncio.sleep(0.01)
    assert (await broker.stats("t")).groups[0].lag < 110


@pytest.mark.parametrize("seed", range(20))
def test_copies_that_come_late_change_nothing(seed: int) -> None:
    """A compaction among writes of others: whoever reads all of it, or only what it left, knows the same."""

    @with_broker
    async def run(broker: LocalBroker) -> None:
        chance = random.Random(seed)
        one, rows = table(broker)
        other, other_rows = table(broker)
        await one.put([row(f"k{number}", b"0") for number in range(6)])
        await other.catch_up()
        start = (await broker.stats("t")).published
        copies = [
            row(key, message.payload, **{COPIED: version})
            for version, (key, (_, message)) in enumerate(one._rows.items())
        ]
        words = [row(f"k{chance.randrange(6)}", chance.choice([b"", b"1", b"2"])) for _ in range(10)]
        mixed = copies[:]
        for word in words:  # in their order, at any places among the copies
            mixed.insert(chance.randrange(len(mixed) + 1), word)
        await broker.publish_many("t", mixed)
        await one.catch_up()
        await other.catch_up()
        late, late_rows = table(broker)
        late._next = start
        await late.catch_up()
        assert rows == other_rows == late_rows

    run()


@with_broker
async def test_forgetting_spares_what_was_written_since(broker: LocalBroker) -> None:
    one, rows = table(broker)
    await one.put([row("a", b"1"), row("b", b"1")])
    forgetting = [one.forgetting("a"), one.forgetting("b")]
    await one.put([row("a", b"2")])
    await one.put(forgetting)
    assert rows == {"a": b"2"}


@with_broker
async def test_a_reader_that_was_left_behind_begins_again(broker: LocalBroker) -> None:
    one, _ = table(broker)
    other, other_rows = table(broker)
    await one.put([row("a", b"1"), row("b", b"1")])
    await other.catch_up()
    await one.put([row("a", b"2"), row("b", b""), row("c", b"1")])
    other._next = 0
    real = broker.read_from
    gone = iter([True])

    async def read_from(queue: str, offset: int | None = None, **options: Any) -> Any:
        from penstock.model.errors import OffsetGone

        if offset is not None and next(gone, False):
            raise OffsetGone("it is gone")
        return await real(queue, offset, **options)

    broker.read_from = read_from  # type: ignore[method-assign]
    await other.catch_up()
    assert other_rows == {"a": b"2", "c": b"1"}


# Topics by level ---------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.lists(TOPICS, max_size=12), FILTERS)
def test_a_topic_tree_finds_what_a_filter_matches(topics: list[str], topic_filter: str) -> None:
    tree = TopicTree()
    for topic in topics:
        tree.add(topic)
    found = at_once(tree.matching(topic_filter, Budget()))
    assert len(found) == len(set(found))
    assert set(found) == {topic for topic in topics if matches(topic_filter, topic)}
    for topic in topics:
        tree.remove(topic)
    assert at_once(tree.matching(topic_filter, Budget())) == []
    assert not tree._root.below


@pytest.mark.parametrize("topic_filter", ["#", "a/#", "+/+", "a/+", "+/+/x"])
def test_many_topics_are_looked_at_in_steps(topic_filter: str) -> None:
    tree = TopicTree()
    for number in range(1_000):
        tree.add(f"a/{number}")
    count, found, kept = 0, None, set[str]()
    with patch.object(work, "SLICE_WORK", 100 * MESSAGE_WORK):
        steps = tree.matching(topic_filter, Budget())
        while found is None:
            try:
                next(steps)
                tree.remove(f"a/{count}")  # topics come and go meanwhile
                count += 1
            except StopIteration as end:
                found = end.value
    assert count >= 10
    if not topic_filter.endswith("x"):
        kept = {f"a/{number}" for number in range(count, 1_000)}
    assert set(found) >= kept


# Filters of keys -----------------------------------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(FILTERS, TOPICS)
def test_a_key_filter_lets_pass_what_its_pattern_matches(pattern: str, key: str) -> None:
    made = key_filter(pattern)
    passes = made.condition is None or parse(made.condition).matches(Message(key=key))
    # Keys have no server's own topics: a leading `$` is a letter like any other.
    plain, shown = (pattern, key) if "$" not in key.split("/", maxsplit=1)[0] else (f"x/{pattern}", f"x/{key}")
    if made.is_exact:
        assert passes == matches(plain, shown)
    else:
        assert passes or not matches(plain, shown)
        assert made.matches(key) == matches(plain, shown)


@settings(max_examples=300, deadline=None)
@given(FILTERS, FILTERS)
def test_two_patterns_never_have_the_same_condition(one: str, other: str) -> None:
    if one not in ("", "#") and other not in ("", "#") and one != other:
        assert key_filter(one).condition != key_filter(other).condition


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        key_filter("a#")


# Mapping -------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=8)
PAIRS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "mqtt", "amqp", "mqtt-x", "amqp-y", ""]) | TEXTS, TEXTS), max_size=6
)


@settings(max_examples=300, deadline=None)
@given(PAIRS, st.none() | TEXTS, st.none() | st.binary(max_size=300), st.none() | TOPICS, st.integers(0, 1))
def test_properties_come_out_as_they_went_in(
    pairs: list[tuple[str, str]], content_type: str | None, correlation: bytes | None, response: str | None, form: int
) -> None:
    given_properties = PublishProperties(form, 60, content_type, response, correlation, tuple(pairs))
    message = Publisher("me").message("topic", b"x", 1, False, given_properties)
    found = properties_of(message, 1_000_000, 1_000_000)
    assert found == given_properties
    assert origin_of(message.headers) == (1, False, "me")


def test_a_message_that_says_nothing_more_has_no_properties() -> None:
    publisher = Publisher("me")
    one, two = (publisher.message("t", b"", 2, True) for _ in range(2))
    assert one.headers is two.headers  # made once
    assert origin_of(one.headers) == (2, True, "me")
    assert properties_of(one, 0, 0) is NO_PROPERTIES
    assert origin_of(None) == ANY_ORIGIN
    assert origin_of({"mqtt": "text"}) == ANY_ORIGIN


def test_the_time_that_is_left_is_told_in_whole_seconds() -> None:
    message = Publisher("me").message("t", b"", 0, False, PublishProperties(message_expiry=10))
    assert message.ttl_ms == 10_000
    assert properties_of(message, 0, 0).message_expiry == 10
    assert properties_of(message, 0, 9_500).message_expiry == 1
    assert properties_of(message, 0, 99_000).message_expiry == 1
    longest = Publisher("me").message("t", b"", 0, False, PublishProperties(message_expiry=0xFFFFFFFF))
    assert longest.ttl_ms is not None


def test_headers_of_other_fronts_are_texts() -> None:
    when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    values = {True: "true", None: "", 5: "5", 1.5: "1.5", b"\xff": "/w==", when: when.isoformat(), "x": "x"}
    assert {value: as_text(value) for value in values} == values
    assert as_text({"a": [1]}) == '{"a":[1]}'


# Subscriptions and packet ids ------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(FILTERS, max_size=6, unique=True), TOPICS, st.integers(0, 2))
def test_a_plan_has_the_highest_qos_and_all_ids(filters: list[str], topic: str, qos: int) -> None:
    kept = [Subscription(one, index % 3, id=index, pattern=one) for index, one in enumerate(filters)]
    subscriptions = Subscriptions(kept)
    matching = [one for one in kept if matches(one.pattern, topic)]
    for _ in range(2):  # the second time from memory
        plan = subscriptions.plan(topic, ANY_ORIGIN._replace(qos=qos), "me")
        if not matching:
            assert plan is None
        else:
            assert plan is not None
            assert plan.qos == min(qos, max(one.qos for one in matching))
            assert set(plan.ids) == {one.id for one in matching}
    for one in filters:
        subscriptions.remove(one)
    assert subscriptions.plan(topic, ANY_ORIGIN, "me") is None


def test_packet_ids_are_never_zero_and_free_ones_are_found() -> None:
    assert {packet_id_of(offset) for offset in (0, PACKET_IDS - 1, PACKET_IDS)} == {1, PACKET_IDS}
    window = Window(PACKET_IDS, {PACKET_IDS})
    source: Any = None
    taken = set()
    for _ in range(PACKET_IDS - 1):
        packet_id = window.any_free()
        taken.add(packet_id)
        window.begin(packet_id, Flight(1, None, 0, 0, source))
    assert taken == set(range(1, PACKET_IDS))
    assert window.room == 0
    window.end(17)
    assert window.any_free() == 17
    assert window.complete(PACKET_IDS)
    assert not window.complete(PACKET_IDS)


def test_places_in_a_stream_are_read() -> None:
    assert place("first") == {"to": "first"}
    assert place("next") == place("last") == {"to": "last"}
    assert place("12") == place("offset=12") == {"offset": 12}
    assert place("timestamp=5") == {"time_ms": 5}


@pytest.mark.parametrize("payload_format", [None, 0, 1])
def test_what_a_publisher_says_of_its_payloads_format_is_kept(payload_format: int | None) -> None:
    given = PublishProperties(payload_format, content_type="x")
    assert properties_of(Publisher("c").message("a", b"", 0, False, given), 0, 0) == given
    said = b"" if payload_format is None else bytes((1, payload_format))
    assert b"".join(publish_parts(given)) == said + b"\x03\0\x01x"
