"""Keeps a node's lease while its event loop is too busy to renew it: a thread with a connection of its own.

The event loop's heartbeats (`membership.py`) decide everything; they also renew the lease. Only when they are late does
this thread renew it instead, and then nothing else: who owns what is for the event loop to see when it runs again. An
event loop that does not run at all for `HUNG_LEASES` leases is taken for hung: the thread stops, and other nodes take
the slots over. A paused process has a paused thread. Fencing is as ever: the store refuses a commit under an old epoch.

Knows no store but `Renewing`. The simulation has no threads, so its stores have none; `is_due` is tested by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from penstock.node.cluster.ownership import Ownership
from penstock.store.contract import Renewing

HUNG_LEASES: Final = 10
LOOKS_PER_LEASE: Final = 8
GOODBYE_S: Final = 1.0

log = logging.getLogger("penstock.cluster")


class Renewal:
    """Renews one node's lease when its event loop is late."""

    def __init__(self, renewing: Renewing, ownership: Ownership, lease_s: float, heard_at: Callable[[], float]) -> None:
        """`heard_at` is when the store last heard the event loop."""
        self._renewing = renewing
        self._ownership = ownership
        self._lease_s = lease_s
        self._heard_at = heard_at
        self._loop = asyncio.get_running_loop()
        self._renewed_at = self._ticked_at = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-renewal", daemon=True)
        self._ticking: asyncio.TimerHandle | None = None
        self.count = 0
        """Renewals that the thread made instead of the event loop."""

    def start(self) -> None:
        self._tick()
        self._thread.start()

    async def stop(self) -> None:
        self._stopped.set()
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.to_thread(self._thread.join, GOODBYE_S)

    def _tick(self) -> None:
        """On the event loop: it runs."""
        self._ticked_at = time.monotonic()
        self._ticking = self._loop.call_later(self._lease_s / LOOKS_PER_LEASE, self._tick)

    # The thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        told = False
        while not self._stopped.wait(self._lease_s / LOOKS_PER_LEASE):
            now = time.monotonic()
            if self.is_due(now):
                self._renew(now)
            is_hung = self.is_hung(now)
            if is_hung and not told:
                log.error(
                    "the event loop has not run for %.1f s: this node's lease is not renewed any more, others may take "
                    "its queues",
                    now - self._ticked_at,
                )
            told = is_hung
        self._renewing.close()

    def is_due(self, now: float) -> bool:
        """Whether the lease must be renewed by somebody else than the event loop, and may be."""
        last = max(self._heard_at(), self._renewed_at)
        return self._ownership.incarnation != 0 and now - last > self._lease_s / 2 and not self.is_hung(now)

    def is_hung(self, now: float) -> bool:
        return now - self._ticked_at > HUNG_LEASES * self._lease_s

    def _renew(self, now: float) -> None:
        try:
            is_member = self._renewing.renew(self._ownership.incarnation)
        except Exception as error:  # the event loop says what is wrong with the store
            log.info("the lease could not be renewed while the event loop is busy: %s", error)
            return
        if not is_member:
            return
        self._renewed_at = now
        self._ownership.renewed(now)
        self.count += 1
        late_s = now - self._ticked_at
        if late_s > self._lease_s:
            log.warning("the event loop has been busy for %.1f s; the lease was renewed meanwhile", late_s)
