"""Subscriptions on the broker's side: a queue for a session, its bindings, and the queues of shared subscriptions.

A session has a queue from its first ordinary subscription on. A shared subscription has one queue for all sessions of
its group; it goes when no session has it any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from penstock.api.front_broker import FrontBroker
from penstock.fronts.mqtt.errors import Refusal
from penstock.fronts.mqtt.options import MqttOptions
from penstock.fronts.mqtt.publishing import EXCHANGE
from penstock.fronts.mqtt.session.documents import SessionDocuments
from penstock.fronts.mqtt.subscription.subscriptions import Subscription, session_queue, share_queue
from penstock.model import DEFAULT_GROUP, NAME_CHARACTERS_MAX
from penstock.model.errors import NotFound
from penstock.wire.mqtt.reasons import Reason

UNUSED_MS: Final = 600_000
"""What a crash leaves behind of sessions that do not outlive their connection goes after this."""


class Subscribing:
    """Queues and bindings for all sessions."""

    def __init__(self, broker: FrontBroker, options: MqttOptions, documents: SessionDocuments) -> None:
        self._broker = broker
        self._documents = documents
        self._limits: dict[str, Any] = {
            "max_attempts": 0,
            "backoff_ms": 0,
            "dedup_window_ms": 0,
            "max_length": options.max_queued,
            "max_bytes": options.max_queued_bytes,
            "overflow": "drop_oldest",
        }
        self._members: dict[str, set[str]] = {}
        """Shared filter → clients that are connected here and have it."""

    # A session's own queue ----------------------------------------------------------------------------------

    def has_queue(self, client_id: str) -> bool:
        return self._broker.knows_queue(session_queue(client_id), "declare")

    async def make_queue(self, client_id: str, *, is_stored: bool) -> None:
        """The queue of a session. Among several nodes an ephemeral one could not be bound."""
        options = dict(self._limits)
        if not is_stored:
            options |= {"ephemeral": True} if not self._broker.is_shared else {"unused_ms": UNUSED_MS}
        await self._broker.declare_queue(session_queue(client_id), **options)

    async def bind(self, client_id: str, pattern: str) -> None:
        await self._broker.bind(EXCHANGE, session_queue(client_id), pattern)

    async def unbind(self, client_id: str, pattern: str) -> None:
        with suppress(NotFound):
            await self._broker.unbind(EXCHANGE, session_queue(client_id), pattern)

    # Shared subscriptions ------------------------------------------------------------------------------------

    async def join(self, client_id: str, token: str, subscription: Subscription, *, is_stored: bool) -> None:
        """Take part in a shared subscription."""
        name = share_queue(subscription)
        if len(name) > NAME_CHARACTERS_MAX:
            raise Refusal(
                Reason.TOPIC_FILTER_INVALID,
                f"the shared filter is {len(name) - NAME_CHARACTERS_MAX} characters too long",
            )
        is_kept = is_stored or bool(self._kept_by(subscription.filter))
        await self._broker.declare_queue(name, **self._limits, unused_ms=None if is_kept else UNUSED_MS)
        await self._broker.bind(EXCHANGE, name, subscription.pattern)
        await self._broker.attach(name, DEFAULT_GROUP, consumer=token)
        self._members.setdefault(subscription.filter, set()).add(client_id)

    async def part(self, client_id: str, token: str, subscription: Subscription) -> None:
        """A member's connection has ended: others get what it held."""
        self._members.get(subscription.filter, set()).discard(client_id)
        with suppress(NotFound):
            await self._broker.detach(share_queue(subscription), DEFAULT_GROUP, consumer=token)

    async def leave(self, client_id: str, subscriptions: Iterable[Subscription]) -> None:
        """A session is over, or has unsubscribed: what it alone took part in goes."""
        for subscription in subscriptions:
            if subscription.kind != "share":
                continue
            members = self._members.get(subscription.filter, set())
            members.discard(client_id)
            if not members:
                self._members.pop(subscription.filter, None)
            if self._kept_by(subscription.filter) - {client_id}:
                continue
            with suppress(NotFound):
                if self._broker.is_shared or members:
                    # Other nodes may have members: it goes when none of them is attached.
                    await self._broker.declare_queue(share_queue(subscription), unused_ms=UNUSED_MS)
                else:
                    await self._broker.delete_queue(share_queue(subscription))

    def _kept_by(self, topic_filter: str) -> set[str]:
        """Sessions with a document that take part."""
        return {
            document.client_id
            for document in self._documents.all.values()
            if any(one.filter == topic_filter for one in document.subscriptions)
        }
