"""`$queue/<name>/<pattern>`: an MQTT pattern on keys as a consumer group's filter. For every front that has such names.

The language of filters knows LIKE, which cannot say "one level" in front of "any levels". There the filter lets pass
what it must, and a front settles what `lets_pass` does not: for a group that is the same as not matching its filter.
May not know: brokers, sockets.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.routing.tries import Target, Trie, check_mqtt_pattern, mqtt_targets

_ANY = Target("queue", "")


class KeyFilter(NamedTuple):
    """A pattern's filter."""

    pattern: str
    condition: str | None
    """What the group is declared with; None: no filter. Two patterns never have the same one."""
    is_exact: bool
    """Whether the condition alone is enough."""

    def lets_pass(self, key: str) -> bool:
        """Whether a key that the condition let pass matches the pattern."""
        if self.is_exact:
            return True
        trie = Trie()
        trie.add(self.pattern.split("/"), _ANY)
        return bool(mqtt_targets(trie, key))


def key_filter(pattern: str) -> KeyFilter:
    """The filter of a pattern; raises `InvalidArgument` for one that is not well formed. Empty and `#`: everything."""
    if pattern in ("", "#"):
        return KeyFilter(pattern, None, True)
    check_mqtt_pattern(pattern)
    levels = pattern.split("/")
    is_open = levels[-1] == "#"
    named = levels[:-1] if is_open else levels
    has_single = "+" in named
    if not has_single:
        condition = f"$key = {_text('/'.join(named))}"
        below = _like([*map(_escaped, named), "%"])
        return KeyFilter(pattern, f"{condition} OR {below}" if is_open else condition, True)
    like = ["%" if level == "+" else _escaped(level) for level in named]
    if is_open:
        return KeyFilter(pattern, f"{_like(like)} OR {_like([*like, '%'])}", False)
    # As many slashes as the pattern has and no more: so none is inside of a level.
    slashes = "%" + "/%" * len(named)
    return KeyFilter(pattern, f"{_like(like)} AND $key NOT LIKE '{slashes}'", True)


def _like(levels: list[str]) -> str:
    return f"$key LIKE {_text('/'.join(levels))} ESCAPE '!'"


def _escaped(level: str) -> str:
    return level.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
