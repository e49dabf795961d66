"""Which slots this node has, under which epoch, and who has the others: the one place that knows.

A slot passes through four states here. `take`: the store gave it to this node, which first finishes what was on its way
to it. `serve`: commands on its queues are carried out here. `shed`: it is being handed on, only commits under way still
use its epoch. `lose`: it is another node's, and nothing of it may be used. A single node owns every slot for good.

Knows no store, no queue and no socket. What each step means for lanes and timers is in `slots.py`; who decides which
slots come and go, in `membership.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from math import inf
from typing import Final

import msgspec

from penstock.model.errors import NotOwner, PenstockError, Unavailable
from penstock.model.rows import REGISTRAR_SLOT, SLOTS, ClusterView, NodeRow, SlotRow
from penstock.store.closing import closed_by, words_for

SPREAD: Final = -1
"""In place of the slot of a queue whose lanes are in several slots: only a single node can serve it."""
EVERY_SLOT: Final = frozenset(range(SLOTS))


def _place(name: str) -> str:
    """Where a node runs: its name without the process (`Member.name`)."""
    return name.rpartition(":")[0] or name


class Ownership:
    """The slots of one node."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a monotonic clock in seconds, by which this node's lease on its slots runs out."""
        self._now = now
        self.is_sole = False
        """Whether this node has the store for itself: there are no other nodes to ask."""
        self._epochs: dict[int, int] = {}
        self._arriving: set[int] = set()
        self._owned: set[int] = set()
        self._starting: set[int] = set()
        self._kept: dict[int, float] = {}
        self._lease_s = inf
        self._heard_until = inf
        self._renewed_until = 0.0
        self._trusts_renewals = False
        self.incarnation = 0
        """This node's number among all that ever were; 0 while it is no member."""
        self.view = ClusterView(0, False, 0, [], [])
        """Nodes and owners as the store last told them."""
        self._newest = 0
        self.name = ""
        """This node's."""
        self.had_company = False
        """Whether there was ever another node, as far as the spool remembers: then there may be one again any time."""

    # Questions --------------------------------------------------------------------------------------------

    @property
    def owned(self) -> Set[int]:
        """Slots whose commands are carried out here."""
        return self._owned

    @property
    def epochs(self) -> Mapping[int, int]:
        """Of every slot that this node has in the store, also of those that are coming or going: one live view."""
        return self._epochs

    @property
    def starting(self) -> Set[int]:
        """Slots that are served and whose timers, retention and schedules have not been started yet."""
        return self._starting

    @property
    def is_registrar(self) -> bool:
        return REGISTRAR_SLOT in self._owned

    def owns(self, slot: int) -> bool:
        return slot in self._owned

    def has_taken(self, slot: int) -> bool:
        """Whether this node owns the slot, or will as soon as what was on its way to it has arrived."""
        return slot in self._owned or slot in self._arriving

    def epoch(self, slot: int) -> int:
        """The epoch under which this node may commit; 0, which the store refuses, where the slot is not its own."""
        return self._epochs.get(slot, 0)

    def queried(self) -> list[int] | None:
        """The owned slots as a query of the store names them; None for all."""
        return None if self.is_sole else sorted(self._owned)

    def check(self, slot: int) -> None:
        """Raise unless this node owns the slot and knows that it still does."""
        if slot not in self._owned:
            raise self.not_owner(slot)
        if self._heard_until != inf and not self.is_heard:
            raise Unavailable(
                "this node has not heard from the store for its lease; others may own its queues; try again"
            )

    def keeps(self, slot: int, epoch: int) -> bool:
        """Whether nobody else can have had a slot since it was this node's under an epoch; it may be on its way."""
        return self._epochs.get(slot) == epoch and (self._heard_until == inf or self.is_heard)

    def check_taken(self, slot: int) -> None:
        """Raise unless `has_taken`."""
        if not self.has_taken(slot):
            raise self.not_owner(slot)

    @property
    def is_certain(self) -> bool:
        """Whether nobody can have declared this node dead: it was heard of within its lease, if that has an end."""
        return self._heard_until == inf or self.is_heard

    @property
    def is_heard(self) -> bool:
        """Whether this node has heard from the store within its lease, so that nobody can have taken its slots."""
        now = self._now()
        return now <= self._heard_until or (self._trusts_renewals and now <= self._renewed_until)

    # The other nodes --------------------------------------------------------------------------------------

    def slot(self, slot: int) -> SlotRow | None:
        return next((row for row in self.view.slots if row.slot == slot), None)

    def node_of(self, incarnation: int) -> NodeRow | None:
        return next((row for row in self.view.nodes if row.incarnation == incarnation), None)

    def owner(self, slot: int) -> NodeRow | None:
        """The node that owns a slot, as the store last told; None where nobody does."""
        row = self.slot(slot)
        return None if row is None else self.node_of(row.node)

    def owners(self, slots: Iterable[int]) -> set[int]:
        """The incarnations that own these slots; 0 for nobody."""
        rows = {row.slot: row.node for row in self.view.slots}
        return {rows.get(slot, 0) for slot in slots}

    @property
    def closed(self) -> str:
        """What clients are told where the store was copied to another place and closed; empty while it is open."""
        return next(map(words_for, closed_by(self.view.nodes).values()), "")

    def others(self) -> list[NodeRow]:
        """The live nodes beside this one that can be reached."""
        return [row for row in self.view.nodes if row.is_live and row.incarnation != self.incarnation and row.url]

    def not_owner(self, slot: int) -> PenstockError:
        """The error for a command on a slot that this node does not own."""
        if slot == SPREAD:
            return Unavailable(
                "the lanes of this queue are in several slots, as versions before clusters made them: it can be used "
                "by a single node that owns everything; publish to a new queue instead"
            )
        owner = self.owner(slot)
        return NotOwner(f"slot {slot} is owned by {'nobody now' if owner is None else owner.name}; try again", slot)

    def is_alive(self, incarnation: int) -> bool:
        """Whether the process with this number is there. One that joined after the last look is not taken for dead."""
        if incarnation == 0 or self.is_sole:
            return incarnation == self.incarnation != 0
        if incarnation == self.incarnation:
            return True
        node = self.node_of(incarnation)
        return incarnation > self._newest if node is None else node.is_live

    # Transitions ------------------------------------------------------------------------------------------

    def own_all(self, epochs: Mapping[int, int]) -> None:
        """This node has the store for itself, from now until it stops."""
        assert set(epochs) == EVERY_SLOT, "a single node has every slot"
        self.is_sole = True
        self._epochs.update(epochs)
        self._owned = {SPREAD, *epochs}
        self._check_invariants()

    def joined(self, incarnation: int) -> None:
        """This node is a member under a number that none had before."""
        self.incarnation = incarnation

    def take(self, epochs: Mapping[int, int]) -> None:
        """The store gave these slots to this node; they are served after `serve`."""
        assert not self._owned & set(epochs), "taken while it was served: its last epoch was not given up"
        self._epochs.update(epochs)
        self._arriving |= set(epochs)
        self._check_invariants()

    def abandon(self, slots: Collection[int]) -> None:
        """Taking these broke off: they are this node's in the store and are not served, until they are taken again."""
        self._arriving -= set(slots)
        self._check_invariants()

    def serve(self, slots: Collection[int]) -> None:
        """Carry out commands on these slots from now on."""
        assert self._arriving.issuperset(slots), "only what was taken can be served"
        self._arriving -= set(slots)
        self._owned |= set(slots)
        self._starting |= set(slots)
        self._check_invariants()

    def started(self, slots: Collection[int]) -> None:
        """The timers, retention and schedules of these slots run."""
        self._starting -= set(slots)

    def shed(self, slots: Collection[int]) -> None:
        """Carry out nothing more on these slots; what is under way is committed under their epoch, until `lose`."""
        self._owned -= set(slots)
        self._starting -= set(slots)
        self._check_invariants()

    def lose(self, slots: Collection[int]) -> None:
        """These slots are not this node's any more."""
        self.shed(slots)
        self._arriving -= set(slots)
        for slot in slots:
            self._epochs.pop(slot, None)
        self._check_invariants()

    def _check_invariants(self) -> None:
        assert self._arriving <= self._epochs.keys(), "a slot arrives without an epoch"
        assert self._owned - {SPREAD} <= self._epochs.keys(), "a slot is served without an epoch"
        assert not self._owned & self._arriving, "a slot is served before it has arrived"
        assert self._starting <= self._owned, "a slot is starting and is not served"
        assert not self.is_sole or self._owned == EVERY_SLOT | {SPREAD}, "a single node gave a slot away"

    # What the store told ----------------------------------------------------------------------------------

    def saw(self, view: ClusterView) -> None:
        """The store's newest answer."""
        self.view = view
        self._newest = max(self._newest, *(row.incarnation for row in view.nodes), 0)
        # Also the dead, who may be started again, and programs that nobody reaches. But not rows that this node left in
        # the store before it was killed.
        here = _place(self.name)
        self.had_company = self.had_company or any(_place(row.name) != here for row in view.nodes)

    def saw_taken(self, epochs: Mapping[int, int], why: str) -> None:
        """The same for slots that were taken since: requests need not wait for the next answer."""
        rows = {row.slot: row for row in self.view.slots}
        for slot, epoch in epochs.items():
            rows[slot] = SlotRow(slot, epoch, self.incarnation, 0, self.view.now_ms, why)
        self.view = msgspec.structs.replace(self.view, slots=[rows[slot] for slot in sorted(rows)])

    def lost_in(self, view: ClusterView) -> set[int]:
        """Slots of this node that the store's answer gives to another, or whose taking or shedding broke off."""
        mine = {row.slot: row.epoch for row in view.slots if row.node == self.incarnation}
        return {slot for slot, epoch in self._epochs.items() if mine.get(slot) != epoch or slot not in self._owned}

    def lease_for(self, seconds: float) -> None:
        """From now on, slots are this node's only so long after the store was last heard."""
        self._lease_s = seconds
        self._heard_until = inf if seconds == inf else 0.0

    def heard(self, at: float) -> None:
        """The store answered a question of `at`: until a lease later nobody else can have taken this node's slots."""
        self._heard_until = at + self._lease_s
        self._trusts_renewals = True

    def renewed(self, at: float) -> None:
        """The store took a renewal of `at`, from a thread: it counts unless there is doubt. Called by that thread."""
        self._renewed_until = at + self._lease_s

    def doubt(self) -> None:
        """A commit was refused: nothing is this node's until the store is heard again."""
        if self._lease_s != inf:
            self._heard_until = 0.0
            self._trusts_renewals = False

    # Slots that stay for a while --------------------------------------------------------------------------

    def keep(self, slots: Iterable[int], seconds: float) -> None:
        """Shed none of these for a while: they were brought here to be used together."""
        self._kept |= dict.fromkeys(slots, self._now() + seconds)

    def movable(self) -> list[int]:
        """Owned slots that may be shed; the highest first, so that the registrar moves last."""
        now = self._now()
        self._kept = {slot: until for slot, until in self._kept.items() if until > now}
        return sorted(self._owned - self._kept.keys(), reverse=True)
