"""Filters as Spark columns: the same answer as the Python closures on every input, true, false and unknown told apart.

Conditions and messages are generated; one Spark job answers all pairs of many of each. More of them with
`PENSTOCK_COLUMN_ROUNDS=50 ./penstock test tests/spark/filters/test_columns.py`.
"""

from __future__ import annotations

import datetime as dt
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.core import filters
from penstock.core.filters import Filter, parse
from penstock.core.filters.syntax_tree import Not
from penstock.model import Message
from penstock.model.errors import InvalidFilter
from penstock.spark.filters.columns import filter_column
from tests.spark.generated import drawn, frame_of
from tests.unit.core.filters import test_filters as plain
from tests.unit.core.filters.filter_text import to_text

ROUNDS = int(os.environ.get("PENSTOCK_COLUMN_ROUNDS", "1"))
CONDITIONS = 150
MESSAGES = 60

LOWEST, HIGHEST = plain.LOWEST, plain.HIGHEST
EDGES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, LOWEST, HIGHEST, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, -(2**62), 0.0, -0.0, 0.5,
    2.0, 2.5, -1.5, 1e308, -1e308, 5e-324, 9007199254740992.0, 9223372036854775808.0, math.inf, -math.inf, math.nan,
    "", "a", "b", "ab", "A", "1", "true", "%", "_", "\\", "'", "a\nb", "a\n", "ab\n", "é", "e\u0301", "\uffff",
    "\U00010000", "ß",
    "\x00",
    b"", b"a", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), [], [1], {}, {"a": 1},
]  # fmt: skip
edge_messages = st.builds(
    Message,
    headers=st.one_of(st.none(), st.dictionaries(plain.names, st.sampled_from(EDGES), max_size=7)),
    key=st.sampled_from([None, "", "a", "\U00010000"]),
    partition=st.sampled_from([None, "a", "ab"]),
    content_type=st.sampled_from([None, "a"]),
    correlation_id=st.sampled_from([None, "b"]),
    trace_id=st.sampled_from([None, ""]),
    dedup_id=st.sampled_from([None, "%"]),
    priority=st.sampled_from([0, 1, 3, 255]),
)


MODES = {
    "compiled": {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"},
    "interpreted": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
}
"""Spark evaluates a column by Java that it compiles, or by itself where that fails: two programs, one answer."""


@contextmanager
def configured(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.set(name, old or "")


def closure_truth(condition: Filter, inverse: Filter, message: Message) -> bool | None:
    """Unknown is what neither matches nor matches negated."""
    if condition.matches(message):
        return True
    return False if inverse.matches(message) else None


def check(spark: SparkSession, conditions: Sequence[Filter], messages: Sequence[Message]) -> Counter[bool | None]:
    """Hold Spark to the closures, in both modes, with one job for all pairs; how often each answer came."""
    answers = F.array(*map(filter_column, conditions)).alias("answers")
    frame = frame_of(spark, messages).select("number", answers)
    wrong = []
    seen: Counter[bool | None] = Counter()
    inverses = [Filter("inverse", Not(condition.ast)) for condition in conditions]
    for mode, values in MODES.items():
        with configured(spark, values):
            rows = frame.collect()
        assert len(rows) == len(messages)
        for row in rows:
            message = messages[row["number"]]
            for condition, inverse, truth in zip(conditions, inverses, row["answers"], strict=True):
                expected = closure_truth(condition, inverse, message)
                seen[truth] += 1
                if truth is not expected:
                    wrong.append((to_text(condition.ast), f"{mode}: {truth}, the closure: {expected}, of {message}"))
    assert not wrong, f"{len(wrong)} answers differ, for example: {min(wrong, key=lambda one: len(one[0]))}"
    return seen


def parsed(*texts: str) -> list[Filter]:
    return [parse(text) for text in texts]


@pytest.mark.parametrize("start", range(ROUNDS))
def test_generated_conditions_on_generated_messages(spark: SparkSession, start: int) -> None:
    conditions = [Filter("generated", ast) for ast in drawn(plain.conditions, CONDITIONS, start)]
    half = MESSAGES // 2
    messages = drawn(plain.messages, half, start) + drawn(edge_messages, half, start)
    seen = check(spark, conditions, messages)
    assert min(seen[True], seen[False], seen[None]) > CONDITIONS, "the generated pairs are of all sorts"


def test_every_pair_of_values_under_every_operator(spark: SparkSession) -> None:
    messages = [Message(headers={"a": left, "b": right}) for left in EDGES for right in EDGES]
    conditions = parsed(
        "a = b",
        "a <> b",
        "a < b",
        "a <= b",
        "a > b",
        "a >= b",
        "a BETWEEN b AND 2",
        "2 NOT BETWEEN a AND b",
        "a + b IS NULL",
        "a - b IS NULL",
        "a * b IS NULL",
        "a / b IS NULL",
        "-a IS NULL",
        "+a IS NOT NULL",
        "a + b > 0",
        "a - b = 0",
        "a * b >= 9007199254740992",
        "a / b < 0.5",
        "-a = b",
        "a - b = -(b - a)",
        "(a + b) * 2 > a",
        "a AND b",
        "a OR NOT b",
    )
    check(spark, conditions, messages)


def test_every_value_against_literals_lists_and_patterns(spark: SparkSession) -> None:
    literals = [
        "0",
        "1",
        "-1",
        "2.5",
        "-0.0",
        "9007199254740993",
        "9007199254740992.0",
        str(LOWEST),
        str(HIGHEST),
        "1e308",
        "'a'",
        "''",
        "'\uffff'",
        "TRUE",
        "FALSE",
    ]
    texts = [f"a {operator} {literal}" for operator in ("=", "<>", "<", ">=") for literal in literals]
    texts += [
        "a IN (1, 2)",
        "a NOT IN (1, 2)",
        "a IN (1, 2.5)",
        "a IN (0.0)",
        "a IN (-0.0, 3)",
        "a IN (9007199254740993)",
        "a IN (9007199254740992.0)",
        "a IN ('a', '')",
        "a NOT IN ('é')",
        "a IN (TRUE)",
        "a NOT IN (FALSE, TRUE)",
        f"a IN ({','.join('0123456789' * (filters.IN_ITEMS_MAX // 10))})",
        f"a IN ({','.join(f'{number}.' for number in range(800))})",
        f"a NOT IN ({', '.join(map(repr, map(str, range(500))))})",
        "a LIKE '%'",
        "a LIKE ''",
        "a LIKE '_'",
        "a LIKE 'a%'",
        "a LIKE '%b'",
        "a LIKE 'a_b'",
        "a NOT LIKE '_%_'",
        "a LIKE '\\%'",
        "a LIKE '!%' ESCAPE '!'",
        "a LIKE 'e_'",
        "a LIKE '\U00010000'",
        "$key LIKE '_'",
        "a IS NULL",
        "a IS NOT NULL",
        "a",
        "NOT a",
        "a / 0 IS NULL",
        "a / -0.0 IS NULL",
        "missing IS NULL",
    ]
    messages = [Message(headers={"a": value}, key="\U00010000") for value in EDGES]
    check(spark, parsed(*texts), [*messages, Message(), Message(headers={}), Message(headers={"A": 1})])


def cases_of(test: Any) -> list[Any]:
    """What a test is parametrized with."""
    cases: list[Any] = test.pytestmark[0].args[1]
    return cases


def test_the_documented_cases(spark: SparkSession) -> None:
    """Those that the closures are held to one by one."""
    cases = cases_of(plain.test_mixed_kinds)
    check(spark, parsed(*{text for text, _, _ in cases}), [Message(headers={"a": value}) for _, value, _ in cases])
    patterns = cases_of(plain.test_like)
    texts = {text for _, yes, no in patterns for text in (*yes, *no)}
    check(
        spark,
        parsed(*(f"a LIKE '{pattern}'" for pattern, _, _ in patterns)),
        [Message(headers={"a": t}) for t in texts],
    )
    escapes = cases_of(plain.test_like_escape)
    both = [Message(headers={"a": text}) for _, *pair in escapes for text in pair]
    check(spark, parsed(*(condition for condition, _, _ in escapes)), both)


@pytest.mark.parametrize(
    "text",
    [
        "NOT " * 62 + "a",
        "-" * 62 + "a = 1",
        "a + " * 62 + "1 = 63",
        "a * " * 62 + "1.5 = 1.5",
        "(TRUE OR (FALSE AND " * 31 + "a" + "))" * 31,
        " AND ".join(["a=1"] * 450),
        " OR ".join(["a"] * 800),
        "1 = " + " + ".join(["(" + "+".join(["a"] * 30) + ")"] * 30),
    ],
    ids=lambda text: text[:12],
)
def test_the_deepest_and_the_longest(spark: SparkSession, text: str) -> None:
    check(spark, parsed(text), [Message(headers={"a": value}) for value in (None, True, 1, 1.0, 2**61, "a")])


def test_a_hostile_like_does_not_backtrack(spark: SparkSession) -> None:
    pattern = "%a" * (filters.LIKE_CHARACTERS_MAX // 2 - 1) + "%b"
    check(spark, parsed(f"a LIKE '{pattern}'"), [Message(headers={"a": "a" * 60_000})])


def test_a_bad_expression_is_refused_before_spark_sees_it(spark: SparkSession) -> None:
    with pytest.raises(InvalidFilter, match="expected a value"):
        filter_column("region =")


def test_where_keeps_what_matches_and_needs_its_columns(spark: SparkSession) -> None:
    text = "region = 'eu' AND $priority > 1"
    messages = [Message(headers={"region": "eu"}, priority=number) for number in range(3)] + [Message(priority=9)]
    assert [row["number"] for row in frame_of(spark, messages).where(filter_column(text)).collect()] == [2]
    with pytest.raises(AnalysisException, match="typed_headers"):
        spark.range(1).where(filter_column("region = 'eu'"))
