"""Arguments of the broker's methods, checked once: errors name the value, the limit and the way out.

What is checked here comes from users; what the node passes between its own modules is not checked again.
"""

from __future__ import annotations

from typing import TypeGuard

from penstock.api.arguments import span_of
from penstock.core.filters import parse
from penstock.core.group.settle import ERROR_CHARACTERS_MAX
from penstock.model import INTEGER_MAX, check_integer, check_text
from penstock.model.errors import InvalidArgument
from penstock.node.catalog import Queue
from penstock.node.consume.dead_letters import Choice


def place_after(after: object, queue: Queue) -> tuple[int, int]:
    """(lane id, offset) of a page's next, which names the lane by its place in the queue."""
    if not isinstance(after, tuple | list) or len(after) != 2 or not _is_lane(after[0], queue):
        raise InvalidArgument(f"after is {after!r}; it must be a page's next: (lane, offset), of {_lanes_of(queue)}")
    return queue.lanes[after[0]], check_integer(after[1], "after's offset", 0, INTEGER_MAX)


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
    queue: Queue,
    *,
    reason: str | None = None,
    error: str | None = None,
    offsets: tuple[int, int] | None = None,
    filter: str | None = None,  # noqa: A002 - the API's word
    lane: int | None = None,
    until_ms: int | None = None,
) -> Choice:
    """Which dead letters, as `DeadOptions` says; raises for a condition that makes no sense."""
    check_text(reason, "reason", 255)
    check_text(error, "error", ERROR_CHARACTERS_MAX)
    if offsets is not None:
        offsets = span_of(offsets)
    if until_ms is not None:
        check_integer(until_ms, "until_ms", 0, INTEGER_MAX)
    lane_id = None if lane is None else lane_of(queue, lane)
    return Choice(reason, error, offsets, None if filter is None else parse(filter), lane_id, until_ms)
