"""The memory engine for tests: copies of it are crash images, and rows are enqueued as an application would do it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from penstock.api.ticket import Ticket
from penstock.model.rows import Commit, EnqueuedFailure, EnqueuedRow, EnqueuedTarget, FailedRow, KeptRow
from penstock.store.memory.engine import MemoryStore


class MemoryDisk(MemoryStore):
    """A store in memory whose rows outlive a node. With `enqueues`, it takes what applications enqueue."""

    def __init__(self, now_ms: Callable[[], int] | None = None, *, enqueues: bool = False) -> None:
        super().__init__(now_ms)
        self.enqueued = MemoryEnqueueing(self._check_open)
        self.enqueueing = self.enqueued if enqueues else None

    def clone(self) -> MemoryDisk:
        """An open copy that shares nothing that changes: a crash image, or what a restart finds."""
        image = MemoryDisk(self._now_ms)
        own = ("_closed", "apply", "enqueued", "enqueueing")  # `apply` where a test has put another in front of it
        vars(image).update({name: _copied(item) for name, item in vars(self).items() if name not in own})
        return image

    def enqueue(self, *rows: EnqueuedRow) -> None:
        """What the commit of an application's transaction does."""
        self.enqueued.put(rows)

    def apply(self, commit: Commit) -> Ticket[None]:
        return super().apply(commit).map(lambda _: self.enqueued.settle(commit))


def _copied(value: Any) -> Any:
    """The value with tables of its own; rows never change."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(value)
    if type(value).__module__.startswith("penstock.store.memory"):
        made = copy.copy(value)
        vars(made).update({name: _copied(item) for name, item in vars(value).items()})
        return made
    return value


class MemoryEnqueueing:
    """Enqueued rows by id. `check_open` raises once the store is closed."""

    def __init__(self, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._rows: dict[int, EnqueuedRow] = {}
        self._failed: dict[int, EnqueuedFailure] = {}
        self._wake: Callable[[], object] = lambda: None

    def put(self, rows: Sequence[EnqueuedRow]) -> None:
        """What the commit of an application's transaction does."""
        self._rows.update((row.id, row) for row in rows)
        self._wake()

    def settle(self, commit: Commit) -> None:
        """Apply what a commit says of enqueued rows."""
        for number in commit.enqueued_deleted:
            self._rows.pop(number, None)
            self._failed.pop(number, None)
        for failure in commit.enqueued_failed:
            if failure.id in self._rows:
                self._failed[failure.id] = failure
        for number in commit.enqueued_retried:
            self._failed.pop(number, None)

    async def watch(self, wake: Callable[[], object]) -> None:
        self._check_open()
        self._wake = wake

    async def rows(self, most: int, bytes_most: int, passing: Sequence[EnqueuedTarget] = ()) -> list[EnqueuedRow]:
        self._check_open()
        found: list[EnqueuedRow] = []
        size = 0
        for number in sorted(self._rows.keys() - self._failed.keys()):
            row = self._rows[number]
            if row.target in passing:
                continue
            size += len(row.payload)
            if found and (len(found) >= most or size > bytes_most):
                break
            found.append(row)
        return found

    async def failed(self, namespace: str, after: int, most: int) -> list[FailedRow]:
        self._check_open()
        ids = [id for id in sorted(self._failed) if id > after and self._rows[id].namespace == namespace]
        return [_failed_row(self._rows[id], self._failed[id]) for id in ids[: max(most, 0)]]

    async def count_failed(self) -> int:
        self._check_open()
        return len(self._failed)

    async def list_all(self, after: int, bytes_most: int) -> list[KeptRow]:
        self._check_open()
        found: list[KeptRow] = []
        for id in sorted(id for id in self._rows if id > after):
            bytes_most -= len(self._rows[id].payload)
            if found and bytes_most < 0:
                break
            found.append(KeptRow(self._rows[id], self._failed.get(id)))
        return found

    async def put_back(self, kept: KeptRow) -> None:
        self._check_open()
        self._rows[kept.row.id] = kept.row
        if kept.failure is not None:
            self._failed[kept.row.id] = kept.failure


def _failed_row(row: EnqueuedRow, failure: EnqueuedFailure) -> FailedRow:
    return FailedRow(
        row.id,
        row.namespace,
        len(row.payload),
        row.enqueued_ms,
        failure.error,
        failure.failed_ms,
        row.queue,
        row.exchange,
        row.key,
    )
