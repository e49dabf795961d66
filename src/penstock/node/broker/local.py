"""The broker itself: the parts put together, its life, and sessions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.model import check_name
from penstock.node.broker.declare import Declaring
from penstock.node.broker.enqueued import Enqueued
from penstock.node.broker.inspect import Looking
from penstock.node.broker.marks import Marking
from penstock.node.broker.messages import Messages
from penstock.node.broker.scan import Scanning
from penstock.node.broker.staging import Staging
from penstock.node.session import Session


class Broker(Declaring, Messages, Looking, Scanning, Marking, Staging, Enqueued):
    """An open broker, seen from one namespace and, perhaps, one session."""

    async def close(self) -> None:
        """Finish what is under way and release the store. Leases stay; their messages come back in time."""
        await self._node.close()

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def drain(self) -> None:
        """Answer everyone who waits for messages, with nothing, and let nobody wait any more: before a stop."""
        self._node.lifecycle.draining = True
        self._node.waiters.drain()

    def in_namespace(self, namespace: str) -> Broker:
        """The same broker with another namespace's queues and exchanges."""
        return Broker(self._node, check_name(namespace, "a namespace"), self._session)

    @asynccontextmanager
    async def session(self, name: str) -> AsyncIterator[Broker]:
        """A broker bound to a session: its exclusive queues and what it has leased end with it."""
        session = self.begin_session(name)
        try:
            yield session
        finally:
            await session.end_session()

    def begin_session(self, name: str) -> Broker:
        """Like `session()`, but the caller must call `end_session()` on what this returns."""
        session = Session(self._node.ownership.incarnation, check_name(name, "a session"))
        return Broker(self._node, self._namespace, session)

    def new_session_name(self) -> str:
        """A name that no other session has."""
        return f"session-{secrets.token_hex(8)}"

    async def end_session(self) -> None:
        """Delete the session's exclusive queues and give back what it has leased. Safe to repeat."""
        session = self._session
        if session is None or self._node.closed:
            return
        await self._node.sessions.end(session)
        if self._node.cluster is not None:
            await self._node.cluster.session_ended(session)


def broker_of_session(broker: Broker, session_key: str, namespace: str) -> Broker:
    """A broker for one operation in the name of a session that another node has."""
    return Broker(broker._node, check_name(namespace, "a namespace"), Session.parse(session_key))
