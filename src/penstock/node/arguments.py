"""Arguments of the broker's methods, checked once: errors name the value, the limit and the way out.

What is checked here comes from users; what the node passes between its own modules is not checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from penstock.core.filters import parse
from penstock.core.group.settle import ERROR_CHARACTERS_MAX
from penstock.model import ID_CHARACTERS_MAX, INTEGER_MAX, SPAN_MS_MAX, check_integer, check_name, check_text
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Action, Verdict
from penstock.node.catalog import Queue
from penstock.node.consume.dead_letters import Choice

Ranges = Sequence[int] | None
"""Offsets of a claim; None means all of it."""


def check_is_text(name: object, what: str) -> None:
    """Raise for what is no text at all; a text that is no name is not found, or refused where it is declared."""
    if not isinstance(name, str):
        check_name(name, what)


def place_after(after: object, queue: Queue) -> tuple[int, int]:
    """(lane id, offset) of a page's next, which names the lane by its place in the queue."""
    if not isinstance(after, tuple | list) or len(after) != 2 or not _is_lane(after[0], queue):
        raise InvalidArgument(f"after is {after!r}; it must be a page's next: (lane, offset), of {_lanes_of(queue)}")
    return queue.lanes[after[0]], check_integer(after[1], "after's offset", 0, INTEGER_MAX)


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
    if not verdicts:
        raise InvalidArgument("settle needs at least one verdict")
    for verdict in verdicts:
        check_verdict(verdict)


def verdicts_of(
    action: Action,
    offsets: Ranges,
    delay_ms: int | None = None,
    error: str = "",
) -> list[Verdict]:
    """One verdict for each run of offsets."""
    check_text(error, "error", INTEGER_MAX)
    if offsets is None:
        return [Verdict(action, None, 0, delay_ms, error)]
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


def lane_of(queue: Queue, lane: object) -> int:
    """The id of the lane that a user names by its place in the queue; None is the only one."""
    if lane is None:
        if len(queue.lanes) > 1:
            raise InvalidArgument(f"queue {queue.name!r} has {_lanes_of(queue)}: say which one with lane=")
        return queue.lanes[0]
    if not _is_lane(lane, queue):
        raise InvalidArgument(f"lane is {lane!r}; queue {queue.name!r} has {_lanes_of(queue)}")
    return queue.lanes[lane]


def _is_lane(lane: object, queue: Queue) -> TypeGuard[int]:
    # A bool would pass for 0 or 1, and a negative number for a lane counted from the end.
    return isinstance(lane, int) and not isinstance(lane, bool) and 0 <= lane < len(queue.lanes)


def _lanes_of(queue: Queue) -> str:
    return "only lane 0" if len(queue.lanes) == 1 else f"lanes 0 to {len(queue.lanes) - 1}"


def choice_of(
    queue: Queue, reason: str | None, error: str | None, offsets: tuple[int, int] | None, condition: str | None,
    lane: int | None, until_ms: int | None,
) -> Choice:  # fmt: skip
    check_text(reason, "reason", 255)
    check_text(error, "error", ERROR_CHARACTERS_MAX)
    if offsets is not None:
        offsets = span_of(offsets)
    if until_ms is not None:
        check_integer(until_ms, "until_ms", 0, INTEGER_MAX)
    lane_id = None if lane is None else lane_of(queue, lane)
    return Choice(reason, error, offsets, None if condition is None else parse(condition), lane_id, until_ms)


def span_of(offsets: object) -> tuple[int, int]:
    if not isinstance(offsets, tuple | list) or len(offsets) != 2:
        raise InvalidArgument(f"offsets is {offsets!r}; it must be (start, end)")
    start, end = (check_integer(offset, "an offset", 0, INTEGER_MAX) for offset in offsets)
    return start, end
