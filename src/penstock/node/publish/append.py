"""Publish: append parts to their lanes; answered when the commit that holds the messages is durable.

The node's own services (schedules, staging, enqueued messages, dead letters, the spool's replay) append in a step of
their own choosing, so that what belongs with the messages goes into the same commit. Next stop: `commit/loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.api.results import Receipt
from penstock.api.slices import SLICE_ITEMS, in_slices, in_turns
from penstock.api.ticket import Ticket
from penstock.core.dedup import Dedup, dedup_key, publish_key
from penstock.core.lane import Lane
from penstock.core.log import Missing
from penstock.model.appended import Appended
from penstock.model.errors import MessageTooLarge
from penstock.model.rows import DedupRow
from penstock.node.clock import Clock
from penstock.node.cluster.remote_publish import RemotePublish
from penstock.node.commit.commits import Commits
from penstock.node.lanes import LaneSet
from penstock.node.limits import Limits
from penstock.node.publish.parts import Part, Results


class Known:
    """What the store knows of the ids of some parts. Until it is closed, their lanes forget no id."""

    __slots__ = ("_asked", "rows")

    def __init__(self) -> None:
        self.rows: list[dict[bytes, DedupRow] | None] = []
        self._asked: dict[int, Dedup] = {}

    def ask(self, lane: Lane) -> None:
        if lane.id not in self._asked:
            self._asked[lane.id] = lane.dedup
            lane.dedup.questions += 1

    def is_true_of(self, lanes: Mapping[int, Lane]) -> bool:
        """Whether these are the lanes that were asked for, and not ones that were loaded since."""
        return all(id in lanes and lanes[id].dedup is dedup for id, dedup in self._asked.items())

    def close(self) -> None:
        for dedup in self._asked.values():
            dedup.questions -= 1


@dataclass(eq=False, repr=False)
class Publisher:
    """Appends parts to the lanes of this node, and promises those of other nodes to their owners."""

    _lanes: LaneSet
    _commits: Commits
    _clock: Clock
    _remote: RemotePublish
    _limits: Limits

    def publish(self, count: int, parts: Sequence[Part], size: int) -> Ticket[Receipt]:
        """Append parts of `size` bytes in all to their lanes, all or none; done when they are durable."""
        home = None
        if self._remote.neighbours is not None:
            self._remote.check_owners(parts)
            home = self._remote.home_of(parts)
        results = self.append_at_once(parts, size, home)
        if results is None:
            return Ticket.of(self._publish_later(count, parts, home))
        return self._commits.commit(slot=home, result=Receipt(count, results))

    async def _publish_later(self, count: int, parts: Sequence[Part], home: int | None) -> Receipt:
        results = await self.append_in_room(parts, None, home)
        await self._commits.commit(slot=home)
        return Receipt(count, await self._remote.landed(results))

    def check_limits(self, count: int, parts: Sequence[Part]) -> int:
        """Raise where this is more than may be published at once; its bytes otherwise."""
        size = parts[0].size if len(parts) == 1 else sum(part.size for part in parts)
        if count > self._limits.batch_messages or size > self._limits.batch_bytes:
            self.check_size(count, size)
        return size

    def check_size(self, count: int, size: int) -> None:
        """Raise where `count` messages of `size` bytes are more than may be published at once."""
        if count > self._limits.batch_messages:
            raise MessageTooLarge(f"{count} messages in one call; the limit is {self._limits.batch_messages}")
        most = self._limits.batch_bytes if count > 1 else self._limits.sizes.batch
        if size > most:
            raise MessageTooLarge(f"{size} bytes in one call; the limit is {most}")

    def append_at_once(self, parts: Sequence[Part], size: int, home: int | None) -> Results | None:
        """Append parts where nothing must be waited for: lanes loaded, ids known, room for the bytes; else None."""
        if home is not None and any(self._remote.is_elsewhere(part, home) for part in parts):
            return None
        lanes: list[Lane] = []
        for part in parts:
            lane = self._lanes.get(part.lane)
            if lane is None or (not lane.dedup.complete and self._must_ask(lane, part)):
                return None
            lanes.append(lane)
        if not self._commits.has_room(size):
            return None
        try:
            for lane in lanes if len(lanes) == 1 else dict.fromkeys(lanes):  # in order: the first full one is told
                self.check_room(lane, parts)
        except Missing:
            return None
        self._commits.take_room(size, home)
        return self.append_ready(parts, lanes, None, home)

    def check_room(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Raise `QueueFull` unless the lane can take all of those parts that are for it."""
        if lane.config.max_length is None and lane.config.max_bytes is None:
            return
        now_ms = self._clock.now_ms()
        chosen = [
            part
            for part in parts
            if part.lane == lane.id
            and (part.publish_id is None or lane.dedup.find(publish_key(part.publish_id), now_ms, None) is None)
        ]
        if chosen:
            lane.check_room(sum(part.count for part in chosen), sum(part.size for part in chosen))

    def append(self, lane: Lane, part: Part, known: dict[bytes, DedupRow] | None) -> Appended:
        """Append one part to its lane, whose room was checked; nothing where its publish was done before."""
        now_ms = self._clock.now_ms()
        asked_ms = now_ms if part.asked_ms is None else part.asked_ms
        key = None if part.publish_id is None else publish_key(part.publish_id)
        if key is not None:
            first = lane.dedup.find(key, asked_ms, known)
            if first is not None:
                return lane.published_before(asked_ms, first, part.ids(), known)
        if part.batch is not None:
            appended = lane.append_batch(now_ms, part.batch, part.meta, known, part.asked_ms, part.keys)
        else:
            appended = lane.append(now_ms, part.messages, known, part.asked_ms)
        if key is not None:
            lane.name_publish(now_ms, key, appended.base)
        return appended

    async def append_all(self, parts: Sequence[Part], check: Callable[[], None] | None, home: int | None) -> Results:
        """Append to several lanes in one step, so that one commit holds them all; `check` may still refuse in it.

        `home` is the slot whose commit it is: what may not share that is promised to its slot, in the same commit.
        """
        while True:
            known = await self.known_ids(parts, home)
            try:
                ready = await self.ready_lanes(parts, home)
                if ready is not None and known.is_true_of(ready):
                    if check is not None:
                        check()
                    return self.append_ready(parts, [ready.get(part.lane) for part in parts], known.rows, home)
            finally:
                known.close()

    async def ready_lanes(self, parts: Sequence[Part], home: int | None) -> dict[int, Lane] | None:
        """Every part's lane that is at home, loaded, at one and the same moment; None to try again.

        All of this node have room for what is meant for them.
        """
        ids = sorted({part.lane for part in parts if not self._remote.is_other_nodes(part)})
        for id in ids:
            await self._lanes.run(id, lambda lane: self.check_room(lane, parts))
        lanes = {lane.id: lane for lane in await self._lanes.together(ids)}
        try:
            for lane in lanes.values():
                self.check_room(lane, parts)
        except Missing:
            return None  # pushed out of memory while another was loaded
        return {id: lanes[id] for id in self._remote.at_home(parts, home) if id in lanes}

    def append_ready(
        self,
        parts: Sequence[Part],
        lanes: Sequence[Lane | None],
        known: Sequence[dict[bytes, DedupRow] | None] | None,
        home: int | None,
    ) -> Results:
        """Append each part to the lane in its place, or promise it to another node where that is None.

        `known` is what the store knows of their ids; None where the lanes know them all.
        """
        results: Results = []
        for index, part in enumerate(parts):
            lane = lanes[index]
            if lane is not None:
                try:
                    appended = self.append(lane, part, None if known is None else known[index])
                except AssertionError as failure:
                    raise self._commits.broken(lane, failure) from failure
                self._commits.touch(lane)
            else:
                appended = self._remote.send(part, home)
            results.append((part.queue.name, part.queue.index_of(part.lane), appended, part.indexes))
        return results

    async def known_ids(self, parts: Sequence[Part], home: int | None) -> Known:
        """The stored dedup rows of each part's ids, where a lane has more ids than it keeps in memory. Close it."""
        known, own = Known(), self._remote.at_home(parts, home)
        try:
            for part in parts:
                known.rows.append(await self._stored_ids(part, known) if part.lane in own else None)
        except BaseException:
            known.close()
            raise
        return known

    async def _stored_ids(self, part: Part, known: Known) -> dict[bytes, DedupRow] | None:
        lane = await self._lanes.run(part.lane, lambda lane: lane)
        await in_turns(lane.dedup.forgetting())
        known.ask(lane)
        if lane.dedup.complete:
            return None
        asked_ms = self._clock.now_ms() if part.asked_ms is None else part.asked_ms
        keys = await in_slices(_all_keys(part), lambda some: lane.dedup.unsure_of(some, asked_ms))
        if not keys:
            return None
        return {row.key: row for row in await self._lanes.store_of(part.lane).find_dedup(part.lane, keys)}

    def _must_ask(self, lane: Lane, part: Part) -> bool:
        """Whether the store must be asked for some of a part's ids; or, where they are many, whether that may be."""
        has_ids = part.meta is None or part.meta.dedup_id is not None
        if lane.dedup.is_overfull or (has_ids and part.count > SLICE_ITEMS):
            return True
        asked_ms = self._clock.now_ms() if part.asked_ms is None else part.asked_ms
        return bool(lane.dedup.unsure_of(_all_keys(part), asked_ms))

    async def append_in_room(
        self, parts: Sequence[Part], check: Callable[[], None] | None, home: int | None
    ) -> Results:
        """Like `append_all`, once there is room for the bytes in the next commit."""
        await self._commits.room(sum(part.size for part in parts), home)
        return await self.append_all(parts, check, home)

    # What other nodes append ------------------------------------------------------------------------------

    async def landed(self, results: Results) -> Results:
        """The results with the places of what other nodes had to append, when it is there."""
        return await self._remote.landed(results)

    def nudge(self, results: Results) -> None:
        """Let other nodes append their parts now; nobody waits for it."""
        self._remote.nudge(results)


def _all_keys(part: Part) -> list[bytes]:
    """The keys of all its ids."""
    keys: list[bytes] = []
    if part.keys is not None:
        keys = [key for key in part.keys if key is not None]
    elif part.meta is None or part.meta.dedup_id is not None:
        keys = [dedup_key(partition, id) for partition, id in part.ids() if id is not None]
    return keys if part.publish_id is None else [*keys, publish_key(part.publish_id)]
