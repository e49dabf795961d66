"""Sessions: what belongs to one client and goes with it."""

from __future__ import annotations

from penstock.fronts.http.handlers import Routes
from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call
from penstock.model.errors import NotFound, Overloaded
from penstock.wire.http.shapes import SessionAnswer, SessionRequest

ROUTES = Routes(__name__)
ONE_SESSION = "/v1/sessions/{session}"


@ROUTES.add("POST", "/v1/sessions", {201: SessionAnswer}, errors=[Overloaded])
async def begin_session(call: Call, body: SessionRequest) -> Answer:
    """Begin a session: requests that name it (`?session=…`) may declare exclusive queues, which end with it."""
    session = call.server.sessions.begin(body.seconds)
    answer = SessionAnswer(id=session.id, consumer=session.broker.consumer_name, seconds=session.seconds)
    return json_answer(answer, 201)


@ROUTES.add("PUT", ONE_SESSION, {204: None}, errors=[NotFound])
async def renew_session(call: Call) -> Answer:
    """Say that the session's client is still there. Any request that names the session does the same."""
    await call.server.sessions.renew(call.names["session"], call.request.principal)
    return NOTHING


@ROUTES.add("DELETE", ONE_SESSION, {204: None}, errors=[NotFound])
async def end_session(call: Call) -> Answer:
    """End a session: its exclusive queues are deleted, what it has leased returns at once."""
    await call.server.sessions.end(call.names["session"])
    return NOTHING
