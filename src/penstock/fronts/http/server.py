"""The HTTP server: listens, keeps its connections within their limits, finds the route of each request.

Next stop of a request: `routes.py`, then the handler in `handlers/`, then the broker.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from penstock import telemetry
from penstock.api.front_broker import FrontBroker
from penstock.api.principal import ANONYMOUS, Principal
from penstock.api.ticket import Ticket
from penstock.fronts import metrics
from penstock.fronts.answers import Answers
from penstock.fronts.front import Address, Shared
from penstock.fronts.http import page
from penstock.fronts.http.connection import Connection
from penstock.fronts.http.errors import MEDIA_TYPE, NO_SUCH_PATH, HttpError, answer_to
from penstock.fronts.http.handlers import all_routes
from penstock.fronts.http.heads import Heads
from penstock.fronts.http.measures import HttpMeasures
from penstock.fronts.http.openapi import document
from penstock.fronts.http.options import HttpOptions
from penstock.fronts.http.request import Answer, Headers, Request, Stream
from penstock.fronts.http.routes import Call, Query, Route, Router
from penstock.fronts.http.sessions import Namespaces, Sessions
from penstock.fronts.listening import SocketFront, listen
from penstock.logs import request_id
from penstock.model.errors import Forbidden, Overloaded, PenstockError, Unauthorized
from penstock.wire.http.cluster import CONSUMER, FORWARDED, OF_NODES, PRINCIPAL, SECRET, SESSION_NAME, TO_SESSION
from penstock.wire.http.shapes import encode_json

SWEEP_SECONDS: Final = 1.0
LEAVING_AT_ONCE: Final = 50
NAMESPACES_KEPT: Final = 1_000
REQUEST_ID_CHARACTERS_MAX: Final = 128
EXPECTED: Final = (PenstockError, HttpError, msgspec.DecodeError, RecursionError)
"""What is wrong with a request; anything else that is raised is wrong with the server."""

log = logging.getLogger("penstock.http")


class HttpServer(SocketFront[Connection]):
    """The HTTP front of one broker."""

    def __init__(self, broker: FrontBroker, options: HttpOptions | None = None, shared: Shared | None = None) -> None:
        self.broker = broker
        self.options = options or HttpOptions()
        super().__init__("http", self.options, self.options.credentials)
        self.measures: HttpMeasures = HttpMeasures()
        self._shared = shared or Shared()
        self.router = Router(all_routes())
        self.body_bytes_max = self.options.max_body_bytes or self._shared.body_bytes
        self.heads = Heads(self.options.max_header_bytes, self.body_bytes_max)
        self._namespaces = Namespaces(broker, NAMESPACES_KEPT)
        self._request_prefix = secrets.token_hex(4)
        self._request_numbers = itertools.count(1)
        self.answers = self._shared.answers or Answers()
        self.sessions = Sessions(broker, self.options.max_sessions, self._loop.time)
        self._leaving: deque[Connection] = deque()
        self._left = 0
        """Connections let go in this turn of the loop."""
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._openapi: bytes | None = None
        self._page: bytes | None = None

    # Life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen."""
        self._server, self.port = await listen(lambda: Connection(self), self.options.host, self.options.port)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self.sweep)

    @property
    def listening(self) -> list[Address]:
        return [Address("http", self.options.host, self.port)]

    async def stop(self) -> None:
        """Take no more requests, answer those under way (long polls at once, empty), close all connections."""
        if self._server is None or self.stopping:
            return
        self.stopping = True
        self._server.close()
        self.broker.drain()
        for connection in list(self.connections):
            connection.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.all_closed(), self.options.stop_seconds)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.answers.close()
        await self._server.wait_closed()

    def sweep(self) -> None:
        """Close connections whose time is over. One timer for all: most never need theirs."""
        now = self.now()
        for connection in [one for one in self.connections if 0.0 < one.deadline < now]:
            connection.overdue()
        self.sessions.sweep()
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self.sweep)

    def lost(self, connection: Connection) -> None:
        """A client is gone: end what it asked for. Of thousands that go at once some do in each turn of the loop."""
        if self._left >= LEAVING_AT_ONCE:
            self._leaving.append(connection)
            return
        if not self._left:
            self._loop.call_soon(self._lose_more)
        self._left += 1
        connection.let_go()

    def _lose_more(self) -> None:
        self._left = 0
        for _ in range(min(len(self._leaving), LEAVING_AT_ONCE)):
            self.lost(self._leaving.popleft())

    # Requests ---------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self._loop.time()

    def new_request_id(self) -> str:
        """An id for a request that came without."""
        return f"{self._request_prefix}-{next(self._request_numbers):x}"

    def answer(self, connection: Connection, request: Request) -> Ticket[Answer] | Coroutine[Any, Any, Answer | Stream]:
        """Begin to answer a request. The coroutine does not fail; where a ticket does, `failed` makes the answer.

        Most requests of a queue wait for a commit alone: a ticket is answered without the cost of a task.
        """
        request.began = self._loop.time()
        request.id = self._request_id(request)
        log_id = request_id.set(request.id)
        try:
            return self._begin(connection, request)
        except Exception as error:
            return Ticket.done(self.failed(request, error))
        finally:
            request_id.reset(log_id)

    def _begin(self, connection: Connection, request: Request) -> Ticket[Answer] | Coroutine[Any, Any, Answer | Stream]:
        route, names, query = self.router.find_target(request.method, request.target)
        request.route = route.name
        if self.credentials.token or not request.headers.is_plain:
            self._check(route, request)
        if route.needs_task or query.session is not None or telemetry.is_on():
            return self._in_task(connection, request, route, names, query)
        answer = route.call(self._call(connection, request, names, query.namespace), query.rest)
        assert type(answer) is Ticket, "a handler that is no coroutine gives a ticket"
        return answer

    async def _in_task(
        self,
        connection: Connection,
        request: Request,
        route: Route,
        names: Mapping[str, str],
        query: Query,
    ) -> Answer | Stream:
        request_id.set(request.id)
        try:
            if query.session is None:
                return await _answer(route, self._call(connection, request, names, query.namespace), query.rest)
            with self.sessions.used(query.session, query.namespace, request.principal) as broker:
                return await _answer(route, Call(self, broker, request, names, broker.consumer_name), query.rest)
        except Exception as error:
            return self.failed(request, error)

    def answered(self, request: Request, answer: Answer | Stream) -> None:
        """An answer was written: count it, and log it where that is wanted."""
        seconds = self._loop.time() - request.began
        sent = answer.body_bytes if isinstance(answer, Answer) else 0
        self.measures.request(request.route or "(none)", answer.status, seconds, request.body_bytes, sent)
        if self._shared.log_requests:
            fields = {"status": answer.status, "milliseconds": round(seconds * 1000, 3)}
            log_id = request_id.set(request.id)
            log.info("%s", request.route or request.method, extra=fields)
            request_id.reset(log_id)

    def _check(self, route: Route, request: Request) -> None:
        """Raise where the client may not ask this, or sends what nobody here reads."""
        if FORWARDED in request.headers and not self._is_from_node(request):
            # Anybody can send these: the request is that of its client.
            sent = {name: value for name, value in request.headers.items() if name not in OF_NODES}
            request.headers = Headers(sent)
        if FORWARDED in request.headers:
            request.principal = Principal(request.header(PRINCIPAL)) if PRINCIPAL in request.headers else ANONYMOUS
        elif not self.credentials.token:
            _check_origin(request)
        elif not route.is_open:
            request.principal = self._authenticate(request)
        if request.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise HttpError(MEDIA_TYPE, "the body is compressed; send it as it is")

    def failed(self, request: Request, error: BaseException) -> Answer:
        """The answer to a request for which an error was raised."""
        if not isinstance(error, EXPECTED):
            log.error("%s failed (request %s)", request.route or request.method, request.id, exc_info=error)
        return answer_to(error)

    def _call(self, connection: Connection, request: Request, names: Mapping[str, str], namespace: str) -> Call:
        """The request of a client or, where another node found that this one owns what it is about, of that node."""
        if request.headers.is_plain or request.headers.get(FORWARDED, TO_SESSION) == TO_SESSION:
            return Call(self, self._namespaces.view(namespace, request.principal), request, names, connection.peer)
        assert self.broker.peering is not None  # `_check` has taken the header away otherwise
        broker = self.broker.peering.broker_for(namespace, request.header(SESSION_NAME) or None)
        broker = broker.acting_as(request.principal)
        return Call(self, broker, request, names, request.header(CONSUMER) or broker.consumer_name)

    def _is_from_node(self, request: Request) -> bool:
        """Whether it comes from another node of the same store, which has looked who asks."""
        try:
            if self.broker.peering is not None:
                self.broker.peering.check(request.headers.get(SECRET, b""))
        except Forbidden:
            return False
        return self.broker.peering is not None

    def _request_id(self, request: Request) -> str:
        given = None if request.headers.is_plain else request.headers.get(b"x-request-id")
        if given and len(given) <= REQUEST_ID_CHARACTERS_MAX and all(33 <= byte < 127 for byte in given):
            return given.decode()
        return self.new_request_id()

    def _authenticate(self, request: Request) -> Principal:
        """Who sends the request; raises where the server wants a token that it does not bring."""
        scheme, _, token = request.headers.get(b"authorization", b"").partition(b" ")
        principal = self.credentials.authenticate(token.strip()) if scheme.lower() == b"bearer" else None
        if principal is None:
            raise Unauthorized("this server wants a token: send Authorization: Bearer TOKEN")
        return principal

    def begin_wait(self, request: Request) -> None:
        """One more claim or read that waits; `end_wait` when it does not any more."""
        waiting = self.measures.long_polls
        if waiting >= self.options.max_long_polls:
            raise Overloaded(f"{waiting} claims and reads are waiting already; try again later, or without wait")
        self.measures.long_polls += 1
        request.is_waiting = request.waits = True

    def end_wait(self, request: Request) -> None:
        request.is_waiting = False
        self.measures.long_polls -= 1

    # What it says about itself ----------------------------------------------------------------------------

    async def render_metrics(self, broker: FrontBroker) -> bytes:
        """The page for the principal of a broker."""
        if not self._shared.has_metrics:
            raise HttpError(NO_SUCH_PATH, "metrics are turned off: [metrics] enabled = false")
        if self.broker.peering is not None:
            self.measures.cluster = self.broker.peering.numbers()
        self.measures.answer_bytes, self.measures.answers_waiting = self.answers.bytes, self.answers.waiting
        fronts = self._shared.fronts or (self,)
        measures = [front.measures for front in fronts]
        return await metrics.render(broker, self._shared.metrics_queues_max, measures)

    def openapi(self) -> bytes:
        """The OpenAPI document, made when it is first asked for."""
        if self._openapi is None:
            self._openapi = encode_json(document(self.router.routes))
        return self._openapi

    def page(self) -> bytes:
        """The same for people."""
        if self._page is None:
            self._page = page.render(document(self.router.routes))
        return self._page


def _answer(route: Route, call: Call, query: Mapping[str, str]) -> Awaitable[Answer | Stream]:
    return _traced(route, call, query) if telemetry.is_on() else route.call(call, query)


async def _traced(route: Route, call: Call, query: Mapping[str, str]) -> Answer | Stream:
    """The answer, made inside of a span that joins the client's."""
    with telemetry.server_span(route.name, call.request.header(b"traceparent") or None) as span:
        answer: Answer | Stream
        try:
            answer = await route.call(call, query)
        except EXPECTED as error:
            answer = answer_to(error)
        span.status(answer.status)
        return answer


def _check_origin(request: Request) -> None:
    """Without a token, a page of another site in a user's browser could change things here."""
    origin = request.headers.get(b"origin")
    if origin is None or request.method in ("GET", "HEAD"):
        return
    if origin.partition(b"://")[2] != request.headers.get(b"host"):
        raise Forbidden(f"Origin is {request.header(b'origin')[:100]!r}: a page of another site may not")
