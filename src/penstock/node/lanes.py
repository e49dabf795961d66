"""The lanes a node has in memory: loaded when first used, thrown away when a commit failed.

Commands run through `run`, which loads what is missing and asks again; a command itself never waits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from penstock.api.slices import others_first
from penstock.core.dedup import IDS_IN_MEMORY_MAX
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.errors import NotFound, PenstockError, StoreCorrupt, Unavailable
from penstock.model.options import Start
from penstock.model.rows import GroupRow, LaneImage, slot_of
from penstock.model.work import Pause
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue
from penstock.node.cluster.ownership import Ownership
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.damage import Damage
from penstock.store.contract import Store

PAGE_BATCHES = 256
PAGE_BYTES = 4 * 1024 * 1024
LOAD_AT_ONCE = 500
LANES_MAX = 25_000
"""Loaded lanes above which those with nothing under way are let go; they are loaded again when used."""
LOOK_AT_ONCE = 8
MEMORY_PAUSE_S = 0.05
"""Memory answers at once: what is due there and fails, because the store is away, would fail again and again."""

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class LaneSet:
    """Loaded lanes by id."""

    _catalog: Catalog
    _store: Store
    _memory: Store
    _ownership: Ownership
    """Says which lanes are this node's: what is loaded is changed by this node alone."""
    _lifecycle: Lifecycle
    _catalog_known: Callable[[], Awaitable[None]]
    """Returns when it is known what is declared."""
    _damage: Damage

    def __post_init__(self) -> None:
        self.on_loaded: list[Callable[[Lane], None]] = []
        """Told of a lane that was read from the store."""
        self.in_use: list[Callable[[Lane], bool]] = []
        """Asked whether a lane is needed in memory although nothing is under way in it."""
        self.broken: Callable[[Lane, AssertionError], PenstockError]
        """Told of a lane on which a command failed halfway; what the caller is told: `Commits.broken`."""
        self._loaded: dict[int, Lane] = {}
        self._loading: dict[int, asyncio.Future[None]] = {}
        self._pins: dict[int, dict[int, int]] = {}
        """Pins of lanes that were given up: their readers go on."""
        self._overtaken: set[int] = set()
        """Lanes of which a commit failed while they were read: it may have deleted them before they were."""
        self._memory_from = 0.0
        """When ephemeral lanes may be loaded again after a failed commit."""
        self._wanted: list[int] = []
        self._loader: asyncio.Task[None] | None = None

    def _epoch_of(self, lane: int) -> int:
        return self._ownership.epoch(slot_of(lane))

    def store_of(self, lane: int) -> Store:
        return self._memory if lane >= EPHEMERAL_FROM else self._store

    def get(self, id: int) -> Lane | None:
        return self._loaded.get(id)

    @property
    def count(self) -> int:
        """How many are loaded."""
        return len(self._loaded)

    def loaded(self) -> list[Lane]:
        return list(self._loaded.values())

    def add_new(self, id: int, groups: Sequence[GroupRow] = ()) -> Lane:
        """The lane of a queue that was just created: there is nothing to load."""
        lane = self._loaded[id] = self._make(LaneImage(id, groups=list(groups)))
        self._let_go()
        return lane

    def _let_go(self) -> None:
        """With many lanes loaded, forget a few of the oldest that are idle; the others get a second chance."""
        for id in list(itertools.islice(self._loaded, LOOK_AT_ONCE)) if len(self._loaded) > LANES_MAX else ():
            lane = self._loaded.pop(id)
            if id >= EPHEMERAL_FROM or not self._is_idle(lane):
                self._loaded[id] = lane

    def _is_idle(self, lane: Lane) -> bool:
        """Whether a lane can be forgotten and loaded again without anybody noticing."""
        return lane.is_idle() and not any(is_used(lane) for is_used in self.in_use)

    def give_up(self, ids: set[int]) -> None:
        """A commit failed: what is in memory of these lanes may not be so."""
        self.drop(ids)
        self._overtaken |= ids & self._loading.keys()
        if any(id >= EPHEMERAL_FROM for id in ids):
            self._memory_from = asyncio.get_running_loop().time() + MEMORY_PAUSE_S

    def drop(self, ids: set[int]) -> None:
        for id in ids:
            lane = self._loaded.pop(id, None)
            if lane is not None and lane.pins:
                self._pins[id] = lane.pins

    def check_stored(self, lane: Lane, end: int, visible_end: int) -> None:
        """Raise unless the store had to have what is below `end` as it was read; `visible_end` was the lane's then."""
        is_alone = self._ownership.keeps(slot_of(lane.id), self._epoch_of(lane.id))  # or others may have trimmed it
        if not is_alone or self._loaded.get(lane.id) is not lane or not lane.first < end <= visible_end:
            raise Unavailable(f"lane {lane.id} changed while it was read below {end}; try again")

    async def run(self, id: int, command: Callable[[Lane], Result]) -> Result:
        """Run a command on a lane, with whatever must be loaded for it, and with others' work where it takes long."""
        while True:
            lane = self._loaded.get(id)
            if lane is None:
                await self.load(id)
                continue
            try:
                return command(lane)
            except Missing as missing:
                await self.feed(id, missing.start)
            except Pause:
                await others_first()
            except AssertionError as failure:
                raise self.broken(lane, failure) from failure

    async def offset_at(self, id: int, start: Start) -> int:
        """The offset of a place in a lane: its beginning, its end, or the first message from a time on."""
        lane = await self.run(id, lambda lane: lane)
        if start == "beginning":
            return lane.first
        if start == "now":
            return lane.visible_end
        found = await self.store_of(id).find_time(id, int(start))
        return lane.visible_end if found is None else max(found, lane.first)

    async def together(self, ids: Sequence[int]) -> list[Lane]:
        """Several lanes, all loaded at one and the same moment."""
        while True:
            lanes = [self._loaded.get(id) for id in ids]
            found = [lane for lane in lanes if lane is not None]
            if len(found) == len(lanes):
                return found
            for id, lane in zip(ids, lanes, strict=True):
                if lane is None:
                    await self.load(id)

    async def feed(self, id: int, start: int) -> None:
        """Read a page of heads from the store into a lane's log."""
        try:
            heads = await self.store_of(id).heads(id, start, PAGE_BATCHES, PAGE_BYTES)
        except StoreCorrupt as error:
            raise self._damage.lane_found(id, StoreCorrupt(f"from offset {start} on: {error}")) from error
        lane = self._loaded.get(id)
        if lane is None or start < lane.first:
            return  # given up or trimmed meanwhile: the caller looks again
        if not heads or not heads[0].base <= start < heads[0].end:
            self._ownership.check(slot_of(id))
            raise self._damage.lane_found(id, StoreCorrupt(f"offset {start} should be in the store, but is not"))
        for base, end in lane.log.feed(heads):
            self._damage.found(id, base, end, "meta")

    async def load(self, id: int) -> None:
        """Load a lane; many asked for at once are loaded together."""
        if id not in self._catalog.by_lane:
            raise NotFound(f"there is no lane {id}: its queue was deleted")
        self._ownership.check_taken(slot_of(id))
        if self._lifecycle.fenced is not None:
            # A lane with something due would be loaded, fail to commit and be dropped, again and again.
            raise self._lifecycle.fenced
        if id in self._loaded:
            return  # an image read meanwhile would be old by the time it is wanted
        future = self._loading.get(id)
        if future is None:
            future = self._loading[id] = asyncio.get_running_loop().create_future()
            self._wanted.append(id)
            if self._loader is None:
                self._loader = asyncio.create_task(self._load_wanted())
        await asyncio.shield(future)

    async def _load_wanted(self) -> None:
        while self._wanted:
            ids, self._wanted = self._wanted[:LOAD_AT_ONCE], self._wanted[LOAD_AT_ONCE:]
            for store in (self._store, self._memory):
                chosen = [id for id in ids if self.store_of(id) is store]
                if chosen and store is self._memory:
                    await asyncio.sleep(max(0.0, self._memory_from - asyncio.get_running_loop().time()))
                if chosen:
                    await self._load_from(store, chosen)
        self._loader = None

    async def _load_from(self, store: Store, ids: list[int]) -> None:
        error: PenstockError | None = None
        damaged: dict[int, StoreCorrupt] = {}
        try:
            await self._catalog_known()  # or a lane would be loaded without its newest groups
            epochs = {id: self._epoch_of(id) for id in ids}
            for image in await self._images(store, ids, damaged):
                if (
                    image.lane in self._catalog.by_lane
                    and image.lane not in self._loaded
                    and image.lane not in self._overtaken
                    and self._ownership.has_taken(slot_of(image.lane))
                    # Otherwise another node may have had it since it was read: the caller asks again.
                    and self._epoch_of(image.lane) == epochs[image.lane]
                ):
                    self._take_in(image, damaged)
        except PenstockError as failure:
            error = failure
        except Exception as failure:
            error = Unavailable(f"lanes could not be loaded: {failure!r}")
        self._overtaken.difference_update(ids)
        for id in ids:
            future = self._loading.pop(id)
            failed = self._damage.lane_found(id, damaged[id]) if id in damaged else error
            if failed is None:
                self._damage.lane_is_well(id)
                future.set_result(None)
            else:
                future.set_exception(failed)
                future.exception()  # seen: a caller that was cancelled meanwhile leaves nobody to ask

    async def _images(self, store: Store, ids: list[int], damaged: dict[int, StoreCorrupt]) -> list[LaneImage]:
        """The images of these lanes; where one has a row that cannot be understood, those of the others."""
        try:
            return await store.load(ids, IDS_IN_MEMORY_MAX)
        except StoreCorrupt as error:
            if len(ids) == 1:
                damaged[ids[0]] = error
                return []
        return [image for id in ids for image in await self._images(store, [id], damaged)]

    def _take_in(self, image: LaneImage, damaged: dict[int, StoreCorrupt]) -> None:
        try:
            lane = self._make(image)
        except StoreCorrupt as error:
            damaged[image.lane] = error
            return
        except AssertionError as failure:
            damaged[image.lane] = StoreCorrupt(f"its rows contradict each other: {failure}")
            return
        self._loaded[image.lane] = lane
        lane.pins = self._pins.pop(image.lane, lane.pins)
        for tell in self.on_loaded:
            tell(lane)
        self._let_go()

    def _make(self, image: LaneImage) -> Lane:
        queue = self._catalog.by_lane[image.lane]
        return Lane(image, queue.config, queue.settings())

    def catalog_replaced(self) -> None:
        """The catalog was read again: lanes of queues that are gone go, the others follow their options."""
        self.drop(self._loaded.keys() - self._catalog.by_lane.keys())
        self.configure(tuple(self._loaded))

    def slots_lost(self, slots: Set[int]) -> None:
        """Another node owns these slots: what is loaded of them is not true any more."""
        self.drop({id for id in self._loaded if slot_of(id) in slots})

    def queue_removed(self, queue: Queue) -> None:
        self.drop(set(queue.lanes))

    def configure(self, ids: Sequence[int]) -> None:
        """The options of these lanes' queues changed."""
        for id in ids:
            lane = self._loaded.get(id)
            if lane is not None:
                queue = self._catalog.by_lane[id]
                lane.configure(queue.config, queue.settings())

    async def close(self) -> None:
        if self._loader is not None:
            await asyncio.wait([self._loader])
