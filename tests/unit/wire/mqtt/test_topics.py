"""Topic names, filters and matching: the standard's own examples, and a naive reference for all others."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.mqtt.topics import Filter, filter_problem, matches, parse_filter, topic_problem


@pytest.mark.parametrize("topic", ["a", "/", "//", "a b", "$SYS/x", "ACCOUNTS", "ü/✓", "a" * 65535, "$share/x"])
def test_valid_topics(topic: str) -> None:
    assert topic_problem(topic) == ""


@pytest.mark.parametrize("topic", ["", "#", "a/+", "a+", "a#b", "a\0", "a" * 65536, "ü" * 32768])
def test_invalid_topics(topic: str) -> None:
    assert topic_problem(topic)


@pytest.mark.parametrize(
    "text", ["a", "#", "+", "/", "sport/#", "sport/tennis/#", "+/tennis/#", "sport/+/player1", "/+", "$SYS/#", "+/+"]
)
def test_valid_filters(text: str) -> None:
    assert filter_problem(text) == ""
    assert parse_filter(text) == Filter("", text)
    assert parse_filter(f"$share/group/{text}") == Filter("group", text)


SHARED_WRONG = [
    "$share/",
    "$share/g",
    "$share/g/",
    "$share//a",
    "$share/+/a",
    "$share/g#/a",
    "$share/g/a#",
    "$share/g/#/a",
]
WRONG = ["", "sport/tennis#", "sport/tennis/#/ranking", "sport+", "a/b+/c", "#/a", "##", "a\0", "a" * 65536, "++"]


@pytest.mark.parametrize("text", [*WRONG, *SHARED_WRONG])
def test_invalid_filters(text: str) -> None:
    assert filter_problem(text)


@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/tennis/player1/#", "sport/tennis/player10", False),
        ("sport/#", "sport", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("+/#", "a", True),
        ("#", "/", True),
        ("a/b", "A/b", False),
        ("a", "a/", False),
    ],
)
def test_the_standards_examples(filter: str, topic: str, expected: bool) -> None:  # noqa: A002
    assert matches(filter, topic) is expected


def naive(text: str, topic: str) -> bool:
    if topic.startswith("$") and text[0] in "#+":
        return False
    pattern = ""
    for index, level in enumerate(text.split("/")):
        separator = "/" if index else ""
        if level == "#":
            pattern += "(?:/.*)?" if index else ".*"
        else:
            pattern += separator + ("[^/]*" if level == "+" else re.escape(level))
    return re.fullmatch(pattern, topic, re.DOTALL) is not None


LEVELS = st.sampled_from(["", "a", "b", "$a", "ab"])


@given(
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=4).flatmap(
        lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"]), "/".join([*levels[:-1], "#"])])
    ),
    st.lists(LEVELS, min_size=1, max_size=4).map("/".join),
)
def test_matching_like_the_naive_reference(text: str, topic: str) -> None:
    if text and topic:
        assert filter_problem(text) == ""
        assert matches(text, topic) is naive(text, topic)
