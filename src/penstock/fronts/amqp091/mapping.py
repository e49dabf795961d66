"""Messages both ways: what an AMQP publish is as a `Message`, and what any `Message` is to an AMQP consumer.

The table is in docs/protocols.md. What came by AMQP carries the bytes of its content header in the header `amqp`, so
that it goes out as it came, bit by bit; beside it are its parts under names that other protocols can read. Dead
letters are in `deaths.py`. Knows no socket and no broker.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, NamedTuple

from penstock.fronts.amqp091 import deaths
from penstock.fronts.amqp091.errors import precondition
from penstock.model import INTEGER_MAX, SPAN_MS_MAX, Headers, Message, check_headers
from penstock.model.errors import InvalidArgument
from penstock.wire.amqp091.properties import Properties, Raw, build, locate
from penstock.wire.amqp091.tables import Malformed, encode_table, plain

RAW: Final = "amqp"
"""The header that holds the exchange's name and the content header's properties, as they came."""
LOCAL: Final = "amqp-connection"
"""The header with the publishing connection, for consumers with no-local."""
HIDDEN: Final = frozenset((RAW, LOCAL, "mqtt", "x-death"))
MORE_KEYS: Final = frozenset(("CC", "BCC"))
"""Headers by which RabbitMQ would send a message to more queues: a publisher that relies on it must be told."""
PERSISTENT: Final = 2

_NAMED: Final = {
    "content_encoding": "amqp-content-encoding",
    "delivery_mode": "amqp-delivery-mode",
    "reply_to": "amqp-reply-to",
    "message_id": "amqp-message-id",
    "timestamp": "amqp-timestamp",
    "message_type": "amqp-type",
    "user_id": "amqp-user-id",
    "app_id": "amqp-app-id",
    "cluster_id": "amqp-cluster-id",
}
"""Properties that a message has no field for, and the headers they go by."""
_PROPERTY_OF: Final = {header: name for name, header in _NAMED.items()}
REMEMBERED: Final = 1_024
REMEMBERED_BYTES: Final = 256


# From AMQP -----------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """What all messages with the same exchange and properties have in common."""

    headers: Headers
    priority: int
    ttl_ms: int | None
    content_type: str | None
    correlation_id: str | None


class Reader:
    """Makes messages of publishes; those of most programs look alike, so what was made of properties is kept."""

    def __init__(self) -> None:
        self.user = ""
        self.local: str | None = None
        """The name of the connection, once its messages must be told from those of others."""
        self._known: dict[tuple[bytes, bytes], Prepared] = {}

    def message(self, exchange: bytes, key: str, properties: bytes, body: bytes) -> Message:
        """The message; raises a fault where its properties cannot be honoured."""
        prepared = self._known.get((exchange, properties))
        if prepared is None:
            prepared = self._prepare(exchange, properties)
        headers, priority, ttl_ms, content_type, correlation_id = prepared
        return Message(
            body, None, key or None, headers, priority, 0, 0, ttl_ms, None, content_type, correlation_id, None
        )

    def forget(self) -> None:
        """Make everything again: `local` has changed."""
        self._known.clear()

    def _prepare(self, exchange: bytes, raw: bytes) -> Prepared:
        properties = Properties(raw)
        user = properties.user_id
        if user is not None and user != self.user:
            raise precondition(f"user_id property set to '{user}' but authenticated user was '{self.user}'")
        own: Headers = {RAW: bytes((len(exchange),)) + exchange + raw}
        if self.local is not None:
            own[LOCAL] = self.local
        for name, header in _NAMED.items():
            if name in properties:
                own[header] = _seen(getattr(properties, name))
        table = properties.headers
        if table is not None and (found := MORE_KEYS & table.keys()):
            raise precondition(f"the header {min(found)} is not supported: publish it once for each routing key")
        prepared = Prepared(
            own if table is None else _with_table(own, table),
            properties.priority or 0,
            _ttl_ms(properties.expiration),
            properties.content_type,
            properties.correlation_id,
        )
        if table is None:
            _check(own)
        if len(raw) <= REMEMBERED_BYTES:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[exchange, raw] = prepared
        return prepared


def _with_table(own: Headers, table: dict[str, Any]) -> Headers:
    """The headers beside those of our own, which win. Where they are too much, AMQP consumers alone get them."""
    headers = plain_headers(table) | own
    try:
        check_headers(headers)
    except InvalidArgument:
        _check(own)
        return own
    return headers


def _check(headers: Headers) -> None:
    try:
        check_headers(headers)
    except InvalidArgument as error:
        raise precondition(f"the properties are too large: {error}") from None


def _seen(value: Any) -> Any:
    """A value as other protocols see it; a number that has no place in 64 bits as text."""
    value = plain(value)
    if isinstance(value, list):
        return [_seen(item) for item in value]
    if isinstance(value, dict):
        return {name: _seen(item) for name, item in value.items()}
    return str(value) if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX else value


def plain_headers(table: dict[str, Any]) -> Headers:
    """A table as headers that messages can be compared with."""
    return {name: _seen(value) for name, value in table.items()}


def _ttl_ms(expiration: str | None) -> int | None:
    if expiration is None:
        return None
    if not (expiration.isascii() and expiration.isdigit()):
        raise precondition(f"invalid expiration '{expiration}': it must be a whole number of milliseconds, as text")
    span_ms = int(expiration)
    if span_ms > SPAN_MS_MAX:
        raise precondition(f"invalid expiration '{expiration}': {SPAN_MS_MAX} milliseconds at the most")
    return span_ms


# To AMQP -------------------------------------------------------------------------------------------------


class Outgoing(NamedTuple):
    """What a delivery says of a message beside its body."""

    exchange: bytes
    properties: bytes


_good: dict[bytes, Outgoing] = {}
"""A cache of decoded `amqp` headers: consumers see the same ones over and over."""


def outgoing(message: Message, published_ms: int) -> Outgoing:
    """The exchange it was published to, and its properties."""
    headers = message.headers
    if headers is not None:
        raw = headers.get(RAW)
        if type(raw) is bytes:
            found = _good.get(raw) or _as_it_came(raw)
            if found is not None:
                return deaths.told(found, headers) if "x-death" in headers else found
    return _built(message, published_ms)


def routing_key(key: str | None) -> bytes:
    """A key as 255 bytes can say it."""
    if not key:
        return b""
    encoded = key.encode()
    return encoded if len(encoded) <= 255 else encoded[:255].decode("utf-8", "ignore").encode()


def _as_it_came(raw: bytes) -> Outgoing | None:
    """None where this front did not write these bytes: any client may set the header."""
    end = 1 + raw[0] if raw else 0
    properties = raw[end:]
    try:
        locate(properties)
    except Malformed:
        return None
    found = Outgoing(raw[1:end], properties)
    if len(raw) <= REMEMBERED_BYTES:
        if len(_good) >= REMEMBERED:
            _good.clear()
        _good[raw] = found
    return found


def _built(message: Message, published_ms: int) -> Outgoing:
    """For a message that came by another protocol."""
    fields: dict[str, Any] = {
        "content_type": _short(message.content_type),
        "correlation_id": _short(message.correlation_id),
        "priority": message.priority or None,
        "expiration": None if message.ttl_ms is None else str(message.ttl_ms),
        "delivery_mode": PERSISTENT,
        "timestamp": published_ms // 1000,
    }
    table: dict[str, Any] = {}
    for header, value in (message.headers or {}).items():
        name = _PROPERTY_OF.get(header)
        if name is not None and _fits(name, value):
            fields[name] = value
        elif header not in HIDDEN:
            table[header] = value
    if table:
        fields["headers"] = _table(table)
    made = Outgoing(b"", build(**fields))
    return deaths.told(made, message.headers or {}) if "x-death" in (message.headers or {}) else made


def _short(text: str | None) -> str | None:
    """Text that fits where 255 bytes do; the rest is left to the protocols that can say it."""
    return text if text is None or len(text.encode()) <= 255 else None


def _fits(name: str, value: Any) -> bool:
    if name == "delivery_mode":
        return value in (1, 2)
    if name == "timestamp":
        return isinstance(value, dt.datetime)
    return isinstance(value, str) and len(value.encode()) <= 255


def _table(headers: Headers) -> Raw:
    try:
        return Raw(encode_table(headers))
    except Malformed:  # names of more than 255 bytes cannot be said
        return Raw(encode_table({name: value for name, value in headers.items() if len(name.encode()) <= 255}))


def counted(properties: bytes, attempt: int) -> bytes:
    """The properties of a delivery that is not the first, with how often the message came back before."""
    return with_headers(properties, {"x-delivery-count": attempt - 1})


def with_headers(properties: bytes, added: dict[str, Any]) -> bytes:
    """The properties with more headers, which win over those of the same name; all others as they came."""
    known = Properties(properties)
    table = known.raw_headers
    if table is not None and any(name.encode() in table for name in added):
        return known.replaced(headers=(known.headers or {}) | added)
    more = encode_table(added)[4:]
    entries = more if table is None else table[4:] + more
    return known.replaced(headers=Raw(len(entries).to_bytes(4) + entries))
