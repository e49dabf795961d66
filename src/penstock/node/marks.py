"""Marks: small durable documents by name, each with a version that its writers may insist on.

How far a job has come, what a sink has written, where an archive stands: such things are kept here,
alone or in the very commit that publishes what it tells of (`node/staging/staging.py`). A mark's value is JSON text
and stays as it was written; this module never looks into it. Marks are few and small: all of them are in memory, in
the catalog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import msgspec

from penstock.api.staging import Mark, MarkPage, MarkPut, check_puts
from penstock.model.errors import LimitReached, MarkMoved, NotFound
from penstock.model.rows import CatalogRow
from penstock.node.catalog import Catalog, MarkDocument, mark_row
from penstock.node.catalog_writer import CatalogWriter
from penstock.node.clock import Clock

MARKS_MAX: Final = 10_000
MARKS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all marks together: they are in memory, and read again whenever the catalog is."""
PAGE_BYTES: Final = 8 * 1024 * 1024


class Marks:
    """Every mark of every namespace."""

    def __init__(self, catalog: Catalog, writer: CatalogWriter, clock: Clock) -> None:
        self._catalog = catalog
        self._writer = writer
        self._clock = clock

    @asynccontextmanager
    async def held(self, namespace: str, names: Sequence[str]) -> AsyncIterator[None]:
        """While nobody else changes these marks: what is known of them stays true until a commit has put them."""
        await self._writer.reserve_ids(len(names))
        async with AsyncExitStack() as stack:
            for name in sorted(names):  # in one order, so that two callers who want the same ones never deadlock
                await stack.enter_async_context(self._writer.declaring("mark", namespace, name))
            yield

    def rows_of(self, namespace: str, puts: Sequence[tuple[MarkPut, bytes]]) -> list[CatalogRow]:
        """The rows that put these marks; raises `MarkMoved` where one is not as its writer expects. Changes nothing."""
        marks, now_ms = self._catalog.marks, self._clock.now_ms()
        count, size = len(marks), self._catalog.marks_bytes
        rows: list[CatalogRow] = []
        for put, value in puts:
            known = marks.get((namespace, put.name))
            version = 0 if known is None else known.document.version
            _check_version(put, version)
            count += known is None
            size += len(value) - (0 if known is None else len(known.document.value))
            document = MarkDocument(version + 1, value, now_ms)
            id = self._catalog.new_id() if known is None else known.id
            rows.append(mark_row(id, namespace, put.name, document))
        self._check_limits(count, size)
        return rows

    def _check_limits(self, count: int, size: int) -> None:
        marks, marks_bytes = len(self._catalog.marks), self._catalog.marks_bytes
        if count > max(MARKS_MAX, marks):
            raise LimitReached(f"there are {marks} marks already, as many as may be; delete some first")
        if size > max(MARKS_BYTES_MAX, marks_bytes):
            raise LimitReached(f"all marks would have {size} bytes; the limit is {MARKS_BYTES_MAX}, delete some first")

    async def put(self, namespace: str, mark: MarkPut) -> Mark:
        """Put one mark."""
        checked = check_puts([mark])
        async with self.held(namespace, [mark.name]):
            await self._writer.commit(self.rows_of(namespace, checked))
            return self.one(namespace, mark.name)

    async def delete(self, namespace: str, name: str) -> None:
        """Forget a mark; a later one of the same name begins at version 1."""
        catalog = self._catalog
        async with self.held(namespace, [name]):
            known = catalog.marks.get((namespace, name))
            if known is None:
                raise NotFound(f"there is no mark {name!r}")
            await self._writer.commit([], [("mark", known.id)], lambda: catalog.remove_mark(namespace, name))

    # Reading ----------------------------------------------------------------------------------------------

    def one(self, namespace: str, name: str) -> Mark:
        known = self._catalog.marks.get((namespace, name))
        if known is None:
            raise NotFound(f"there is no mark {name!r}")
        return _mark(name, known.document, decoded=True)

    def named(self, namespace: str, prefix: str) -> list[Mark]:
        """The marks whose names begin so, by name."""
        marks = self._catalog.marks
        return [_mark(name, marks[namespace, name].document, decoded=True) for name in self._names(namespace, prefix)]

    def page(self, namespace: str, prefix: str, after: str, most: int) -> MarkPage:
        """At most `most` marks after a name, of bounded size, with values as JSON text."""
        found: list[Mark] = []
        size = 0
        for name in self._names(namespace, prefix):
            if name <= after:
                continue
            document = self._catalog.marks[namespace, name].document
            size += len(document.value)
            if found and (len(found) == most or size > PAGE_BYTES):
                return MarkPage(found, found[-1].name)
            found.append(_mark(name, document, decoded=False))
        return MarkPage(found, None)

    def _names(self, namespace: str, prefix: str) -> Iterator[str]:
        chosen = (name for home, name in self._catalog.marks if home == namespace and name.startswith(prefix))
        return iter(sorted(chosen))


def _check_version(put: MarkPut, version: int) -> None:
    if put.expected_version is not None and put.expected_version != version:
        found = f"is at version {version}" if version else "does not exist"
        raise MarkMoved(
            f"mark {put.name!r} {found}, not at {put.expected_version}: it was changed meanwhile; read it again"
        )


def _mark(name: str, document: MarkDocument, *, decoded: bool) -> Mark:
    value = msgspec.json.decode(document.value) if decoded else msgspec.Raw(document.value)
    return Mark(name, document.version, value, document.updated_ms)
