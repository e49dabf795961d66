"""Marks: small durable documents by name, each with a version that its writers may insist on."""

from __future__ import annotations

from typing import Any

from penstock.model import NAME_CHARACTERS_MAX, check_integer, check_text
from penstock.node.arguments import check_is_text
from penstock.node.broker.names import Names
from penstock.node.marks import Mark, MarkPage, MarkPut


class Marking(Names):
    """The part of a broker that reads and puts marks."""

    def marks(self, prefix: str = "") -> list[Mark]:
        """The marks of this namespace whose names begin with `prefix`, by name."""
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        return self._node.marks.named(self._namespace, prefix)

    def marks_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> MarkPage:
        """The same page by page, with values as JSON text: go on with `after=page.next`."""
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        check_text(after, "after", NAME_CHARACTERS_MAX)
        check_integer(max, "max", 1, 1_000)
        return self._node.marks.page(self._namespace, prefix, after, max)

    def mark(self, name: str) -> Mark:
        """A mark: its value and version; `NotFound` where there is none."""
        self._check_registrar()
        check_is_text(name, "a mark's name")
        return self._node.marks.one(self._namespace, name)

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        """Put a mark: any JSON value under a name, durably.

        With `expected_version` only if it has that version now (0: only if there is none); `MarkMoved` otherwise.
        """
        self._check_registrar()
        return await self._node.marks.put(self._namespace, MarkPut(name, value, expected_version))

    async def delete_mark(self, name: str) -> None:
        """Delete a mark; a later one of the same name begins at version 1."""
        self._check_registrar()
        check_is_text(name, "a mark's name")
        await self._node.marks.delete(self._namespace, name)
