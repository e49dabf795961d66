"""How a spool stands: whether the store is away, the log, and what is in it. For `spool.py` and `replay.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.node.spool.held import Held
from penstock.node.spool.log import SpoolLog

log = logging.getLogger("penstock.spool")


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
