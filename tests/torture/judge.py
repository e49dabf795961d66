"""The end of a torture run, in peace: everything is drained, then every log and every dead letter is read and compared.

A machine may be slow, and a log long: whatever is asked for is asked for again until it is answered, and progress is
told. What does not come to its end in `PATIENCE_S` is a fault: who cannot look must not say that nothing is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from penstock import AsyncClient, PenstockError
from tests.torture.ledger import Ending, Ledger
from tests.torture.parties import CONSUMED, COPIES, READERS, STREAM, TOPICS, UNSURE

PATIENCE_S: Final = 900.0
PROGRESS_S: Final = 15.0
PAGE: Final = 1_000
DEAD_IN: Final = ("risky", "revived", "brief")

Result = TypeVar("Result")


class Judge:
    """Looks at the end, and lets the ledger say what it means."""

    def __init__(self, client: AsyncClient, ledger: Ledger, say: Callable[[str], None]) -> None:
        self._client = client
        self._ledger = ledger
        self._say = say
        self._told_at = 0.0
        self._found_left: dict[str, int] = {}

    async def judge(self, working: list[asyncio.Task[None]]) -> None:
        """`working` are the parties: consumers until all is drained."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._drain(working)
        except TimeoutError:
            self._ledger.fault(f"the queues are not drained after {PATIENCE_S:.0f} s of peace: {self._found_left}")
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        try:
            async with asyncio.timeout(PATIENCE_S):
                ending = await self._ending()
        except TimeoutError:
            self._ledger.fault(f"what is stored could not be read to its end in {PATIENCE_S:.0f} s")
        else:
            self._ledger.close(ending)

    # Draining ----------------------------------------------------------------------------------------------

    async def _drain(self, working: list[asyncio.Task[None]]) -> None:
        while True:
            left = {name: count for name, count in (await self._left()).items() if count}
            if not left:
                return
            self._found_left = left
            self._progress(f"still there: {', '.join(f'{count} of {name}' for name, count in left.items())}")
            for task in working:
                if task.done():
                    task.result()  # a producer that has ended, and not by an error
            await asyncio.sleep(0.2)

    async def _left(self) -> dict[str, int]:
        """What is not answered, not consumed, not revived and not copied yet."""
        left: dict[str, int] = {}
        for queue in (*CONSUMED, STREAM):
            stats = await self._patiently(partial(self._client.stats, queue))
            for group in stats.groups:
                if group.group in ("default", *READERS):
                    left[f"{queue}/{group.group}"] = group.lag + (group.dead if queue == "revived" else 0)
                if queue == "risky":
                    copied = await self._patiently(partial(self._client.stats, COPIES))
                    left[f"{queue}/copies"] = max(group.dead - copied.published, 0)
            if queue not in UNSURE:
                seen = self._ledger.queues[queue]
                left[f"{queue}/unanswered"] = len(seen.asked) - len(seen.confirmed)
        for topic in TOPICS:
            seen = self._ledger.queues[f"{topic}/subscriber"]
            left[f"{topic}/subscriber"] = len(seen.confirmed - seen.delivered)
        return left

    # Reading -----------------------------------------------------------------------------------------------

    async def _ending(self) -> Ending:
        ending = Ending()
        for queue in DEAD_IN:
            ending.dead[queue] = await self._dead(queue)
        for queue in (*CONSUMED, STREAM, COPIES):
            ending.logs[queue] = await self._log(queue)
        return ending

    async def _dead(self, queue: str) -> list[str]:
        found: list[str] = []
        offset = 0
        while True:
            page = await self._patiently(partial(self._client.dead, queue, max=PAGE, offsets=(offset, 1 << 60)))
            found += [one.received.payload.decode() for one in page]
            self._progress(f"{len(found):,} dead letters of {queue} read")
            if len(page) < PAGE:
                return found
            offset = max(one.received.offset for one in page) + 1

    async def _log(self, queue: str) -> list[str]:
        found: list[str] = []
        while True:
            read = await self._patiently(partial(self._client.read_from, queue, len(found), max=PAGE))
            if not read.messages:
                return found
            if read.messages[0].offset != len(found):
                self._ledger.fault(f"{queue}: the log has a gap from {len(found)} to {read.messages[0].offset}")
                return found
            found += [payload.decode() for payload in read.payloads()]
            self._progress(f"{len(found):,} messages of {queue} read")

    async def _patiently(self, call: Callable[[], Awaitable[Result]]) -> Result:
        while True:
            try:
                return await call()
            except PenstockError as error:
                self._progress(f"asked again after: {error}")
                await asyncio.sleep(0.2)

    def _progress(self, text: str) -> None:
        if time.monotonic() >= self._told_at + PROGRESS_S:
            self._told_at = time.monotonic()
            self._say(text)
