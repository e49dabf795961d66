"""One data file of a table: its place, size and partition, and between which values its rows are.

What an executor reports of a file that it wrote, and what the Delta log says of one that is there, are the same thing.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from penstock.spark.times import EPOCH, microseconds

Bounds = tuple[int, int]
"""The least and the greatest value, both of them there."""


class DataFile(msgspec.Struct, frozen=True, array_like=True):
    """A Parquet file. Bounds are None where the log does not tell (another program wrote the file)."""

    path: str
    """Below the table's folder, as it is called there (the log has it percent-encoded)."""
    size: int
    rows: int | None
    queue: str
    date: str
    queue_ids: Bounds | None = None
    lanes: Bounds | None = None
    offsets: Bounds | None = None
    times_us: Bounds | None = None
    """Of the table's time column."""
    event_queue_ids: Bounds | None = None
    """Of delivery events: which events queues they were told in."""

    @property
    def partition(self) -> dict[str, str | None]:
        return {"queue": self.queue, "date": self.date}

    def statistics(self, time: str, offset: str) -> str:
        """As the Delta log has them, with these names of the columns for time and offset."""
        bounds = {"queue_id": self.queue_ids, "lane": self.lanes, offset: self.offsets}
        bounds["event_queue_id"] = self.event_queue_ids
        known: dict[str, tuple[Any, Any]] = {name: value for name, value in bounds.items() if value is not None}
        if self.times_us is not None:
            low, high = self.times_us
            # The log has milliseconds: the upper bound is rounded up, so that pruning never loses a row.
            known[time] = (_milliseconds(low // 1_000), _milliseconds(-(-high // 1_000)))
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {name: low for name, (low, _) in known.items()},
                "maxValues": {name: high for name, (_, high) in known.items()},
                "nullCount": dict.fromkeys(known, 0),
            }
        )


def meets(bounds: Bounds | None, low: int | None, high: int | None) -> bool:
    """Whether a value in [low, high) can be between the bounds; None is no limit, and unknown bounds."""
    return bounds is None or ((high is None or bounds[0] < high) and (low is None or bounds[1] >= low))


def files_of_log(rows: Iterable[Mapping[str, Any]], time: str, offset: str) -> list[DataFile]:
    """From the rows of `get_add_actions(flatten=True)`, with these names of the columns for time and offset."""
    return [
        DataFile(
            path=unquote(row["path"]),
            size=row["size_bytes"],
            rows=row["num_records"],
            queue=row["partition.queue"],
            date=row["partition.date"].isoformat(),
            queue_ids=_bounds(row, "queue_id"),
            lanes=_bounds(row, "lane"),
            offsets=_bounds(row, offset),
            times_us=_bounds(row, time),
            event_queue_ids=_bounds(row, "event_queue_id"),
        )
        for row in rows
    ]


def _bounds(row: Mapping[str, Any], column: str) -> Bounds | None:
    low, high = row.get(f"min.{column}"), row.get(f"max.{column}")
    if low is None or high is None:
        return None
    return as_integers(low, high)


def as_integers(low: Any, high: Any) -> Bounds:
    """Bounds as numbers: times in microseconds."""
    return (microseconds(low), microseconds(high)) if isinstance(low, dt.datetime) else (low, high)


def _milliseconds(since_1970: int) -> str:
    time = EPOCH + dt.timedelta(milliseconds=since_1970)
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{since_1970 % 1_000:03d}Z"
