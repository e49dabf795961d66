"""MQTT 3.1.1 in bytes: every packet of a client read with the checks of the standard, every packet of a server written.

3.1.1 has no reason codes for faults: `Refused` carries the one of version 5 for the log, and the engine closes. Version
5 is the same with properties and reasons: `v5` extends what is here.
"""

# ruff: noqa: ARG002 - 3.1.1 has no place for much of what version 5 says

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from penstock.wire.mqtt.codec import UNLIMITED, Answer
from penstock.wire.mqtt.packets import (
    FLAGS,
    NEVER,
    NO_PROPERTIES,
    Connect,
    Disconnect,
    Event,
    Kind,
    PubAck,
    PubComp,
    Publish,
    PublishProperties,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from penstock.wire.mqtt.properties import WILL
from penstock.wire.mqtt.reader import Reader, check_controls, decode_text, encode_text, packet, publish_packet
from penstock.wire.mqtt.reasons import REFUSAL, RETURN_CODES, SERVER_UNAVAILABLE_3, Reason, Refused
from penstock.wire.mqtt.topics import topic_problem

# What a fault in the CONNECT itself is: a client that breaks the rules is not answered, only closed.
UNANSWERED: Final = frozenset({Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR})
SUBACK_FAILURE: Final = 0x80


class ConnectFlags:
    """The flags of a CONNECT, the same in both versions but for the password."""

    __slots__ = ("clean_start", "has_password", "has_username", "has_will", "will_qos", "will_retain")

    def __init__(self, flags: int) -> None:
        if flags & 0x01:
            raise Refused(Reason.MALFORMED_PACKET, "the reserved flag of CONNECT must be 0")
        self.clean_start = bool(flags & 0x02)
        self.has_will = bool(flags & 0x04)
        self.will_qos = flags >> 3 & 0x03
        self.will_retain = bool(flags & 0x20)
        self.has_password = bool(flags & 0x40)
        self.has_username = bool(flags & 0x80)
        if self.will_qos == 3:
            raise Refused(Reason.MALFORMED_PACKET, "the QoS of the will must be 0, 1 or 2, not 3")
        if not self.has_will and (self.will_qos or self.will_retain):
            raise Refused(Reason.MALFORMED_PACKET, "CONNECT has a QoS or retain flag of a will, but no will")


ANSWERS: Final[dict[Kind, type[PubAck | PubRec | PubRel | PubComp]]] = {
    Kind.PUBACK: PubAck,
    Kind.PUBREC: PubRec,
    Kind.PUBREL: PubRel,
    Kind.PUBCOMP: PubComp,
}


class Codec3:
    """MQTT 3.1.1. It keeps nothing: one for all connections.

    Reading raises `Refused`. What is written for an answer has two forms where it may be too long: with all that was
    given, and the bare one; it has none where this version cannot say it, and then the connection is closed.
    """

    __slots__ = ()

    version: ClassVar[int] = 4
    maximum_packet_size: int = UNLIMITED
    """Bytes of a packet that the client takes."""
    no_auth: ClassVar[str] = "AUTH is not a client's packet of MQTT 3.1.1"

    # In ------------------------------------------------------------------------------------------------

    def connect(self, reader: Reader) -> Connect:
        """CONNECT, from its flags on: the protocol's name and level are read already."""
        flags = ConnectFlags(reader.byte("the flags of CONNECT"))
        keep_alive = reader.short("the keep-alive")
        values = self._connect_values(reader, flags)
        client_id = reader.client_id()
        will = self._will(reader, flags) if flags.has_will else None
        username = reader.text("the user name") if flags.has_username else None
        password = reader.binary("the password") if flags.has_password else None
        reader.finish()
        if not client_id and not flags.clean_start and self.version == 4:
            raise Refused(Reason.CLIENT_ID_NOT_VALID, "a client without a client id must ask for a clean session")
        return Connect(self.version, client_id, flags.clean_start, keep_alive, username, password, will, **values)

    def _connect_values(self, reader: Reader, flags: ConnectFlags) -> dict[str, Any]:
        """What else the `Connect` says: in version 5, its properties."""
        if flags.has_password and not flags.has_username:
            raise Refused(Reason.MALFORMED_PACKET, "CONNECT has a password without a user name")
        return {"session_expiry": 0 if flags.clean_start else NEVER}

    def _will(self, reader: Reader, flags: ConnectFlags) -> Will:
        values = self._properties(reader, WILL)
        topic = check_topic(reader.text("the topic of the will"))
        payload = reader.binary("the will's payload")
        delay = values.pop("will_delay", 0)
        return Will(topic, payload, flags.will_qos, flags.will_retain, delay, message_properties(values))

    def _properties(self, reader: Reader, kind: int) -> dict[str, Any]:
        """The properties of a packet, or of the will: none before version 5."""
        return {}

    def publish(self, first: int, data: bytes, position: int, end: int) -> Publish:
        """PUBLISH: the hot one, so without a `Reader`."""
        qos = first >> 1 & 0x03
        if qos == 3:
            raise Refused(Reason.MALFORMED_PACKET, "the QoS of PUBLISH must be 0, 1 or 2, not 3")
        if first & 0x08 and not qos:
            raise Refused(Reason.MALFORMED_PACKET, "PUBLISH of QoS 0 must not have the dup flag")
        topic_start = position + 2
        topic_end = topic_start + (data[position] << 8 | data[position + 1]) if topic_start <= end else end + 1
        body = topic_end + 2 if qos else topic_end
        if body > end:
            raise Refused(Reason.MALFORMED_PACKET, "PUBLISH ends within its topic or packet id")
        packet_id = 0
        if qos:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if not packet_id:
                raise Refused(Reason.PROTOCOL_ERROR, "a packet id must not be 0")
        topic, properties = decode_text(data[topic_start:topic_end], "the topic"), NO_PROPERTIES
        if self.version >= 5:
            if topic and body < end and not data[body]:
                body += 1  # no properties, as in most
            else:
                topic, properties, body = self._publish_properties(topic, data, body, end)
        return Publish(
            check_topic(topic), data[body:end], qos, bool(first & 0x01), bool(first & 0x08), packet_id, properties
        )

    def _publish_properties(self, topic: str, data: bytes, body: int, end: int) -> tuple[str, PublishProperties, int]:
        """The topic that is meant, the properties, and where the payload begins."""
        return topic, NO_PROPERTIES, body

    def decode(self, kind: Kind, reader: Reader) -> Event:
        """Every other packet of a client that is let in."""
        event = self._decode(kind, reader)
        reader.finish()
        return event

    def _decode(self, kind: Kind, reader: Reader) -> Event:
        if kind is Kind.DISCONNECT:
            return self._disconnect(reader)
        if kind is Kind.AUTH:
            raise Refused(Reason.PROTOCOL_ERROR, self.no_auth)
        packet_id = reader.packet_id()
        if kind in ANSWERS:
            return ANSWERS[kind](packet_id, self._reason(kind, reader))
        values = self._properties(reader, kind)
        if not reader.left:
            raise Refused(Reason.PROTOCOL_ERROR, f"{kind.name} has no topic filter")
        if kind is Kind.UNSUBSCRIBE:
            filters: list[str] = []
            while reader.left:
                filters.append(reader.topic_filter())
            return Unsubscribe(packet_id, tuple(filters), **values)
        subscriptions: list[Subscription] = []
        while reader.left:
            subscriptions.append(self._subscription(reader.topic_filter(), reader))
        return Subscribe(packet_id, tuple(subscriptions), **values)

    def _disconnect(self, reader: Reader) -> Disconnect:
        return Disconnect()

    def _reason(self, kind: Kind, reader: Reader) -> int:
        """What an acknowledgement says beside its packet id: nothing before version 5."""
        return 0

    def _subscription(self, topic_filter: str, reader: Reader) -> Subscription:
        qos = reader.byte("the QoS of a subscription")
        if qos > 2:
            raise Refused(Reason.MALFORMED_PACKET, f"the QoS of a subscription must be 0, 1 or 2, not {qos}")
        return Subscription(topic_filter, qos)

    # Out -----------------------------------------------------------------------------------------------

    def connack(self, reason: Reason, answer: Answer) -> tuple[bytes, ...]:
        if reason in UNANSWERED:
            return ()
        code = RETURN_CODES.get(reason, SERVER_UNAVAILABLE_3)
        return (bytes((Kind.CONNACK << 4, 2, 0 if code else answer.session_present, code)),)

    def acknowledge(self, kind: Kind, packet_id: int, reason: int, text: str) -> tuple[bytes, ...]:
        """PUBACK, PUBREC, PUBREL and PUBCOMP."""
        if reason >= REFUSAL and kind in (Kind.PUBACK, Kind.PUBREC):
            return ()
        return (bytes((kind << 4 | FLAGS[kind], 2, packet_id >> 8, packet_id & 0xFF)),)

    def acknowledge_filters(self, kind: Kind, packet_id: int, reasons: Sequence[int], text: str) -> tuple[bytes, ...]:
        """SUBACK and UNSUBACK."""
        codes = bytes(min(code, SUBACK_FAILURE) for code in reasons) if kind is Kind.SUBACK else b""
        return (packet(kind << 4, packet_id.to_bytes(2, "big") + codes),)

    def disconnect(self, reason: Reason, text: str) -> tuple[bytes, ...]:
        return ()

    def delivery(
        self,
        first: int,
        topic: str,
        payload: bytes,
        packet_id: int,
        properties: PublishProperties,
        subscription_ids: Sequence[int],
    ) -> tuple[bytes, ...]:
        """A PUBLISH towards the client, in parts; empty where it is longer than the client takes.

        ValueError where a text has more than 65,535 bytes: MQTT cannot carry that.
        """
        return publish_packet(first, encode_text(topic), packet_id, b"", payload)


def check_topic(topic: str) -> str:
    """A topic name to publish to, as both versions want it."""
    if "#" in topic or "+" in topic or not topic:
        raise Refused(Reason.MALFORMED_PACKET, topic_problem(topic))
    return check_controls(topic, "the topic")


def message_properties(values: dict[str, Any]) -> PublishProperties:
    """The properties of a client's message, or of its will."""
    if "subscription_id" in values:
        raise Refused(Reason.PROTOCOL_ERROR, "a client's PUBLISH must not have a subscription id")
    if not values:
        return NO_PROPERTIES
    if problem := topic_problem(values["response_topic"]) if "response_topic" in values else "":
        raise Refused(Reason.PROTOCOL_ERROR, f"the response topic is none: {problem}")
    return PublishProperties(**values)
