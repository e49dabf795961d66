"""Enqueueing on the memory engine: a dict of rows that a test puts as an application would.

It may not know the log. Next stop: `engine.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.model.rows import Commit, EnqueuedFailure, EnqueuedRow, EnqueuedTarget, FailedRow


class MemoryEnqueueing:
    """Enqueued rows by id. `check_open` raises once the store is closed."""

    def __init__(self, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._rows: dict[int, EnqueuedRow] = {}
        self._failed: dict[int, EnqueuedFailure] = {}
        self._wake: Callable[[], object] = lambda: None

    def clone(self, check_open: Callable[[], None]) -> MemoryEnqueueing:
        copy = MemoryEnqueueing(check_open)
        copy._rows = dict(self._rows)
        copy._failed = dict(self._failed)
        return copy

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


def _failed_row(row: EnqueuedRow, failure: EnqueuedFailure) -> FailedRow:
    return FailedRow(
        row.id,
        row.namespace,
        row.queue,
        row.exchange,
        row.key,
        len(row.payload),
        row.enqueued_ms,
        failure.error,
        failure.failed_ms,
    )
