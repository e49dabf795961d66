"""Alarms: memory or disk is low, so publishes are held back and then refused; consumers go on, so that queues drain.

A publish looks at `low`, one attribute. While there are any it waits, for a bounded time and with a bound on the
bytes that wait, and then fails with `ResourceAlarm`. Claims, verdicts, reads, purges and declarations never ask. Each
node judges for itself: what is forwarded gets its owner's answer. An alarm ends well below the mark where it began, so
that it does not come and go. Knows no queue, no front and no store: who publishes what is for the callers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from penstock.api.measures import AlarmNumbers
from penstock.model.errors import ResourceAlarm
from penstock.node.limits import Limits
from penstock.node.observe import resources
from penstock.node.timers import Tasks

MEMORY_EVERY_S: Final = 0.25
DISKS_EVERY_S: Final = 1.0
NEAR_EVERY_S: Final = 0.1
"""How often a disk is looked at that is near its floor: a flood must not pass the floor between two looks."""
NEAR: Final = 4
"""Of the floor: with less room than that a disk is near it."""
RELIEVE_EVERY_S: Final = 5.0
MEMORY_ENDS_AT: Final = 0.9
"""Of the mark: below this the alarm ends."""
DISK_ENDS_AT: Final = 1.25
"""Of the floor: above this the alarm ends."""
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
WAITER_BYTES: Final = 4 * 1024
"""What a publish that waits takes beside its messages, about."""
MIB: Final = 1 << 20

log = logging.getLogger("penstock.node")


class Alarms:
    """The alarms of one node."""

    def __init__(self, limits: Limits, disks: Mapping[str, Path], relieve: Callable[[], None]) -> None:
        """`disks` are folders by what they are for; `relieve` frees memory that can be done without."""
        self._limits = limits
        self._disks = disks
        self._relieve = relieve
        limit = resources.memory_limit() if limits.memory_share else None
        self.memory_mark = 0 if limit is None else round(limit * limits.memory_share)
        """Bytes of memory at which the alarm begins; 0 for never."""
        self._of = limit or 0
        self._raised: dict[str, str] = {}
        self.low: tuple[str, ...] = ()
        """What is low, for people to read. Empty while all is well."""
        self._ended = asyncio.Event()
        self._waiting_bytes = 0
        self.exempt: set[tuple[str, str]] = set()
        """(namespace, queue) of what the server itself must go on writing."""
        self.disk_free_bytes: dict[str, int] = {}
        self.delayed = 0
        """Publishes that had to wait for an alarm to end,"""
        self.refused = 0
        """and those that were refused because it did not."""

    # Publishing -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise while there is an alarm: for what can wait by itself."""
        if self.low:
            raise self._refusal()

    async def admit(self, size: int) -> None:
        """Wait until there is no alarm; raise `ResourceAlarm` where that takes too long, or too many wait."""
        cost = size + WAITER_BYTES
        if self._waiting_bytes + cost > WAITING_BYTES_MAX:
            raise self._refusal()
        self.delayed += 1
        self._waiting_bytes += cost
        try:
            async with asyncio.timeout(self._limits.alarm_wait):
                while self.low:
                    await self._ended.wait()
        except TimeoutError:
            raise self._refusal() from None
        finally:
            self._waiting_bytes -= cost

    def _refusal(self) -> ResourceAlarm:
        self.refused += 1
        return ResourceAlarm(f"{'; '.join(self.low)}. Nothing was published; consumers go on: try again later")

    def numbers(self) -> AlarmNumbers:
        watched = (*(("memory",) if self.memory_mark else ()), *(self._disks if self._limits.disk_free_bytes else ()))
        return AlarmNumbers(
            {name: name in self._raised for name in watched},
            self.memory_mark,
            dict(self.disk_free_bytes),
            self.delayed,
            self.refused,
        )

    # Watching ---------------------------------------------------------------------------------------------

    def start(self, tasks: Tasks) -> None:
        """Watch what there is a limit for."""
        if self.memory_mark:
            tasks.spawn(self._watch_memory())
        if self._limits.disk_free_bytes and self._disks:
            tasks.spawn(self._watch_disks())

    async def _watch_memory(self) -> None:
        relieved_at, now = 0.0, asyncio.get_running_loop().time
        while (used := resources.memory_used()) is not None:
            self.judge_memory(used)
            if "memory" in self._raised and now() - relieved_at > RELIEVE_EVERY_S:
                relieved_at = now()
                self._relieve()
                if resources.malloc_trim is not None:
                    await asyncio.to_thread(resources.malloc_trim, 0)
            await asyncio.sleep(MEMORY_EVERY_S)

    async def _watch_disks(self) -> None:
        """In a thread: a disk of the network may not answer."""
        while True:
            for name, folder in self._disks.items():
                free = await asyncio.to_thread(resources.disk_free, folder)
                if free is not None:
                    self.judge_disk(name, free, folder)
            least = min(self.disk_free_bytes.values(), default=0)
            await asyncio.sleep(NEAR_EVERY_S if least < NEAR * self._limits.disk_free_bytes else DISKS_EVERY_S)

    def judge_memory(self, used: int) -> None:
        mark, share = self.memory_mark, f"{self._limits.memory_share * 100:g} % of {_mib(self._of)}"
        is_low = used > mark * (MEMORY_ENDS_AT if "memory" in self._raised else 1.0)
        text = f"memory is low: this server uses {_mib(used)}, the mark is {_mib(mark)} ({share})"
        self._judge("memory", is_low, text, "", "give the server more memory, or raise limits.memory_share")

    def judge_disk(self, name: str, free: int, folder: Path) -> None:
        self.disk_free_bytes[name] = free
        floor = self._limits.disk_free_bytes
        is_low = free < floor * (DISK_ENDS_AT if name in self._raised else 1.0)
        text = f"the {name}'s disk is low: {_mib(free)} are free, at least {_mib(floor)} must be"
        self._judge(name, is_low, text, f" at {folder}", "make room there, or lower limits.disk_free_bytes")

    def _judge(self, name: str, is_low: bool, text: str, where: str, advice: str) -> None:
        was_low = name in self._raised
        if is_low:
            self._raised[name] = text
        else:
            self._raised.pop(name, None)
        if is_low and not was_low:
            log.warning("%s%s. Publishes are held back; consume or purge messages, %s", text, where, advice)
        elif was_low and not is_low:
            log.warning("%s is not low any more: %s", name, text.partition(": ")[2])
        self.low = tuple(self._raised.values())
        if self.low:
            self._ended.clear()
        else:
            self._ended.set()


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB"
