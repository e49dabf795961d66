"""Lakes made by hand for the tests of `stats`, and the same numbers counted one by one, without Spark."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.spark.lake.layout import EVENTS, EVENTS_SCHEMA, MESSAGES, MESSAGES_SCHEMA, SCHEMAS, data_schema
from penstock.spark.lake.storage import Storage
from penstock.spark.lake.table import LakeTable
from penstock.spark.lake.writing import PartitionFiles
from penstock.spark.times import EPOCH

EVENT_QUEUE: Final = 1
Row = dict[str, Any]
ToldIn = Callable[[Row], int]


class HandMadeLake:
    """The archive's two tables, written through the lake's own files and commits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._storage = Storage(str(path))
        self._event_offsets = {EVENT_QUEUE: 0}
        """The events queues, and where they end."""

    def add_messages(self, rows: Sequence[Row]) -> None:
        """Rows with queue, queue_id, lane, offset, payload and at_ms, dense in each lane."""
        full = [{**row, "published_at": _time(row["at_ms"])} for row in rows]
        ends = {(row["queue_id"], row["lane"]): row["offset"] + 1 for row in rows}
        self._append(MESSAGES, full, "published_at", ends)

    def add_events(self, commits: Sequence[Sequence[Row]], told_in: ToldIn = lambda _: EVENT_QUEUE) -> None:
        """Commits, each a list of rows with queue, queue_id, lane, group, kind, start, end, at_ms, attempt, detail.

        `told_in` is the events queue of a commit, by one of its rows.
        """
        rows = []
        for commit in commits:
            queue_id = told_in(commit[0])
            event_offset = self._event_offsets.setdefault(queue_id, 0)
            self._event_offsets[queue_id] += 1
            for index, event in enumerate(commit):
                rows.append(
                    {
                        "queue": event["queue"],
                        "event_queue_id": queue_id,
                        "event_lane": 0,
                        "event_offset": event_offset,
                        "event_index": index,
                        "range_index": 0,
                        "namespace": "default",
                        "queue_id": event["queue_id"],
                        "lane": event["lane"],
                        "group": event["group"],
                        "kind": event["kind"],
                        "start_offset": event["start"],
                        "end_offset": event["end"],
                        "messages": event["end"] - event["start"],
                        "at": _time(event["at_ms"]),
                        "consumer": "c",
                        "attempt": event.get("attempt"),
                        "detail": event.get("detail"),
                    }
                )
        self._append(EVENTS, rows, "at", {(queue_id, 0): end for queue_id, end in self._event_offsets.items()})

    def _append(self, name: str, rows: list[Row], time: str, marks: dict[tuple[int, int], int]) -> None:
        storage = self._storage.under(name)
        table = LakeTable.open_for(storage, SCHEMAS[name], "hand-made", "default")
        files = PartitionFiles(storage, SCHEMAS[name])
        schema = data_schema(MESSAGES_SCHEMA if name == MESSAGES else EVENTS_SCHEMA)
        for row in rows:
            date = row[time].date().isoformat()
            files.add(row["queue"], date, pa.RecordBatch.from_pylist([row], schema=schema))
        table.append(files.finish(), marks)


def _time(milliseconds: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=milliseconds)


# A history ---------------------------------------------------------------------------------------------------


class History:
    """Random lives of messages in a few queues: what was published, and what a broker would have told of it."""

    def __init__(self, seed: int, start_ms: int, messages: int = 60) -> None:
        self._random = random.Random(seed)
        self.now_ms = start_ms
        self.messages: list[Row] = []
        self.commits: list[list[Row]] = []
        for _ in range(messages):
            self._publish()
        for group in ("billing", "mail"):
            for row in self.messages:
                self._live(row, group)
        # Lives are told one after the other; the log has them by time.
        self.commits.sort(key=lambda commit: commit[0]["at_ms"])

    def _publish(self) -> None:
        self.now_ms += self._random.randrange(12_000)
        queue_id = self._random.choice((7, 8))
        lane = self._random.randrange(2)
        offset = sum(1 for row in self.messages if (row["queue_id"], row["lane"]) == (queue_id, lane))
        payload = bytes(self._random.randrange(30))
        queue = "orders" if queue_id == 7 else "mail"
        self.messages.append(
            {
                "queue": queue,
                "queue_id": queue_id,
                "lane": lane,
                "offset": offset,
                "payload": payload,
                "at_ms": self.now_ms,
            }
        )

    def _live(self, message: Row, group: str) -> None:
        at, attempt = message["at_ms"], 0
        while attempt < 3:
            attempt += 1
            at += self._random.randrange(40_000)
            self._tell(message, group, at, ("claimed", attempt, None))
            at += 1 + self._random.randrange(90_000)
            fate = self._random.random()
            if fate < 0.55:
                self._tell(message, group, at, ("acked", attempt, None))
                return
            if fate < 0.65:  # given back: handed out again with the same number
                self._tell(message, group, at, ("released", attempt, None))
                attempt -= 1
            elif fate < 0.72:
                self._tell(message, group, at, ("dead", attempt, "rejected"))
                return
            elif attempt < 3:
                self._tell(message, group, at, ("nacked", attempt, f"no route to host {at}"))
            else:
                cause = self._random.choice((("nacked", f"card 'x{at}' declined"), ("expired", "the lease expired")))
                self._tell(message, group, at, (cause[0], attempt, cause[1]), ("dead", attempt, "attempts"))

    def _tell(self, message: Row, group: str, at_ms: int, *events: tuple[str, int, str | None]) -> None:
        place = {name: message[name] for name in ("queue", "queue_id", "lane")}
        offset = message["offset"]
        self.commits.append(
            [
                {
                    **place,
                    "group": group,
                    "kind": kind,
                    "start": offset,
                    "end": offset + 1,
                    "at_ms": at_ms,
                    "attempt": attempt,
                    "detail": detail,
                }
                for kind, attempt, detail in events
            ]
        )


# The same, one by one ----------------------------------------------------------------------------------------


class Expected:
    """The numbers of a range, by (queue, group)."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str | None], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self.waited: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        self.worked: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        self.reasons: dict[tuple[str, str, str, str | None], int] = defaultdict(int)

    def totals(self) -> list[Row]:
        names = ("published", "bytes", "delivered", "acked", "retried", "dead")
        return [
            {
                "queue": queue,
                "group": group,
                **{name: counts.get(name, 0) for name in names},
                "waited_ms": quantiles(self.waited[queue, group]),
                "worked_ms": quantiles(self.worked[queue, group]),
            }
            for (queue, group), counts in sorted(self.counts.items(), key=lambda item: (item[0][0], item[0][1] or ""))
        ]


def expected(
    messages: Iterable[Row], commits: Sequence[Sequence[Row]], start_ms: int = 0, end_ms: int = 2**60
) -> Expected:
    """Count what is told of minutes that begin in [start, end)."""
    found = Expected()
    published: dict[tuple[int, int, int], int] = {}
    handed: dict[tuple[int, int, int, str], int] = {}

    def counts_at(at_ms: int) -> bool:
        return start_ms <= at_ms - at_ms % 60_000 < end_ms

    for row in messages:
        published[row["queue_id"], row["lane"], row["offset"]] = row["at_ms"]
        if counts_at(row["at_ms"]):
            found.counts[row["queue"], None]["published"] += 1
            found.counts[row["queue"], None]["bytes"] += len(row["payload"])
    for commit in commits:
        for event in commit:
            for offset in range(event["start"], event["end"]):
                _count(found, event, offset, commit, published, handed, counts_at(event["at_ms"]))
    return found


def _count(
    found: Expected,
    event: Row,
    offset: int,
    commit: Sequence[Row],
    published: dict[Any, int],
    handed: dict[Any, int],
    is_wanted: bool,
) -> None:
    message = event["queue_id"], event["lane"], offset
    key, place = (event["queue"], event["group"]), (*message, event["group"])
    add = {"claimed": "delivered", "acked": "acked", "dead": "dead"}.get(event["kind"])
    if is_wanted and add is not None:
        found.counts[key][add] += 1
        found.counts[key]["retried"] += event["kind"] == "claimed" and event["attempt"] > 1
    if event["kind"] == "claimed":
        if place not in handed and message in published and is_wanted:
            found.waited[key].append(event["at_ms"] - published[message])
        handed[place] = event["at_ms"]
    if event["kind"] == "acked" and is_wanted:
        found.worked[key].append(event["at_ms"] - handed[place])
    if event["kind"] == "dead" and is_wanted:
        causes = [one["detail"] for one in commit if one["kind"] in ("nacked", "expired")]
        found.reasons[*key, event["detail"], causes[0] if causes else None] += 1


def quantiles(values: list[int]) -> Row | None:
    """As a sketch of few values has them: exactly."""
    if not values:
        return None
    ordered = sorted(values)
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "count": len(ordered),
        **{name: ordered[math.ceil(rank * len(ordered)) - 1] for name, rank in ranks.items()},
        "max": ordered[-1],
    }
