"""Plain data: messages, configurations, limits. Knows nothing of lanes, stores, sockets or clocks.

Times are integers in milliseconds since the epoch (`…_ms`), spans integers in milliseconds. Words are those
of the design's section 1. A message's next stop is `batch/messages.py`, where it becomes a column of an encoded batch.
"""

from __future__ import annotations

import datetime as dt
import re
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock.errors import InvalidArgument, MessageTooLarge, UnknownOption

# Limits: each is tested at its value and one past it -----------------------------------------------------

NAME_CHARACTERS_MAX: Final = 255
PARTITION_CHARACTERS_MAX: Final = 1_024
ID_CHARACTERS_MAX: Final = 255
DESCRIPTION_CHARACTERS_MAX: Final = 1_024
PRIORITY_MAX: Final = 255
HEADERS_MAX: Final = 256
HEADERS_DEPTH_MAX: Final = 8
HEADERS_BYTES_MAX: Final = 64 * 1024
PAYLOAD_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_MESSAGES_MAX: Final = 100_000
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
SPAN_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
TIME_MS_MAX: Final = 253_402_300_799_999  # the last millisecond of year 9999
INTEGER_MAX: Final = 2**63 - 1
LANES_MAX: Final = 1_024
ATTEMPTS_MAX: Final = 65_535

DEFAULT_GROUP: Final = "default"
DEFAULT_NAMESPACE: Final = "default"
EVENTS_QUEUE: Final = "$events"
EVENTS_PATTERN: Final = "$events-*"
"""With several servers, those that do not own `$events` have an events queue of their own, which this matches."""

# A header is one of these: None, bool, int, float, str, bytes, datetime, or a list or dict of them.
Headers = dict[str, Any]

GroupKind = Literal["work", "stream"]
Overflow = Literal["reject", "drop_oldest", "dead_letter_oldest"]
Expired = Literal["drop", "dead"]
ExchangeKind = Literal["direct", "topic", "fanout", "headers", "filter", "mqtt"]
Start = Literal["beginning", "now"] | int


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a producer publishes: payload bytes and metadata. An absent field costs nothing to store.

    `delay_ms` counts from the moment of publishing, `not_before_ms` is a point in time; the later one holds.
    `ttl_ms` counts from publishing; a message is never delivered after it. `dedup_id` names the message inside
    its partition: publishing it again within the queue's dedup window changes nothing.
    """

    payload: bytes = b""
    partition: str | None = None
    key: str | None = None
    headers: Headers | None = None
    priority: int = 0
    delay_ms: int = 0
    not_before_ms: int = 0
    ttl_ms: int | None = None
    dedup_id: str | None = None
    content_type: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None

    def size(self) -> int:
        """Bytes of the payload: what `max_bytes` and the size limits count first."""
        return len(self.payload)


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
    """Each further pause is so many times as long."""
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
    """One more than the limits: refuse the publish, drop the oldest, or make the oldest dead."""
    max_message_bytes: int = PAYLOAD_BYTES_MAX
    """Bytes that the payload of one message may have."""
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
    """Gone when the broker starts anew. Among several nodes it stays until it is deleted."""
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


# Checks: one message text each, naming the value and the limit -------------------------------------------

_Config = TypeVar("_Config", QueueConfig, GroupConfig, ExchangeConfig)


def is_events_queue(name: str) -> bool:
    """Whether a queue's messages are delivery events."""
    return name == EVENTS_QUEUE or name.startswith(EVENTS_PATTERN.removesuffix("*"))


_NOT_IN_NAMES: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def check_name(name: object, what: str) -> str:
    """A name of 1 to 255 characters: any but control characters and lone surrogates."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{what} must be a string, not {name!r} of type {type(name).__name__}")
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX:
        raise InvalidArgument(f"{what} has {len(name)} characters; it needs 1 to {NAME_CHARACTERS_MAX}: {name[:40]!r}")
    if _NOT_IN_NAMES.search(name):
        raise InvalidArgument(f"{what} {name!r} contains a control character or a lone surrogate")
    return name


def check_integer(value: object, what: str, low: int, high: int) -> int:
    """A whole number in [low, high]; bool is not a number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(f"{what} must be a whole number, not {value!r} of type {type(value).__name__}")
    if not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}; it must be {low} to {high}")
    return value


def check_text(value: object, what: str, most: int) -> None:
    """None, or a string of at most `most` characters that can be encoded as UTF-8."""
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {value!r} of type {type(value).__name__}")
    if len(value) > most:
        raise InvalidArgument(f"{what} has {len(value)} characters; the limit is {most}: {value[:40]!r}…")
    if not value.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise InvalidArgument(f"{what} {value[:40]!r} contains a lone surrogate")


_TEXTS: Final = (
    ("partition", PARTITION_CHARACTERS_MAX),
    ("key", NAME_CHARACTERS_MAX),
    ("dedup_id", ID_CHARACTERS_MAX),
    ("content_type", ID_CHARACTERS_MAX),
    ("correlation_id", ID_CHARACTERS_MAX),
    ("trace_id", ID_CHARACTERS_MAX),
)
_NUMBERS: Final = (("priority", PRIORITY_MAX), ("delay_ms", SPAN_MS_MAX), ("not_before_ms", TIME_MS_MAX))


def check_message(message: object, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Raise unless every field of a message has its type and is within its limit."""
    if not isinstance(message, Message):
        raise InvalidArgument(f"a message must be a penstock.Message, not {message!r} of type {type(message).__name__}")
    if type(message.payload) is not bytes:
        kind = type(message.payload).__name__
        raise InvalidArgument(f"payload must be bytes, not {kind}; encode text with .encode()")
    if len(message.payload) > payload_bytes_max:
        raise MessageTooLarge(f"payload has {len(message.payload)} bytes; the limit is {payload_bytes_max}")
    for name, most in _TEXTS:
        value = getattr(message, name)
        if value is not None:
            check_text(value, name, most)
    for name, most in _NUMBERS:
        value = getattr(message, name)
        if value != 0 or type(value) is not int:
            check_integer(value, name, 0, most)
    if message.ttl_ms is not None:
        check_integer(message.ttl_ms, "ttl_ms", 0, SPAN_MS_MAX)
    if message.headers is not None:
        check_headers(message.headers)


def check_headers(headers: object) -> None:
    """A dict of at most 256 named, typed values, 64 KiB and eight levels deep at the most."""
    if not isinstance(headers, dict):
        raise InvalidArgument(f"headers must be a dict, not {type(headers).__name__}")
    if len(headers) > HEADERS_MAX:
        raise InvalidArgument(f"a message has {len(headers)} headers; the limit is {HEADERS_MAX}")
    size = 0
    for key, value in headers.items():
        size += (len(value) or 1) if type(value) is bytes else _header_size(value, key, 1)
        is_plain = type(key) is str and key.isascii() and len(key) <= NAME_CHARACTERS_MAX
        size += len(key) if is_plain else _key_size(key)
    if size > HEADERS_BYTES_MAX:
        raise MessageTooLarge(f"headers have about {size} bytes; the limit is {HEADERS_BYTES_MAX}")


def _key_size(key: object) -> int:
    check_text(key if key is not None else 0, "a header's name", NAME_CHARACTERS_MAX)
    return len(str(key))


def _header_size(value: object, name: object, depth: int) -> int:
    if depth > HEADERS_DEPTH_MAX:
        raise InvalidArgument(f"header {name!r} is nested deeper than {HEADERS_DEPTH_MAX} levels")
    if value is None or isinstance(value, bool):
        return 1
    if isinstance(value, int):
        check_integer(value, f"header {name!r}", -INTEGER_MAX - 1, INTEGER_MAX)
        return 9
    if isinstance(value, float):
        return 9
    if isinstance(value, dt.datetime):
        _check_datetime(value, name)
        return 13
    if isinstance(value, bytes):
        return len(value) or 1
    if isinstance(value, str):
        check_text(value, f"header {name!r}", HEADERS_BYTES_MAX)
        return len(value) or 1
    if isinstance(value, list):
        return 5 + sum(_header_size(item, name, depth + 1) for item in value)
    if isinstance(value, dict):
        return 5 + sum(_header_size(item, name, depth + 1) + _key_size(key) for key, item in value.items())
    raise InvalidArgument(
        f"header {name!r} has a value of type {type(value).__name__}; headers take None, bool, int, float, "
        "str, bytes, datetime, list and dict"
    )


def _check_datetime(value: dt.datetime, name: object) -> None:
    if value.tzinfo is None:
        raise InvalidArgument(f"header {name!r} is a datetime without a time zone: {value!r}")
    try:
        value.astimezone(dt.UTC)
    except OverflowError:
        raise InvalidArgument(f"header {name!r} is outside the years 1 to 9999 in UTC: {value!r}") from None


_SPANS: Final = ("lease_ms", "backoff_ms", "backoff_max_ms", "delay_ms", "debounce_ms", "ttl_ms", "dedup_window_ms",
                 "keep_done_ms", "retain_ms", "unused_ms")  # fmt: skip
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
    plain = type(config)()
    values = ((name, getattr(config, name)) for name in config.__struct_fields__)
    return {name: value for name, value in values if value != getattr(plain, name)}


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
    _check_number(config.backoff_factor, "backoff_factor", 1.0, 1_000.0)
    _check_number(config.backoff_jitter, "backoff_jitter", 0.0, 1.0)
    _check_number(config.rate, "rate", 0.001, 1e9)
    if config.dead_letter_to is not None:
        dead_letter_target(config.dead_letter_to)
    if isinstance(config, QueueConfig):
        check_text(config.description, "description", DESCRIPTION_CHARACTERS_MAX)
        check_integer(config.lanes, "lanes", 1, LANES_MAX)
        check_integer(config.priority_max, "priority_max", 1, PRIORITY_MAX)
        check_integer(config.max_message_bytes, "max_message_bytes", 0, PAYLOAD_BYTES_MAX)
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


def _check_number(value: float | None, what: str, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidArgument(f"{what} is {value}; it must be {low} to {high}")
