"""`$queue/<name>/<pattern>`: an MQTT pattern on keys as a consumer group's filter. For every front that has such names.

The language of filters knows LIKE, which cannot say "one level" in front of "any levels". There the filter lets pass
what it must, and a front settles what does not match: for a group that is the same as not matching its filter.
May not know: brokers, sockets.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.model.errors import InvalidArgument


class KeyFilter(NamedTuple):
    """A pattern's filter."""

    pattern: str
    condition: str | None
    """What the group is declared with; None: no filter. Two patterns never have the same one."""
    is_exact: bool
    """Whether the condition alone is enough."""
    shape: re.Pattern[str]

    def matches(self, key: str | None) -> bool:
        """Whether a key matches the pattern, whatever the condition made of it."""
        return self.shape.fullmatch(key or "") is not None


def key_filter(pattern: str) -> KeyFilter:
    """The filter of a pattern; raises `InvalidArgument` for one that is not well formed. Empty and `#`: everything."""
    if pattern in ("", "#"):
        return KeyFilter(pattern, None, True, re.compile(".*", re.DOTALL))
    levels = pattern.split("/")
    for level, is_last in zip(levels, [False] * (len(levels) - 1) + [True], strict=True):
        if ("#" in level and not (level == "#" and is_last)) or ("+" in level and level != "+"):
            raise InvalidArgument(f"{pattern!r} is no filter: + stands for a level, # for all levels at the end")
    is_open = levels[-1] == "#"
    named = levels[:-1] if is_open else levels
    shape = "/".join("[^/]*" if level == "+" else re.escape(level) for level in named)
    condition = _condition(named, is_open)
    is_exact = not is_open or "+" not in named
    return KeyFilter(pattern, condition, is_exact, re.compile(shape + "(/.*)?" if is_open else shape, re.DOTALL))


def _condition(named: list[str], is_open: bool) -> str:
    if "+" not in named:
        equal = f"$key = {_text('/'.join(named))}"
        return f"{equal} OR {_like([*map(_escaped, named), '%'])}" if is_open else equal
    like = ["%" if level == "+" else _escaped(level) for level in named]
    if is_open:
        return f"{_like(like)} OR {_like([*like, '%'])}"
    # As many slashes as the pattern has and no more: so none is inside of a level.
    slashes = "%" + "/%" * len(named)
    return f"{_like(like)} AND $key NOT LIKE '{slashes}'"


def _like(levels: list[str]) -> str:
    return f"$key LIKE {_text('/'.join(levels))} ESCAPE '!'"


def _escaped(level: str) -> str:
    return level.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
