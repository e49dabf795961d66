"""What nodes of one store ask of each other, as the front sees it through which they reach this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.model.rows import ClusterView

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker


class ClusterNumbers(NamedTuple):
    """What `/metrics` shows of a node among others."""

    slots: int
    heartbeat_age_s: float
    heartbeats_failed: int
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

    async def poked(self) -> None:
        """Something has changed: read what is declared now, and look soon who owns what."""

    async def hand_over(self, slots: list[int], to: int) -> None:
        """Hand slots on to the node of this incarnation, which asks for them."""

    async def landed(self, landings: list[dict[str, Any]]) -> list[Any]:
        """Carry out what was published to this node's queues; where that went."""
        ...

    async def end_session(self, session_key: str) -> None:
        """End what a session of another node has in queues of this one."""

    def numbers(self) -> ClusterNumbers:
        """What this node measures of its place among the others."""
        ...
