"""Sessions of clients that have no connection of their own: named by a random id, alive as long as it is used.

A session's exclusive queues, its consumers' presence and its leases end with it: when it is told to, or when no request
has named it for its time. A restart ends all of them. Next stop: `FrontBroker.begin_session`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.api.front_broker import FrontBroker
from penstock.api.principal import Principal
from penstock.model.errors import NotFound, Overloaded, PenstockError

NAMESPACES_KEPT: Final = 100
"""Of one session: how many its client may name is not for the server's memory to say."""

log = logging.getLogger("penstock.http")


class Namespaces:
    """A broker as each principal sees it in each namespace; so many of these are kept."""

    __slots__ = ("_broker", "_most", "known")

    def __init__(self, broker: FrontBroker, most: int) -> None:
        self._broker = broker
        self._most = most
        self.known: dict[tuple[Principal, str], FrontBroker] = {}

    def view(self, namespace: str, principal: Principal) -> FrontBroker:
        broker = self.known.get((principal, namespace))
        if broker is None:
            broker = self._broker.in_namespace(namespace).acting_as(principal)
            if len(self.known) < self._most:
                self.known[principal, namespace] = broker
        return broker


class Session:
    """One client's presence."""

    __slots__ = ("broker", "deadline", "id", "namespaces", "requests", "seconds")

    def __init__(self, id: str, broker: FrontBroker, seconds: float) -> None:
        self.id = id
        self.broker = broker
        self.namespaces = Namespaces(broker, NAMESPACES_KEPT)
        self.seconds = seconds
        self.deadline = 0.0
        self.requests = 0
        """Those under way: it does not end while one waits."""


class Sessions:
    """All sessions of a server."""

    def __init__(self, broker: FrontBroker, most: int, now: Callable[[], float]) -> None:
        self._broker = broker
        self._most = most
        self._now = now
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, seconds: float) -> Session:
        """A new session that ends after `seconds` without a request."""
        if len(self._sessions) >= self._most:
            raise Overloaded(f"there are {self._most} sessions already, as many as http.max_sessions allows")
        id = self._broker.new_session_id()
        # Its name as a consumer is another one: everybody sees that, and anyone who knows the id may use the session.
        session = Session(id, self._broker.begin_session(self._broker.new_session_name()), seconds)
        session.deadline = self._now() + seconds
        self._sessions[id] = session
        return session

    def find(self, id: str) -> Session:
        """A session of this process that has not ended."""
        session = self._sessions.get(id)
        if session is None or self._broker.locate_session(id) != "here":
            raise NotFound(
                f"there is no session {id[:64]!r}: it has ended, or was never begun; its exclusive queues are gone"
            )
        return session

    def elsewhere(self, id: str) -> FrontBroker | None:
        """The broker of a session that another process has; None where none has it."""
        if id in self._sessions or self._broker.locate_session(id) != "elsewhere":
            return None
        return self._broker.in_session(id)

    @contextmanager
    def used(self, id: str, namespace: str, principal: Principal) -> Iterator[FrontBroker]:
        """The session's broker in a namespace, for the time of a request: the session lives on from its end."""
        elsewhere = self.elsewhere(id)
        if elsewhere is not None:
            yield elsewhere.in_namespace(namespace).acting_as(principal)
            return
        session = self.find(id)
        session.requests += 1
        try:
            yield session.namespaces.view(namespace, principal)
        finally:
            session.requests -= 1
            session.deadline = self._now() + session.seconds
            if not session.requests and session.id not in self._sessions:
                self._end_soon(session)  # ended while the request was under way: what that declared or leased goes too

    async def renew(self, id: str, principal: Principal) -> None:
        """Say that a session's client is still there."""
        elsewhere = self.elsewhere(id)
        if elsewhere is not None:
            await elsewhere.acting_as(principal).renew_session()
            return
        session = self.find(id)
        session.deadline = self._now() + session.seconds

    async def end(self, id: str) -> None:
        """End a session now."""
        elsewhere = self.elsewhere(id)
        if elsewhere is not None:
            await elsewhere.end_session()
            return
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
