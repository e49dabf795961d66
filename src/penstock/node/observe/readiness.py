"""Whether the node can commit: asked of the store itself, through the commit loop, by a commit that may be empty.

One question is under way at a time and its answer holds for a moment, so that any number of probes cost one small
write a second. It may not know who asks, nor what a store is made of.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from penstock.model.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.node.cluster.ownership import Ownership
from penstock.node.commit.commits import Commits
from penstock.node.lifecycle import Lifecycle
from penstock.node.observe.damage import Damage
from penstock.node.spool.spool import Spool

READY_WITHIN_S: Final = 2.0
"""A commit that takes longer than this, with those before it, counts as none."""
SHARED_S: Final = 1.0
"""How long an answer is reused."""


@dataclass(eq=False, repr=False)
class Readiness:
    """The last answer, or the question that is under way."""

    _commits: Commits
    _spool: Spool
    _lifecycle: Lifecycle
    _ownership: Ownership
    damage: Damage

    def __post_init__(self) -> None:
        self._probe: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._answered_at: float | None = None
        self._error: BaseException | None = None

    async def check(self) -> Literal["ready", "buffering"]:
        """Whether the store takes commits, or publishes are buffered; raises `Unavailable` where neither is so."""
        if self._lifecycle.closed:
            raise Unavailable("not ready: the broker is closed")
        if self._lifecycle.fenced is not None:
            raise _as_unavailable(self._lifecycle.fenced)
        if self._is_buffering():
            return "buffering"
        if not (self._ownership.is_sole or self._ownership.view.is_member):
            raise Unavailable("not ready: this node has not joined the others yet")
        if self._ownership.closed:
            raise Fenced(f"not ready: {self._ownership.closed}")
        now = asyncio.get_running_loop().time()
        if self._answered_at is None or now - self._answered_at >= SHARED_S:
            await self._ask(now)
        if self._is_buffering():
            return "buffering"
        if self._error is not None:
            raise _as_unavailable(self._error)
        return "ready"

    def _is_buffering(self) -> bool:
        return self._spool.is_away

    def forget(self) -> None:
        """What was last answered is not so any more."""
        self._answered_at = None

    async def _ask(self, now: float) -> None:
        if self._probe is None:
            self._asked_at = now
            self._probe = asyncio.create_task(self._commits.probe())
            self._probe.add_done_callback(self._answered)
        probe = self._probe
        # One that is late already is not waited for again: the caller is told at once.
        await asyncio.wait([probe], timeout=max(0.0, self._asked_at + READY_WITHIN_S - now))
        if not probe.done():
            late = asyncio.get_running_loop().time() - self._asked_at
            raise Unavailable(f"not ready: the store stalls; a commit is under way for {late:.1f} s")

    def _answered(self, probe: asyncio.Task[None]) -> None:
        """Runs before the callers that wait for the probe: it was added first."""
        self._probe = None
        self._answered_at = asyncio.get_running_loop().time()
        self._error = Closed("the probe was cancelled") if probe.cancelled() else probe.exception()
        if isinstance(self._error, Unavailable):
            self._spool.found_away(self._error)


def _as_unavailable(error: BaseException) -> PenstockError:
    """A new error each time: callers that share an answer must not share a traceback."""
    kind = Fenced if isinstance(error, Fenced) else Unavailable
    return kind(f"not ready: {error}")
