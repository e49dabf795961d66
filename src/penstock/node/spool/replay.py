"""Out of the spool: records back into the store, in their order, each exactly once, whatever fails on the way.

A record is appended like any publish, and how far the spool has come goes into the same commit. What belongs to other
nodes goes through the outbox, in that commit too; its owner knows what is sent twice (`positions.py`), so nothing
need be known of it here. After a failure all begins again at the last record that is known to be in the store; what a
lost commit did is read back first. A record that can never be published goes to the dead letters of the spool, and
blocks nobody. `spool.py` says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.api.slices import in_turns
from penstock.model.errors import Closed, NotFound, PenstockError, Unavailable, Unroutable
from penstock.model.rows import slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster.outbox import Outbox
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import RemotePublish, Sent, is_of_spool
from penstock.node.commit.commits import Commits
from penstock.node.lifecycle import Lifecycle
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Origin, Part, Results, parts_of_batch, route_batch
from penstock.node.spool.log import Entry, LogPosition, SpoolLog
from penstock.node.spool.positions import SPOOL_LANES, Positions
from penstock.node.spool.records import Doubt, Header, Record
from penstock.node.spool.state import SpoolState
from penstock.node.timers import Tasks
from penstock.store.contract import Log

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
TRIES_MAX: Final = 3
"""A commit that the store refuses, and not because it is away, is tried so often with a record alone."""
ROWS_AT_ONCE: Final = 1_000

log = logging.getLogger("penstock.spool")


class _Behind(Exception):
    """A record goes another way into a slot than one before it: first it must be known that that one is there."""


def _always() -> None:
    """A node that has the store for itself serves everything."""


@dataclass(eq=False, repr=False)
class Replay:
    """Brings records back into the store."""

    _state: SpoolState
    _store: Log
    _catalog: Catalog
    _writer: CatalogWriter
    _commits: Commits
    _publisher: Publisher
    _remote: RemotePublish
    _positions: Positions
    _outbox: Outbox
    _clock: Clock
    _tasks: Tasks
    _lifecycle: Lifecycle
    _ownership: Ownership

    def __post_init__(self) -> None:
        self.check_serving: Callable[[], None] = _always
        """Raises until this node has its share of the slots; set by the cluster."""
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._place: LogPosition | None = None
        self._losses = 0
        self._stamps: dict[tuple[int, bytes], int] = {}
        """What the store was found to say: (slot, key) → number. Forgotten whenever a commit fails."""
        self._clear: dict[tuple[str, int], int] = {}
        """(spool, slot) → epoch of this node's slots of which the outbox held nothing of the spool, and no more came"""
        self._unsettled: set[tuple[str, int]] = set()
        """(spool, slot) of rows for the outbox that are not known to be there or to be refused"""
        self._ways: dict[tuple[str, int], int | None] = {}
        """(spool, slot) → the slot in whose commits records go there that are not settled: those keep their order"""
        self._landing: dict[tuple[str, int], Record] = {}
        """Records that other nodes have not appended yet, by their names."""
        self._stalled: set[tuple[str, int]] = set()
        """Those of them that may take long, such as for a queue that is full."""
        self._refused: dict[tuple[str, int], int] = {}
        """Records of which a commit was refused, and how often; while there are any, one a commit."""

    # Life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        self._wake.set()

    def lost(self) -> None:
        """A commit failed: what was appended may not be there."""
        self._losses += 1
        self._stamps.clear()

    def is_stalled(self, name: tuple[str, int]) -> bool:
        """Whether a record waits at another node for longer than a moment."""
        return name in self._stalled

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while not self._is_over():
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._replay()
                pause_s = PAUSE_S
            except Exception as error:  # of whatever kind: nobody else would replay it
                if self._is_over():
                    return
                log.info("the spool waits: %s", error, exc_info=not isinstance(error, PenstockError))
                self._stamps.clear()  # what was appended last may be there by now
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
                self._wake.set()

    def _is_over(self) -> bool:
        return self._lifecycle.is_over

    async def _replay(self) -> None:
        """All that is in the spool, until nothing is left."""
        spool = self._state.log
        assert spool is not None
        self.check_serving()
        if self._state.is_away:
            losses = self._losses
            await self._commits.probe()
            if losses != self._losses:
                raise Unavailable("a commit failed meanwhile")
            self._state.back()
        count = 0
        while True:
            place = spool.start if self._place is None else self._place
            entries = await spool.read(place)
            if entries:
                count += await self._replay_some(spool, entries)
            elif spool.is_writing:
                await spool.written()
            elif spool.is_end(place):
                self._state.held.emptied(self._landing)
                self._state.oldest_ms = None
                self._refused.clear()
                if count:
                    log.warning("the spool is empty again; %d publishes were replayed", count)
                await spool.release(place)
                return

    # Some records -----------------------------------------------------------------------------------------

    async def _replay_some(self, spool: SpoolLog, entries: list[Entry]) -> int:
        """Replay records up to the end of these, or up to one that cannot be replayed now; raises why then."""
        if self._ways:  # an attempt before this one broke off
            await self._commits.commit()
            self._unsettled.clear()
            self._ways.clear()
        losses, done = self._losses, 0
        sent: list[tuple[Entry, Results]] = []

        def check() -> None:
            self._writer.check_known()
            if self._losses != losses:
                raise Unavailable("a commit failed meanwhile")

        failure: PenstockError | None = None
        for entry in entries[:1] if self._refused else entries:
            try:
                results = await self._replay_one(spool, entry, check)
            except _Behind:
                break
            except PenstockError as error:
                failure = error
                break
            if results:
                sent.append((entry, results))
            else:
                self._state.held.passed((entry.header.spool, entry.record.sequence), entry.record)
            done += 1
        await self._settle(spool, entries[:done], losses, sent)
        if failure is not None:
            raise failure
        return done

    async def _settle(
        self, spool: SpoolLog, done: Sequence[Entry], losses: int, sent: Sequence[tuple[Entry, Results]]
    ) -> None:
        """Wait until what was appended is durable, if no commit failed since; then the spool need not keep it."""
        try:
            await self._commits.commit()
        except (Unavailable, Closed):
            raise
        except PenstockError as error:
            await self._blame(spool, done, error)
            raise
        if self._losses != losses:
            raise Unavailable("a commit failed meanwhile")
        self._unsettled.clear()
        self._ways.clear()
        if not done:
            return
        for entry in done:
            self._refused.pop((entry.header.spool, entry.record.sequence), None)
        self._state.held.stored()
        await self._wait_for(sent)
        spool.messages -= sum(entry.record.count for entry in done)
        self._state.oldest_ms = done[-1].record.spooled_ms
        self._place = done[-1].end
        await spool.release(self._place)

    async def _wait_for(self, sent: Sequence[tuple[Entry, Results]]) -> None:
        """What other nodes append is decided: give them time for it, and what they cannot append now more of it."""
        if not sent:
            return
        results = [result for _, some in sent for result in some]
        names = [(entry.header.spool, entry.record.sequence) for entry, _ in sent]
        self._landing.update(zip(names, (entry.record for entry, _ in sent), strict=True))
        try:
            await self._remote.landed(results)
        except Unavailable as error:
            log.warning("%d records of the spool wait at other nodes: %s", len(sent), error)
            self._stalled.update(names)
            self._tasks.spawn(self._wait_on(results, names))
        else:
            self._landed(names)

    async def _wait_on(self, results: Results, names: Sequence[tuple[str, int]]) -> None:
        while not self._is_over():
            try:
                await self._remote.landed(results)
            except Unavailable:
                await asyncio.sleep(PAUSE_S_MAX)
            else:
                self._landed(names)
                return

    def _landed(self, names: Sequence[tuple[str, int]]) -> None:
        for name in names:
            self._stalled.discard(name)
            self._state.held.landed(name, self._landing.pop(name))

    async def _blame(self, spool: SpoolLog, done: Sequence[Entry], error: PenstockError) -> None:
        """The store says no to a commit: find out, one by one, to which record."""
        if len(done) != 1:
            self._refused.setdefault(("", 0), 0)
            return
        header, record, _ = done[0]
        name = (header.spool, record.sequence)
        self._refused[name] = self._refused.get(name, 0) + 1
        if self._refused[name] >= TRIES_MAX:
            await self._bury(spool, header, record, error)
            self._refused.clear()

    async def _replay_one(self, spool: SpoolLog, entry: Entry, check: Callable[[], None]) -> Results:
        """Append a record, unless that was done before; what other nodes append. Raises only what may be over later."""
        header, record, _ = entry
        if spool.is_dead(header, record):
            return []
        landed = record.doubt is not None and await self._happened(header, record.doubt)
        check()
        try:
            parts = await self._parts(header, record)
            if landed:  # of a failed commit, what is only in memory was not done, unless it was promised in it
                await self._check_landed(parts, record.doubt)
                check()
                parts = self._only_in_memory(parts, record.doubt)
            return await self._append(header, record, parts, check)
        except (Unavailable, Closed):
            raise
        except PenstockError as error:
            if not landed:
                await self._bury(spool, header, record, error)
            return []

    async def _check_landed(self, parts: Sequence[Part], doubt: Doubt | None) -> None:
        """Raise while what a commit that happened has promised to other slots of this node is on its way there."""
        home = None if doubt is None else doubt.slot
        own = [part for part in parts if not self._remote.is_other_nodes(part)]
        at_home = self._remote.at_home(parts, home)
        promised = {slot_of(part.lane) for part in own if part.lane not in at_home}
        if promised and not await self._outbox.drain(promised):
            raise Unavailable("records of the spool are on their way to other slots, and go first")

    def _only_in_memory(self, parts: Sequence[Part], doubt: Doubt | None) -> list[Part]:
        own = self._remote.at_home(parts, None if doubt is None else doubt.slot)
        return [part for part in parts if part.lane >= EPHEMERAL_FROM and part.lane in own]

    async def _parts(self, header: Header, record: Record) -> list[Part]:
        """Where it goes now. Each message's lane is the same however often this is asked."""
        name = record.publish_id or f"{header.spool}:{record.sequence}"
        if record.queue is not None:
            queue = self._catalog.queue(record.namespace, record.queue)
            if queue.id != record.queue_id:
                raise NotFound(f"the queue {record.queue!r} was deleted, and declared again")
            parts = parts_of_batch(queue, record.batch, None, name)
        else:
            exchange = record.exchange or ""
            parts = await in_turns(
                route_batch(self._catalog, record.namespace, exchange, record.batch, mandatory=False, publish_id=name)
            )
            if not parts:
                raise Unroutable(f"no queue is bound to exchange {exchange!r} any more that takes it")
        origin = Origin(header.spool, record.sequence)
        return [
            msgspec.structs.replace(part, publish_id=record.publish_id, asked_ms=record.spooled_ms, origin=origin)
            for part in parts
            if part.lane < EPHEMERAL_FROM or self._ownership.has_taken(slot_of(part.lane))
        ]

    async def _append(self, header: Header, record: Record, parts: list[Part], check: Callable[[], None]) -> Results:
        """Append those parts that are not in the store yet, with the positions of the spool in the same commit.

        This is the one place at which records leave the spool. What was sent to other nodes is returned.
        """
        origin, home = Origin(header.spool, record.sequence), self._remote.home_of(parts)
        behind: set[int] = set()
        for part in parts:
            if self._ways.setdefault((header.spool, slot_of(part.lane)), home) != home:
                raise _Behind
            if self._is_own(part, home):
                await self._check_clear(header.spool, slot_of(part.lane))
                if await self._positions.read(header.spool, part.lane) >= record.sequence:
                    behind.add(part.lane)
        if behind:  # it was replayed before, and with it what is only in memory
            parts = [part for part in parts if part.lane < EPHEMERAL_FROM and part.lane not in behind]
        if not parts:
            return []

        def check_own() -> None:
            check()
            for part in parts:
                if not self._is_own(part, home):
                    continue
                self._positions.check(origin, part.lane)
                if not self._is_clear(header.spool, slot_of(part.lane)):
                    raise Unavailable("this node has just become the owner of the queue")

        results = await self._publisher.append_in_room(parts, check_own, home)
        # No wait in between: the messages and the positions are one commit.
        sent: Results = []
        for part, result in zip(parts, results, strict=True):
            if isinstance(result[2], Sent):
                self._clear.pop((header.spool, slot_of(part.lane)), None)
                self._unsettled.add((header.spool, slot_of(part.lane)))
                sent.append(result)
            elif part.lane < EPHEMERAL_FROM:
                self._positions.write(origin, part.lane)
        return sent

    def _is_own(self, part: Part, home: int | None) -> bool:
        return part.lane < EPHEMERAL_FROM and not self._remote.is_elsewhere(part, home)

    # What is on its way through the outbox ----------------------------------------------------------------

    def _is_clear(self, spool: str, slot: int) -> bool:
        return self._remote.neighbours is None or self._clear.get((spool, slot), -1) == self._ownership.epoch(slot)

    async def _check_clear(self, spool: str, slot: int) -> None:
        """Raise while records of the spool are in the outbox for a slot that has become this node's: they go first."""
        while not self._is_clear(spool, slot):
            if (spool, slot) in self._unsettled:
                raise Unavailable(f"records of the spool for slot {slot} are not in the outbox yet, and go first")
            epoch, after = self._ownership.epoch(slot), 0
            self._ownership.check_taken(slot)
            while rows := await self._store.outbox(after, ROWS_AT_ONCE, [slot]):
                after = rows[-1].id
                if any(is_of_spool(row, spool) for row in rows):
                    self._outbox.wake()
                    raise Unavailable(f"records of the spool are on their way to slot {slot}, and go first")
            self._clear[spool, slot] = epoch

    # What the store says ----------------------------------------------------------------------------------

    async def _happened(self, header: Header, doubt: Doubt) -> bool:
        """Whether a commit whose answer was lost is in force."""
        self._check_decided(header, doubt)
        found = self._stamps.get((doubt.slot, doubt.key))
        if found is None:
            losses = self._losses
            rows = await self._store.find_dedup(SPOOL_LANES + doubt.slot, [doubt.key])
            found = rows[0].offset if rows else 0
            if losses == self._losses:
                self._stamps[doubt.slot, doubt.key] = found
        return found >= doubt.number

    def _check_decided(self, header: Header, doubt: Doubt) -> None:
        """Raise while a commit of a process that is gone may still come into force.

        One of this process is decided by the store before it is asked for anything else. One of an earlier process is
        when its slot was taken since, whoever has it now.
        """
        ownership = self._ownership
        if ownership.is_sole or header.spool == self._state.id:
            return
        row = ownership.slot(doubt.slot)
        if row is None or row.epoch <= doubt.epoch:
            raise Unavailable(f"slot {doubt.slot} was not taken yet since a commit of an earlier process")

    async def _bury(self, spool: SpoolLog, header: Header, record: Record, reason: PenstockError) -> None:
        file = await spool.bury(header, record, f"{reason.code}: {reason}", self._clock.now_ms())
        log.error("%d buffered messages cannot be published, and are kept in %s: %s", record.count, file, reason)
