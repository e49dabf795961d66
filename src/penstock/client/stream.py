"""A stream group read message by message: `async for received in client.stream("events", "audit"): …`.

Reads ahead in batches; what was handed to the caller's loop and went through it is committed, at the end of each batch
or when the caller says so. A reader that ends gives back what it did not commit.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from penstock.api.arguments import check_number
from penstock.api.results import DamagedRange, Received
from penstock.model import BATCH_MESSAGES_MAX, check_integer
from penstock.model.errors import Overloaded, PenstockError, Unavailable

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

READ_WAIT_S: Final = 20.0
logger: Final = logging.getLogger("penstock.client")


class StreamReader:
    """Messages of a stream group, one after the other, for as long as the caller wants them.

    With `auto_commit`, a batch is committed when the caller asks for the first message after it: everything before was
    worked on by then. Without, call `commit(received)` when everything up to that message is done. The group should be
    declared with `auto_commit=False`: then what counts as processed is what is committed here, and nothing else.
    """

    def __init__(
        self,
        client: AsyncClient,
        queue: str,
        group: str,
        *,
        batch: int = 100,
        auto_commit: bool = True,
        wait: float | None = None,
        consumer: str | None = None,
    ) -> None:
        """`wait` is how many seconds without a message end the loop; None never ends it."""
        check_integer(batch, "batch", 1, BATCH_MESSAGES_MAX)
        if wait is not None:
            check_number(wait, "wait", 0, math.inf)
        self._client = client
        self._queue = queue
        self._group = group
        self._batch = batch
        self._auto_commit = auto_commit
        self._wait_s = wait
        self._name = consumer if consumer is not None else client._next_consumer_name()
        self._ready: deque[Received] = deque()
        self._place: tuple[int, int] | None = None
        """(lane, offset) below which everything of the last batch is done when the next is asked for."""
        self._handed: Received | None = None
        self._is_closed = False
        self._damaged: list[DamagedRange] = []

    @property
    def damaged(self) -> list[DamagedRange]:
        """What it has passed over so far because it is damaged in the store."""
        return self._damaged

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        while not self._ready:
            if self._is_closed:
                raise StopAsyncIteration
            if self._auto_commit:
                await self._commit_place()
            if not await self._read():
                await self.close()
                raise StopAsyncIteration
        self._handed = self._ready.popleft()
        return self._handed

    async def _read(self) -> bool:
        """Whether there were more messages before the wait was over."""
        loop = asyncio.get_running_loop()
        ends_at = None if self._wait_s is None else loop.time() + self._wait_s
        failures = 0
        while not self._is_closed:
            left = READ_WAIT_S if ends_at is None else ends_at - loop.time()
            try:
                read = await self._client.read(
                    self._queue,
                    self._group,
                    max=self._batch,
                    wait=max(0.0, min(left, READ_WAIT_S)),
                    consumer=self._name,
                )
            except (Unavailable, Overloaded):
                failures += 1
                if ends_at is not None and loop.time() >= ends_at:
                    raise
                await asyncio.sleep(random.uniform(0, min(5.0, 0.1 * 2 ** min(failures, 10))))
                continue
            for gap in read.damaged:
                logger.warning("damaged in the store, passed over: queue %r, %s", self._queue, gap)
            self._damaged += read.damaged
            if read.messages:
                self._ready.extend(read.messages)
                self._place = (read.lane, read.next_offset)
                return True
            if ends_at is not None and loop.time() >= ends_at:
                return False
        return False

    async def commit(self, received: Received) -> None:
        """Everything up to this message, of its lane, is done."""
        await self._commit(received.lane, received.offset + 1)

    async def _commit(self, lane: int, offset: int) -> None:
        # One that was held up on its way, and sent again meanwhile, may arrive after those that followed it.
        await self._client.commit(self._queue, self._group, offset, lane=lane, only_forward=True)

    async def _commit_place(self) -> None:
        if self._place is not None:
            lane, offset = self._place
            await self._commit(lane, offset)
            self._place = self._handed = None

    async def close(self) -> None:
        """End the loop. With `auto_commit`, what went through it is committed; the rest is given back."""
        await self._close(has_failed=False)

    async def _close(self, *, has_failed: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._auto_commit and self._handed is not None:
            if not self._ready and not has_failed:
                await self._commit_place()
            else:  # the message that failed comes again
                offset = self._handed.offset + (not has_failed)
                await self._commit(self._handed.lane, offset)
        self._ready.clear()
        with suppress(PenstockError):  # the server finds out by itself when nobody reads on
            await self._client.detach(self._queue, self._group, consumer=self._name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await self._close(has_failed=kind is not None)
