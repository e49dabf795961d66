"""The HTTP API's shapes: what client and server say to each other in JSON and MessagePack.

Plain data, shared by `fronts/http` and `client`; the OpenAPI document is made from it, from `arguments.py` and from
`answers.py`. No socket, no broker. Two media types besides JSON keep messages encoded: a publish may carry a batch
frame (`batch.to_bytes`), which is stored as it is, and a claim or read may be answered with `BATCHES_TYPE`, MessagePack
around batches as they are stored.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from penstock.api.results import DamagedRange, Received
from penstock.model import Message
from penstock.model.errors import InvalidArgument
from penstock.model.limits import SESSION_SECONDS_MAX, SESSION_SECONDS_MIN
from penstock.model.typed_headers import json_headers, plain_headers

JSON_TYPE: Final = "application/json"
BATCH_TYPE: Final = "application/vnd.penstock.batch"
"""A request body: one encoded batch in its frame."""
BATCHES_TYPE: Final = "application/vnd.penstock.batches+msgpack"
"""An answer: encoded batches with their places, in MessagePack arrays."""

ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
"""An answer: a scan as an Arrow IPC stream."""
NEXT_OFFSET_HEADER: Final = "X-Penstock-Next-Offset"
"""Where the next scan goes on, of an Arrow stream; the other form says it by itself."""

BUFFERED: Final = 202
"""The status of a publish that is in the server's spool: a `BufferedAnswer`."""

# Messages ------------------------------------------------------------------------------------------------


class PlainMessage(Struct, kw_only=True, omit_defaults=True):
    """What a message has in JSON on its way in and on its way out."""

    payload: str | None = None
    """The payload as text: UTF-8."""
    payload_base64: bytes | None = None
    """The payload as bytes."""
    partition: str | None = None
    """Messages of one partition keep their order and stay in one lane."""
    key: str | None = None
    """What exchanges route by."""
    headers: dict[str, Any] | None = None
    """Named, typed values: see [typed headers](#typed-headers)."""
    priority: int = 0
    """0 to 255; higher ones first where the queue is `prioritized`."""
    delay_ms: int = 0
    """Not delivered earlier than this after publishing."""
    not_before_ms: int = 0
    """Not delivered earlier than this time; the later of it and `delay_ms` holds."""
    ttl_ms: int | None = None
    """Not delivered later than this after publishing."""
    dedup_id: str | None = None
    """Names the message in its partition: published again within the queue's dedup window, it changes nothing."""
    content_type: str | None = None
    """What the payload is; Penstock does not read it."""
    correlation_id: str | None = None
    """Which question it answers; Penstock does not read it."""
    trace_id: str | None = None
    """The timeline that it belongs to: see traces."""


class MessageBody(PlainMessage, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A message to publish. Its payload is text, bytes in base64, or any JSON value, stored as it is written."""

    payload_json: Raw | UnsetType = UNSET
    """The payload as any JSON value; `content_type` is then `application/json` unless given."""

    def message(self) -> Message:
        """The message as the broker takes it."""
        given = (self.payload is not None) + (self.payload_base64 is not None) + (self.payload_json is not UNSET)
        if given > 1:
            raise InvalidArgument("a message has one of payload, payload_base64 and payload_json, not several")
        content_type = self.content_type
        if self.payload_json is not UNSET:
            payload = bytes(self.payload_json)
            content_type = JSON_TYPE if content_type is None else content_type
        elif self.payload is not None:
            payload = _utf8(self.payload)
        else:
            payload = self.payload_base64 or b""
        return Message(
            payload,
            self.partition,
            self.key,
            None if self.headers is None else plain_headers(self.headers),
            self.priority,
            self.delay_ms,
            self.not_before_ms,
            self.ttl_ms,
            self.dedup_id,
            content_type,
            self.correlation_id,
            self.trace_id,
        )


def message_body(message: Message) -> MessageBody:
    """A message as JSON carries it: its payload as text where it is UTF-8, in base64 otherwise."""
    fields = msgspec.structs.asdict(message)
    fields["payload"], fields["payload_base64"] = text_or_bytes(message.payload)
    fields["headers"] = None if message.headers is None else json_headers(message.headers)
    return MessageBody(**fields)


class ReceivedBody(PlainMessage, kw_only=True, omit_defaults=True):
    """A message as it is handed out or looked at: what was published, its place and its history."""

    queue: str
    """Where it is:"""
    lane: int
    """the lane's place in its queue,"""
    offset: int
    """and its place in the lane."""
    published_ms: int
    """When it was published."""
    attempt: int = 0
    """1 on the first hand-out; left out where nothing was handed out."""
    state: str = ""
    """Browse only: ready, leased, waiting, dead or done for the group."""
    done: bool | None = None
    """Stream reads of a queue with a `primary_group`: whether that group is done with it."""

    def received(self) -> Received:
        """The message as a caller gets it."""
        fields = {name: getattr(self, name) for name in Message.__struct_fields__}
        fields["payload"] = self.payload_base64 or b"" if self.payload is None else self.payload.encode()
        fields["headers"] = None if self.headers is None else plain_headers(self.headers)
        return Received(
            Message(**fields),
            self.queue,
            self.lane,
            self.offset,
            self.published_ms,
            self.attempt,
            self.state,
            self.done,
        )


def received_body(received: Received) -> ReceivedBody:
    """A message with its place and history as JSON carries it."""
    message = received.message
    text, data = text_or_bytes(message.payload)
    return ReceivedBody(
        queue=received.queue,
        lane=received.lane,
        offset=received.offset,
        published_ms=received.published_ms,
        attempt=received.attempt,
        state=received.state,
        done=received.done,
        payload=text,
        payload_base64=data,
        partition=message.partition,
        key=message.key,
        headers=None if message.headers is None else json_headers(message.headers),
        priority=message.priority,
        delay_ms=message.delay_ms,
        not_before_ms=message.not_before_ms,
        ttl_ms=message.ttl_ms,
        dedup_id=message.dedup_id,
        content_type=message.content_type,
        correlation_id=message.correlation_id,
        trace_id=message.trace_id,
    )


def text_or_bytes(payload: bytes) -> tuple[str | None, bytes | None]:
    """(text, None) of what is UTF-8, (None, bytes) of what is not."""
    try:
        return payload.decode(), None
    except UnicodeDecodeError:
        return None, payload


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument("payload contains a lone surrogate, which is no text; use payload_base64") from None


# Publish -------------------------------------------------------------------------------------------------


class PublishRequest(Struct, forbid_unknown_fields=True):
    """Messages to publish together: all or none, in their order."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    """At least one."""


class PublishedBody(Struct):
    """Where one message went: `index` is its place in the request."""

    index: int
    """The message's place in the request."""
    queue: str
    lane: int
    offset: int
    duplicate: bool
    """Known already by its dedup id; then `offset` is the first one's."""


class PartBody(Struct, omit_defaults=True):
    """A run of messages that went to one lane: `count` stored from `offset` on.

    `duplicates` maps a position in the run to the offset that its dedup id was first given; `indexes` are the
    places in the request, left out where the run is all of it.
    """

    queue: str
    lane: int
    offset: int
    count: int
    duplicates: dict[int, int] = {}
    indexes: list[int] | None = None


class PublishAnswer(Struct, omit_defaults=True):
    """Where messages went: message by message for a JSON request, in `parts` for an encoded batch."""

    count: int
    """Messages of the request."""
    results: list[PublishedBody] | None = None
    """One a message and queue that it reached."""
    parts: list[PartBody] | None = None
    """One a run of messages that went to one lane."""


class BufferedBody(Struct):
    """One message that is in the server's spool."""

    index: int
    """The message's place in the request."""
    status: Literal["buffered"] = "buffered"


class BufferedAnswer(Struct, omit_defaults=True):
    """The store is away: the messages are in the server's spool, durably, and published when the store is back."""

    count: int
    """Messages of the request."""
    status: Literal["buffered"]
    results: list[BufferedBody] | None = None
    """One a message, for a JSON request."""


# Claims and verdicts -------------------------------------------------------------------------------------


class ClaimRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a consumer asks for; see `Broker.claim`."""

    group: str = "default"
    """The work group; `default` is made when it is first wanted."""
    max: int = 1
    """1 to 100 000 messages."""
    min: int = 1
    """Wait until at least this many are ready, or `wait` is over."""
    wait: float = 0.0
    """Seconds, up to 3 600; 0 answers at once."""
    lease_seconds: float | None = None
    """Instead of the queue's `lease_ms`."""
    partition: str | None = None
    """Only of this partition (ordered groups)."""
    consumer: str | None = None
    """Who claims; without it, the connection's address."""
    ack: bool = False
    """Done as they are handed out: at most once, without a lease."""
    priority: int = 0
    """Of several claims that wait, those with a higher one are served first."""


class ClaimAnswer(Struct, kw_only=True):
    """Messages under one lease. Without a message in time there is no lease either."""

    queue: str
    lane: int
    lease: str | None
    """The token to settle and extend with; null without a message, and with `ack`."""
    deadline_ms: int
    """When the lease ends."""
    messages: list[ReceivedBody]


class EncodedSlice(Struct, array_like=True):
    """Consecutive messages as a batch of their own, at one attempt."""

    offset: int
    published_ms: int
    attempt: int
    count: int
    meta: bytes
    body: bytes


class EncodedClaim(Struct, array_like=True):
    """A claim's answer in `BATCHES_TYPE`."""

    queue: str
    lane: int
    lease: str | None
    deadline_ms: int
    slices: list[EncodedSlice]


class VerdictBody(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What becomes of messages of a lease: of `offsets`, of [start, end), or, with neither, of all that is left."""

    action: Literal["ack", "nack", "reject", "postpone", "release"]
    """Done; failed, again later; failed for good; again after `delay`, no attempt spent; back, as if never given."""
    offsets: list[int] | None = None
    """Some offsets of the lease."""
    start: int | None = None
    """With `end`: the offsets [start, end)."""
    end: int | None = None
    """With `start`."""
    delay: float | None = None
    """Seconds: nack (instead of the queue's backoff) and postpone."""
    error: str = ""
    """Why: nack and reject. Kept with the message when it dies."""


class SettleRequest(Struct, forbid_unknown_fields=True):
    """Any mix of verdicts, all or none."""

    verdicts: Annotated[list[VerdictBody], Meta(min_length=1)]
    """At least one; no message may be in two."""


class NextRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What becomes of a lease, and how much is asked for in its place; see `Broker.settle_and_claim`."""

    verdicts: list[VerdictBody] | None = None
    """As in settle; without them, all that is left of the lease is done."""
    max: int = 1
    """1 to 100 000 messages, of the same queue and group."""
    lease_seconds: float | None = None
    """Instead of the queue's `lease_ms`."""
    consumer: str | None = None
    """Who claims; without it, the connection's address."""


# Transactions --------------------------------------------------------------------------------------------


class LeaseVerdicts(Struct, forbid_unknown_fields=True):
    lease: str
    """The token that a claim gave."""
    verdicts: list[VerdictBody]
    """As to settle it alone. Without any the lease stays as it is: all is done only if it has not ended."""


class TargetMessages(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Messages for a queue, or for an exchange."""

    queue: str | None = None
    """Either a queue"""
    exchange: str | None = None
    """or an exchange."""
    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    """At least one."""


class TransactionRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Verdicts and publishes as one commit."""

    settle: list[LeaseVerdicts] = []
    """Verdicts by lease."""
    publish: list[TargetMessages] = []
    """Messages by target."""


# Streams -------------------------------------------------------------------------------------------------


class ReadRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    max: int = 100
    """1 to 100 000 messages."""
    wait: float = 0.0
    """Seconds, up to 3 600; 0 answers at once."""
    consumer: str | None = None
    """The consumer's name; without it, the connection's address."""
    turn: str | None = None
    """A name for this read alone."""
    lost: list[str] = []
    """The turns of reads of this consumer whose answers did not arrive, the last 16: what they were given comes again,
    and one of them that arrives only now is refused."""


class ReadAnswer(Struct, kw_only=True, omit_defaults=True):
    """Messages of one lane, and the offset at which the next read goes on."""

    queue: str
    lane: int
    next_offset: int
    """Where the next read goes on."""
    messages: list[ReceivedBody]
    primary_committed: int | None = None
    """Everything below is done for the queue's `primary_group`."""
    damaged: list[DamagedRange] = []
    """What was passed over before `next_offset` because it is damaged in the store."""


class EncodedRead(Struct, array_like=True):
    """A read's answer in `BATCHES_TYPE`; `done` has one flag a message where the queue has a primary group."""

    queue: str
    lane: int
    next_offset: int
    primary_committed: int | None
    slices: list[EncodedSlice]
    done: list[bool] | None = None
    damaged: list[DamagedRange] = []


# Marks and staging -----------------------------------------------------------------------------------------


class PutMarkRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A mark's new value."""

    value: Raw
    """Any JSON value, kept as it is written; up to 1 MiB."""
    expected_version: int | None = None
    """Only if the mark has this version now; 0: only if there is no such mark. Left out: whatever is there."""


class MarkBody(Struct, kw_only=True):
    """A mark as it stands."""

    name: str
    version: int
    """1 when it was made, one more with every change."""
    value: Raw
    updated_ms: int


class MarksAnswer(Struct, kw_only=True):
    marks: list[MarkBody]
    next: str | None
    """The `after` of the next page, null at the end."""


class MarkPutBody(PutMarkRequest, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A mark to be put in the same commit."""

    name: str


class CommitStagedRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What becomes of a transaction: these chunks are published in this order, and the marks are put."""

    chunks: list[str]
    """Names of staged chunks, in the order of publication; chunks not named are dropped. May be empty."""
    marks: list[MarkPutBody] = []
    """Marks that are put together with the publication, or not at all."""
    publish_id: str | None = None
    """Names the publication in its queues: chunks of the same names, published before under the same id within the
    queues' dedup windows (in whatever transaction), are not published again."""


# Sessions --------------------------------------------------------------------------------------------------


class SessionRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=SESSION_SECONDS_MIN, le=SESSION_SECONDS_MAX)] = 30.0
    """The session ends when no request has named it for so long."""


class SessionAnswer(Struct, frozen=True, kw_only=True):
    id: str
    """What requests name as `session`. Anyone who knows it may use the session: keep it secret."""
    consumer: str
    """The name under which the session claims, for everybody to see."""
    seconds: float


# Errors --------------------------------------------------------------------------------------------------


class ErrorBody(Struct):
    code: str
    """Stable; for programs."""
    message: str
    """What was wrong and what to do; for people."""
    detail: dict[str, Any]
    """More for programs, by code."""


class ErrorAnswer(Struct):
    """Every answer that is not a success."""

    error: ErrorBody


class Status(Struct):
    status: str


class ReadyStatus(Struct, omit_defaults=True):
    status: str
    damage: list[str] = []
    """What was found damaged in the store, until somebody has looked at it. The server works all the same."""
    alarms: list[str] = []
    """What the server is low on: publishes are held back, then refused; consumers are served."""


encode_json: Final = msgspec.json.Encoder().encode
encode_msgpack: Final = msgspec.msgpack.Encoder().encode
