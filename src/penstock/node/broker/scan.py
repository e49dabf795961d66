"""The log as it is stored, for readers of a queue as a table. Next stop: `node/consume/scans.py`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.results import Scan
from penstock.api.scan import META_COLUMNS, Extent, QueueLanes, Scans, check_columns
from penstock.core.filters import parse
from penstock.model import INTEGER_MAX, TIME_MS_MAX, check_integer
from penstock.node.arguments import lane_of
from penstock.node.broker.names import Names
from penstock.node.consume import scans


class LocalScans(Names, Scans):
    """Reads whole lanes."""

    async def lanes(self, queue: str, time_ms: int | None = None) -> QueueLanes:
        if time_ms is not None:
            check_integer(time_ms, "time_ms", 0, TIME_MS_MAX)
        return await self._services.extents.queue_lanes(self._queue(queue, "browse"), time_ms)

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
        home = self._queue(queue, "browse")
        check_integer(start, "start", 0, INTEGER_MAX)
        check_integer(end, "end", 0, INTEGER_MAX)
        bytes_most = scans.SCAN_BYTES if max_bytes is None else max_bytes
        check_integer(bytes_most, "max_bytes", 1, scans.SCAN_BYTES_MAX)
        names = check_columns(columns, payload, group)
        wanted = scans.Wanted(
            payload and "payload" in names,
            any(name in META_COLUMNS for name in names),
            None if where is None else parse(where),
            None if group is None else self._group(home, group),
        )
        return await self._services.scans.scan(home, lane_of(home, lane), start, end, wanted, bytes_most)

    async def extent(
        self, queue: str, lane: int, start: int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Extent:
        home = self._queue(queue, "browse")
        check_integer(start, "start", 0, INTEGER_MAX)
        if max_rows is not None:
            check_integer(max_rows, "max_rows", 1, INTEGER_MAX)
        if max_bytes is not None:
            check_integer(max_bytes, "max_bytes", 1, INTEGER_MAX)
        return await self._services.extents.extent(home, lane_of(home, lane), start, max_rows, max_bytes)
