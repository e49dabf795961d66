"""What fronts need beyond the user API: sessions by name, paging, metrics, draining; and the interface that nodes use
to reach each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from penstock.api.broker import Broker
from penstock.api.dead_letters import DeadPage
from penstock.api.measures import NodeNumbers, SpoolNumbers
from penstock.api.principal import Action, Kind, Principal
from penstock.api.results import LeaseLike, Receipt
from penstock.api.staging import MarkPage
from penstock.api.ticket import Ticket
from penstock.batch import EncodedBatch
from penstock.model import DEFAULT_GROUP, Message
from penstock.model.events import Delivery
from penstock.model.rows import ClusterView
from penstock.model.verdict import Verdict


class QueuePage(NamedTuple):
    """Some queues, and where to go on."""

    queues: list[tuple[str, dict[str, Any]]]
    """Name and options that differ from the defaults, by name."""
    next: str | None
    """As `after`; None at the end."""


class FrontBroker(Broker, Protocol):
    """A broker as a front sees it."""

    def in_namespace(self, namespace: str) -> FrontBroker: ...

    # Who asks ---------------------------------------------------------------------------------------------

    def acting_as(self, principal: Principal) -> FrontBroker:
        """The same broker for this principal: what it asks for is asked in its name."""
        ...

    def authorize(self, action: Action, kind: Kind, name: str) -> None:
        """Raise `Forbidden` unless the principal may do this. Every operation asks; this is for what a front adds."""

    # Sessions ---------------------------------------------------------------------------------------------

    def begin_session(self, name: str) -> FrontBroker:
        """Like `session()`, but under this name, and the caller must call `end_session()` on what it returns."""
        ...

    async def end_session(self) -> None:
        """Delete the session's exclusive queues and give back what it has leased. Safe to repeat."""

    def new_session_name(self) -> str:
        """A name that no other session has."""
        ...

    def new_session_id(self) -> str:
        """An id under which a client names its session in each request. It tells which process has the session."""
        ...

    def locate_session(self, id: str) -> Literal["here", "elsewhere", "ended"]:
        """Which process has the session of an id, if any has one: this one, another, or one that is gone."""
        ...

    def in_session(self, id: str) -> FrontBroker:
        """A session that is `elsewhere`: each operation is carried out there, `end_session` and `renew_session` too."""
        ...

    async def renew_session(self) -> None:
        """Say that the client of a session that is `elsewhere` is still there."""

    # The process and others on the same store -------------------------------------------------------------

    @property
    def peering(self) -> Peering | None:
        """What other nodes of the same store may ask of this one; None where it has the store for itself."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes may use the same store: then nothing may be kept in this one's memory alone."""
        ...

    @property
    def process(self) -> str:
        """A name for this process that none had before on its store; it changes if the others took it for dead."""
        ...

    def is_alive(self, process: str) -> bool:
        """Whether a process of this name may still be there."""
        ...

    @property
    def is_caretaker(self) -> bool:
        """Whether this process cleans up after dead ones."""
        ...

    def drain(self) -> None:
        """Before a stop: answer all waiting claims and reads, with nothing, and let no more wait."""

    # Without a task ---------------------------------------------------------------------------------------

    def publish_many(
        self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None
    ) -> Ticket[Receipt]: ...

    def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Ticket[Receipt]: ...

    def publish_to(
        self,
        exchange: str,
        messages: Message | Sequence[Message] | EncodedBatch,
        *,
        mandatory: bool = False,
        publish_id: str | None = None,
    ) -> Ticket[Receipt]: ...

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict], *, deferred: bool = False) -> Ticket[None]:
        """As `Broker.settle`. With `deferred` it costs no commit of its own while there are others, and may take a few
        milliseconds longer.
        """
        ...

    def flush(self) -> None:
        """Commit now what was settled with `deferred`."""

    # What this node knows, asked on the publish path where nothing may wait ---------------------------------

    def knows_queue(self, name: str, action: Action) -> bool:
        """Whether this node knows such a queue in this namespace. Only who may take the action there is told."""
        ...

    def knows_exchange(self, name: str, action: Action) -> bool:
        """Whether this node knows such an exchange in this namespace. Only who may take the action there is told."""
        ...

    def knows_namespace(self) -> bool:
        """Whether anything is declared in this namespace, as far as this node knows. `default` is always there."""
        ...

    # Paging -----------------------------------------------------------------------------------------------

    async def queues_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> QueuePage:
        """Queues by name, page by page, with their options: continue with `after=page.next`."""
        ...

    async def dead_page(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 100
    ) -> DeadPage:
        """All dead letters of a group, page by page: continue with `after=page.next`."""

    async def marks_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> MarkPage:
        """Marks page by page, with values as JSON text: continue with `after=page.next`."""

    # The node ---------------------------------------------------------------------------------------------

    def follow_events(
        self, *, queue: str | None = None, group: str | None = None, after: int | None = None, pause: float = 15.0
    ) -> AsyncIterator[list[tuple[int, Delivery]]]:
        """Live events of this node's queues in this namespace, each with its offset in `$events`.

        Begins now, or after an offset. After `pause` seconds without an event an empty list comes, so that the front
        can send a heartbeat. Ends when the broker does.
        """
        ...

    async def measures(self, *, queues_max: int = 1_000) -> NodeNumbers:
        """The whole node's numbers, over all namespaces: what `/metrics` shows. Loads no queue, and never waits long.

        With more than `queues_max` queues in memory, the queues with the largest lag come one by one, the rest as a
        sum.
        """

    def damage(self) -> list[str]:
        """What was found damaged in the store and nobody has looked at: what `/readyz` shows. Anyone may ask."""
        ...

    def alarms(self) -> Sequence[str]:
        """What this node is low on, so that it holds publishes back; empty while all is well. Anyone may ask."""
        ...

    def keep_writing(self, queue: str) -> None:
        """Publishes to this queue go on through alarms: a front must write to it for its consumers."""

    def spool(self) -> SpoolNumbers | None:
        """What waits in the node's spool for the store to be back; None for a node without a spool."""
        ...


class ClusterNumbers(NamedTuple):
    """What `/metrics` shows of a node among others."""

    slots: int
    heartbeat_age_s: float
    heartbeats_failed: int
    renewals: int
    """Renewals of the lease that a thread made because the event loop was busy."""
    forwarded: int
    forwards_failed: int


class Peering(Protocol):
    """One node, for the other nodes of its store. Who asks must know the secret that only they have."""

    @property
    def incarnation(self) -> int:
        """This node's number; 0 while it is no member."""

    @property
    def view(self) -> ClusterView:
        """Nodes and owners as the store last told them."""

    def check(self, secret: bytes) -> None:
        """Raise `Forbidden` unless the request comes from a node of the same store."""

    def broker_for(self, namespace: str, session_key: str | None) -> FrontBroker:
        """The broker for what another node forwards, perhaps in the name of a session that it has.

        It forwards nothing: `NotOwner` tells the other node to look again.
        """
        ...

    async def notify_changed(self) -> None:
        """Something changed: refresh the catalog and ownership."""

    async def hand_over(self, slots: list[int], to: int) -> None:
        """Hand slots on to the node of this incarnation, which asks for them."""

    async def landed(self, landings: list[dict[str, Any]]) -> list[Any]:
        """Append messages that other nodes sent; returns their places."""
        ...

    async def end_session(self, session_key: str) -> None:
        """End what a session of another node has in queues of this one."""

    def numbers(self) -> ClusterNumbers:
        """What this node measures of its place among the others."""
        ...
