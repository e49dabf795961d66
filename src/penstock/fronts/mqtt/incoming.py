"""What a client publishes: taken from its line in batches, carried out by `publishing.py`, answered in order.

A publish of QoS 2 is known by its packet id until the client releases it. The id is recorded in the commit of the
message itself, and forgotten in a commit before PUBCOMP: repeated or not, through any crash, the message is there once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.fronts.mqtt.errors import Refusal, refusal_of
from penstock.fronts.mqtt.mapping import Publisher
from penstock.fronts.mqtt.publishing import EXCHANGE, Wanted, address
from penstock.fronts.mqtt.queues import Settlement, settlement_of
from penstock.model.errors import Closed, Forbidden, PenstockError
from penstock.wire.mqtt.packets import Publish, PubRel
from penstock.wire.mqtt.reasons import Reason

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.fronts.mqtt.server import MqttServer
    from penstock.fronts.mqtt.session.documents import Session, SessionDocuments
    from penstock.model import Message
    from penstock.wire.mqtt.connection import ServerConnection

BATCH_EVENTS: Final = 1_000
BATCH_BYTES: Final = 2 * 1024 * 1024

Item = Publish | PubRel
Work = Wanted | Settlement | None
"""None: there is nothing to do but to answer."""


class Incoming:
    """One client's publishes."""

    def __init__(
        self,
        server: MqttServer,
        broker: FrontBroker,
        engine: ServerConnection,
        session: Session,
        documents: SessionDocuments | None,
    ) -> None:
        self._server = server
        self._broker = broker
        """In the client's name."""
        self._engine = engine
        self._session = session
        self._documents = documents
        self._publisher = Publisher(session.client_id)

    def batch(self, line: deque[Any]) -> list[Item]:
        """Take what can be carried out together: no packet id twice, for what happens to one depends on the other."""
        taken: list[Item] = []
        ids: set[int] = set()
        size = 0
        while line and isinstance(line[0], Publish | PubRel) and len(taken) < BATCH_EVENTS and size < BATCH_BYTES:
            event = line[0]
            if isinstance(event, PubRel) or event.qos == 2:
                if event.packet_id in ids:
                    break
                ids.add(event.packet_id)
            taken.append(line.popleft())
            size += len(event.payload) if isinstance(event, Publish) else 0
        return taken

    async def carry_out(self, batch: Sequence[Item]) -> None:
        """Do it, then answer."""
        works = [self._work(event) for event in batch]
        wanted = [work for work in works if isinstance(work, Wanted)]
        recorded = [work for work in wanted if work.rows]
        if recorded:
            await self._lock(recorded)
        if wanted:
            await self._server.publishing.publish(wanted)
        failures = await self._settle([work for work in works if isinstance(work, Settlement)])
        for event, work in zip(batch, works, strict=True):
            if isinstance(work, Settlement):
                self._answer(event, failures.get(work), is_matched=True)
            elif work is None:
                self._answer(event, None, is_matched=True)
            else:
                self._answer(event, work.refusal, is_matched=work.is_matched)

    async def _lock(self, recorded: Sequence[Wanted]) -> None:
        """What is recorded of the session counts only while this connection has it."""
        try:
            lock = await self._server.sessions.lock(self._session)
        except Closed:
            raise
        except PenstockError as error:
            for one in recorded:
                self._server.publishing.refuse(one, error)
        else:
            for one in recorded:
                one.lock = lock

    def _work(self, event: Item) -> Work:
        session, documents = self._session, self._documents
        if isinstance(event, PubRel):
            if documents is None or event.packet_id not in session.inbound:
                return None
            row = documents.packet_row("i", session.client_id, event.packet_id, is_there=False)
            return Wanted("", None, rows=(row,))
        if event.qos == 2 and event.packet_id in session.inbound:
            return None  # it was published before: the client did not hear of it
        properties = event.properties
        try:
            queue, key = address(event.topic)
        except Refusal as refusal:
            return self._refused(event, refusal)
        if queue:
            settlement = settlement_of(key, queue, properties.user_properties, event.payload)
            if settlement is not None:
                return settlement
        try:
            # The front publishes in its own name: with the message go rows of its tables, which are no client's.
            self._broker.authorize("publish", *(("queue", queue) if queue else ("exchange", EXCHANGE)))
        except Forbidden as error:
            return self._refused(event, error)
        rows: tuple[Message, ...] = ()
        if event.qos == 2 and documents is not None:
            rows = (documents.packet_row("i", session.client_id, event.packet_id, is_there=True),)
        message = self._publisher.message(key, event.payload, event.qos, event.retain, properties)
        return Wanted(event.topic, message, event.retain and not queue, rows, queue, self._broker)

    def _refused(self, event: Publish, error: Exception) -> Wanted:
        refused = Wanted(event.topic, None)
        self._server.publishing.refuse(refused, error)
        return refused

    async def _settle(self, settlements: Sequence[Settlement]) -> dict[Settlement, Refusal]:
        """Those that could not be carried out, with the reason."""

        async def one(settlement: Settlement) -> Refusal | None:
            try:
                await settlement.carry_out(self._broker, self._server.unsettled)
            except Closed:
                raise
            except (PenstockError, Refusal) as error:
                return refusal_of(error)
            return None

        if not settlements:
            return {}
        found = await asyncio.gather(*map(one, settlements))
        return {settlement: refusal for settlement, refusal in zip(settlements, found, strict=True) if refusal}

    def _answer(self, event: Item, refusal: Refusal | None, *, is_matched: bool) -> None:
        session, engine = self._session, self._engine
        if isinstance(event, PubRel):
            if refusal is not None:
                # Nothing may be answered that is not durable, and there is no answer that says so: the client repeats.
                engine.disconnect(refusal.reason, text=refusal.text)
                return
            is_known = event.packet_id in session.inbound
            session.inbound.discard(event.packet_id)
            engine.pubcomp(event.packet_id, Reason.SUCCESS if is_known else Reason.PACKET_ID_NOT_FOUND)
            return
        if event.qos == 0:
            return
        answer = engine.puback if event.qos == 1 else engine.pubrec
        if refusal is not None and refusal.is_unsure and event.qos == 2:
            # A refusal would say that it was not published. The client repeats it, and then it is known or not.
            engine.disconnect(refusal.reason, text=refusal.text)
        elif refusal is not None:
            answer(event.packet_id, refusal.reason, text=refusal.text)
        else:
            if event.qos == 2:
                session.inbound.add(event.packet_id)
            answer(event.packet_id, Reason.SUCCESS if is_matched else Reason.NO_MATCHING_SUBSCRIBERS)
