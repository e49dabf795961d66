"""When a commit begins: at once, or a little later because more callers are about to join it.

The one question is `Pacing.should_wait`; why it pays, and what was measured, is in decision 8. Knows nothing of what is
committed.
"""

from __future__ import annotations

from typing import Final

from penstock.node.commit.pending import Pending

COMPANY_MAX: Final = 16
"""Callers in step that a commit waits for: with more, it is large anyway."""
TURNS: Final = 80
"""Turns of the event loop, of some microseconds each, that a commit waits for company."""
TURNS_REMOTE: Final = 400
"""The same where a commit takes a database a millisecond: a caller that misses one waits for two."""
PLENTY_BYTES: Final = 768 * 1024
"""Bytes from which a commit waits for no one: writing takes longer than a sync, and others arrive meanwhile."""
DEFERRED_SECONDS: Final = 0.005
"""How long a deferred change waits for another commit, before it gets one of its own."""


class Pacing:
    """Whether the next commit waits for the callers who were answered together with the last one.

    A few callers in step (claim, ack, claim, …) ask again within moments. Without them now, they would wait for this
    commit and then for their own; together they need one instead of two.
    """

    def __init__(self, *, is_remote: bool) -> None:
        self._turns = TURNS_REMOTE if is_remote else TURNS
        self._company = 0
        self._waited = 0

    def should_wait(self, pending: Pending) -> bool:
        """Whether the commit waits for another turn of the event loop; asked once a turn."""
        if (
            1 < self._company <= COMPANY_MAX
            and pending.callers < self._company
            and pending.bytes < PLENTY_BYTES
            and self._waited < self._turns
        ):
            self._waited += 1
            return True
        self._waited = 0
        return False

    def answered(self, callers: int) -> None:
        """These callers were answered, or wait for the next commit already: they are expected in it."""
        self._company = callers
