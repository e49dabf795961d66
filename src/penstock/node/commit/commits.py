"""What the services of a node may ask of its commits. `loop.py` and `by_slot.py` carry it out.

What is put into one commit in one step is durable together. Where the engine commits one slot at a time, that holds
for what is of one slot: `may_share` is the one question, and whoever has something for another slot sends it there
through the outbox (`node/cluster/remote_publish.py`), as to another node.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, overload

from penstock.api.ticket import Ticket
from penstock.core.lane import Lane
from penstock.model.errors import PenstockError
from penstock.node.commit.pending import Pending
from penstock.node.publish.parts import Unit

PENDING_BYTES_MAX = 16 * 1024 * 1024

T = TypeVar("T")


class Commits(Protocol):
    """The commits of a node. A slot is named by who changes no lane, or not yet: None where it is about none."""

    count: int
    """How many have succeeded."""
    failed: int
    """How many have failed: what was changed before one did may not be there, and comes before the rest."""

    spans_slots: bool
    """Whether all that a node does in one step may be in one commit; what is sent elsewhere otherwise is in its own."""

    def may_share(self, slot: int | None, other: int) -> bool:
        """Whether what is about these two slots may be in one commit."""
        return self.spans_slots or slot == other

    # What callers do --------------------------------------------------------------------------------------

    @overload
    def commit(self, lane: Lane | None = None, *, slot: int | None = None, deferred: bool = False) -> Ticket[None]: ...

    @overload
    def commit(
        self, lane: Lane | None = None, *, slot: int | None = None, result: T, unit: Unit | None = None
    ) -> Ticket[T]: ...

    def commit(
        self,
        lane: Lane | None = None,
        *,
        slot: int | None = None,
        result: Any = None,
        unit: Unit | None = None,
        deferred: bool = False,
    ) -> Ticket[Any]:
        """A ticket that is done, with the result, when all that was changed so far is durable; `lane` has changed too.

        With a lane or a slot, all that was changed of that slot is enough. `unit` is a publish that the spool may keep
        if the commit fails. `deferred` asks for no commit of its own: it goes with the next one that others need, or
        by itself after `DEFERRED_SECONDS` or a `flush`.
        """

    def touch(self, lane: Lane) -> None:
        """The lane changed, and nobody waits for that: take it into the next commit."""

    def amend(self, slot: int | None) -> Pending:
        """The next commit, to add rows and callbacks to it, fenced by the slot; schedules that commit."""

    def broken(self, lane: Lane, failure: AssertionError) -> PenstockError:
        """A command on the lane failed halfway: commit nothing of it, and load it again; what its caller is told.

        What is pending fails with it, as after a failed commit.
        """

    def flush(self) -> None:
        """Commit what was deferred."""

    def probe(self) -> Ticket[None]:
        """Done when the store has taken a commit from now on, an empty one where nothing changed."""

    # What is pending --------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """What publishers have put into what is to be committed next."""

    def holds(self, lane: Lane) -> bool:
        """Whether a commit under way or the next one holds something of a lane."""

    def concerns_slots(self, slots: set[int]) -> bool:
        """Whether a commit under way or the next one holds something of these slots."""

    def give_up(self, slots: set[int], error: PenstockError) -> None:
        """These slots are another node's: the next commit, if it holds something of them, fails before it begins.

        The one under way is refused by the store, as far as it is about them.
        """

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be pending now; the first may always."""

    def take_room(self, size: int, slot: int | None) -> None:
        """Count `size` more pending bytes, for which there is room."""

    async def room(self, size: int, slot: int | None) -> None:
        """Wait until `size` more bytes may be pending: the back-pressure on publishers."""

    async def publishes_settled(self) -> None:
        """Wait until each publish that was asked for before is durable, or was given to the spool."""

    async def catalog_settled(self) -> None:
        """Wait until no commit that was asked for before can change the catalog any more."""

    async def close(self) -> None:
        """Commit what is pending, then take nothing more."""
