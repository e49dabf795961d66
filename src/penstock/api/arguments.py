"""Arguments that callers give, checked once: errors name the value, the limit and the way out.

What every implementation of the API checks alike; what needs the catalog is checked in `node/arguments.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.api.results import Claim, Lease, LeaseLike
from penstock.model import ID_CHARACTERS_MAX, INTEGER_MAX, SPAN_MS_MAX, check_integer, check_name, check_text
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Action, Verdict

WAIT_SECONDS_MAX: Final = 3_600
_ALL_DONE: Final = (Verdict("ack"),)
"""What nearly every consumer says of all that it was given."""


Ranges = Sequence[int] | None
"""Offsets of a claim; None means all of it."""


def check_is_text(name: object, what: str) -> None:
    """Raise for what is no text at all; a text that is no name is not found, or refused where it is declared."""
    if not isinstance(name, str):
        check_name(name, what)


def check_sequence(messages: object) -> None:
    if not isinstance(messages, Sequence):
        raise InvalidArgument(f"messages must be a list or another sequence, not {type(messages).__name__}")


def check_ids(ids: object) -> Sequence[int] | None:
    """None, or a sequence of ids of rows."""
    if ids is None:
        return None
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise InvalidArgument(f"ids must be a list of whole numbers, not {type(ids).__name__}")
    return [check_integer(id, "an id", 0, INTEGER_MAX) for id in ids]


def check_publish_id(publish_id: object) -> None:
    if publish_id is None:
        return
    check_text(publish_id, "publish_id", ID_CHARACTERS_MAX)
    if publish_id == "":
        raise InvalidArgument("publish_id is empty; leave it out for a publish without a name")


def milliseconds(seconds: object, what: str, low: int, high: int) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidArgument(f"{what} must be a number of seconds, not {seconds!r} of type {type(seconds).__name__}")
    if not low / 1000 <= seconds <= high / 1000:
        raise InvalidArgument(f"{what} is {seconds}; it must be {low / 1000:g} to {high / 1000:g} seconds")
    return round(seconds * 1000)


def check_verdict(verdict: Verdict) -> None:
    if not isinstance(verdict, Verdict):
        raise InvalidArgument(f"a verdict must be a penstock.Verdict, not {type(verdict).__name__}")
    if verdict.action not in ("ack", "nack", "reject", "postpone", "release"):
        raise InvalidArgument(f"unknown verdict {verdict.action!r}; there are ack, nack, reject, postpone and release")
    if verdict.start is not None:
        check_integer(verdict.start, "a verdict's start", 0, INTEGER_MAX)
        check_integer(verdict.end, "a verdict's end", 0, INTEGER_MAX)
    if verdict.delay_ms is not None:
        check_integer(verdict.delay_ms, "a verdict's delay_ms", 0, SPAN_MS_MAX)
    check_text(verdict.error, "error", INTEGER_MAX)


def check_verdicts(verdicts: Sequence[Verdict]) -> None:
    if verdicts is _ALL_DONE:
        return
    if not verdicts:
        raise InvalidArgument("settle needs at least one verdict")
    for verdict in verdicts:
        check_verdict(verdict)


def verdicts_of(
    action: Action,
    offsets: Ranges,
    delay_ms: int | None = None,
    error: str = "",
) -> Sequence[Verdict]:
    """One verdict for each run of offsets."""
    if offsets is None:
        if action == "ack":
            return _ALL_DONE
        check_text(error, "error", INTEGER_MAX)
        return (Verdict(action, None, 0, delay_ms, error),)
    check_text(error, "error", INTEGER_MAX)
    if not isinstance(offsets, Iterable):
        raise InvalidArgument(f"offsets must be a list of whole numbers, not {offsets!r}")
    verdicts: list[Verdict] = []
    start = end = -1
    for offset in sorted(check_integer(offset, "an offset", 0, INTEGER_MAX) for offset in offsets):
        if offset == end:
            end += 1
            continue
        if start >= 0:
            verdicts.append(Verdict(action, start, end, delay_ms, error))
        start, end = offset, offset + 1
    if start >= 0:
        verdicts.append(Verdict(action, start, end, delay_ms, error))
    return verdicts


def span_of(offsets: object) -> tuple[int, int]:
    if not isinstance(offsets, tuple | list) or len(offsets) != 2:
        raise InvalidArgument(f"offsets is {offsets!r}; it must be (start, end)")
    start, end = (check_integer(offset, "an offset", 0, INTEGER_MAX) for offset in offsets)
    return start, end


def nacked(offsets: Ranges, delay: float | None, error: str) -> Sequence[Verdict]:
    """The verdicts of `nack`."""
    return verdicts_of("nack", offsets, None if delay is None else waiting_ms(delay), error)


def waiting_ms(delay: float) -> int:
    """A delay in seconds, as callers give it."""
    return milliseconds(delay, "delay", 0, SPAN_MS_MAX)


def lease_of(lease: LeaseLike) -> Lease:
    """The lease that a claim, a lease or a token stands for."""
    if isinstance(lease, Claim):
        if lease.lease is None:
            raise InvalidArgument("this claim holds no lease: it is empty, or was acknowledged as it was handed out")
        return lease.lease
    return lease if isinstance(lease, Lease) else Lease.parse(lease)


def check_number(value: object, what: str, low: float, high: float) -> float:
    """A number in [low, high]; bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{what} must be a number, not {value!r} of type {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}; it must be {low:g} to {high:g}")
    return float(value)
