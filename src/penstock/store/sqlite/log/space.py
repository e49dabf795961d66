"""Compaction of the log: segments that nothing points into are deleted, and sparse ones are emptied.

The live bodies of a sparse segment move into their index rows, so that one old message does not keep 64 MiB. A segment
is deleted once an index that does not point into it is synced. It may not know commits, threads or turns: it runs
inside the writer's turn. Next stop: back to `store/sqlite/index.py`.
"""

from __future__ import annotations

import os
from typing import Final

from penstock.model.errors import StoreCorrupt
from penstock.store.sqlite.file import Connection, durably
from penstock.store.sqlite.log import segments as log_segments
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.statements import SQL

SLACK_SEGMENTS: Final = 2
"""Segments' worth of dead bytes that compaction leaves alone."""


def clean(connection: Connection, segments: Segments, live: dict[int, int], current: int) -> None:
    """Delete what can go of the segments before `current`, up to which the tables know the log; `live` forgets them."""
    current = min(current, segments.wanted_from())
    closed = [number for number in segments.numbers() if number < current]
    gone = [number for number in closed if not live.get(number)]
    wasteful = _wasteful(segments, live, closed)
    if not gone and wasteful is None:
        return

    def forget(connection: Connection) -> None:
        if wasteful is not None:
            _take_bodies_in(connection, segments, wasteful)
            gone.append(wasteful)
        connection.executemany(SQL.delete_segment, [(number,) for number in gone])
        connection.execute(SQL.count_sync)

    with segments.giving_back() as is_free:
        if not is_free:
            return  # a backup holds them; the next time will do
        durably(connection, forget)
        for number in gone:
            live.pop(number, None)
            segments.remove(number)


def _wasteful(segments: Segments, live: dict[int, int], closed: list[int]) -> int | None:
    """The segment with the least left in it, if all together take more than twice what is needed of them."""
    sizes = {number: segments.path(number).stat().st_size for number in closed if live.get(number)}
    needed = sum(live[number] for number in sizes)
    if sum(sizes.values()) <= 2 * needed + SLACK_SEGMENTS * log_segments.SEGMENT_BYTES_MOST:
        return None
    least = min(sizes, key=lambda number: live[number] / sizes[number])
    return least if 2 * live[least] <= sizes[least] else None


def _take_bodies_in(connection: Connection, segments: Segments, number: int) -> None:
    path = segments.path(number)
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for row, position, size, lane, base in connection.execute(SQL.live_in_segment, (number,)).fetchall():
            body = os.pread(file, size, position)
            if len(body) != size:
                raise StoreCorrupt(f"the log file {path} ends before the messages from {base} of lane {lane} on")
            connection.execute(SQL.inline_body, (body, row))
    finally:
        os.close(file)
