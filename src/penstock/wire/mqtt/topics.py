"""Topic names and filters: what is valid, what matches, and shared subscriptions, as both versions say."""

from __future__ import annotations

from typing import NamedTuple


class Filter(NamedTuple):
    """A valid topic filter, taken apart."""

    group: str
    """Of `$share/<group>/<filter>`; empty for an ordinary subscription."""
    filter: str
    """What topics are matched with."""


def topic_problem(topic: str) -> str:
    """What is wrong with a topic name; empty for a valid one."""
    return ""


def filter_problem(text: str) -> str:
    """What is wrong with a topic filter, a shared one included; empty for a valid one."""
    return ""


def parse_filter(text: str) -> Filter | None:
    """The parts of a valid filter; None for one that is not valid."""
    return None


def matches(filter: str, topic: str) -> bool:
    """Whether a valid filter (without `$share`) matches a topic name; wildcards at the start hide `$` topics."""
    return False
