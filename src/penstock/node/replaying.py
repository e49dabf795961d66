"""Out of the spool: records back into the store, in their order, each exactly once, whatever fails on the way.

A record is appended like any publish, and how far the spool has come goes into the same commit. After a failure all
begins again at the last record that is known to be in the store; what a lost commit did is read back first. A record
that can never be published goes to the dead letters of the spool, and blocks nobody. `spooling.py` says when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.errors import Closed, NotFound, PenstockError, Unavailable, Unroutable
from penstock.node.catalog import EPHEMERAL_FROM
from penstock.node.publishing import Part, append_all, parts_of_batch
from penstock.node.routes import route_batch
from penstock.node.spool import Doubt, Header, Record
from penstock.node.spool_log import Entry, Place, SpoolLog
from penstock.rows import DedupRow, slot_of

if TYPE_CHECKING:
    from penstock.node.node import Node
    from penstock.node.spooling import Spooling

SPOOL_LANES: Final = 1 << 47
"""Lanes from here on, one a slot, hold the rows of spools: no queue ever has them."""
ROWS_KEPT_MS: Final = 400 * 24 * 3600 * 1000
PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 1.0
TRIES_MAX: Final = 3
"""A commit that the store refuses, and not because it is away, is tried so often with a record alone."""

log = logging.getLogger("penstock.spool")


class Replaying:
    """The one who brings records back."""

    def __init__(self, node: Node, spooling: Spooling) -> None:
        self._node = node
        self._spooling = spooling
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._place: Place | None = None
        self._losses = 0
        self._rows: dict[tuple[int, bytes], int] = {}
        """What the store was found to say: (slot, key) → number. Forgotten whenever a commit fails."""
        self._refused: dict[tuple[str, int], int] = {}
        """Records of which a commit was refused, and how often; while there are any, one a commit."""
        self.dead = 0

    # Life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        self._wake.set()

    def lost(self) -> None:
        """A commit failed: what was appended may not be there."""
        self._losses += 1
        self._rows.clear()

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
                self._rows.clear()  # what was appended last may be there by now
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
                self._wake.set()

    def _is_over(self) -> bool:
        return self._node.closed or self._node.fenced is not None

    async def _replay(self) -> None:
        """All that is in the spool, until nothing is left."""
        spool, spooling = self._spooling.log, self._spooling
        assert spool is not None
        if spooling.is_away:
            losses = self._losses
            await self._node.commits.probe()
            if losses != self._losses:
                raise Unavailable("a commit failed meanwhile")
            spooling.back()
        count = 0
        while True:
            place = spool.start if self._place is None else self._place
            entries = await spool.read(place)
            if entries:
                count += await self._replay_some(spool, entries)
            elif spool.is_writing:
                await spool.written()
            elif spool.is_end(place):
                spooling.emptied()
                self._refused.clear()
                if count:
                    log.warning("the spool is empty again; %d publishes were replayed", count)
                await spool.release(place)
                return

    # Some records -----------------------------------------------------------------------------------------

    async def _replay_some(self, spool: SpoolLog, entries: list[Entry]) -> int:
        """Replay records up to the end of these, or up to one that cannot be replayed now; raises why then."""
        losses, done = self._losses, 0

        def check() -> None:
            self._node.check_declarations()
            if self._losses != losses:
                raise Unavailable("a commit failed meanwhile")

        failure: PenstockError | None = None
        for entry in entries[:1] if self._refused else entries:
            try:
                await self._replay_one(spool, entry, check)
            except PenstockError as error:
                failure = error
                break
            self._spooling.passed(entry.header.spool, entry.record)
            done += 1
        await self._settle(spool, entries[:done], losses)
        if failure is not None:
            raise failure
        return done

    async def _settle(self, spool: SpoolLog, done: Sequence[Entry], losses: int) -> None:
        """Wait until what was appended is durable, if no commit failed since; then the spool need not keep it."""
        try:
            await self._node.commits.wait()
        except (Unavailable, Closed):
            raise
        except PenstockError as error:
            await self._blame(spool, done, error)
            raise
        if self._losses != losses:
            raise Unavailable("a commit failed meanwhile")
        if not done:
            return
        for entry in done:
            self._refused.pop((entry.header.spool, entry.record.sequence), None)
        self._spooling.stored()
        spool.messages -= sum(entry.record.count for entry in done)
        self._spooling.oldest_ms = done[-1].record.spooled_ms
        self._place = done[-1].end
        await spool.release(self._place)

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

    async def _replay_one(self, spool: SpoolLog, entry: Entry, check: Callable[[], None]) -> None:
        """Append a record, unless that was done before. Raises only what may be over later."""
        header, record, _ = entry
        if spool.is_dead(header, record):
            return
        landed = record.doubt is not None and await self._happened(record.doubt)
        check()
        try:
            parts = self._parts(header, record)
            if landed:  # of a failed commit, what is only in memory was not done
                parts = [part for part in parts if part.lane >= EPHEMERAL_FROM]
            await self._append(header, record, parts, check)
        except (Unavailable, Closed):
            raise
        except PenstockError as error:
            if not landed:
                await self._bury(spool, header, record, error)

    def _parts(self, header: Header, record: Record) -> list[Part]:
        """Where it goes now. Each message's lane is the same however often this is asked."""
        node, name = self._node, record.publish_id or f"{header.spool}:{record.sequence}"
        if record.queue is not None:
            queue = node.catalog.queue(record.namespace, record.queue)
            if queue.id != record.queue_id:
                raise NotFound(f"the queue {record.queue!r} was deleted, and declared anew")
            parts = parts_of_batch(queue, record.batch, None, name)
        else:
            exchange = record.exchange or ""
            parts = route_batch(node, record.namespace, exchange, record.batch, mandatory=False, publish_id=name)
            if not parts:
                raise Unroutable(f"no queue is bound to exchange {exchange!r} any more that takes it")
        return [replace(part, publish_id=record.publish_id, asked_ms=record.spooled_ms) for part in parts]

    async def _append(self, header: Header, record: Record, parts: list[Part], check: Callable[[], None]) -> None:
        """Append those parts that are not in the store yet, with the position of the spool in the same commit.

        This is the one place at which replayed messages enter queues. Where another node owns a slot, it is this that
        has to be done there, with the name of the spool and the record's number: the position is its slot's.
        """
        key = b"spool:%b" % header.spool.encode()
        slots = sorted({slot_of(part.lane) for part in parts if part.lane < EPHEMERAL_FROM})
        behind = {slot for slot in slots if await self._row(slot, key) >= record.sequence}
        if behind:
            parts = [part for part in parts if part.lane < EPHEMERAL_FROM and slot_of(part.lane) not in behind]
        if not parts:
            return
        await self._node.commits.room(sum(part.size for part in parts))
        await append_all(self._node, parts, check)
        # No wait in between: the messages and the position are one commit.
        row = DedupRow(key, record.sequence, self._node.clock.now_ms() + ROWS_KEPT_MS)
        for slot in slots:
            if slot not in behind:
                change = self._node.commits.pending.change_of(SPOOL_LANES + slot)
                change.dedup = [*(other for other in change.dedup if other.key != key), row]

    # What the store says ----------------------------------------------------------------------------------

    async def _happened(self, doubt: Doubt) -> bool:
        """Whether a commit whose answer was lost is in force."""
        return await self._row(doubt.slot, doubt.key) >= doubt.number

    async def _row(self, slot: int, key: bytes) -> int:
        known = self._rows.get((slot, key))
        if known is None:
            losses = self._losses
            found = await self._node.store.find_dedup(SPOOL_LANES + slot, [key])
            known = found[0].offset if found else 0
            if losses == self._losses:
                self._rows[slot, key] = known
        return known

    async def _bury(self, spool: SpoolLog, header: Header, record: Record, reason: PenstockError) -> None:
        file = await spool.bury(header, record, f"{reason.code}: {reason}", self._node.clock.now_ms())
        self.dead += 1
        log.error("%d buffered messages cannot be published, and are kept in %s: %s", record.count, file, reason)
