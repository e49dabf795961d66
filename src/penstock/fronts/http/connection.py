"""One client's connection: bytes become requests, answers become bytes, in the order in which they were asked for.

Parsing is llhttp's, strict: what two parsers could read differently (two lengths, a length and chunks, a bare line
feed) is refused. A connection holds at most one request that is being answered and what arrived behind it; while there
is any, it is not read from, so a client that floods or stalls costs others nothing. Knows no route and no broker: a
request goes to the server, which gives back its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import httptools

from penstock.api.ticket import Ticket
from penstock.fronts.http.errors import HEADERS_TOO_LARGE, MALFORMED, TIMEOUT, HttpError, answer_to
from penstock.fronts.http.heads import Arriving
from penstock.fronts.http.request import Answer, Headers, Request, Stream, request_of
from penstock.fronts.listening import GONE, begin, linger
from penstock.model.errors import MessageTooLarge, PenstockError, TooManyConnections
from penstock.wire.http.cluster import OF_NODES

if TYPE_CHECKING:
    from penstock.fronts.http.server import HttpServer

REFUSALS: Final = (HttpError, PenstockError)
WANTED: Final = frozenset(
    (
        b"accept",
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"host",
        b"last-event-id",
        b"origin",
        b"traceparent",
        b"x-request-id",
        *OF_NODES,
    )
)
"""The headers that anybody here looks at; others are read and forgotten."""
HEADERS_MAX: Final = 100
PROGRESS_BYTES: Final = 16 * 1024 * 1024
"""Of a body or an answer: for every so many bytes a client has its time anew."""
LINGER_SECONDS: Final = 5.0
"""How long a client that was refused may go on sending before it is cut off."""

log = logging.getLogger("penstock.http")


class Connection(asyncio.Protocol):
    """See the module's description."""

    __slots__ = (
        "_arriving",
        "_begun",
        "_body",
        "_body_bytes",
        "_closing",
        "_current",
        "_expects",
        "_has_body",
        "_head_bytes_max",
        "_header_count",
        "_headers",
        "_host",
        "_idle",
        "_is_begun",
        "_is_busy",
        "_is_head",
        "_loose_bytes",
        "_parsed_bytes",
        "_parser",
        "_place",
        "_requests",
        "_room",
        "_target",
        "_task",
        "_transport",
        "_version",
        "_whole",
        "_ticket",
        "deadline",
        "peer",
    )

    def __init__(self, host: HttpServer) -> None:
        self._host = host
        self._head_bytes_max = host.options.max_header_bytes
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[Request | HttpError | PenstockError] = deque()
        self._begun: Coroutine[Any, Any, Answer | Stream] | None = None
        """What answers the current request, where that needs a task and the task has not taken it yet."""
        self._current: Request | None = None
        """The request that is being answered."""
        self._task: asyncio.Task[None] | None = None
        """What answers, from the first request on: one task for all requests, not one each."""
        self._idle: asyncio.Future[None] | None = None
        """What it waits for."""
        self._ticket: Ticket[Answer] | None = None
        """What a request waits for that is answered without the task."""
        self._is_busy = False
        self._whole = b""
        """What the request that is being parsed began with, if nothing stood before it."""
        self._arriving: Arriving | None = None
        """A request whose head was known, and of which there is more to come."""
        self._room: asyncio.Future[None] | None = None
        """Done when the client has taken enough of what was written; None while it keeps up."""
        self._closing = False
        self._begin()
        self.peer = ""
        self.deadline = 0.0
        """When the server closes it, unless something happens before: see `HttpServer.sweep`."""

    def _begin(self) -> None:
        """What is known of the request that comes next."""
        self._is_begun = False
        self._is_head = True
        self._version = ""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._loose_bytes = 0
        """Received since the parser last gave something out: it may hold them all."""
        self._parsed_bytes = 0
        self._body: list[bytes | memoryview] = []
        self._body_bytes = 0
        self._place = 0
        """Where in a large body, or of what is still to be sent, the time of the client was last counted from."""
        self._has_body = False
        self._expects = False

    # The transport's calls --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.peer = begin(transport)
        self.deadline = self._host.now() + self._host.options.request_seconds
        if not self._host.opened(self):
            most = self._host.options.max_connections
            self._refuse(TooManyConnections(f"there are {most} connections already; try later"))

    def connection_lost(self, _error: Exception | None) -> None:
        self._closing = True
        self._transport = GONE  # among thousands that go at once, it may be answered before it is let go
        self._requests.clear()
        self._arriving = None  # what a task still refers to would keep it
        self._body = []
        self._host.lost(self)

    def let_go(self) -> None:
        """End what the client has asked for: it is gone."""
        self._current = None
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._task is not None:
            # What it waits for is not wanted any more; what it has committed stays.
            self._task.cancel()
        if self._begun is not None:
            self._begun.close()
        if self._ticket is not None:
            self._ticket.close()
        self._host.closed(self)

    def eof_received(self) -> bool:
        """The client sends no more; whether the connection stays open, until what it asked for is answered.

        One that waits for messages has gone, for all that can be known: it would take them with it.
        """
        if self._closing or not self._is_busy or (self._current is not None and self._current.is_waiting):
            return False
        self._closing = True
        for request in self._requests:
            if isinstance(request, Request):
                request.is_last = True
        return True

    def data_received(self, data: bytes) -> None:
        if not (self._is_begun or self._loose_bytes or self._closing):
            request = self._host.heads.read(data)
            if isinstance(request, Request):
                self._put(request)
                return
            if request is not None:
                self.on_message_begin()
                self._arriving = request
                return
            self._whole = data
        elif self._arriving is not None and not self._closing:
            data = self._arrived(self._arriving, data)
        while data and not self._closing:
            data = self._feed(data)

    def _arrived(self, arriving: Arriving, data: bytes) -> bytes:
        """More of a large body; what is left for the parser."""
        data = arriving.body.take(data)
        self._progressed(arriving.body.missing)
        if not arriving.body.missing:
            self._arriving, self._is_begun = None, False
            self._put(arriving.request())
        return data

    def _feed(self, data: bytes) -> bytes:
        """Parse; what is left for another parser."""
        self._loose_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A wish for another protocol, which a server may pass over: what follows is the next request.
            self._parser = httptools.HttpRequestParser(self)
            return data[upgrade.args[0] :]
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, REFUSALS) else HttpError(MALFORMED, str(error)))
        except httptools.HttpParserError as error:
            self._refuse(HttpError(MALFORMED, f"this is not HTTP/1.1: {error}"))
        else:
            if self._loose_bytes > self._head_bytes_max:
                self._refuse(self._head_too_large())
        return b""

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()
        self._place = self._transport.get_write_buffer_size()
        self.deadline = self._host.now() + self._host.options.request_seconds

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # The parser's calls -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._is_begun = True
        self.deadline = self._host.now() + self._host.options.request_seconds

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._parsed_bytes += len(url)
        if self._parsed_bytes > self._head_bytes_max:
            raise self._head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += 1
        if self._header_count > HEADERS_MAX:
            raise HttpError(HEADERS_TOO_LARGE, f"a request may have {HEADERS_MAX} headers")
        self._parsed_bytes += len(name) + len(value)
        if self._parsed_bytes > self._head_bytes_max:
            raise self._head_too_large()
        if not self._is_head:
            return  # behind a chunked body: a proxy that checked the headers has not seen it
        name = name.lower()
        if name in WANTED:
            if name not in self._headers:
                self._headers[name] = value
            elif name == b"accept":
                self._headers[name] += b", " + value
            else:
                raise HttpError(MALFORMED, f"the header {name.decode()} is given twice")
        elif name == b"content-length":
            self._has_body = int(value) > 0
            if int(value) > self._host.body_bytes_max:
                raise self._body_too_large()
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked" or self._parser.get_http_version() != "1.1":
                raise HttpError(MALFORMED, "a body may be sent in chunks, by HTTP/1.1, and in no other encoding")
            self._has_body = True
        elif name == b"expect":
            self._expects = value.lower() == b"100-continue"

    def _head_too_large(self) -> HttpError:
        most = self._head_bytes_max
        return HttpError(HEADERS_TOO_LARGE, f"a request's line and headers may have {most} bytes")

    def on_headers_complete(self) -> None:
        self._is_head = False
        self._loose_bytes = 0
        self._version = self._parser.get_http_version()
        if self._version not in ("1.1", "1.0"):
            raise HttpError(MALFORMED, "this server speaks HTTP/1.1")
        if b"host" not in self._headers and self._version == "1.1":
            raise HttpError(MALFORMED, "the request has no Host header")
        if self._expects and not self._is_busy:
            self._say_continue()

    def _say_continue(self) -> None:
        self._expects = False
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._loose_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._host.body_bytes_max:
            raise self._body_too_large()
        self._body.append(body)
        self._progressed(self._body_bytes)

    def _progressed(self, place: int) -> None:
        """A large body has more time: `request_seconds` for every `PROGRESS_BYTES` of it."""
        if abs(place - self._place) >= PROGRESS_BYTES:
            self._place = place
            self.deadline = self._host.now() + self._host.options.request_seconds

    def _body_too_large(self) -> MessageTooLarge:
        most = self._host.body_bytes_max
        return MessageTooLarge(f"a request's body may have {most} bytes")

    def on_message_complete(self) -> None:
        parser, parts = self._parser, self._body
        method = parser.get_method().decode("latin-1")
        request = request_of(
            method,
            self._target,
            Headers(self._headers),
            parts,
            keep_alive=parser.should_keep_alive(),
            is_old=self._version == "1.0",
        )
        has_lost_body = self._has_body and not parts and parser.should_upgrade()
        if self._whole:
            self._host.heads.remember(self._whole, request)
            self._whole = b""
        self._begin()
        if method == "CONNECT":
            self._refuse(HttpError(MALFORMED, "this server is no proxy"))
        elif has_lost_body:  # the parser takes what follows for the other protocol
            self._refuse(HttpError(MALFORMED, "this server speaks HTTP/1.1 only: send a body without Upgrade"))
        else:
            self._put(request)

    # Answers ----------------------------------------------------------------------------------------------

    def _put(self, request: Request) -> None:
        if self._is_busy:
            self._requests.append(request)
            self._transport.pause_reading()
            return
        self._is_busy = True
        self._current = request
        self.deadline = 0.0
        answer = self._host.answer(self, request)
        if type(answer) is Ticket:
            self._ticket = answer
            answer.then(self._answer_begun)
        else:
            self._begun = answer
            self._wake()

    def _wake(self) -> None:
        self._is_busy = True
        if self._idle is None:
            self._task = asyncio.get_running_loop().create_task(self._work())
        elif not self._idle.done():
            self._idle.set_result(None)

    def _refuse(self, error: HttpError | PenstockError) -> None:
        """Nothing that follows on this connection can be understood: say why after what was asked before, and close."""
        if not self._closing:
            self._closing = True
            self._transport.pause_reading()
            self._requests.append(error)
            if not self._is_busy:
                self._wake()

    def _answer_begun(self, ticket: Ticket[Answer]) -> None:
        """Write the answer to the current request; then what came behind it. The rest is done behind the answer."""
        request = self._current
        assert request is not None
        answer = ticket.result() if ticket.error is None else self._host.failed(request, ticket.error)
        self._ticket = None
        keep = self._write(request, answer)
        if not keep:
            self._is_busy = False
            self._end()
        elif self._requests or self._expects or self._closing or self._host.stopping or self._room is not None:
            self._wake()
        else:
            self._is_busy = False
            self._rest()
        self._host.answered(request, answer)

    async def _work(self) -> None:
        """Answer what arrives, one after the other."""
        loop = asyncio.get_running_loop()
        try:
            while await self._answer_all():
                self._is_busy = False
                self._idle = loop.create_future()
                await self._idle
        except asyncio.CancelledError:
            if not self._transport.is_closing():
                raise
        except Exception:
            log.exception("a connection of %s failed", self.peer)
            self._transport.abort()
        finally:
            self._task = self._idle = None
            self._is_busy = False

    async def _answer_all(self) -> bool:
        """Answer what has arrived; whether the connection goes on."""
        await self._drain()
        if self._begun is not None:
            assert self._current is not None
            begun, self._begun = self._begun, None
            if not await self._answer(self._current, begun):
                self._end()
                return False
        while self._requests:
            item = self._requests.popleft()
            if not self._requests and not self._closing:
                self._transport.resume_reading()  # what comes next, and whether the client goes
            self.deadline = 0.0
            if isinstance(item, REFUSALS):
                answer = answer_to(item)
                self._transport.write(answer.head(self._host.new_request_id(), False) + answer.body)
                self._linger()
                return False
            self._current = item
            if not await self._answer(item, self._host.answer(self, item)):
                self._end()
                return False
        if self._closing or self._host.stopping:
            self._end()
            return False
        if self._expects and not self._is_head:
            self._say_continue()
        self._rest()
        return True

    def _rest(self) -> None:
        """All is answered: from here on it is the client's turn."""
        self._current = None
        options = self._host.options
        seconds = options.request_seconds if self._is_arriving() else options.idle_seconds
        self.deadline = self._host.now() + seconds

    async def _answer(self, request: Request, answering: Awaitable[Answer | Stream]) -> bool:
        """Answer one request; whether the connection goes on."""
        answer: Answer | Stream
        try:
            answer = await answering
        except Exception as error:
            answer = self._host.failed(request, error)
        try:
            if isinstance(answer, Answer):
                keep = self._write(request, answer)
            else:
                keep = await self._stream(request, answer, request.keep_alive and not self._host.stopping)
            self._host.answered(request, answer)
            await self._drain()
        finally:
            if answer.share is not None:
                answer.share.give_back()
        return keep

    def _write(self, request: Request, answer: Answer) -> bool:
        """Send an answer; whether the connection goes on."""
        keep = request.keep_alive and not self._host.stopping
        head = answer.head(request.id, keep, request.is_old)
        if request.method == "HEAD" or answer.status == 204:
            self._transport.write(head)
        elif answer.body_bytes < 16_384:
            self._transport.write(head + answer.body)
        else:
            self._transport.writelines((head, *answer.parts))
        return keep

    async def _stream(self, request: Request, answer: Stream, keep: bool) -> bool:
        """The same for an answer in parts. HTTP/1.0 knows no chunks: its answer ends with the connection."""
        keep = keep and not request.is_old
        self._transport.write(answer.head(request.id, keep, request.is_old))
        if request.method == "HEAD":
            return keep
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                if request.is_old:
                    self._transport.write(chunk)
                elif chunk:
                    self._transport.writelines((b"%x\r\n" % len(chunk), chunk, b"\r\n"))
                await self._drain()
        if not request.is_old:
            self._transport.write(b"0\r\n\r\n")
        return keep

    async def _drain(self) -> None:
        """Until the client has taken most of what was written."""
        if self._room is not None:
            await self._room
            self.deadline = 0.0

    def _end(self) -> None:
        self._closing = True
        self._transport.close()
        self.deadline = self._host.now() + self._host.options.request_seconds

    def _linger(self) -> None:
        """Say no more, and pass over what still comes."""
        self._closing = True
        linger(self._transport)
        self.deadline = self._host.now() + min(LINGER_SECONDS, self._host.options.request_seconds)

    # The server's calls -----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Close now if nothing is being answered; otherwise after the answer."""
        if not self._is_busy:
            self._end()

    def overdue(self) -> None:
        """Its time is over: say so if a request was being sent, and close."""
        buffered = self._transport.get_write_buffer_size()
        if self._room is not None and buffered <= self._place - PROGRESS_BYTES:
            self._place = buffered
            self.deadline = self._host.now() + self._host.options.request_seconds
        elif self._is_busy and self._room is None and not self._closing:
            self.deadline = 0.0  # it waits for us, and the request behind it has time until then
        elif not self._is_busy and self._is_arriving() and not self._closing:
            self._refuse(HttpError(TIMEOUT, "the request did not arrive in time"))
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._closing = True
        self._transport.abort()

    def _is_arriving(self) -> bool:
        """Whether a part of a request is there."""
        return self._is_begun or self._loose_bytes > 0
