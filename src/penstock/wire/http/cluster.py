"""What `/v1/cluster` answers, and the headers with which nodes speak to each other."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

FORWARDED: Final = b"x-penstock-forwarded"
"""The incarnation of the node that forwarded the request: the receiver answers 421 rather than forward it again."""
TO_SESSION: Final = b"session"
"""In its place where a request was forwarded to the node that has its session, which may forward it once more."""
MISDIRECTED: Final = 421
CONSUMER: Final = b"x-penstock-consumer"
"""Who claims, unless the request says so."""
PRINCIPAL: Final = b"x-penstock-principal"
"""Who asks."""
SECRET: Final = b"x-penstock-secret"
"""What only nodes of the same store know: with it, the rest is believed."""
SESSION_NAME: Final = b"x-penstock-session"
"""The session in whose name it comes."""
OF_NODES: Final = frozenset((FORWARDED, CONSUMER, PRINCIPAL, SECRET, SESSION_NAME))
"""What a client cannot say."""


class NodeBody(Struct, kw_only=True):
    name: str
    url: str
    incarnation: int
    age_ms: int
    """Since it was last heard of, by the store's clock."""
    is_live: bool
    is_here: bool
    """It is the node that answers."""
    slots: int
    version: str


class SlotBody(Struct, kw_only=True):
    slot: int
    owner: str
    """Empty while no node owns it."""
    epoch: int
    state: str
    """owned, free, or stale: its owner is not heard of any more."""
    why: str
    since_ms: int


class ClusterAnswer(Struct, kw_only=True):
    is_clustered: bool
    """False where a single node has the store for itself."""
    nodes: list[NodeBody]
    slots: list[SlotBody]


class HandoverRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    slots: list[int]
    """The numbers of the slots that are wanted."""
    to: int
    """The incarnation of the node that asks for them."""


class LandedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    landings: list[dict[str, Any]]
    """Rows of the outbox: id, lane, count, publish_id."""


class SessionEnd(Struct, kw_only=True, forbid_unknown_fields=True):
    session: str
    """The session: the number of its process, a dot, and its name."""
