"""The engine of one client's MQTT connection: feed it what comes from the socket, write what `take` gives.

It chooses the version by the first packet, checks every packet as the standard says, answers pings, resolves and gives
topic aliases, and holds to the packet sizes of both sides. It does not know sessions: packet ids, redelivery, what is
in flight and who subscribed to what are the front's.

How a front uses it:

- `receive` never raises. After `Connect` it holds back what follows until `connack`; then call `receive(b"")` for
  that. Until then read no more from the socket.
- After each call look at `take()`; when `closed` is true write that, close the socket and drop the engine.
- `Lost` comes at most once and last. `Disconnect` comes last too. When the socket ends without either, the client is
  lost all the same.
- Call `tick(now)` about once a second, with a clock that only goes forward (seconds).
- A refusal (reason from 0x80 on) in `puback` and `pubrec` closes a 3.1.1 connection, which has no other way to say it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.wire.mqtt.packets import NO_PROPERTIES, Event, PublishProperties, UserProperties
from penstock.wire.mqtt.publishing import EncodedPublish
from penstock.wire.mqtt.reasons import Reason


class Limits(Struct, frozen=True, kw_only=True):
    """How much of everything a client may ask for."""

    maximum_packet_size: int = 17 * 1024 * 1024
    """Bytes of one packet of a client that is let in."""
    maximum_connect_size: int = 512 * 1024
    """Bytes of a CONNECT: what somebody may send who is not let in yet."""
    receive_maximum: int = 1000
    """Publishes of QoS 1 and 2 that a version 5 client may have unanswered."""
    topic_alias_maximum: int = 64
    """Aliases that a client may set, and at most as many we set towards it."""
    connect_within_s: float = 10.0
    """Seconds from the first `tick` to the CONNECT."""


class ServerConnection:
    """One client's connection: see the module's description."""

    version: int
    """0 before the CONNECT, then 4 (MQTT 3.1.1) or 5."""
    closed: bool
    """Nothing more goes in or out, but for what `take` still gives."""

    def __init__(self, limits: Limits) -> None: ...

    # In ------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What the client says with these bytes, in order."""

    def tick(self, now: float) -> list[Event]:
        """`Lost` when the CONNECT or the next packet is overdue (1.5 times the keep-alive)."""

    # Out -----------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """What is to be written now."""

    def connack(
        self,
        reason: int = Reason.SUCCESS,
        *,
        session_present: bool = False,
        session_expiry: int | None = None,
        assigned_client_id: str | None = None,
        server_keep_alive: int | None = None,
        response_information: str | None = None,
        text: str = "",
        user_properties: UserProperties = (),
    ) -> None:
        """Let the client in, or refuse it and close. The limits are told by the engine; what is not named in 3.1.1
        (all but `session_present`) is left out there, so a shorter keep-alive binds version 5 clients only.
        """

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

    def publish_encoded(
        self,
        message: EncodedPublish,
        *,
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        subscription_ids: Sequence[int] = (),
    ) -> bool:
        """`publish` for a message that goes to many: encoded once, for all connections of both versions."""

    def puback(self, packet_id: int, reason: int = 0, *, text: str = "", user_properties: UserProperties = ()) -> None:
        """Answer a publish of QoS 1."""

    def pubrec(self, packet_id: int, reason: int = 0, *, text: str = "", user_properties: UserProperties = ()) -> None:
        """Answer a publish of QoS 2; a refusal ends the exchange."""

    def pubrel(self, packet_id: int, reason: int = 0) -> None:
        """Answer a `PubRec`."""

    def pubcomp(self, packet_id: int, reason: int = 0) -> None:
        """Answer a `PubRel`; `PACKET_ID_NOT_FOUND` for one that is not known (3.1.1: plain)."""

    def suback(
        self, packet_id: int, reasons: Sequence[int], *, text: str = "", user_properties: UserProperties = ()
    ) -> None:
        """One code for each subscription: the QoS granted or a refusal (3.1.1: 0x80 for each of these)."""

    def unsuback(
        self, packet_id: int, reasons: Sequence[int], *, text: str = "", user_properties: UserProperties = ()
    ) -> None:
        """One code for each filter (3.1.1: none)."""

    def disconnect(
        self,
        reason: int = Reason.SUCCESS,
        *,
        text: str = "",
        server_reference: str | None = None,
        user_properties: UserProperties = (),
    ) -> None:
        """End the connection: version 5 is told why, 3.1.1 is only closed. Harmless when it has ended already."""
