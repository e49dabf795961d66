"""A store that is brought up to another one's state, in rounds, while servers go on writing to that one.

What a lane appends never changes, so each round reads only what is new: batches and ids from the last end on. What does
change (cursors, leases, waiting, dead) is small; a lane whose rows are the same as last time is passed over. All that
is written is read back and compared. It may not know who writes to the source, nor when to stop. Next stop:
`online.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgspec

from penstock.batch import is_intact
from penstock.maintenance.copy import (
    COMMIT_ROWS,
    Collected,
    Copied,
    Readable,
    all_outbox,
    changes_of,
    commit_rest,
    damaged,
    in_order,
    not_same,
    plain,
    sorted_rows,
)
from penstock.maintenance.declared import read_declared
from penstock.maintenance.holding import Held
from penstock.maintenance.verify import (
    LANES_AT_ONCE,
    READ_BYTES,
    ROWS_AT_ONCE,
    Progress,
    Rows,
    list_all_dedup,
    list_all_lanes,
)
from penstock.model import INTEGER_MAX
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    Commit,
    DedupRow,
    LaneChange,
    LaneImage,
    OutboxRow,
    TraceRow,
    slot_of,
)

HEADS_AT_ONCE: Final = 1_000
TRACES_AGAIN_MS: Final = 30_000
"""Traces of the last time before a round are copied again: clocks of nodes differ."""
_KEYS: Final[dict[str, Callable[[Any], Any]]] = {
    "groups": lambda row: row.group,
    "leases": lambda row: (row.group, row.lease),
    "waiting": lambda row: (row.group, row.chunk),
    "dead": lambda row: (row.group, row.start),
}


class Source(Rows, Protocol):
    """What is read of the store that is followed."""

    async def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> list[BatchHead]:
        """As in the contract."""

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        """As in the contract."""


class Tally:
    """Rows in order, as a number and a digest: two are equal where the rows were."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = blake2b(digest_size=16)

    def add(self, row: object) -> None:
        self.count += 1
        self._digest.update(msgspec.msgpack.encode(row))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and self.text() == other.text()

    __hash__ = None  # type: ignore[assignment]

    def text(self) -> str:
        return f"{self.count} {self._digest.hexdigest()}"


@dataclass
class Work:
    """One lane in one round."""

    image: LaneImage
    start: int
    end: int
    is_queue: bool
    """Otherwise it belongs to a staged transaction or to the nodes, and is not written in order."""
    batches: Tally = field(default_factory=Tally)
    ids: Tally = field(default_factory=Tally)


def _digest(image: LaneImage) -> str:
    rows = Tally()
    rows.add(image)
    return rows.text()


class Recent:
    """The rest of a store, without traces that are copied already."""

    def __init__(self, source: Readable, since_ms: int) -> None:
        self._source = source
        self._since_ms = since_ms

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        return await self._source.outbox(after, most, slots)

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        return await self._source.list_traces(max(after_ms, self._since_ms), most)


class Following:
    """One target on its way after a source."""

    def __init__(self, target: Held, progress: Progress, done: Copied) -> None:
        self._held = target
        self._target = target.store
        self._progress = progress
        self._done = done
        self._seen: dict[int, str] = {}
        """By lane: its rows, as a digest."""
        self._ends: dict[int, int] = {}
        """By lane of a queue: up to where its batches and ids are in the target."""
        self._heads: dict[int, set[BatchHead]] = {}
        """By any other lane, which is not written in order: the batches that are."""
        self._traces_ms = -1

    async def round(self, source: Source, stage: str) -> None:
        """Copy what is new of every lane."""
        queues = read_declared(await source.catalog()).catalog.by_lane
        lanes = await list_all_lanes(source)
        await self._delete(set(self._seen) - set(lanes))
        for start in range(0, len(lanes), LANES_AT_ONCE):
            self._progress(stage, start, len(lanes))
            images = await source.load(lanes[start : start + LANES_AT_ONCE], 0)
            works = [Work(image, *self._range(image, is_queue=image.lane in queues)) for image in images]
            await self._copy(source, [one for one in works if not one.is_queue or self._is_new(one.image)])
        self._progress(stage, len(lanes), len(lanes))

    def _is_new(self, image: LaneImage) -> bool:
        return self._seen.get(image.lane) != _digest(image)

    def _range(self, image: LaneImage, *, is_queue: bool) -> tuple[int, int, bool]:
        """From where to where batches and ids are to be copied."""
        return (self._ends.get(image.lane, 0), image.end, True) if is_queue else (0, INTEGER_MAX, False)

    async def copy_traces(self, source: Source) -> None:
        """Those up to now: they are many, and `finish` shall have only the last left."""
        while rows := await source.list_traces(self._traces_ms, ROWS_AT_ONCE):
            await self._target.apply(Commit(epochs={0: self._held.epochs[0]}, traces=rows))
            self._done.traces += len(rows)
            self._traces_ms = max(row.at_ms for row in rows)

    async def finish(self, source: Source, last_id: int) -> None:
        """What belongs to no lane, and the catalog, with which the copy becomes a store."""
        catalog = await source.catalog()
        self._done.queues = sum(row.kind == "queue" for row in catalog)
        self._done.lanes = len(self._seen)
        rest = Recent(source, self._traces_ms - TRACES_AGAIN_MS)
        self._done.outbox, again = await commit_rest(rest, self._held, catalog, last_id)
        self._done.traces = max(self._done.traces, again)
        self._same(sorted_rows(await self._target.catalog()), sorted_rows(catalog), "the catalog")
        found, expected = Tally(), Tally()
        for store, tally in ((self._target, found), (source, expected)):
            async for page in all_outbox(store):
                for row in page:
                    tally.add(row)
        self._same(found, expected, "the outbox")

    async def _delete(self, lanes: set[int]) -> None:
        for lane in lanes:
            slot = slot_of(lane)
            await self._target.apply(Commit(epochs={slot: self._held.epochs[slot]}, lanes_deleted=[lane]))
            for known in (self._seen, self._ends, self._heads):
                known.pop(lane, None)

    # Lanes ------------------------------------------------------------------------------------------------

    async def _copy(self, source: Source, works: list[Work]) -> None:
        """Copy what is new of some lanes, many small ones with one commit, and read it back."""
        lanes = [one.image.lane for one in works]
        collected = Collected(self._target, self._held.epochs)
        for work, old in zip(works, await self._target.load(lanes, 0), strict=True):
            image = work.image
            bare = LaneImage(image.lane, image.first, image.end, image.bytes_end)
            batches, ids = self._batches(source, work), self._ids(source, work)
            async for change in changes_of(bare, ids=ids, batches=batches):
                await collected.put(change)
            for change in changes_between(old, image):
                await collected.put(change)
        await collected.flush()
        for work, found in zip(works, await self._target.load(lanes, 0), strict=True):
            image = work.image
            if work.is_queue:
                await self._compare(work)
                self._ends[image.lane] = image.end
            # What a server trimmed in between is not there; the next round trims it.
            found.published_ms = image.published_ms
            self._same(in_order(found), in_order(image), f"the rows of lane {image.lane}")
            self._done.ids += work.ids.count
            self._seen[image.lane] = _digest(image)

    async def _unknown(self, source: Source, lane: int) -> AsyncIterator[BatchRow]:
        """Batches of a lane that are not in the target, by their heads."""
        known, start = self._heads.setdefault(lane, set()), 0
        while page := await source.heads(lane, start, HEADS_AT_ONCE, READ_BYTES):
            for head in page:
                if head not in known:
                    for row in await source.read(lane, head.base, head.base + 1, 1):
                        yield row
                    known.add(head)
            start = page[-1].end

    async def _batches(self, source: Source, work: Work) -> AsyncIterator[BatchRow]:
        lane = work.image.lane
        rows = _read_between(source, lane, work.start, work.end) if work.is_queue else self._unknown(source, lane)
        async for row in rows:
            if not row.is_intact and not is_intact(row.body):
                raise damaged(self._done.source, lane, row)
            work.batches.add(plain(row))
            self._done.batches += 1
            self._done.messages += row.count
            self._done.bytes += row.size
            yield row

    async def _ids(self, source: Source, work: Work) -> AsyncIterator[DedupRow]:
        async for row in list_all_dedup(source, work.image.lane, work.start):
            if row.offset < work.end:
                work.ids.add(row)
                yield row

    async def _compare(self, work: Work) -> None:
        """Read back what was appended."""
        lane = work.image.lane
        if work.batches.count:
            written = Tally()
            async for row in _read_between(self._target, lane, work.start, work.end):
                written.add(plain(row))
            self._same(written, work.batches, f"the batches of lane {lane}")
        if work.ids.count:
            listed = Tally()
            async for one in list_all_dedup(self._target, lane, work.start):
                listed.add(one)
            self._same(listed, work.ids, f"the dedup ids of lane {lane}")

    def _same(self, found: object, expected: object, what: str) -> None:
        if found != expected:
            raise not_same(what, self._done)


def changes_between(old: LaneImage, new: LaneImage) -> Iterator[LaneChange]:
    """What makes the rows of one image those of another, in changes of bounded size."""

    def change(**rows: Any) -> LaneChange:
        return msgspec.structs.replace(LaneChange(new.lane, new.first, new.end, new.bytes_end), **rows)

    gone: dict[str, list[Any]] = {}
    for name, key in _KEYS.items():
        was, now = ({key(row): row for row in getattr(image, name)} for image in (old, new))
        gone[f"{name}_deleted"] = [one for one in was if one not in now]
        put = [row for one, row in now.items() if was.get(one) != row]
        for start in range(0, len(put), COMMIT_ROWS):
            yield change(**{name: put[start : start + COMMIT_ROWS]})
    yield change(trim_to=new.first if new.first > old.first else None, **gone)


async def _read_between(rows: Rows, lane: int, start: int, end: int) -> AsyncIterator[BatchRow]:
    while page := await rows.read(lane, start, end, READ_BYTES):
        for row in page:
            yield row
        start = page[-1].end
