"""Every option of the server, by section: its type, default, limits, and what it does in words.

docs/configuration.md, `penstock config --example` and the checks of values all come from here; nothing here knows
where values come from, or who uses them.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from penstock.model import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX

KIB: Final = 1024
MIB: Final = 1024 * KIB
SECONDS_MAX: Final = 24 * 3600.0

Bytes = Annotated[int, Meta(ge=KIB, le=4096 * MIB)]
Count = Annotated[int, Meta(ge=1, le=100_000_000)]
Seconds = Annotated[float, Meta(ge=0.1, le=SECONDS_MAX)]


class StoreSection(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages are kept."""

    path: str = "data/penstock.db"
    """The SQLite file, relative to the folder that the server is started in; made, with its folder, where missing. Or
    `postgresql://user:password@host/database?schema=penstock`, or `mysql://user:password@host/database`."""


class NodeSection(msgspec.Struct, frozen=True, kw_only=True):
    """The broker in the server."""

    cache_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 64 * MIB
    """Memory for batches that consumers who keep up are served from."""
    events: bool = True
    """Keep the `$events` stream: what happened to each delivery. Histories and traces are read from it."""
    enqueue_poll: Seconds = 1.0
    """Seconds between looks for messages that applications have enqueued in the database, where it does not tell."""


class SpoolSection(msgspec.Struct, frozen=True, kw_only=True):
    """Publishes while the store is away: see [the spool](spool.md)."""

    enabled: Literal["auto", "yes", "no"] = "auto"
    """Buffer publishes on the local disk while the store is away. `auto`: where the store is a database server."""
    folder: str = "data/spool"
    """Where they are kept, relative to the folder that the server is started in; in it, each server has a folder by the
    number of its port."""
    bytes: Annotated[int, Meta(ge=MIB, le=1 << 50)] = 1024 * MIB
    """How much is kept there; one more publish is answered 503 until the store is back."""


class HttpSection(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP API."""

    host: str = "127.0.0.1"
    """The address to listen on. One that others can reach needs a `token`, or `insecure`."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 7333
    """The port to listen on; 0 takes a free one, which the server prints."""
    token: str = ""
    """What every request must bring as `Authorization: Bearer …`; empty: nothing is asked for. A secret."""
    insecure: bool = False
    """Listen where others can reach the server although it asks for no token."""
    max_body_bytes: Bytes = 64 * MIB + MIB
    """The largest body of a request: the largest payload and what is around it."""
    max_header_bytes: Bytes = 32 * KIB
    """The largest head of a request: its first line and all headers."""
    max_connections: Count = 20_000
    """Connections at once; one more is answered 503 and closed."""
    max_long_polls: Count = 20_000
    """Claims and reads that wait at once; one more is answered 429."""
    max_sessions: Count = 10_000
    """Sessions of clients at once; one more is answered 429."""
    idle_seconds: Seconds = 75.0
    """How long a connection may stay open between requests."""
    request_seconds: Seconds = 30.0
    """How long a client may take to send one whole request."""
    stop_seconds: Seconds = 10.0
    """How long answers under way may take after the server was told to stop."""


class AmqpSection(msgspec.Struct, frozen=True, kw_only=True):
    """AMQP 0.9.1, as RabbitMQ's clients speak it. Where `http.token` is set, clients send it as their password."""

    enabled: bool = True
    """Listen for AMQP."""
    host: str = "127.0.0.1"
    """The address to listen on. One that others can reach needs `http.token`, or `http.insecure`."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 5672
    """The port to listen on; 0 takes a free one, which the server prints."""
    max_connections: Count = 20_000
    """Connections at once; one more is closed."""
    max_channels: Annotated[int, Meta(ge=1, le=65_535)] = 2_047
    """Channels that one connection may open."""
    max_frame_bytes: Annotated[int, Meta(ge=8 * KIB, le=16 * MIB)] = 128 * KIB
    """The largest frame; clients may agree on less. A message's properties must fit into one."""
    max_message_bytes: Annotated[int, Meta(ge=KIB, le=16 * MIB)] = 16 * MIB
    """The largest message; a larger one closes its channel."""
    max_pending_bytes: Bytes = 16 * MIB
    """What one connection may have published and not stored yet; past that it is not read from until some is."""
    heartbeat_seconds: Annotated[int, Meta(ge=0, le=65_535)] = 60
    """The heartbeat proposed to clients, whose answer holds; 0 proposes none."""
    handshake_seconds: Seconds = 10.0
    """How long a client may take to log in."""
    stop_seconds: Seconds = 10.0
    """How long answers under way, and clients' goodbyes, may take after the server was told to stop."""


class MqttSection(msgspec.Struct, frozen=True, kw_only=True):
    """MQTT 3.1.1 and 5. Where `http.token` is set, clients send it as their password."""

    enabled: bool = True
    """Listen for MQTT."""
    host: str = "127.0.0.1"
    """The address to listen on. One that others can reach needs `http.token`, or `http.insecure`."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 1883
    """The port to listen on; 0 takes a free one, which the server prints."""
    websocket: bool = True
    """Listen for MQTT over WebSocket too, at the path `/mqtt`."""
    websocket_port: Annotated[int, Meta(ge=0, le=65_535)] = 8083
    """The port for WebSockets; 0 takes a free one, which the server prints."""
    namespace: str = "default"
    """Whose queues and exchanges MQTT clients see."""
    max_connections: Count = 20_000
    """Connections at once; one more is told that the server is busy."""
    max_packet_bytes: Annotated[int, Meta(ge=KIB, le=256 * MIB)] = 17 * MIB
    """The largest packet of a client: the largest payload and what is around it."""
    connect_seconds: Seconds = 10.0
    """How long a client may take from the connection to its CONNECT."""
    receive_maximum: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Publishes of QoS 1 and 2 that a version 5 client may have unanswered."""
    topic_alias_maximum: Annotated[int, Meta(ge=0, le=65_535)] = 64
    """Topic aliases that a client may set, and at most as many the server sets."""
    max_in_flight: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Deliveries of QoS 1 and 2 that one client may have unanswered; its own receive maximum may be lower."""
    max_unsettled: Count = 1_000
    """Messages of one subscription to `$queue/…` that may be unsettled."""
    max_subscriptions: Count = 10_000
    """Filters that one session may subscribe to."""
    max_queued: Count = 100_000
    """Messages that wait for one session; with one more, the oldest goes."""
    max_queued_bytes: Annotated[int, Meta(ge=KIB, le=1 << 40)] = 256 * MIB
    """Bytes that wait for one session; with more, the oldest go."""
    max_session_expiry_seconds: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)] = 0xFFFFFFFF
    """The longest that a session outlives its connection; 4294967295 means no limit."""
    max_keep_alive_seconds: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """The longest keep-alive of version 5 clients; a longer one, or none, is replaced by it. 0: any is fine."""
    max_retained: Count = 1_000_000
    """Retained messages; one more is refused."""
    max_retained_bytes: Annotated[int, Meta(ge=KIB, le=1 << 40)] = 256 * MIB
    """Bytes of retained messages, which are kept in memory; more are refused."""
    declare_queues: bool = True
    """Declare the queue of `$queue/<name>/…` where a client publishes or subscribes to one that does not exist."""
    stop_seconds: Seconds = 5.0
    """How long what clients have sent may take after the server was told to stop."""


class ClusterSection(msgspec.Struct, frozen=True, kw_only=True):
    """Several servers on one database. A single server on a file has no use for any of this."""

    nodes: Annotated[int, Meta(ge=1, le=64)] = 1
    """Servers that `penstock serve` starts on this machine: the first on `http.port`, others on the ports after it."""
    advertise: str = ""
    """The URL at which other servers reach this one; empty: http:// with its `http.host` and port."""
    heartbeat_ms: Annotated[int, Meta(ge=50, le=60_000)] = 500
    """How often a server says that it is there."""
    lease_ms: Annotated[int, Meta(ge=200, le=600_000)] = 2_000
    """Without a word for so long a server counts as gone, and others take its queues over."""


class LimitsSection(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be declared, published and scanned at once."""

    queues: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    """Queues of all namespaces together."""
    schedules: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    """Schedules of all namespaces together."""
    batch_messages: Annotated[int, Meta(ge=1, le=BATCH_MESSAGES_MAX)] = BATCH_MESSAGES_MAX
    """Messages of one publish or transaction."""
    batch_bytes: Annotated[int, Meta(ge=1, le=BATCH_BYTES_MAX)] = BATCH_BYTES_MAX
    """Bytes of one publish or transaction, as stored, in all queues that it reaches."""
    scans: Annotated[int, Meta(ge=1, le=1_000)] = 2
    """Scans (what Spark reads with) that read at the same time; others wait, and are answered 429 after 10 seconds."""
    scan_bytes_per_second: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """What all scans together may read in a second; 0: as much as leaves others half of the server's time."""
    staging_bytes: Annotated[int, Meta(ge=MIB, le=1 << 50)] = 4 * 1024 * MIB
    """Bytes of all chunks together that are staged and not committed; one more chunk is answered 429 until some go."""
    staging_ttl: Annotated[float, Meta(ge=1.0, le=30 * SECONDS_MAX)] = SECONDS_MAX
    """Seconds after its last chunk in which a staged transaction must be committed; then its chunks are dropped."""


class LogSection(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says about itself, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important lines that are written."""
    format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object a line for programs."""
    requests: bool = False
    """Write a line for every HTTP request."""


class TelemetrySection(msgspec.Struct, frozen=True, kw_only=True):
    """OpenTelemetry traces. Needs the packages of `pip install 'penstock[telemetry]'`."""

    enabled: bool = False
    """Make spans of requests and deliveries, joined through the headers of messages, and send them."""
    endpoint: str = ""
    """The OTLP/HTTP address to send to; empty: the exporter's own, which `OTEL_EXPORTER_OTLP_ENDPOINT` changes."""
    service_name: str = "penstock"
    """What this server is called in traces."""


class MetricsSection(msgspec.Struct, frozen=True, kw_only=True):
    """Prometheus metrics at `/metrics`."""

    enabled: bool = True
    """Answer `/metrics`."""
    queues_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 1_000
    """Queues that get series of their own; what is beyond is summed up under one name."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All sections."""

    store: StoreSection = StoreSection()
    node: NodeSection = NodeSection()
    spool: SpoolSection = SpoolSection()
    http: HttpSection = HttpSection()
    amqp: AmqpSection = AmqpSection()
    mqtt: MqttSection = MqttSection()
    cluster: ClusterSection = ClusterSection()
    limits: LimitsSection = LimitsSection()
    log: LogSection = LogSection()
    telemetry: TelemetrySection = TelemetrySection()
    metrics: MetricsSection = MetricsSection()


SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {field.name: field.type for field in msgspec.structs.fields(Config)}
SECRETS: Final = frozenset({"http.token"})
_PASSWORD: Final = re.compile(r"(://[^/@:]*:)[^/@]+(@)")
"""The password in a URL."""
NOT_EMPTY: Final = frozenset(
    {
        "store.path", "spool.folder", "http.host", "amqp.host", "mqtt.host", "mqtt.namespace", "telemetry.service_name",
    }
)  # fmt: skip
HIDDEN: Final = "••••"


# Options as data -----------------------------------------------------------------------------------------


class Option(NamedTuple):
    """One option: what it may be."""

    section: str
    name: str
    kind: type
    """bool, int, float or str"""
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"PENSTOCK_{self.section}_{self.name}".upper()

    @property
    def is_secret(self) -> bool:
        return self.title in SECRETS

    @property
    def words(self) -> str:
        """What it does."""
        return docstrings()[SECTIONS[self.section].__name__, self.name]

    def shown(self, value: Any) -> Any:
        """A value as it may be printed."""
        if self.is_secret and value:
            return HIDDEN
        return _PASSWORD.sub(rf"\1{HIDDEN}\2", value) if isinstance(value, str) else value


def _option(section: str, field: msgspec.structs.FieldInfo, hint: Any) -> Option:
    low = high = None
    if get_origin(hint) is Annotated:
        hint, meta = get_args(hint)
        low, high = meta.ge, meta.le
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    return Option(section, field.name, str if choices else hint, field.default, low, high, choices)


OPTIONS: Final[dict[tuple[str, str], Option]] = {
    (section, field.name): _option(section, field, get_type_hints(kind, include_extras=True)[field.name])
    for section, kind in SECTIONS.items()
    for field in msgspec.structs.fields(kind)
}


@cache
def docstrings() -> dict[tuple[str, str], str]:
    """The string under each field in this module's source, by class and name."""
    module = ast.parse(inspect.getsource(sys.modules[__name__]))
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    return {(node.name, name): text for node in classes for name, text in _strings_under(node)}


def _strings_under(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match below:
                case ast.Expr(ast.Constant(str(text))):
                    yield field.target.id, text


# Values --------------------------------------------------------------------------------------------------


class BadValue(ValueError):
    """A value that an option cannot have; the text goes on after the option's name."""


def checked(option: Option, given: Any) -> Any:
    """The value as the option keeps it, or `BadValue`."""
    value = _typed(option, given)
    if option.choices and value not in option.choices:
        raise BadValue(f"is {value!r}; it must be {type_words(option)}")
    # Written so that NaN fails.
    if option.low is not None and option.high is not None and not option.low <= value <= option.high:
        raise BadValue(f"is {value}; it must be {option.low:g} to {number_words(option.high)}")
    if option.kind is str:
        _check_text(option, value)
    return value


def _typed(option: Option, value: Any) -> Any:
    """A whole number is a number; otherwise the type must be exactly the option's, for true is no number."""
    if option.kind is float and type(value) is int:
        return float(value)
    if type(value) is option.kind:
        return value
    raise BadValue(f"is {_short(option, value)}; it must be {type_words(option)}")


def _check_text(option: Option, value: str) -> None:
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise BadValue(f"is {_short(option, value)}; it must not have control characters")
    if option.title in NOT_EMPTY and value == "":
        raise BadValue("is empty; leave it out for the default")
    if option.is_secret and not (value.isascii() and " " not in value):
        raise BadValue("must be of ASCII characters without spaces: it travels in a header")


def parsed(option: Option, text: str) -> Any:
    """The value that a variable's or flag's text means, or `BadValue`."""
    try:
        if option.kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
        value = option.kind(text)
    except (KeyError, ValueError):
        raise BadValue(f"is {_short(option, text)}; it must be {type_words(option)}") from None
    return checked(option, value)


def type_words(option: Option) -> str:
    if option.choices:
        return " or ".join((", ".join(option.choices[:-1]), option.choices[-1]))
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[option.kind]


def number_words(number: float) -> str:
    """As TOML writes large numbers; four digits are read easily enough."""
    return f"{number:,.0f}".replace(",", "_") if number >= 10_000 else f"{number:g}"


def _short(option: Option, value: Any) -> str:
    return HIDDEN if option.is_secret else f"{str(value)[:60]!r}" if isinstance(value, str) else str(value)[:60]
