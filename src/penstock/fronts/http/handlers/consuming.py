"""Claim messages and settle them: work groups."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.results import Claim
from penstock.api.slices import SLICE_ITEMS
from penstock.api.ticket import Ticket
from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.handlers.bodies import claim_answer, encoded_claim, many_verdicts, verdicts
from penstock.fronts.http.handlers.large_answers import batches_answer, decoded_answer
from penstock.fronts.http.request import NOTHING, Answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import LeaseLost, Overloaded, WrongKind
from penstock.wire.http.large_bodies import claim_parts
from penstock.wire.http.shapes import (
    BATCHES_TYPE,
    ClaimAnswer,
    ClaimRequest,
    NextRequest,
    SettleRequest,
    VerdictBody,
)

ROUTES = Routes(__name__)


@ROUTES.add(
    "POST",
    "/v1/queues/{queue}/claim",
    {200: ClaimAnswer},
    gives_batches=True,
    errors=[WrongKind, Overloaded, LeaseLost],
)
async def claim(call: Call, body: ClaimRequest) -> Answer:
    """Lease up to `max` messages, waiting up to `wait` seconds for the first `min` of them.

    One claim gives about 16 MiB at most, and some thousand messages where a filter, a delay, a time to live or
    partitions decide about each: fewer than `max` do not mean that there are no more.
    """
    wait = call.request.wait(body.wait)
    waits = wait > 0
    if waits:
        call.server.begin_wait(call.request)
    try:
        claimed = await call.broker.claim(
            call.names["queue"],
            group=body.group,
            max=body.max,
            min=body.min,
            wait=wait,
            lease_seconds=body.lease_seconds,
            partition=body.partition,
            consumer=body.consumer or call.consumer,
            ack=body.ack,
            priority=body.priority,
        )
    finally:
        if waits:
            call.server.end_wait(call.request)
    return await _claim_answer(call, claimed)


@ROUTES.add("POST", "/v1/leases/{lease}/settle", {204: None}, errors=[LeaseLost])
def settle(call: Call, body: SettleRequest) -> Ticket[Answer]:
    """Ack, nack, reject, postpone or release messages of a lease, in any mix, all or none."""
    if len(body.verdicts) > SLICE_ITEMS:
        return Ticket.of(_settle_many(call, body.verdicts))
    return call.broker.settle(call.names["lease"], verdicts(body.verdicts)).map(_nothing)


async def _settle_many(call: Call, bodies: Sequence[VerdictBody]) -> Answer:
    await call.broker.settle(call.names["lease"], await many_verdicts(bodies))
    return NOTHING


def _nothing(_: None) -> Answer:
    return NOTHING


@ROUTES.add("POST", "/v1/leases/{lease}/next", {200: ClaimAnswer}, gives_batches=True, errors=[LeaseLost])
async def settle_and_claim(call: Call, body: NextRequest) -> Answer:
    """Settle a lease and lease the next messages of its queue and group, in one commit.

    It does not wait for messages: the claim is empty where none is there. If the lease has ended, nothing is claimed.
    """
    claimed = await call.broker.settle_and_claim(
        call.names["lease"],
        None if body.verdicts is None else await many_verdicts(body.verdicts),
        max=body.max,
        lease_seconds=body.lease_seconds,
        consumer=body.consumer or call.consumer,
    )
    return await _claim_answer(call, claimed)


async def _claim_answer(call: Call, claimed: Claim) -> Answer:
    if call.request.accepts(BATCHES_TYPE):
        return await batches_answer(call, claimed.slices, lambda: claim_parts(encoded_claim(claimed)))
    return await decoded_answer(call, claimed.slices, lambda: claim_answer(claimed))
