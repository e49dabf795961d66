"""What a server says to one MQTT client: deliveries, answers and the end, in its version and within its limits.

The half of `connection.ServerConnection` that writes; nothing is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from penstock.wire.mqtt.codec import Answer
from penstock.wire.mqtt.packets import NO_PROPERTIES, Kind, PublishProperties
from penstock.wire.mqtt.reasons import REFUSAL, Reason
from penstock.wire.mqtt.v3 import Codec3

PUBLISH: Final = 0x30
DUP: Final = 0x08
RETAIN: Final = 0x01
LARGE_PAYLOAD_BYTES: Final = 1024 * 1024


class State(Enum):
    """How far a connection is."""

    NEW = auto()
    """No CONNECT yet."""
    ASKED = auto()
    """A CONNECT that is not answered."""
    OPEN = auto()
    CLOSED = auto()


class Outgoing:
    """What is to be written to one client."""

    __slots__ = ("_codec", "_is_large", "_out", "_state", "_unanswered")

    def __init__(self) -> None:
        self._state = State.NEW
        self._codec: Codec3 | None = None
        self._out: list[bytes] = []
        self._is_large = False
        """Whether a large payload is to be written."""
        self._unanswered: set[int] = set()
        """Packet ids of a version 5 client's publishes that have no answer yet."""

    @property
    def version(self) -> int:
        """0 before the CONNECT, then 4 (MQTT 3.1.1) or 5."""
        return 0 if self._codec is None else self._codec.version

    @property
    def closed(self) -> bool:
        """Nothing more goes in or out, but for what `take` still gives."""
        return self._state is State.CLOSED

    def take(self) -> bytes:
        """What is to be written now."""
        return b"".join(self.take_parts())

    def take_parts(self) -> Sequence[bytes]:
        """The same as one part or, where a large payload is among it, as several, which are not copied."""
        out, self._out = self._out, []
        if self._is_large:
            self._is_large = False
            return out
        return (b"".join(out),) if out else ()

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: PublishProperties = NO_PROPERTIES,
        subscription_ids: Sequence[int] = (),
    ) -> bool:
        """Deliver a message. False: longer than the client takes; it was not sent and must be dropped for it."""
        if self._state is not State.OPEN or self._codec is None:
            return True
        first = PUBLISH | qos << 1 | (RETAIN if retain else 0) | (DUP if dup and qos else 0)
        parts = self._codec.delivery(first, topic, payload, packet_id, properties, subscription_ids)
        self._out += parts
        self._is_large = self._is_large or len(payload) >= LARGE_PAYLOAD_BYTES
        return bool(parts)

    def puback(self, packet_id: int, reason: int = 0, *, text: str = "") -> None:
        """Answer a publish of QoS 1."""
        self._unanswered.discard(packet_id)
        self._acknowledge(Kind.PUBACK, packet_id, reason, text)

    def pubrec(self, packet_id: int, reason: int = 0, *, text: str = "") -> None:
        """Answer a publish of QoS 2; a refusal ends the exchange."""
        if reason >= REFUSAL:
            self._unanswered.discard(packet_id)
        self._acknowledge(Kind.PUBREC, packet_id, reason, text)

    def pubrel(self, packet_id: int, reason: int = 0) -> None:
        """Answer a `PubRec`."""
        self._acknowledge(Kind.PUBREL, packet_id, reason)

    def pubcomp(self, packet_id: int, reason: int = 0) -> None:
        """Answer a `PubRel`; `PACKET_ID_NOT_FOUND` for one that is not known (3.1.1: plain)."""
        self._unanswered.discard(packet_id)
        self._acknowledge(Kind.PUBCOMP, packet_id, reason)

    def _acknowledge(self, kind: Kind, packet_id: int, reason: int, text: str = "") -> None:
        if self._state is State.OPEN and self._codec is not None:
            # Where the version has no way to refuse, there is no form, and the connection closes.
            self._send(self._codec.acknowledge(kind, packet_id, reason, text))

    def suback(self, packet_id: int, reasons: Sequence[int], *, text: str = "") -> None:
        """One code for each subscription: the QoS granted or a refusal (3.1.1: 0x80 for each of these)."""
        self._acknowledge_filters(Kind.SUBACK, packet_id, reasons, text)

    def unsuback(self, packet_id: int, reasons: Sequence[int], *, text: str = "") -> None:
        """One code for each filter (3.1.1: none)."""
        self._acknowledge_filters(Kind.UNSUBACK, packet_id, reasons, text)

    def _acknowledge_filters(self, kind: Kind, packet_id: int, reasons: Sequence[int], text: str) -> None:
        if self._state is State.OPEN and self._codec is not None:
            self._send(self._codec.acknowledge_filters(kind, packet_id, reasons, text))

    def disconnect(self, reason: int = Reason.SUCCESS, *, text: str = "") -> None:
        """End the connection: version 5 is told why, 3.1.1 is only closed. Harmless when it has ended already."""
        if self._codec is not None:
            told = Reason(reason)
            # Before a CONNACK that lets the client in there is no DISCONNECT: the CONNACK says it.
            if self._state is State.ASKED:
                self._send(self._codec.connack(told, Answer(text=text)))
            elif self._state is State.OPEN:
                self._send(self._codec.disconnect(told, text))
        self._close()

    def _send(self, forms: tuple[bytes, ...]) -> bool:
        """The fullest form that the client takes; where it takes none, the connection cannot go on."""
        for form in forms:
            if self._codec is not None and len(form) <= self._codec.maximum_packet_size:
                self._out.append(form)
                return True
        self._close()
        return False

    def _close(self) -> None:
        self._state = State.CLOSED
