"""A client that has said CONNECT: it is let in or not, what it sends is carried out in order, and at last it is gone.

What needs the broker (publishes, subscriptions, goodbyes) stands in line and is carried out one after the other, and
publishes that follow each other together; answers to deliveries are taken at once. A client that goes is gone after
what it sent before has been carried out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.fronts.mqtt.delivering import SessionSource, Source
from penstock.fronts.mqtt.errors import Refusal, connack_reason, log
from penstock.fronts.mqtt.incoming import Incoming
from penstock.fronts.mqtt.session.documents import Session
from penstock.fronts.mqtt.session.window import Window
from penstock.fronts.mqtt.settling import Settling
from penstock.fronts.mqtt.subscription.requests import SubscriptionRequests
from penstock.model.errors import Closed, PenstockError
from penstock.wire.mqtt.packets import (
    Connect,
    Disconnect,
    Event,
    Lost,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from penstock.wire.mqtt.reasons import REFUSAL, Reason

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.fronts.mqtt.connection import Connection
    from penstock.fronts.mqtt.server import MqttServer
    from penstock.wire.mqtt.connection import ServerConnection

LINE_EVENTS: Final = 2_000
"""Queued packets at which reading from the socket pauses,"""
LINE_BYTES: Final = 4 * 1024 * 1024
"""and queued bytes of payloads."""
SHOWN_MAX: Final = 100
"""Characters of a stranger's name in the log."""
CLIENT_ID_CHARACTERS_MAX: Final = 200

Lined = Publish | PubRel | Subscribe | Unsubscribe | Disconnect | Lost


class Client:
    """See the module's description."""

    window: Window
    settling: Settling

    def __init__(self, server: MqttServer, connection: Connection, connect: Connect) -> None:
        self.server = server
        self.connection = connection
        self.engine: ServerConnection = connection.engine
        self.connect = connect
        self.broker: FrontBroker = server.broker
        """For what the client asks for, in its name once it has logged in. Its session's own queue and its place in
        the tables are the front's."""
        self.session: Session | None = None
        self._line: deque[Lined] = deque()
        self._line_bytes = 0
        self._is_reading = True
        self._is_gone = False
        self._has_will = True
        self._recording: set[int] = set()
        """Packet ids of QoS 2 deliveries whose PUBREL waits for a commit."""
        self.sources: dict[str, Source] = {}
        """By filter; the session's own queue by the empty one."""
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._live())

    # What the connection tells ----------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        """What the client says: answers are taken at once, all else stands in line."""
        if type(event) is PubAck:
            self._acknowledged(event)
        elif type(event) is PubRec:
            self._received(event)
        elif type(event) is PubComp:
            self._completed(event)
        else:
            assert not isinstance(event, PubAck | PubRec | PubComp | Connect)  # the engine refuses a second one
            self._line.append(event)
            self._wake.set()
            if type(event) is Publish:
                self._line_bytes += len(event.payload)
            if self._is_reading and (len(self._line) > LINE_EVENTS or self._line_bytes > LINE_BYTES):
                self._is_reading = False
                self.connection.pause_reading()

    def gone(self) -> None:
        """The socket has ended."""
        self._is_gone = True
        self._wake.set()

    async def kick(self, reason: Reason) -> None:
        """End the connection; returns when the session is closed."""
        self.engine.disconnect(reason)
        self.connection.flush()
        await asyncio.shield(self.finished)

    # Life -------------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            if await self._open():
                await self._work()
        except Closed:
            self.engine.disconnect(Reason.SERVER_SHUTTING_DOWN)
        except Exception:
            log.exception("the connection of %s failed", self.connection.peer)
            self.engine.disconnect(Reason.UNSPECIFIED_ERROR)
        finally:
            await self._end()

    async def _open(self) -> bool:
        """Answer the CONNECT; whether the client is let in."""
        connect, options = self.connect, self.server.options
        try:
            self._check_login()
            client_id = _check_client_id(connect.client_id) or f"auto-{secrets.token_hex(10)}"
            session, is_present = await self.server.sessions.open(connect, client_id, self)
        except Refusal as refusal:
            return self._refuse(refusal.reason, refusal.text)
        except PenstockError as error:
            return self._refuse(connack_reason(error), str(error))
        self.session = session
        self._set_up(session)
        keep_alive = options.max_keep_alive_seconds
        self.engine.connack(
            session_present=is_present,
            session_expiry=session.expiry if session.expiry != connect.session_expiry else None,
            assigned_client_id=None if connect.client_id else client_id,
            server_keep_alive=keep_alive if keep_alive and not 0 < connect.keep_alive <= keep_alive else None,
        )
        for packet_id in sorted(session.released):
            self.engine.pubrel(packet_id)
        self.connection.flush()
        await self.requests.resume()
        self.connection.let_in()
        return True

    def _refuse(self, reason: Reason, text: str) -> bool:
        self.server.measures.connections_refused += 1
        name, user = self.connect.client_id[:SHOWN_MAX], (self.connect.username or "")[:SHOWN_MAX]
        log.warning("client %r of %s, user %r, is turned away: %s", name, self.connection.peer, user, text)
        self.engine.connack(reason, text=text)
        self.connection.flush()
        return False

    def _check_login(self) -> None:
        principal = self.server.credentials.authenticate(self.connect.password or b"")
        if principal is None:
            raise Refusal(Reason.BAD_USER_NAME_OR_PASSWORD, "this server wants its token as the password")
        self.broker = self.server.broker.acting_as(principal)

    def _set_up(self, session: Session) -> None:
        server = self.server
        documents = server.sessions.documents if session.is_stored else None
        self.window = Window(min(self.connect.receive_maximum, server.options.max_in_flight), session.released)
        self.settling = Settling(server.broker, documents, session.client_id, self._release, self.fail)
        self.incoming = Incoming(server, self.broker, self.engine, session, documents)
        self.requests = SubscriptionRequests(server, self, session)

    async def _work(self) -> None:
        """Carry out what stands in line, until the client is gone and nothing is left."""
        while True:
            if not self._line:
                if self._is_gone or self.engine.closed:
                    return
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._carry_out()
            self.connection.flush()
            if not self._is_reading and len(self._line) <= LINE_EVENTS // 2 and self._line_bytes <= LINE_BYTES // 2:
                self._is_reading = True
                self.connection.resume_reading()

    async def _carry_out(self) -> None:
        """The first in line, and what can be carried out with it."""
        event = self._line[0]
        if isinstance(event, Publish | PubRel):
            batch = self.incoming.batch(self._line)
            self._line_bytes -= sum(len(one.payload) for one in batch if isinstance(one, Publish))
            await self.incoming.carry_out(batch)
            return
        self._line.popleft()
        match event:
            case Subscribe():
                await self.requests.subscribe(event)
            case Unsubscribe():
                await self.requests.unsubscribe(event)
            case Disconnect():
                self._goodbye(event)
            case Lost():
                log.info("the connection of %s ends: %s", self.connection.peer, event.text)

    def _goodbye(self, event: Disconnect) -> None:
        self._has_will = event.reason != Reason.SUCCESS
        assert self.session is not None
        if event.session_expiry is not None:
            self.session.expiry = min(event.session_expiry, self.server.options.max_session_expiry_seconds)
        self._is_gone = True

    async def _end(self) -> None:
        """Nothing more is sent or taken: close the session."""
        self.connection.flush()
        self.connection.close()
        session = self.session
        try:
            if session is not None:
                await self._leave(session)
        except Closed:
            pass
        except PenstockError as error:
            log.warning("the session of %r could not be closed: %s", session and session.client_id, error)
        finally:
            self.finished.set_result(None)

    async def _leave(self, session: Session) -> None:
        try:
            for source in self.sources.values():
                await source.stop()
            await self.settling.finish()
            await self.requests.part()
        finally:
            await self.server.sessions.close(session, self, has_will=self._has_will)

    # Answers to deliveries --------------------------------------------------------------------------------------

    def _acknowledged(self, event: PubAck) -> None:
        flight = self.window.flights.get(event.packet_id)
        if flight is None:
            if event.packet_id in self.window.released:
                self._answered_wrongly("PUBACK", event.packet_id, 2)
            return
        if flight.qos != 1:
            self._answered_wrongly("PUBACK", event.packet_id, flight.qos)
            return
        self.window.end(event.packet_id)
        flight.source.answered(flight, event.reason)

    def _received(self, event: PubRec) -> None:
        packet_id = event.packet_id
        flight = self.window.flights.get(packet_id)
        if flight is not None and flight.qos != 2:
            self._answered_wrongly("PUBREC", packet_id, flight.qos)
            return
        if flight is None:
            if packet_id not in self._recording and event.reason < REFUSAL:
                known = packet_id in self.window.released
                self.engine.pubrel(packet_id, Reason.SUCCESS if known else Reason.PACKET_ID_NOT_FOUND)
            return
        self.window.end(packet_id)
        assert flight.lease is not None
        if event.reason >= REFUSAL:
            self.settling.ack(flight.lease, flight.offset)
            return
        self.window.release(packet_id)
        self._recording.add(packet_id)
        self.settling.received(flight.lease, flight.offset, packet_id)

    def _release(self, packet_ids: list[int]) -> None:
        """These are recorded: the client may forget them too."""
        for packet_id in packet_ids:
            self._recording.discard(packet_id)
            self.engine.pubrel(packet_id)
        self.connection.flush_soon()

    def fail(self, text: str) -> None:
        """Go no further with this connection: another begins from what is recorded."""
        self.connection.disconnect(Reason.UNSPECIFIED_ERROR, text)

    def _answered_wrongly(self, packet: str, packet_id: int, qos: int) -> None:
        text = f"{packet} is no answer to packet {packet_id}, which has QoS {qos}"
        self.connection.disconnect(Reason.PROTOCOL_ERROR, text)

    def _completed(self, event: PubComp) -> None:
        flight = self.window.flights.get(event.packet_id)
        if flight is not None:
            self._answered_wrongly("PUBCOMP", event.packet_id, flight.qos)
            return
        if event.packet_id not in self._recording and self.window.complete(event.packet_id):
            self.settling.completed(event.packet_id)

    # Sources ----------------------------------------------------------------------------------------------------

    def session_source(self) -> SessionSource:
        """The deliveries of the session's own queue, begun when they are first wanted."""
        source = self.sources.get("")
        if not isinstance(source, SessionSource):
            session = self.session
            assert session is not None
            source = self.sources[""] = SessionSource(self, session)
        return source

    async def renew(self) -> None:
        """Keep what is held of queues that others consume too."""
        for source in list(self.sources.values()):
            if not isinstance(source, SessionSource):
                await source.renew()


def _check_client_id(client_id: str) -> str:
    """A client id that can be part of a queue's name."""
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise Refusal(
            Reason.CLIENT_ID_NOT_VALID,
            f"the client id has {len(client_id)} characters; the limit is {CLIENT_ID_CHARACTERS_MAX}",
        )
    if any(ord(character) < 32 or ord(character) == 127 for character in client_id):
        raise Refusal(Reason.CLIENT_ID_NOT_VALID, f"the client id {client_id!r} contains a control character")
    return client_id
