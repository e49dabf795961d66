"""What a channel has delivered and the client has not settled yet: by delivery tag, and by the leases behind it.

Verdicts are gathered while others are on their way to the store, and go there with one call a lease. A verdict that the
store did not take is tried again as long as the channel lives; a lease that is gone is forgotten: what it held comes
again, to somebody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from penstock.api.results import Lease
from penstock.fronts.amqp091.errors import precondition
from penstock.model.errors import LeaseLost, NotFound, PenstockError
from penstock.model.verdict import Verdict

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.api.messages import Transaction

LEASE_SECONDS: Final = 30.0
RENEW_AFTER: Final = 10.0
AGAIN_SECONDS: Final = 0.5
"""Before what the store did not take is tried again."""

Action = Literal["ack", "nack", "reject"]
Noted = dict[Action, list[int]]
"""Offsets, by what became of them."""

log = logging.getLogger("penstock.amqp")


class ConsumerKey(NamedTuple):
    """A consumer as the broker knows it."""

    queue: str
    group: str
    consumer: str


class Holder(Protocol):
    """Told what became of a delivery."""

    def settled(self, action: Action, offset: int) -> None: ...


class Creditor(Protocol):
    """Who may deliver one more when one is settled."""

    def credit(self) -> None: ...


class Held:
    """The messages of one lease that were delivered: what of them is settled, and not told to the broker yet."""

    __slots__ = ("_settling", "creditor", "lease", "left", "noted", "place", "renew_at")

    def __init__(
        self, settling: Settling, lease: Lease, place: ConsumerKey, creditor: Creditor | None, left: int, now: float
    ) -> None:
        self._settling = settling
        self.lease = lease
        self.place = place
        self.creditor = creditor
        self.left = left
        """Delivered and not told to the broker as settled."""
        self.renew_at = now + RENEW_AFTER
        self.noted: Noted = {"ack": [], "nack": [], "reject": []}

    def note(self, action: Action, offset: int) -> None:
        self.noted[action].append(offset)
        if action != "ack":
            self._settling.returns = True

    def settled(self, action: Action, offset: int) -> None:
        self.note(action, offset)
        self._settling.dirty[self] = None
        if self.creditor is not None:
            self.creditor.credit()

    def take(self) -> list[Verdict]:
        """What is to be told, and from now on is."""
        noted, self.noted = self.noted, {"ack": [], "nack": [], "reject": []}
        if len(noted["ack"]) == self.left:
            self.left = 0
            return [Verdict("ack")]
        verdicts: list[Verdict] = []
        for action, offsets in noted.items():
            self.left -= len(offsets)
            delay_ms = 0 if action == "nack" else None
            verdicts += [Verdict(action, start, end, delay_ms) for start, end in runs(offsets)]
        return verdicts

    def put_back(self, noted: Noted) -> None:
        """The broker did not take it."""
        for action, offsets in noted.items():
            self.left += len(offsets)
            self.noted[action] += offsets


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Consecutive offsets as [start, end)."""
    if len(offsets) < 2:
        return [(offset, offset + 1) for offset in offsets]
    offsets.sort()
    found: list[tuple[int, int]] = []
    start = end = offsets[0]
    for offset in offsets:
        if offset != end:
            found.append((start, end))
            start = offset
        end = offset + 1
    found.append((start, end))
    return found


Delivered = tuple[Holder, int]
"""Who is told, and the offset."""


class Settling:
    """Of one channel."""

    def __init__(self, broker: FrontBroker) -> None:
        self._broker = broker
        self.unacked: dict[int, Delivered] = {}
        """By delivery tag, rising."""
        self.dirty: dict[Held, None] = {}
        self.held: set[Held] = set()
        """Every lease of which something is not settled."""
        self.returns = False
        """Something else than acks was gathered since all was told: it may change what others can see."""
        self._telling: list[Held] = []
        self._told = asyncio.Event()
        """Set when those are told, or could not be; then there is another."""
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._ended = False
        self._awaited = 0
        """How many wait for what was gathered to be stored."""

    # The client's words -----------------------------------------------------------------------------------

    def take(self, tag: int, multiple: bool) -> list[tuple[int, Delivered]]:
        """What a tag stands for, and no longer does; a fault where that is nothing."""
        if not multiple:
            one = self.unacked.pop(tag, None)
            if one is None:
                raise precondition(f"unknown delivery tag {tag}")
            return [(tag, one)]
        if tag == 0:
            taken = list(self.unacked.items())
        else:
            taken = []
            for known, delivered in self.unacked.items():
                if known > tag:
                    break
                taken.append((known, delivered))
            if not taken:
                raise precondition(f"unknown delivery tag {tag}")
        for known, _ in taken:
            del self.unacked[known]
        return taken

    def settle(self, tag: int, multiple: bool, action: Action) -> None:
        """ack, nack (again) or reject one delivery, or all up to it."""
        if not multiple:
            one = self.unacked.pop(tag, None)
            if one is None:
                raise precondition(f"unknown delivery tag {tag}")
            one[0].settled(action, one[1])
            return
        for _, (holder, offset) in self.take(tag, True):
            holder.settled(action, offset)

    def put_back(self, taken: Sequence[tuple[int, Delivered]]) -> None:
        """What was taken is not settled after all."""
        if taken:
            self.unacked = dict(sorted([*self.unacked.items(), *taken]))

    # The broker's -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Tell the broker what was gathered, unless that is being done."""
        if self.dirty and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def hurry(self) -> None:
        """The channel goes: what the store does not take now returns with it, instead of being tried again."""
        self._ended = True

    async def finish(self) -> bool:
        """Until the leases of which something was gathered are told all, whatever comes to others; whether they are."""
        self.start()
        left = {*self.dirty, *self._telling}
        self._awaited += 1
        try:
            if self._telling:
                self._broker.flush()
            while left and self._task is not None:
                await self._told.wait()
                left &= {*self.dirty, *self._telling}
        finally:
            self._awaited -= 1
        if not self.dirty and not self._telling:
            self.returns = False
        return not left

    async def _run(self) -> None:
        try:
            while self.dirty:
                telling = self._telling = list(self.dirty)
                self.dirty = {}
                if len(telling) == 1:
                    results = [await self._tell(telling[0])]
                else:
                    results = await asyncio.gather(*map(self._tell, telling))
                self._wake()
                if not all(results):
                    if self._ended:
                        return  # what the channel held returns with it
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._task = None
            self._wake()

    def _wake(self) -> None:
        """Wake the callers that wait for this round."""
        self._telling = []
        self._told.set()
        self._told = asyncio.Event()

    async def _tell(self, held: Held) -> bool:
        """Settle what is to be settled of one lease; whether the broker took it, or never will."""
        noted = held.noted
        # AMQP never answers an ack: it can ride with a commit that others need.
        deferred = not (self._awaited or noted["nack"] or noted["reject"])
        verdicts = held.take()
        try:
            if verdicts:
                await self._broker.settle(held.lease, verdicts, deferred=deferred)
        except LeaseLost:
            self.held.discard(held)
            return True
        except PenstockError as error:
            log.warning("what a client has settled is not stored yet, trying again: %s", error)
            held.put_back(noted)
            self.dirty[held] = None
            return False
        if not held.left:
            self.held.discard(held)
        return True

    def add_to(self, transaction: Transaction, settled: Sequence[tuple[Delivered, Action]]) -> None:
        """Make verdicts a part of a transaction."""
        touched: dict[Held, None] = {}
        for (holder, offset), action in settled:
            if isinstance(holder, Held) and holder in self.held:
                holder.note(action, offset)
                touched[holder] = None
        for held in touched:
            transaction.settle(held.lease, held.take())

    def told(self, settled: Sequence[tuple[Delivered, Action]]) -> None:
        """That transaction was committed."""
        for (holder, offset), action in settled:
            if not isinstance(holder, Held):
                holder.settled(action, offset)
                continue
            if not holder.left:
                self.held.discard(holder)
            if holder.creditor is not None:
                holder.creditor.credit()

    def renew(self, now: float) -> None:
        """Keep the leases that would end soon: their consumer is there."""
        if self._renewing is None:
            due = [held for held in self.held if held.renew_at <= now]
            if due:
                for held in due:
                    held.renew_at = now + RENEW_AFTER
                self._renewing = asyncio.get_running_loop().create_task(self._renew(due))

    async def _renew(self, due: list[Held]) -> None:
        try:
            await asyncio.gather(*map(self._extend, due))
        finally:
            self._renewing = None

    async def _extend(self, held: Held) -> None:
        try:
            await self._broker.extend(held.lease, LEASE_SECONDS)
        except (LeaseLost, NotFound):
            self.held.discard(held)
        except PenstockError as error:
            log.warning("a lease could not be renewed yet: %s", error)
            held.renew_at = 0.0

    async def end(self) -> set[ConsumerKey]:
        """The channel goes: tell what is to be told, and give the places that still hold something."""
        self.hurry()
        await self.finish()
        if self._renewing is not None:
            await asyncio.wait([self._renewing])
        self.unacked.clear()
        return {held.place for held in self.held}
