"""Topic names and filters: what is valid, what matches, and shared subscriptions, as both versions say."""

from __future__ import annotations

from typing import Final, NamedTuple

SHARE: Final = "$share/"
TOPIC_BYTES_MAX: Final = 65535


class Filter(NamedTuple):
    """A valid topic filter, taken apart."""

    group: str
    """Of `$share/<group>/<filter>`; empty for an ordinary subscription."""
    filter: str
    """What topics are matched with."""


def topic_problem(topic: str) -> str:
    """What is wrong with a topic name; empty for a valid one."""
    if not topic:
        return "a topic name has at least one character"
    if "#" in topic or "+" in topic:
        return f"the topic name {_short(topic)} holds a wildcard: # and + are for filters"
    return _text_problem("topic name", topic)


def filter_problem(text: str) -> str:
    """What is wrong with a topic filter, a shared one included; empty for a valid one."""
    if not text:
        return "a topic filter has at least one character"
    if text.startswith(SHARE):
        group, slash, text = text.removeprefix(SHARE).partition("/")
        if not group or "+" in group or "#" in group:
            return (
                "the group of a shared subscription has at least one character and no wildcard: $share/<group>/<filter>"
            )
        if not slash or not text:
            return "a shared subscription has a filter after its group: $share/<group>/<filter>"
    if ("#" in text or "+" in text) and (problem := _wildcard_problem(text)):
        return problem
    return _text_problem("topic filter", text)


def parse_filter(text: str) -> Filter:
    """The parts of a valid filter."""
    if text.startswith(SHARE):
        group, _, inner = text.removeprefix(SHARE).partition("/")
        return Filter(group, inner)
    return Filter("", text)


def matches(filter: str, topic: str) -> bool:  # noqa: A002 - the domain's word
    """Whether a valid filter (without `$share`) matches a topic name; wildcards at the start hide `$` topics."""
    if filter == topic:
        return True
    if topic.startswith("$") and filter.startswith(("#", "+")):
        return False
    levels = filter.split("/")
    names = topic.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            return True  # `sport/#` is also for `sport` itself
        if index == len(names) or level not in ("+", names[index]):
            return False
    return len(levels) == len(names)


def _wildcard_problem(text: str) -> str:
    levels = text.split("/")
    for index, level in enumerate(levels):
        if level in ("+", "#"):
            if level == "#" and index < len(levels) - 1:
                return f"in the topic filter {_short(text)} # is not the last level"
        elif "#" in level or "+" in level:
            return f"in the topic filter {_short(text)} a wildcard is not a level of its own"
    return ""


def _text_problem(what: str, text: str) -> str:
    if "\0" in text:
        return f"the {what} holds the character U+0000"
    if len(text) * 4 > TOPIC_BYTES_MAX and len(text.encode()) > TOPIC_BYTES_MAX:
        return f"the {what} has more than {TOPIC_BYTES_MAX} bytes"
    return ""


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
