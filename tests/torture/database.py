"""The database of a torture run: a PostgreSQL server and a synchronous standby, which takes its place when it dies.

Nothing that was confirmed can be lost on the way. Each server names its standby as synchronous from its start on,
before it can lead: a commit is answered when it is on two disks, and a leader that has no standby yet answers none.
A standby is promoted only if it was in sync and had all that the leader had, and only when each process of the leader
is gone: there are never two leaders. The next standby is copied from the new leader, and must be in sync before
anything else happens to the database. Knows nothing of nodes.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from tests.databases.postgres import PostgresServer, in_sync

SETTINGS: Final = {
    "wal_level": "replica", "max_wal_senders": "4", "synchronous_standby_names": "standby",
    # A leader that is killed and started anew, perhaps after a checkpoint, finds its standby again at once.
    "wal_retrieve_retry_interval": "100ms", "wal_keep_size": "512MB",
}  # fmt: skip
IN_SYNC_S: Final = 300.0
"""A machine that is busy with many other things may take its time."""


class TorturedDatabase:
    """One leader and, but for a while after a promotion, its standby. One thing happens to them at a time."""

    def __init__(self, moved: Callable[[int], None]) -> None:
        """`moved` is called with the port of a new leader."""
        self._moved = moved
        self._turn = threading.Lock()
        self._leader = PostgresServer(copy_of=None, **SETTINGS)
        self._standby: PostgresServer | None = None
        try:
            self._follow()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        """The leader's."""
        return self._leader.port

    @property
    def is_busy(self) -> bool:
        """Whether something happens to it now."""
        return self._turn.locked()

    def crash(self, pause_s: float) -> None:
        """The leader dies and, after a pause, starts again."""
        with self._turn:
            self._leader.stop(signal.SIGKILL)
            time.sleep(pause_s)
            self._leader.start()

    def fail_over(self, pause_s: float) -> None:
        """The leader dies for good; after a pause its standby is promoted, and gets a standby of its own."""
        with self._turn:
            assert self._standby is not None, "a promotion ended without a new standby"
            asyncio.run(in_sync(self._leader, IN_SYNC_S))
            old, self._leader, self._standby = self._leader, self._standby, None
            old.stop(signal.SIGKILL)
            old.close()
            self._moved(self._leader.port)
            time.sleep(pause_s)
            self._leader.promote()
            self._follow()

    def _follow(self) -> None:
        self._standby = PostgresServer(copy_of=self._leader, **SETTINGS)
        asyncio.run(in_sync(self._leader, IN_SYNC_S))

    def heal(self) -> None:
        """Whatever happens to it comes to its end; then it runs, and its standby has all of it."""
        with self._turn:
            asyncio.run(in_sync(self._leader, IN_SYNC_S))

    def close(self) -> None:
        with self._turn:
            self._leader.close()
            if self._standby is not None:
                self._standby.close()
