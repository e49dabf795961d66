"""What the next commit will hold beside the lanes' own changes, and who waits for it. Filled by callers, emptied by the
commit loop; plain data. Next stop: `loop.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.api.results import Receipt
from penstock.core.lane import Lane
from penstock.model.rows import CatalogRow, EnqueuedFailure, LaneChange, OutboxRow, TraceRow

if TYPE_CHECKING:
    from penstock.node.spool.records import Doubt
    from penstock.node.spool.spool import Unit

    Waiting = tuple[asyncio.Future[None] | "Promise", Unit]


class Promise:
    """A commit that is waited for without a task: `then` is called with what became of it, from within the commit loop.

    A future would do the same a turn of the event loop later, behind all that a commit has to do after its answers.
    """

    __slots__ = ("is_rescued", "receipt", "then")

    def __init__(self, receipt: Receipt | None = None) -> None:
        self.then: Callable[[BaseException | None], None] | None = None
        """None where nobody wants to know any more."""
        self.receipt = receipt
        """Of a publish that can be kept elsewhere if the commit fails: then it says so."""
        self.is_rescued = False
        """The commit has failed, and it is on its way to elsewhere: it is kept when it is there."""

    def tell(self, error: BaseException | None) -> None:
        """What became of it; once."""
        then, self.then = self.then, None
        if then is not None:
            then(error)


class Pending:
    """What the next commit will hold beside the lanes' own changes."""

    __slots__ = ("after", "bytes", "callers", "catalog", "catalog_deleted", "doubt", "enqueued_deleted",
                 "enqueued_failed", "enqueued_retried", "is_plain", "is_wanted", "lanes", "lanes_deleted", "outbox",
                 "outbox_deleted", "probes", "promises", "publishes", "raw", "riders", "slots", "traces",
                 "traces_expired_ms", "turns", "waiters")  # fmt: skip

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.riders: list[asyncio.Future[None]] = []
        """As waiters, but none of them asked for a commit soon."""
        self.promises: list[Promise] = []
        """As waiters, told by a call."""
        self.is_plain = True
        """It holds changes of lanes and nothing else, but for what others have done when they asked for all of this."""
        self.is_wanted = False
        """Somebody asked for a commit soon."""
        self.callers = 0
        """Waiters who are likely to come again soon, and how many turns to wait for them."""
        self.turns = 0
        self.publishes: list[Waiting] = []
        """Those of the waiters that can be kept elsewhere if the commit fails, in their order."""
        self.doubt: Doubt | None = None
        self.catalog: list[CatalogRow] = []
        self.catalog_deleted: list[tuple[str, int]] = []
        self.lanes_deleted: list[int] = []
        self.outbox: list[OutboxRow] = []
        self.outbox_deleted: list[int] = []
        self.slots: set[int] = set()
        """Slots that it is fenced by beside those of its lanes: what it declares, and what it does for the outbox."""
        self.raw: dict[int, LaneChange] = {}
        """Changes of lanes that no queue has, by lane: they go into the store as they are."""
        self.traces: list[TraceRow] = []
        self.traces_expired_ms: int | None = None
        self.enqueued_deleted: list[int] = []
        self.enqueued_failed: list[EnqueuedFailure] = []
        self.enqueued_retried: list[int] = []
        self.after: list[Callable[[], None]] = []
        self.probes: list[asyncio.Future[None]] = []
        """Those who ask whether a commit succeeds, whatever is in it."""
        self.bytes = 0

    @property
    def waiting(self) -> int:
        """How many wait for it who asked for it soon."""
        return len(self.waiters) + len(self.promises)

    def change_of(self, lane: int) -> LaneChange:
        """What happens to a lane that no queue has."""
        change = self.raw.get(lane)
        if change is None:
            change = self.raw[lane] = LaneChange(lane, 0, 0, 0)
        return change
