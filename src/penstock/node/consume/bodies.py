"""Bodies of messages that were handed out: cut from batches in memory, else read from the store, a little ahead.

A group that goes through the log in order needs next what follows: that is read before it asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from penstock.api.results import Slice
from penstock.core.group.claim import CLAIM_BYTES_MAX
from penstock.core.group.entries import Entry, runs_of, union
from penstock.core.lane import Lane
from penstock.model.errors import PenstockError, StoreCorrupt
from penstock.model.rows import BatchRow
from penstock.node.cache import BatchCache, CachedBatch
from penstock.node.lanes import LaneSet
from penstock.node.observe.damage import Damage
from penstock.node.timers import Tasks

READ_BYTES: Final = 2 * 1024 * 1024
LAG_TO_READ_AHEAD: Final = 1_000
BATCHES_READ: Final = 16
BATCHES_AHEAD: Final = 8
"""Batches left in memory at which more are read ahead for a lagging group."""


class Bodies:
    """Reads through the cache."""

    def __init__(self, cache: BatchCache, lanes: LaneSet, tasks: Tasks, damage: Damage) -> None:
        self._cache = cache
        self._lanes = lanes
        self._tasks = tasks
        self._damage = damage
        self._reading_ahead: set[int] = set()

    def cached(self, lane: Lane, entries: Sequence[Entry]) -> list[Slice] | None:
        """The messages of one run inside one batch that is in memory: the common case of small claims.

        None where that is not so, where they are damaged, or where they are more than one answer may hold.
        """
        if len(entries) > 1 and len(runs_of(entries)) > 1:
            return None
        start, end, attempts = entries[0].start, entries[-1].end, entries[0].attempts
        batch = self._find(lane, start)
        if batch is None or end > batch.end or not batch.reader.is_intact():
            return None
        if end - start > 1 and (end - start) * batch.reader.bytes_each > CLAIM_BYTES_MAX:
            return None
        self._cache.hits += 1
        return [Slice(batch.reader, start - batch.base, end - batch.base, start, batch.published_ms, attempts)]

    async def slices(
        self, lane: Lane, entries: Sequence[Entry], *, ahead: bool = False, bytes_most: int = CLAIM_BYTES_MAX
    ) -> list[Slice]:
        """The messages of entries, cut from their batches; from memory where they are, else from the store.

        They end where they are about `bytes_most` when decompressed, but there is always one. A claim or a read asks
        for no more, unless it could not know: batches of a store of version 0.1.0 do not say how far they unfold.
        `ahead` reads what follows too: a group that lags needs it with its next claims.
        """
        slices: list[Slice] = []
        left = bytes_most
        batch: CachedBatch | None = None
        for start, end, attempts in runs_of(entries):
            while start < end:
                if batch is None or not batch.base <= start < batch.end:
                    batch = self._find(lane, start)
                    if batch is not None:
                        self._cache.hits += 1
                    else:
                        self._cache.misses += 1
                        until = max(end, _some_batches_on(lane, start)) if ahead else end
                        batch = await self._read_whole(lane, start, until)
                each = batch.reader.bytes_each
                room = left // each
                if room <= 0 and slices:
                    return slices
                stop = min(end, batch.end, start + max(room, 1))
                slices.append(
                    Slice(batch.reader, start - batch.base, stop - batch.base, start, batch.published_ms, attempts)
                )
                left -= (stop - start) * each
                start = stop
        return slices

    def damage_of(self, lane: Lane, part: Slice) -> str:
        """Tell of a slice's batch, which is damaged; the text that says so."""
        return self._damage.found_in(lane.id, part.offset - part.start, part.reader)

    def sifted(self, lane: Lane, slices: Sequence[Slice]) -> tuple[list[Slice], list[tuple[int, int]]]:
        """Those that can be read, and the offsets of the others: each up to the end of its batch, as far as is visible.

        Looked at now, not when somebody decodes them: what cannot be read must not count as given.
        """
        damaged = [part for part in slices if not part.reader.is_intact()]
        if not damaged:
            return list(slices), []
        for part in damaged:
            self.damage_of(lane, part)
        gaps = [
            (part.offset, min(part.offset - part.start + part.reader.batch.count, lane.visible_end)) for part in damaged
        ]
        return [part for part in slices if part.reader.is_intact()], union(gaps)

    def read_ahead(self, lane: Lane, group_id: int, end: int) -> None:
        """A group was given messages up to `end`: where it lags and goes in order, read what it needs next."""
        group = lane.groups.get(group_id)
        if group is None or lane.visible_end - group.next < LAG_TO_READ_AHEAD or lane.id in self._reading_ahead:
            return
        if end != group.next:
            return
        ahead = lane.log.peek_some(group.next, BATCHES_AHEAD)
        if ahead and self._cache.has(lane.id, ahead[-1].base):
            return  # and so, nearly always, are those before it: others of the lane's groups were here, or this one
        for segment in ahead:
            if segment.base >= lane.visible_end:
                return
            if not self._cache.has(lane.id, segment.base):
                offset = max(segment.base, group.next)
                self._reading_ahead.add(lane.id)
                self._tasks.spawn(self._fill(lane.id, offset, _some_batches_on(lane, offset)))
                return

    async def _fill(self, lane: int, start: int, end: int) -> None:
        with suppress(PenstockError):  # the reader that needs it reads it then, and gets the error
            await self._read(lane, start, end)
        self._reading_ahead.discard(lane)

    def _find(self, lane: Lane, offset: int) -> CachedBatch | None:
        """The batch that holds an offset, if both its place and its bytes are in memory."""
        segment = lane.log.peek(offset)
        return None if segment is None else self._cache.get(lane.id, segment.base)

    async def _read_whole(self, lane: Lane, start: int, end: int) -> CachedBatch:
        """Like `_read`. A batch that is missing or cannot be read is damaged, and keeps nobody from the others."""
        visible_end = lane.visible_end
        try:
            return await self._read(lane.id, start, end)
        except StoreCorrupt as error:
            if start < lane.first:
                raise  # a claim alone reads what is not pinned, and has lost its lease
            segment = lane.log.peek(start)
            self._lanes.check_stored(lane, start + 1 if segment is None else segment.end, visible_end)
            if segment is None:
                raise
            if end > segment.end:  # it may have been one of those behind it
                return await self._read_whole(lane, start, segment.end)
            place = segment.base, segment.end - segment.base, segment.published_ms, segment.bytes_end
            self._damage.found(lane.id, segment.base, segment.end, "body", f"cannot be read: {error}")
            return CachedBatch(BatchRow(*place, segment.meta, b""), is_checked=False)

    async def _read(self, lane: int, start: int, end: int) -> CachedBatch:
        """Read the batches of a range into the cache, a large read at a time; the first of them."""
        rows = await self._lanes.store_of(lane).read(lane, start, end, READ_BYTES)
        if not rows or not rows[0].base <= start < rows[0].end:
            raise StoreCorrupt(f"offset {start} of lane {lane} should be in the store, but is not")
        # The first is put last, so that it is not pushed out before it is used.
        return [self._cache.put(lane, row) for row in reversed(rows)][-1]


def _some_batches_on(lane: Lane, offset: int) -> int:
    """The end of what is read ahead: a bounded number of batches, for a small one may unfold to a large one."""
    for segment in lane.log.peek_some(offset, BATCHES_READ):
        if segment.end > lane.visible_end:
            break
        offset = segment.end
    return offset
