"""Moving, emptying and pausing groups, over HTTP."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.api.admin import Administration
from penstock.client.operations.requests import Requests
from penstock.client.transport.channel import NO_RETRY, Request
from penstock.model import DEFAULT_GROUP
from penstock.wire.http.shapes import SeekRequest, Status


class ClientAdministration(Requests, Administration):
    """Does what an operator asks for."""

    async def seek(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        body = SeekRequest(to=to, offset=offset, time_ms=time_ms, lane=lane)
        await self._send(b"POST", self._target("queues", queue, "groups", group, "seek"), body)

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        return await self._count(self._target("queues", queue, "groups", group, "purge"))

    async def pause(self, queue: str, group: str | None = None) -> None:
        await self._send(b"POST", self._switch(queue, group, "pause"))

    async def resume(self, queue: str, group: str | None = None) -> None:
        await self._send(b"POST", self._switch(queue, group, "resume"))

    def _switch(self, queue: str, group: str | None, what: str) -> bytes:
        groups = () if group is None else ("groups", group)
        return self._target("queues", queue, *groups, what)

    async def check_ready(self) -> Literal["ready", "buffering"]:
        answer = await self._channel.send(Request(b"GET", b"/readyz"), NO_RETRY)
        return "buffering" if msgspec.json.decode(answer.body, type=Status).status == "buffering" else "ready"
