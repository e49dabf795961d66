"""A session's life seen from its client: begun, renewed while it is open, ended. Next stop: `client.py`."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from penstock.client.operations.requests import Requests, decoded
from penstock.model.errors import NotFound, PenstockError
from penstock.wire.http.shapes import SessionAnswer, SessionRequest

log = logging.getLogger("penstock.client")


async def begin_session(requests: Requests, seconds: float) -> SessionAnswer:
    """A new session. One whose answer was lost ends by itself."""
    body = await requests._send(b"POST", requests._target("sessions"), SessionRequest(seconds=seconds))
    return decoded(SessionAnswer, body)


async def renew_session(requests: Requests, session: SessionAnswer) -> None:
    """Keep a session alive until cancelled, or until it has ended: the next request in it is then told so."""
    while True:
        await asyncio.sleep(session.seconds / 3)
        try:
            await requests._send(b"PUT", requests._target("sessions", session.id))
        except NotFound:
            log.warning("the session %s has ended at the server; its exclusive queues are gone", session.consumer)
            return
        except PenstockError as error:
            log.warning("the session %s could not be renewed: %s", session.consumer, error)


async def end_session(requests: Requests, session: SessionAnswer) -> None:
    """End a session, if it has not ended."""
    with suppress(NotFound):
        await requests._send(b"DELETE", requests._target("sessions", session.id))
