"""From queues to a client: the messages of a session's own queue, and of the shared subscriptions it takes part in.

Each source of messages has a task that claims as many as the client may still be sent, and waits while it may not be
sent any, or does not read. A slow client stops its own deliveries only: the messages wait in their queues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.api.results import Claim, Lease, Received
from penstock.fronts.answers import is_large
from penstock.fronts.mqtt.errors import log
from penstock.fronts.mqtt.mapping import ORIGIN, STORED, SUBSCRIPTION, Origin, for_subscription, origin_of
from penstock.fronts.mqtt.session.window import Flight, packet_id_of
from penstock.fronts.mqtt.subscription.subscriptions import Plan, Subscription, plan_of, share_queue
from penstock.model import DEFAULT_GROUP
from penstock.model.errors import Closed, LeaseLost, NotFound, PenstockError, Unavailable
from penstock.wire.mqtt.reasons import Reason
from penstock.wire.mqtt.topics import topic_problem

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.fronts.mqtt.client import Client
    from penstock.fronts.mqtt.session.documents import Session
    from penstock.model import Message

CLAIM_MAX: Final = 500
"""Messages of one claim: what is written at once, before answers are looked at again."""
SHARED_MAX: Final = 10
"""Messages that a member of a shared subscription takes at once, so that a burst is spread over all of them."""
WAIT_SECONDS: Final = 3_600.0
SESSION_LEASE_SECONDS: Final = 366 * 24 * 3600.0
"""A session's queue has one consumer: what it holds returns when the connection ends, or when the client comes back
after a crash, and never in between, for MQTT sends a message again to a new connection only."""
LEASE_SECONDS: Final = 60.0
"""Of queues that several clients consume: renewed while the connection lives, so it is what a crashed node costs."""
RENEW_SECONDS: Final = 20.0
AGAIN_SECONDS: Final = 0.5
"""The broker could not answer a claim: how long until the next."""


class Source:
    """What sources have in common: claim, send, keep what cannot be sent yet."""

    def __init__(self, client: Client, broker: FrontBroker, queue: str) -> None:
        assert client.session is not None
        self.broker = broker
        self.queue = queue
        self.token = client.session.token
        self.client_id = client.session.client_id
        self.out = client.connection
        self.window = client.window
        self.settling = client.settling
        self._unsent: deque[tuple[Lease | None, Received]] = deque()
        self._admitting: Claim | None = None
        """What was claimed, is large, and waits for its turn."""
        self._task: asyncio.Task[None] | None = None

    # Life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to deliver; harmless when it has begun."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Deliver no more; what was claimed and not sent returns as if it had not been."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        unsent: dict[Lease, list[int]] = {}
        for lease, received in self._unsent:
            if lease is not None:
                unsent.setdefault(lease, []).append(received.offset)
        self._unsent.clear()
        if self._admitting is not None and self._admitting.lease is not None:
            unsent[self._admitting.lease] = self._admitting.offsets()
        self._admitting = None
        for lease, offsets in unsent.items():
            try:
                await self.broker.release(lease, offsets)
            except PenstockError as error:
                log.debug("messages of %r were not released: %s", self.client_id, error)

    async def restart(self) -> None:
        """Claim again, on changed terms."""
        if self._task is not None:
            await self.stop()
            self.start()

    async def _run(self) -> None:
        while True:
            try:
                await self._deliver_some()
            except Closed:
                return
            except NotFound as error:
                # A subscription that brings nothing any more must not look like one that does. It may connect again.
                self.out.disconnect(Reason.ADMINISTRATIVE_ACTION, str(error))
                return
            except LeaseLost as error:
                log.info("deliveries to %r: %s", self.client_id, error)
            except Unavailable as error:
                log.warning("deliveries to %r wait: %s", self.client_id, error)
                await asyncio.sleep(AGAIN_SECONDS)
            except PenstockError as error:
                log.error("deliveries to %r from %r: %s", self.client_id, self.queue, error)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _deliver_some(self) -> None:
        await self.out.writable()
        if not self._unsent:
            room = self.room()
            if room <= 0:
                await self.window.changed()
                return
            await self.claim(min(room, CLAIM_MAX))
            await self.out.writable()
        while self._unsent and self.send(*self._unsent[0]):
            self._unsent.popleft()
        self.out.flush()
        if self._unsent:
            await self.window.changed()

    def room(self) -> int:
        """How many messages may be claimed now."""
        return self.window.room

    # Keeping what is held -----------------------------------------------------------------------------------

    def held(self) -> set[Lease]:
        """Leases with messages that are not settled."""
        leases = {flight.lease for flight in self.window.flights.values() if flight.source is self}
        leases |= {lease for lease, _ in self._unsent}
        if self._admitting is not None:
            leases.add(self._admitting.lease)
        return {lease for lease in leases if lease is not None}

    async def renew(self) -> None:
        """Keep what is held for as long as the connection lives."""
        for lease in self.held():
            try:
                await self.broker.extend(lease, LEASE_SECONDS)
            except LeaseLost:
                self.lost(lease)
            except PenstockError as error:
                log.info("a lease of %r could not be renewed: %s", self.client_id, error)

    def lost(self, lease: Lease) -> None:
        """The lease was lost: others have its messages."""

    def answered(self, flight: Flight, reason: int) -> None:  # noqa: ARG002 - who refuses a message has had it
        """The client has answered a delivery of QoS 1."""
        if flight.lease is not None:
            self.settling.ack(flight.lease, flight.offset)

    async def admit(self, claim: Claim) -> None:
        """Wait until what was claimed may be decoded and sent."""
        if is_large(claim):
            self._admitting = claim
            await self.out.backlog.admit(claim)
            self._admitting = None

    def keep(self, lease: Lease | None, received: list[Received]) -> None:
        """These were claimed, to be sent in this order."""
        self._unsent.extend((lease, one) for one in received)

    async def claim(self, most: int) -> None:
        """Claim some, waiting for the first, and `keep` them."""
        raise NotImplementedError

    def send(self, lease: Lease | None, received: Received) -> bool:
        """Send one, or drop it; False where it must wait for an answer of the client's."""
        raise NotImplementedError

    # Sending ----------------------------------------------------------------------------------------------

    def pass_over(self, lease: Lease | None, received: Received) -> bool:
        """It is not for this client, and done."""
        if lease is not None:
            self.settling.ack(lease, received.offset)
        return True

    def send_planned(self, lease: Lease | None, received: Received, plan: Plan, origin: Origin, packet_id: int) -> bool:
        """Send a message as planned; False where too many are under way, or its packet id is."""
        message = received.message
        qos = plan.qos if lease is not None else 0
        if qos and (self.window.room <= 0 or not self.window.is_free(packet_id)):
            return False
        headers = message.headers or {}
        retain = STORED in headers or (plan.retain_as_published and origin.retain)
        is_sent = self.out.deliver(
            message,
            message.key or "",
            received.published_ms,
            qos=qos,
            retain=retain,
            dup=qos > 0 and received.attempt > 1,
            packet_id=packet_id if qos else 0,
            ids=plan.ids,
        )
        if lease is None:
            return True
        if qos and is_sent:
            self.window.begin(packet_id, Flight(qos, lease, received.offset, received.lane, self))
        else:
            self.settling.ack(lease, received.offset)
        return True


class SessionSource(Source):
    """A session's own queue."""

    def __init__(self, client: Client, session: Session) -> None:
        super().__init__(client, client.server.broker, session.queue)
        self._subscriptions = session.subscriptions
        self._is_unsure = False
        """The answer of a claim was lost: what it has claimed is not known here, and nobody else gives it back."""

    async def claim(self, most: int) -> None:
        if self._is_unsure:
            await self._give_back()
        ack = self._subscriptions.is_at_most_once
        lease_s = SESSION_LEASE_SECONDS
        try:
            claim = await self.broker.claim(
                self.queue, max=most, wait=WAIT_SECONDS, lease_seconds=lease_s, consumer=self.token, ack=ack
            )
        except Unavailable:
            self._is_unsure = True
            raise
        await self.admit(claim)
        self.keep(claim.lease, claim.messages)

    async def _give_back(self) -> None:
        """Return what may have been claimed: when nothing else is held, for a connection gets no message twice."""
        while self.held():
            await self.window.changed()
        await self.settling.finish()
        await self.broker.detach(self.queue, DEFAULT_GROUP, consumer=self.token)
        self._is_unsure = False

    def send(self, lease: Lease | None, received: Received) -> bool:
        message = received.message
        origin = origin_of(message.headers)
        plan = self._plan(message, origin)
        if plan is None:
            return self.pass_over(lease, received)
        return self.send_planned(lease, received, plan, origin, packet_id_of(received.offset))

    def _plan(self, message: Message, origin: Origin) -> Plan | None:
        """How it goes to the client; None where the client has unsubscribed, or MQTT cannot say its topic."""
        topic, headers = message.key or "", message.headers or {}
        if ORIGIN not in headers and topic_problem(topic):
            return None
        if SUBSCRIPTION in headers:
            chosen = self._subscriptions.get(headers[SUBSCRIPTION])
            return None if chosen is None else plan_of(chosen, origin)
        return self._subscriptions.plan(topic, origin, self.client_id)


class SharedSource(Source):
    """A queue that the sessions of a shared subscription claim from together.

    Of QoS 2, where a message may not go to another client once one was sent it, it moves into the session's own queue
    first: from then on it is the session's alone.
    """

    def __init__(self, client: Client, session: Session, subscription: Subscription) -> None:
        super().__init__(client, client.server.broker, share_queue(subscription))
        self.subscription = subscription
        self._own_queue = session.queue
        self._now_ms = client.server.now_ms

    async def claim(self, most: int) -> None:
        claim = await self.broker.claim(
            self.queue,
            max=min(most, SHARED_MAX),
            wait=WAIT_SECONDS,
            lease_seconds=LEASE_SECONDS,
            consumer=self.token,
            ack=self.subscription.qos == 0,
        )
        await self.admit(claim)
        if claim.lease is None or self.subscription.qos < 2:
            self.keep(claim.lease, claim.messages)
            return
        moving = [one for one in claim.messages if origin_of(one.message.headers).qos == 2]
        if moving:
            await self._move(claim.lease, moving)
        self.keep(claim.lease, [one for one in claim.messages if one not in moving])

    async def _move(self, lease: Lease, moving: list[Received]) -> None:
        """Into the session's own queue, in one commit with the acknowledgement here."""
        transaction = self.broker.transaction()
        transaction.ack(lease, [one.offset for one in moving])
        transaction.publish(self._own_queue, *(self._moved(one) for one in moving))
        await transaction.commit()

    def _moved(self, received: Received) -> Message:
        elapsed_ms = max(0, self._now_ms() - received.published_ms)
        return for_subscription(received.message, self.subscription.filter, elapsed_ms=elapsed_ms)

    def send(self, lease: Lease | None, received: Received) -> bool:
        message = received.message
        origin = origin_of(message.headers)
        if ORIGIN not in (message.headers or {}) and topic_problem(message.key or ""):
            return self.pass_over(lease, received)
        plan = plan_of(self.subscription, origin)
        return self.send_planned(lease, received, plan._replace(qos=min(plan.qos, 1)), origin, self.window.any_free())
