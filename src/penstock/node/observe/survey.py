"""The node's numbers at one moment, for a scrape: what is in memory, in bounded time, at any number of queues.

No lane is loaded for it: queues that are not in memory are counted and left out. With more queues than asked for,
those with the largest lag are given one by one and the rest as one sum. It goes a few milliseconds at a time, so that
messages flow on meanwhile. How numbers are written down is the business of `fronts/metrics.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from heapq import nsmallest
from time import perf_counter
from typing import Final

from penstock.api.inspect import GroupStats, QueueStats
from penstock.api.measures import COUNTERS, NodeNumbers, QueueNumbers, RestNumbers
from penstock.api.slices import others_first
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Group as GroupState
from penstock.core.lane import Lane
from penstock.model.errors import Closed, PenstockError
from penstock.node.alarms import Alarms
from penstock.node.background.enqueued import Enqueueing
from penstock.node.background.scrub import Scrub
from penstock.node.cache import BatchCache
from penstock.node.catalog import Catalog, Group, Queue
from penstock.node.clock import Clock
from penstock.node.commit.commits import PENDING_BYTES_MAX, Commits
from penstock.node.consume.waiters import Waiters
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.counters import Counters
from penstock.node.observe.damage import Damage
from penstock.node.spool.spool import Spool

SLICE_S: Final = 0.003
"""So long the survey works before it lets others run."""
CHOSEN_AT_ONCE: Final = 1_000
"""Queues, beside four times as many as are shown, among which the first are looked for at once."""
READS_S: Final = 0.5
READS_MAX: Final = 200
"""Bounds of what a survey reads from the store to know how old a message is."""


@dataclass(eq=False, repr=False)
class Survey:
    """Makes the numbers; remembers between scrapes which queues were shown and which heads were read."""

    _catalog: Catalog
    _lanes: LaneSet
    _cache: BatchCache
    _counters: Counters
    _waiters: Waiters
    _commits: Commits
    _enqueueing: Enqueueing
    _spool: Spool
    _damage: Damage
    _scrub: Scrub
    _alarms: Alarms
    _clock: Clock
    _lifecycle: Lifecycle

    def __post_init__(self) -> None:
        self._shown: set[int] = set()
        self._heads: dict[tuple[int, int], tuple[int, int, int]] = {}
        """(lane, group) → base, end, published_ms of a batch that had to be read: most stay for many scrapes."""

    async def numbers(self, queues_max: int) -> NodeNumbers:
        """The numbers now, at most `queues_max` queues one by one."""
        if self._lifecycle.closed:
            raise Closed("the broker is closed")
        breath = _Breath()
        queues = await self._in_memory(breath)
        chosen, others = await self._choose(queues, queues_max, breath)
        self._shown = {queue.id for queue in chosen}
        rest = await self._sum(others, breath)
        ages = _Ages(self._lanes, self._clock, self._heads)
        shown = []
        for queue in chosen:
            await breath.take()
            if (lanes := self._loaded(queue)) is not None:
                shown.append(await self._queue_numbers(queue, lanes, ages))
        self._heads = ages.used
        cache = self._cache
        return NodeNumbers(
            counters=self._counters,
            queues=shown,
            rest=rest,
            queues_declared=len(self._catalog.by_id),
            queues_in_memory=len(queues),
            lanes_loaded=self._lanes.count,
            polls_waiting=self._waiters.count,
            readers_waiting=self._waiters.readers,
            pending_bytes=self._commits.pending_bytes,
            pending_bytes_max=PENDING_BYTES_MAX,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            cache_bytes=cache.bytes,
            cache_bytes_max=cache.bytes_max,
            enqueued_failed=self._enqueueing.failed,
            enqueued_lag_seconds=self._enqueueing.lag_seconds(),
            damage_notes=len(self._damage.notes()),
            damaged_messages={**self._damage.messages},
            damaged_lanes=self._damage.lanes,
            alarms=self._alarms.numbers(),
            spool=self._spool.numbers(),
            scrub=self._scrub.numbers(),
            now_ms=self._clock.now_ms(),
        )

    async def _in_memory(self, breath: _Breath) -> list[Queue]:
        """The queues of which every lane is loaded: of others the numbers would be too small."""
        by_lane = self._catalog.by_lane
        found: list[Queue] = []
        for lane in self._lanes.loaded():
            await breath.take()
            queue = by_lane.get(lane.id)
            if queue is not None and queue.lanes[0] == lane.id and self._loaded(queue) is not None:
                found.append(queue)
        return found

    def _loaded(self, queue: Queue) -> list[Lane] | None:
        lanes = [lane for id in queue.lanes if (lane := self._lanes.get(id)) is not None]
        return None if queue.deleting or len(lanes) < len(queue.lanes) else lanes

    async def _choose(self, queues: list[Queue], most: int, breath: _Breath) -> tuple[list[Queue], list[Queue]]:
        """(one by one, as a sum): the largest lag first, and those shown before first among equals."""
        if len(queues) <= most:
            return queues, []
        ranked: list[tuple[int, bool, str, str, Queue]] = []
        for queue in queues:
            await breath.take()
            ranked.append((-self._lag(queue), queue.id not in self._shown, queue.namespace, queue.name, queue))
            if len(ranked) > 4 * most + CHOSEN_AT_ONCE:
                ranked = _first(most, ranked)
        chosen = [item[-1] for item in _first(most, ranked)]
        ids = {queue.id for queue in chosen}
        return chosen, [queue for queue in queues if queue.id not in ids]

    def _lag(self, queue: Queue) -> int:
        states = [(lane, state) for lane in self._loaded(queue) or () for state in lane.groups.values()]
        return max((_lag_of(lane, state) for lane, state in states), default=0)

    async def _sum(self, queues: list[Queue], breath: _Breath) -> RestNumbers:
        rest = RestNumbers()
        now_ms = self._clock.now_ms()
        for queue in queues:
            await breath.take()
            lanes = self._loaded(queue)
            if lanes is None:
                continue
            rest.queues += 1
            rest.messages += sum(lane.visible_end - lane.first for lane in lanes)
            for group in queue.groups.values():
                _add(rest, lanes, group, now_ms)
        return rest

    async def _queue_numbers(self, queue: Queue, lanes: list[Lane], ages: _Ages) -> QueueNumbers:
        groups = list(queue.groups.values())
        stats = queue_stats(queue, lanes, self._clock.now_ms())
        counts = self._counters.groups
        return QueueNumbers(
            stats=stats,
            oldest_seconds=await ages.oldest([(lane, 0, lane.first) for lane in lanes]),
            lag_seconds=[await ages.oldest(_oldest_unfinished(lanes, group)) for group in groups],
            counts=[list(counts.get(group.id) or [0] * len(COUNTERS)) for group in groups],
        )


def _first(most: int, ranked: list[tuple[int, bool, str, str, Queue]]) -> list[tuple[int, bool, str, str, Queue]]:
    return nsmallest(most, ranked, key=lambda item: item[:4])


class _Breath:
    """Lets others run when the survey has worked for a while."""

    def __init__(self) -> None:
        self._since = perf_counter()

    async def take(self) -> None:
        if perf_counter() - self._since > SLICE_S:
            await others_first()
            self._since = perf_counter()


class _Ages:
    """How old messages are: from heads in memory, else from one read each, within bounds."""

    def __init__(self, lanes: LaneSet, clock: Clock, known: dict[tuple[int, int], tuple[int, int, int]]) -> None:
        self._lanes = lanes
        self._clock = clock
        self._known = known
        self.used: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._reads = 0
        self._end = asyncio.get_running_loop().time() + READS_S

    async def oldest(self, places: list[tuple[Lane, int, int]]) -> float | None:
        """Age in seconds of the oldest message that (lane, group, offset) name; 0 where none is, None if unknown."""
        found = 0.0
        for lane, group, offset in places:
            if offset >= lane.visible_end:
                continue
            published_ms = await self._published_ms(lane, group, offset)
            if published_ms is None:
                return None
            found = max(found, (self._clock.now_ms() - published_ms) / 1000)
        return found

    async def _published_ms(self, lane: Lane, group: int, offset: int) -> int | None:
        segment = lane.log.look(offset)
        if segment is not None:
            return segment.published_ms
        key = lane.id, group
        head = self._known.get(key)
        if head is None or not head[0] <= offset < head[1]:
            head = await self._read(lane.id, offset)
        if head is None:
            return None
        self.used[key] = head
        return head[2]

    async def _read(self, lane: int, offset: int) -> tuple[int, int, int] | None:
        """A store that is slow or away costs the numbers that it would have given, and nothing else."""
        left = self._end - asyncio.get_running_loop().time()
        if self._reads >= READS_MAX or left <= 0:
            return None
        self._reads += 1
        try:
            async with asyncio.timeout(left):
                heads = await self._lanes.store_of(lane).heads(lane, offset, 1, 1)
        except (PenstockError, TimeoutError):
            return None
        return (heads[0].base, heads[0].end, heads[0].published_ms) if heads else None


def _oldest_unfinished(lanes: list[Lane], group: Group) -> list[tuple[Lane, int, int]]:
    """Where the oldest message that a group is not done with is, lane by lane."""
    states = [(lane, lane.groups.get(group.id)) for lane in lanes]
    return [(lane, group.id, _watermark(lane, state)) for lane, state in states if state is not None]


def _watermark(lane: Lane, state: GroupState) -> int:
    if isinstance(state, WorkGroup):
        return state.watermark()
    return max(state.committed, lane.first)


def _lag_of(lane: Lane, state: GroupState) -> int:
    """Messages not done: as `group_stats` counts them, without looking at each that waits."""
    if isinstance(state, WorkGroup):
        return max(0, lane.visible_end - state.next) + state.waiting.count + state.leases.count
    return lane.visible_end - max(state.committed, lane.first)


def _add(rest: RestNumbers, lanes: list[Lane], group: Group, now_ms: int) -> None:
    stats = group_stats(lanes, group, now_ms)
    rest.ready += stats.ready
    rest.leased += stats.leased
    rest.scheduled += stats.scheduled
    rest.dead += stats.dead
    rest.lag += stats.lag
    for lane, _, offset in _oldest_unfinished(lanes, group):
        segment = lane.log.look(offset) if offset < lane.visible_end else None
        if segment is not None:
            rest.lag_seconds = max(rest.lag_seconds, (now_ms - segment.published_ms) / 1000)


# Numbers of one queue, also for who asks for it alone ------------------------------------------------------


def queue_stats(queue: Queue, lanes: list[Lane], now_ms: int) -> QueueStats:
    """The numbers of a queue, whose lanes these are."""
    return QueueStats(
        queue=queue.name,
        namespace=queue.namespace,
        lanes=len(lanes),
        messages=sum(lane.visible_end - lane.first for lane in lanes),
        published=sum(lane.visible_end for lane in lanes),
        bytes_published=sum(lane.bytes_end for lane in lanes),
        groups=[group_stats(lanes, group, now_ms) for group in queue.groups.values()],
        consumers=len(queue.consumers),
    )


def group_stats(lanes: list[Lane], group: Group, now_ms: int) -> GroupStats:
    """The numbers of one group over these lanes."""
    ready = leased = scheduled = dead = lag = 0
    oldest: list[int] = []
    for lane in lanes:
        state = lane.groups.get(group.id)
        if isinstance(state, WorkGroup):
            later = sum(entry.count for entry in state.waiting.by_start.values() if entry.due_ms > now_ms)
            ahead = max(0, lane.visible_end - state.next)
            ready += ahead + state.waiting.count - later
            scheduled += later
            leased += state.leases.count
            dead += state.dead.count
            lag += ahead + state.waiting.count + state.leases.count
            oldest.append(state.watermark())
        elif isinstance(state, StreamGroup):
            # What retention took before it was read is not there to be read.
            ready += lane.visible_end - max(state.next, lane.first)
            lag += lane.visible_end - max(state.committed, lane.first)
            oldest.append(max(state.committed, lane.first))
    return GroupStats(
        group=group.name,
        kind=group.config.kind,
        ready=ready,
        leased=leased,
        scheduled=scheduled,
        dead=dead,
        lag=lag,
        oldest_offset=min(oldest, default=0),
        paused=group.settings.paused,
    )
