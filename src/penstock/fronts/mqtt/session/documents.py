"""A session while its client is connected, and what is kept of it beside its queue: who it is, what it subscribed to,
its will, packet ids under way.

One table with three kinds of rows, so that each can be part of the commit that it is about: `s/<client>` is the
session, `i/<client>/<packet id>` a QoS 2 publish that was taken and not released, `o/<client>/<packet id>` a QoS 2
delivery that the client has and whose PUBREL it has not answered.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from penstock.api.front_broker import FrontBroker
from penstock.api.results import Lease
from penstock.fronts.mqtt.errors import log
from penstock.fronts.mqtt.subscription.subscriptions import Subscription, Subscriptions, session_queue
from penstock.fronts.mqtt.table import Table
from penstock.model import Message
from penstock.wire.mqtt.packets import NEVER, Will

QUEUE: Final = "mqtt/sessions"
Direction = Literal["i", "o"]
"""Of a QoS 2 publish: in from the client, or out to it."""


class Session:
    """A session while its client is connected."""

    def __init__(self, client_id: str, expiry: int, will: Will | None) -> None:
        self.client_id = client_id
        self.token = f"{client_id}#{secrets.token_hex(4)}"
        """Names this connection: the consumer of what it claims."""
        self.expiry = expiry
        self.will = will
        self.is_stored = expiry > 0
        """Whether its state must outlive a restart."""
        self.has_document = False
        self.is_kept = False
        """Whether that document was written by this connection."""
        self.has_queue = False
        self.subscriptions = Subscriptions()
        self.lock: Lease | None = None
        """What this connection writes under, among several nodes, once it publishes with QoS 2."""
        self.is_locked = False
        """Whether there may be such a lock."""
        self.inbound: set[int] = set()
        """Packet ids of QoS 2 publishes that were taken and not released."""
        self.released: set[int] = set()
        """Packet ids of QoS 2 deliveries whose PUBREL was not answered."""

    @property
    def queue(self) -> str:
        return session_queue(self.client_id)


class SessionDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One session."""

    client_id: str
    token: str
    """The connection that has it, or had it last: the consumer by that name holds what is under way to it."""
    node: str
    """Whose connection that is."""
    expiry: int = 0
    """Seconds that it outlives its connection."""
    is_connected: bool = True
    left_ms: int = 0
    """When the connection ended."""
    will: Will | None = None
    """What is still to be published, once the connection has ended and the will's delay is over."""
    subscriptions: tuple[Subscription, ...] = ()
    is_locked: bool = False
    """Whether the connection has a lock, which must be taken away before another one writes in its client's name."""

    def ends_ms(self) -> int | None:
        """When the session is over; None: not while it is connected, or never."""
        if self.is_connected or self.expiry == NEVER:
            return None
        return self.left_ms + self.expiry * 1000

    def will_ms(self) -> int | None:
        """When the will's delay is over; the end of the session may come before."""
        if self.is_connected or self.will is None:
            return None
        return self.left_ms + self.will.delay * 1000

    def due_ms(self) -> int | None:
        """When something is to be done about it next."""
        times = [time for time in (self.ends_ms(), self.will_ms()) if time is not None]
        return min(times, default=None)


_decoder: Final = msgspec.msgpack.Decoder(SessionDocument)


class SessionDocuments:
    """All sessions that are kept; `changed` hears of each document that comes, changes or goes."""

    def __init__(self, broker: FrontBroker, changed: Callable[[str, SessionDocument | None], None]) -> None:
        self._changed = changed
        self.all: dict[str, SessionDocument] = {}
        self._packet_ids: dict[Direction, dict[str, set[int]]] = {"i": {}, "o": {}}
        text = "Sessions of MQTT clients: subscriptions, wills and packet ids."
        self.table = Table(broker, QUEUE, text, self._heard)

    def packet_ids(self, direction: Direction, client_id: str) -> set[int]:
        """Those under way."""
        return set(self._packet_ids[direction].get(client_id, ()))

    # Rows ---------------------------------------------------------------------------------------------------

    def row(self, document: SessionDocument) -> Message:
        """What is said of a session by who knows the last that was said; late, it changes nothing."""
        return self.table.following(Message(msgspec.msgpack.encode(document), key=f"s/{document.client_id}"))

    def is_of(self, session: Session) -> bool:
        """Whether the last document of a client is of this connection of it, as far as is known here."""
        known = self.all.get(session.client_id)
        return known is not None and known.token == session.token

    def packet_row(self, direction: Direction, client_id: str, packet_id: int, *, is_there: bool) -> Message:
        return Message(b"1" if is_there else b"", key=f"{direction}/{client_id}/{packet_id}")

    def rows_to_forget(self, client_id: str) -> list[Message]:
        """What says that nothing of a session is left, unless it has changed by then."""
        keys = [f"{way}/{client_id}/{one}" for way, ids in self._packet_ids.items() for one in ids.get(client_id, ())]
        if client_id in self.all:
            keys.append(f"s/{client_id}")
        return [self.table.forgetting(key) for key in keys]

    def _heard(self, key: str, message: Message | None) -> None:
        kind, name = key[:2], key[2:]
        if kind == "s/":
            if message is None:
                self.all.pop(name, None)
                self._changed(name, None)
                return
            try:
                document = _decoder.decode(message.payload)
            except msgspec.MsgspecError as error:
                log.error("the session of %r cannot be read and is passed over: %s", name, error)
                return
            self.all[name] = document
            self._changed(name, document)
            return
        client_id, _, packet_id = name.rpartition("/")
        by_client = self._packet_ids["i" if kind == "i/" else "o"]
        if message is not None:
            by_client.setdefault(client_id, set()).add(int(packet_id))
        elif client_id in by_client:
            by_client[client_id].discard(int(packet_id))
            if not by_client[client_id]:
                del by_client[client_id]
