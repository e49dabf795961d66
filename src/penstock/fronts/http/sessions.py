"""Sessions of clients that have no connection of their own: named by a random id, alive as long as somebody uses it.

A session's exclusive queues, its consumers' presence and its leases end with it: when it is told to, or when no request
has named it for its time. A restart ends all of them. Next stop: `Broker.begin_session`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.api.principal import Principal
from penstock.model.errors import Elsewhere, NotFound, Overloaded, PenstockError
from penstock.node.broker import LocalBroker

NAMESPACES_KEPT: Final = 100
"""Of one session: how many its client may name is not for the server's memory to say."""

log = logging.getLogger("penstock.http")


class Session:
    """One client's presence."""

    __slots__ = ("broker", "deadline", "id", "namespaces", "requests", "seconds")

    def __init__(self, id: str, broker: LocalBroker, seconds: float) -> None:
        self.id = id
        self.broker = broker
        self.namespaces: dict[tuple[Principal, str], LocalBroker] = {}
        self.seconds = seconds
        self.deadline = 0.0
        self.requests = 0
        """Those under way: it does not end while one waits."""


class Sessions:
    """All sessions of a server."""

    def __init__(self, broker: LocalBroker, most: int, now: Callable[[], float]) -> None:
        self._broker = broker
        self._most = most
        self._now = now
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, seconds: float) -> Session:
        """A new session that ends when nobody has named it for so many seconds."""
        if len(self._sessions) >= self._most:
            raise Overloaded(f"there are {self._most} sessions already, as many as http.max_sessions allows")
        cluster = self._broker.cluster
        id = secrets.token_urlsafe(24)
        if cluster is not None:
            id = f"{cluster.ownership.incarnation}.{id}"
        # Its name as a consumer is another one: everybody sees that, and whoever knows the id may use the session.
        session = Session(id, self._broker.begin_session(self._broker.new_session_name()), seconds)
        session.deadline = self._now() + seconds
        self._sessions[id] = session
        return session

    def find(self, id: str) -> Session:
        """A session that has not ended."""
        session = self._sessions.get(id)
        if session is None or not self._is_of_this_life(id):
            self._check_here(id)
            raise NotFound(
                f"there is no session {id[:64]!r}: it has ended, or was never begun; its exclusive queues are gone"
            )
        return session

    def _check_here(self, id: str) -> None:
        """Raise `Elsewhere` for a session that another node has."""
        cluster, holder = self._broker.cluster, id.partition(".")[0]
        if cluster is not None and holder.isascii() and holder.isdigit() and len(holder) < 20:
            node = cluster.ownership.node_of(int(holder))
            if node is not None and node.is_live and node.incarnation != cluster.ownership.incarnation:
                raise Elsewhere(f"the session is at {node.name}", incarnation=node.incarnation)

    def _is_of_this_life(self, id: str) -> bool:
        """Whether it began since this node last joined: others have ended those from before."""
        cluster = self._broker.cluster
        return cluster is None or id.startswith(f"{cluster.ownership.incarnation}.")

    @contextmanager
    def used(self, id: str, namespace: str, principal: Principal) -> Iterator[LocalBroker]:
        """The session's broker in a namespace, for the time of a request: the session lives on from its end."""
        session = self.find(id)
        broker = session.namespaces.get((principal, namespace))
        if broker is None:
            broker = session.broker.in_namespace(namespace).acting_as(principal)
            if len(session.namespaces) < NAMESPACES_KEPT:
                session.namespaces[principal, namespace] = broker
        session.requests += 1
        try:
            yield broker
        finally:
            session.requests -= 1
            session.deadline = self._now() + session.seconds
            if not session.requests and session.id not in self._sessions:
                self._end_soon(session)  # ended while the request was under way: what that declared or leased goes too

    async def end(self, id: str) -> None:
        """End a session now."""
        session = self.find(id)
        del self._sessions[id]
        try:
            await session.broker.end_session()
        except PenstockError:
            self._again(session)
            raise

    def sweep(self) -> None:
        """End those whose time is over."""
        now = self._now()
        for session in [one for one in self._sessions.values() if not one.requests and one.deadline < now]:
            del self._sessions[session.id]
            self._end_soon(session)

    def _end_soon(self, session: Session) -> None:
        task = asyncio.ensure_future(self._give_up(session))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _give_up(self, session: Session) -> None:
        try:
            await session.broker.end_session()
        except PenstockError as error:
            log.warning("a session could not be ended, trying again: %s", error)
            self._again(session)

    def _again(self, session: Session) -> None:
        """What cannot be ended now is ended later: nobody else would."""
        session.deadline = self._now() + session.seconds
        self._sessions[session.id] = session
