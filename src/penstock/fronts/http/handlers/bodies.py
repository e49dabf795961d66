"""From the broker's results to the API's shapes, and from verdicts in JSON to the broker's. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.arguments import milliseconds, verdicts_of
from penstock.api.results import Claim, Receipt, Slice
from penstock.fronts.http.request import Answer, json_answer
from penstock.model import SPAN_MS_MAX
from penstock.model.errors import InvalidArgument
from penstock.model.verdict import Verdict
from penstock.wire.http.shapes import (
    BUFFERED,
    BufferedAnswer,
    BufferedBody,
    ClaimAnswer,
    EncodedClaim,
    EncodedSlice,
    PartBody,
    PublishAnswer,
    PublishedBody,
    VerdictBody,
    received_body,
)


def results_answer(receipt: Receipt) -> Answer:
    """Where each message went, one by one."""
    if receipt.buffered:
        bodies = [BufferedBody(index) for index in range(len(receipt))]
        return json_answer(BufferedAnswer(len(receipt), "buffered", bodies), BUFFERED)
    results = [
        PublishedBody(index, place.queue, place.lane, place.offset, place.duplicate)
        for index, place in receipt.numbered()
    ]
    return json_answer(PublishAnswer(len(receipt), results=results))


def parts_answer(receipt: Receipt) -> Answer:
    """Where runs of messages went."""
    if receipt.buffered:
        return json_answer(BufferedAnswer(len(receipt), "buffered"), BUFFERED)
    parts = [
        PartBody(
            queue, lane, appended.base, appended.count, appended.duplicates, None if places is None else list(places)
        )
        for queue, lane, appended, places in receipt.parts
    ]
    return json_answer(PublishAnswer(len(receipt), parts=parts))


def claim_answer(claim: Claim) -> ClaimAnswer:
    return ClaimAnswer(
        queue=claim.queue,
        lane=claim.lane,
        lease=None if claim.lease is None else str(claim.lease),
        deadline_ms=claim.deadline_ms,
        messages=[received_body(received) for received in claim.messages],
    )


def encoded_claim(claim: Claim) -> EncodedClaim:
    lease = None if claim.lease is None else str(claim.lease)
    return EncodedClaim(claim.queue, claim.lane, lease, claim.deadline_ms, encoded_slices(claim.slices))


def encoded_slices(slices: Sequence[Slice]) -> list[EncodedSlice]:
    """Batches as they are stored; only one of which a part was taken is cut."""
    encoded: list[EncodedSlice] = []
    for part in slices:
        batch = part.reader.cut(part.start, part.stop)
        encoded.append(EncodedSlice(part.offset, part.published_ms, part.attempt, batch.count, batch.meta, batch.body))
    return encoded


def verdicts(bodies: Sequence[VerdictBody]) -> list[Verdict]:
    """The broker's verdicts: a body with many offsets becomes one a run."""
    return [verdict for body in bodies for verdict in _verdicts(body)]


def _verdicts(body: VerdictBody) -> list[Verdict]:
    delay_ms = None if body.delay is None else milliseconds(body.delay, "delay", 0, SPAN_MS_MAX)
    if body.delay is not None and body.action not in ("nack", "postpone"):
        raise InvalidArgument(f"delay is for nack and postpone, not for {body.action}")
    if body.action == "postpone" and delay_ms is None:
        raise InvalidArgument("postpone needs a delay in seconds")
    if body.error and body.action not in ("nack", "reject"):
        raise InvalidArgument(f"error is for nack and reject, not for {body.action}")
    if (body.start is None) != (body.end is None) or (body.start is not None and body.offsets is not None):
        raise InvalidArgument("a verdict is about offsets, about start and end together, or, with neither, about all")
    if body.start is not None and body.end is not None:
        return [Verdict(body.action, body.start, body.end, delay_ms, body.error)]
    if body.offsets is not None and not body.offsets:
        raise InvalidArgument("offsets is empty; leave it out to settle all that is left of the lease")
    return [*verdicts_of(body.action, body.offsets, delay_ms, body.error)]
