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

from typing import Final

from penstock.wire.mqtt.codec import Answer
from penstock.wire.mqtt.codec import Limits as Limits  # noqa: PLC0414 - fronts take it from here
from penstock.wire.mqtt.incoming import IncomingPackets
from penstock.wire.mqtt.outgoing import Outgoing, State
from penstock.wire.mqtt.packets import (
    FLAGS,
    PINGRESP,
    Connect,
    Disconnect,
    Event,
    Kind,
    Lost,
    Publish,
    check_first_byte,
)
from penstock.wire.mqtt.reader import Reader
from penstock.wire.mqtt.reasons import Reason, Refused
from penstock.wire.mqtt.v3 import ANSWERS, Codec3
from penstock.wire.mqtt.v5 import Codec5

# Looked at for every packet, so plain numbers.
PUBLISH_KIND: Final = int(Kind.PUBLISH)
PINGREQ: Final = int(Kind.PINGREQ) << 4
PLAIN_ANSWERS: Final = {kind << 4 | FLAGS[kind]: event for kind, event in ANSWERS.items()}
"""By their first byte."""

NAMES: Final = (b"MQTT", b"MQIsdp")
"""The second one is of MQTT 3.1, which is answered but not spoken."""
BRIDGE: Final = 0x80
"""Mosquitto's bridges add this to the level at first, and do without when it is refused."""
SPOKEN_3: Final = Codec3()
PROGRESS_BYTES: Final = 1024
"""Bytes of a long packet that count as a sign of life, like a short packet."""


class ServerConnection(Outgoing):
    """One client's connection: see the module's description."""

    __slots__ = ("_bytes", "_connect", "_heard", "_incoming", "_keep_alive", "_limits", "_silent_since")

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self._limits = limits
        self._incoming = IncomingPackets(min(limits.maximum_connect_size, limits.maximum_packet_size))
        self._connect: Connect | None = None
        self._keep_alive = 0
        self._heard = True
        """A packet came since the last tick,"""
        self._bytes = 0
        """or so many bytes of one."""
        self._silent_since = 0.0

    # In ------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What the client says with these bytes, in order."""
        events: list[Event] = []
        if self._state is State.CLOSED:
            return events
        self._bytes += len(data)
        try:
            self._incoming.feed(data)
            if self._state is State.NEW:
                self._check_first()
            if self._state is State.ASKED:
                self._incoming.check_waiting()
            else:
                self._read_packets(events)
        except Refused as refused:
            events.append(self._fail(refused.reason, refused.text))
        return events

    def _read_packets(self, events: list[Event]) -> None:
        incoming = self._incoming
        if not incoming.next():
            return
        self._heard = True
        while True:
            first = incoming.first
            if self._state is State.NEW:
                events.append(self._read_connect(first))
                return
            if first >> 4 == PUBLISH_KIND:
                events.append(self._read_publish(first))
            elif incoming.end - incoming.start == 2 and first in PLAIN_ANSWERS:
                events.append(self._read_plain_answer(first))
            elif first == PINGREQ and incoming.start == incoming.end:
                self._out.append(PINGRESP)
            else:
                event = self._read_other(first)
                events.append(event)
                if isinstance(event, Disconnect):
                    self._close()
                    return
            if not incoming.next():
                return

    def _check_first(self) -> None:
        """Who does not speak MQTT is told so by the first byte, not when a packet's length of bytes is there."""
        first = self._incoming.peek()
        if first is not None and first >> 4 != Kind.CONNECT:
            raise Refused(Reason.PROTOCOL_ERROR, "the first packet must be CONNECT")

    def _read_connect(self, first: int) -> Connect:
        check_first_byte(first)
        reader = Reader(self._incoming.data, self._incoming.start, self._incoming.end)
        name = reader.binary("the protocol's name")
        if name not in NAMES:  # not MQTT at all: closed without an answer
            raise Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"the protocol's name is {name[:20]!r}, not b'MQTT'")
        level = reader.byte("the protocol's level")
        self._codec = Codec5(self._limits) if name == b"MQTT" and 5 <= level < BRIDGE else SPOKEN_3
        # From here on a fault is answered in the client's version.
        self._state = State.ASKED
        if name != b"MQTT" or level not in (4, 5):
            raise Refused(Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT 3.1.1 (level 4) and MQTT 5 are spoken here")
        connect = self._codec.connect(reader)
        self._connect = connect
        self._keep_alive = connect.keep_alive
        return connect

    def _read_publish(self, first: int) -> Publish:
        assert self._codec is not None
        incoming = self._incoming
        event = self._codec.publish(first, incoming.data, incoming.start, incoming.end)
        if event.qos and self._codec.version >= 5:
            unanswered = self._unanswered
            if len(unanswered) >= self._limits.receive_maximum and event.packet_id not in unanswered:
                raise Refused(
                    Reason.RECEIVE_MAXIMUM_EXCEEDED,
                    f"more than {self._limits.receive_maximum} publishes of QoS 1 and 2 are unanswered",
                )
            unanswered.add(event.packet_id)
        return event

    def _read_plain_answer(self, first: int) -> Event:
        """An acknowledgement that says nothing but its packet id, as most do in both versions."""
        data, start = self._incoming.data, self._incoming.start
        packet_id = data[start] << 8 | data[start + 1]
        if not packet_id:
            raise Refused(Reason.PROTOCOL_ERROR, "a packet id must not be 0")
        return PLAIN_ANSWERS[first](packet_id)

    def _read_other(self, first: int) -> Event:
        assert self._codec is not None
        assert self._connect is not None
        kind = check_first_byte(first)
        if kind is Kind.CONNECT:
            raise Refused(Reason.PROTOCOL_ERROR, "a second CONNECT on the same connection")
        if kind is Kind.PINGREQ:
            raise Refused(Reason.MALFORMED_PACKET, "PINGREQ must have no body")
        reader = Reader(self._incoming.data, self._incoming.start, self._incoming.end)
        event = self._codec.decode(kind, reader)
        if isinstance(event, Disconnect) and event.session_expiry and not self._connect.session_expiry:
            raise Refused(
                Reason.PROTOCOL_ERROR, "DISCONNECT cannot give an expiry to a session that ends with its connection"
            )
        return event

    def tick(self, now: float) -> list[Event]:
        """`Lost` when the CONNECT or the next packet is overdue (1.5 times the keep-alive).

        Between two ticks only whether something came is known, so silence is counted from the tick after it: never too
        long.
        """
        if self._heard or self._bytes >= PROGRESS_BYTES:
            self._heard, self._bytes, self._silent_since = False, 0, now
        silent = now - self._silent_since
        if self._state is State.OPEN:
            if self._keep_alive and silent > self._keep_alive * 1.5:
                text = f"no packet for {silent:.0f} s, with a keep-alive of {self._keep_alive} s"
                return [self._fail(Reason.KEEP_ALIVE_TIMEOUT, text)]
        elif self._state is State.NEW and silent > self._limits.connect_within_s:
            text = f"no CONNECT within {self._limits.connect_within_s:g} s"
            return [self._fail(Reason.KEEP_ALIVE_TIMEOUT, text)]
        return []

    def _fail(self, reason: Reason, text: str) -> Lost:
        """End the connection by a fault of the client, and tell it as far as its version can."""
        self.disconnect(reason, text=text)
        return Lost(reason, text)

    # Letting in ----------------------------------------------------------------------------------------

    def connack(
        self,
        reason: int = Reason.SUCCESS,
        *,
        session_present: bool = False,
        session_expiry: int | None = None,
        assigned_client_id: str | None = None,
        server_keep_alive: int | None = None,
        text: str = "",
    ) -> None:
        """Let the client in, or refuse it and close.

        The limits are told by the engine. 3.1.1 has only `session_present` of these: the others are left out there,
        so a keep-alive of the server binds clients of version 5 only.
        """
        if self._state is State.CLOSED:
            return
        if self._state is not State.ASKED or self._codec is None:
            raise RuntimeError("connack is the answer to Connect, which has not come or has been answered")
        told = Reason(reason)
        answer = Answer(session_present, session_expiry, assigned_client_id, server_keep_alive, text)
        sent = self._send(self._codec.connack(told, answer))
        if told is not Reason.SUCCESS or not sent:
            self._close()
            return
        self._state = State.OPEN
        self._incoming.maximum = self._limits.maximum_packet_size
        if server_keep_alive is not None and self._codec.version >= 5:
            self._keep_alive = server_keep_alive

    def _close(self) -> None:
        super()._close()
        self._incoming.drop()
