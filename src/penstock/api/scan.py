"""The log of a queue as it is stored, for readers of whole lanes. Next stop of its batches: `penstock.arrow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from penstock.api.results import Scan
from penstock.model import suggestion
from penstock.model.errors import InvalidArgument

PLACE_COLUMNS: Final = ("queue", "queue_id", "lane", "offset", "payload", "published_at")
"""Columns of a scan's rows that need no metadata."""
META_COLUMNS: Final = (
    "partition",
    "headers",
    "content_type",
    "priority",
    "expires_at",
    "dedup_id",
    "trace_id",
    "correlation_id",
    "key",
    "delay_ms",
    "not_before",
    "ttl_ms",
    "typed_headers",
)
STATE_COLUMNS: Final = ("state", "attempts", "reason")
"""What a group makes of a message: only with `group`."""
DEFAULT_COLUMNS: Final = (
    "queue",
    "lane",
    "offset",
    "partition",
    "payload",
    "headers",
    "content_type",
    "priority",
    "published_at",
    "expires_at",
    "dedup_id",
    "trace_id",
    "correlation_id",
)
_ALL_COLUMNS: Final = (*PLACE_COLUMNS, *META_COLUMNS, *STATE_COLUMNS)


class LanePlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ends of one lane's log."""

    lane: int
    """The lane's place in its queue, from 0 on."""
    first: int
    """The oldest offset kept."""
    end: int
    """One past the newest."""
    bytes: int
    """What is held between them, as stored."""
    at_time: int | None = None
    """The first offset published at the time that was asked about, or later; `end` where there is none."""


class QueueLanes(msgspec.Struct, frozen=True):
    """The lanes of a queue, in order."""

    queue: str
    queue_id: int
    """The queue's id: a queue that is deleted and declared again gets another one."""
    lanes: list[LanePlace]


class Extent(msgspec.Struct, frozen=True):
    """How far a read may go: whole batches, one at least where there is one."""

    end: int
    """One past the last offset; `start` itself where nothing is there yet."""
    rows: int
    """Messages from `start` to `end`."""
    bytes: int
    """Bytes of their batches, as stored."""


def check_columns(columns: Sequence[str] | None, payload: bool, group: str | None) -> list[str]:
    """The columns that a scan wants: without a list, all of a message's own."""
    if columns is None:
        states = STATE_COLUMNS if group is not None else ()
        return [name for name in (*DEFAULT_COLUMNS, *states) if payload or name != "payload"]
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is {columns[:200]!r}; it must be a list of names")
    for name in columns:
        if name not in _ALL_COLUMNS:
            raise InvalidArgument(f"columns names {name[:100]!r}, which is none; {suggestion(name, _ALL_COLUMNS)}")
        if name in STATE_COLUMNS and group is None:
            raise InvalidArgument(f"column {name!r} is what a group makes of a message: say which one with group")
    if len(set(columns)) != len(columns):
        raise InvalidArgument(f"columns names one of them twice: {','.join(columns)[:200]!r}")
    if not payload and "payload" in columns:
        raise InvalidArgument("columns names payload, but payload is 0; leave out one of them")
    return list(columns)


class Scans(Protocol):
    """Reading whole lanes; nothing is leased and nothing changes."""

    async def lanes(self, queue: str, time_ms: int | None = None) -> QueueLanes:
        """Where each lane of a queue begins and ends; with `time_ms` also the first offset from that time on."""

    async def scan(
        self,
        queue: str,
        lane: int,
        start: int,
        end: int,
        *,
        payload: bool = True,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        group: str | None = None,
        max_bytes: int | None = None,
    ) -> Scan:
        """A part of [start, end) of a lane's log, batches as they are stored; continue with `start=scan.next_offset`.

        Without `payload`, and where `columns` names none that need them, payloads and metadata are left out. `where`
        is a condition on metadata; with `group` each slice says what that group is not done with. `max_bytes` bounds
        one answer, which holds one batch at least. `OffsetGone` where `start` is no longer kept. Scans wait for each
        other, and leave half of the node's time to others.
        """

    async def extent(
        self, queue: str, lane: int, start: int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Extent:
        """How far a read from `start` gets within `max_rows` and `max_bytes`: whole batches, one at least."""
