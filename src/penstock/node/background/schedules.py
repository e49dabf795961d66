"""Schedules: a stored message that is published again and again, once for each tick however often a node restarts.

A tick's message and the schedule's new state are one commit: a crash, a failed commit or another node that takes over
finds both or neither. Every fire is for the latest tick that is due: ticks that were missed, because no node ran or the
store was away, are made up for by one message, not by many. While paused nothing fires, and nothing is made up for.

Where a message cannot be published (its queue is gone or full, no binding takes it), the tick is over all the same:
the schedule keeps the reason in `last_error` and goes on with the next one. A store that is away is another matter:
the tick is tried again until it is committed or a later one is due. `cron.py` says when; this module does not know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from penstock.api.declare import Schedule
from penstock.api.measures import Counts
from penstock.api.slices import in_turns
from penstock.core.cron import Timing
from penstock.core.schedule import ScheduleDocument, message_at
from penstock.model import Message
from penstock.model.errors import Closed, Fenced, LimitReached, NotFound, Overloaded, PenstockError, Unavailable
from penstock.model.rows import REGISTRAR_SLOT
from penstock.node.catalog import Catalog, schedule_row
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.lifecycle import Lifecycle
from penstock.node.limits import Limits
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part, parts_of_messages, route_message
from penstock.node.timers import Tasks, Timers

FIRE_AT_ONCE: Final = 500
RETRY_MS: Final = 1_000
ERROR_CHARACTERS_MAX: Final = 1_024

log = logging.getLogger("penstock.schedules")

ScheduleKey = tuple[str, str]
"""(namespace, name)"""


@dataclass(eq=False, repr=False)
class Schedules:
    """Fires what is due: one timer a schedule, one round at a time for all that are due together."""

    _catalog: Catalog
    _writer: CatalogWriter
    _publisher: Publisher
    _clock: Clock
    _timers: Timers
    _tasks: Tasks
    _lifecycle: Lifecycle
    _ownership: Ownership
    _limits: Limits
    _counters: Counts
    _check_room: Callable[[], None]
    """Raises while the node holds publishes back."""

    def __post_init__(self) -> None:
        self._next: dict[ScheduleKey, int | None] = {}
        self._due: dict[ScheduleKey, None] = {}
        self._firing = False

    # What was declared ------------------------------------------------------------------------------------

    async def slots_served(self, slots: Set[int]) -> None:
        """Where the registrar's is among them, arm every schedule; what was missed while no node ran fires now."""
        if REGISTRAR_SLOT in slots:
            for key in self._catalog.schedules:
                self._arm(key)

    def slots_shed(self, slots: Set[int]) -> None:
        """Where the registrar's is among them, another node fires from now on."""
        if REGISTRAR_SLOT in slots:
            for key in self._catalog.schedules:
                self._timers.cancel(("schedule", *key))
            self._next.clear()
            self._due.clear()

    def reloaded(self) -> None:
        """The catalog was read again after a failed commit: which ticks were fired is known only now."""
        if not self._ownership.is_registrar:
            return
        self._next.clear()
        again_ms = self._clock.now_ms() + RETRY_MS
        for key in self._catalog.schedules:
            self._arm(key, again_ms)

    async def declare(self, namespace: str, name: str, wanted: ScheduleDocument) -> Schedule:
        """Create a schedule, or replace the one there is. It fires at the ticks after this moment.

        While its timing stays the same a schedule that is replaced loses and repeats no tick.
        """
        catalog, key = self._catalog, (namespace, name)
        async with self._writer.declaring("schedule", "", ""):
            known = catalog.schedules.get(key)
            count = len(catalog.schedules)
            if known is None and count >= self._limits.schedules:
                raise LimitReached(f"there are {count} schedules already, as many as may be; delete some first")
            self._check_rate(key, wanted)
            document = msgspec.structs.replace(wanted, after_ms=self._clock.now_ms())
            if known is not None:
                document = _replacing(known.document, document)
            if known is None or document != known.document:
                id = catalog.new_id() if known is None else known.id
                row = schedule_row(id, namespace, name, document)
                await self._writer.commit([row], after=lambda: self._arm(key))
            return self.one(namespace, name)

    def _check_rate(self, key: ScheduleKey, wanted: ScheduleDocument) -> None:
        """Raise where the namespace's schedules would publish more than they may."""
        others = sum(
            _timing(stored.document).per_second
            for other, stored in self._catalog.schedules.items()
            if other[0] == key[0] and other != key and not stored.document.paused
        )
        more, most = _timing(wanted).per_second, self._limits.schedule_rate
        if not wanted.paused and others + more > most:
            self._counters.schedules_refused += 1
            raise LimitReached(
                f"schedule {key[1]!r} would publish {more:g} messages a second; the others of namespace {key[0]!r} "
                f"publish {others:g}, and all together may publish {most:g} (limits.schedule_rate); let it fire less "
                "often, pause others, or raise the limit"
            )

    async def delete(self, namespace: str, name: str) -> None:
        """Forget a schedule; what it published stays."""
        catalog, key = self._catalog, (namespace, name)
        async with self._writer.declaring("schedule", "", ""):
            known = catalog.schedules.get(key)
            if known is None:
                raise NotFound(f"there is no schedule {name!r}")

            def forget() -> None:
                catalog.schedules.remove(key)
                self._arm(key)

            await self._writer.commit([], [("schedule", known.id)], forget)

    def one(self, namespace: str, name: str) -> Schedule:
        stored = self._catalog.schedules.get((namespace, name))
        if stored is None:
            raise NotFound(f"there is no schedule {name!r}")
        document = stored.document
        return Schedule(
            name,
            document.message,
            document.queue,
            document.exchange,
            document.cron,
            document.interval_ms,
            document.timezone,
            document.paused,
            document.description,
            self._next.get((namespace, name)),
            document.last_ms,
            document.fired,
            document.last_error,
        )

    def all(self, namespace: str) -> list[Schedule]:
        """The schedules of a namespace by name."""
        return [self.one(*key) for key in sorted(self._catalog.schedules) if key[0] == namespace]

    # When -------------------------------------------------------------------------------------------------

    def _arm(self, key: ScheduleKey, not_before_ms: int = 0) -> None:
        """Set the timer for the schedule's next tick, the only one it has; none for one that is paused or gone."""
        timers, timer = self._timers, ("schedule", *key)
        timers.cancel(timer)
        stored = self._catalog.schedules.get(key)
        if stored is None:
            self._next.pop(key, None)
            return
        document = stored.document
        next_ms = None if document.paused else _timing(document).after(document.after_ms)
        self._next[key] = next_ms
        if next_ms is not None:
            timers.at(max(next_ms, not_before_ms), timer, partial(self._is_due, key))

    def _is_due(self, key: ScheduleKey) -> None:
        if self._lifecycle.fenced is not None or not self._ownership.is_registrar:
            return  # the store has another owner, who fires them now
        self._due[key] = None
        if not self._firing:
            self._firing = True
            self._tasks.spawn(self._fire_all())

    async def _fire_all(self) -> None:
        try:
            while self._due:
                # Nothing is declared meanwhile: a schedule that is being changed must not fire as it was before.
                async with self._writer.declaring("schedule", "", ""):
                    keys = list(islice(self._due, FIRE_AT_ONCE))
                    for key in keys:
                        del self._due[key]
                    await asyncio.gather(*(self._fire(key) for key in keys))
        finally:
            self._firing = False

    # Firing -----------------------------------------------------------------------------------------------

    async def _fire(self, key: ScheduleKey) -> None:
        """Publish for the latest tick that is due. One schedule that fails does not stop the others."""
        try:
            await self._fire_latest(key)
        except Exception as error:
            if not self._lifecycle.is_over and self._ownership.is_registrar:
                log.warning("schedule %r of namespace %r could not fire, trying again: %s", key[1], key[0], error)
                again_ms = self._clock.now_ms() + RETRY_MS
                self._timers.at(again_ms, ("schedule", *key), partial(self._is_due, key))
        else:
            self._arm(key)

    async def _fire_latest(self, key: ScheduleKey) -> None:
        stored = self._catalog.schedules.get(key)
        if stored is None or stored.document.paused:
            return
        document = stored.document
        tick_ms = _timing(document).latest(document.after_ms, self._clock.now_ms())
        if tick_ms is None:
            return
        namespace, name = key
        try:
            self._check_room()
            await self._append(namespace, name, document, tick_ms)
        except (Unavailable, Fenced, Closed, Overloaded):
            raise
        except PenstockError as error:
            log.warning("schedule %r of namespace %r published nothing: %s", name, namespace, error)
            done = msgspec.structs.replace(document, after_ms=tick_ms, last_error=str(error)[:ERROR_CHARACTERS_MAX])
        else:
            done = msgspec.structs.replace(
                document, after_ms=tick_ms, last_ms=tick_ms, fired=document.fired + 1, last_error=""
            )
        # No wait since the messages were appended: they and the new state are one commit.
        await self._writer.commit([schedule_row(stored.id, namespace, name, done)])
        self._counters.schedules_fired += done.fired - document.fired

    async def _append(self, namespace: str, name: str, document: ScheduleDocument, tick_ms: int) -> None:
        message = message_at(document.message, namespace, name, tick_ms)
        parts = await self._parts(namespace, document, message)
        # Checked in the step that appends: a state that could not be committed with them must not follow.
        self._publisher.nudge(await self._publisher.append_in_room(parts, self._writer.check, REGISTRAR_SLOT))

    async def _parts(self, namespace: str, document: ScheduleDocument, message: Message) -> list[Part]:
        if document.queue is not None:
            return parts_of_messages(self._catalog.queue(namespace, document.queue), [message])
        return await in_turns(route_message(self._catalog, namespace, document.exchange or "", message))


def _timing(document: ScheduleDocument) -> Timing:
    return Timing(document.cron, document.interval_ms, document.timezone)


def _replacing(known: ScheduleDocument, wanted: ScheduleDocument) -> ScheduleDocument:
    """What was wanted, with what is known of the ticks so far; those before a resume or a new timing are over."""
    goes_on = _timing(known) == _timing(wanted) and known.paused == wanted.paused
    return msgspec.structs.replace(
        wanted,
        after_ms=known.after_ms if goes_on else wanted.after_ms,
        last_ms=known.last_ms,
        fired=known.fired,
        last_error=known.last_error,
    )
