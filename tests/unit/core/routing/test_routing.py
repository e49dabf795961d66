"""Routing: each kind of exchange, the tries against naive matchers, walks with cycles and alternates, changes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Any, Literal, get_args
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import Meta
from penstock.core.filters.filter import PREDICATE_WORK
from penstock.core.routing import router as routing
from penstock.core.routing.router import Routed, Router
from penstock.model import Binding, ExchangeConfig, ExchangeKind, Message, work
from penstock.model.errors import AlreadyExists, Forbidden, InvalidArgument, InvalidFilter, NotFound
from penstock.model.work import MESSAGE_WORK, SLICE_WORK, Budget, Steps

QUEUES = frozenset({"a", "b", "c", "d", *(str(number) for number in range(50))})
NOTHING = Message()


def router_with(**kinds: ExchangeKind | ExchangeConfig) -> Router:
    router = Router(QUEUES.__contains__)
    for name, kind in kinds.items():
        router.declare_exchange(name, kind if isinstance(kind, ExchangeConfig) else ExchangeConfig(kind=kind))
    return router


def to_queue(exchange: str, target: str, pattern: str = "", **rest: Any) -> Binding:
    return Binding(exchange=exchange, target=target, pattern=pattern, **rest)


def to_exchange(exchange: str, target: str, pattern: str = "") -> Binding:
    return Binding(exchange=exchange, target=target, target_kind="exchange", pattern=pattern)


def routed(router: Router, exchange: str, key: str = "", message: Message = NOTHING) -> tuple[str, ...]:
    """By one message and by a batch of three: the two ways must agree."""
    route = router.route(exchange, msgspec.structs.replace(message, key=key))
    meta = Meta(
        3,
        key=[key] * 3,
        headers=None if message.headers is None else [message.headers] * 3,
        priority=[message.priority] * 3,
    )
    batch = router.route_batch(exchange, meta, 3)
    assert tuple(batch.queues) == route
    assert all(list(indexes) == [0, 1, 2] for indexes in batch.queues.values())
    assert list(batch.unroutable) == ([] if route else [0, 1, 2])
    return route


# Kinds ---------------------------------------------------------------------------------------------------


def test_default_exchange_routes_by_queue_name() -> None:
    router = router_with()
    assert routed(router, "", "a") == ("a",)
    assert routed(router, "", "nobody") == ()
    batch = router.route_batch("", Meta(4, key=["a", "nobody", None, "a"]), 4)
    assert batch == ({"a": [0, 3]}, [1, 2])


def test_direct() -> None:
    router = router_with(x="direct")
    for target, pattern in (("b", "k"), ("a", "k"), ("c", "other"), ("d", "")):
        router.bind(to_queue("x", target, pattern))
    assert routed(router, "x", "k") == ("a", "b")
    assert routed(router, "x", "K") == ()
    assert routed(router, "x", "") == ("d",)


def test_fanout_looks_at_nothing() -> None:
    router = router_with(x="fanout")
    router.bind(to_queue("x", "b", "ignored"))
    router.bind(to_queue("x", "a", "also"))
    router.bind(to_queue("x", "a"))
    assert routed(router, "x", "anything") == ("a", "b")
    assert router.unbind(to_queue("x", "a"))
    assert routed(router, "x") == ("a", "b")  # the other binding still leads there
    assert router.unbind(to_queue("x", "a", "also"))
    assert routed(router, "x") == ("b",)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", ""]),
        ("*", ["a", "*", "#"], ["", "a.b"]),
        ("#", ["", "a", "a.b", ".", "a..b"], []),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", ""]),
        ("#.z", ["z", "a.z", "z.z"], ["z.a", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.z.b"]),
        ("*.#", ["a", "a.b"], [""]),
        ("#.*", ["a", "a.b"], [""]),
        ("#.#", ["", "a", "a.b"], []),
        ("", [""], ["a"]),
    ],
)
def test_topic(pattern: str, yes: list[str], no: list[str]) -> None:
    router = router_with(x="topic")
    router.bind(to_queue("x", "a", pattern))
    for key in yes:
        assert routed(router, "x", key) == ("a",), key
    for key in no:
        assert routed(router, "x", key) == (), key


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "a/B"]),
        ("a/+", ["a/b", "a/"], ["a", "a/b/c"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c"], ["ab", "b"]),
        ("#", ["a", "a/b", "/", "/a", ""], ["$SYS", "$SYS/a"]),
        ("+", ["a", ""], ["/a", "$SYS"]),
        ("+/a", ["b/a", "/a"], ["$SYS/a", "a"]),
        ("/+", ["/a"], ["a"]),
        ("+/+", ["/a", "a/b"], ["a"]),
        ("+/#", ["a", "a/b"], ["$SYS", "$SYS/a"]),
        ("$SYS/#", ["$SYS", "$SYS/a"], ["a"]),
        ("$SYS/+", ["$SYS/a", "$SYS/$x"], ["$SYS"]),
        ("a/+/$c", ["a/$b/$c"], []),
    ],
)
def test_mqtt(pattern: str, yes: list[str], no: list[str]) -> None:
    router = router_with(x="mqtt")
    router.bind(to_queue("x", "a", pattern))
    for key in yes:
        assert routed(router, "x", key) == ("a",), key
    for key in no:
        assert routed(router, "x", key) == (), key


NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("wanted", "match", "headers", "expected"),
    [
        ({"k": "v", "n": 1}, "all", {"k": "v", "n": 1, "more": 2}, True),
        ({"k": "v", "n": 1}, "all", {"k": "v"}, False),
        ({"k": "v", "n": 1}, "any", {"k": "v"}, True),
        ({"k": "v", "n": 1}, "any", {"k": "w", "n": 2}, False),
        ({"k": None}, "all", {"k": "whatever"}, True),
        ({"k": None}, "all", {"k": None}, True),
        ({"k": None}, "all", {}, False),
        ({"k": "v"}, "all", {"k": None}, False),
        ({}, "all", {"k": 1}, True),
        (None, "all", None, True),
        ({}, "any", {"k": 1}, False),
        ({"x-tenant": "t", "k": 1}, "all", {"k": 1}, True),
        ({"x-tenant": "t"}, "any", {"x-tenant": "t"}, False),
        ({"n": 1}, "all", {"n": 1.0}, True),
        ({"n": 1}, "all", {"n": True}, False),
        ({"n": True}, "all", {"n": True}, True),
        ({"n": 1}, "all", {"n": "1"}, False),
        ({"l": [1, {"d": 2}]}, "all", {"l": [1, {"d": 2.0}]}, True),
        ({"l": [1, {"d": 1}]}, "all", {"l": [1, {"d": True}]}, False),
        ({"l": [1]}, "all", {"l": [1, 2]}, False),
        ({"b": b"x", "t": NOW}, "all", {"b": b"x", "t": NOW}, True),
    ],
)
def test_headers(
    wanted: dict[str, Any] | None, match: Literal["all", "any"], headers: dict[str, Any] | None, expected: bool
) -> None:
    router = router_with(x="headers")
    router.bind(to_queue("x", "a", headers=wanted, match=match))
    assert routed(router, "x", "k", Message(headers=headers)) == (("a",) if expected else ())


def test_filter() -> None:
    router = router_with(x="filter")
    router.bind(to_queue("x", "b", "region = 'eu' AND amount > 10"))
    router.bind(to_queue("x", "a", "region = 'eu' AND amount > 10"))
    router.bind(to_queue("x", "c", "$priority >= 5"))
    assert routed(router, "x", "", Message(headers={"region": "eu", "amount": 11})) == ("a", "b")
    assert routed(router, "x", "", Message(headers={"region": "eu", "amount": 11}, priority=5)) == ("a", "b", "c")
    assert routed(router, "x", "", NOTHING) == ()
    assert router.unbind(to_queue("x", "b", "region = 'eu' AND amount > 10"))
    assert routed(router, "x", "", Message(headers={"region": "eu", "amount": 11})) == ("a",)


# Tries against naive matchers ----------------------------------------------------------------------------

topic_patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#", "#"]), max_size=5).map(".".join)
topic_keys = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=6).map(".".join)
mqtt_levels = st.sampled_from(["a", "b", "", "+", "$x"])
mqtt_patterns = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(mqtt_levels, max_size=4),
    st.sampled_from([["#"], ["a"], ["+"]]),
)
mqtt_topics = st.lists(st.sampled_from(["a", "b", "", "$x", "+", "#"]), min_size=1, max_size=5).map("/".join)


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and topic_matches(pattern[1:], words[1:])


def mqtt_matches(pattern: str, topic: str) -> bool:
    if topic.startswith("$") and pattern[0] in "+#":
        return False
    regex = "/".join("[^/]*" if level == "+" else re.escape(level) for level in pattern.split("/") if level != "#")
    if pattern.endswith("#"):
        regex = f"{regex}(/.*)?" if pattern != "#" else ".*"
    return re.fullmatch(regex, topic) is not None


def words_of(text: str) -> list[str]:
    return text.split(".") if text else []


@settings(max_examples=300, deadline=None)
@given(st.lists(topic_patterns, max_size=8), st.lists(topic_keys, max_size=5), st.data())
def test_topic_trie_agrees_with_a_naive_matcher(patterns: list[str], keys: list[str], data: st.DataObject) -> None:
    check_trie("topic", patterns, keys, data, lambda pattern, key: topic_matches(words_of(pattern), words_of(key)))


@settings(max_examples=300, deadline=None)
@given(st.lists(mqtt_patterns, max_size=8), st.lists(mqtt_topics, max_size=5), st.data())
def test_mqtt_trie_agrees_with_a_naive_matcher(patterns: list[str], keys: list[str], data: st.DataObject) -> None:
    check_trie("mqtt", patterns, keys, data, mqtt_matches)


def check_trie(kind: ExchangeKind, patterns: list[str], keys: list[str], data: st.DataObject, matches: Any) -> None:
    """Bind all, compare; unbind some, compare; unbind the rest: nothing is left of the trie."""
    router = router_with(x=kind)
    bound = {str(number): pattern for number, pattern in enumerate(patterns)}
    for name, pattern in bound.items():
        router.bind(to_queue("x", name, pattern))

    def compare() -> None:
        for key in keys:
            expected = tuple(sorted(name for name, pattern in bound.items() if matches(pattern, key)))
            assert routed(router, "x", key) == expected, key

    compare()
    leaving = data.draw(st.permutations(list(bound)))
    for name in leaving[: len(leaving) // 2]:
        assert router.unbind(to_queue("x", name, bound.pop(name)))
    compare()
    for name, pattern in bound.items():
        assert router.unbind(to_queue("x", name, pattern))
    root = router._exchanges["x"].index.trie.root  # type: ignore[attr-defined]
    assert not root.children
    assert not root.targets


def test_many_hashes_do_not_explode() -> None:
    router = router_with(x="topic")
    router.bind(to_queue("x", "a", "#.a." * 40 + "z"))
    assert routed(router, "x", ".".join(["a"] * 120)) == ()


# The walk ------------------------------------------------------------------------------------------------


def test_exchange_to_exchange_with_cycles() -> None:
    router = router_with(x="topic", y="fanout", z="direct")
    router.bind(to_exchange("x", "y", "a.#"))
    router.bind(to_exchange("y", "x"))
    router.bind(to_exchange("y", "y"))
    router.bind(to_exchange("y", "z"))
    router.bind(to_exchange("z", "x", "a.b"))
    router.bind(to_queue("x", "c", "#"))
    router.bind(to_queue("y", "a"))
    router.bind(to_queue("z", "b", "a.b"))
    assert routed(router, "x", "a.b") == ("a", "b", "c")
    assert routed(router, "x", "a.c") == ("a", "c")
    assert routed(router, "x", "d") == ("c",)
    assert routed(router, "z", "d") == ()


def test_alternate_takes_what_the_exchange_itself_did_not_match() -> None:
    router = router_with(
        x=ExchangeConfig(kind="direct", alternate="y"), y=ExchangeConfig(kind="direct", alternate="z"), z="fanout"
    )
    router.bind(to_queue("x", "a", "k"))
    router.bind(to_queue("z", "c"))
    assert routed(router, "x", "k") == ("a",)
    assert routed(router, "x", "other") == ("c",)
    router.bind(to_queue("y", "b", "other"))
    assert routed(router, "x", "other") == ("b",)


def test_alternate_is_not_asked_when_a_bound_exchange_led_nowhere() -> None:
    router = router_with(x=ExchangeConfig(kind="direct", alternate="z"), y="direct", z="fanout")
    router.bind(to_exchange("x", "y", "k"))
    router.bind(to_queue("z", "c"))
    assert routed(router, "x", "k") == ()


def test_alternate_that_is_missing_or_circular() -> None:
    router = router_with(x=ExchangeConfig(alternate="y"))
    assert routed(router, "x", "k") == ()
    router.declare_exchange("y", ExchangeConfig(alternate="x"))
    assert routed(router, "x", "k") == ()
    router.bind(to_queue("y", "a", "k"))
    assert routed(router, "x", "k") == ("a",)
    router.delete_exchange("y")
    assert routed(router, "x", "k") == ()


def test_internal_exchange_is_reached_only_through_others() -> None:
    router = router_with(x="fanout", y=ExchangeConfig(kind="fanout", internal=True))
    router.bind(to_exchange("x", "y"))
    router.bind(to_queue("y", "a"))
    assert routed(router, "x") == ("a",)
    with pytest.raises(Forbidden, match="'y' is internal"):
        router.route("y", NOTHING)
    with pytest.raises(Forbidden, match="'y' is internal"):
        router.route_batch("y", Meta(1), 1)


def test_a_filter_behind_a_topic_exchange_is_never_answered_from_the_cache() -> None:
    router = router_with(x="topic", y="filter")
    router.bind(to_exchange("x", "y", "#"))
    router.bind(to_queue("y", "a", "n = 1"))
    assert routed(router, "x", "k", Message(headers={"n": 1})) == ("a",)
    assert routed(router, "x", "k", Message(headers={"n": 2})) == ()


def test_a_filter_bound_after_the_first_route_is_asked() -> None:
    router = router_with(x="topic", y="filter")
    assert routed(router, "x", "k") == ()
    router.bind(to_queue("y", "a", "n = 1"))
    router.bind(to_exchange("x", "y", "#"))
    assert routed(router, "x", "k", Message(headers={"n": 1})) == ("a",)
    assert routed(router, "x", "k", Message(headers={"n": 2})) == ()


def test_a_filter_that_is_an_alternate_is_never_answered_from_the_cache() -> None:
    router = router_with(x=ExchangeConfig(alternate="y"), y="filter")
    router.bind(to_queue("y", "a", "n = 1"))
    assert routed(router, "x", "k", Message(headers={"n": 1})) == ("a",)
    assert routed(router, "x", "k", Message(headers={"n": 2})) == ()


# Batches -------------------------------------------------------------------------------------------------


def test_a_batch_under_one_key_shares_one_range() -> None:
    router = router_with(x="topic")
    router.bind(to_queue("x", "a", "k.*"))
    assert router.route_batch("x", Meta(4, key=["k.1"] * 4), 4) == ({"a": range(4)}, [])
    assert router.route_batch("x", Meta(4), 4) == ({}, range(4))
    assert router.route_batch("x", Meta(0), 0) == ({}, [])


def test_a_batch_of_many_keys() -> None:
    router = router_with(x="direct")
    for target, pattern in (("b", "1"), ("b", "2"), ("a", "2")):
        router.bind(to_queue("x", target, pattern))
    batch = router.route_batch("x", Meta(5, key=["2", "1", None, "2", "3"]), 5)
    assert list(batch.queues.items()) == [("a", [0, 3]), ("b", [0, 1, 3])]
    assert list(batch.unroutable) == [2, 4]


def test_a_batch_through_filters_and_headers() -> None:
    router = router_with(x="filter", y="headers")
    router.bind(to_queue("x", "a", "n > 1 OR $key = 'k'"))
    router.bind(to_exchange("x", "y", "TRUE"))
    router.bind(to_queue("y", "b", headers={"n": 1}))
    meta = Meta(4, key=[None, "k", None, None], headers=[{"n": 1}, {"n": 1}, {"n": 2}, None])
    assert router.route_batch("x", meta, 4) == ({"a": [1, 2], "b": [0, 1]}, [3])


kinds = st.sampled_from(get_args(ExchangeKind))
bindings = st.builds(
    Binding,
    exchange=st.sampled_from("xyz"),
    target_kind=st.sampled_from(["queue", "exchange"]),
    target=st.sampled_from("xyzab"),
    pattern=st.sampled_from(["a", "a.*", "#", "a/+", "n = 1", "$priority > 0", "TRUE"]),
    headers=st.sampled_from([None, {"n": 1}]),
)
some_messages = st.builds(
    Message,
    key=st.sampled_from([None, "a", "a.b", "a/b"]),
    headers=st.sampled_from([None, {"n": 1}, {"n": 2}]),
    priority=st.integers(0, 1),
)


@settings(deadline=None)
@given(st.tuples(kinds, kinds, kinds), st.lists(bindings, max_size=12), st.lists(some_messages, max_size=6), st.data())
def test_a_batch_goes_where_its_messages_would_and_order_does_not_matter(
    chosen: tuple[ExchangeKind, ...], wanted: list[Binding], messages: list[Message], data: st.DataObject
) -> None:
    routers = []
    for order in (wanted, data.draw(st.permutations(wanted))):
        router = Router(QUEUES.__contains__)
        for name, kind, alternate in zip("xyz", chosen, ("y", "z", None), strict=True):
            router.declare_exchange(name, ExchangeConfig(kind=kind, alternate=alternate))
        for binding in order:
            try:
                router.bind(binding)
            except (InvalidArgument, NotFound):
                continue
        routers.append(router)
    names = ("key", "headers", "priority")
    meta = Meta(len(messages), **{name: [getattr(message, name) for message in messages] for name in names})
    batch = routers[0].route_batch("x", meta, len(messages))
    for index, message in enumerate(messages):
        route = routers[1].route("x", message)
        assert tuple(queue for queue, indexes in batch.queues.items() if index in indexes) == route
        assert (index in batch.unroutable) == (not route)
    assert all(list(indexes) == sorted(set(indexes)) for indexes in batch.queues.values())


# Changes -------------------------------------------------------------------------------------------------


def test_bind_and_unbind_are_idempotent_and_felt_at_once() -> None:
    router = router_with(x="topic")
    binding = to_queue("x", "a", "k.*")
    assert routed(router, "x", "k.1") == ()
    assert router.bind(binding) is True
    assert router.bind(binding) is False
    assert router.bindings("x") == [binding]
    assert routed(router, "x", "k.1") == ("a",)
    assert router.unbind(to_queue("x", "a", "k.#")) is False
    assert router.unbind(binding) is True
    assert router.unbind(binding) is False
    assert routed(router, "x", "k.1") == ()


def test_bindings_that_differ_in_the_type_of_a_header_are_two() -> None:
    router = router_with(x="headers")
    assert router.bind(to_queue("x", "a", headers={"n": 1}))
    assert router.bind(to_queue("x", "a", headers={"n": True}))
    assert not router.bind(to_queue("x", "a", headers={"n": 1}))
    assert router.bind(to_queue("x", "a", headers={"n": float("nan"), "l": [{}]}))
    assert not router.bind(to_queue("x", "a", headers={"l": [{}], "n": float("nan")}))
    assert router.unbind(to_queue("x", "a", headers={"n": 1}))
    assert routed(router, "x", "", Message(headers={"n": 1})) == ()
    assert routed(router, "x", "", Message(headers={"n": True})) == ("a",)


def test_a_deleted_queue_takes_its_bindings_along() -> None:
    router = router_with(x="topic", y="fanout")
    gone = [to_queue("x", "a", "#"), to_queue("y", "a")]
    for binding in (*gone, to_queue("x", "b", "#")):
        router.bind(binding)
    assert router.queue_deleted("a") == gone
    assert router.queue_deleted("a") == []
    assert routed(router, "x", "k") == ("b",)
    assert routed(router, "y") == ()


def test_a_deleted_exchange_takes_the_bindings_from_and_to_it_along() -> None:
    router = router_with(x="fanout", y="fanout")
    inward, loop, outward = to_exchange("x", "y"), to_exchange("y", "y"), to_queue("y", "a")
    for binding in (inward, loop, outward, to_queue("x", "b")):
        router.bind(binding)
    assert router.delete_exchange("y") == [loop, outward, inward]
    assert routed(router, "x") == ("b",)
    assert list(router.exchanges()) == ["x"]
    router.declare_exchange("y", ExchangeConfig(kind="fanout"))
    assert routed(router, "y") == ()
    assert router.queue_deleted("a") == []


def test_redeclaring() -> None:
    router = router_with(x="topic")
    assert router.declare_exchange("x", ExchangeConfig(kind="topic")) is False
    with pytest.raises(AlreadyExists, match="'x' exists with kind 'topic', not 'direct'"):
        router.declare_exchange("x", ExchangeConfig(kind="direct"))
    with pytest.raises(AlreadyExists, match="'x' exists with alternate None, not 'y'"):
        router.declare_exchange("x", ExchangeConfig(kind="topic", alternate="y"))


def test_the_cache_of_routes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "ROUTES_CACHED_MAX", 3)
    router = router_with(x="fanout")
    router.bind(to_queue("x", "a"))
    for number in range(20):
        assert router.route("x", Message(key=str(number))) == ("a",)
        assert len(router._routes) <= 3


# Errors --------------------------------------------------------------------------------------------------


def test_unknown_names() -> None:
    router = router_with(x="direct")
    for call in (
        lambda: router.route("nowhere", NOTHING),
        lambda: router.route_batch("nowhere", Meta(1), 1),
        lambda: router.delete_exchange("nowhere"),
        lambda: router.bindings("nowhere"),
        lambda: router.bind(to_queue("nowhere", "a")),
        lambda: router.unbind(to_queue("nowhere", "a")),
        lambda: router.bind(to_exchange("x", "nowhere")),
        lambda: router.bind(to_queue("x", "nowhere")),
    ):
        with pytest.raises(NotFound, match=r"there is no (exchange|queue) 'nowhere'"):
            call()


def test_the_default_exchange_is_not_to_be_changed() -> None:
    router = router_with(x="direct")
    for call in (
        lambda: router.declare_exchange("", ExchangeConfig()),
        lambda: router.delete_exchange(""),
        lambda: router.bind(to_queue("", "a")),
        lambda: router.unbind(to_queue("", "a")),
    ):
        with pytest.raises(Forbidden, match="the default exchange ''"):
            call()
    with pytest.raises(InvalidArgument, match="target of a binding"):
        router.bind(to_exchange("x", ""))


@pytest.mark.parametrize(
    ("kind", "pattern", "says"),
    [
        ("topic", "a.b*", "has the word 'b\\*'"),
        ("topic", "a.##", "has the word '##'"),
        ("topic", "a" * 256, "256 characters; the limit is 255"),
        ("direct", "a" * 256, "256 characters; the limit is 255"),
        ("fanout", "a" * 256, "256 characters; the limit is 255"),
        ("headers", "a" * 256, "256 characters; the limit is 255"),
        ("mqtt", "", "may not be empty"),
        ("mqtt", "a" * 256, "256 characters; the limit is 255"),
        ("mqtt", "a/#/b", "'#' that is not the whole last level"),
        ("mqtt", "a/b#", "'#' that is not the whole last level"),
        ("mqtt", "#/", "'#' that is not the whole last level"),
        ("mqtt", "a/b+/c", "has the level 'b\\+'"),
        ("mqtt", "a\x00", "null character"),
        ("direct", 5, "must be a string, not 5"),
    ],
)
def test_patterns_that_cannot_be(kind: ExchangeKind, pattern: Any, says: str) -> None:
    router = router_with(x=kind)
    with pytest.raises(InvalidArgument, match=says):
        router.bind(to_queue("x", "a", pattern))
    assert router.bindings("x") == []
    assert router.queue_deleted("a") == []


@pytest.mark.parametrize("kind", ["topic", "direct", "fanout", "headers", "mqtt"])
def test_the_longest_pattern(kind: ExchangeKind) -> None:
    assert router_with(x=kind).bind(to_queue("x", "a", "a" * 255))


def test_a_filter_that_does_not_parse_is_not_bound() -> None:
    router = router_with(x="filter")
    with pytest.raises(InvalidFilter, match="expected a value"):
        router.bind(to_queue("x", "a", "n = "))
    assert router.bindings("x") == []


@pytest.mark.parametrize(
    "rest", [{"target_kind": "topic"}, {"match": "some"}, {"headers": {"n": object()}}, {"headers": {"n": 2**63}}]
)
def test_other_arguments_that_cannot_be(rest: dict[str, Any]) -> None:
    router = router_with(x="headers")
    with pytest.raises(InvalidArgument):
        router.bind(to_queue("x", "a", **rest))
    if "headers" in rest:
        with pytest.raises(InvalidArgument):
            router.unbind(to_queue("x", "a", **rest))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("x" * 256, ExchangeConfig()),
        ("a\x00", ExchangeConfig()),
        ("x", ExchangeConfig(alternate="")),
        ("x", ExchangeConfig(kind="unknown")),  # type: ignore[arg-type]
    ],
)
def test_exchanges_that_cannot_be(name: str, config: ExchangeConfig) -> None:
    router = router_with()
    with pytest.raises(InvalidArgument):
        router.declare_exchange(name, config)
    assert router.exchanges() == {}


# In steps ------------------------------------------------------------------------------------------------

LONG = 10_000
"""Characters of a header that a LIKE goes through."""


def stops(steps: Steps[Any]) -> tuple[int, Any]:
    """How often steps stop, and what they come to."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def bound(kind: ExchangeKind, patterns: Sequence[str]) -> Router:
    router = Router(lambda _: True)
    router.declare_exchange("x", ExchangeConfig(kind=kind))
    for number, pattern in enumerate(patterns):
        router.bind(to_queue("x", f"q{number}", pattern))
    return router


def test_routing_through_costly_conditions_stops_after_each_slice() -> None:
    conditions = [f"text LIKE '%a_b%' OR text LIKE '%{number}_c%'" for number in range(20)]
    router = bound("filter", [*conditions, "TRUE"])
    message = Message(headers={"text": "a" * LONG})
    assert stops(router.routing("x", message, Budget())) == (20 * 2 * LONG // SLICE_WORK, ("q20",))
    columns = Meta(3, headers=[message.headers] * 3)
    count, routed = stops(router.routing_batch("x", columns, 3, Budget()))
    assert (count, routed) == (3 * 20 * 2 * LONG // SLICE_WORK, Routed({"q20": [0, 1, 2]}, []))


def test_routing_through_many_headers_bindings_stops_after_each_slice() -> None:
    router = Router(lambda _: True)
    router.declare_exchange("x", ExchangeConfig(kind="headers"))
    for number in range(2 * SLICE_WORK // MESSAGE_WORK + 2):
        router.bind(to_queue("x", f"q{number}", headers={"a": number}))
    assert stops(router.routing("x", Message(headers={"a": 7}), Budget())) == (2, ("q7",))


@pytest.mark.parametrize(("kind", "separator", "wildcard"), [("topic", ".", "*"), ("mqtt", "/", "+")])
def test_routing_through_many_patterns_stops_after_each_slice(
    kind: ExchangeKind, separator: str, wildcard: str
) -> None:
    patterns = [separator.join(wildcard if number >> bit & 1 else "a" for bit in range(11)) for number in range(2048)]
    router = bound(kind, patterns)
    with patch.object(work, "SLICE_WORK", 100 * MESSAGE_WORK):
        count, queues = stops(router.routing("x", Message(key=separator.join("a" * 11)), Budget()))
        assert len(queues) == 2048
        assert count >= 20
        again, _ = stops(router.routing("x", Message(key=separator.join("a" * 11)), Budget()))
        assert again == 0  # it is known by now


def test_bindings_may_change_at_a_stop() -> None:
    router = bound("filter", [f"a = {number}" for number in range(50)])
    router.declare_exchange("further", ExchangeConfig(kind="fanout"))
    router.bind(to_exchange("x", "further", "TRUE"))
    with patch.object(work, "SLICE_WORK", 10 * PREDICATE_WORK):
        steps = router.routing("x", Message(headers={"a": 49}), Budget())
        next(steps)
        router.unbind(to_queue("x", "q30", "a = 30"))
        router.bind(to_queue("x", "new", "a = 49"))
        router.delete_exchange("further")
        assert stops(steps)[1] in (("q49",), ("new", "q49"))


def test_a_route_that_was_found_while_bindings_changed_is_not_kept() -> None:
    router = bound("topic", ["#.a", "*.a", "a.#", "a.*"])
    with patch.object(work, "SLICE_WORK", 1):
        steps = router.routing("x", Message(key="a.a"), Budget())
        next(steps)
        router.bind(to_queue("x", "new", "#"))
        stops(steps)
    assert router.route("x", Message(key="a.a")) == ("new", "q0", "q1", "q2", "q3")
