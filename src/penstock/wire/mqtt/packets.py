"""What MQTT packets hold, the same for 3.1.1 and 5: their kinds, the events of a connection and their parts.

Plain data. A field that 3.1.1 does not have holds what version 5 says it means when it is absent.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeAlias

from msgspec import Struct

from penstock.wire.mqtt.reasons import Reason, Refused

# Kinds ---------------------------------------------------------------------------------------------------


class Kind(IntEnum):
    """A packet's kind: the upper half of its first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


FROM_SERVER: Final = frozenset({Kind.CONNACK, Kind.SUBACK, Kind.UNSUBACK, Kind.PINGRESP})
PINGRESP: Final = bytes((Kind.PINGRESP << 4, 0))

# The lower half of the first byte: only PUBLISH says something with it.
FLAGS: Final = {kind: 2 if kind in (Kind.PUBREL, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE) else 0 for kind in Kind}


def check_first_byte(first: int) -> Kind:
    """The kind of a packet that a client may send, with the flags that it must have; not for PUBLISH."""
    try:
        kind = Kind(first >> 4)
    except ValueError:
        raise Refused(Reason.MALFORMED_PACKET, "packets of kind 0 are not in the standard") from None
    if first & 0x0F != FLAGS[kind]:
        raise Refused(Reason.MALFORMED_PACKET, f"the flags of {kind.name} must be {FLAGS[kind]}, not {first & 0x0F}")
    if kind in FROM_SERVER:
        raise Refused(Reason.PROTOCOL_ERROR, f"{kind.name} is a server's packet, not a client's")
    return kind


# Parts ---------------------------------------------------------------------------------------------------

UserProperties: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values in the order in which they came; a name may come several times."""

NEVER: Final = 0xFFFFFFFF
"""A session expiry with this value means never. A 3.1.1 client without clean session has it."""


class PublishProperties(Struct, frozen=True, gc=False):
    """What version 5 says about a message besides its topic; all of it travels on to subscribers."""

    payload_format: int | None = None
    """1 where the publisher says that the payload is UTF-8 text, 0 where it says that it is bytes; None: not said."""
    message_expiry: int | None = None
    """Seconds; on the way to a subscriber, the seconds left."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: UserProperties = ()


NO_PROPERTIES: Final = PublishProperties()


class Will(Struct, frozen=True, gc=False):
    """What is published for a client that goes without saying so."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay: int = 0
    """Seconds between the loss of the connection and the publish."""
    properties: PublishProperties = NO_PROPERTIES


# Events --------------------------------------------------------------------------------------------------


class Connect(Struct, frozen=True, gc=False):
    """The client asks to be let in; answer with `ServerConnection.connack`. Nothing else comes before that."""

    version: int
    """4 is MQTT 3.1.1, 5 is MQTT 5."""
    client_id: str
    """Empty: the server gives one (3.1.1 then has `clean_start`: the engine refuses what has not)."""
    clean_start: bool
    keep_alive: int
    """Seconds; 0 for none."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    session_expiry: int = 0
    """Seconds that the session outlives the connection; 3.1.1: 0 with clean session, else `NEVER`."""
    receive_maximum: int = 65535
    """How many deliveries of QoS 1 and 2 may be in flight to the client; the front keeps to it."""
    maximum_packet_size: int | None = None
    """The client takes no longer packet; the engine holds to it."""
    topic_alias_maximum: int = 0
    request_response_information: bool = False
    request_problem_information: bool = True
    user_properties: UserProperties = ()


class Publish(Struct, frozen=True, gc=False):
    """The client publishes. QoS 1 wants `puback`, QoS 2 `pubrec` and, after `PubRel`, `pubcomp`."""

    topic: str
    """Valid: not empty, no wildcard; a topic alias is resolved already."""
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    """0 for QoS 0."""
    properties: PublishProperties = NO_PROPERTIES


class Acknowledgement(Struct, frozen=True, gc=False):
    """A step in the exchange of a publish or delivery of QoS 1 or 2."""

    packet_id: int
    reason: int = 0


class PubAck(Acknowledgement, frozen=True, gc=False):
    """The client has a delivery of QoS 1."""


class PubRec(Acknowledgement, frozen=True, gc=False):
    """The client has a delivery of QoS 2: answer with `pubrel`, unless it refused (`reason` from 0x80 on)."""


class PubRel(Acknowledgement, frozen=True, gc=False):
    """The client will not send this packet of QoS 2 again: answer with `pubcomp`."""


class PubComp(Acknowledgement, frozen=True, gc=False):
    """A delivery of QoS 2 is over."""


class Subscription(Struct, frozen=True, gc=False):
    """One filter of a SUBSCRIBE. The filter is not empty; whether it is valid is for `topics.filter_problem`."""

    filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """Retained messages: 0 always, 1 only for a new subscription, 2 never."""


class Subscribe(Struct, frozen=True, gc=False):
    """Answer with `suback`: one code for each subscription, 0x8F for a filter that is not valid."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    subscription_id: int | None = None
    user_properties: UserProperties = ()


class Unsubscribe(Struct, frozen=True, gc=False):
    """Answer with `unsuback`: one code for each filter."""

    packet_id: int
    filters: tuple[str, ...]
    user_properties: UserProperties = ()


class Disconnect(Struct, frozen=True, gc=False):
    """The client says that it goes: no will, unless `reason` is `Reason.DISCONNECT_WITH_WILL` or a refusal."""

    reason: int = 0
    session_expiry: int | None = None
    """Seconds in place of those of `Connect`, where it says so."""
    text: str = ""
    user_properties: UserProperties = ()


class Lost(Struct, frozen=True, gc=False):
    """The connection ends by a fault: write what `take` gives, close, and publish the will if there was a Connect."""

    reason: Reason
    text: str


Event: TypeAlias = Connect | Publish | PubAck | PubRec | PubRel | PubComp | Subscribe | Unsubscribe | Disconnect | Lost
