"""Traces: the timeline of one id across queues. Where messages of that id went, what happened to them, what was noted.

A message with a `trace_id` leaves a row `published` in the very commit that stores it; `event` adds a row that a
consumer names. Deliveries are not written again: they are read from `$events` when a trace is asked for. Of ephemeral
queues nothing is written down, neither deliveries nor where their messages went; an event that a consumer attaches to
one of their messages is its own, and kept. Rows go TRACE_RETAIN_MS after their time, a minute's worth a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.api.inspect import Trace, TraceEntry
from penstock.batch import meta_column
from penstock.model import ID_CHARACTERS_MAX, check_text
from penstock.model.errors import InvalidArgument, PenstockError
from penstock.model.rows import BatchRow, TraceRow, slot_of
from penstock.node.catalog import Queue
from penstock.node.clock import Clock
from penstock.node.commit.commits import Commits
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Numbers
from penstock.node.observe.history import Histories, MessageKey
from penstock.node.timers import Tasks, Timers
from penstock.store.contract import Log

TRACE_RETAIN_MS: Final = 7 * 24 * 3600 * 1000
EXPIRE_SPAN_MS: Final = 60_000
"""Rows of so much time go in one commit, and no two such commits are nearer than this while nothing is overdue."""
DETAIL_CHARACTERS_MAX: Final = 4_096
ENTRIES_MAX: Final = 100_000
PLACES_MAX: Final = 50
"""Messages of one trace whose deliveries are looked for, the oldest first."""

_TIMER: Final = ("traces",)
_RANK: Final = {"published": 0, "redriven": 1, "claimed": 2, "event": 3}


@dataclass(eq=False, repr=False)
class Traces:
    """Makes trace rows, and lets old ones go."""

    _store: Log
    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _timers: Timers
    _tasks: Tasks
    _numbers: Numbers
    _histories: Histories

    async def open(self) -> None:
        """Expire what is old."""
        oldest_ms = await self._store.oldest_trace()
        if oldest_ms is not None:
            self._expire_at(oldest_ms + TRACE_RETAIN_MS)

    # Into traces ------------------------------------------------------------------------------------------

    def published(self, queue: Queue, lane: int, batches: Sequence[BatchRow]) -> list[TraceRow]:
        """A row for each message of these batches that has a trace id; one look at a batch without that column."""
        rows: list[TraceRow] = []
        for batch in batches:
            ids = meta_column(batch.meta, batch.count, "trace_id")
            if ids is None:
                continue
            index = queue.index_of(lane)
            for offset, trace_id in enumerate(ids, batch.base):
                if trace_id:
                    rows.append(
                        TraceRow(
                            queue.namespace,
                            trace_id,
                            batch.published_ms,
                            self._numbers.next(),
                            "published",
                            queue.name,
                            queue.id,
                            index,
                            offset,
                        )
                    )
        if rows:
            self._expire_at(rows[0].at_ms + TRACE_RETAIN_MS)
        return rows

    async def event(
        self, namespace: str, trace_id: str, name: str, detail: str, consumer: str, place: tuple[Queue, int, int] | None
    ) -> None:
        """Note something by its name, about the message at (queue, lane id, offset) where one is given."""
        at_ms = self._clock.now_ms()
        row = TraceRow(
            namespace, trace_id, at_ms, self._numbers.next(), "event", name=name, detail=detail, consumer=consumer
        )
        if place is not None:
            queue, lane_id, offset = place
            end = await self._lanes.run(lane_id, lambda lane: lane.visible_end)
            index = queue.index_of(lane_id)
            if offset >= end:
                where = f"queue {queue.name!r}" if len(queue.lanes) == 1 else f"lane {index} of queue {queue.name!r}"
                raise InvalidArgument(f"offset is {offset}; {where} ends at {end}, so there never was such a message")
            row = msgspec.structs.replace(row, queue=queue.name, queue_id=queue.id, lane=index, offset=offset)
        slot = None if place is None else slot_of(place[1])
        self._commits.amend(slot).traces.append(row)
        self._expire_at(at_ms + TRACE_RETAIN_MS)
        await self._commits.commit(slot=slot)

    # Out of them ------------------------------------------------------------------------------------------

    def _expire_at(self, time_ms: int) -> None:
        self._timers.at(time_ms, _TIMER, lambda: self._tasks.spawn(self._expire()))

    async def _expire(self) -> None:
        try:
            oldest_ms = await self._store.oldest_trace()
            expired_ms = self._clock.now_ms() - TRACE_RETAIN_MS
            while oldest_ms is not None and oldest_ms <= expired_ms:
                self._commits.amend(None).traces_expired_ms = min(expired_ms, oldest_ms + EXPIRE_SPAN_MS)
                await self._commits.commit()
                oldest_ms = await self._store.oldest_trace()
        except PenstockError:
            self._expire_at(self._clock.now_ms() + EXPIRE_SPAN_MS)
            raise
        if oldest_ms is not None:
            self._expire_at(max(oldest_ms + TRACE_RETAIN_MS, self._clock.now_ms() + EXPIRE_SPAN_MS))

    # The timeline of one id -------------------------------------------------------------------------------

    async def read(self, namespace: str, trace_id: str, most: int) -> Trace:
        """The oldest `most` entries of a trace: its rows, and the deliveries of the messages that they name."""
        rows = await self._store.find_trace(namespace, trace_id, most)
        entries = [
            TraceEntry(
                row.at_ms,
                row.kind,
                row.queue,
                row.lane,
                row.offset,
                consumer=row.consumer,
                name=row.name,
                detail=row.detail,
            )
            for row in rows
        ]
        entries += await self._deliveries(rows)
        return Trace(trace_id, _in_order(entries)[:most])

    async def _deliveries(self, rows: Sequence[TraceRow]) -> list[TraceEntry]:
        """What happened to the messages that were published, from one pass over `$events`, where that is kept."""
        names: dict[MessageKey, str | None] = {}
        times: list[int] = []
        for row in rows:
            if row.kind == "published" and row.lane is not None and row.offset is not None and len(names) < PLACES_MAX:
                names[row.queue_id, row.lane, row.offset] = row.queue
                times.append(row.at_ms)
        if not names:
            return []
        return [
            TraceEntry(
                entry.at_ms,
                entry.kind,
                names[key],
                key[1],
                key[2],
                entry.group,
                entry.consumer,
                entry.attempt,
                detail=entry.detail,
            )
            for key, entry in await self._histories.of_messages(names, min(times))
        ]


def check_trace_id(trace_id: object) -> str:
    """A text of 1 to 255 characters, as messages may have it."""
    check_text(trace_id if trace_id is not None else 0, "trace_id", ID_CHARACTERS_MAX)
    if trace_id == "":
        raise InvalidArgument("trace_id is empty; it needs 1 to 255 characters")
    return str(trace_id)


def check_detail(detail: object) -> None:
    check_text(detail if detail is not None else 0, "detail", DETAIL_CHARACTERS_MAX)


def _in_order(entries: list[TraceEntry]) -> list[TraceEntry]:
    """By time; of one millisecond: where a message went, who got it, what they noted about it, how it ended.

    A message that was published when another died may be its dead letter, and comes behind it.
    """
    deaths_ms = {entry.at_ms for entry in entries if entry.kind == "dead"}
    copies = {_place(entry): entry.at_ms for entry in entries if entry.kind == "published" and entry.at_ms in deaths_ms}

    def key(entry: TraceEntry) -> tuple[int, bool, int]:
        return entry.at_ms, copies.get(_place(entry)) == entry.at_ms, _RANK.get(entry.kind, 4)

    return sorted(entries, key=key)


def _place(entry: TraceEntry) -> tuple[str | None, int | None, int | None]:
    return entry.queue, entry.lane, entry.offset
