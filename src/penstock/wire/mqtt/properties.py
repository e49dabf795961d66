"""The properties of MQTT 5: which there are, which packet may carry which, and reading them with every check.

Our own reader rather than the library's: that one lets through what the standard refuses (text with U+0000, a value
other than 0 or 1 where it must be one of these), and does not survive text that is not UTF-8. Tests hold it to the
library wherever the library is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from penstock.wire.mqtt.packets import Kind, PublishProperties, UserProperties
from penstock.wire.mqtt.reader import Reader, encode_binary, encode_length, encode_text
from penstock.wire.mqtt.reasons import Reason, Refused

USER_PROPERTY: Final = 0x26
SUBSCRIPTION_ID: Final = 0x0B
TOPIC_ALIAS: Final = 0x23


class Property(NamedTuple):
    """One identifier's meaning."""

    name: str
    read: Callable[[Reader, str], Any]
    check: Callable[[Any], bool] = lambda _: True
    rule: str = ""
    reason: Reason = Reason.PROTOCOL_ERROR


def _is_flag(value: int) -> bool:
    return value < 2


def _is_positive(value: int) -> bool:
    return value > 0


PROPERTIES: Final = {
    0x01: Property("payload_format", Reader.byte, _is_flag, "must be 0 or 1"),
    0x02: Property("message_expiry", Reader.integer),
    0x03: Property("content_type", Reader.text),
    0x08: Property("response_topic", Reader.text),
    0x09: Property("correlation_data", Reader.binary),
    SUBSCRIPTION_ID: Property("subscription_id", Reader.length, _is_positive, "must not be 0"),
    0x11: Property("session_expiry", Reader.integer),
    0x12: Property("assigned_client_id", Reader.text),
    0x13: Property("server_keep_alive", Reader.short),
    0x15: Property("authentication_method", Reader.text),
    0x16: Property("authentication_data", Reader.binary),
    0x17: Property("request_problem_information", Reader.byte, _is_flag, "must be 0 or 1"),
    0x18: Property("will_delay", Reader.integer),
    0x19: Property("request_response_information", Reader.byte, _is_flag, "must be 0 or 1"),
    0x1A: Property("response_information", Reader.text),
    0x1C: Property("server_reference", Reader.text),
    0x1F: Property("text", Reader.text),
    0x21: Property("receive_maximum", Reader.short, _is_positive, "must not be 0"),
    0x22: Property("topic_alias_maximum", Reader.short),
    TOPIC_ALIAS: Property("topic_alias", Reader.short, _is_positive, "must not be 0", Reason.TOPIC_ALIAS_INVALID),
    0x24: Property("maximum_qos", Reader.byte),
    0x25: Property("retain_available", Reader.byte),
    USER_PROPERTY: Property("user_properties", Reader.text),
    0x27: Property("maximum_packet_size", Reader.integer, _is_positive, "must not be 0"),
    0x28: Property("wildcard_subscription_available", Reader.byte),
    0x29: Property("subscription_id_available", Reader.byte),
    0x2A: Property("shared_subscription_available", Reader.byte),
}

_MESSAGE: Final = frozenset({0x01, 0x02, 0x03, 0x08, 0x09, USER_PROPERTY})
_ANSWER: Final = frozenset({0x1F, USER_PROPERTY})
WILL: Final = 0
"""Stands for the properties of the will, which have no packet of their own."""
ALLOWED: Final[dict[int, frozenset[int]]] = {
    WILL: _MESSAGE | {0x18},
    Kind.CONNECT: frozenset({0x11, 0x15, 0x16, 0x17, 0x19, 0x21, 0x22, 0x27, USER_PROPERTY}),
    Kind.PUBLISH: _MESSAGE | {SUBSCRIPTION_ID, TOPIC_ALIAS},
    Kind.PUBACK: _ANSWER,
    Kind.PUBREC: _ANSWER,
    Kind.PUBREL: _ANSWER,
    Kind.PUBCOMP: _ANSWER,
    Kind.SUBSCRIBE: frozenset({SUBSCRIPTION_ID, USER_PROPERTY}),
    Kind.UNSUBSCRIBE: frozenset({USER_PROPERTY}),
    Kind.DISCONNECT: _ANSWER | {0x11, 0x1C},
}


def read_properties(reader: Reader, kind: int) -> dict[str, Any]:
    """A packet's properties by name; user properties, where there are any, as `UserProperties`."""
    length = reader.length("the length of the properties")
    if not length:
        return {}
    end = reader.position + length
    if end > reader.end:
        raise Refused(
            Reason.MALFORMED_PACKET, f"properties of {length} bytes, but the packet has {reader.left} bytes left"
        )
    inner = Reader(reader.data, reader.position, end)
    reader.position = end
    return _read_all(inner, ALLOWED[kind], "the will" if kind == WILL else Kind(kind).name)


def _read_all(reader: Reader, allowed: frozenset[int], where: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    user: list[tuple[str, str]] = []
    while reader.left:
        identifier = reader.length("a property's identifier")
        if identifier not in PROPERTIES:
            raise Refused(Reason.MALFORMED_PACKET, f"{where} has the property 0x{identifier:02x}, which does not exist")
        if identifier == USER_PROPERTY:
            user.append((reader.text("a user property's name"), reader.text("a user property's value")))
            continue
        name, read, check, rule, reason = PROPERTIES[identifier]
        value = read(reader, name)
        if identifier not in allowed:
            raise Refused(Reason.PROTOCOL_ERROR, f"{where} cannot have the property {name}")
        if name in values:
            raise Refused(Reason.PROTOCOL_ERROR, f"{where} has the property {name} twice")
        if not check(value):
            raise Refused(reason, f"{name} {rule}, but is {value}")
        values[name] = value
    if user:
        values["user_properties"] = tuple(user)
    return values


def publish_parts(properties: PublishProperties) -> Iterator[bytes]:
    """The properties of a message as they go to subscribers, in the order of their identifiers."""
    if properties.payload_format is not None:
        yield bytes((0x01, properties.payload_format))
    if properties.message_expiry is not None:
        yield b"\x02" + properties.message_expiry.to_bytes(4, "big")
    if properties.content_type is not None:
        yield b"\x03" + encode_text(properties.content_type)
    if properties.response_topic is not None:
        yield b"\x08" + encode_text(properties.response_topic)
    if properties.correlation_data is not None:
        yield b"\x09" + encode_binary(properties.correlation_data)
    yield user_parts(properties.user_properties)


def user_parts(user_properties: UserProperties) -> bytes:
    return b"".join(b"\x26" + encode_text(name) + encode_text(value) for name, value in user_properties)


def subscription_id_parts(subscription_ids: Sequence[int]) -> bytes:
    return b"".join(b"\x0b" + encode_length(number) for number in subscription_ids)
