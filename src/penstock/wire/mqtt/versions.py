"""Which version of MQTT a client speaks: the name and level at the start of its CONNECT choose the codec."""

# ruff: noqa: ARG002 - what is refused is not read

from __future__ import annotations

from typing import Final

from penstock.wire.mqtt.codec import Answer, Limits
from penstock.wire.mqtt.packets import Connect
from penstock.wire.mqtt.reader import Reader
from penstock.wire.mqtt.reasons import Reason, Refused
from penstock.wire.mqtt.v3 import Codec3
from penstock.wire.mqtt.v5 import Codec5

NAMES: Final = (b"MQTT", b"MQIsdp")
"""The second one is of MQTT 3.1, which is answered but not spoken."""
BRIDGE: Final = 0x80
"""Mosquitto's bridges add this to the level at first, and do without when it is refused."""
SPOKEN_3: Final = Codec3()


class UnspokenCodec3(Codec3):
    """Refuses a level that is not spoken, in the form that 3.1.1 and older clients read."""

    def connect(self, reader: Reader) -> Connect:
        raise Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT 3.1.1 (level 4) and MQTT 5 are spoken here")


class UnspokenCodec5(Codec5):
    """Refuses a level above 5, in the form of version 5."""

    def connect(self, reader: Reader) -> Connect:
        raise Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT 3.1.1 (level 4) and MQTT 5 are spoken here")

    def connack(self, reason: Reason, answer: Answer) -> tuple[bytes, ...]:
        # The reason alone: a version that we do not know may read texts differently.
        return super().connack(reason, Answer())


def choose_codec(reader: Reader, limits: Limits) -> Codec3 | Codec5:
    """Read name and level; `Refused` where this is not MQTT at all, which is closed without an answer."""
    name = reader.binary("the protocol's name")
    if name not in NAMES:
        raise Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"the protocol's name is {name[:20]!r}, not b'MQTT'")
    level = reader.byte("the protocol's level")
    if name == b"MQTT":
        if level == 4:
            return SPOKEN_3
        if level == 5:
            return Codec5(limits)
        if 5 < level < BRIDGE:
            return UnspokenCodec5(limits)
    return UnspokenCodec3()
