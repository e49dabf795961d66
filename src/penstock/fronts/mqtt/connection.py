"""One client's socket: bytes to the engine, its events to the `Client`, its bytes to the socket; TCP or WebSocket.

Reading stops while a CONNECT is being answered and while more has arrived than is carried out; deliveries wait while
the client does not take what was written. Knows no sessions and no broker: those are the `Client`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.fronts.answers import Backlog
from penstock.fronts.listening import begin, linger
from penstock.fronts.mqtt.client import Client
from penstock.fronts.mqtt.errors import log
from penstock.fronts.mqtt.mapping import properties_of
from penstock.wire.mqtt.connection import ServerConnection
from penstock.wire.mqtt.packets import NO_PROPERTIES, Connect, Event, Lost, UserProperties
from penstock.wire.mqtt.reasons import Reason
from penstock.wire.mqtt.websocket import WebSocketFilter

if TYPE_CHECKING:
    from penstock.fronts.mqtt.server import MqttServer
    from penstock.model import Message

LINGER_SECONDS: Final = 2.0
"""How long a client may take to read the last of what was written to it."""


class Connection(asyncio.Protocol):
    """The socket of one client."""

    __slots__ = (
        "_filter",
        "_has_room",
        "_is_closing",
        "_is_flushing",
        "_server",
        "_transport",
        "_writers",
        "backlog",
        "client",
        "engine",
        "peer",
    )

    def __init__(self, server: MqttServer, *, is_websocket: bool) -> None:
        self._server = server
        self.engine = ServerConnection(server.limits)
        self._filter: WebSocketFilter | None = None
        if is_websocket:
            given = server.credentials
            self._filter = WebSocketFilter(
                maximum_frame_size=server.limits.maximum_packet_size, any_origin=bool(given.token) or given.insecure
            )
        self._transport: asyncio.Transport | None = None
        self._has_room = True
        self._is_closing = False
        self._is_flushing = False
        self._writers: asyncio.Future[None] | None = None
        """Done when the client has taken most of what was written; None while it keeps up."""
        self.backlog = Backlog(server.answers)
        """Large deliveries that the client has not taken."""
        self.client: Client | None = None
        self.peer = ""

    # The transport's calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.peer = begin(transport)
        self._has_room = self._server.opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        self.backlog.close()
        self._server.closed(self)
        if self.client is not None:
            self.client.gone()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._server.measures.bytes_received += len(data)
        if self._filter is not None:
            data = self._filter.receive(data)
        self.take_in(self.engine.receive(data))
        self.flush()

    def pause_writing(self) -> None:
        self._writers = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        writers, self._writers = self._writers, None
        self.backlog.taken()
        if writers is not None and not writers.done():
            writers.set_result(None)

    # In -------------------------------------------------------------------------------------------------------

    def take_in(self, events: Sequence[Event]) -> None:
        for event in events:
            if self.client is not None:
                self.client.hear(event)
            elif isinstance(event, Connect):
                self._connect(event)
            elif isinstance(event, Lost):
                log.info("the connection of %s ends: %s", self.peer, event.text)

    def _connect(self, connect: Connect) -> None:
        if not self._has_room or self._server.stopping:
            reason = Reason.SERVER_SHUTTING_DOWN if self._server.stopping else Reason.SERVER_BUSY
            self.engine.connack(reason, text="the server takes no more connections now")
            return
        self.pause_reading()
        self.client = Client(self._server, self, connect)

    def let_in(self) -> None:
        """The CONNECT is answered: go on with what arrived behind it."""
        self.take_in(self.engine.receive(b""))
        self.resume_reading()
        self.flush()

    def pause_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def tick(self, now: float) -> None:
        """Look at keep-alive and other times."""
        transport, is_full = self._transport, self._writers is not None
        if is_full and transport is not None and self.backlog.is_overdue(now, transport.get_write_buffer_size()):
            log.warning("%s takes nothing of a large delivery, and is closed", self.peer)
            self.abort()
            return
        events = self.engine.tick(now)
        if events:
            self.take_in(events)
            self.flush()
        elif self.engine.closed:
            self.flush()

    # Out ------------------------------------------------------------------------------------------------------

    def deliver(
        self,
        message: Message,
        topic: str,
        published_ms: int,
        *,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        ids: tuple[int, ...],
        extra: UserProperties = (),
    ) -> bool:
        """Write a PUBLISH; False where the client does not take one so large. `flush` sends it."""
        properties = NO_PROPERTIES
        if self.engine.version == 5:
            properties = properties_of(message, published_ms, self._server.now_ms(), extra)
        self._server.measures.delivered += 1
        return self.engine.publish(
            topic,
            message.payload,
            qos=qos,
            retain=retain,
            dup=dup,
            packet_id=packet_id,
            properties=properties,
            subscription_ids=ids,
        )

    def flush(self) -> None:
        """Send what was written, and close what has ended."""
        transport = self._transport
        if transport is None or self._is_closing:
            self.engine.take()
            return
        parts = self.engine.take_parts()
        if self._filter is not None:
            if parts:
                self._filter.send(b"".join(parts))
            if self.engine.closed:
                self._filter.close()
            data = self._filter.take()
            parts = (data,) if data else ()
        if parts:
            self._server.measures.bytes_sent += sum(map(len, parts))
            if len(parts) == 1:
                transport.write(parts[0])
            else:
                transport.writelines(parts)
        if self._writers is None:
            self.backlog.taken()
        if self.engine.closed or (self._filter is not None and self._filter.closed):
            self.close()

    def flush_soon(self) -> None:
        """Flush at the end of this loop turn, so that several writes are one packet on the network."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    @property
    def keeps_up(self) -> bool:
        """Whether the client takes what is written."""
        return self._writers is None

    async def writable(self) -> None:
        """Until the client has taken most of what was written."""
        while self._writers is not None:
            await asyncio.shield(self._writers)

    def disconnect(self, reason: Reason, text: str) -> None:
        """Say why, and close."""
        self.engine.disconnect(reason, text=text)
        self.flush_soon()

    def close(self) -> None:
        """Close when the client has taken what was written and closes too, or after a moment."""
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            linger(self._transport)
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            log.debug("the connection of %s is cut", self.peer)
            self._transport.abort()
