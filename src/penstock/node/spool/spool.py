"""Publishing while the store is away: into the spool, in order, and out of it again exactly once.

When a commit fails because the store is away, the publishes in it and those that follow are written to the spool and
answered `buffered`. When the store takes commits again they are replayed in their order. What is published meanwhile to
a queue of which the spool still holds something goes behind it; once all of that is on its way, publishing is direct.
When little is left, publishes wait for its replay: else a producer that never pauses would be buffered without end.

Among several nodes the node that received a publish from its client keeps it, whichever node owns the queue, and an
owner keeps nothing for another node: so one spool has all that a connection publishes, in its order.

Exactly once comes from the store's own atomicity, by two kinds of rows on lanes that no queue has, one a slot:

- a *position*: the commit that appends a record says in it how far this spool has come in that lane
  (`positions.py`);
- a *stamp*: each commit with publishes bears a number (`stamp`). Of a commit whose answer was lost, it tells later,
  before its publishes are replayed, whether it happened.

`log.py` keeps the records, `state.py` knows which queues they are for, `replay.py` brings them back.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import msgspec

from penstock.api.measures import SpoolNumbers
from penstock.api.results import Receipt
from penstock.api.ticket import Ticket
from penstock.batch import EncodedBatch, encode
from penstock.model.errors import Fenced, InvalidArgument, NotOwner, PenstockError, Unavailable
from penstock.model.rows import Commit, DedupRow, LaneChange, slot_of
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.cluster.remote_publish import RemotePublish
from penstock.node.commit.commits import Commits
from penstock.node.commit.pending import Publish
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part, Results, Unit
from penstock.node.spool.folder import Folder
from penstock.node.spool.log import SEGMENT_BYTES, SpoolLog
from penstock.node.spool.positions import DAY_MS, ROWS_KEPT_MS, SPOOL_LANES
from penstock.node.spool.records import Doubt, Header, Record
from penstock.node.spool.replay import Replay
from penstock.node.spool.state import Name, SpoolState, Target, targets_of

SPOOL_BYTES: Final = 1024 * 1024 * 1024
RECORD_MS_MAX: Final = 365 * 24 * 3600 * 1000
"""A record older than this is not replayed: the rows that say whether it was may be gone."""

FEW_MESSAGES: Final = 500
WAITS_S: Final = 3.0
"""While at most `FEW_MESSAGES` are left in the spool, a publish waits up to `WAITS_S` for their replay."""

COMPANY: Final = "company-{}"
"""A file in the spool's folder, named by the store: this node has met others there."""

CLOCK_S: Final = 0.001
"""Shorter waits may be over before the clock has moved."""

log = logging.getLogger("penstock.spool")


def _new_id() -> str:
    return secrets.token_hex(8)


class SpoolSettings(msgspec.Struct, frozen=True):
    """Where a node spools to, and how much."""

    folder: Folder
    bytes: int = SPOOL_BYTES
    segment_bytes: int = SEGMENT_BYTES
    new_id: Callable[[], str] = _new_id


class _Overtaking(Exception):
    """A publish would come before something that is in the spool."""


@dataclass(eq=False, repr=False)
class Spool:
    """What a node does while its store is away. Without settings it does nothing."""

    _settings: SpoolSettings | None
    _state: SpoolState
    replay: Replay
    _catalog: Catalog
    _commits: Commits
    _publisher: Publisher
    _remote: RemotePublish
    _clock: Clock
    _ownership: Ownership

    def __post_init__(self) -> None:
        self.is_on = self._settings is not None
        self._failures = 0
        self._number = 0
        self._swept: set[int] = set()
        self._company = ""
        """The file that is still to be made when this node meets another."""

    @property
    def is_away(self) -> bool:
        """The store does not take commits: publishes are buffered."""
        return self._state.is_away

    # Life -------------------------------------------------------------------------------------------------

    async def open(self, secret: str) -> None:
        """Find what a process before this one has left; its queues take nothing new before that.

        The secret is the store's: no other has it, so what is made of it tells the store from every other.
        """
        settings, state = self._settings, self._state
        if settings is None:
            return
        state.id = settings.new_id()
        store = blake2b(secret.encode(), digest_size=16, person=b"penstock-spool").hexdigest()
        header = Header(state.id, store, self._clock.now_ms())
        self._company = COMPANY.format(store)
        if self._company in await settings.folder.names():
            self._ownership.had_company, self._company = True, ""
        state.log = await SpoolLog.open(
            settings.folder, header, settings.bytes, self._found, segment_bytes=settings.segment_bytes
        )
        if state.messages:
            log.warning("the spool holds %d messages of a process before this one; they are replayed", state.messages)
        self.replay.start()

    async def note_company(self) -> None:
        """Remember beyond this process that this node has met others: they may be back before it meets them again."""
        if self._settings is None or not self._company:
            return
        folder, name, self._company = self._settings.folder, self._company, ""
        try:
            await folder.append(name, b"This node has met others.\n")
            log.warning("there are other nodes: nothing is buffered for ordered queues (%s/%s)", folder.label, name)
        except PenstockError as error:  # the next heartbeat tries again
            self._company = name
            log.warning("that there are other nodes could not be noted: %s", error)

    def _found(self, header: Header, record: Record) -> None:
        if self._clock.now_ms() - record.spooled_ms > RECORD_MS_MAX:
            raise InvalidArgument(
                "the spool holds publishes of more than a year ago: whether they were replayed is not known any more; "
                "move its folder away, or name another with spool.folder"
            )
        self._state.held.hold((header.spool, record.sequence), record)
        self._state.oldest_ms = (
            record.spooled_ms if self._state.oldest_ms is None else min(self._state.oldest_ms, record.spooled_ms)
        )

    async def close(self) -> None:
        """Let the folder go, however far opening came."""
        if self._state.log is not None:
            await self._state.log.written()
            if self._state.messages:
                log.warning("%d messages stay in the spool, and are replayed at the next start", self._state.messages)
        if self._settings is not None:
            await self._settings.folder.close()

    def numbers(self) -> SpoolNumbers | None:
        if self._state.log is None:
            return None
        return SpoolNumbers(
            self.is_away,
            self._state.messages,
            self._state.log.size,
            self._state.oldest_ms,
            self._state.log.messages_added,
            self._state.log.dead_count,
        )

    # Publishing -------------------------------------------------------------------------------------------

    def taken_for(self, namespace: str, name: str) -> Queue | None:
        """The queue, whoever owns it, if what is published to it goes into the spool now."""
        if not (self.is_away or self._state.held):
            return None
        queue = self._catalog.queues.get((namespace, name))
        if queue is None or queue.deleting or queue.id >= EPHEMERAL_FROM:
            return None
        is_others = not self._ownership.owns(queue.slot)
        is_behind = bool(self._state.held.names([("queue", namespace, name)], is_others=is_others))
        return queue if self.is_away or is_behind else None

    def publish(self, unit: Unit, size: int) -> Ticket[Receipt]:
        """Publish, or keep it in the spool where the store is away, or where something before it is kept there."""
        if self._state.log is not None and not self.is_away and not self._state.held:
            self._remote.check_owners(unit.parts)
            home = self._remote.home_of(unit.parts)
            results = self._publisher.append_at_once(unit.parts, size, home)
            if results is not None:
                return self._commits.commit(slot=home, result=Receipt(unit.count, results), unit=unit)
        return Ticket.of(self._publish_later(unit, size))

    async def _publish_later(self, unit: Unit, size: int) -> Receipt:
        if self._state.log is None:
            raise Unavailable("this node is starting: what its spool holds is not known yet; try again")
        home: int | None = None
        results: Results | None = None
        while results is None:
            if self._must_wait(unit) and not await self._is_free_soon(unit):
                return await self._keep(unit)
            self._remote.check_owners(unit.parts)
            home = self._remote.home_of(unit.parts)
            try:
                results = self._publisher.append_at_once(unit.parts, size, home)
                results = results or await self._publisher.append_in_room(unit.parts, partial(self._check, unit), home)
            except _Overtaking:
                continue
            except Unavailable as error:  # a lane could not be loaded: nothing was appended
                if isinstance(error, Fenced | NotOwner) or not unit.is_durable:
                    raise
                return await self._keep(unit)
        receipt = await self._commits.commit(slot=home, result=Receipt(unit.count, results), unit=unit)
        return receipt if receipt.buffered else Receipt(unit.count, await self._remote.landed(results))

    def _check(self, unit: Unit) -> None:
        """Raise where something that goes first went into the spool, or back into it, while this waited for a lane."""
        if self._must_wait(unit):
            raise _Overtaking

    def _must_wait(self, unit: Unit) -> bool:
        return unit.is_durable and (self.is_away or bool(self._state.held and self._before(unit)))

    def _before(self, unit: Unit) -> list[Name]:
        """The records that it must stay behind."""
        if unit.is_forwarded and not any(is_ordered(part.queue) for part in unit.parts):
            return []  # what its connection published before is not in this spool
        is_others = any(map(self._remote.is_other_nodes, unit.parts))
        return self._state.held.names(_targets(unit), is_others=is_others)

    async def _is_free_soon(self, unit: Unit) -> bool:
        """Wait until nothing before it is in the spool, where that is a matter of moments; whether it came true."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAITS_S
        while self._must_wait(unit):
            is_stalled = any(map(self.replay.is_stalled, self._before(unit)))
            if self.is_away or self._state.messages > FEW_MESSAGES or is_stalled or loop.time() >= until:
                return False
            await self._state.held.changed(max(until - loop.time(), CLOCK_S))
        return True

    async def _keep(self, unit: Unit) -> Receipt:
        if unit.is_forwarded:
            raise _not_kept(unit)
        queue = self._ordered_elsewhere(unit)
        if queue is not None:
            raise Unavailable(
                f"the store is away; queue {queue.name!r} is ordered and other nodes may take what is published to it "
                "later, so nothing is buffered for it: try again"
            )
        await self._commits.publishes_settled()  # or one before it could come behind it into the spool
        await self._add(unit, None)
        return unit.receipt

    def _ordered_elsewhere(self, unit: Unit) -> Queue | None:
        """A queue whose order this node's spool could not keep: another node may be published to meanwhile."""
        if not self._ownership.had_company:
            return None
        return next((part.queue for part in unit.parts if is_ordered(part.queue)), None)

    def _add(self, unit: Unit, doubt: Doubt | None) -> asyncio.Future[None]:
        """Into the spool, behind all that is in it; the future is done when it is durable there."""
        assert self._state.log is not None
        now_ms = self._clock.now_ms()
        batch = unit.messages if isinstance(unit.messages, EncodedBatch) else encode(unit.messages)
        queue_id = 0 if unit.queue is None else unit.parts[0].queue.id
        reached = tuple(dict.fromkeys(part.queue.name for part in unit.parts))

        def make(sequence: int) -> Record:
            return Record(
                sequence,
                now_ms,
                unit.namespace,
                unit.queue,
                queue_id,
                unit.exchange,
                reached,
                unit.publish_id,
                batch.count,
                batch.meta,
                batch.body,
                doubt,
            )

        record, stored = self._state.log.add(make)
        self._state.held.hold((self._state.id, record.sequence), record)
        self._state.oldest_ms = now_ms if self._state.oldest_ms is None else self._state.oldest_ms
        self.replay.wake()
        return stored

    # Order ------------------------------------------------------------------------------------------------

    def check_free(self, parts: Sequence[Part]) -> None:
        """Raise while something published before to these queues is in the spool: this must not overtake it."""
        if self._state.held:
            for part in parts:
                targets = targets_of(part.queue.namespace, None, [part.queue.name])
                if self._state.held.names(targets, is_others=self._remote.is_other_nodes(part)):
                    raise Unavailable(
                        f"publishes to queue {part.queue.name!r} are in the spool, and go first; try again"
                    )

    def ids_until_ms(self, now_ms: int) -> int:
        """Up to when ids may be forgotten: those that counted when a record was spooled count when it is replayed."""
        return now_ms if self._state.oldest_ms is None else min(now_ms, self._state.oldest_ms)

    # Around a commit --------------------------------------------------------------------------------------

    def stamp(self, commit: Commit) -> Doubt | None:
        """Number a commit, so that it can be asked for when its answer is lost; None for a node without any slot."""
        slot = slot_of(commit.lanes[0].lane) if commit.lanes else next(iter(commit.epochs), None)
        if slot is None:
            return None
        self._number += 1
        key = b"commit:%b:%d" % (self._state.id.encode(), self._failures)
        lane = SPOOL_LANES + slot
        change = next((change for change in reversed(commit.lanes) if change.lane == lane), None)
        if change is None:
            change = LaneChange(lane, 0, 0, 0)
            commit.lanes.append(change)
        now_ms = self._clock.now_ms()
        # The same time for a day on: to change what is in an index costs a database more than the rest of the row.
        change.dedup.append(DedupRow(key, self._number, now_ms - now_ms % DAY_MS + DAY_MS + ROWS_KEPT_MS))
        if slot not in self._swept:  # once in a while, those of processes that are long gone go
            self._swept.add(slot)
            change.dedup_expired_ms = now_ms
        return Doubt(slot, key, self._number, self._ownership.epoch(slot))

    def lost(self, error: PenstockError) -> None:
        """A commit failed. From here on none bears this key: whether the stamp is at its number stays as it is."""
        self._failures += 1
        self._state.held.lost()
        self.replay.lost()
        self.found_away(error)

    def found_away(self, error: BaseException) -> None:
        """The store did not take a commit: if that is because it is away, publishes are buffered from now on."""
        if self.is_on and isinstance(error, Unavailable) and not isinstance(error, Fenced):
            if not self.is_away:
                self._state.is_away = True
                log.warning("the store is away, publishes are buffered: %s", error)
                self._state.held.tell()
            self.replay.wake()

    def rescue(self, publishes: Iterable[Publish], doubt: Doubt | None, error: PenstockError) -> set[Ticket[Any]]:
        """Spool the publishes of a failed commit, in their order, before anything newer; the tickets answered here."""
        answered: set[Ticket[Any]] = set()
        if not self.is_away or isinstance(error, Fenced) or not isinstance(error, Unavailable):
            return answered
        for ticket, unit in publishes:
            if ticket.is_closed or not unit.is_durable:
                continue
            if unit.is_forwarded:
                if doubt is None or unit.is_known_again:
                    answered.add(ticket)
                    ticket.fail(_not_kept(unit))
                continue
            if self._ordered_elsewhere(unit) is not None:
                continue
            answered.add(ticket)
            try:
                stored = self._add(unit, doubt)
            except PenstockError as full:
                ticket.fail(Unavailable(f"{error}; and {full}"))
            else:
                stored.add_done_callback(partial(_buffered, ticket, unit))
        return answered


def _buffered(ticket: Ticket[Receipt], unit: Unit, stored: asyncio.Future[None]) -> None:
    """A publish of a failed commit is in the spool, or could not be stored there."""
    if stored.cancelled():
        ticket.fail(Unavailable("the spool was closed before this was stored in it"))
    elif (error := stored.exception()) is not None:
        ticket.fail(error)
    else:
        ticket.complete(unit.receipt)


def _not_kept(unit: Unit) -> NotOwner:
    """The node that forwarded a publish keeps it, or asks the next owner: with this one no more than that is safe."""
    return NotOwner("the store is away from this node, which keeps nothing for others", slot_of(unit.parts[0].lane))


def is_ordered(queue: Queue) -> bool:
    """Whether any of its groups takes partitions in their order."""
    return queue.config.ordered or any(group.settings.ordered for group in queue.groups.values())


def _targets(unit: Unit) -> list[Target]:
    return targets_of(unit.namespace, unit.exchange, (part.queue.name for part in unit.parts))
