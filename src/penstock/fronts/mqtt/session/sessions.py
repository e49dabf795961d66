"""Sessions: who is connected, what is resumed, what ends when. One client id is one session, in all nodes together.

A session that does not outlive its connection leaves nothing behind: its queue is in memory, where there is one node.
Any other has a document (`documents.py`), written before its client is let in. When a connection ends, its document
says when, and from then on the session's end and its will are due at times which any node can see (`attend`).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from penstock.api.front_broker import FrontBroker
from penstock.api.results import Lease
from penstock.fronts.mqtt.errors import Refusal, log
from penstock.fronts.mqtt.mapping import Publisher
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.publishing import Publishing, Wanted, address
from penstock.fronts.mqtt.session.documents import Session, SessionDocument, SessionDocuments
from penstock.fronts.mqtt.session.locks import Locks, lock_queue
from penstock.fronts.mqtt.subscription.subscribing import Subscribing
from penstock.fronts.mqtt.subscription.subscriptions import Subscriptions, session_queue
from penstock.model import DEFAULT_GROUP, Message
from penstock.model.errors import NotFound, PenstockError, Unavailable
from penstock.wire.mqtt.packets import Connect, Will
from penstock.wire.mqtt.reasons import Reason

TAKEOVER_SECONDS: Final = 5.0
"""How long another node may take to let go of a client that has come here."""
LET_GO_MOST: Final = 3
ATTENDED_AT_ONCE: Final = 200
DUE_MORE: Final = 1_000
"""Times that may be stale, beside one for each session."""


class Holder(Protocol):
    """A connection that has a session."""

    async def kick(self, reason: Reason) -> None:
        """End it; returns when its session is closed."""


class Sessions:
    """All sessions, as far as this node knows them."""

    def __init__(
        self,
        broker: FrontBroker,
        options: MqttOptions,
        publishing: Callable[[], Publishing],
        now_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._options = options
        self._publishing = publishing
        self._now_ms = now_ms
        self.connected: dict[str, Holder] = {}
        self._opened: dict[str, Session] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._due: list[tuple[int, str]] = []
        self._kicks: set[asyncio.Task[None]] = set()
        self._freed: dict[str, asyncio.Future[None]] = {}
        self.documents = SessionDocuments(broker, self._heard)
        self._locks_of_sessions = Locks(broker, lock_queue(options.namespace, self.documents.table.queue))
        self.subscribing = Subscribing(broker, options, self.documents)

    @property
    def node(self) -> str:
        """How documents name this node; another life of it, or another membership, has another name."""
        return self._broker.process

    def counts(self) -> tuple[int, int, int]:
        """Clients that are connected here, sessions of clients that are nowhere, and filters of both."""
        away = [document for document in self.documents.all.values() if not document.is_connected]
        filters = sum(len(session.subscriptions) for session in self._opened.values())
        return len(self.connected), len(away), filters + sum(len(document.subscriptions) for document in away)

    # Opening ------------------------------------------------------------------------------------------------

    async def open(self, connect: Connect, client_id: str, holder: Holder) -> tuple[Session, bool]:
        """A session for a client, and whether it is one that was there before."""
        async with self._alone(client_id):
            before = self.connected.get(client_id)
            if before is not None:
                await before.kick(Reason.SESSION_TAKEN_OVER)
            self.connected[client_id] = holder
            try:
                document = await self._last(client_id)
                if document is not None:
                    await self._unlock(document)
                if document is not None and connect.clean_start:
                    await self._attend(document, is_over=True)
                    document = None
                expiry = min(connect.session_expiry, self._options.max_session_expiry_seconds)
                session = Session(client_id, expiry, connect.will)
                self._opened[client_id] = session
                if document is not None:
                    await self._resume(session, document)
                else:
                    await self._forget_queue(client_id)
                # Among nodes every session has a document: it is how another one learns that its client has moved.
                if session.is_stored or session.will is not None or self._broker.is_shared:
                    self._check_unlocked(client_id, document)
                    await self.keep(session)
            except BaseException:
                self._closed(client_id, holder)
                raise
            return session, document is not None

    async def _last(self, client_id: str) -> SessionDocument | None:
        """The document of a session that is not over, and that nobody else has."""
        await self.documents.table.catch_up()
        document = self.documents.all.get(client_id)
        if document is None:
            return None
        if document.is_connected:
            if document.node != self.node and self._broker.is_alive(document.node):
                await self._take_over(document)
                document = self.documents.all.get(client_id) or document
            if document.is_connected:  # its node is gone, and did not get to say so
                document = msgspec.structs.replace(document, is_connected=False, left_ms=self._now_ms())
        now_ms = self._now_ms()
        if _is_due(document.due_ms(), now_ms):
            await self._attend(document)
            document = self.documents.all.get(client_id)
        return document

    async def _resume(self, session: Session, document: SessionDocument) -> None:
        session.is_stored = True
        session.has_document = True
        session.subscriptions = Subscriptions(document.subscriptions)
        session.inbound = self.documents.packet_ids("i", session.client_id)
        session.released = self.documents.packet_ids("o", session.client_id)
        if self.subscribing.has_queue(session.client_id):
            # What was under way to the connection before is sent again, in its order.
            await self._broker.detach(session.queue, DEFAULT_GROUP, consumer=document.token)
            session.has_queue = True
        elif session.subscriptions.has_topics:  # somebody has deleted it
            await self.subscribing.make_queue(session.client_id, is_stored=True)
            session.has_queue = True
            for subscription in session.subscriptions:
                if subscription.kind == "topic":
                    await self.subscribing.bind(session.client_id, subscription.pattern)

    async def keep(self, session: Session) -> None:
        """Write the document of a session that is connected; raises where another connection has it by now."""
        if not session.is_kept or self.documents.is_of(session):
            await self.documents.table.put([self.documents.row(self._document(session))])
        if not self.documents.is_of(session):
            raise Unavailable(f"another connection has the session of {session.client_id!r} by now")
        session.has_document = session.is_kept = True

    async def lock(self, session: Session) -> Lease | None:
        """What a connection writes under in its client's name; None where there is one node.

        The document says that there is a lock before that is used. It counts only if no other connection has said
        anything since, and who has the session next reads it: so a lock that is used is always taken away first.
        """
        if session.lock is None and self._broker.is_shared:
            lock = await self._locks_of_sessions.take(session.token)
            session.is_locked = True
            await self.keep(session)
            if not self.documents.all[session.client_id].is_locked:
                raise Unavailable(f"what was said of the session of {session.client_id!r} is not stored yet")
            session.lock = lock
        return session.lock

    async def _unlock(self, document: SessionDocument) -> None:
        """Let nothing more come into force of a connection that is over, and know all that has."""
        if document.is_locked:
            await self._locks_of_sessions.take_away(document.token)
            await self.documents.table.catch_up()

    def _check_unlocked(self, client_id: str, before: SessionDocument | None) -> None:
        """Raise where a connection has got a lock that was not taken away."""
        last = self.documents.all.get(client_id)
        if (
            last is not None
            and last.is_locked
            and (before is None or before.token != last.token or not before.is_locked)
        ):
            raise Unavailable(f"another connection has the session of {client_id!r} by now")

    async def _give_lock_back(self, session: Session) -> None:
        if session.lock is not None:
            with suppress(PenstockError):  # who has the session next takes it away
                await self._locks_of_sessions.give_back(session.lock)
                session.is_locked = False

    def _document(self, session: Session) -> SessionDocument:
        return SessionDocument(
            client_id=session.client_id,
            token=session.token,
            node=self.node,
            expiry=session.expiry,
            will=session.will,
            subscriptions=tuple(session.subscriptions) if session.is_stored else (),
            is_locked=session.is_locked,
        )

    # Closing ------------------------------------------------------------------------------------------------

    async def close(self, session: Session, holder: Holder, *, has_will: bool) -> None:
        """The connection has ended; `has_will`: without the goodbye that takes the will back."""
        try:
            if session.has_queue and session.is_stored:
                await self._broker.detach(session.queue, DEFAULT_GROUP, consumer=session.token)
            await self._give_lock_back(session)
            document = msgspec.structs.replace(
                self._document(session),
                is_connected=False,
                left_ms=self._now_ms(),
                will=session.will if has_will else None,
            )
            if not session.has_document:
                await self._forget_queue(session.client_id)
            elif _is_due(document.due_ms(), self._now_ms()):
                await self._attend(document)
            else:
                await self._let_go(session, document)
            if not session.is_stored:
                await self.subscribing.leave(session.client_id, session.subscriptions)
        finally:
            self._closed(session.client_id, holder)

    async def _let_go(self, session: Session, document: SessionDocument) -> None:
        """Say that the connection has ended, unless another has the session: what that one holds is found by its own
        document. Again, where another node has said meanwhile that it waits for that.
        """
        for _ in range(LET_GO_MOST):
            if not self.documents.is_of(session) or not self.documents.all[session.client_id].is_connected:
                return
            await self.documents.table.put([self.documents.row(document)])

    def _closed(self, client_id: str, holder: Holder) -> None:
        if self.connected.get(client_id) is holder:
            del self.connected[client_id]
            self._opened.pop(client_id, None)

    async def _attend(self, document: SessionDocument, *, is_over: bool = False) -> None:
        """Do what is due: publish the will, end the session."""
        now_ms = self._now_ms()
        is_over = is_over or _is_due(document.ends_ms(), now_ms)
        if is_over:
            await self._unlock(document)
            await self._forget_queue(document.client_id)
            rows = self.documents.rows_to_forget(document.client_id)
        else:
            rows = [self.documents.row(msgspec.structs.replace(document, will=None))]
        if document.will is not None and (is_over or _is_due(document.will_ms(), now_ms)):
            will = _wanted_will(document.client_id, document.will, tuple(rows))
            await self._publishing().publish([will])
            if will.refusal is None:
                rows = []
            else:
                log.warning("the will of %r could not be published: %s", document.client_id, will.refusal.text)
        if rows:
            await self.documents.table.put(rows)
        else:
            await self.documents.table.catch_up()
        if is_over:
            await self.subscribing.leave(document.client_id, document.subscriptions)

    async def _forget_queue(self, client_id: str) -> None:
        if self.subscribing.has_queue(client_id):
            with suppress(NotFound):
                await self._broker.delete_queue(session_queue(client_id))

    # What is due ----------------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Close what nodes left open that are gone."""
        if not self._broker.is_caretaker:
            return
        now_ms = self._now_ms()
        lost = [one for one in self.documents.all.values() if one.is_connected and not self._broker.is_alive(one.node)]
        for start in range(0, len(lost), ATTENDED_AT_ONCE):
            rows = [
                self.documents.row(msgspec.structs.replace(one, is_connected=False, left_ms=now_ms, node=self.node))
                for one in lost[start : start + ATTENDED_AT_ONCE]
            ]
            await self.documents.table.put(rows)

    async def sweep(self) -> None:
        """Attend to what has become due."""
        now_ms = self._now_ms()
        for _ in range(ATTENDED_AT_ONCE):
            if not self._due or self._due[0][0] > now_ms:
                return
            due_ms, client_id = heapq.heappop(self._due)
            document = self.documents.all.get(client_id)
            if document is None or document.due_ms() != due_ms or not self._is_mine(document):
                continue
            async with self._alone(client_id):
                document = self.documents.all.get(client_id)
                if document is not None and document.due_ms() == due_ms and client_id not in self.connected:
                    try:
                        await self._attend(document)
                    except PenstockError as error:
                        log.warning("the session of %r could not be ended, and is tried again: %s", client_id, error)
                        heapq.heappush(self._due, (due_ms, client_id))
                        return

    def _heard(self, client_id: str, document: SessionDocument | None) -> None:
        """A document has changed, here or in another node."""
        freed = self._freed.get(client_id)
        if freed is not None and not freed.done() and (document is None or not document.is_connected):
            freed.set_result(None)
        if document is None:
            return
        due_ms = document.due_ms()
        if due_ms is not None:
            heapq.heappush(self._due, (due_ms, client_id))
            if len(self._due) > 2 * len(self.documents.all) + DUE_MORE:
                self._forget_stale()
        session = self._opened.get(client_id)
        if session is not None and document.node != self.node and session.has_document:
            holder = self.connected.get(client_id)
            if holder is not None:
                task = asyncio.get_running_loop().create_task(holder.kick(Reason.SESSION_TAKEN_OVER))
                self._kicks.add(task)
                task.add_done_callback(self._kicks.discard)

    def _forget_stale(self) -> None:
        """Sessions that come and go leave a time behind with each goodbye, of which the last one holds."""
        times = ((document.due_ms(), client_id) for client_id, document in self.documents.all.items())
        self._due = [(due_ms, client_id) for due_ms, client_id in times if due_ms is not None]
        heapq.heapify(self._due)

    # Among nodes ----------------------------------------------------------------------------------------------

    def _is_mine(self, document: SessionDocument) -> bool:
        return document.node == self.node or (not self._broker.is_alive(document.node) and self._broker.is_caretaker)

    async def _take_over(self, document: SessionDocument) -> None:
        """Let another node know that its client is here, and wait until it has let go of it."""
        freed = self._freed[document.client_id] = asyncio.get_running_loop().create_future()
        try:
            claimed = msgspec.structs.replace(document, node=self.node)
            await self.documents.table.put([self.documents.row(claimed)])
            await asyncio.wait([freed], timeout=TAKEOVER_SECONDS)
        finally:
            del self._freed[document.client_id]

    # One at a time ----------------------------------------------------------------------------------------------

    def _alone(self, client_id: str) -> asyncio.Lock:
        """Held by whoever opens or ends this client's session here; it goes with the last who wants it."""
        return self._locks.setdefault(client_id, asyncio.Lock())


def _is_due(time_ms: int | None, now_ms: int) -> bool:
    return time_ms is not None and time_ms <= now_ms


def _wanted_will(client_id: str, will: Will, rows: tuple[Message, ...]) -> Wanted:
    """The will of a client, with what is to be recorded in the same commit."""
    try:
        queue, key = address(will.topic)
    except Refusal as refusal:
        return Wanted(will.topic, None, rows=rows, refusal=refusal)
    message = Publisher(client_id).message(key, will.payload, will.qos, will.retain, will.properties)
    return Wanted(will.topic, message, retain=will.retain and not queue, rows=rows, queue=queue)
