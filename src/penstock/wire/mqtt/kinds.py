"""The kinds of MQTT packets: their numbers, names, who sends them and their fixed flags."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from penstock.wire.mqtt.reasons import Reason, Refused


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
