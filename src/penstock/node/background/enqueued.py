"""Transactional enqueue: messages that applications put into the store themselves, published exactly once.

An application's row is seen here when its transaction has committed. The node takes the rows with the lowest ids and
remembers no position, since a lower id may be committed later. One store commit appends the messages to their lanes and
deletes their rows: whatever crashes, both have happened or neither. Where a queue is full its rows wait, and all others
go on. A row that cannot be published stays in the store with the error, until its target is declared or a user retries
it.

Only the owner of the registrar slot takes rows (`_takes_rows` decides); a commit about them is fenced by that slot.
Where rows lie, and how the store knows of new ones, is the engine's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.api.admin import FailedPage
from penstock.api.slices import in_turns
from penstock.model import Message, check_message
from penstock.model.errors import (
    Closed,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    PenstockError,
    QueueFull,
    StoreCorrupt,
    Unavailable,
    Unroutable,
)
from penstock.model.rows import REGISTRAR_SLOT, CatalogRow, EnqueuedFailure, EnqueuedRow, EnqueuedTarget, FailedRow
from penstock.model.typed_headers import plain_headers
from penstock.model.work import Budget
from penstock.node.catalog import Catalog
from penstock.node.clock import Clock
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.counters import Counters
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part, Results, parts_of_messages
from penstock.store.contract import Enqueueing as EnqueuedStore

POLL_S: Final = 1.0
ROWS_AT_ONCE: Final = 5_000
BYTES_AT_ONCE: Final = 8 * 1024 * 1024
FULL_PAUSE_S: Final = 1.0
"""How long rows for a full queue are passed over before they are tried again."""
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 5.0
FAILED_AT_ONCE: Final = 1_000
FAILED_MAX: Final = 10_000
"""Of one page."""
ERROR_CHARACTERS_MAX: Final = 1_024

log = logging.getLogger("penstock.enqueue")


class Taken(NamedTuple):
    """A row on its way: what it says, and the queues that it goes to."""

    row: EnqueuedRow
    message: Message
    queues: tuple[str, ...]


@dataclass(eq=False, repr=False)
class Enqueueing:
    """Takes enqueued rows; one commit at a time, so that no row is read while it is being deleted."""

    _source: EnqueuedStore | None
    _catalog: Catalog
    _commits: Commits
    _publisher: Publisher
    _clock: Clock
    _counters: Counters
    _lifecycle: Lifecycle
    _ownership: Ownership
    _check_room: Callable[[], None]
    """Raises while the node holds publishes back."""
    _poll_s: float = POLL_S

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._full: dict[EnqueuedTarget, float] = {}
        """Targets that are passed over, and until when."""
        self._declared: dict[str, set[str | None]] = {}
        """namespace → queues that were declared since failed rows were last looked through; None for exchanges"""
        self.failed = 0
        """Rows that have failed and are still there, as far as known."""
        self._oldest_ms: int | None = None
        """When the oldest row was enqueued that the last look found."""

    # Life -------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin to take rows, where the store lets applications put any."""
        if self._source is not None:
            await self._source.watch(self.wake)
            self.failed = await self._source.count_failed()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        """There may be new rows."""
        self._wake.set()

    def declared(self, rows: Sequence[CatalogRow]) -> None:
        """Things were declared: some of the rows that have failed may have waited for them."""
        if self._task is None:
            return
        for row in rows:
            if row.kind == "queue":
                self._declared.setdefault(row.namespace, set()).add(row.name)
            if row.kind in ("queue", "exchange", "binding"):
                self._declared.setdefault(row.namespace, set()).add(None)
        self.wake()

    def catalog_replaced(self) -> None:
        """The catalog was read again: anything in it may be what a row has waited for."""
        self.declared(list(self._catalog.rows()))

    def lag_seconds(self) -> float:
        """For how long the oldest row has waited that the last look found; 0 without one."""
        return 0.0 if self._oldest_ms is None else max(0, self._clock.now_ms() - self._oldest_ms) / 1000

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _takes_rows(self) -> bool:
        """Whether this node is the one that takes rows now."""
        return not self._lifecycle.is_over and self._ownership.is_registrar

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            self._wake.clear()
            try:
                if self._takes_rows():
                    await self._retry_declared()
                    await self._take_all()
                pause_s = PAUSE_S
                with contextlib.suppress(TimeoutError):
                    # Not `wait_for`: it forgets a cancellation that comes together with what it waits for.
                    async with asyncio.timeout(self._poll_s):
                        await self._wake.wait()
            except Exception as error:  # of whatever kind: rows wait in the store, and are looked at again
                if not self._lifecycle.closed:
                    log.warning("enqueued messages cannot be taken now, trying again: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    # Taking -----------------------------------------------------------------------------------------------

    async def _take_all(self) -> None:
        assert self._source is not None
        while self._takes_rows():
            self._check_room()
            now_s = asyncio.get_running_loop().time()
            self._full = {target: until_s for target, until_s in self._full.items() if until_s > now_s}
            rows = await self._source.rows(ROWS_AT_ONCE, BYTES_AT_ONCE, list(self._full))
            self._oldest_ms = rows[0].enqueued_ms if rows else None
            if not rows:
                return
            taken, failures = await self._route_all(rows)
            await self._publish(taken, failures)

    async def _route_all(self, rows: Sequence[EnqueuedRow]) -> tuple[list[Taken], list[EnqueuedFailure]]:
        """The rows that have a target, and why the others cannot be published."""
        taken: list[Taken] = []
        failures: list[EnqueuedFailure] = []
        budget = Budget()
        for row in rows:
            try:
                taken.append(await self._routed(row, budget))
            except Exception as error:  # of whatever kind: it must not be in the way of others
                failures.append(self._failure(row, error))
        return taken, failures

    async def _routed(self, row: EnqueuedRow, budget: Budget) -> Taken:
        """A row with the queues that it goes to; raises why it cannot be published."""
        message = message_of(row)
        check_message(message)
        catalog = self._catalog
        if row.queue is not None:
            queues: Sequence[str] = (row.queue,)
        else:
            queues = await in_turns(catalog.router(row.namespace).routing(row.exchange or "", message, budget))
            if not queues and row.mandatory:
                raise Unroutable(f"exchange {row.exchange!r} has no queue for key {message.key!r}")
        for name in queues:
            if name.startswith("$"):
                raise Forbidden(f"queue {name!r} is written by the broker alone")
            most = catalog.queue(row.namespace, name).message_bytes_max
            if len(message.payload) > most:
                raise MessageTooLarge(f"payload has {len(message.payload)} bytes; the limit of {name!r} is {most}")
        return Taken(row, message, tuple(queues))

    async def _publish(self, taken: Sequence[Taken], failures: Sequence[EnqueuedFailure]) -> None:
        """Publish rows in their order. Where some of them are refused, halves find out which."""
        try:
            await self._commit(taken, failures)
        except (Unavailable, Closed, Overloaded, StoreCorrupt):
            raise  # none of them is to blame
        except PenstockError as error:
            if not taken:
                raise
            if len(taken) == 1:
                await self._refused(taken[0].row, error, failures)
                return
            middle = len(taken) // 2
            await self._publish(taken[:middle], failures)
            rest = [one for one in taken[middle:] if one.row.target not in self._full]
            if rest:
                await self._publish(rest, [])

    async def _refused(self, row: EnqueuedRow, error: PenstockError, failures: Sequence[EnqueuedFailure]) -> None:
        if isinstance(error, QueueFull):
            # Those behind it wait too: what is for one target stays in its order.
            self._full[row.target] = asyncio.get_running_loop().time() + FULL_PAUSE_S
            log.info("enqueued messages for %s wait: %s", _name(row), error)
        else:
            failures = [*failures, self._failure(row, error)]
        if failures:
            await self._commit([], failures)

    async def _commit(self, taken: Sequence[Taken], failures: Sequence[EnqueuedFailure]) -> None:
        """Append messages and delete their rows, in one commit."""
        parts = self._parts(taken)
        results: Results = []
        if parts:
            results = await self._publisher.append_in_room(parts, self._lifecycle.check_open, REGISTRAR_SLOT)
        # No wait in between: the messages, or the promise of them to their queues' owners, and the end of their rows
        # are one commit.
        pending = self._commits.amend(REGISTRAR_SLOT)
        pending.enqueued_deleted += [one.row.id for one in taken]
        pending.enqueued_failed += failures
        try:
            await self._commits.commit(slot=REGISTRAR_SLOT)
        except PenstockError as error:
            raise Unavailable(f"a commit failed: {error}") from error  # for whatever reason: no row is to blame
        self._publisher.nudge(results)
        self._counters.enqueued_published += len(taken)
        self._counters.enqueued_failed += len(failures)
        self.failed += len(failures)

    def _parts(self, taken: Sequence[Taken]) -> list[Part]:
        """What each queue gets, in the order of the rows however they came there."""
        by_queue: dict[tuple[str, str], list[Message]] = {}
        for one in taken:
            for name in one.queues:
                by_queue.setdefault((one.row.namespace, name), []).append(one.message)
        parts: list[Part] = []
        for (namespace, name), messages in by_queue.items():
            queue = self._catalog.queue(namespace, name)
            try:
                parts += parts_of_messages(queue, messages)
            except PenstockError:
                raise
            except Exception as error:  # of whatever kind: nothing is appended yet, and halves find the message
                raise InvalidArgument(f"the message cannot be encoded: {error!r}") from error
        return parts

    def _failure(self, row: EnqueuedRow, error: Exception) -> EnqueuedFailure:
        log.warning("the enqueued message %d for %s cannot be published: %s", row.id, _name(row), error)
        return EnqueuedFailure(row.id, str(error)[:ERROR_CHARACTERS_MAX], self._clock.now_ms())

    # Rows that have failed --------------------------------------------------------------------------------

    async def page(self, namespace: str, after: int, most: int) -> FailedPage:
        """Rows of a namespace that have failed, from behind an id on."""
        rows = await self._failed_rows(namespace, after, most + 1)
        return FailedPage(rows[:most], rows[most - 1].id if len(rows) > most else None)

    async def _failed_rows(self, namespace: str, after: int, most: int) -> list[FailedRow]:
        return [] if self._source is None else await self._source.failed(namespace, after, most)

    async def retry(self, namespace: str, ids: Sequence[int] | None) -> int:
        """Try rows again that have failed, all of a namespace where none are named; how many."""
        return await self._settle(namespace, ids, is_retry=True)

    async def purge(self, namespace: str, ids: Sequence[int] | None) -> int:
        """Let rows go that have failed; how many."""
        return await self._settle(namespace, ids, is_retry=False)

    async def _settle(self, namespace: str, ids: Sequence[int] | None, *, is_retry: bool) -> int:
        self._ownership.check(REGISTRAR_SLOT)
        wanted = None if ids is None else set(ids)
        count = after = 0
        while rows := await self._failed_rows(namespace, after, FAILED_AT_ONCE):
            after = rows[-1].id
            chosen = [row.id for row in rows if wanted is None or row.id in wanted]
            count += len(chosen)
            await self._settle_some(chosen, is_retry=is_retry)
        return count

    async def _settle_some(self, ids: list[int], *, is_retry: bool) -> None:
        if ids:
            pending = self._commits.amend(REGISTRAR_SLOT)
            (pending.enqueued_retried if is_retry else pending.enqueued_deleted).extend(ids)
            await self._commits.commit(slot=REGISTRAR_SLOT)
            if self._source is not None:
                self.failed = await self._source.count_failed()
            self.wake()

    async def _retry_declared(self) -> None:
        """Try those again that may have waited for what was declared since."""
        while self._declared:
            namespace, names = self._declared.popitem()
            if not self.failed:
                continue
            after = 0
            while rows := await self._failed_rows(namespace, after, FAILED_AT_ONCE):
                after = rows[-1].id
                await self._settle_some([row.id for row in rows if row.queue in names], is_retry=True)


_fields: Final = attrgetter(*Message.__struct_fields__)


def message_of(row: EnqueuedRow) -> Message:
    """What a row says, not checked but for its headers."""
    headers = None
    if row.headers is not None:
        try:
            decoded = json.loads(row.headers)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"headers cannot be read as JSON: {error}") from None
        if not isinstance(decoded, dict):
            raise InvalidArgument(f"headers are a JSON {type(decoded).__name__}; they must be an object")
        headers = plain_headers(decoded)
    payload, partition, key, _, *rest = _fields(row)
    return Message(payload, partition, key, headers, *rest)


def _name(row: EnqueuedRow) -> str:
    return f"queue {row.queue!r}" if row.queue is not None else f"exchange {row.exchange!r}"
