"""What the engine asks of a version's codec: `v3.Codec3` and `v5.Codec5` say it in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Final

from msgspec import Struct

from penstock.wire.mqtt.kinds import Kind
from penstock.wire.mqtt.packets import Connect, Event, Publish, UserProperties
from penstock.wire.mqtt.publishing import EncodedPublish, Parts
from penstock.wire.mqtt.reader import Reader
from penstock.wire.mqtt.reasons import Reason

UNLIMITED: Final = 1 << 62


class Limits(Struct, frozen=True, kw_only=True):
    """How much of everything a client may ask for."""

    maximum_packet_size: int = 17 * 1024 * 1024
    """Bytes of one packet of a client that is let in."""
    maximum_connect_size: int = 512 * 1024
    """Bytes of a CONNECT: the most that a client may send before it is accepted."""
    receive_maximum: int = 1000
    """Publishes of QoS 1 and 2 that a version 5 client may have unanswered."""
    topic_alias_maximum: int = 64
    """Aliases that a client may set, and at most as many we set towards it."""
    connect_within_s: float = 10.0
    """Seconds from the first `tick` to the CONNECT."""


class Answer(Struct, frozen=True, gc=False):
    """What a CONNACK says besides its reason."""

    session_present: bool = False
    session_expiry: int | None = None
    assigned_client_id: str | None = None
    server_keep_alive: int | None = None
    response_information: str | None = None
    text: str = ""
    user_properties: UserProperties = ()


class Codec(ABC):
    """One connection's bytes in one version of the protocol."""

    __slots__ = ()

    version: ClassVar[int]

    @property
    @abstractmethod
    def maximum_packet_size(self) -> int:
        """Bytes of a packet that the client takes."""

    # Decoding raises `Refused`.

    @abstractmethod
    def connect(self, reader: Reader) -> Connect:
        """CONNECT, from its flags on: the protocol's name and level are read already."""

    @abstractmethod
    def publish(self, first: int, data: bytes, position: int, end: int) -> Publish:
        """PUBLISH: the hot one, so without a `Reader`."""

    @abstractmethod
    def decode(self, kind: Kind, reader: Reader) -> Event:
        """Every other packet of a client that is let in."""

    # Encoding. Every answer has two forms where it may be too long: with all that was given, and the bare one.

    @abstractmethod
    def connack(self, reason: Reason, answer: Answer) -> tuple[bytes, ...]:
        """Empty where this version cannot say it: the connection is only closed."""

    @abstractmethod
    def acknowledge(
        self, kind: Kind, packet_id: int, reason: int, text: str, user_properties: UserProperties
    ) -> tuple[bytes, ...]:
        """PUBACK, PUBREC, PUBREL and PUBCOMP. Empty where this version cannot say it."""

    @abstractmethod
    def acknowledge_filters(
        self, kind: Kind, packet_id: int, reasons: Sequence[int], text: str, user_properties: UserProperties
    ) -> tuple[bytes, ...]:
        """SUBACK and UNSUBACK."""

    @abstractmethod
    def disconnect(
        self, reason: Reason, text: str, server_reference: str | None, user_properties: UserProperties
    ) -> tuple[bytes, ...]:
        """Empty where this version has none from the server."""

    @abstractmethod
    def delivery(self, message: EncodedPublish, first: int, subscription_ids: Sequence[int]) -> Parts | None:
        """A PUBLISH towards the client; None where it is longer than the client takes."""
