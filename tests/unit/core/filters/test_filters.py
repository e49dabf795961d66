"""Filters: the grammar, the three-valued semantics of docs/filters.md, the limits, and hostile text.

The heart is a plain evaluator of the AST, written from the documentation, that the compiled closures must agree
with on generated conditions and headers. A second back end can be held to the same `expected_truth`.
"""

from __future__ import annotations

import datetime as dt
import enum
import math
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import Meta
from penstock.core import filters
from penstock.core.filters import Filter, parse
from penstock.core.filters.syntax_tree import (
    PROPERTY_NAMES,
    And,
    Arithmetic,
    Between,
    Boolean,
    Compare,
    Condition,
    Float,
    Header,
    In,
    Integer,
    IsNull,
    Like,
    Not,
    Or,
    Property,
    Signed,
    Text,
    Truth,
    Value,
)
from penstock.model import Message
from penstock.model.errors import InvalidFilter
from tests.unit.core.filters.filter_text import to_text

NOW = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def holds(text: str, **headers: Any) -> bool:
    return parse(text).matches(Message(headers=headers))


def truth(text: str, **headers: Any) -> bool | None:
    """True, false or unknown, told apart from outside: unknown is what neither matches nor matches negated."""
    if holds(text, **headers):
        return True
    return False if holds(f"NOT ({text})", **headers) else None


def refused(text: str) -> InvalidFilter:
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    return caught.value


# Grammar -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a OR b AND c", "a OR (b AND c)"),
        ("NOT a AND b", "(NOT a) AND b"),
        ("NOT a = 1 OR b", "(NOT (a = 1)) OR b"),
        ("a + b * c = 1", "(a + (b * c)) = 1"),
        ("a - b - c = 1", "((a - b) - c) = 1"),
        ("a / b / c = 1", "((a / b) / c) = 1"),
        ("-a * b = 1", "(-(a)) * b = 1"),
        ("a BETWEEN 1 AND 2 AND b", "(a BETWEEN 1 AND 2) AND b"),
        ("a BETWEEN b + 1 AND c * 2 OR d", "(a BETWEEN (b + 1) AND (c * 2)) OR d"),
        ("NOT a IN (1) AND b", "(NOT (a IN (1))) AND b"),
        ("a IS NULL OR b IS NOT NULL", "(a IS NULL) OR (b IS NOT NULL)"),
        ("a + 1 < b - 1", "(a + 1) < (b - 1)"),
        ("a != 1", "a <> 1"),
        ("A aNd b Or nOt c", "A AND b OR NOT c"),
        ("a--1=2", "a - -1 = 2"),
    ],
)
def test_precedence(text: str, same: str) -> None:
    assert parse(text).ast == parse(same).ast


@pytest.mark.parametrize(
    ("text", "ast"),
    [
        ("a = 'it''s'", Compare("=", Header("a"), Text("it's"))),
        ("a = ''", Compare("=", Header("a"), Text(""))),
        ("'a' = b", Compare("=", Text("a"), Header("b"))),
        ('"content-type" = 1', Compare("=", Header("content-type"), Integer(1))),
        ('"a ""b""" = 1', Compare("=", Header('a "b"'), Integer(1))),
        ("order.region.2 = 1", Compare("=", Header("order.region.2"), Integer(1))),
        ("größe = 1", Compare("=", Header("größe"), Integer(1))),
        ("$priority > 3", Compare(">", Property("priority"), Integer(3))),
        ('"$priority" > 3', Compare(">", Header("$priority"), Integer(3))),
        ('"and" = 1', Compare("=", Header("and"), Integer(1))),
        ("android = 1", Compare("=", Header("android"), Integer(1))),
        ("and.x = 1", Compare("=", Header("and.x"), Integer(1))),
        ("a = -5", Compare("=", Header("a"), Integer(-5))),
        ("a = +5", Compare("=", Header("a"), Integer(5))),
        ("a = -(5)", Compare("=", Header("a"), Signed("-", Integer(5)))),
        ("a = - -5", Compare("=", Header("a"), Signed("-", Integer(-5)))),
        (f"a = {LOWEST}", Compare("=", Header("a"), Integer(LOWEST))),
        (f"a = {HIGHEST}", Compare("=", Header("a"), Integer(HIGHEST))),
        ("a = 1.5", Compare("=", Header("a"), Float(1.5))),
        ("a = .5", Compare("=", Header("a"), Float(0.5))),
        ("a = 2.", Compare("=", Header("a"), Float(2.0))),
        ("a = 1e3", Compare("=", Header("a"), Float(1000.0))),
        ("a = -1.5E-2", Compare("=", Header("a"), Float(-0.015))),
        ("TRUE", Truth(Boolean(True))),
        ("((urgent))", Truth(Header("urgent"))),
        ("a IN (1, -2.5)", In(Header("a"), (Integer(1), Float(-2.5)))),
        ("a NOT IN (TRUE)", In(Header("a"), (Boolean(True),), True)),
        ("a NOT LIKE 'b!%' ESCAPE '!'", Like(Header("a"), "b!%", "!", True)),
        ("a NOT BETWEEN 1 AND 2", Between(Header("a"), Integer(1), Integer(2), True)),
        ("a AND b AND c", And((Truth(Header("a")), Truth(Header("b")), Truth(Header("c"))))),
        ("(a AND b) AND c", And((And((Truth(Header("a")), Truth(Header("b")))), Truth(Header("c"))))),
        (" \t\r\n a\n=\n1 ", Compare("=", Header("a"), Integer(1))),
    ],
)
def test_what_a_text_means(text: str, ast: Condition) -> None:
    assert msgspec.json.encode(parse(text).ast) == msgspec.json.encode(ast)


def test_letters_that_only_look_like_keywords_are_names() -> None:
    # With a case-insensitive regex the dotless i and the long s would read as I and S.
    assert parse("\u0131n = 1").ast == Compare("=", Header("\u0131n"), Integer(1))
    assert parse("i\u017f = 1").ast == Compare("=", Header("i\u017f"), Integer(1))


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "the filter is empty"),
        ("   ", 4, "the filter is empty"),
        ("a = ", 5, "the filter ends too early; expected a value"),
        ("a = = 1", 5, "unexpected '='; expected a value"),
        ("a = b = c", 7, "expected AND, OR or the end"),
        ("a NOT 5", 7, "expected BETWEEN, IN or LIKE"),
        ("a IS 5", 6, "expected NOT or NULL"),
        ("a LIKE b", 8, "expected a string in single quotes"),
        ("a IN (b)", 7, "a number or a string"),
        ("a IN ()", 7, "a number or a string"),
        ("a = NULL", 5, "unexpected 'NULL'"),
        ("a ; b", 3, "unexpected ';'"),
        ("(a = 1", 7, "')'"),
        ("a = 1)", 6, "unexpected ')'"),
        ("a = 'b", 5, "string that begins here is not closed"),
        ('a = "b', 5, "quoted name that begins here is not closed"),
        ('a = ""', 5, "single quotes"),
        ("5", 1, "a condition was expected"),
        ("a AND 'b'", 7, "a condition was expected"),
        ("NOT (a + 1)", 6, "a condition was expected"),
        ("(a = 1) + 2 = 3", 2, "a value was expected"),
        ("1 = (a AND b)", 6, "a value was expected"),
        ("$size > 1", 1, "unknown property '$size'; there are $partition, $key"),
        ("a > 9223372036854775808", 5, "does not fit 64 bits"),
        ("a > -9223372036854775809", 6, "does not fit 64 bits"),
        ("a > 1e999", 5, "too large for a double"),
        ("a IN (1, 'x')", 10, "began with a number and this is a string"),
        ("a IN (1, TRUE)", 10, "began with a number and this is a boolean"),
        ("a LIKE 'b' ESCAPE ''", 19, "ESCAPE takes one character, not 0"),
        ("a LIKE 'b' ESCAPE '!!'", 19, "ESCAPE takes one character, not 2"),
        ("a LIKE 'b!' ESCAPE '!'", 8, "must be followed by"),
        ("a LIKE 'b!c' ESCAPE '!'", 8, "must be followed by"),
        ("a = '\ud800'", 6, "lone surrogate"),
        ("a = 5x", 6, "unexpected 'x'"),
    ],
)
def test_an_error_names_the_column_and_what_was_expected(text: str, column: int, says: str) -> None:
    error = refused(text)
    assert says in str(error)
    assert error.column == column
    _, line, caret = str(error).split("\n")
    assert line == "  " + text.replace("\ud800", " ")
    assert caret.index("^") == len("  ") + column - 1


def test_an_error_on_a_later_line_shows_that_line() -> None:
    error = refused("a = 1\n  AND\tAND")
    assert str(error).endswith("\n    AND AND\n        ^ line 2, column 7")
    assert error.column == 13


def test_an_error_in_a_long_line_shows_the_part_around_it() -> None:
    error = refused("a = 1 AND " * 40 + "= OR " + "b OR " * 40 + "c")
    _, line, caret = str(error).split("\n")
    assert line.startswith("  …")
    assert line.endswith("…")
    assert len(line) <= 104
    assert line[caret.index("^")] == "="


@pytest.mark.parametrize("text", [None, 5, b"a = 1", ["a"]])
def test_only_a_string_is_a_filter(text: Any) -> None:
    assert "must be a string" in str(refused(text))


# Limits: at the value and one past it --------------------------------------------------------------------


def test_length_limit() -> None:
    text = "a = 1".ljust(filters.TEXT_CHARACTERS_MAX)
    assert parse(text).ast == parse("a = 1").ast
    assert "4097 characters; the limit is 4096" in str(refused(text + " "))


def test_list_limit() -> None:
    assert holds(f"a IN ({','.join('1' * filters.IN_ITEMS_MAX)})", a=1)
    error = refused(f"a IN ({','.join('1' * (filters.IN_ITEMS_MAX + 1))})")
    assert "1001 items; the limit is 1000" in str(error)
    assert error.column == len("a IN (") + 2 * filters.IN_ITEMS_MAX + 1


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("a", "a"),
        ("_", "x"),
        ("''", "'"),  # a doubled quote is one character of the pattern
        ("é", "é"),
    ],
)
def test_like_limit(written: str, value: str) -> None:
    most = filters.LIKE_CHARACTERS_MAX
    assert truth(f"a LIKE '{written * most}'", a=value * most) is True
    error = refused(f"b = 1 AND a NOT LIKE '{written * (most + 1)}'")
    assert "the LIKE pattern has 513 characters; the limit is 512" in str(error)
    assert error.column == len("b = 1 AND a NOT LIKE ") + 1


def test_an_escape_counts_towards_the_like_limit() -> None:
    half = filters.LIKE_CHARACTERS_MAX // 2
    assert truth(f"a LIKE '{'!%' * half}' ESCAPE '!'", a="%" * half) is True
    assert "513 characters" in str(refused(f"a LIKE '{'!%' * half}b' ESCAPE '!'"))


@pytest.mark.parametrize(
    ("before", "within", "after", "most"),
    [
        ("(", "a", ")", 64),
        ("NOT ", "a", "", 62),  # the bare header is two levels: a truth and a value
        ("-", "a = 1", "", 62),  # a comparison, its operand and 62 signs: 64
        ("a + ", "1 = 1", "", 62),
        ("NOT (", "a", ")", 62),
        ("(TRUE OR (FALSE AND ", "a", "))", 31),
    ],
)
def test_depth_limit(before: str, within: str, after: str, most: int) -> None:
    parse(before * most + within + after * most)
    assert "nested deeper than 64 levels" in str(refused(before * (most + 1) + within + after * (most + 1)))
    assert "nested deeper than 64 levels" in str(refused(before * 180 + within + after * 180))


def test_the_length_of_and_and_or_is_not_depth() -> None:
    assert holds(" AND ".join(["a=1"] * 400), a=1)
    assert holds(" OR ".join(["a=2"] * 400 + ["a=1"]), a=1)


def test_what_stands_side_by_side_is_not_depth() -> None:
    assert holds(" AND ".join(["(a=1)"] * 200), a=1)
    chain, signs = "1 + " * 30, "-" * 40 + "a"
    parse(f"b = {chain}{signs}")  # the last operand of a chain is one level below it
    assert "nested deeper" in str(refused(f"b = {signs} + {chain} 1"))  # the first one is below every operator


def test_the_cache_is_bounded_and_gives_the_same_object() -> None:
    assert parse("cached = 1") is parse("cached = 1")
    for number in range(filters.FILTERS_CACHED_MAX + 1):
        parse(f"a = {number}")
    assert filters.filter._parse.cache_info().currsize == filters.FILTERS_CACHED_MAX


# Three-valued logic --------------------------------------------------------------------------------------

WORDS = {True: "TRUE", False: "FALSE", None: "missing"}
TRUTHS = (True, False, None)


@pytest.mark.parametrize("left", TRUTHS)
@pytest.mark.parametrize("right", TRUTHS)
def test_truth_tables(left: bool | None, right: bool | None) -> None:
    both = False if left is False or right is False else None if left is None or right is None else True
    either = True if left is True or right is True else None if left is None or right is None else False
    assert truth(f"{WORDS[left]} AND {WORDS[right]}") is both
    assert truth(f"{WORDS[left]} OR {WORDS[right]}") is either
    assert truth(f"NOT {WORDS[left]}") is (None if left is None else not left)


def test_null_never_compares() -> None:
    for name in ("=", "<>", "<", "<=", ">", ">="):
        assert truth(f"missing {name} 1") is None
        assert truth(f"missing {name} missing") is None
        assert truth(f"missing {name} 'a'", missing=None) is None
    assert truth("missing IN (1)") is None
    assert truth("missing NOT IN (1)") is None
    assert truth("missing LIKE '%'") is None
    assert truth("missing NOT LIKE 'a'") is None
    assert truth("missing BETWEEN 1 AND 2") is None
    assert truth("missing + 1 = 1") is None
    assert truth("missing IS NULL") is True
    assert truth("missing IS NULL", missing=None) is True
    assert truth("missing IS NOT NULL") is False


def test_between_is_false_as_soon_as_one_side_is() -> None:
    assert truth("a BETWEEN 1 AND missing", a=0) is False
    assert truth("a BETWEEN 1 AND missing", a=1) is None
    assert truth("a NOT BETWEEN missing AND 3", a=4) is True
    assert [truth("a BETWEEN 1 AND 3", a=value) for value in (0, 1, 3, 4)] == [False, True, True, False]
    assert truth("a BETWEEN 3 AND 1", a=2) is False


# Kinds that meet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("a = '1'", 1, None),
        ("a <> 'x'", 1, None),
        ("a < 'x'", 1, None),
        ("a = 1", "1", None),
        ("a = 1", True, None),
        ("a = TRUE", 1, None),
        ("a = TRUE", True, True),
        ("a <> TRUE", False, True),
        ("a < TRUE", False, None),
        ("a >= TRUE", True, None),
        ("a BETWEEN FALSE AND TRUE", True, None),
        ("a", True, True),
        ("a", 1, None),
        ("a", "true", None),
        ("a = 1", 1.0, True),
        ("a = 1.0", 1, True),
        ("a > 1", 1.5, True),
        ("a = 9007199254740993", 9007199254740992, False),
        ("a = 9007199254740993", 9007199254740992.0, True),  # as doubles
        ("a = 9007199254740992.0", 9007199254740993, True),
        ("a IN (9007199254740993)", 9007199254740992.0, True),
        ("a IN (9007199254740992.0)", 9007199254740993, True),
        ("a IN (9007199254740993)", 9007199254740992, False),
        ("a IN (1, 2.5)", 2.5, True),
        ("a IN (1, 2.5)", 1.0, True),
        ("a NOT IN (1, 2.5)", 3, True),
        ("a IN (1)", True, None),
        ("a IN (1)", "1", None),
        ("a NOT IN ('1')", 1, None),
        ("a IN (TRUE)", True, True),
        ("a IN (TRUE)", 1, None),
        ("a < 'b'", "a", True),
        ("a < 'a'", "B", True),  # by code point
        ("a > '\uffff'", "\U00010000", True),  # by code point, not by UTF-16 unit
        ("a = math", math.nan, None),
        ("a = 1", math.nan, None),
        ("a <> 1.5", math.nan, None),
        ("a IS NULL", math.nan, True),
        ("a > 1e308", math.inf, True),
        ("a - a = 0", math.inf, None),
        ("a - a IS NULL", math.inf, True),
        ("a * 10 > 1e308", 1e308, True),
        ("a = 0", -0.0, True),
        ("a + 1 = 3", 2, True),
        ("a + 1 = 3", "2", None),
        ("a + 1 = 3", True, None),
        ("-a = -2", 2, True),
        ("+a = 2", 2, True),
        ("+a = '2'", "2", None),
        ("-a = 1", True, None),
        ("a / 2 = 1.5", 3, True),
        ("a / 2 = 1", 3, False),
        ("a / 0 = 1", 3, None),
        ("a / 0 IS NULL", 3, True),
        ("a / -0.0 IS NULL", 3, True),
        ("0 / a IS NULL", 0, True),
        ("a / 1 = 9007199254740992", 9007199254740993, True),  # doubles
        ("a + 1 IS NULL", HIGHEST, True),
        ("a - 1 IS NULL", LOWEST, True),
        ("-a IS NULL", LOWEST, True),
        ("a * 2 IS NULL", 2**62, True),
        ("a * 2 IS NOT NULL", -(2**62), True),
        ("a + 0 = 9223372036854775807", HIGHEST, True),
        ("a + 1.0 > 9e18", HIGHEST, True),
        ("a LIKE '1'", 1, None),
        ("10 < a", 11, True),
        ("10 < a", 9, False),
        ("10 >= a", 10, True),
        ("'b' > a", "a", True),
    ],
)
def test_mixed_kinds(text: str, value: Any, expected: bool | None) -> None:
    assert truth(text, a=value) is expected


@pytest.mark.parametrize("value", [b"a", NOW, [1], [], {}, {"b": 1}])
def test_a_header_that_is_no_scalar_is_only_there(value: Any) -> None:
    assert truth("a IS NOT NULL", a=value) is True
    for text in ("a = 1", "a <> 1", "a = 'a'", "a = a", "a", "a LIKE '%'", "a IN ('a')", "a + 1 IS NOT NULL", "a < 1"):
        assert truth(text, a=value) in (None, False)
        assert truth(text, a=value) is (False if "IS NOT" in text else None)


def test_a_subclass_is_its_base_type() -> None:
    class Color(enum.StrEnum):
        RED = "red"

    class Level(enum.IntEnum):
        HIGH = 3

    assert holds("a = 'red' AND a LIKE 'r%' AND a IN ('red')", a=Color.RED)
    assert holds("a = 3 AND a + 1 = 4 AND a IN (3) AND a > 2.5", a=Level.HIGH)
    assert parse("$key = 'red'").matches(Message(key=Color.RED))


def test_an_integer_nobody_checked_does_no_harm() -> None:
    assert holds("a > 1.5", a=10**400)
    assert truth("a + 1 IS NULL", a=10**400) is True
    assert truth("a IN (1.5)", a=-(10**400)) is False


# LIKE ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("abc", ["abc"], ["ab", "abcd", "ABC", ""]),
        ("", [""], ["a"]),
        ("%", ["", "a", "a\nb"], []),
        ("a%", ["a", "ab", "a\n"], ["", "ba"]),
        ("%a", ["a", "ba"], ["ab"]),
        ("%a%", ["a", "bab"], ["b"]),
        ("a_c", ["abc", "a\nc", "a\U0001f600c"], ["ac", "abbc"]),
        ("_", ["a"], ["", "ab"]),
        ("a%a", ["aa", "aba"], ["a"]),
        ("%ab%ba%", ["abba", "xabxbax"], ["aba"]),
        ("a.c", ["a.c"], ["abc"]),
        ("[a]%", ["[a]b"], ["a"]),
        ("a\\%", ["a\\", "a\\b"], ["a%"]),
        ("_%_", ["ab", "abc"], ["a"]),
        ("%_b", ["ab", "xab"], ["b"]),
    ],
)
def test_like(pattern: str, yes: list[str], no: list[str]) -> None:
    for text in yes:
        assert truth(f"a LIKE '{pattern}'", a=text) is True
        assert truth(f"a NOT LIKE '{pattern}'", a=text) is False
    for text in no:
        assert truth(f"a LIKE '{pattern}'", a=text) is False


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        (r"a LIKE 'x\%' ESCAPE '\'", "x%", "xy"),
        (r"a LIKE 'x\_%' ESCAPE '\'", "x_y", "xyy"),
        (r"a LIKE 'x\\' ESCAPE '\'", "x\\", "x\\\\"),
        ("a LIKE 'x%%' ESCAPE '%'", "x%", "xy"),
        ("a LIKE 'x''_' ESCAPE ''''", "x_", "xy"),
    ],
)
def test_like_escape(condition: str, yes: str, no: str) -> None:
    assert truth(condition, a=yes) is True
    assert truth(condition, a=no) is False


@settings(deadline=None)
@given(st.text("ab%_", max_size=8), st.text("ab\n", max_size=10))
def test_like_agrees_with_a_naive_matcher(pattern: str, text: str) -> None:
    assert truth(f"a LIKE '{pattern}'", a=text) is naive_like(pattern, text)


@given(st.text("ab_", min_size=1, max_size=6), st.integers(0, 400), st.text("abé\U0001f600", max_size=12))
def test_like_where_a_literal_run_misleads_again_and_again(part: str, misleading: int, text: str) -> None:
    """Past some misleading places of its longest run, all places of a part are looked at together."""
    text = "a" * misleading + text
    places = [text[start : start + len(part)] for start in range(len(text) - len(part) + 1)]
    found = any(naive_like(part, place) for place in places)
    assert truth(f"a LIKE '%{part}%'", a=text) is found
    assert truth(f"a LIKE '%{part}%{part}'", a=text + text) is (
        len(text) >= len(part) and naive_like(part, text[-len(part) :])
    )


def naive_like(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(naive_like(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and naive_like(pattern[1:], text[1:])


def test_a_hostile_like_does_not_backtrack() -> None:
    # A regular expression of these `.*a` would take longer than the universe is old.
    pattern = "%a" * (filters.LIKE_CHARACTERS_MAX // 2 - 1) + "%b"
    assert truth(f"a LIKE '{pattern}'", a="a" * 60_000) is False


# Properties, headers and columns -------------------------------------------------------------------------


def test_properties_are_read_from_the_message_and_no_header_stands_in() -> None:
    message = Message(
        partition="p",
        key="k",
        priority=7,
        content_type="c",
        correlation_id="o",
        trace_id="t",
        dedup_id="d",
        headers={"$key": "wrong", "key": "header"},
    )
    everything = (
        "$partition = 'p' AND $key = 'k' AND $priority = 7 AND $content_type = 'c' AND $correlation_id = 'o'"
        " AND $trace_id = 't' AND $dedup_id = 'd' AND key = 'header' AND \"$key\" = 'wrong'"
    )
    assert parse(everything).matches(message)
    assert parse(everything).names == {"headers", *PROPERTY_NAMES}
    assert not parse("$trace_id IS NOT NULL").matches(Message(headers={"trace_id": "x", "$trace_id": "x"}))
    assert parse("$priority = 0").matches(Message())


def test_headers_apart_from_the_other_fields() -> None:
    condition = parse("a = 1 AND $key = 'k'")
    assert condition.matches_with({"a": 1}, Message(key="k", headers={"a": 2}))
    assert not condition.matches_with(None, Message(key="k", headers={"a": 1}))


def test_columns() -> None:
    columns = Meta(3, key=["a", None, "c"], headers=[{"n": 1}, None, {"n": 3}], priority=[0, 5, 9])
    assert [parse("n >= 1 AND $key = 'c'").matches_at(columns, index) for index in range(3)] == [False, False, True]
    assert parse("n IS NULL").select(columns, range(3)) == [1]
    assert parse("$priority > 1").select(columns, [2, 0, 1]) == [2, 1]
    assert parse("$trace_id IS NULL").select(columns, range(3)) == [0, 1, 2]
    assert parse("$trace_id = 'x'").select(columns, range(3)) == []
    assert parse("TRUE").select(columns, range(1, 3)) == [1, 2]
    nothing = Meta(2)
    assert parse("$priority = 0 AND n IS NULL").select(nothing, range(2)) == [0, 1]
    assert parse("$priority = 0 AND n IS NULL").matches_at(nothing, 1)
    assert parse("n = 1 OR $priority = 1").select(Meta(2, priority=[0, 1]), range(2)) == [1]


def test_a_filter_is_a_value() -> None:
    first, second = parse("a  =  1"), parse("(a = 1)")
    assert first == second
    assert hash(first) == hash(second)
    assert first != parse("a = 1.0")
    assert first.text == "a  =  1"
    assert repr(first) == "Filter('a  =  1')"
    assert pickle.loads(pickle.dumps(first)) == first


# Generated conditions ------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "x-y", 'q"', "and", "größe"])
literals = st.one_of(
    st.text(st.sampled_from("ab'%_\\ \u00e9"), max_size=3).map(Text),
    st.one_of(st.integers(-3, 3), st.integers(LOWEST, HIGHEST), st.sampled_from([2**53 + 1, HIGHEST])).map(Integer),
    st.one_of(st.sampled_from([0.0, 0.5, -2.0, 1e300]), st.floats(allow_nan=False, allow_infinity=False)).map(Float),
    st.booleans().map(Boolean),
)
leaves = st.one_of(literals, names.map(Header), st.sampled_from(PROPERTY_NAMES).map(Property))
values: st.SearchStrategy[Value] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Signed, st.sampled_from("+-"), inner), st.builds(Arithmetic, st.sampled_from("+-*/"), inner, inner)
    ),
    max_leaves=4,
)
truths = st.builds(Truth, st.one_of(names.map(Header), st.booleans().map(Boolean)))
item_lists = st.one_of(
    st.lists(st.text("ab'", max_size=2).map(Text), min_size=1, max_size=4),
    st.lists(
        st.one_of(st.integers(-3, 3).map(Integer), st.sampled_from([0.5, 2.0]).map(Float)), min_size=1, max_size=4
    ),
    st.lists(st.booleans().map(Boolean), min_size=1, max_size=2),
).map(tuple)
predicates = st.one_of(
    truths,
    st.builds(Compare, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), values, values),
    st.builds(Between, values, values, values, st.booleans()),
    st.builds(In, values, item_lists, st.booleans()),
    st.builds(Like, values, st.text("ab%_'", max_size=4), st.sampled_from([None, "!"]), st.booleans()),
    st.builds(IsNull, values, st.booleans()),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(And),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(Or),
    ),
    max_leaves=6,
)
header_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(LOWEST, HIGHEST),
    st.floats(),
    st.text("ab'%_", max_size=3),
    st.sampled_from([b"a", NOW, [1], {"a": 1}]),
)
messages = st.builds(
    Message,
    headers=st.one_of(st.none(), st.dictionaries(names, header_values, max_size=7)),
    key=st.sampled_from([None, "a", "b"]),
    partition=st.sampled_from([None, "a"]),
    trace_id=st.sampled_from([None, ""]),
    priority=st.integers(0, 3),
)


@settings(deadline=None)
@given(conditions)
def test_printed_and_parsed_back_is_equal(ast: Condition) -> None:
    text = to_text(ast)
    if len(text) <= filters.TEXT_CHARACTERS_MAX:
        parsed = parse(text).ast
        assert msgspec.json.encode(parsed) == msgspec.json.encode(ast)


@settings(max_examples=500, deadline=None)
@given(conditions, st.lists(messages, min_size=1, max_size=3))
def test_closures_agree_with_the_documented_semantics(ast: Condition, batch: list[Message]) -> None:
    condition = Filter("generated", ast)
    expected = [expected_truth(ast, message) for message in batch]
    meta = Meta(
        len(batch),
        **{name: [getattr(message, name) for message in batch] for name in (*PROPERTY_NAMES, "headers")},
    )
    inverse = Filter("inverse", Not(ast))
    assert [condition.matches(message) for message in batch] == [truth is True for truth in expected]
    assert [inverse.matches(message) for message in batch] == [truth is False for truth in expected]
    assert [condition.matches_at(meta, index) for index in range(len(batch))] == [truth is True for truth in expected]
    assert condition.select(meta, range(len(batch))) == [index for index, truth in enumerate(expected) if truth is True]


def test_the_deepest_condition_prints_to_something_that_parses() -> None:
    ast: Condition = Truth(Header("a"))
    for _ in range(filters.DEPTH_MAX - 2):
        ast = Not(ast)
    assert parse(to_text(ast)).ast == ast


fragments = st.sampled_from(
    ["a", "b.c", '"x y"', "$key", "$", "'s'", "'", '"', "1", "1.5", "1e9", ".", "(", ")", ",", "=", "<>", "!=", "!",
     "<", "<=", "+", "-", "*", "/", "AND", "or", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS", "NULL", "TRUE",
     "FALSE", " ", "\n", "\x00", "é", "\ud800", "😀"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.text(), st.lists(fragments, max_size=60).map(" ".join), st.lists(fragments, max_size=60).map("".join))
)
def test_any_text_is_a_filter_or_invalid(text: str) -> None:
    try:
        condition = parse(text)
    except InvalidFilter as caught:
        column, shown = caught.column, str(caught)
    else:
        assert condition.matches(Message()) in (True, False)
        assert parse(to_text(condition.ast)).ast == condition.ast
        return
    assert 1 <= column <= len(text) + 1
    assert "^" in shown


@pytest.mark.parametrize("piece", ["(", "-", "NOT ", "a+", "a=(", "a IN (", "((-", "NOT(", "a OR(", "'", "1", "a ."])
def test_hostile_repetition_is_only_invalid(piece: str) -> None:
    refused((piece * filters.TEXT_CHARACTERS_MAX)[: filters.TEXT_CHARACTERS_MAX - 1])


# The documented semantics, plainly -----------------------------------------------------------------------


def expected_truth(node: Condition, message: Message) -> bool | None:
    """True, false or None for unknown."""
    match node:
        case Not(operand):
            return negated_if(True, expected_truth(operand, message))
        case And(parts) | Or(parts):
            found = [expected_truth(part, message) for part in parts]
            decisive = isinstance(node, Or)
            return (
                decisive if decisive in [t for t in found if t is not None] else None if None in found else not decisive
            )
        case Truth(value):
            result = expected_value(value, message)
            return result if isinstance(result, bool) else None
        case Compare(name, left, right):
            return compared(name, expected_value(left, message), expected_value(right, message))
        case Between(value, low, high, negated):
            both = And((Compare(">=", value, low), Compare("<=", value, high)))
            return negated_if(negated, expected_truth(both, message))
        case In(value, items, negated):
            any_of = Or(tuple(Compare("=", value, item) for item in items))
            return negated_if(negated, expected_truth(any_of, message))
        case Like(value, pattern, _, negated):
            text = expected_value(value, message)
            return negated_if(negated, naive_like(pattern, text)) if isinstance(text, str) else None
        case IsNull(value, negated):
            return (expected_value(value, message) is None) != negated


def negated_if(negated: bool, found: bool | None) -> bool | None:
    return found if found is None or not negated else not found


def kind_of(value: Any) -> str:
    return {bool: "boolean", int: "number", float: "number", str: "string"}.get(type(value), "other")


def compared(name: str, left: Any, right: Any) -> bool | None:
    kind = kind_of(left)
    if kind != kind_of(right) or kind == "other" or (kind == "boolean" and name not in ("=", "<>")):
        return None
    if kind == "number" and float in (type(left), type(right)):
        left, right = float(left), float(right)
    return bool(
        {
            "=": left == right,
            "<>": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[name]
    )


def expected_value(node: Value, message: Message) -> Any:
    match node:
        case Header(name):
            return without_nan((message.headers or {}).get(name))
        case Property(name):
            return getattr(message, name)
        case Signed(sign, operand):
            return calculated(sign, 0, expected_value(operand, message))
        case Arithmetic(name, left, right):
            return calculated(name, expected_value(left, message), expected_value(right, message))
    return node.value


def calculated(name: str, left: Any, right: Any) -> Any:
    if kind_of(left) != "number" or kind_of(right) != "number":
        return None
    if name == "/" or float in (type(left), type(right)):
        left, right = float(left), float(right)
    if name == "/":
        return without_nan(left / right) if right else None
    result = {"+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right}[name]()
    return result if isinstance(result, int) and LOWEST <= result <= HIGHEST else without_nan(result, number=True)


def without_nan(value: Any, *, number: bool = False) -> Any:
    """NaN is NULL; of a calculation's result, so is an integer that does not fit."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if number and isinstance(value, int) else value
