"""Every option of the server, by section: its type, default, limits, and what it does in words.

Sections of the server itself are below; each front defines its own, in its folder's `options.py`. From them come
docs/configuration.md, `penstock config --example` and the checks of values. Does not know where values come from, or
who uses them.
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

from penstock.fronts.answers import ANSWER_BYTES, ANSWER_SECONDS
from penstock.fronts.auth import Credentials
from penstock.fronts.front import FrontOptions
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.registry import FRONTS
from penstock.model import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX,
)
from penstock.model.setting_types import MIB, SECONDS_MAX, Bytes, Seconds


class StoreSection(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages are kept."""

    path: str = "data/penstock.db"
    """The SQLite file, relative to the folder that the server is started in; made, with its folder, where missing. Or
    `postgresql://user:password@host/database?schema=penstock`, or `mysql://user:password@host/database`."""


class NodeSection(msgspec.Struct, frozen=True, kw_only=True):
    """The broker in the server."""

    cache_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 64 * MIB
    """Memory for the cache of recent batches."""
    events: bool = True
    """Keep the `$events` stream: what happened to each delivery. Histories and traces are read from it."""
    enqueue_poll: Seconds = 1.0
    """Poll interval in seconds for enqueued messages, if the database cannot notify."""
    scrub_bytes_per_second: Annotated[int, Meta(ge=0, le=1 << 40)] = 4 * MIB
    """How fast all that is kept is read again, once a day, to find damage early; 0: never. See
    [the scrub](operate.md#damage-before-a-consumer-meets-it)."""


class SpoolSection(msgspec.Struct, frozen=True, kw_only=True):
    """Publishes while the store is away: see [the spool](spool.md)."""

    enabled: Literal["auto", "yes", "no"] = "auto"
    """Buffer publishes on the local disk while the store is away. `auto`: where the store is a database server."""
    folder: str = "data/spool"
    """Where they are kept, relative to the folder that the server is started in; in it, each server has a folder by the
    number of its port."""
    bytes: Annotated[int, Meta(ge=MIB, le=1 << 50)] = 1024 * MIB
    """How much is kept there; one more publish is answered 503 until the store is back."""


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
    schedule_rate: Annotated[float, Meta(ge=0.0, le=1_000_000.0)] = 100.0
    """Messages a second that the schedules of one namespace may publish together; paused ones do not count."""
    batch_messages: Annotated[int, Meta(ge=1, le=BATCH_MESSAGES_MAX)] = BATCH_MESSAGES_MAX
    """Messages of one publish or transaction."""
    message_bytes: Annotated[int, Meta(ge=1, le=PAYLOAD_BYTES_MAX)] = PAYLOAD_BYTES_DEFAULT
    """Bytes of the payload of one message, in every protocol; a queue's `max_message_bytes` may allow fewer."""
    batch_bytes: Annotated[int, Meta(ge=1, le=BATCH_BYTES_MAX)] = BATCH_BYTES_DEFAULT
    """Bytes of one publish or transaction, as stored, in all queues that it reaches; one message at the least."""
    answer_bytes: Bytes = ANSWER_BYTES
    """Bytes of answers and deliveries of 1 MiB and more that are made and sent at once, decompressed, in all protocols;
    one more waits for its turn."""
    answer_seconds: Seconds = ANSWER_SECONDS
    """How long an AMQP or MQTT client may take nothing of such a delivery before its connection is closed."""
    scans: Annotated[int, Meta(ge=1, le=1_000)] = 2
    """Scans (what Spark reads with) that read at the same time; others wait, and are answered 429 after 10 seconds."""
    scan_bytes_per_second: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """What all scans together may read in a second; 0: as much as leaves others half of the server's time."""
    staging_bytes: Annotated[int, Meta(ge=MIB, le=1 << 50)] = 4 * 1024 * MIB
    """Bytes of all chunks together that are staged and not committed; one more chunk is answered 429 until some go."""
    staging_ttl: Annotated[float, Meta(ge=1.0, le=30 * SECONDS_MAX)] = SECONDS_MAX
    """Seconds after its last chunk in which a staged transaction must be committed; then its chunks are dropped."""

    memory_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.6
    """The share of the machine's memory, or of a container's, that the server may use: above it publishes are held
    back and then refused (`resource_alarm`), while consumers go on. 0: no alarm."""
    disk_free_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 256 * MIB
    """The room that must be free on the disks of an SQLite store and of the spool: below it, the same. 0: no alarm."""
    alarm_wait: Annotated[float, Meta(ge=0.0, le=60.0)] = 5.0
    """Seconds for which a publish waits for an alarm to end before it is refused; 0 refuses at once."""


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
    """All sections: those of the server itself, and one for each front."""

    store: StoreSection = StoreSection()
    node: NodeSection = NodeSection()
    spool: SpoolSection = SpoolSection()
    cluster: ClusterSection = ClusterSection()
    limits: LimitsSection = LimitsSection()
    log: LogSection = LogSection()
    telemetry: TelemetrySection = TelemetrySection()
    metrics: MetricsSection = MetricsSection()
    fronts: dict[str, FrontOptions] = msgspec.field(
        default_factory=lambda: {entry.name: entry.options() for entry in FRONTS}
    )
    """By name, in the registry's order."""

    @property
    def http(self) -> HttpOptions:
        """The section of HTTP, which other parts of a server need: a node's URL, the token of all fronts."""
        section = self.fronts["http"]
        assert isinstance(section, HttpOptions)
        return section

    def section(self, name: str) -> Any:
        """A section by its name."""
        return self.fronts[name] if name in self.fronts else getattr(self, name)

    @property
    def credentials(self) -> Credentials:
        """What clients of every front must bring."""
        return self.http.credentials


SECTIONS: Final[dict[str, type[Any]]] = {
    "store": StoreSection,
    "node": NodeSection,
    "spool": SpoolSection,
    **{entry.name: entry.options for entry in FRONTS},
    "cluster": ClusterSection,
    "limits": LimitsSection,
    "log": LogSection,
    "telemetry": TelemetrySection,
    "metrics": MetricsSection,
}
"""In the order of the documentation."""
SECRETS: Final = frozenset({"http.token"})
_PASSWORD: Final = re.compile(r"(://[^/@:]*:)[^/@]+(@)")
"""The password in a URL."""
NOT_EMPTY: Final = frozenset({"path", "folder", "host", "namespace", "service_name"})
"""Options of these names, in any section."""
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
        """What it does, in one line."""
        kind = SECTIONS[self.section]
        return " ".join(docstrings(kind.__module__, kind.__name__)[self.name].split())

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
def docstrings(module: str, section: str) -> dict[str, str]:
    """The string under each field of a section's class, by name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == section)
    return dict(_strings_under(found))


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
    if option.name in NOT_EMPTY and value == "":
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
