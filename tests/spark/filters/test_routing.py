"""Bindings as Spark columns: exactly what the broker's own index and router say, on generated patterns and messages."""

from __future__ import annotations

import datetime as dt
import math
import os
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import strategies as st
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from penstock.core.routing.router import Router
from penstock.model import Binding, ExchangeConfig, ExchangeKind, Message
from penstock.model.errors import InvalidArgument, InvalidFilter, NotFound
from penstock.spark.filters.routing import Routes, binding_column, route_column
from tests.spark.generated import drawn, frame_of
from tests.unit.core.routing import test_routing as plain

ROUNDS = int(os.environ.get("PENSTOCK_COLUMN_ROUNDS", "1"))

KEYS = [
    None, "", ".", "..", "a", "A", "b", "a.b", "a.b.c", "a..b", ".a", "a.", "é.ß", "a\n", "a\nb.c", "\U0001f600",
    "*", "#", "a.*", "a.#", "/", "//", "a/b", "a/b/c", "/a", "a/", "+", "a/+", "a/#", "$x", "$x/a", "a/$x", "$", "a+b",
    "(a)", "\\E", "a.b\\", "[a]", "a|b",
]  # fmt: skip


def answers(spark: SparkSession, columns: Sequence[Column], messages: Sequence[Message]) -> list[list[bool]]:
    """By message, what each column says."""
    rows = frame_of(spark, messages).select("number", F.array(*columns).alias("answers")).collect()
    return [row["answers"] for row in sorted(rows, key=lambda row: row["number"])]


def check_bindings(
    spark: SparkSession, kind: ExchangeKind, bindings: Sequence[Binding], messages: Sequence[Message]
) -> None:
    """Each binding alone on an exchange of its own."""
    found = answers(spark, [binding_column(kind, binding) for binding in bindings], messages)
    wrong, matches = [], 0
    for place, binding in enumerate(bindings):
        router = Router(lambda name: True)
        router.declare_exchange("x", ExchangeConfig(kind=kind))
        router.bind(binding)
        for message, row in zip(messages, found, strict=True):
            expected = router.route("x", message) == ("q",)
            matches += expected
            if row[place] is not expected:
                wrong.append((binding, message, row[place]))
    assert not wrong, f"{len(wrong)} answers differ, for example {min(wrong, key=lambda one: len(repr(one)))}"
    assert matches, "something matches"


def bound(patterns: Sequence[str]) -> list[Binding]:
    return [Binding(exchange="x", target="q", pattern=pattern) for pattern in dict.fromkeys(patterns)]


def keyed(keys: Sequence[str | None]) -> list[Message]:
    return [Message(key=key) for key in dict.fromkeys([*keys, *KEYS])]


def test_direct_and_fanout(spark: SparkSession) -> None:
    check_bindings(spark, "direct", bound([key or "" for key in KEYS]), keyed([]))
    check_bindings(spark, "fanout", bound(["", "a"]), keyed([]))


@pytest.mark.parametrize("start", range(ROUNDS))
def test_topic_patterns(spark: SparkSession, start: int) -> None:
    own = ["", "#", "*", "#.#", "*.*", "#.*", "a.#.b", "a\n", "é.*", "\U0001f600", "(a)", "a|b", "\\E", "a+b", "[a].#"]
    patterns = [*own, *drawn(plain.topic_patterns, 80, start)]
    check_bindings(spark, "topic", bound(patterns), keyed(drawn(plain.topic_keys, 200, start)))


@pytest.mark.parametrize("start", range(ROUNDS))
def test_mqtt_patterns(spark: SparkSession, start: int) -> None:
    own = ["#", "+", "+/#", "/#", "/", "+/+", "$x/#", "$x/+", "a/+/#", "a\n", "é", "(a)", "a|b", "\\E", "$", "a.b"]
    patterns = [*own, *drawn(plain.mqtt_patterns, 80, start)]
    check_bindings(spark, "mqtt", bound(patterns), keyed(drawn(plain.mqtt_topics, 200, start)))


def test_a_hostile_topic_pattern_does_not_backtrack(spark: SparkSession) -> None:
    check_bindings(
        spark, "topic", bound([".".join(["#.a"] * 60), "#." * 100 + "b", "#"]), keyed(["a." * 120 + "a", "a." * 126])
    )


NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
VALUES: list[Any] = [
    None, True, False, 0, 1, 1.0, -0.0, 2**53, 2**53 + 1, 9007199254740992.0, 2**63 - 1, -(2**63),
    9223372036854775808.0, 1.5, math.inf, math.nan, "", "1", "a", "é", b"", b"a", b"1", NOON,
    NOON.astimezone(dt.timezone(dt.timedelta(hours=2))),
    NOON.replace(microsecond=1), [], [1], [1.0], [True], [math.nan], ["a", [b"a", NOON]], {}, {"a": 1},
    {"a": 1.0}, {"b": 1},
]  # fmt: skip


def test_headers_of_every_pair_of_values(spark: SparkSession) -> None:
    """A binding that asks for one header, against messages that have it with each value."""
    bindings = [Binding(exchange="x", target="q", headers={"a": value}) for value in VALUES]
    messages = [Message(headers={"a": stored(value)}) for value in VALUES]
    check_bindings(spark, "headers", bindings, [*messages, Message(), Message(headers={"A": 1})])


def test_headers_all_and_any(spark: SparkSession) -> None:
    asked: list[dict[str, Any] | None] = [
        None,
        {},
        {"a": 1},
        {"a": 1, "b": None},
        {"a": 1, "b": "x", "c": True},
        {"x-a": 1},
        {"x-a": 1, "a": 1},
        {"": 1},
    ]
    bindings = [
        Binding(exchange="x", target="q", headers=one, match=match) for one in asked for match in ("all", "any")
    ]
    sets = st.dictionaries(st.sampled_from(["a", "b", "c", "x-a", ""]), st.sampled_from([None, 1, 2, "x", True]))
    check_bindings(spark, "headers", bindings, [Message(headers=one) for one in drawn(sets, 80, 1)])


def stored(value: Any) -> Any:
    """As the broker has it after storing: times are in UTC."""
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value


def test_filters(spark: SparkSession) -> None:
    messages = [Message(headers={"n": value}, priority=number) for number, value in enumerate([None, 1, 1.5, "1"])]
    check_bindings(spark, "filter", bound(["n = 1", "n IS NULL", "$priority > 1 OR n > 1", "TRUE"]), messages)


# The whole way -------------------------------------------------------------------------------------------

kinds = st.sampled_from(get_args(ExchangeKind))
graphs = st.tuples(
    st.tuples(kinds, kinds, kinds),
    st.tuples(*[st.sampled_from([None, "x", "y", "z", "nowhere"])] * 3),
    st.lists(plain.bindings, max_size=10),
)


@pytest.mark.parametrize("start", range(ROUNDS))
def test_from_an_exchange_through_others_to_a_queue(spark: SparkSession, start: int) -> None:
    """Bound exchanges, cycles and alternates: as the router walks them."""
    messages = drawn(plain.some_messages, 40, start)
    columns: list[Column] = []
    expected: list[list[bool]] = []
    for chosen, alternates, wanted in drawn(graphs, 60, start):
        router, routes = made(chosen, alternates, wanted)
        for queue in ("a", "b"):
            columns.append(route_column(routes, "x", queue))
            expected.append([queue in router.route("x", one) for one in messages])
    found = answers(spark, columns, messages)
    assert [[row[place] for row in found] for place in range(len(columns))] == expected
    assert sum(map(sum, expected)) > len(columns), "messages arrive"


def made(
    chosen: Sequence[ExchangeKind], alternates: Sequence[str | None], wanted: Sequence[Binding]
) -> tuple[Router, Routes]:
    router = Router(lambda name: name in "ab")
    for name, kind, alternate in zip("xyz", chosen, alternates, strict=True):
        router.declare_exchange(name, ExchangeConfig(kind=kind, alternate=alternate))
    for binding in wanted:
        try:
            router.bind(binding)
        except (InvalidArgument, InvalidFilter, NotFound):
            continue  # not for this kind, or to nowhere
    return router, Routes(router.exchanges(), {name: router.bindings(name) for name in "xyz"})


def test_what_cannot_be_routed_is_told(spark: SparkSession) -> None:
    routes = Routes({"in": ExchangeConfig(internal=True), "x": ExchangeConfig()}, {"in": [], "x": []})
    with pytest.raises(NotFound, match="no exchange 'y'"):
        route_column(routes, "y", "q")
    with pytest.raises(InvalidArgument, match="'in' is internal"):
        route_column(routes, "in", "q")
    with pytest.raises(InvalidArgument, match="whole words"):
        binding_column("topic", Binding(exchange="x", target="q", pattern="a*"))
    with pytest.raises(InvalidArgument, match="may not be empty"):
        binding_column("mqtt", Binding(exchange="x", target="q"))
    with pytest.raises(InvalidFilter):
        binding_column("filter", Binding(exchange="x", target="q", pattern="n ="))
    assert answers(spark, [route_column(routes, "x", "q")], [Message()]) == [[False]]
