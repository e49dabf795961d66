"""Marks: small durable documents by name, each with a version that its writers may insist on."""

from __future__ import annotations

from typing import Any

from penstock.api.marks import Mark, MarkPage, MarkPut, Marks
from penstock.model import NAME_CHARACTERS_MAX, check_integer, check_text
from penstock.node.broker.names import Names


class LocalMarks(Names, Marks):
    """Reads and puts marks."""

    async def marks(self, prefix: str = "") -> list[Mark]:
        self._check_listing()
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        return self._services.marks.named(self._namespace, prefix)

    async def marks_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> MarkPage:
        self._check_listing()
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        check_text(after, "after", NAME_CHARACTERS_MAX)
        check_integer(max, "max", 1, 1_000)
        return self._services.marks.page(self._namespace, prefix, after, max)

    async def mark(self, name: str) -> Mark:
        self._check_registrars("mark", name, "browse")
        return self._services.marks.one(self._namespace, name)

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        self._check_registrars("mark", name, "manage")
        return await self._services.marks.put(self._namespace, MarkPut(name, value, expected_version))

    async def delete_mark(self, name: str) -> None:
        self._check_registrars("mark", name, "manage")
        await self._services.marks.delete(self._namespace, name)
