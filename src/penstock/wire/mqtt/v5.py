"""MQTT 5 in bytes: every packet of a client read with the checks of the standard, every packet of a server written.

Rare packets to the client are written by the mqtt5 library; what is sent for each message (deliveries and their plain
acknowledgements) is written here, and tests compare it with the library's. Reading is ours: see `properties`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeVar

import mqtt5

from penstock.wire.mqtt.codec import UNLIMITED, Answer, Limits
from penstock.wire.mqtt.kinds import Kind
from penstock.wire.mqtt.packets import (
    NO_PROPERTIES,
    Connect,
    Disconnect,
    Event,
    Publish,
    PublishProperties,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from penstock.wire.mqtt.properties import WILL, read_properties, subscription_id_parts
from penstock.wire.mqtt.publishing import Delivery
from penstock.wire.mqtt.reader import Reader, decode_text, encode_length
from penstock.wire.mqtt.reasons import Reason, Refused
from penstock.wire.mqtt.topics import SHARE
from penstock.wire.mqtt.v3 import ANSWERS, ConnectFlags, check_topic, read_filters

Code = TypeVar("Code", bound=IntEnum)
"""The library's reason codes of one kind of packet."""

NO_TOPIC: Final = b"\0\0"
REASON_CHARACTERS_MAX: Final = 1_000
ALIAS_BYTES: Final = 3
"""Bytes that a topic alias costs: shorter topics are sent as they are."""

_PUBLISH_REASONS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_REASONS: Final = frozenset({0x00, 0x92})
# What the standard lets a client say; the others of DISCONNECT are a server's.
_DISCONNECT_REASONS: Final = frozenset({0x00, 0x04, *range(0x80, 0x84), *range(0x90, 0x9A)} - {0x91, 0x92})

_ACKNOWLEDGEMENTS: Final[dict[Kind, tuple[Any, type[IntEnum]]]] = {
    Kind.PUBACK: (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    Kind.PUBREC: (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    Kind.PUBREL: (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    Kind.PUBCOMP: (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
    Kind.SUBACK: (mqtt5.SubAckPacket, mqtt5.SubAckReasonCode),
    Kind.UNSUBACK: (mqtt5.UnsubAckPacket, mqtt5.UnsubAckReasonCode),
}


class Codec5:
    """MQTT 5 for one connection: it keeps the topic aliases of both sides. See `Codec3` for what each method is."""

    version: ClassVar[int] = 5

    __slots__ = ("_aliases", "_aliases_allowed", "_given", "_limits", "_tells_problems", "maximum_packet_size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._aliases: dict[int, str] = {}
        self._given: dict[str, int] = {}
        self._aliases_allowed = 0
        self._tells_problems = True
        self.maximum_packet_size = UNLIMITED

    # In ------------------------------------------------------------------------------------------------

    def connect(self, reader: Reader) -> Connect:
        flags = ConnectFlags(reader.byte("the flags of CONNECT"))
        keep_alive = reader.short("the keep-alive")
        values = read_properties(reader, Kind.CONNECT)
        client_id = reader.client_id()
        will = _read_will(reader, flags) if flags.has_will else None
        username = reader.text("the user name") if flags.has_username else None
        password = reader.binary("the password") if flags.has_password else None
        reader.finish()
        _check_authentication(values)
        for name in ("request_response_information", "request_problem_information"):
            if name in values:
                values[name] = bool(values[name])
        connect = Connect(5, client_id, flags.clean_start, keep_alive, username, password, will, **values)
        self._aliases_allowed = min(connect.topic_alias_maximum, self._limits.topic_alias_maximum)
        self._tells_problems = connect.request_problem_information
        if connect.maximum_packet_size is not None:
            self.maximum_packet_size = connect.maximum_packet_size
        return connect

    def publish(self, first: int, data: bytes, position: int, end: int) -> Publish:
        qos = first >> 1 & 0x03
        if qos == 3:
            raise Refused(Reason.MALFORMED_PACKET, "the QoS of PUBLISH must be 0, 1 or 2, not 3")
        if first & 0x08 and not qos:
            raise Refused(Reason.MALFORMED_PACKET, "PUBLISH of QoS 0 must not have the dup flag")
        topic_start = position + 2
        topic_end = topic_start + (data[position] << 8 | data[position + 1]) if topic_start <= end else end + 1
        body = topic_end + 2 if qos else topic_end
        if body >= end:
            raise Refused(Reason.MALFORMED_PACKET, "PUBLISH ends within its topic, packet id or properties")
        packet_id = 0
        if qos:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if not packet_id:
                raise Refused(Reason.PROTOCOL_ERROR, "a packet id must not be 0")
        topic = decode_text(data[topic_start:topic_end], "the topic")
        if not data[body]:
            body += 1
            properties = NO_PROPERTIES
            if not topic:
                raise Refused(Reason.PROTOCOL_ERROR, "PUBLISH has neither a topic nor a topic alias")
        else:
            reader = Reader(data, body, end)
            values = read_properties(reader, Kind.PUBLISH)
            topic = self._resolve(topic, values.pop("topic_alias", 0))
            properties = _message_properties(values)
            body = reader.position
        return Publish(
            check_topic(topic), data[body:end], qos, bool(first & 0x01), bool(first & 0x08), packet_id, properties
        )

    def _resolve(self, topic: str, alias: int) -> str:
        """The topic that is meant; a topic with an alias sets it."""
        if not alias:
            if not topic:
                raise Refused(Reason.PROTOCOL_ERROR, "PUBLISH has neither a topic nor a topic alias")
            return topic
        if alias > self._limits.topic_alias_maximum:
            allowed = self._limits.topic_alias_maximum
            raise Refused(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}, but at most {allowed} is allowed")
        if topic:
            self._aliases[alias] = check_topic(topic)
            return topic
        known = self._aliases.get(alias)
        if known is None:
            raise Refused(Reason.PROTOCOL_ERROR, f"topic alias {alias} has not been given a topic")
        return known

    def decode(self, kind: Kind, reader: Reader) -> Event:
        event = self._decode(kind, reader)
        reader.finish()
        return event

    def _decode(self, kind: Kind, reader: Reader) -> Event:
        if kind in ANSWERS:
            reasons = _PUBLISH_REASONS if kind in (Kind.PUBACK, Kind.PUBREC) else _RELEASE_REASONS
            return ANSWERS[kind](*_read_acknowledgement(kind, reader, reasons))
        match kind:
            case Kind.SUBSCRIBE:
                return _read_subscribe(reader)
            case Kind.UNSUBSCRIBE:
                packet_id = reader.packet_id()
                values = read_properties(reader, Kind.UNSUBSCRIBE)
                return Unsubscribe(packet_id, read_filters(reader), **values)
            case Kind.DISCONNECT:
                return _read_disconnect(reader)
            case Kind.AUTH:
                raise Refused(Reason.PROTOCOL_ERROR, "AUTH without an authentication method in CONNECT")
            case _:
                raise Refused(Reason.PROTOCOL_ERROR, f"{kind.name} is not a client's packet")

    # Out -----------------------------------------------------------------------------------------------

    def connack(self, reason: Reason, answer: Answer) -> tuple[bytes, ...]:
        if reason is not Reason.SUCCESS:
            code = _known(mqtt5.ConnAckReasonCode, reason, Reason.SERVER_UNAVAILABLE)
            return _forms(mqtt5.ConnAckPacket, answer.text, reason_code=code)
        return _forms(
            mqtt5.ConnAckPacket,
            answer.text,
            session_present=answer.session_present,
            session_expiry_interval=answer.session_expiry,
            assigned_client_id=answer.assigned_client_id,
            server_keep_alive=answer.server_keep_alive,
            receive_max=self._limits.receive_maximum,
            topic_alias_max=self._limits.topic_alias_maximum,
            max_packet_size=self._limits.maximum_packet_size,
        )

    def acknowledge(self, kind: Kind, packet_id: int, reason: int, text: str) -> tuple[bytes, ...]:
        first = kind << 4 | (2 if kind is Kind.PUBREL else 0)
        if not reason:
            bare = bytes((first, 2, packet_id >> 8, packet_id & 0xFF))
        else:
            bare = bytes((first, 3, packet_id >> 8, packet_id & 0xFF, reason))
        if not self._tells_problems or not text:
            return (bare,)
        packet_class, codes = _ACKNOWLEDGEMENTS[kind]
        full: bytes = packet_class(packet_id, reason_code=_known(codes, reason), reason_str=_said(text)).write()
        return full, bare

    def acknowledge_filters(self, kind: Kind, packet_id: int, reasons: Sequence[int], text: str) -> tuple[bytes, ...]:
        packet_class, codes = _ACKNOWLEDGEMENTS[kind]
        told = text if self._tells_problems else ""
        return _forms(packet_class, told, packet_id=packet_id, reason_codes=[_known(codes, code) for code in reasons])

    def disconnect(self, reason: Reason, text: str) -> tuple[bytes, ...]:
        return _forms(mqtt5.DisconnectPacket, text, reason_code=_known(mqtt5.DisconnectReasonCode, reason))

    def delivery(self, message: Delivery, subscription_ids: Sequence[int]) -> tuple[bytes, ...]:
        properties = message.properties
        if subscription_ids:
            properties = subscription_id_parts(subscription_ids) + properties
        alias = 0
        topic_bytes = message.topic_bytes
        is_new = False
        if self._aliases_allowed and len(topic_bytes) > len(NO_TOPIC) + ALIAS_BYTES:
            alias = self._given.get(message.topic, 0)
            is_new = not alias and len(self._given) < self._aliases_allowed
            if is_new:
                alias = len(self._given) + 1
        if alias:
            properties = b"\x23" + alias.to_bytes(2, "big") + properties
            if not is_new:
                topic_bytes = NO_TOPIC
        parts = message.parts(topic_bytes, encode_length(len(properties)) + properties)
        if sum(map(len, parts)) > self.maximum_packet_size:
            return ()
        if is_new:
            self._given[message.topic] = alias
        return parts


def _forms(packet_class: Any, text: str, **fields: Any) -> tuple[bytes, ...]:
    """A packet with its reason string and, where it has one, without."""
    bare: bytes = packet_class(**fields).write()
    said = _said(text)
    return (bare,) if said is None else (packet_class(reason_str=said, **fields).write(), bare)


def _known(codes: type[Code], reason: int, otherwise: Reason = Reason.UNSPECIFIED_ERROR) -> Code:
    """The reason, or the nearest one that the standard allows in this packet."""
    try:
        return codes(reason)
    except ValueError:
        return codes(otherwise)


def _said(text: str) -> str | None:
    """A reason string made safe for a packet: it may quote what a client sent."""
    text = text[:REASON_CHARACTERS_MAX].replace("\0", "")
    return text.encode("utf-8", "replace").decode() or None


# Parts of packets ----------------------------------------------------------------------------------------


def _check_authentication(values: dict[str, Any]) -> None:
    method = values.pop("authentication_method", None)
    if method is not None:
        raise Refused(
            Reason.BAD_AUTHENTICATION_METHOD, "extended authentication is not supported: leave its method out"
        )
    if values.pop("authentication_data", None) is not None:
        raise Refused(Reason.PROTOCOL_ERROR, "CONNECT has authentication data without an authentication method")


def _read_will(reader: Reader, flags: ConnectFlags) -> Will:
    values = read_properties(reader, WILL)
    topic = check_topic(reader.text("the topic of the will"))
    payload = reader.binary("the will's payload")
    delay = values.pop("will_delay", 0)
    return Will(topic, payload, flags.will_qos, flags.will_retain, delay, _message_properties(values))


def _message_properties(values: dict[str, Any]) -> PublishProperties:
    if "subscription_id" in values:
        raise Refused(Reason.PROTOCOL_ERROR, "a client's PUBLISH must not have a subscription id")
    if not values:
        return NO_PROPERTIES
    if "response_topic" in values:
        check_topic(values["response_topic"])
    return PublishProperties(**values)


def _read_acknowledgement(kind: Kind, reader: Reader, reasons: frozenset[int]) -> tuple[int, int]:
    """Its packet id and reason; what else it says is checked, and nobody here asks for it."""
    packet_id = reader.packet_id()
    if not reader.left:
        return packet_id, 0
    reason = _reason(kind, reader, reasons)
    if reader.left:
        read_properties(reader, kind)
    return packet_id, reason


def _reason(kind: Kind, reader: Reader, reasons: frozenset[int]) -> int:
    reason = reader.byte("the reason code")
    if reason not in reasons:
        raise Refused(Reason.PROTOCOL_ERROR, f"a client's {kind.name} cannot have the reason code 0x{reason:02x}")
    return reason


def _read_subscribe(reader: Reader) -> Subscribe:
    packet_id = reader.packet_id()
    values = read_properties(reader, Kind.SUBSCRIBE)
    subscriptions = []
    while reader.left:
        topic_filter = reader.topic_filter()
        subscriptions.append(_subscription(topic_filter, reader.byte("the options of a subscription")))
    if not subscriptions:
        raise Refused(Reason.PROTOCOL_ERROR, "SUBSCRIBE has no topic filter")
    return Subscribe(packet_id, tuple(subscriptions), **values)


def _subscription(topic_filter: str, options: int) -> Subscription:
    if options & 0xC0:
        raise Refused(Reason.MALFORMED_PACKET, "the reserved options of a subscription must be 0")
    if options & 0x03 == 3:
        raise Refused(Reason.PROTOCOL_ERROR, "the QoS of a subscription must be 0, 1 or 2, not 3")
    if options >> 4 == 3:
        raise Refused(Reason.PROTOCOL_ERROR, "the retain handling of a subscription must be 0, 1 or 2, not 3")
    no_local = bool(options & 0x04)
    if no_local and topic_filter.startswith(SHARE):
        raise Refused(Reason.PROTOCOL_ERROR, "a shared subscription cannot have the option no local")
    return Subscription(topic_filter, options & 0x03, no_local, bool(options & 0x08), options >> 4)


def _read_disconnect(reader: Reader) -> Disconnect:
    if not reader.left:
        return Disconnect()
    reason = _reason(Kind.DISCONNECT, reader, _DISCONNECT_REASONS)
    values = read_properties(reader, Kind.DISCONNECT) if reader.left else {}
    if "server_reference" in values:
        raise Refused(Reason.PROTOCOL_ERROR, "a client's DISCONNECT must not name a server")
    return Disconnect(reason, **values)
