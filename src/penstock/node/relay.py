"""The relay: carries out what commits promised in the outbox, exactly once.

A message that died under a group with `dead_letter_to` stays dead in place; its copy is published to the target,
and the outbox row goes, in one commit. A target that is missing or full is tried again; the row waits.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.batch import EncodedBatch, decode
from penstock.errors import InvalidArgument, NotFound, PenstockError, Unroutable
from penstock.model import Message, dead_letter_target
from penstock.node.publishing import Part, append_all, parts_of_messages
from penstock.node.routes import route_message
from penstock.rows import DeadRow, OutboxRow

if TYPE_CHECKING:
    from penstock.node.catalog import Queue
    from penstock.node.node import Node

RETRY_MS = 1_000
RETRY_MS_MAX = 60_000
ROWS_AT_ONCE = 100
DEATHS_MAX = 16

log = logging.getLogger("penstock.relay")


class DeadLetter(msgspec.Struct, tag="dead"):
    """An outbox document: copy this offset to where its group's dead letters go."""

    namespace: str
    queue: str
    group: str
    target: str
    reason: Literal["attempts", "rejected", "expired", "overflow"]
    error: str
    attempts: int
    dead_ms: int


_decoder = msgspec.json.Decoder(DeadLetter)


class Relay:
    """Works through the outbox in order, one commit a few rows."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last_id = 0
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self._pause_ms = RETRY_MS

    # Into the outbox --------------------------------------------------------------------------------------

    def rows(self, queue: Queue, lane: int, died: list[tuple[int, DeadRow]]) -> list[OutboxRow]:
        """One row for each message that died and must be copied."""
        rows: list[OutboxRow] = []
        for group_id, dead in died:
            group = queue.group_by_id(group_id)
            if group is None or group.settings.dead_letter_to is None:
                continue
            letter = DeadLetter(
                queue.namespace, queue.name, group.name, group.settings.dead_letter_to,
                dead.reason, dead.error, dead.attempts, dead.dead_ms,  # type: ignore[arg-type]
            )  # fmt: skip
            document = msgspec.json.encode(letter)
            for offset in range(dead.start, dead.end):
                self._last_id += 1
                rows.append(OutboxRow(self._last_id, lane, offset, document))
        return rows

    # Out of it --------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Know the ids in use before the first row is made."""
        rows = await self._node.store.outbox(0, ROWS_AT_ONCE)
        while rows:
            self._last_id = max(self._last_id, rows[-1].id)
            rows = await self._node.store.outbox(self._last_id, ROWS_AT_ONCE)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self._last_id:
            self._wake.set()

    def wake(self) -> None:
        """There are new rows."""
        self._wake.set()

    def wake_later(self) -> None:
        """There may be new rows; look when the store had time to recover."""
        if self._node.fenced is None:
            self._node.timers.at(self._node.clock.now_ms() + self._pause_ms, ("relay",), self._wake.set)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._closed:
            await self._wake.wait()
            self._wake.clear()
            try:
                left = await self._relay_all()
            except PenstockError as error:
                log.warning("dead letters could not be relayed yet: %s", error)
                left = True
            self._pause_ms = min(self._pause_ms * 2, RETRY_MS_MAX) if left else RETRY_MS
            if left:
                self.wake_later()

    async def _relay_all(self) -> bool:
        """One pass over the outbox; whether something must be tried again."""
        blocked: dict[tuple[str, str], PenstockError] = {}
        after = 0
        while rows := await self._node.store.outbox(after, ROWS_AT_ONCE):
            for row in rows:
                after = row.id
                letter = _decoder.decode(row.document)
                target = (letter.namespace, letter.target)
                if target not in blocked:  # those behind one that waits wait too: copies keep their order
                    try:
                        await self._relay(row, letter)
                    except PenstockError as error:
                        blocked[target] = error
            await self._node.commits.wait()
        for (_, name), reason in blocked.items():
            log.warning("dead letters for %s wait: %s", name, reason)
        return bool(blocked)

    async def _relay(self, row: OutboxRow, letter: DeadLetter) -> None:
        """Copy one message. It is durable with the next commit, which a page of rows shares."""
        node = self._node
        message = await self._message(row)
        parts = [] if message is None else self._parts_with_death(letter, message)
        if parts:
            await append_all(node, parts)
        # No wait in between: the copy and the end of its row are one commit.
        node.commits.pending.outbox_deleted.append(row.id)

    async def _message(self, row: OutboxRow) -> Message | None:
        """The dead message; None if it was purged, with all of its batch, before it could be copied."""
        if row.lane not in self._node.catalog.by_lane:
            return None
        batches = await self._node.lanes.store_of(row.lane).read(row.lane, row.offset, row.offset + 1, 0)
        if not batches or not batches[0].base <= row.offset < batches[0].end:
            return None
        batch, index = batches[0], row.offset - batches[0].base
        return decode(EncodedBatch(batch.count, batch.meta, batch.body), index, index + 1)[0]

    def _parts_with_death(self, letter: DeadLetter, message: Message) -> list[Part]:
        try:
            return self._parts(letter, _with_death(message, letter))
        except InvalidArgument:
            # Its headers are full: the copy keeps the death and leaves the rest to the original.
            return self._parts(letter, _with_death(msgspec.structs.replace(message, headers=None), letter))

    def _parts(self, letter: DeadLetter, message: Message) -> list[Part]:
        kind, name, key = dead_letter_target(letter.target)
        if kind == "queue":
            return parts_of_messages(self._node.catalog.queue(letter.namespace, name), [message])
        copy = message if key is None else msgspec.structs.replace(message, key=key)
        try:
            return route_message(self._node, letter.namespace, name, copy)
        except Unroutable:
            raise NotFound(f"no queue is bound to exchange {name!r} for dead letters of {letter.queue!r}") from None


def _with_death(message: Message, letter: DeadLetter) -> Message:
    """The copy: as published, without delay, ttl and dedup id, with one more death in its history."""
    headers: dict[str, Any] = dict(message.headers or {})
    deaths = headers.get("x-death")
    history = deaths if isinstance(deaths, list) else []
    death = {
        "queue": letter.queue, "group": letter.group, "reason": letter.reason, "error": letter.error[:512],
        "attempts": letter.attempts, "time": letter.dead_ms,
    }  # fmt: skip
    headers["x-death"] = [death, *history[: DEATHS_MAX - 1]]
    return msgspec.structs.replace(message, headers=headers, delay_ms=0, not_before_ms=0, ttl_ms=None, dedup_id=None)
