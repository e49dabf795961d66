"""How far behind a stream is, from what Spark reports of it: `source_metrics(query.lastProgress)`.

Spark's progress has a field `metrics` for each source, which sources written in Python cannot fill (Spark 4.3). It has
the offsets that a micro-batch began and ended with, and the newest there are, which ours reports; from these the
numbers are made here, under the names that Spark's Kafka source uses. Knows no server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.model.errors import InvalidArgument
from penstock.spark.source.offsets import Position, position_of


class SourceMetrics(msgspec.Struct, frozen=True):
    """One penstock source of a stream, after one micro-batch."""

    description: str
    """As Spark calls the source."""
    backlog: dict[str, dict[int, int]]
    """Messages that are there and not read yet, by queue and lane."""
    lost: dict[str, int]
    """Messages that were skipped with failOnDataLoss=false, by queue, since the checkpoint began."""

    @property
    def lanes(self) -> list[int]:
        return [behind for lanes in self.backlog.values() for behind in lanes.values()]

    @property
    def backlog_rows(self) -> int:
        """Messages that are there and not read yet, in all."""
        return sum(self.lanes)

    def as_texts(self) -> dict[str, str]:
        """The numbers as Kafka's source reports them, and what was lost."""
        lanes = self.lanes or [0]
        return {
            "minOffsetsBehindLatest": str(min(lanes)),
            "maxOffsetsBehindLatest": str(max(lanes)),
            "avgOffsetsBehindLatest": str(sum(lanes) / len(lanes)),
            "estimatedTotalOffsetsBehindLatest": str(sum(lanes)),
            "lost": str(sum(self.lost.values())),
        }


def source_metrics(progress: Any) -> list[SourceMetrics]:
    """The penstock sources of a progress report: `query.lastProgress`, or `event.progress` of a listener.

    Other sources are left out. None, before the first report, has none.
    """
    if progress is None:
        return []
    sources = _sources(progress)
    return [metrics for metrics in map(_metrics, sources) if metrics is not None]


def _sources(progress: Any) -> list[Mapping[str, Any]]:
    """Of a dict, as `lastProgress` was, or of Spark's object for one."""
    if isinstance(progress, Mapping):
        found: list[Mapping[str, Any]] = progress["sources"]
        return found
    parsed: list[Mapping[str, Any]] = json.loads(progress.json)["sources"]
    return parsed


def _metrics(source: Mapping[str, Any]) -> SourceMetrics | None:
    end, latest = _position(source.get("endOffset")), _position(source.get("latestOffset"))
    if end is None or latest is None:
        return None
    backlog = {
        queue: {lane: max(0, offset - _read_to(end, queue, place.id, lane)) for lane, offset in place.lanes.items()}
        for queue, place in latest.items()
    }
    lost = {queue: place.lost for queue, place in end.items() if place.lost}
    return SourceMetrics(str(source.get("description", "")), backlog, lost)


def _read_to(end: Position, queue: str, queue_id: int, lane: int) -> int:
    """Where the batch ended; a queue that it did not know, or another of the same name, is not read at all yet."""
    place = end.get(queue)
    return 0 if place is None or place.id != queue_id else place.lanes.get(lane, 0)


def _position(stored: Any) -> Position | None:
    """A position of ours; None where there is none, or it is another source's."""
    if isinstance(stored, str):
        try:
            stored = json.loads(stored)
        except ValueError:
            return None
    try:
        return position_of(stored)
    except InvalidArgument:
        return None
