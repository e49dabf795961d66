"""One client: an asyncio protocol between its socket and the wire, with its channels and its session.

What arrives together is read together, and what is to be said in one turn of the loop is written at once. A client that
publishes faster than the store takes it is not read from until the store has caught up, and is told so where that takes
long; one that does not read gets no more deliveries. Its session, and with it all that it has alone, ends with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.api.principal import ANONYMOUS
from penstock.fronts.amqp091.channel import Channel
from penstock.fronts.amqp091.mapping import Reader
from penstock.fronts.amqp091.names import namespace_of
from penstock.fronts.answers import Backlog
from penstock.fronts.listening import begin, linger
from penstock.model import check_name
from penstock.model.errors import NotFound, PenstockError
from penstock.wire.amqp091 import codes, events
from penstock.wire.amqp091.connection import ServerConnection
from penstock.wire.amqp091.events import Publish

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.fronts.amqp091.server import AmqpServer

PUBLISH_BYTES: Final = 512
"""What a publish takes beside its body while it waits, about."""
BLOCKED_AFTER_SECONDS: Final = 0.5
"""Where a client must wait for longer than this to publish, it is told."""
AGAIN_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 3.0

log = logging.getLogger("penstock.amqp")


class Connection(asyncio.Protocol):
    """See the module's description."""

    def __init__(self, host: AmqpServer) -> None:
        self.host = host
        self.wire = ServerConnection(host.limits)
        self.broker: FrontBroker = host.broker
        self.principal = ANONYMOUS
        """Who has logged in."""
        self.vhost = ""
        self.namespace = ""
        self.name = ""
        self.peer = ""
        self.reader = Reader()
        self.is_full = False
        """The client does not take what is written."""
        self.backlog = Backlog(host.answers)
        """Large deliveries that it has not taken."""
        self.channels: dict[int, Channel] = {}
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_flushing = False
        self._is_paused = False
        self._pending = 0
        """Bytes of publishes that are not stored yet."""
        self._blocking: asyncio.TimerHandle | None = None
        self._is_blocked = False
        self._has_published = False
        self._is_alarmed = False
        """The client was told that the server is low on something."""
        self._ending: asyncio.Task[None] | None = None
        self._ended = False
        """The socket is closed."""
        self._is_let_go = False
        """All that it had is given back."""
        self._close_by = 0.0

    def now(self) -> float:
        return self._loop.time()

    @property
    def hears_cancels(self) -> bool:
        """Whether the client can be told that a consumer is gone."""
        told = self.wire.client_properties.get("capabilities")
        return isinstance(told, dict) and told.get("consumer_cancel_notify") is True

    # The transport's calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.peer = begin(transport)
        if not self.host.opened(self) or self.host.stopping:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._close_by:
            return
        handlers = HANDLERS
        for event in self.wire.receive(data):
            handlers[type(event)](self, event)
        self._work_all()
        self.flush()

    def pause_writing(self) -> None:
        self.is_full = True
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                self.keep(self._loop.create_task(consumer.hold()))

    def resume_writing(self) -> None:
        self.is_full = False
        self.backlog.taken()
        for channel in self.channels.values():
            channel.look()

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended = True
        self.is_full = True
        self.backlog.close()
        self.end("the socket was closed")
        if self._is_let_go:
            self.host.closed(self)

    # What is said -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what is to be said."""
        parts = self.wire.take_parts()
        if parts and not self._ended and not self._close_by:
            if len(parts) == 1:
                self._transport.write(parts[0])
            else:
                self._transport.writelines(parts)
            if not self.is_full:
                self.backlog.taken()
        if self.wire.finished and not self._ended:
            self._close()

    def _close(self) -> None:
        """Close the socket when all is written and the client closes it too; it has a moment for that."""
        if not self._close_by:
            self._close_by = self.now() + CLOSE_SECONDS
            linger(self._transport)

    def flush_soon(self) -> None:
        """The same at the end of this turn of the loop, together with what else is said in it."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._is_flushing = False
        self.flush()

    # What is heard ----------------------------------------------------------------------------------------

    def _login(self, event: events.Login) -> None:
        principal = self.host.credentials.authenticate(event.password.encode())
        if principal is None:
            text = (
                f"login was refused for user '{event.user}' using authentication mechanism {event.mechanism}: "
                "the password must be the server's token"
            )
            self.wire.refuse_login(text)
            self._turn_away(text)
            return
        self.principal = principal
        self.reader.user = event.user
        self.wire.accept_login()

    def _new_secret(self, event: events.NewSecret) -> None:
        principal = self.host.credentials.authenticate(event.password.encode())
        if principal == self.principal:
            self.wire.accept_secret()
            return
        text = "the new secret was refused: it must be the server's token"
        self.wire.connection_error(codes.NOT_ALLOWED, text, 10, 70)
        self._turn_away(text)

    def _turn_away(self, text: str) -> None:
        log.warning("%s is turned away: %s", self.peer, text)
        self.end(text)

    def _open(self, event: events.OpenVhost) -> None:
        self.vhost = event.name
        try:
            self.namespace = check_name(namespace_of(event.name), "a vhost")
            self._check_known()
        except PenstockError as error:
            self.wire.refuse_vhost(str(error))
            self._turn_away(str(error))
            return
        self.broker = self.host.new_session(self.namespace, self.principal)
        self.name = self.broker.consumer_name
        self.wire.accept_vhost()

    def _check_known(self) -> None:
        """Raise where nothing is declared in the vhost: more often than not its name is a mistake."""
        if not self.host.options.create_vhosts and not self.broker.in_namespace(self.namespace).knows_namespace():
            raise NotFound(
                f"vhost '{self.vhost}' not found: nothing is declared in it. "
                "Declare a queue there by HTTP, or set amqp.create_vhosts"
            )

    def _channel_opened(self, event: events.ChannelOpened) -> None:
        self.host.measures.channels += 1
        self.channels[event.channel] = Channel(self, event.channel)

    def _channel_closed(self, event: events.ChannelClosed) -> None:
        channel = self.channels.pop(event.channel, None)
        if channel is not None:
            self.keep(self._loop.create_task(self._close_channel(channel, is_asked=event.by_client)))

    async def _close_channel(self, channel: Channel, *, is_asked: bool) -> None:
        """Finish what came before, then say that it is closed, where that was asked for."""
        await channel.close()
        self.host.measures.channels -= 1
        if is_asked:
            self.wire.close_ok(channel.number)
            self.flush_soon()

    def channel_failed(self, channel: Channel) -> None:
        """A fault has closed it; the client knows."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self.keep(self._loop.create_task(self._close_channel(channel, is_asked=False)))

    def _published(self, event: Publish) -> None:
        channel = self.channels.get(event.channel)
        if channel is None:
            return
        channel.publish(event)
        self._has_published = True
        self._pending += len(event.body) + PUBLISH_BYTES
        if self._pending > self.host.options.max_pending_bytes and not self._is_paused:
            self._pause()

    def _settled(self, event: events.Ack | events.Nack | events.Reject) -> None:
        channel = self.channels.get(event.channel)
        if channel is not None:
            channel.settle(event)

    def _work_all(self) -> None:
        """What was read together is done together."""
        for channel in list(self.channels.values()):
            channel.work()
            if channel.settling.dirty:
                channel.settling.start()

    def _method(self, event: events.Method) -> None:
        channel = self.channels.get(event.channel)
        if channel is not None:
            channel.method(event.method)

    def _closed(self, _event: events.Closed) -> None:
        self.end("the client has closed it")

    def _failed_wire(self, event: events.Failed) -> None:
        log.info("%s has broken the protocol: %d %s", self.peer, event.code, event.text)
        self.end(event.text)

    def _lost(self, event: events.Lost) -> None:
        if self._ending is None:
            log.info("the connection of %s ends: %s", self.peer, event.reason)
        self.end(event.reason)
        self.flush()

    # Back-pressure ----------------------------------------------------------------------------------------

    def published(self, done: Sequence[Publish]) -> None:
        """These are stored, or will never be."""
        self._pending -= sum(len(event.body) + PUBLISH_BYTES for event in done)
        if self._is_paused and self._pending <= self.host.options.max_pending_bytes // 2:
            self._resume()

    def _pause(self) -> None:
        self._is_paused = True
        self._transport.pause_reading()
        self._blocking = self._loop.call_later(BLOCKED_AFTER_SECONDS, self._block)

    def _block(self) -> None:
        self._is_blocked = True
        if not self._is_alarmed:
            self.wire.block("the store takes messages more slowly than they are published")
            self.flush()

    def _resume(self) -> None:
        self._is_paused = False
        if self._blocking is not None:
            self._blocking.cancel()
            self._blocking = None
        if self._is_blocked:
            self._is_blocked = False
            if not self._is_alarmed:
                self.wire.unblock()
                self.flush_soon()
        if not self._ended:
            self._transport.resume_reading()

    def _look_at_alarms(self) -> None:
        """Tell a client that publishes when the server is low on something, and when it is not any more."""
        alarms = self.host.broker.alarms()
        if bool(alarms) == self._is_alarmed or not (self._has_published or self._is_alarmed):
            return
        self._is_alarmed = bool(alarms)
        if self._is_blocked:
            return
        if alarms:
            self.wire.block("; ".join(alarms))
        else:
            self.wire.unblock()

    # Time and ends ----------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """About once a second: heartbeats, leases, queues that are gone."""
        if self._ended:
            return
        if self._is_paused:
            self.wire.receive(b"")  # it is us who do not listen
        for event in self.wire.tick(now):
            HANDLERS[type(event)](self, event)
        self._look_at_alarms()
        if 0.0 < self._close_by < now:
            self.abort()
        if self.is_full and self.backlog.is_overdue(now, self._transport.get_write_buffer_size()):
            log.warning("%s takes nothing of a large delivery, and is closed", self.peer)
            self.abort()
        for channel in self.channels.values():
            channel.sweep(now)
        self.flush()

    def mark_own(self) -> None:
        """From now on its messages can be told from those of others: one of its consumers does not want them."""
        if self.reader.local is None:
            self.reader.local = self.name
            self.reader.forget()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """A task that must not be forgotten before it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, reason: str) -> None:
        """Nothing more comes of it: finish, give everything back, say goodbye. Once."""
        if self._ending is None:
            log.debug("%s ends: %s", self.name or self.peer, reason)
            self._ending = self._loop.create_task(self._let_go())

    async def _let_go(self) -> None:
        """Finish what came in, return what it holds, delete what it has alone; then say goodbye."""
        channels = list(self.channels.values())
        self.channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))
        self.host.measures.channels -= len(channels)
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        while self.name:
            try:
                await self.broker.end_session()
                break
            except PenstockError as error:
                log.warning("a session could not be ended, trying again: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)
        self._is_let_go = True
        self.wire.close_ok(0)
        self.flush()
        if self._ended:
            self.host.closed(self)

    # The server's calls -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """The server stops: finish the answers under way, and tell the client."""
        await asyncio.gather(*(channel.close() for channel in self.channels.values()))
        self.wire.connection_error(codes.CONNECTION_FORCED, "the broker is stopping")
        self.end("the server stops")
        self.flush()

    def abort(self) -> None:
        """Close the socket at once."""
        self._transport.abort()


Handler = Callable[[Connection, Any], None]
HANDLERS: Final[dict[type[Any], Handler]] = {
    events.Login: Connection._login,
    events.NewSecret: Connection._new_secret,
    events.OpenVhost: Connection._open,
    events.ChannelOpened: Connection._channel_opened,
    events.ChannelClosed: Connection._channel_closed,
    events.Publish: Connection._published,
    events.Ack: Connection._settled,
    events.Nack: Connection._settled,
    events.Reject: Connection._settled,
    events.Method: Connection._method,
    events.Closed: Connection._closed,
    events.Failed: Connection._failed_wire,
    events.Lost: Connection._lost,
}
