"""A durable map from keys to messages that every node can read: the log of a queue; the last word on a key holds.

A row is a message with the key as its `key`; one with an empty payload says that there is none any more. Rows go into
the log with `put`, or are published to `queue` in a transaction with anything else, after `make`. What was written that
way is known after `catch_up`, which reads on from where it stopped: there is no follower to fall behind.

A word that `following` makes counts only if none was said since the last one that its writer knew: what a node says
late, such as from its spool, changes nothing.

The log is kept short by rewriting what still holds and dropping all before that (`compact`). Such a copy says
in the header `mqtt-copied` where its original was, so that one which comes after a newer word changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from penstock.api.front_broker import FrontBroker
from penstock.api.results import Received
from penstock.model import Message
from penstock.model.errors import OffsetGone

HOLDING_GROUP: Final = "table"
"""Retention keeps everything from what this stream group has committed on."""
COPIED: Final = "mqtt-copied"
AFTER: Final = "mqtt-after"
PAGE: Final = 1_000
COPY_BYTES: Final = 4 * 1024 * 1024
COMPACT_AFTER: Final = 5_000
"""Words on keys that hold no more, before the log is written again; and no fewer than there are that hold."""


class Row(NamedTuple):
    """The last word on a key, and the offset at which it was said first."""

    version: int
    message: Message


class Table:
    """One table; `changed` hears of every row that comes, changes (with its message) or goes (with None)."""

    def __init__(
        self,
        broker: FrontBroker,
        queue: str,
        description: str,
        changed: Callable[[str, Message | None], None],
        *,
        compact_after: int = COMPACT_AFTER,
    ) -> None:
        self._broker = broker
        self.queue = queue
        broker.keep_writing(queue)
        self._description = description
        self._changed = changed
        self._compact_after = compact_after
        self._rows: dict[str, Row] = {}
        self._gone: dict[str, int] = {}
        """Key → where it was said that it is gone: a copy of what was there before may still come."""
        self._forgettable = 0
        """Of these, those below this offset have no copies on their way any more."""
        self._is_made = False
        self._base = 0
        self._next: int | None = None
        self._reads = 0
        self._reading = asyncio.Lock()
        self._compacting: asyncio.Task[None] | None = None

    # Life -------------------------------------------------------------------------------------------------

    async def make(self) -> None:
        """Make sure of its queue, which is declared when it is first written to."""
        if not self._is_made:
            await self._broker.declare_queue(
                self.queue, retain_messages=0, dedup_window_ms=0, description=self._description
            )
            await self._broker.declare_group(self.queue, HOLDING_GROUP, kind="stream", holds=True, auto_commit=False)
            self._is_made = True

    async def close(self) -> None:
        if self._compacting is not None:
            self._compacting.cancel()
            await asyncio.wait([self._compacting])

    # Reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Message | None:
        row = self._rows.get(key)
        return None if row is None else row.message

    async def catch_up(self) -> None:
        """Know everything that was committed before this was called."""
        if not self._is_made and not await self._broker.has_queue(self.queue):
            return
        wanted = self._reads + (2 if self._reading.locked() else 1)
        while self._reads < wanted:
            async with self._reading:
                if self._reads < wanted:
                    await self._read()
                    self._reads += 1
        self._compact_if_long()

    async def _read(self) -> None:
        try:
            while await self._read_page(self._rows, self._gone, self._changed):
                pass
        except OffsetGone:
            await self._read_anew()

    async def _read_anew(self) -> None:
        """Another node let go of what was not read here: begin again, and tell what has changed meanwhile."""
        rows: dict[str, Row] = {}
        gone: dict[str, int] = {}
        behind, self._next = self._next, None
        try:
            while await self._read_page(rows, gone, lambda *_: None):
                pass
        except BaseException:
            self._next = behind
            raise
        before, self._rows, self._gone = self._rows, rows, gone
        for key in before.keys() - rows.keys():
            self._changed(key, None)
        for key, row in rows.items():
            if before.get(key) != row:
                self._changed(key, row.message)

    async def _read_page(
        self, rows: dict[str, Row], gone: dict[str, int], tell: Callable[[str, Message | None], None]
    ) -> bool:
        """Take in what comes next; whether there may be more."""
        found = await self._broker.read_from(self.queue, self._next, max=PAGE)
        if self._next is None:
            self._base = found.next_offset - len(found) - sum([gap.end - gap.start for gap in found.damaged])
        for received in found.messages:
            _take(received, rows, gone, tell)
        self._next = found.next_offset
        return len(found) > 0 or bool(found.damaged)  # a page may be short: its bytes are bounded too

    # Writing ----------------------------------------------------------------------------------------------

    async def put(self, rows: Iterable[Message]) -> None:
        """Say these words, all or none; known here when this returns."""
        await self.make()
        await self._broker.publish_many(self.queue, list(rows))
        await self.catch_up()

    def following(self, row: Message) -> Message:
        """The same as a word that counts only if no other comes between what is known here and it."""
        known = self._rows.get(row.key or "")
        version = self._gone.get(row.key or "", -1) if known is None else known.version
        return msgspec.structs.replace(row, headers={**(row.headers or {}), AFTER: version})

    def forgetting(self, key: str) -> Message:
        """A row which says that a key is gone, unless a newer word on it comes in between."""
        row = self._rows.get(key)
        return Message(key=key, headers=None if row is None else {COPIED: row.version})

    # Keeping it short ---------------------------------------------------------------------------------------

    def _compact_if_long(self) -> None:
        length = (self._next or 0) - self._base
        if self._compacting is None and length > 2 * len(self._rows) + self._compact_after:
            self._compacting = asyncio.get_running_loop().create_task(self._compact())
            self._compacting.add_done_callback(self._compacted)

    def _compacted(self, task: asyncio.Task[None]) -> None:
        self._compacting = None
        if not task.cancelled():
            task.exception()  # the log is longer than it need be, and tried again with the next word

    async def compact(self) -> None:
        """Rewrite what holds, and drop all before."""
        await self.catch_up()
        await self._compact()

    async def _compact(self) -> None:
        start = self._next or 0
        chunk: list[Message] = []
        size = 0
        for key, row in list(self._rows.items()):
            headers = {**(row.message.headers or {}), COPIED: row.version}
            chunk.append(msgspec.structs.replace(row.message, key=key, headers=headers))
            size += len(row.message.payload)
            if len(chunk) >= PAGE or size >= COPY_BYTES:
                await self._broker.publish_many(self.queue, chunk)
                chunk, size = [], 0
        if chunk:
            await self._broker.publish_many(self.queue, chunk)
        await self._broker.commit(self.queue, HOLDING_GROUP, start, only_forward=True)
        # Copies of another node, begun before this, may still come: those of the time before have.
        self._gone = {key: version for key, version in self._gone.items() if version >= self._forgettable}
        self._forgettable, self._base = start, start
        await self.catch_up()


def _take(
    received: Received, rows: dict[str, Row], gone: dict[str, int], tell: Callable[[str, Message | None], None]
) -> None:
    """One word on a key, unless a newer one was heard before it."""
    message = received.message
    key = message.key or ""
    headers = dict(message.headers or {})
    copied, after = headers.pop(COPIED, None), headers.pop(AFTER, None)
    version = received.offset if copied is None else int(copied)
    known = rows.get(key)
    newest = gone.get(key, -1) if known is None else known.version
    if version < newest or (version == newest and (message.payload or copied is None)):
        return
    if after is not None and newest > int(after):
        return
    if not message.payload:
        gone[key] = version
        if rows.pop(key, None) is not None:
            tell(key, None)
        return
    if copied is not None or after is not None:
        message = msgspec.structs.replace(message, headers=headers or None)
    gone.pop(key, None)
    rows[key] = Row(version, message)
    tell(key, message)
