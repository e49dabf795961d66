"""The parts of MQTT 5 packets of a client, as `v5.Codec5` puts them together. All of it raises `Refused`."""

from __future__ import annotations

from typing import Any, Final

from penstock.wire.mqtt.kinds import Kind
from penstock.wire.mqtt.packets import (
    NO_PROPERTIES,
    Disconnect,
    PublishProperties,
    Subscribe,
    Subscription,
    Will,
)
from penstock.wire.mqtt.properties import WILL, read_properties
from penstock.wire.mqtt.reader import Reader
from penstock.wire.mqtt.reasons import Reason, Refused
from penstock.wire.mqtt.topics import SHARE
from penstock.wire.mqtt.v3 import ConnectFlags, check_topic

PUBLISH_REASONS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
RELEASE_REASONS: Final = frozenset({0x00, 0x92})
# What the standard lets a client say; the others of DISCONNECT are a server's.
_DISCONNECT_REASONS: Final = frozenset({0x00, 0x04, *range(0x80, 0x84), *range(0x90, 0x9A)} - {0x91, 0x92})


def check_authentication(values: dict[str, Any]) -> None:
    method = values.pop("authentication_method", None)
    if method is not None:
        raise Refused(
            Reason.BAD_AUTHENTICATION_METHOD, "extended authentication is not supported: leave its method out"
        )
    if values.pop("authentication_data", None) is not None:
        raise Refused(Reason.PROTOCOL_ERROR, "CONNECT has authentication data without an authentication method")


def read_will(reader: Reader, flags: ConnectFlags) -> Will:
    values = read_properties(reader, WILL)
    topic = check_topic(reader.text("the topic of the will"))
    payload = reader.binary("the will's payload")
    delay = values.pop("will_delay", 0)
    return Will(topic, payload, flags.will_qos, flags.will_retain, delay, message_properties(values))


def message_properties(values: dict[str, Any]) -> PublishProperties:
    if "subscription_id" in values:
        raise Refused(Reason.PROTOCOL_ERROR, "a client's PUBLISH must not have a subscription id")
    if not values:
        return NO_PROPERTIES
    if "response_topic" in values:
        check_topic(values["response_topic"])
    return PublishProperties(**values)


def read_acknowledgement(kind: Kind, reader: Reader, reasons: frozenset[int]) -> tuple[int, int]:
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


def read_subscribe(reader: Reader) -> Subscribe:
    packet_id = reader.packet_id()
    values = read_properties(reader, Kind.SUBSCRIBE)
    subscriptions = []
    while reader.left:
        topic_filter = reader.text("a topic filter")
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


def read_disconnect(reader: Reader) -> Disconnect:
    if not reader.left:
        return Disconnect()
    reason = _reason(Kind.DISCONNECT, reader, _DISCONNECT_REASONS)
    values = read_properties(reader, Kind.DISCONNECT) if reader.left else {}
    if "server_reference" in values:
        raise Refused(Reason.PROTOCOL_ERROR, "a client's DISCONNECT must not name a server")
    return Disconnect(reason, **values)
