"""Marks, from a client: small durable documents by name, each with a version that its writers may insist on."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.api.marks import Mark, MarkPut, Marks, check_puts
from penstock.client.operations.codec import with_query
from penstock.client.operations.requests import Requests, decoded
from penstock.client.transport.channel import is_repeat
from penstock.model.errors import MarkMoved
from penstock.wire.http.shapes import MarkBody, MarksAnswer, PutMarkRequest


class ClientMarks(Requests, Marks):
    """Reads and puts marks."""

    async def marks(self, prefix: str = "") -> list[Mark]:
        found: list[Mark] = []
        after: str | None = None
        while True:
            path = with_query(self._target("marks"), prefix=prefix or None, limit=1_000, after=after)
            answer = await self._get(MarksAnswer, path)
            found += [_mark(body) for body in answer.marks]
            if answer.next is None:
                return found
            after = answer.next

    async def mark(self, name: str) -> Mark:
        return _mark(await self._get(MarkBody, self._target("marks", name)))

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        [(_, text)] = check_puts([MarkPut(name, value, expected_version)])
        body = PutMarkRequest(value=msgspec.Raw(text), expected_version=expected_version)
        try:
            return _mark(decoded(MarkBody, await self._send(b"PUT", self._target("marks", name), body)))
        except MarkMoved as error:
            if expected_version is None or not is_repeat(error):
                raise
            mark = await self.mark(name)
            if mark.version != expected_version + 1 or mark.value != msgspec.json.decode(text):
                raise
            return mark  # it was this call that moved it, and the answer that was lost

    async def delete_mark(self, name: str) -> None:
        await self._delete("marks", name)


def _mark(body: MarkBody) -> Mark:
    return Mark(body.name, body.version, msgspec.json.decode(body.value), body.updated_ms)
