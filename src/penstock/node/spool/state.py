"""How a spool stands: whether the store is away, the log, and which queues and exchanges have something in it.

What is published to those stays behind it. Each is held under the name of the last record for it, and free when that
record is on its way into the store, or, if other nodes have to append it, when it is there. `spool.py` asks before each
publish, `replay.py` says how far it has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from penstock.node.spool.log import SpoolLog
from penstock.node.spool.records import Record

log = logging.getLogger("penstock.spool")

Target = tuple[str, str, str]
"""kind, namespace and name of a queue or an exchange"""
Name = tuple[str, int]
"""of a record: its spool, and its number there"""


class Held:
    """Queues and exchanges of which there is something to replay."""

    def __init__(self) -> None:
        self._held: dict[Target, Name] = {}
        self._passed: dict[Target, Name] = {}
        """Those of which the last record is on its way into the store."""
        self._changed = asyncio.Event()
        """Set when something that was held may be free; a new event each time."""

    def __bool__(self) -> bool:
        """Whether anything may have to wait."""
        return bool(self._held or self._passed)

    def names(self, targets: Iterable[Target], *, is_others: bool) -> list[Name]:
        """What these have to wait for; at another node, also for what is only on its way into the store.

        What this node commits next comes behind that by itself. Another node does not know of it: it may have just
        become the owner, and what is on its way may be refused for that.
        """
        waited = self._passed | self._held if is_others else self._held
        return [waited[target] for target in targets if target in waited]

    def hold(self, name: Name, record: Record) -> None:
        for target in targets_of_record(record):
            self._held[target] = name
            self._passed.pop(target, None)

    def passed(self, name: Name, record: Record) -> None:
        """A record is on its way into the store: if it was the last, what comes now stays behind it by itself."""
        for target in targets_of_record(record):
            if self._held.get(target) == name:
                self._passed[target] = self._held.pop(target)
        self.tell()

    def stored(self) -> None:
        """What was on its way is there."""
        if self._passed:
            self._passed.clear()
            self.tell()

    def lost(self) -> None:
        """What was on its way may not be there."""
        self._held = self._passed | self._held
        self._passed = {}

    def landed(self, name: Name, record: Record) -> None:
        """What other nodes had to append is there: what comes now stays behind it by itself."""
        for target in targets_of_record(record):
            if self._held.get(target) == name:
                del self._held[target]
        self.tell()

    def emptied(self, landing: Collection[Name]) -> None:
        """Nothing is left in the spool; these records wait for other nodes to append them."""
        self._held = {target: name for target, name in self._held.items() if name in landing}
        self._passed.clear()
        self.tell()

    def tell(self) -> None:
        """Wake every publish that waits, to look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def changed(self, seconds: float) -> None:
        """Until something may be free, or so long."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return


def targets_of(namespace: str, exchange: str | None, queues: Iterable[str]) -> list[Target]:
    targets = [("queue", namespace, queue) for queue in queues]
    if exchange is not None:
        targets.append(("exchange", namespace, exchange))
    return targets


def targets_of_record(record: Record) -> list[Target]:
    return targets_of(record.namespace, record.exchange, record.reached)


class SpoolState:
    """What publishing and replaying both look at."""

    def __init__(self) -> None:
        self.is_away = False
        """The store does not take commits: publishes are buffered."""
        self.log: SpoolLog | None = None
        """None until the spool is open, and without one."""
        self.id = ""
        """Of this process's records."""
        self.held = Held()
        self.oldest_ms: int | None = None
        """When the oldest record that is not in the store was spooled."""
        self.on_back: list[Callable[[], None]] = []
        """Told that the store takes commits again."""

    @property
    def messages(self) -> int:
        """How many are in the spool, answered and not in the store yet."""
        return 0 if self.log is None else self.log.messages

    def back(self) -> None:
        """The store took a commit."""
        if self.is_away:
            self.is_away = False
            log.warning("the store is back; %d messages are replayed", self.messages)
            for tell in self.on_back:
                tell()
