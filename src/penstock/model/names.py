"""Names: the ones Penstock reserves, and what a name may be made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from penstock.model.errors import InvalidArgument
from penstock.model.limits import NAME_CHARACTERS_MAX

DEFAULT_GROUP: Final = "default"
DEFAULT_NAMESPACE: Final = "default"
EVENTS_QUEUE: Final = "$events"
EVENTS_PATTERN: Final = "$events-*"
"""With several servers, those that do not own `$events` have an events queue of their own, which this matches."""


def is_events_queue(name: str) -> bool:
    """Whether a queue's messages are delivery events."""
    return name == EVENTS_QUEUE or name.startswith(EVENTS_PATTERN.removesuffix("*"))


def suggestion(name: str, known: Iterable[str], *, cutoff: float = 0.6, shown: Mapping[str, str] | None = None) -> str:
    """How a complaint of an unknown name ends: the nearest known one, or all of them; `shown` is how to write them."""
    names = list(known)
    near = get_close_matches(name, names, n=1, cutoff=cutoff)
    written = [one if shown is None else shown[one] for one in near or names]
    return f"did you mean {written[0]}?" if near else f"there are {', '.join(written)}"


_NOT_IN_NAMES: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def check_name(name: object, what: str) -> str:
    """A name of 1 to 255 characters: any but control characters and lone surrogates."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} must be a string, not {name!r} of type {type(name).__name__}")
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidArgument(f"{what} has {len(name)} characters; it needs 1 to {NAME_CHARACTERS_MAX}: {name[:40]!r}")
    if _NOT_IN_NAMES.search(name):
        raise InvalidArgument(f"{what} {name!r} contains a control character or a lone surrogate")
    return name
