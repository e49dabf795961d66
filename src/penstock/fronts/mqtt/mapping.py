"""Messages as MQTT has them and as the broker has them, both ways. Plain data; the table is in docs/protocols.md.

A message that came by MQTT carries the header `mqtt`: one byte (its QoS and whether it was published with retain) and
the client id of its publisher. Other headers are user properties by name. What is only MQTT's has headers that begin
with `mqtt-`. It may not know sessions, sockets or the broker.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from penstock.model import ID_CHARACTERS_MAX, SPAN_MS_MAX, Headers, Message
from penstock.wire.mqtt.packets import NO_PROPERTIES, PublishProperties, UserProperties
from penstock.wire.mqtt.reader import TEXT_BYTES_MAX
from penstock.wire.mqtt.topics import topic_problem

ORIGIN: Final = "mqtt"
PAYLOAD_FORMAT: Final = "mqtt-payload-format"
RESPONSE_TOPIC: Final = "mqtt-response-topic"
CORRELATION_DATA: Final = "mqtt-correlation-data"
USER_PROPERTIES: Final = "mqtt-user-properties"
SUBSCRIPTION: Final = "mqtt-subscription"
"""The filter of the one subscription that a message is for: a retained one, or one that came by a shared queue."""
STORED: Final = "mqtt-retained"
"""It is delivered because it was retained, not because it was just published."""
QOS_MASK: Final = 0b011
RETAIN: Final = 0b100
ORIGINS_KEPT: Final = 1_000
_OURS: Final = ("mqtt", "amqp")


class Origin(NamedTuple):
    """What the header `mqtt` says."""

    qos: int
    retain: bool
    client_id: str


ANY_ORIGIN: Final = Origin(2, False, "")
"""Of a message that did not come by MQTT: as good as any QoS that a subscriber asks for."""


# In ------------------------------------------------------------------------------------------------------


class Publisher:
    """One client's way in: what its messages have in common is made once."""

    __slots__ = ("_client_id", "_plain")

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()
        self._plain: dict[int, Headers] = {}

    def message(
        self, key: str | None, payload: bytes, qos: int, retain: bool, properties: PublishProperties = NO_PROPERTIES
    ) -> Message:
        """A publish as a message for the broker."""
        flags = qos | RETAIN if retain else qos
        headers = self._plain.get(flags)
        if headers is None:
            headers = self._plain[flags] = {ORIGIN: bytes((flags,)) + self._client_id}
        if properties == NO_PROPERTIES:
            return Message(payload, key=key, headers=headers)
        headers = dict(headers)
        _put_user_properties(headers, properties.user_properties)
        if properties.payload_format is not None:
            headers[PAYLOAD_FORMAT] = properties.payload_format
        if properties.response_topic is not None:
            headers[RESPONSE_TOPIC] = properties.response_topic
        correlation_id = _as_text(properties.correlation_data)
        if properties.correlation_data is not None and correlation_id is None:
            headers[CORRELATION_DATA] = properties.correlation_data
        expiry = properties.message_expiry
        return Message(
            payload,
            key=key,
            headers=headers,
            ttl_ms=None if expiry is None else min(expiry * 1000, SPAN_MS_MAX),
            content_type=properties.content_type,
            correlation_id=correlation_id,
        )


def _as_text(data: bytes | None) -> str | None:
    """Correlation data that comes back the same from a text, where it does."""
    if data is None or len(data) > ID_CHARACTERS_MAX:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _put_user_properties(headers: Headers, properties: UserProperties) -> None:
    """By name; a name that comes several times has a list. Where that would lose something, all of them in order."""
    names: list[str] = []
    is_exact = True
    for name, value in properties:
        if name in _OURS or name.startswith(("mqtt-", "amqp-")):
            is_exact = False
        elif name not in headers:
            headers[name] = value
            names.append(name)
        else:
            before = headers[name]
            headers[name] = [*before, value] if isinstance(before, list) else [before, value]
            is_exact = is_exact and names[-1] == name
    if not is_exact:
        headers[USER_PROPERTIES] = [text for pair in properties for text in pair]


# Out -----------------------------------------------------------------------------------------------------


def origin_of(headers: Mapping[str, Any] | None) -> Origin:
    """Who published a message, and how."""
    mark = None if headers is None else headers.get(ORIGIN)
    return _origin(mark) if type(mark) is bytes and mark else ANY_ORIGIN


@lru_cache(ORIGINS_KEPT)
def _origin(mark: bytes) -> Origin:
    return Origin(min(mark[0] & QOS_MASK, 2), bool(mark[0] & RETAIN), mark[1:].decode("utf-8", "replace"))


def properties_of(message: Message, published_ms: int, now_ms: int, extra: UserProperties = ()) -> PublishProperties:
    """What a version 5 subscriber is told about a message; `extra` user properties come first."""
    headers = message.headers or {}
    plain = (len(headers) == (ORIGIN in headers)) and message.ttl_ms is None
    if plain and message.content_type is None and message.correlation_id is None:
        return PublishProperties(user_properties=extra) if extra else NO_PROPERTIES
    correlation = headers.get(CORRELATION_DATA)
    if type(correlation) is not bytes:
        correlation = None if message.correlation_id is None else message.correlation_id.encode()
    response = headers.get(RESPONSE_TOPIC)
    return PublishProperties(
        payload_format=_payload_format(headers.get(PAYLOAD_FORMAT)),
        message_expiry=_remaining(message, published_ms, now_ms),
        content_type=message.content_type if _is_sayable(message.content_type) else None,
        response_topic=response if isinstance(response, str) and not topic_problem(response) else None,
        correlation_data=correlation if correlation is None or len(correlation) <= TEXT_BYTES_MAX else None,
        user_properties=extra + _user_properties(headers),
    )


def _remaining(message: Message, published_ms: int, now_ms: int) -> int | None:
    """The seconds that a message has left, rounded up: one that is delivered has not expired."""
    if message.ttl_ms is None:
        return None
    return max(1, -(-(published_ms + message.ttl_ms - now_ms) // 1000))


def _user_properties(headers: Mapping[str, Any]) -> UserProperties:
    exact = headers.get(USER_PROPERTIES)
    if isinstance(exact, list) and len(exact) % 2 == 0 and all(isinstance(text, str) for text in exact):
        return _sayable(zip(exact[::2], exact[1::2], strict=True))
    found: list[tuple[str, str]] = []
    for name, value in headers.items():
        if name in _OURS or name.startswith("mqtt-"):
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            found += [(name, item) for item in value]
        else:
            found.append((name, as_text(value)))
    return _sayable(found)


def _sayable(found: Iterable[tuple[str, str]]) -> UserProperties:
    """Those that MQTT can say: other protocols have longer texts, and U+0000 in them."""
    return tuple((name, value) for name, value in found if _is_sayable(name) and _is_sayable(value))


def _is_sayable(text: str | None) -> bool:
    if text is None:
        return True
    # No character has more than four bytes in UTF-8: most texts need not be encoded to know it.
    return "\x00" not in text and (len(text) * 4 <= TEXT_BYTES_MAX or len(text.encode()) <= TEXT_BYTES_MAX)


def as_text(value: object) -> str:
    """A header's value as a user property says it: MQTT knows texts only."""
    match value:
        case str():
            return value
        case bool() | None:
            return {True: "true", False: "false", None: ""}[value]
        case int() | float():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case dt.datetime():
            return value.isoformat()
        case _:
            return msgspec.json.encode(value).decode()


def for_subscription(message: Message, topic_filter: str, *, elapsed_ms: int = 0, stored: bool = False) -> Message:
    """A message for one subscription of a session alone, `elapsed_ms` after it was published."""
    headers: Headers = {**(message.headers or {}), SUBSCRIPTION: topic_filter}
    if stored:
        headers[STORED] = True
    ttl_ms = None if message.ttl_ms is None else max(0, message.ttl_ms - elapsed_ms)
    return msgspec.structs.replace(message, headers=headers, ttl_ms=ttl_ms)


def _payload_format(value: object) -> int | None:
    """The indicator as a publisher gave it; a header of the same name may hold anything."""
    return value if type(value) is int and value in (0, 1) else None
