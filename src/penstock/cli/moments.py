"""Times on the command line: spans and moments as people write them, and times as people read them."""

from __future__ import annotations

import datetime as dt
import re
import time
from typing import Final, NamedTuple

import click

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min|m|h|d|w)")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# Reading -------------------------------------------------------------------------------------------------


def span_ms(text: str) -> int | None:
    """`1h30m` in milliseconds; None where it is no span."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return round(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def moment_ms(text: str) -> int | None:
    """A time, or a span before now; None where it is neither. Without a zone it is this machine's."""
    span = span_ms(text)
    if span is not None:
        return max(0, now_ms() - span)
    try:
        return round(dt.datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return None


def span(text: str) -> int:
    """The type of an option that takes `500ms`, `30s`, `5m`, `2h`. A number alone could mean anything: refused."""
    found = span_ms(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no span; write it like 500ms, 30s, 5m, 2h or 1h30m")
    return found


def moment(text: str) -> int:
    """The type of an option that takes a point in time; it becomes milliseconds since the epoch."""
    found = moment_ms(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no time; write it like 2026-05-01T12:00:00Z, or 10m for ten minutes ago")
    return found


def instant(text: str) -> dt.datetime:
    """The same, as a time with a zone."""
    return dt.datetime.fromtimestamp(moment(text) / 1000, dt.UTC)


class Start(NamedTuple):
    """Where in a log to begin: at its first message (none of these), at its end, at an offset or at a time."""

    at_end: bool = False
    offset: int | None = None
    time_ms: int | None = None


def start(text: str) -> Start:
    """The type of an option that takes `first`, `now`, an offset or a time."""
    if text == "first":
        return Start()
    if text == "now":
        return Start(at_end=True)
    if text.isascii() and text.isdigit():
        return Start(offset=int(text))
    time_ms = moment_ms(text)
    if time_ms is None:
        raise click.BadParameter(
            f"{text!r} is no place in a log: say first, now, an offset, a time like 2026-05-01T12:00:00Z, or 10m for "
            "ten minutes ago"
        )
    return Start(time_ms=time_ms)


# Writing -------------------------------------------------------------------------------------------------


def span_text(milliseconds: int) -> str:
    """Its largest unit: `12 s`."""
    for limit, unit_ms, unit in (
        (1_000, 1, "ms"),
        (60_000, 1_000, "s"),
        (3_600_000, 60_000, "min"),
        (172_800_000, 3_600_000, "h"),
    ):
        if milliseconds < limit:
            return f"{milliseconds // unit_ms} {unit}"
    return f"{milliseconds // 86_400_000} d"


def absolute(time_ms: int, timespec: str = "seconds") -> str:
    """In this machine's zone, to the second."""
    try:
        moment = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(sep=" ", timespec=timespec)


def precise(time_ms: int) -> str:
    """The same, to the millisecond."""
    return absolute(time_ms, "milliseconds")


def when(time_ms: int | None, now: int | None = None) -> str:
    """`5 min ago (2026-05-01 12:00:00+00:00)`"""
    if time_ms is None:
        return "-"
    away = time_ms - (now_ms() if now is None else now)
    relative = f"in {span_text(away)}" if away > 0 else f"{span_text(-away)} ago"
    return f"{relative} ({absolute(time_ms)})"
