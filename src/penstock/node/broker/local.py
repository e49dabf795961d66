"""The broker itself: the parts put together, its life, and sessions."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from penstock.api.arguments import check_number
from penstock.api.front_broker import FrontBroker, Peering
from penstock.api.principal import Authorizer, Caller, Principal
from penstock.model import check_name
from penstock.model.errors import NotFound
from penstock.model.limits import SESSION_SECONDS_MAX, SESSION_SECONDS_MIN
from penstock.node.broker.admin import LocalAdministration
from penstock.node.broker.dead_letters import LocalDeadLetters
from penstock.node.broker.declare import LocalDeclarations
from penstock.node.broker.inspect import LocalInspection
from penstock.node.broker.messages import LocalMessages
from penstock.node.broker.scan import LocalScans
from penstock.node.broker.staging import LocalStaging
from penstock.node.session import Session


class LocalBroker(
    LocalMessages,
    LocalDeclarations,
    LocalInspection,
    LocalDeadLetters,
    LocalAdministration,
    LocalScans,
    LocalStaging,
    FrontBroker,
):
    """The broker of a node in this process."""

    async def close(self) -> None:
        await self._services.close()

    def drain(self) -> None:
        self._services.lifecycle.draining = True
        self._services.waiters.drain()

    def in_namespace(self, namespace: str) -> LocalBroker:
        return self._view(check_name(namespace, "a namespace"), self._caller)

    def acting_as(self, principal: Principal) -> LocalBroker:
        return self._view(self._namespace, Caller(principal, self._caller.authorizer))

    def authorized_by(self, authorizer: Authorizer) -> LocalBroker:
        """The same broker, which asks this authorizer before every operation."""
        return self._view(self._namespace, Caller(self._caller.principal, authorizer))

    def _view(self, namespace: str, caller: Caller) -> LocalBroker:
        return LocalBroker(self._services, namespace, self._session, caller, is_forwarded=self._is_forwarded)

    @asynccontextmanager
    async def session(self, *, seconds: float = 30.0) -> AsyncIterator[LocalBroker]:
        check_number(seconds, "seconds", SESSION_SECONDS_MIN, SESSION_SECONDS_MAX)
        session = self.begin_session(self.new_session_name())
        try:
            yield session
        finally:
            await session.end_session()

    def begin_session(self, name: str) -> LocalBroker:
        session = Session(self._services.ownership.incarnation, check_name(name, "a session"))
        return LocalBroker(self._services, self._namespace, session, self._caller)

    def new_session_name(self) -> str:
        return f"session-{secrets.token_hex(8)}"

    async def end_session(self) -> None:
        session = self._session
        if session is None or self._services.lifecycle.closed:
            return
        await self._services.sessions.end(session)
        if self._services.cluster is not None:
            await self._services.cluster.session_ended(session)

    async def renew_session(self) -> None:
        pass  # the holder of a session of this process knows its client

    def new_session_id(self) -> str:
        return secrets.token_urlsafe(24)

    def locate_session(self, id: str) -> Literal["here", "elsewhere", "ended"]:  # noqa: ARG002 - there is one process
        return "here"

    def in_session(self, id: str) -> LocalBroker:
        raise NotFound(f"no other process has the session {id[:64]!r}")

    def bound_to(self, namespace: str, session: Session | None) -> LocalBroker:
        """The broker for another node, in the name of a session that it has, or of none."""
        return LocalBroker(self._services, namespace, session, self._caller, is_forwarded=True)

    @property
    def principal(self) -> Principal:
        """Who asks through this broker."""
        return self._caller.principal

    # The process and others on the same store -------------------------------------------------------------

    @property
    def peering(self) -> Peering | None:
        return None

    @property
    def is_shared(self) -> bool:
        return not self._services.ownership.is_sole

    @property
    def process(self) -> str:
        return str(self._services.ownership.incarnation)

    def is_alive(self, process: str) -> bool:
        return process.isascii() and process.isdigit() and self._services.ownership.is_alive(int(process))

    @property
    def is_caretaker(self) -> bool:
        ownership = self._services.ownership
        return all(row.incarnation > ownership.incarnation for row in ownership.others())
