"""Arguments of operations as bodies and queries carry them: what the rows of `endpoints.py` take.

A field stands for the argument of its name, unless the class says otherwise. No socket, no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from msgspec import Struct
from msgspec.structs import asdict

from penstock.api.arguments import span_of
from penstock.model.errors import InvalidArgument
from penstock.model.typed_headers import json_headers, plain_headers
from penstock.wire.http.shapes import MessageBody, message_body


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Arguments by name."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        return cls(**given)

    def arguments(self) -> dict[str, Any]:
        """The arguments as the broker takes them."""
        return asdict(self)


def number(text: str, what: str) -> int:
    """A whole number in a path or query."""
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidArgument(f"{what} is {text[:40]!r}; it must be a whole number")
    return int(text)


def _both(first: int | None, second: int | None, what: str) -> tuple[int, int] | None:
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise InvalidArgument(f"{what} go together")
    return first, second


# Leases, streams and groups ------------------------------------------------------------------------------


class ExtendRequest(Arguments):
    """Keep a lease for another span from now."""

    seconds: float | None = None
    """From now on; without it, as long as the queue's leases last."""


class CommitRequest(Arguments, kw_only=True):
    offset: int
    """The first that is not processed."""
    lane: int | None = None
    """Needed where the queue has several."""
    only_forward: bool = False
    """Change nothing where the group has come further than that."""


class SeekRequest(Arguments):
    """One of to, offset and time_ms."""

    to: Literal["first", "last"] | None = None
    """The beginning or the end."""
    offset: int | None = None
    """An offset of a lane."""
    time_ms: int | None = None
    """The first message published at this time or later."""
    lane: int | None = None
    """All lanes without it; needed with `offset` where the queue has several."""


class ConsumerRequest(Arguments, kw_only=True):
    consumer: str
    """The name it claims or reads with."""


class AttachRequest(ConsumerRequest):
    exclusive: bool = False
    """It is to be the queue's only one."""


class DetachRequest(ConsumerRequest):
    keep: bool = False
    """It takes no more, and may still settle what it holds."""


# Inspection and scans ------------------------------------------------------------------------------------


class BrowseQuery(Arguments):
    group: str | None = None
    """The group whose view `state` is; `default` without it."""
    lane: int | None = None
    """Begin at this lane; 0 is the first."""
    offset: int | None = None
    """Begin at this offset of the lane."""
    time_ms: int | None = None
    """Begin at what was published at this time or later."""
    partition: str | None = None
    """Only of this partition."""
    state: Literal["ready", "leased", "waiting", "dead", "done"] | None = None
    """Only what the group makes this of."""
    filter: str | None = None
    """A condition on metadata, as for groups."""
    max: int = 100
    """Messages of a page, 1 to 100 000."""
    after: str | None = None
    """A page's `next`."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        after = given["after"]
        if after is None:
            return cls(**given)
        if not isinstance(after, tuple | list) or len(after) != 2:
            raise InvalidArgument(f"after is {after!r}; it must be a page's next: (lane, offset)")
        return cls(**{**given, "after": f"{after[0]}:{after[1]}"})

    def arguments(self) -> dict[str, Any]:
        return asdict(self) | {"after": None if self.after is None else place_of(self.after)}


def place_of(text: str) -> tuple[int, int]:
    """The (lane, offset) of a page's `next`."""
    lane, colon, offset = text.partition(":")
    if not colon:
        raise InvalidArgument(f"after is {text[:40]!r}; it must be a page's next")
    return number(lane, "after's lane"), number(offset, "after's offset")


class LanesQuery(Arguments):
    time_ms: int | None = None
    """Also give each lane's first offset published at this time or later."""


class ExtentQuery(Arguments, kw_only=True):
    start: int
    """The offset that a read would begin at."""
    max_rows: int | None = None
    """Messages that it may have at most."""
    max_bytes: int | None = None
    """Bytes of whole batches that it may have; one batch is always within it."""


# Dead letters --------------------------------------------------------------------------------------------


class DeadConditions(Arguments):
    """Which dead letters: all conditions that are given hold."""

    reason: str | None = None
    """attempts, rejected, expired, …"""
    error: str | None = None
    """Text that the error contains."""
    filter: str | None = None
    """A [condition](filters.md) on metadata."""
    lane: int | None = None
    """Only this lane; offsets are those of every lane else."""
    until_ms: int | None = None
    """Only what died then or before, in milliseconds since the epoch."""


class DeadChoice(DeadConditions):
    """Which dead letters: all conditions that are given hold."""

    offsets: tuple[int, int] | None = None
    """[start, end)"""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        offsets = given.get("offsets")
        return cls(**{**given, "offsets": None if offsets is None else span_of(offsets)})


class DeadQuery(DeadConditions):
    max: int = 100
    """1 to 100 000 dead letters."""
    start: int | None = None
    """With end: offsets [start, end)."""
    end: int | None = None
    """With start: offsets [start, end)."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        conditions = dict(given)
        offsets = conditions.pop("offsets", None)
        start, end = (None, None) if offsets is None else span_of(offsets)
        return cls(**conditions, start=start, end=end)

    def arguments(self) -> dict[str, Any]:
        conditions = asdict(self)
        return conditions | {"offsets": _both(conditions.pop("start"), conditions.pop("end"), "start and end")}


class RangesQuery(Arguments):
    lane: int | None = None
    """With offset: what a page's `next` said."""
    offset: int | None = None
    """With lane: what a page's `next` said."""
    max: int = 10_000
    """1 to 100 000 ranges."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        lane, offset = given["after"] or (None, None)
        return cls(lane=lane, offset=offset, max=given["max"])

    def arguments(self) -> dict[str, Any]:
        return {"after": _both(self.lane, self.offset, "lane and offset"), "max": self.max}


# Bindings and schedules ----------------------------------------------------------------------------------


class BindingBody(Arguments, kw_only=True):
    """From an exchange to a queue or another exchange."""

    target: str
    """The queue's or exchange's name."""
    target_kind: Literal["queue", "exchange"] = "queue"
    """What `target` names."""
    pattern: str = ""
    """The key (direct), the pattern (topic, mqtt) or the condition (filter)."""
    headers: dict[str, Any] | None = None
    """What a headers exchange compares."""
    match: Literal["all", "any"] = "all"
    """All of the headers, or any."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        headers = given.get("headers")
        return cls(**{**given, "headers": None if headers is None else json_headers(headers)})

    def arguments(self) -> dict[str, Any]:
        return asdict(self) | {"headers": None if self.headers is None else plain_headers(self.headers)}


class ScheduleRequest(Arguments, kw_only=True):
    """Publish a message again and again: at the times of a cron expression, or at an interval."""

    queue: str | None = None
    """Where to publish: a queue"""
    exchange: str | None = None
    """or an exchange."""
    cron: str | None = None
    """Five fields, or six with seconds first."""
    interval_ms: int | None = None
    """Or an interval in milliseconds, 100 at least."""
    timezone: str = "UTC"
    """What `cron` is read in."""
    message: MessageBody
    """What is published at each tick."""
    paused: bool = False
    """Fire nothing for now."""
    description: str = ""
    """For people."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        return cls(**{**given, "message": message_body(given["message"])})

    def arguments(self) -> dict[str, Any]:
        return asdict(self) | {"message": self.message.message()}


# Traces and enqueued messages ----------------------------------------------------------------------------


class TraceQuery(Arguments):
    max: int = 1_000
    """Entries, the oldest first."""


class TraceEventRequest(Arguments, kw_only=True):
    """A named event for a trace's timeline, of a message where one is given."""

    name: str
    """What happened."""
    detail: str = ""
    """More about it, as text."""
    queue: str | None = None
    """With `offset`: the message it is about."""
    lane: int | None = None
    """Needed where the queue has several."""
    offset: int | None = None
    """With `queue`."""
    consumer: str | None = None
    """Who notes it; without it, the connection's address."""

    def arguments(self) -> dict[str, Any]:
        return asdict(self) | {"consumer": self.consumer or None}


class FailedQuery(Arguments):
    after: int = 0
    """A page's `next`."""
    max: int = 100
    """1 to 10 000 messages."""


class EnqueuedChoice(Arguments):
    """Which of the enqueued messages that cannot be published."""

    ids: list[int] | None = None
    """Of their rows; all of the namespace unless given."""

    @classmethod
    def from_arguments(cls, given: Mapping[str, Any]) -> Self:
        ids = given["ids"]
        return cls(ids=None if ids is None else list(ids))
