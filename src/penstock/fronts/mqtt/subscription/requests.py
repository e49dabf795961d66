"""SUBSCRIBE and UNSUBSCRIBE of one client: the broker's side, the session's document, the answer, retained messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.fronts.mqtt.delivering import SharedSource
from penstock.fronts.mqtt.errors import Refusal, log, refusal_of, suback_reason, unsuback_reason
from penstock.fronts.mqtt.mapping import for_subscription, origin_of
from penstock.fronts.mqtt.publishing import EXCHANGE
from penstock.fronts.mqtt.queues import QueueSource, StreamSource, prepare
from penstock.fronts.mqtt.subscription import subscriptions
from penstock.fronts.mqtt.subscription.subscriptions import MATCHED, Subscription
from penstock.model.errors import Closed, NotFound, PenstockError
from penstock.wire.mqtt.packets import Subscribe, Unsubscribe
from penstock.wire.mqtt.packets import Subscription as Requested
from penstock.wire.mqtt.reasons import REFUSAL, Reason

if TYPE_CHECKING:
    from penstock.fronts.mqtt.client import Client
    from penstock.fronts.mqtt.server import MqttServer
    from penstock.fronts.mqtt.session.documents import Session
    from penstock.model import Message

RETAINED_AT_ONCE: Final = 500


class SubscriptionRequests:
    """One client's."""

    def __init__(self, server: MqttServer, client: Client, session: Session) -> None:
        self._server = server
        self._broker = client.broker
        self._client = client
        self._session = session
        self._subscribing = server.sessions.subscribing

    # SUBSCRIBE ------------------------------------------------------------------------------------------------

    async def subscribe(self, request: Subscribe) -> None:
        """Carry out a SUBSCRIBE and answer it; then send what is retained."""
        reasons: list[int] = []
        texts: list[str] = []
        made: list[tuple[Requested, Subscription, Subscription | None]] = []
        for wanted in request.subscriptions:
            try:
                subscription, before = await self._subscribe(wanted, request)
                made.append((wanted, subscription, before))
                reasons.append(subscription.qos)
            except Closed:
                raise
            except (PenstockError, Refusal) as error:
                reasons.append(suback_reason(error))
                texts.append(refusal_of(error).text)
        if made and self._session.is_stored:
            try:
                await self._server.sessions.keep(self._session)
            except Closed:
                raise
            except PenstockError as error:
                # They hold while the connection does; the client is told not to count on more.
                reason = suback_reason(error)
                reasons = [given if given >= REFUSAL else reason for given in reasons]
                texts.append(str(error))
                made = []
        self._client.engine.suback(request.packet_id, reasons, text="; ".join(texts)[:500])
        self._client.connection.flush()
        for wanted, subscription, before in made:
            if wanted.retain_handling == 2 or (wanted.retain_handling == 1 and before is not None):
                continue
            if subscription.kind == "topic":
                await self._send_retained(subscription)
            elif subscription.kind == "system":
                await self._server.system_topics.send_all(self._client, subscription)

    async def _subscribe(self, wanted: Requested, request: Subscribe) -> tuple[Subscription, Subscription | None]:
        """One of them; the one that it replaces."""
        session = self._session
        subscription = subscriptions.read(wanted, request, session.client_id)
        before = session.subscriptions.get(subscription.filter)
        most = self._server.options.max_subscriptions
        if before is None and len(session.subscriptions) >= most:
            raise Refusal(Reason.QUOTA_EXCEEDED, f"a session may have {most} subscriptions (mqtt.max_subscriptions)")
        if subscription.kind == "system":
            self._broker.authorize("admin", "node", "")
            session.subscriptions.put(subscription)
            self._server.system_topics.add(self._client)
            return subscription, before
        if subscription.kind != "queue":
            self._broker.authorize("consume", "exchange", EXCHANGE)
        if subscription.kind == "topic":
            await self._need_queue()
            if before is None:
                await self._subscribing.bind(session.client_id, subscription.pattern)
            was_at_most_once = session.subscriptions.is_at_most_once
            session.subscriptions.put(subscription)
            await self._begin_own(was_at_most_once)
        else:
            if before is not None:
                await self._stop(before)
            await self._begin(subscription, is_new=True)
            was_at_most_once = session.subscriptions.is_at_most_once
            session.subscriptions.put(subscription)
            if subscription.kind == "share" and session.has_queue:
                await self._begin_own(was_at_most_once)
        return subscription, before

    async def _need_queue(self) -> None:
        session = self._session
        if not session.has_queue:
            await self._subscribing.make_queue(session.client_id, is_stored=session.is_stored)
            session.has_queue = True

    async def _begin_own(self, was_at_most_once: bool) -> None:
        source = self._client.session_source()
        if was_at_most_once != self._session.subscriptions.is_at_most_once:
            await source.restart()  # whether claims are acknowledged as they are handed out
        source.start()

    async def _begin(self, subscription: Subscription, *, is_new: bool) -> None:
        """Begin the deliveries of a subscription that is not an ordinary one."""
        client, session, server = self._client, self._session, self._server
        if subscription.kind == "share":
            if subscription.qos == 2:
                await self._need_queue()
            await self._subscribing.join(session.client_id, session.token, subscription, is_stored=session.is_stored)
            source: SharedSource | QueueSource = SharedSource(client, session, subscription)
        else:
            pattern, kind = await prepare(
                self._broker, subscription, declare=server.options.declare_queues, is_new=is_new
            )
            await self._broker.attach(subscription.queue, subscription.group, consumer=session.token)
            source = (StreamSource if kind == "stream" else QueueSource)(client, subscription, pattern)
            if isinstance(source, StreamSource):
                options = await self._broker.queue_options(subscription.queue)
                source.primary_group = options.get("primary_group") or ""
        client.sources[subscription.filter] = source
        source.start()

    async def resume(self) -> None:
        """Begin the deliveries of a session that was there before."""
        session = self._session
        if session.subscriptions.has_system:
            self._server.system_topics.add(self._client)
        if session.has_queue:
            self._client.session_source().start()
        for subscription in list(session.subscriptions):
            if subscription.kind not in MATCHED:
                try:
                    await self._begin(subscription, is_new=False)
                except Closed:
                    raise
                except (PenstockError, Refusal) as error:
                    log.warning("%r of %r is not resumed: %s", subscription.filter, session.client_id, error)

    # Retained messages ----------------------------------------------------------------------------------------

    async def _send_retained(self, subscription: Subscription) -> None:
        """Those of QoS 0 at once; others through the session's queue, so that they survive whatever comes."""
        try:
            found = await self._server.retained.matching(subscription.pattern)
            lasting: list[Message] = []
            now_ms = self._server.now_ms()
            for index, message in enumerate(found, 1):
                if index % RETAINED_AT_ONCE == 0:
                    self._client.connection.flush()
                    await self._client.connection.writable()
                    await asyncio.sleep(0)
                origin = origin_of(message.headers)
                if subscription.no_local and origin.client_id == self._session.client_id:
                    continue
                if min(origin.qos, subscription.qos) > 0:
                    lasting.append(for_subscription(message, subscription.filter, stored=True))
                    continue
                plan = subscriptions.plan_of(subscription, origin)
                self._client.connection.deliver(
                    message, message.key or "", now_ms, qos=0, retain=True, dup=False, packet_id=0, ids=plan.ids
                )
            self._client.connection.flush()
            for start in range(0, len(lasting), RETAINED_AT_ONCE):
                await self._broker.publish_many(self._session.queue, lasting[start : start + RETAINED_AT_ONCE])
        except Closed:
            raise
        except PenstockError as error:
            log.warning("retained messages for %r could not be sent: %s", self._session.client_id, error)

    # UNSUBSCRIBE ----------------------------------------------------------------------------------------------

    async def unsubscribe(self, request: Unsubscribe) -> None:
        """Carry out an UNSUBSCRIBE and answer it."""
        session = self._session
        gone = [session.subscriptions.remove(one) for one in request.filters]
        reasons: list[int] = []
        text = ""
        try:
            if session.is_stored and any(gone):
                await self._server.sessions.keep(session)
            for subscription in gone:
                if subscription is not None:
                    await self._stop(subscription)
                reasons.append(Reason.NO_SUBSCRIPTION_EXISTED if subscription is None else Reason.SUCCESS)
        except Closed:
            raise
        except PenstockError as error:
            reasons = [unsuback_reason(error) for _ in request.filters]
            text = str(error)[:500]
            for subscription in gone:
                if subscription is not None and subscription.kind == "topic":
                    session.subscriptions.put(subscription)
        self._client.engine.unsuback(request.packet_id, reasons, text=text)

    async def _stop(self, subscription: Subscription) -> None:
        """End what a subscription has on the broker's side."""
        session = self._session
        if subscription.kind == "system":
            if not session.subscriptions.has_system:
                self._server.system_topics.remove(self._client)
            return
        if subscription.kind == "topic":
            await self._subscribing.unbind(session.client_id, subscription.pattern)
            return
        await self._detach(subscription)
        if subscription.kind == "share":
            await self._subscribing.leave(session.client_id, [subscription])

    async def part(self) -> None:
        """The connection has ended: what is held of queues that others consume too returns at once."""
        self._server.system_topics.remove(self._client)
        for subscription in self._session.subscriptions:
            if subscription.kind not in MATCHED:
                try:
                    await self._detach(subscription)
                except PenstockError as error:
                    log.info("%r of %r: %s", subscription.filter, self._session.client_id, error)

    async def _detach(self, subscription: Subscription) -> None:
        source = self._client.sources.pop(subscription.filter, None)
        if source is not None:
            await source.stop()
            await self._client.settling.finish()
        if subscription.kind == "share":
            await self._subscribing.part(self._session.client_id, self._session.token, subscription)
            return
        with suppress(NotFound):
            await self._broker.detach(subscription.queue, subscription.group, consumer=self._session.token)
