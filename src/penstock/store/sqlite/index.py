"""The log and its index: a commit is durable once it is in the log; the tables, its index, follow in the background.

`Overlay`s hold what is in the log and not in the tables, the newest last. Only the store that has the turn has them;
one that takes the turn reads them from the log. Two locks: `_appending` for the log's end, held during a sync, and
`_folding` for the overlays, held for moments only, so that the event loop may take it. It may not know what rows mean.
Next stop: `engine.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event, Lock
from time import perf_counter
from typing import Final, TypeVar

from penstock.api.ticket import Ticket
from penstock.model.errors import PenstockError
from penstock.model.rows import DedupRow
from penstock.store.closing import fenced
from penstock.store.sqlite.file import Connection, File, durably, in_transaction
from penstock.store.sqlite.log import sync
from penstock.store.sqlite.log.log import Entry, Log, LogPosition
from penstock.store.sqlite.log.records import Draft
from penstock.store.sqlite.log.segments import Segment
from penstock.store.sqlite.log.space import clean
from penstock.store.sqlite.log.sync import KernelSyncs
from penstock.store.sqlite.log.turn import Turn
from penstock.store.sqlite.overlay import Overlay
from penstock.store.sqlite.reads import Pending, understood
from penstock.store.sqlite.statements import SQL
from penstock.store.sqlite.threads import Checkpoints, Threads
from penstock.store.sqlite.writes import Freed, write_overlay

INDEX_SECONDS: Final = 1.0
"""A commit reaches the tables within this time, sooner when a read needs it."""
INDEX_ROWS: Final = 8192
INDEX_ROWS_BYTES: Final = 8 << 20
INDEX_LOG_BYTES: Final = 64 << 20
"""One write of the tables takes up to this many rows, bytes of rows, or bytes of log."""
BEHIND_MOST: Final = 8
"""When the tables lag by this many such writes, because they fail, commits wait and fail with them."""
KERNEL_AFTER: Final = 256
"""Small commits before kernel syncs are set up: that takes time, and most stores are not busy. A server sets them up as
it starts (`sync.make_ready`)."""
SOON_BYTES: Final = 1 << 20
"""The event loop writes records up to this size itself where the kernel syncs in the background."""
AT_ONCE_BYTES: Final = 1 << 16
AT_ONCE_SECONDS: Final = 0.0006
"""Elsewhere the loop writes and syncs records up to this size itself, while the disk syncs within this time."""
LOOK_SECONDS: Final = 0.005
"""How long a check that the files are in place is trusted. Two `stat` calls cost a tenth of a small commit, and a file
can be deleted right after any check."""
_LOG: Final = tuple[bytes, int, int, int, int, int]
_LIVE: Final = tuple[int, int]
_HELD: Final = tuple[int, int, str]
_ROW_LOG_BYTES: Final = 512
"""What a row adds to the WAL, to estimate when to checkpoint."""

_logger = logging.getLogger("penstock.store.sqlite")

Result = TypeVar("Result")


class _TurnLost(Exception):
    """Another store took the turn: it finds in the log what our overlays held."""


class IndexedLog:
    """The log beside a file, and the file as its index."""

    def __init__(self, file: File, writer: Threads, checkpoints: Checkpoints) -> None:
        folder = Path(f"{file.path}-log")
        self._file = file
        self._writer = writer
        self._checkpoints = checkpoints
        self._log = Log(folder)
        self._turn = Turn(folder)
        self._appender = ThreadPoolExecutor(1, "penstock-log-append")
        self._appending = Lock()
        self._folding = Lock()
        self._overlays = [Overlay()]
        self._epochs: dict[int, tuple[int, str]] = {}
        self._live: dict[int, int] = {}
        self._hurry = Event()
        self._scheduled = False
        self._closing = False
        self._syncs: KernelSyncs | None = None
        self._asked_for_syncs = False
        self._small_commits = 0
        self._looked_at = 0.0
        self._is_far_behind = False
        """The tables lag too far behind: appends wait for them."""
        self.segments = self._log.segments
        self.cuts = self._log.cuts

    # Appending --------------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> Ticket[None]:
        """Make a record durable: without a thread where that is quick, and without blocking where the kernel syncs."""
        syncs = self._kernel_syncs(draft.size)
        if (syncs is None and not self._is_quick_at_once(draft.size)) or not self._enter(draft.size):
            return self.append_later(lambda: draft)
        try:
            self._check(draft)
            segment = self._log.write(draft)
        except Exception as error:
            self._leave()
            return Ticket.failed(self._file.translated(error))
        ticket: Ticket[None] = Ticket()
        if syncs is None or not segment.start_sync(syncs, partial(self._end, draft, ticket)):
            self._sync_here(segment, draft, ticket)
        return ticket

    def _sync_here(self, segment: Segment, draft: Draft, ticket: Ticket[None]) -> None:
        """Sync a record that was written, where the kernel takes no order."""
        self._end_syncs()
        try:
            segment.sync()
        except OSError as error:
            self._end(draft, ticket, error)
        else:
            self._end(draft, ticket, None)

    def _end(self, draft: Draft, ticket: Ticket[None], error: Exception | None) -> None:
        """A record was synced, or was not."""
        if error is None:
            self._tell(self._log.synced(draft), ticket)
            return
        try:
            self._log.not_synced()
        except Exception as failure:
            error = failure
        finally:
            self._leave()
        ticket.fail(self._file.translated(error))

    def _tell(self, entry: Entry, ticket: Ticket[None]) -> None:
        """Report that a record is durable, then update the overlay."""
        try:
            ticket.end()
        finally:
            try:
                self._fold(entry)
            except Exception:
                _logger.exception(
                    "%s: a commit is in the log and was not understood; it is read again", self._file.path
                )
                self._turn.give_up()
            self._leave()

    def _enter(self, size: int) -> bool:
        """Take the log for one record, if that needs only a write and a sync. The caller must `_leave` then."""
        log, turn = self._log, self._turn
        if self._is_far_behind or not self._appending.acquire(blocking=False):
            return False
        if log.is_plain and log.fits(size) and turn.lock_at_once():
            if turn.is_ours():
                return True
            turn.unlock()
        self._appending.release()
        return False

    def _leave(self) -> None:
        self._turn.unlock()
        self._appending.release()

    def _is_quick_at_once(self, size: int) -> bool:
        return size <= AT_ONCE_BYTES and self._log.sync_seconds <= AT_ONCE_SECONDS

    def _kernel_syncs(self, size: int) -> KernelSyncs | None:
        """Those for a record of this size; None where there are none. On the event loop."""
        if size > SOON_BYTES:
            return None
        if not self._asked_for_syncs:
            self._small_commits += 1
            self._asked_for_syncs = self._small_commits > KERNEL_AFTER or sync.is_ready()
            if self._asked_for_syncs:
                self._syncs = KernelSyncs.of_loop(asyncio.get_running_loop())
        return self._syncs

    def _end_syncs(self) -> None:
        """On the event loop, when nothing is under way."""
        if self._syncs is not None:
            self._syncs.close()
            self._syncs = None

    async def end_appends(self) -> None:
        """Wait until no record is being appended. None comes after it."""
        await asyncio.wrap_future(self._appender.submit(self._wait_for_append))
        self._end_syncs()
        self._appender.shutdown()

    def _wait_for_append(self) -> None:
        with self._appending:
            pass

    def append_later(self, make: Callable[[], Draft]) -> Ticket[None]:
        """On a thread, from the next turn of the event loop on: until then, the two would fight for Python's lock."""
        ticket: Ticket[None] = Ticket()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._hand_over, make, ticket, loop)
        return ticket

    def _hand_over(self, make: Callable[[], Draft], ticket: Ticket[None], loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._appender.submit(self._append_on_thread, make, ticket, loop)
        except RuntimeError as error:  # the thread has ended
            ticket.fail(self._file.translated(error))

    def _append_on_thread(
        self, make: Callable[[], Draft], ticket: Ticket[None], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Append, and report on the event loop. The executor's future is left alone: to wait for it costs a task."""
        try:
            self._append_blocking(make())
        except Exception as error:
            known = self._file.translated(error)
            if known is not error:
                known.__cause__ = error
            loop.call_soon_threadsafe(ticket.fail, known)
        else:
            loop.call_soon_threadsafe(ticket.end)

    def _append_blocking(self, draft: Draft) -> None:
        """Append, whatever that takes. On a thread that may block, and is not the writer's."""
        if self._is_far_behind:
            self.ask_writer(self.bring_up_to_date)
        with self._appending, self._turn.locked():
            if self._turn.is_ours():
                self._append(draft)
                return
        self.ask_writer(partial(self._in_turn, lambda _: self._append(draft)))

    def _append(self, draft: Draft) -> None:
        """The turn is ours, and locked."""
        self._check(draft)
        self._fold(self._log.append(draft))

    def _check(self, draft: Draft) -> None:
        self._check_in_place()
        for slot, epoch in draft.commit.epochs.items():
            held, owner = self._epochs.get(slot, (None, "nobody"))
            if held != epoch:
                raise fenced(f"slot {slot} is at epoch {held} of {owner}, not at epoch {epoch}")

    def _check_in_place(self) -> None:
        now = perf_counter()
        if now - self._looked_at > LOOK_SECONDS:
            self._file.check_in_place()
            self._log.check_in_place()
            self._looked_at = now

    def _fold(self, entry: Entry) -> None:
        with self._folding:
            overlay = self._overlays[-1]
            overlay.fold(entry)
            if _weight(overlay) > 1:
                self._hurry.set()
            self._weigh()
            if not self._scheduled:
                self._schedule()

    def _weigh(self) -> None:
        """Under `_folding`."""
        self._is_far_behind = sum(map(_weight, self._overlays)) > BEHIND_MOST

    # What reads must know ---------------------------------------------------------------------------------

    def is_behind(self, concerns: Callable[[Overlay], object]) -> bool:
        """Whether the tables lack something that concerns a reader, or may."""
        if not self._turn.is_ours():
            return True
        with self._folding:
            return any(concerns(overlay) for overlay in self._overlays)

    def pending(self, lane: int, start: int, end: int) -> Pending | None:
        """What the tables lack of a lane's batches; None where they must be brought up to date to say."""
        if not self._turn.is_ours():
            return None
        with self._folding:
            changed = [overlay.lanes[lane] for overlay in self._overlays if lane in overlay.lanes]
            if any(row.deleted for row in changed):
                return None
            trim_to = max((row.trim_to for row in changed if row.trim_to is not None), default=0)
            if any(row.first_end <= trim_to for row in changed):
                return None
            rows = [place for row in changed for place in row.between(max(start, trim_to), end)]
        return Pending(rows, trim_to)

    def pending_ids(self, lane: int, keys: Sequence[bytes]) -> dict[bytes, DedupRow] | None:
        """Those of these ids that the tables may lack; None where they must be brought up to date to say."""
        if not self._turn.is_ours():
            return None
        with self._folding:
            changed = [overlay.lanes[lane] for overlay in self._overlays if lane in overlay.lanes]
            if any(row.deletes_ids for row in changed):
                return None
            return {key: row.dedup[key] for row in changed for key in keys if key in row.dedup}

    # On the writer's thread -------------------------------------------------------------------------------

    def ask_writer(self, work: Callable[[Connection], None]) -> None:
        """Run something on the writer's thread now, and wait for it."""
        self.hurry()
        self._writer.start(lambda: self._writer.connected(work)).result()

    def hurry(self) -> None:
        """Wake the writer: it is needed now."""
        with self._folding:
            if self._scheduled:
                self._hurry.set()

    def change_slots(self, connection: Connection, work: Callable[[Connection], Result]) -> Result:
        """Change who owns slots: durable before it returns, and known to every commit from then on."""
        self._file.check_in_place()
        with self._appending, self._turn.locked():
            if not self._turn.is_ours():
                self._find_out(connection)
            result = durably(connection, work)
            for slot, epoch, owner in _held_slots(connection):
                if epoch >= self._epochs.get(slot, (0, ""))[0]:
                    self._epochs[slot] = (epoch, owner)
        return result

    def bring_up_to_date(self, connection: Connection) -> None:
        """Write every answered commit to the tables."""
        if not self._turn.is_ours() or not self._index(connection):
            self._in_turn(self._index, connection)

    def _in_turn(self, work: Callable[[Connection], object], connection: Connection) -> None:
        """Take the turn and do something before another store can take it."""
        with self._appending, self._turn.locked():
            if not self._turn.is_ours():
                self._find_out(connection)
            work(connection)

    def _find_out(self, connection: Connection) -> None:
        """Take the turn: read what the tables lack from the log; from now on this store appends."""

        def begin(connection: Connection) -> tuple[bytes, int, LogPosition]:
            store_id, last, *mark = understood(_LOG, connection.execute(SQL.log).fetchone())
            number = max(last, self._turn.current()) + 1
            connection.execute(SQL.put_turn, (number,))
            return store_id, number, LogPosition(*mark)

        self._turn.give_up()
        store_id, number, mark = in_transaction(connection, "BEGIN IMMEDIATE", begin)
        with self._folding:
            self._overlays = [Overlay()]
            self._weigh()
        self._epochs = {slot: (epoch, owner) for slot, epoch, owner in _held_slots(connection)}
        self._live = dict(understood(_LIVE, row) for row in connection.execute(SQL.segments))
        for entry in self._log.resume(store_id, mark):
            overlay = self._overlays[-1]
            overlay.fold(entry)
            for slot, epoch in entry.commit.epochs.items():
                if epoch > self._epochs.get(slot, (0, ""))[0]:
                    self._epochs[slot] = (epoch, "the log")
                    overlay.epochs[slot] = epoch
            if _weight(overlay) > 1:
                self._write(connection, number)
        self._turn.take(number)
        with self._folding:
            if self._overlays[-1] and not self._scheduled:
                self._schedule()

    def _index(self, connection: Connection) -> bool:
        """Write the overlays to the tables; False where another store took the turn."""
        try:
            self._write(connection, self._turn.number)
        except _TurnLost:
            self._turn.give_up()
            with self._folding:
                self._overlays = [Overlay()]
                self._weigh()
            return False
        return True

    def _write(self, connection: Connection, number: int) -> None:
        with self._folding:
            if self._overlays[-1]:
                self._overlays.append(Overlay())
            full = self._overlays[:-1]
        if not full:
            return

        def write(connection: Connection) -> dict[int, int]:
            if connection.execute(SQL.log).fetchone()[1] != number:
                raise _TurnLost
            live: Freed = {}
            for overlay in full:
                for segment, change in write_overlay(connection, overlay).items():
                    live[segment] = live.get(segment, self._live.get(segment, 0)) + change
            connection.executemany(SQL.put_segment, list(live.items()))
            connection.execute(SQL.put_position, (*full[-1].end, number))
            return live

        self._live.update(in_transaction(connection, "BEGIN IMMEDIATE", write))
        with self._folding:
            del self._overlays[: len(full)]
            self._weigh()
        self._checkpoints.written(sum(overlay.rows * _ROW_LOG_BYTES + overlay.rows_bytes for overlay in full))
        self._clean(connection, full[-1].end.segment)

    def _clean(self, connection: Connection, current: int) -> None:
        """A failure here costs only disk space, and is tried again."""
        try:
            clean(connection, self.segments, self._live, current)
        except Exception as error:
            _logger.warning("%s: cannot give back room of the log: %s", self._file.path, error)

    def _schedule(self) -> None:
        self._scheduled = True
        self._writer.start(self._index_soon)

    def _index_soon(self) -> None:
        if not self._closing:
            self._hurry.wait(INDEX_SECONDS)
        with self._folding:
            self._scheduled = False
            self._hurry.clear()
        try:
            self._writer.connected(self._index)
        except PenstockError as error:
            _logger.warning("bringing commits into the tables: %s; they are safe in the log", error)
            with self._folding:
                if not self._closing and not self._scheduled:
                    self._schedule()

    def finish(self) -> None:
        """Write everything to the tables if possible; called by the writer's thread, at the end."""
        self._closing = True
        if self._file.prepared and self._turn.number >= 0:
            try:
                self._writer.connected(self._index)
            except PenstockError as error:
                _logger.warning("closing: %s; the commits are safe in the log", error)

    def close(self) -> None:
        self._log.close()
        self._turn.close()


def _held_slots(connection: Connection) -> list[tuple[int, int, str]]:
    return [understood(_HELD, row) for row in connection.execute(SQL.held_slots)]


def _weight(overlay: Overlay) -> float:
    """How much the tables lag; 1 is one full write."""
    return max(overlay.rows / INDEX_ROWS, overlay.rows_bytes / INDEX_ROWS_BYTES, overlay.log_bytes / INDEX_LOG_BYTES)
