"""A queue's limits on length and bytes: refuse a publish, or drop the oldest messages to make room."""

from __future__ import annotations

from penstock.core.lane.state import LaneState
from penstock.model.errors import QueueFull


def check_room(lane: LaneState, count: int, size: int) -> None:
    """Raise `QueueFull` if `count` messages of `size` bytes together are past the queue's limits.

    Changes nothing; raises `Missing` when heads are needed to know.
    """
    config = lane.config
    if config.max_length is not None and config.overflow == "reject":
        backlog = max((group.backlog() for group in lane.works()), default=0)
        if backlog + count > config.max_length:
            raise QueueFull(
                f"{count} more messages on {backlog} waiting would pass max_length {config.max_length}; "
                "consume some first, or choose another overflow policy"
            )
    if config.max_bytes is not None:
        held = _bytes_from(lane, _unsettled_from(lane))  # with any policy: a drop begins there, and must not ask
        fixed = held if config.overflow == "reject" else _bytes_from(lane, _leased_from(lane))
        if fixed + size > config.max_bytes:
            raise QueueFull(
                f"{size} more bytes on {fixed} held would pass max_bytes {config.max_bytes}; "
                "consume some first, or choose another overflow policy"
            )


def make_room(lane: LaneState, now_ms: int) -> None:
    """After a publish that may drop: drop the oldest messages that nobody holds, as far as the limits ask for it."""
    config = lane.config
    dead = config.overflow == "dead_letter_oldest"
    if config.max_length is not None:
        for group in lane.works():
            group.drop_oldest(now_ms, group.backlog() - config.max_length, dead=dead)
    if config.max_bytes is not None:
        _drop_bytes(lane, now_ms, config.max_bytes, dead)


def _drop_bytes(lane: LaneState, now_ms: int, most: int, dead: bool) -> None:
    """Drop whole batches from the low end until the rest fits, as far as their heads are in memory.

    `check_room` saw that it can fit. What is left over because heads are missing goes with the next publishes.
    """
    floor = _unsettled_from(lane)
    while floor < lane.sealed_end and (segment := lane.log.peek(floor)) is not None:
        if lane.bytes_end - segment.bytes_end + segment.size + lane.parts_bytes <= most:
            break
        for group in lane.works():
            group.drop_below(now_ms, segment.end, dead=dead)
        if floor == (floor := _unsettled_from(lane)):
            break


def _unsettled_from(lane: LaneState) -> int:
    """The lowest offset that a work group has not settled; dead letters do not count."""
    return min((group.watermark() for group in lane.works()), default=lane.end)


def _leased_from(lane: LaneState) -> int:
    """The lowest leased offset: the oldest messages can be dropped up to there."""
    lows = [group.leases.lowest() for group in lane.works()]
    return min((low for low in lows if low is not None), default=lane.end)


def _bytes_from(lane: LaneState, offset: int) -> int:
    """Bytes of the batches from the one that holds an offset on, unsealed ones included."""
    if offset >= lane.sealed_end:
        return lane.parts_bytes
    segment = lane.log.find(offset)
    return lane.bytes_end - segment.bytes_end + segment.size + lane.parts_bytes


def lag_bytes(lane: LaneState) -> int:
    """Sealed bytes that no group has read yet; 0 where that is not known."""
    foremost = max([group.next for group in lane.groups.values()], default=lane.sealed_end)
    segment = None if foremost >= lane.sealed_end else lane.log.look(foremost)
    return 0 if segment is None else lane.bytes_end - segment.bytes_end
