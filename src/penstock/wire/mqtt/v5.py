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
from penstock.wire.mqtt.packets import (
    FLAGS,
    NO_PROPERTIES,
    Connect,
    Disconnect,
    Kind,
    PublishProperties,
    Subscription,
)
from penstock.wire.mqtt.properties import publish_parts, read_properties, subscription_id_parts
from penstock.wire.mqtt.reader import Reader, encode_length, encode_text, publish_packet
from penstock.wire.mqtt.reasons import Reason, Refused
from penstock.wire.mqtt.topics import SHARE
from penstock.wire.mqtt.v3 import Codec3, ConnectFlags, check_topic, message_properties

Code = TypeVar("Code", bound=IntEnum)
"""The library's reason codes of one kind of packet."""

NO_TOPIC: Final = b"\0\0"
REASON_CHARACTERS_MAX: Final = 1_000
ALIAS_BYTES: Final = 3
"""Bytes that a topic alias costs: shorter topics are sent as they are."""

_PUBLISH_REASONS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASE_REASONS: Final = frozenset({0x00, 0x92})
_REASONS: Final = {
    Kind.PUBACK: _PUBLISH_REASONS,
    Kind.PUBREC: _PUBLISH_REASONS,
    Kind.PUBREL: _RELEASE_REASONS,
    Kind.PUBCOMP: _RELEASE_REASONS,
    Kind.DISCONNECT: frozenset({0x00, 0x04, *range(0x80, 0x84), *range(0x90, 0x9A)} - {0x91, 0x92}),
}
"""What the standard lets a client say; the others of DISCONNECT are a server's."""

_ACKNOWLEDGEMENTS: Final[dict[Kind, tuple[Any, type[IntEnum]]]] = {
    Kind.PUBACK: (mqtt5.PubAckPacket, mqtt5.PubAckReasonCode),
    Kind.PUBREC: (mqtt5.PubRecPacket, mqtt5.PubRecReasonCode),
    Kind.PUBREL: (mqtt5.PubRelPacket, mqtt5.PubRelReasonCode),
    Kind.PUBCOMP: (mqtt5.PubCompPacket, mqtt5.PubCompReasonCode),
    Kind.SUBACK: (mqtt5.SubAckPacket, mqtt5.SubAckReasonCode),
    Kind.UNSUBACK: (mqtt5.UnsubAckPacket, mqtt5.UnsubAckReasonCode),
}


class Codec5(Codec3):
    """MQTT 5 for one connection: it keeps the topic aliases of both sides. See `Codec3` for what each method is."""

    version: ClassVar[int] = 5
    no_auth: ClassVar[str] = "AUTH without an authentication method in CONNECT"

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
        connect = super().connect(reader)
        self._aliases_allowed = min(connect.topic_alias_maximum, self._limits.topic_alias_maximum)
        self._tells_problems = connect.request_problem_information
        if connect.maximum_packet_size is not None:
            self.maximum_packet_size = connect.maximum_packet_size
        return connect

    def _connect_values(self, reader: Reader, _flags: ConnectFlags) -> dict[str, Any]:
        values = read_properties(reader, Kind.CONNECT)
        if values.pop("authentication_method", None) is not None:
            raise Refused(
                Reason.BAD_AUTHENTICATION_METHOD, "extended authentication is not supported: leave its method out"
            )
        if values.pop("authentication_data", None) is not None:
            raise Refused(Reason.PROTOCOL_ERROR, "CONNECT has authentication data without an authentication method")
        for name in ("request_response_information", "request_problem_information"):
            if name in values:
                values[name] = bool(values[name])
        return values

    def _properties(self, reader: Reader, kind: int) -> dict[str, Any]:
        return read_properties(reader, kind)

    def _publish_properties(self, topic: str, data: bytes, body: int, end: int) -> tuple[str, PublishProperties, int]:
        if body == end:
            raise Refused(Reason.MALFORMED_PACKET, "PUBLISH ends before its properties")
        reader = Reader(data, body, end)
        values = read_properties(reader, Kind.PUBLISH)
        topic = self._resolve(topic, values.pop("topic_alias", 0))
        return topic, message_properties(values), reader.position

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

    def _reason(self, kind: Kind, reader: Reader) -> int:
        if not reader.left:
            return 0
        reason = reader.byte("the reason code")
        if reason not in _REASONS[kind]:
            raise Refused(Reason.PROTOCOL_ERROR, f"a client's {kind.name} cannot have the reason code 0x{reason:02x}")
        if reader.left and kind is not Kind.DISCONNECT:
            read_properties(reader, kind)  # what else it says is checked, and nobody here asks for it
        return reason

    def _disconnect(self, reader: Reader) -> Disconnect:
        reason = self._reason(Kind.DISCONNECT, reader)
        values = read_properties(reader, Kind.DISCONNECT) if reader.left else {}
        if "server_reference" in values:
            raise Refused(Reason.PROTOCOL_ERROR, "a client's DISCONNECT must not name a server")
        return Disconnect(reason, **values)

    def _subscription(self, topic_filter: str, reader: Reader) -> Subscription:
        options = reader.byte("the options of a subscription")
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

    # Out -----------------------------------------------------------------------------------------------

    def connack(self, reason: Reason, answer: Answer) -> tuple[bytes, ...]:
        if reason is not Reason.SUCCESS:
            code = _known(mqtt5.ConnAckReasonCode, reason, Reason.SERVER_UNAVAILABLE)
            # A version that we do not know may read texts differently: it is told the reason alone.
            text = "" if reason is Reason.UNSUPPORTED_PROTOCOL_VERSION else answer.text
            return _forms(mqtt5.ConnAckPacket, text, reason_code=code)
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
        first, high, low = kind << 4 | FLAGS[kind], packet_id >> 8, packet_id & 0xFF
        bare = bytes((first, 3, high, low, reason) if reason else (first, 2, high, low))
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

    def delivery(
        self,
        first: int,
        topic: str,
        payload: bytes,
        packet_id: int,
        properties: PublishProperties,
        subscription_ids: Sequence[int],
    ) -> tuple[bytes, ...]:
        told = b"" if properties is NO_PROPERTIES else b"".join(publish_parts(properties))
        if subscription_ids:
            told = subscription_id_parts(subscription_ids) + told
        alias = 0
        topic_bytes = encode_text(topic)
        is_new = False
        if self._aliases_allowed and len(topic_bytes) > len(NO_TOPIC) + ALIAS_BYTES:
            alias = self._given.get(topic, 0)
            is_new = not alias and len(self._given) < self._aliases_allowed
            if is_new:
                alias = len(self._given) + 1
        if alias:
            told = b"\x23" + alias.to_bytes(2, "big") + told
            if not is_new:
                topic_bytes = NO_TOPIC
        parts = publish_packet(first, topic_bytes, packet_id, encode_length(len(told)) + told, payload)
        if not parts or sum(map(len, parts)) > self.maximum_packet_size:
            return ()
        if is_new:
            self._given[topic] = alias
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
