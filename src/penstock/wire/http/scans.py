"""The shapes of scans in the HTTP API: where a queue's lanes begin and end, and how far a read may go.

Plain data, as in `wire/http/shapes.py`. What a scan itself answers is not here: it is `delivery.Scan` in MessagePack,
batches as they are stored, or an Arrow stream.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
"""An answer: an Arrow IPC stream."""
NEXT_OFFSET_HEADER: Final = "X-Penstock-Next-Offset"
"""Where the next scan goes on, of an Arrow stream; the other form says it by itself."""


class LaneBody(Struct, kw_only=True, omit_defaults=True):
    """The ends of one lane's log."""

    lane: int
    """The lane's place in its queue."""
    first: int
    """The oldest offset kept."""
    end: int
    """One past the newest."""
    bytes: int
    """What is held between them, as stored."""
    at_time: int | None = None
    """With `time_ms`: the first offset published at that time or later; `end` where there is none."""


class LanesAnswer(Struct, kw_only=True):
    queue: str
    queue_id: int
    """The queue's id: a queue that is deleted and declared again gets another one."""
    lanes: list[LaneBody]


class ExtentAnswer(Struct, kw_only=True):
    """How far a read may go: whole batches, one at least where there is one."""

    end: int
    """One past the last offset; `start` itself where nothing is there yet."""
    rows: int
    """Messages from `start` to `end`."""
    bytes: int
    """Bytes of their batches, as stored."""
