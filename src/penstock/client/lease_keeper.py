"""One claim in a consumer's hands: its lease is renewed, and verdicts on its messages go out together.

Verdicts are collected for a few milliseconds and sent as one request. Until the server has them all, the lease is
extended every third of its span. Where the connection is lost, both go on trying until the lease must have ended; after
that, or when the server says so, the rest of the claim is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.api.results import Claim
from penstock.client.transport.channel import is_repeat
from penstock.model.errors import Closed, LeaseLost, Overloaded, PenstockError, Unavailable
from penstock.model.verdict import Verdict

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

VERDICTS_MAX: Final = 10_000
"""Verdicts that are sent at once, without waiting for more."""

log = logging.getLogger("penstock.consumer")


class Holding:
    """See the module's description."""

    def __init__(
        self,
        client: AsyncClient,
        claim: Claim,
        *,
        lease_s: float,
        settle_s: float,
        ended: Callable[[Holding], None],
    ) -> None:
        self._client = client
        self._claim = claim
        self._lease_s = lease_s
        self._settle_s = settle_s
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._undecided = len(claim)
        self._verdicts: list[Verdict] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._lives_until = self._loop.time() + lease_s
        self.is_lost = False
        """The lease has ended: what is left is not this consumer's any more."""
        if claim.lease is not None:
            self._renewing = self._loop.create_task(self._renew())

    # Verdicts ---------------------------------------------------------------------------------------------

    def settle(self, verdicts: list[Verdict]) -> None:
        """What becomes of some messages, one verdict each. Sent soon, and together with others."""
        self._undecided -= len(verdicts)
        if self._claim.lease is not None and not self.is_lost:
            self._verdicts += verdicts
        if self._undecided <= 0 or len(self._verdicts) >= VERDICTS_MAX:
            self._send_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._settle_s, self._send_now)

    def _send_now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._verdicts and self._sending is None:
            self._sending = self._loop.create_task(self._send())
        elif self._sending is None and self._undecided <= 0:
            self._end()

    async def _send(self) -> None:
        """Send until nothing is left to send."""
        try:
            while self._verdicts and not self.is_lost:
                verdicts, self._verdicts = self._verdicts, []
                await self._settle(merged(verdicts))
        finally:
            self._sending = None
        if self._undecided <= 0:
            self._end()

    async def _settle(self, verdicts: list[Verdict]) -> None:
        """Once, however long it takes, as long as the lease may live."""
        while True:
            try:
                await self._client.settle(self._claim, verdicts)
                return
            except LeaseLost as error:
                if not is_repeat(error):  # else this was most likely settled by the attempt whose answer was lost
                    self._lose(error)
                return
            except (Unavailable, Overloaded) as error:
                if self._loop.time() >= self._lives_until:
                    self._lose(error)
                    return
                await asyncio.sleep(0.1)
            except PenstockError as error:
                self._lose(error)
                return

    def _lose(self, error: PenstockError) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._verdicts.clear()
            log.warning("lease %s of %r is lost: %s", self._claim.lease, self._claim.queue, error)

    # The lease --------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while not self.is_lost:
            await asyncio.sleep(self._lease_s / 3)
            try:
                began = self._loop.time()
                await self._client.extend(self._claim, self._lease_s)
                self._lives_until = began + self._lease_s
            except LeaseLost as error:
                if self._sending is None:  # else all of it may just be settled
                    self._lose(error)
                return
            except Closed:
                return
            except PenstockError as error:
                if self._loop.time() >= self._lives_until:
                    self._lose(error)

    # Ending -----------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self.abandon()
        self._ended(self)

    async def finish(self) -> None:
        """Return when all verdicts are with the server, or the lease is lost. Every message has a verdict by now."""
        self._send_now()
        if self._sending is not None:
            await asyncio.wait([self._sending])

    def abandon(self) -> None:
        """No more renewals; what is under way goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None


def merged(verdicts: list[Verdict]) -> list[Verdict]:
    """Verdicts of single messages as few ranges as possible."""
    runs: list[Verdict] = []
    for verdict in sorted(verdicts, key=lambda one: one.start or 0):
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.end == verdict.start
            and (last.action, last.delay_ms, last.error) == (verdict.action, verdict.delay_ms, verdict.error)
        ):
            runs[-1] = Verdict(last.action, last.start, verdict.end, last.delay_ms, last.error)
        else:
            runs.append(verdict)
    return runs
