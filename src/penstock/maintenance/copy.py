"""A store copied to another one, of any engine: every row as it was, offsets unchanged, and compared at the end.

Both belong to this tool meanwhile (`holding.py`). Lanes go first and the catalog last, in one commit: a copy that broke
off has no queues, and nobody takes it for a whole one. Numbers that the source gave out are never given out by the
target: of leases, outbox rows and traces by incarnations above its own, and ids above its ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.batch import is_intact
from penstock.maintenance.enqueued import carry, check_can_hold
from penstock.maintenance.holding import Held, held
from penstock.maintenance.verify import (
    ROWS_AT_ONCE,
    Progress,
    list_all_dedup,
    list_all_lanes,
    no_progress,
    read_all,
)
from penstock.model import INTEGER_MAX
from penstock.model.errors import AlreadyExists, InvalidArgument, StoreCorrupt
from penstock.model.rows import (
    BatchRow,
    CatalogRow,
    Commit,
    DedupRow,
    LaneChange,
    LaneImage,
    OutboxRow,
    TraceRow,
    slot_of,
)
from penstock.node.catalog import EPHEMERAL_FROM
from penstock.store.contract import FullStore
from penstock.store.open import label_of

TOOL: Final = "penstock store copy"
COMMIT_BYTES: Final = 8 << 20
COMMIT_ROWS: Final = 5_000
"""A commit of the target has about this much at the most."""

Row = TypeVar("Row")


class Copied(msgspec.Struct):
    """What was copied, and found again in the target."""

    source: str
    target: str
    queues: int = 0
    lanes: int = 0
    batches: int = 0
    messages: int = 0
    bytes: int = 0
    ids: int = 0
    outbox: int = 0
    traces: int = 0
    enqueued: int = 0
    """Messages that applications have enqueued and no server has published."""
    seconds: float = 0.0


async def copy(source: str, target: str, progress: Progress = no_progress) -> Copied:
    """Copy a whole store to an empty one."""
    started = monotonic()
    check_places(source, target)
    async with (
        held(source, TOOL, must_exist=True) as old,
        held(target, TOOL, must_exist=False, above=old.incarnation) as new,
    ):
        await check_empty(new)
        await check_can_hold(old.store, new.store, old.label, new.label)
        copied = await Copying(old, new, progress).run()
    copied.seconds = round(monotonic() - started, 3)
    return copied


def check_places(source: str, target: str) -> None:
    if label_of(source) == label_of(target):
        raise InvalidArgument(f"{label_of(source)} cannot be copied to itself; name another place")


async def check_empty(target: Held) -> None:
    store = target.store
    parts: tuple[Sequence[object], ...] = (
        await store.catalog(),
        await store.list_lanes(-1, 1),
        await store.outbox(-1, 1),
        await store.list_traces(-1, 1),
        [] if store.enqueueing is None else await store.enqueueing.list_all(-INTEGER_MAX, 1),
    )
    if any(parts):
        raise AlreadyExists(f"{target.label} is not empty; name a place where there is no store, or an empty one")


class Copying:
    """One copy, from a store to another; both are held."""

    def __init__(self, source: Held, target: Held, progress: Progress) -> None:
        self._source = source.store
        self._target = target.store
        self._held = target
        self._progress = progress
        self._done = Copied(source.label, target.label)

    async def run(self) -> Copied:
        lanes = await list_all_lanes(self._source)
        collected = Collected(self._target, self._held.epochs)
        for number, lane in enumerate(lanes):
            self._progress("copying lanes", number, len(lanes))
            async for change in self._changes(lane):
                await collected.put(change)
        await collected.flush()
        self._done.enqueued = await carry(self._source, self._target, self._done.target)
        await self._copy_rest()
        await self._compare(lanes)
        return self._done

    async def _changes(self, lane: int) -> AsyncIterator[LaneChange]:
        [image] = await self._source.load([lane], 0)
        self._done.lanes += 1
        ids, batches = list_all_dedup(self._source, lane), self._sound_batches(image)
        async for change in changes_of(image, ids=ids, batches=batches):
            self._done.ids += len(change.dedup)
            yield change

    async def _sound_batches(self, image: LaneImage) -> AsyncIterator[BatchRow]:
        async for row in read_all(self._source, image):
            if not row.is_intact and not is_intact(row.body):
                raise damaged(self._done.source, image.lane, row)
            self._done.batches += 1
            self._done.messages += row.count
            self._done.bytes += row.size
            yield row

    async def _copy_rest(self) -> None:
        catalog = await self._source.catalog()
        self._done.queues = sum(row.kind == "queue" for row in catalog)
        rest = await commit_rest(self._source, self._held, catalog, await self._source.reserve_ids(1))
        self._done.outbox, self._done.traces = rest

    # Comparing --------------------------------------------------------------------------------------------

    async def _compare(self, lanes: list[int]) -> None:
        """Read all of it back from the target."""
        source, target = self._source, self._target
        self._same(await list_all_lanes(target), lanes, "the lanes")
        for number, lane in enumerate(lanes):
            self._progress("comparing lanes", number, len(lanes))
            [was], [found] = await source.load([lane], 0), await target.load([lane], 0)
            self._same(in_order(found), in_order(was), f"the rows of lane {lane}")
            await self._same_all(read_all(target, was), read_all(source, was), f"the batches of lane {lane}")
            await self._same_all(
                list_all_dedup(target, lane), list_all_dedup(source, lane), f"the dedup ids of lane {lane}"
            )
        await self._same_all(all_outbox(target), all_outbox(source), "the outbox")
        await self._same_all(_all_traces(target), _all_traces(source), "the traces")
        self._same(sorted_rows(await target.catalog()), sorted_rows(await source.catalog()), "the catalog")
        self._progress("comparing lanes", len(lanes), len(lanes))

    async def _same_all(self, found: AsyncIterator[object], expected: AsyncIterator[object], what: str) -> None:
        end = object()
        async for one in expected:
            self._same(plain(await anext(found, end)), plain(one), what)
        self._same(await anext(found, end), end, what)

    def _same(self, found: object, expected: object, what: str) -> None:
        if found != expected:
            raise not_same(what, self._done)


def damaged(source: str, lane: int, row: BatchRow) -> StoreCorrupt:
    return StoreCorrupt(
        f"{source} is damaged: the payloads of offsets {row.base} to {row.end - 1} of lane {lane} fail their checksum; "
        "'penstock store verify' tells whose they are"
    )


def not_same(what: str, done: Copied) -> StoreCorrupt:
    return StoreCorrupt(f"{what} are not the same in {done.target} as in {done.source}: it is no copy; delete it")


async def changes_of(
    image: LaneImage,
    *,
    ids: AsyncIterator[DedupRow] | None = None,
    batches: AsyncIterator[BatchRow] | None = None,
) -> AsyncIterator[LaneChange]:
    """What an image holds, with these ids and batches, in changes of bounded size."""
    for name in ("groups", "leases", "waiting", "dead"):
        for rows in _pages(getattr(image, name), COMMIT_ROWS):
            yield _change(image, **{name: rows})
    if ids is not None:
        async for known in _gathered(ids, lambda _: COMMIT_BYTES // COMMIT_ROWS):
            yield _change(image, dedup=known)
    if batches is not None:
        async for page in _gathered(batches, lambda row: row.size):
            yield _change(image, batches=page)
    yield _change(image)


async def commit_rest(
    source: Readable, target: Held, catalog: list[CatalogRow], last_id: int, lanes: Collection[int] | None = None
) -> tuple[int, int]:
    """Commit what belongs to no lane; the catalog last, in one commit. How many outbox and trace rows there were.

    Of the outbox only what was promised of these lanes, if any are given, and of those of ephemeral queues.
    """
    store, any_slot = target.store, {0: target.epochs[0]}
    outbox = traces = 0
    async for page in all_outbox(source):
        promised = [row for row in page if lanes is None or row.lane in lanes or row.lane >= EPHEMERAL_FROM]
        await store.apply(Commit(epochs=any_slot, outbox=promised))
        outbox += len(promised)
    async for happened in _all_traces(source):
        await store.apply(Commit(epochs=any_slot, traces=happened))
        traces += len(happened)
    await store.reserve_ids(1, above=last_id)
    await store.apply(Commit(epochs=target.epochs, catalog=catalog))
    return outbox, traces


class Readable(Protocol):
    """What is copied of a store besides its lanes."""

    async def outbox(self, after: int, most: int, slots: Sequence[int] | None = None) -> list[OutboxRow]:
        """As in the contract."""

    async def list_traces(self, after_ms: int, most: int) -> list[TraceRow]:
        """As in the contract."""


class Collected:
    """Changes of lanes on their way into commits: one for many small lanes, several for a large one."""

    def __init__(self, store: FullStore, epochs: dict[int, int]) -> None:
        self._store = store
        self._epochs = epochs
        self._changes: dict[int, LaneChange] = {}
        self._size = 0

    async def put(self, change: LaneChange) -> None:
        is_alone = not self._store.capabilities.spans_slots
        size = _size(change)
        if change.lane in self._changes or self._size + size > COMMIT_BYTES or (is_alone and self._changes):
            await self.flush()
        self._changes[change.lane] = change
        self._size += size

    async def flush(self) -> None:
        changes = list(self._changes.values())
        self._changes, self._size = {}, 0
        if changes:
            slots = {slot_of(change.lane) for change in changes}
            await self._store.apply(Commit(epochs={slot: self._epochs[slot] for slot in slots}, lanes=changes))


def _size(change: LaneChange) -> int:
    """About what it adds to a commit."""
    rows = len(change.groups) + len(change.leases) + len(change.waiting) + len(change.dead)
    rows += len(change.dedup) + len(change.batches)
    return (1 + rows) * (COMMIT_BYTES // COMMIT_ROWS) + sum(row.size for row in change.batches)


def _change(image: LaneImage, **rows: list[Row]) -> LaneChange:
    fields: dict[str, object] = dict(rows)
    return msgspec.structs.replace(LaneChange(image.lane, image.first, image.end, image.bytes_end), **fields)


def _pages(rows: Sequence[Row], most: int) -> Iterator[list[Row]]:
    left = iter(rows)
    while page := list(islice(left, most)):
        yield page


async def _gathered(rows: AsyncIterator[Row], size_of: Callable[[Row], int]) -> AsyncIterator[list[Row]]:
    """Rows, as many together as a commit takes."""
    page: list[Row] = []
    size = 0
    async for row in rows:
        if page and size + size_of(row) > COMMIT_BYTES:
            yield page
            page, size = [], 0
        page.append(row)
        size += size_of(row)
    if page:
        yield page


async def all_outbox(store: Readable) -> AsyncIterator[list[OutboxRow]]:
    after = -1
    while rows := await store.outbox(after, ROWS_AT_ONCE):
        yield rows
        after = rows[-1].id


async def _all_traces(store: Readable) -> AsyncIterator[list[TraceRow]]:
    after_ms = -1
    while rows := await store.list_traces(after_ms, ROWS_AT_ONCE):
        yield sorted_rows(rows)
        after_ms = max(row.at_ms for row in rows)


def sorted_rows(rows: Sequence[Row]) -> list[Row]:
    """In one order, whatever the engine's."""
    return sorted(rows, key=repr)


def in_order(image: LaneImage) -> LaneImage:
    rows = {name: sorted_rows(getattr(image, name)) for name in ("groups", "leases", "waiting", "dead")}
    return msgspec.structs.replace(image, **rows)


def plain(row: object) -> object:
    """A row without what an engine says of how it read it."""
    return msgspec.structs.replace(row, is_intact=False) if isinstance(row, BatchRow) else row
