"""The nodes of a store: who is there, who owns what; and what nodes ask of each other."""

from __future__ import annotations

from typing import Any

from penstock.api.front_broker import Peering
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import Forbidden
from penstock.model.rows import SLOTS
from penstock.wire.http.cluster import (
    SECRET,
    ClusterAnswer,
    HandoverRequest,
    LandedRequest,
    NodeBody,
    SessionEnd,
    SlotBody,
)

ROUTES = Routes(__name__)


@ROUTES.add("GET", "/v1/cluster", {200: ClusterAnswer})
async def show_cluster(call: Call) -> Answer:
    """The nodes of this store, which slots each owns, and why."""
    call.broker.authorize("admin", "node", "")
    peering = call.server.broker.peering
    if peering is None:
        return json_answer(ClusterAnswer(is_clustered=False, nodes=[], slots=[]))
    view = peering.view
    known = {row.incarnation: row for row in view.nodes}
    owners = {row.slot: row for row in view.slots}
    nodes = [
        NodeBody(
            name=row.name,
            url=row.url,
            incarnation=row.incarnation,
            age_ms=row.age_ms,
            is_live=row.is_live,
            is_here=row.incarnation == peering.incarnation,
            version=row.version,
            slots=sum(slot.node == row.incarnation for slot in view.slots),
        )
        for row in view.nodes
    ]
    slots: list[SlotBody] = []
    for slot in range(SLOTS):
        row = owners.get(slot)
        node = None if row is None else known.get(row.node)
        state = "free" if node is None else "owned" if node.is_live else "stale"
        slots.append(
            SlotBody(
                slot=slot,
                owner="" if node is None else node.name,
                epoch=0 if row is None else row.epoch,
                state=state,
                why="nobody has taken it yet" if row is None else row.why,
                since_ms=0 if row is None else row.since_ms,
            )
        )
    return json_answer(ClusterAnswer(is_clustered=True, nodes=nodes, slots=slots))


@ROUTES.add("POST", "/v1/cluster/poke", {204: None}, errors=[Forbidden])
async def poke(call: Call) -> Answer:
    """Let this node look at the store now. For other nodes alone."""
    await trusted(call).notify_changed()
    return NOTHING


@ROUTES.add("POST", "/v1/cluster/handover", {204: None}, errors=[Forbidden])
async def hand_over(call: Call, body: HandoverRequest) -> Answer:
    """Hand slots on to the node that asks for them. For other nodes alone."""
    await trusted(call).hand_over(body.slots, body.to)
    return NOTHING


@ROUTES.add("POST", "/v1/cluster/landed", {200: list[dict[str, Any]]}, errors=[Forbidden])
async def land(call: Call, body: LandedRequest) -> Answer:
    """Carry out what another node has published to queues of this one, and say where it went. For other nodes alone."""
    return json_answer(await trusted(call).landed(body.landings))


@ROUTES.add("POST", "/v1/cluster/sessions/end", {204: None}, errors=[Forbidden])
async def end_session_of_another(call: Call, body: SessionEnd) -> Answer:
    """End what a session of another node has in queues of this one. For other nodes alone."""
    await trusted(call).end_session(body.session)
    return NOTHING


def trusted(call: Call) -> Peering:
    """What other nodes may ask, where the request comes from one of them; everybody else is refused."""
    peering = call.server.broker.peering
    if peering is None:
        raise Forbidden("this server has its store for itself: there are no others that could ask")
    peering.check(call.request.headers.get(SECRET, b""))
    return peering
