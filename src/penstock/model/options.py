"""Options of queues, groups and exchanges: their types, defaults and limits, and bindings between them."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock.model.checks import check_integer, check_number, check_text
from penstock.model.errors import InvalidArgument, UnknownOption
from penstock.model.limits import (
    ATTEMPTS_MAX,
    DESCRIPTION_CHARACTERS_MAX,
    INTEGER_MAX,
    LANES_MAX,
    NAME_CHARACTERS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
)
from penstock.model.message import Headers
from penstock.model.names import check_name

GroupKind = Literal["work", "stream"]
Overflow = Literal["reject", "drop_oldest", "dead_letter_oldest"]
Expired = Literal["drop", "dead"]
ExchangeKind = Literal["direct", "topic", "fanout", "headers", "filter", "mqtt"]
Start = Literal["beginning", "now"] | int


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A queue's options. Those of a group that names none of its own are taken from here."""

    # shape
    lanes: int = 1
    """Ordered logs the queue is split into; a partition stays in one lane. More lanes, more owners."""
    ordered: bool = False
    """Deliver the messages of one partition strictly one lease after the other."""
    prioritized: bool = False
    """Deliver higher `priority` first (FIFO inside one). Off, priority is only metadata."""
    priority_max: int = PRIORITY_MAX
    """Higher priorities count as this one (prioritized queues only)."""
    stream: bool = False
    """Keep the log whatever work groups have done with it, within the `retain_…` limits. AMQP and MQTT consumers read
    such a queue as a stream."""
    ephemeral: bool = False
    """Memory only: faster, and gone when the node stops."""
    exclusive: bool = False
    """Read only by the session that declared it, and deleted with that session; anybody may publish to it."""
    auto_delete: bool = False
    """Deleted when its last attached consumer leaves."""
    unused_ms: int | None = None
    """Deleted after this span without a consumer, a claim or a declaration."""
    description: str = ""
    """For people; Penstock does not read it."""

    # delivery
    lease_ms: int = 30_000
    """How long a claimed message stays with its consumer before it is handed to the next."""
    max_attempts: int = 5
    """Hand-outs before a message is dead; 0 = no limit."""
    backoff_ms: int = 1_000
    """Pause after the first failed attempt; 0 = again at once."""
    backoff_factor: float = 2.0
    """The factor by which each further pause grows."""
    backoff_max_ms: int = 300_000
    """No pause is longer than this."""
    backoff_jitter: float = 0.2
    """Share of each backoff that is random, so that failures do not come back all at once."""
    delay_ms: int = 0
    """Added to every message's own delay."""
    debounce_ms: int = 0
    """Withhold a partition until it received nothing for this span (ordered queues only)."""
    single_active_consumer: bool = False
    """Only one consumer at a time receives; the next takes over when it leaves or falls silent."""
    max_in_flight: int | None = None
    """Messages leased at once, per group and lane."""
    rate: float | None = None
    """Messages handed out per second, per group and lane."""
    dead_letter_to: str | None = None
    """`queue:NAME` or `exchange:NAME` or `exchange:NAME/KEY`: dead messages are also copied there. `exchange:` is the
    default exchange: the queue that a message's own key names."""
    dead_kept: bool = True
    """Dead messages stay in place until redriven or purged. Off, they are gone: with `dead_letter_to`, once copied."""
    paused: bool = False
    """Hand out nothing; what is leased can still be settled."""

    # limits and lifetime
    ttl_ms: int | None = None
    """Messages are not delivered later than this after publishing; their own `ttl_ms` may end earlier."""
    expired: Expired = "drop"
    """What becomes of messages past their ttl: gone, or dead with the reason `expired`."""
    max_length: int | None = None
    """Messages a group may have waiting for delivery, per lane (those leased do not count)."""
    max_bytes: int | None = None
    """Bytes from the oldest batch that a work group is not done with to the newest, per lane."""
    overflow: Overflow = "reject"
    """When a publish would exceed the limits: refuse it, drop the oldest, or make the oldest dead."""
    max_message_bytes: int | None = None
    """Bytes that the payload of one message may have, within the server's `limits.message_bytes`."""
    dedup_window_ms: int = 3_600_000
    """How long a `dedup_id` is remembered; 0 = not at all."""
    keep_done_ms: int = 0
    """Keep batches this long after every group is done with them."""
    retain_ms: int | None = None
    """Keep the log this long for readers, done or not. What a work group still needs is kept anyway."""
    retain_bytes: int | None = None
    """Keep this much of the log, per lane. With several `retain_…` options, the first that is exceeded counts."""
    retain_messages: int | None = None
    """Keep this many messages of the log, per lane."""
    primary_group: str | None = None
    """The work group whose progress is marked on stream reads."""


class GroupConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A consumer group's options; None means the queue's value."""

    kind: GroupKind = "work"
    """`work`: lease and ack. `stream`: read and commit."""
    start: Start = "beginning"
    """Where a new group begins: `beginning`, `now`, or a time in milliseconds since the epoch."""
    filter: str | None = None
    """A condition on metadata; messages that do not match are done for this group."""
    ordered: bool | None = None
    prioritized: bool | None = None
    lease_ms: int | None = None
    max_attempts: int | None = None
    backoff_ms: int | None = None
    backoff_factor: float | None = None
    backoff_max_ms: int | None = None
    backoff_jitter: float | None = None
    single_active_consumer: bool | None = None
    max_in_flight: int | None = None
    rate: float | None = None
    dead_letter_to: str | None = None
    dead_kept: bool | None = None
    expired: Expired | None = None
    auto_commit: bool = True
    """Stream groups: the next read of a consumer commits what it read before."""
    holds: bool = False
    """Stream groups: retention keeps everything from what this group has committed on, whatever the queue's limits."""
    paused: bool = False
    """Hand out nothing to this group."""


class ExchangeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An exchange's options."""

    kind: ExchangeKind = "direct"
    """What its bindings look at: see [routing](routing.md)."""
    alternate: str | None = None
    """The exchange that takes what no binding of this one matched."""
    internal: bool = False
    """Reached only through other exchanges."""
    auto_delete: bool = False
    """Deleted when the last of its bindings goes."""
    ephemeral: bool = False
    """Gone when the broker restarts. Among several nodes it stays until it is deleted."""
    description: str = ""
    """For people; Penstock does not read it."""


class Binding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """From an exchange to a queue or another exchange.

    `pattern` is the key (direct), the topic or MQTT pattern, or the filter condition; `headers` with `match`
    are the headers exchange's arguments. Fanout uses neither.
    """

    exchange: str
    target: str
    target_kind: Literal["queue", "exchange"] = "queue"
    pattern: str = ""
    headers: Headers | None = None
    match: Literal["all", "any"] = "all"


FIXED_QUEUE_OPTIONS: Final = (
    "lanes",
    "ordered",
    "prioritized",
    "priority_max",
    "stream",
    "ephemeral",
    "exclusive",
    "debounce_ms",
)
FIXED_GROUP_OPTIONS: Final = ("kind", "start", "ordered", "prioritized")
"""Options that cannot change once something is declared; of an exchange, none can."""
_Config = TypeVar("_Config", QueueConfig, GroupConfig, ExchangeConfig)
_SPANS: Final = tuple(name for name in QueueConfig.__struct_fields__ if name.endswith("_ms"))
_SIZES: Final = ("max_length", "max_bytes", "max_in_flight", "retain_bytes", "retain_messages")


def make_config(kind: type[_Config], options: dict[str, Any], base: _Config | None = None) -> _Config:
    """A configuration from options (over `base` where given), or an error that names the option and the value."""
    known = kind.__struct_fields__
    for name in options:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownOption(f"unknown option {name!r}; {hint}{kind.__name__} has {', '.join(known)}")
    merged = ({} if base is None else msgspec.to_builtins(base)) | options
    try:
        config = msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{kind.__name__}: {error}") from None
    check_config(config)
    return config


def options_of(config: QueueConfig | GroupConfig | ExchangeConfig) -> dict[str, Any]:
    """The options that differ from the defaults."""
    plain = _plain(type(config))
    return {
        name: value
        for name, value in zip(config.__struct_fields__, msgspec.structs.astuple(config), strict=True)
        if value != plain[name]
    }


@cache
def _plain(kind: type[QueueConfig | GroupConfig | ExchangeConfig]) -> dict[str, Any]:
    return msgspec.structs.asdict(kind())


def check_config(config: QueueConfig | GroupConfig | ExchangeConfig) -> None:
    """Raise unless every option is within its limits and none contradicts another."""
    if isinstance(config, ExchangeConfig):
        check_text(config.description, "description", DESCRIPTION_CHARACTERS_MAX)
        if config.alternate is not None:
            check_name(config.alternate, "alternate")
        return
    for name in (*_SPANS, *_SIZES):
        value = getattr(config, name, None)
        if value is not None:
            low = 1 if name in ("lease_ms", "max_in_flight", "unused_ms") else 0
            check_integer(value, name, low, SPAN_MS_MAX if name in _SPANS else INTEGER_MAX)
    if config.max_attempts is not None:
        check_integer(config.max_attempts, "max_attempts", 0, ATTEMPTS_MAX)
    check_number(config.backoff_factor, "backoff_factor", 1.0, 1_000.0)
    check_number(config.backoff_jitter, "backoff_jitter", 0.0, 1.0)
    check_number(config.rate, "rate", 0.001, 1e9)
    if config.dead_letter_to is not None:
        dead_letter_target(config.dead_letter_to)
    if isinstance(config, QueueConfig):
        check_text(config.description, "description", DESCRIPTION_CHARACTERS_MAX)
        check_integer(config.lanes, "lanes", 1, LANES_MAX)
        check_integer(config.priority_max, "priority_max", 1, PRIORITY_MAX)
        check_integer(config.max_message_bytes or 0, "max_message_bytes", 0, PAYLOAD_BYTES_MAX)
        if config.primary_group is not None:
            check_name(config.primary_group, "primary_group")
        if config.debounce_ms and not config.ordered:
            raise InvalidArgument(f"debounce_ms is {config.debounce_ms}, but only an ordered queue can debounce")
    else:
        if isinstance(config.start, int):
            check_integer(config.start, "start", 0, TIME_MS_MAX)
        if config.holds and config.kind != "stream":
            raise InvalidArgument("holds is for stream groups; a work group always keeps what it is not done with")


def dead_letter_target(text: str) -> tuple[str, str, str | None]:
    """`queue:NAME`, `exchange:NAME` or `exchange:NAME/KEY` as (kind, name, key)."""
    kind, separator, name = text.partition(":")
    if kind == "queue" and separator and not name.startswith("$"):
        return kind, check_name(name, "dead_letter_to's queue"), None
    if kind == "exchange" and separator:
        name, slash, key = name.partition("/")
        check_text(key, "dead_letter_to's key", NAME_CHARACTERS_MAX)
        if name:  # without one it is the default exchange, which leads to the queue that the key names
            check_name(name, "dead_letter_to's exchange")
        return kind, name, key if slash else None
    raise InvalidArgument(
        f"dead_letter_to is {text!r}; it must be queue:NAME (not the system's $…), exchange:NAME or exchange:NAME/KEY"
    )
