"""The outbox: what commits promised to do elsewhere, done exactly once.

A message that died under a group with `dead_letter_to`, and could not be copied at once (`dead_copies.py`), stays dead
in place; its copy is published to the target, and the outbox row goes, in one commit; with it goes the message where
the group does not keep its dead. A target that is missing or full is tried again; the row waits. Among several nodes a
row is carried out by the owner of its slot: that of the dead message, or for what another node has published to one of
its queues (`remote_publish.py`) that of the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from penstock.api.slices import in_turns
from penstock.batch import EncodedBatch, Reader
from penstock.core.dedup import dedup_key, publish_key
from penstock.core.group.work import WorkGroup
from penstock.model import Message
from penstock.model.appended import Appended
from penstock.model.errors import NotFound, PenstockError, Unavailable
from penstock.model.rows import OutboxRow, slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Group
from penstock.node.clock import Clock
from penstock.node.cluster.dead_copies import DeadCopies, DeadLetter
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import Landed, Landing, is_remote_part, part_of
from penstock.node.commit.commits import Commits
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Lifecycle, Numbers
from penstock.node.observe.damage import Damage
from penstock.node.publish import large
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part, is_large
from penstock.node.spool.positions import Positions
from penstock.node.timers import Timers
from penstock.store.contract import Store

RETRY_MS: Final = 1_000
RETRY_MS_MAX: Final = 60_000
ROWS_AT_ONCE: Final = 100
LANDED_MAX: Final = 10_000
LANDINGS_MAX: Final = 100_000

T = TypeVar("T")

log = logging.getLogger("penstock.outbox")

_decoder = msgspec.json.Decoder(DeadLetter)


@dataclass(eq=False, repr=False)
class Outbox:
    """Works through the outbox in order, one commit a few rows."""

    _store: Store
    _catalog: Catalog
    _lanes: LaneSet
    _commits: Commits
    _publisher: Publisher
    _dead_copies: DeadCopies
    _positions: Positions
    _clock: Clock
    _timers: Timers
    _numbers: Numbers
    _lifecycle: Lifecycle
    _ownership: Ownership
    _damage: Damage

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._draining: set[asyncio.Task[bool]] = set()
        self._closed = False
        self._pause_ms = RETRY_MS
        self._passing = asyncio.Lock()
        """One pass at a time: a row that is read twice would be carried out twice."""
        self._landed: dict[int, Appended] = {}
        """Where the messages of rows went that were carried out lately."""
        self._tried: dict[int, tuple[int, Appended]] = {}
        """Where they are if the commit that carried the row out, under this epoch, happened although it failed."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def slots_served(self, _slots: Set[int]) -> None:
        self._dead_copies.behind = None  # what their last owner has promised comes first
        self.wake()

    def promised(self, rows: Sequence[OutboxRow]) -> None:
        """These rows are durable."""
        if any(self._ownership.owns(row.slot) for row in rows):
            self.wake()

    def wake(self) -> None:
        """There are new rows."""
        self._wake.set()

    def wake_later(self) -> None:
        """There may be new rows; look when the store had time to recover."""
        if self._lifecycle.fenced is None:
            self._timers.at(self._clock.now_ms() + self._pause_ms, ("outbox",), self._wake.set)

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._draining, *(() if self._task is None else (self._task,))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while not self._closed:
            await self._wake.wait()
            self._wake.clear()
            try:
                left = await self._pass(self._ownership.queried())
            except PenstockError as error:
                log.warning("dead letters could not be copied yet: %s", error)
                left = True
            self._pause_ms = min(self._pause_ms * 2, RETRY_MS_MAX) if left else RETRY_MS
            if left:
                self.wake_later()

    async def _pass(self, slots: Sequence[int] | None, *, is_drain: bool = False) -> bool:
        """One pass over the outbox; whether something must be tried again."""
        blocked: dict[tuple[str, str], PenstockError] = {}
        seen: set[int] = set()
        after = 0
        async with self._passing:
            if not is_drain and self._dead_copies.may_be_promised:
                await self._commits.commit()  # so that all that was promised so far is found
            promises = self._dead_copies.promises
            while True:
                failed = self._commits.failed
                rows = await self._store.outbox(after, ROWS_AT_ONCE, slots)
                if rows and await self._passed_over(after, seen, slots):
                    after = 0
                    continue
                for row in rows:
                    after = row.id
                    seen.add(after)
                    if not is_drain or is_remote_part(row):
                        await self._carry_out(row, blocked, failed)
                if not rows:
                    break
                await self._commits.commit()
        if not is_drain and self._dead_copies.promises == promises:
            self._dead_copies.behind = set(blocked)
        for (_, name), reason in blocked.items():
            log.warning("what is to go to %s waits: %s", name, reason)
        return bool(blocked)

    async def _passed_over(self, after: int, seen: Set[int], slots: Sequence[int] | None) -> bool:
        """Whether rows have come below those that were read: where each slot commits by itself, ids come in no order.

        They go first. What a spool sends to a lane comes in order, so what precedes a row is there when that is.
        """
        if self._commits.spans_slots:
            return False
        low = 0
        while low < after and (rows := await self._store.outbox(low, ROWS_AT_ONCE, slots)):
            if any(row.id <= after and row.id not in seen for row in rows):
                return True
            low = rows[-1].id
        return False

    async def _carry_out(self, row: OutboxRow, blocked: dict[tuple[str, str], PenstockError], failed: int) -> None:
        def check() -> None:
            if self._commits.failed != failed:  # those before this row may have been in it, and go first
                raise Unavailable("a commit failed meanwhile; it is tried again")

        letter = None if is_remote_part(row) else _decoder.decode(row.document)
        target = ("", str(row.lane)) if letter is None else (letter.namespace, letter.target)
        if target in blocked:  # those behind one that waits wait too: they keep their order
            return
        try:
            await (self._land(row, check) if letter is None else self._copy_dead_letter(row, letter, check))
        except PenstockError as error:
            blocked[target] = error

    async def drain(self, slots: Set[int]) -> bool:
        """Carry out what was sent to queues of these slots; whether nothing of it must wait."""
        if not slots:
            return True
        # To its end, also where the caller is cancelled: the next pass would repeat rows that are not committed yet.
        draining = asyncio.get_running_loop().create_task(self._pass(sorted(slots), is_drain=True))
        self._draining.add(draining)
        draining.add_done_callback(self._drained)
        return not await asyncio.shield(draining)

    def _drained(self, draining: asyncio.Task[bool]) -> None:
        self._draining.discard(draining)
        if not draining.cancelled():
            draining.exception()  # seen: a caller that was cancelled leaves nobody to ask

    async def landed(self, landings: Sequence[Landing]) -> list[Landed]:
        """Where the messages of these rows went, as far as they are carried out: those that are not, are first."""
        if any(landing.id not in self._landed for landing in landings):
            await self.drain({slot_of(landing.lane) for landing in landings})
        waiting = {row.id for row in await self._store.outbox(0, LANDINGS_MAX, self._ownership.queried())}
        found: list[Landed] = []
        for landing in landings:
            appended = self._landed.get(landing.id)
            if appended is None and landing.id not in waiting:
                appended = await self._tried_here(landing) or await self._found_again(landing)
            if appended is not None:
                found.append(Landed(landing.id, appended.base, appended.count, appended.duplicates))
        return found

    async def _tried_here(self, landing: Landing) -> Appended | None:
        """The row is gone: where its messages are, if nobody but this node can have carried it out since it tried."""
        tried = self._tried.get(landing.id)
        if tried is None:
            return None
        slots = (await self._store.heartbeat(0)).slots
        epoch = next((row.epoch for row in slots if row.slot == slot_of(landing.lane)), 0)
        return tried[1] if epoch == tried[0] else None

    async def _found_again(self, landing: Landing) -> Appended:
        """Another owner of the slot has carried it out: the log knows where, by its name; not if its queue is gone."""
        if landing.lane not in self._catalog.by_lane:
            return Appended(0, 0)
        name = publish_key(landing.publish_id)
        keys = [None if id is None else dedup_key(partition, id) for partition, id in landing.ids]
        wanted = [name, *(key for key in keys if key is not None)]
        rows = await self._lanes.store_of(landing.lane).find_dedup(landing.lane, wanted)
        offsets = {row.key: row.offset for row in rows}
        if name not in offsets:
            raise Unavailable("what was published is there; at which offsets, its queue does not remember")
        base = following = offsets[name]
        duplicates: dict[int, int] = {}
        for index, key in enumerate(keys):
            own = following if key is None else offsets.get(key, following)
            if own == following:
                following += 1
            else:  # it was there before, and took no offset
                duplicates[index] = own
        return Appended(base, landing.count - len(duplicates), duplicates)

    async def _land(self, row: OutboxRow, check_kept: Callable[[], None]) -> None:
        """Append what another node has published to a queue of this one, and delete the row, in one commit."""
        try:
            self._check_there(row)
            part = part_of(row, self._catalog)
        except NotFound as error:
            log.warning("what another node has published is dropped: %s", error)
            self._ownership.check(row.slot)
            self._done(row)
            return
        if row.lane >= EPHEMERAL_FROM:
            await self._land_in_memory(row, part, check_kept)
            return
        origin, positions = part.origin, self._positions
        if origin is not None and await positions.read(origin.spool, row.lane) >= origin.sequence:
            self._ownership.check_taken(row.slot)
            self._done(row)  # it was sent twice, and is there
            return

        def check() -> None:
            check_kept()
            self._ownership.check_taken(row.slot)
            if origin is not None:
                positions.check(origin, row.lane)

        [(_, _, appended, _)] = await self._publisher.append_all([part], check, row.slot)
        if origin is not None:
            positions.write(origin, row.lane)
        # No wait in between: the messages, how far their spool has come, and the end of the row are one commit.
        self._done(row)
        _keep(self._tried, row.id, (self._ownership.epoch(row.slot), appended))
        # Nobody is told of it before it is durable.
        self._commits.amend(row.slot).after.append(lambda: self._remember(row.id, appended))

    async def _land_in_memory(self, row: OutboxRow, part: Part, check: Callable[[], None]) -> None:
        """Append to an ephemeral queue, then delete the row: memory and the store have no commit in common.

        The queue and the memory of what landed in it live in this process, and end with it.
        """
        if row.id not in self._landed:
            [(_, _, appended, _)] = await self._publisher.append_all([part], check, row.slot)
            self._commits.amend(row.slot).after.append(lambda: self._remember(row.id, appended))
            await self._commits.commit(slot=row.slot)
        self._done(row)

    def _remember(self, id: int, appended: Appended) -> None:
        self._tried.pop(id, None)
        _keep(self._landed, id, appended)

    def _done(self, row: OutboxRow) -> None:
        """The row goes with the next commit, which is refused if its slot is another node's by then."""
        self._commits.amend(row.slot).outbox_deleted.append(row.id)

    async def _copy_dead_letter(self, row: OutboxRow, letter: DeadLetter, check_kept: Callable[[], None]) -> None:
        """Copy one message. It is durable with the next commit, which a page of rows shares."""
        message = await self._message(row)
        copies = [] if message is None else await in_turns(self._dead_copies.parts(letter, message))
        parts = await large.encoded(copies)
        group = None if message is None else self._moving_group(row, letter)
        if group is not None:
            await self._lanes.run(row.lane, lambda _lane: None)  # in memory, when the rest is done without a wait

        def check() -> None:
            check_kept()
            self._check_taken(row, group)

        if parts:
            results = await self._publisher.append_all(parts, check, row.slot)
            self._publisher.nudge(results)
        else:
            self._check_taken(row, group)
        # No wait in between: the copy, the end of its row and of the message in its place are one commit.
        if group is not None:
            self._move(row, group)
        self._done(row)

    def _moving_group(self, row: OutboxRow, letter: DeadLetter) -> Group | None:
        """The group whose dead are not kept in place; None where they are, or where it is gone."""
        queue = self._catalog.by_lane.get(row.lane)
        group = None if queue is None else queue.groups.get(letter.group)
        return None if group is None or group.settings.dead_kept else group

    def _check_taken(self, row: OutboxRow, group: Group | None) -> None:
        self._ownership.check(row.slot)
        if group is not None and self._lanes.get(row.lane) is None:
            raise Unavailable(f"lane {row.lane} was let go of just now")  # the row is tried again

    def _move(self, row: OutboxRow, group: Group) -> None:
        """The copy takes the dead message's place."""
        lane = self._lanes.get(row.lane)
        state = None if lane is None else lane.groups.get(group.id)
        if lane is not None and isinstance(state, WorkGroup):
            state.purge_dead(self._clock.now_ms(), [(row.offset, row.offset + 1)], "moved")
            self._commits.touch(lane)

    async def _message(self, row: OutboxRow) -> Message | None:
        """The dead message; None if it was purged with its batch, or is damaged: then it stays where it is."""
        try:
            self._check_there(row)
        except NotFound:
            return None
        batches = await self._lanes.store_of(row.lane).read(row.lane, row.offset, row.offset + 1, 0)
        if not batches or not batches[0].base <= row.offset < batches[0].end:
            return None
        batch, index = batches[0], row.offset - batches[0].base
        whole = EncodedBatch(batch.count, batch.meta, batch.body)
        reader = Reader(whole, is_checked=batch.is_intact)
        if not reader.is_intact():
            self._damage.found_in(row.lane, batch.base, reader)
            return None
        if is_large(whole):
            return (await large.on_thread(lambda: reader.messages(index, index + 1)))[0]
        return reader.messages(index, index + 1)[0]

    def _check_there(self, row: OutboxRow) -> None:
        """Raise where the lane is gone: an ephemeral one goes with its process, and the next may reuse its id."""
        is_of_process = row.lane >= EPHEMERAL_FROM
        if row.lane not in self._catalog.by_lane or (is_of_process and not self._numbers.is_own(row.id)):
            raise NotFound("its queue was deleted")


def _keep(known: dict[int, T], id: int, value: T) -> None:
    """Remember one more row, and forget the oldest of too many."""
    known[id] = value
    while len(known) > LANDED_MAX:
        del known[next(iter(known))]


class OwnSlots:
    """The neighbours of a node that is alone, where its slots are to each other what nodes are."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def ask_for(self, slots: list[int]) -> None:
        """They are this node's."""

    async def changed(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def look(self) -> None:
        """There is nobody else."""

    async def ask_landed(self, _slot: int, landings: list[Landing]) -> list[Landed]:
        return await self._outbox.landed(landings)
