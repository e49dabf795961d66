"""One HTTP/1.1 connection: a request goes out, its answer comes back, and the next may follow.

An asyncio protocol around httptools' parser. Knows bytes, limits and time; nothing of Penstock's operations, of retries
or of other connections. What it says when it fails is what a retry needs to know: whether the request may have
reached the server. Next stop: `pool.py`, which keeps connections for reuse.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import suppress
from typing import Final, cast

import httptools
from msgspec import Struct

from penstock.wire.http.large_bodies import LARGE_BODY_BYTES, ArrivingBody

HEAD_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of an answer: the largest message, and in base64."""


class Answer(Struct, frozen=True):
    """A whole response. Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


_KNOWN: Final = re.compile(
    rb"HTTP/1\.1 (20[0-9]) [A-Za-z ]{1,32}\r\nX-Request-Id: ([!-~]{1,128})"
    rb"(?:\r\nContent-Type: ([!-~]{1,128})\r\nContent-Length: ([0-9]{1,9}))?\r\n\r\n"
)
_NOTHING: Final = 204


def read_known(data: bytes, body_bytes_max: int) -> Answer | Arriving | None:
    """A successful answer that has arrived whole and is written as Penstock writes it, or the beginning of a large one.

    Others are for the parser, which copies every byte once more.
    """
    found = _KNOWN.match(data)
    if found is None:
        return None
    status, start = int(found[1]), found.end()
    if found[4] is None:
        whole = status == _NOTHING and len(data) == start
        return Answer(status, {b"x-request-id": found[2]}, b"") if whole else None
    length = int(found[4])
    missing = start + length - len(data)
    if status == _NOTHING or missing < 0 or length > body_bytes_max or (missing and length < LARGE_BODY_BYTES):
        return None
    headers = {b"x-request-id": found[2], b"content-type": found[3], b"content-length": found[4]}
    if missing:
        return Arriving(status, headers, ArrivingBody(memoryview(data)[start:], missing))
    return Answer(status, headers, data[start:])


class Arriving(Struct, frozen=True):
    """An answer whose large body is still coming."""

    status: int
    headers: dict[bytes, bytes]
    body: ArrivingBody

    def answer(self) -> Answer:
        """It, when nothing is missing."""
        return Answer(self.status, self.headers, b"".join(self.body.parts))


class ConnectFailed(Exception):
    """No connection came about: the request certainly did not reach the server."""


class ConnectionLost(Exception):
    """The connection ended before the answer was whole: the request may have been carried out, or not."""

    def __init__(self, text: str, *, answer_begun: bool = False) -> None:
        super().__init__(text)
        self.answer_begun = answer_begun
        self.was_idle = False
        """The connection had carried requests before: the server may have closed it while it was idle."""


class AnswerTimeout(ConnectionLost):
    """No answer in time."""


class BadAnswer(ConnectionLost):
    """What came back is not HTTP, or larger than what is accepted."""


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._is_alive = False
        self._timer: asyncio.TimerHandle | None = None
        """Goes on from request to request: most are answered long before it is due."""
        self._deadline = self._timeout_s = 0.0
        """When the request under way has waited too long, on the loop's clock, and after how long that is."""
        self._lost = "the connection was not made yet"
        self.used = 0
        """Requests it has carried."""
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body: list[bytes] = []
        self._body_bytes = self._head_bytes = 0
        self._is_begun = False
        self._arriving: Arriving | None = None

    # The one thing it does --------------------------------------------------------------------------------

    async def request(self, head: bytes, body: bytes, timeout_s: float) -> Answer:
        """Send a request and wait for all of its answer. After any failure, and when cancelled, it is closed."""
        transport = self._transport
        if transport is None or not self._is_alive or self._answer is not None:
            raise ConnectFailed(self._lost)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._answer = answer
        self.used += 1
        self._timeout_s = timeout_s
        self._deadline = loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._deadline:
            self._watch(loop)
        try:
            if len(body) < LARGE_BODY_BYTES:
                transport.write(b"".join((head, body)))
            else:
                transport.write(head)
                transport.write(body)
            return await answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the time when the request under way should have been answered, and not later."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._deadline, self._look_at_the_time, loop)

    def _look_at_the_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._answer is None or self._answer.done():
            return
        if loop.time() < self._deadline:  # it was set for a request before this one
            self._watch(loop)
        else:
            self._fail(AnswerTimeout(f"no answer in {self._timeout_s:g} seconds", answer_begun=self._is_begun))

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_reusable(self) -> bool:
        return self._is_alive and self._answer is None

    def close(self) -> None:
        self._is_alive = False
        self._lost = "the connection is closed"
        self._unwatch()
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports are not instances of it
        self._is_alive = True

    def connection_lost(self, error: Exception | None) -> None:
        self._is_alive = False
        self._unwatch()
        self._lost = "the server closed the connection" if error is None else f"the connection broke: {error}"
        self._fail(ConnectionLost(self._lost, answer_begun=self._is_begun))

    def eof_received(self) -> bool:
        return False  # closes; an answer without a length ends here only where the parser has seen all of it

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # bytes that answer no request: whose they are cannot be known
            return
        if self._arriving is not None:
            self._arrived(self._arriving, self._answer, data)
            return
        if not self._is_begun:
            known = read_known(data, self._body_bytes_max)
            if isinstance(known, Answer):
                _give(self._answer, known)
                return
            self._arriving = known
            if known is not None:
                self._is_begun = True
                return
        self._is_begun = True
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            reason = error.__context__
            text = str(reason) if isinstance(reason, _TooLarge) else f"the answer is not HTTP: {error}"
            self._fail(BadAnswer(text, answer_begun=True))
            self.close()
            return
        if self._head_bytes > HEAD_BYTES_MAX:
            self._fail(BadAnswer(f"the head of the answer has over {HEAD_BYTES_MAX} bytes", answer_begun=True))
            self.close()

    def _arrived(self, arriving: Arriving, answer: asyncio.Future[Answer], data: bytes) -> None:
        """More of a large body."""
        rest = arriving.body.take(data)
        if not arriving.body.missing:
            self._arriving, self._is_begun = None, False
            _give(answer, arriving.answer())
        if rest:
            self.close()  # what follows the answer answers no request

    # What the parser calls --------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._head_bytes = -1
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._body_bytes_max:
            raise _TooLarge(f"the answer has {length.decode()} bytes; the limit is {self._body_bytes_max}")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            raise _TooLarge(f"the answer has over {self._body_bytes_max} bytes, which is the limit")
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and the like: the answer itself follows
            self._begin_headers()
            return
        if self._answer is None or self._answer.done():
            raise httptools.HttpParserError("there was no request for it")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        _give(self._answer, Answer(status, self._headers, body))
        if self._parser.should_keep_alive():
            self._begin_headers()
            self._is_begun = False
        else:
            self._is_alive = False
            self._lost = "the server closed the connection after its last answer"
            if self._transport is not None:
                self._transport.close()

    def _begin_headers(self) -> None:
        self._headers, self._body = {}, []
        self._body_bytes = self._head_bytes = 0

    # Failures ---------------------------------------------------------------------------------------------

    def _fail(self, error: ConnectionLost) -> None:
        if self._answer is not None and not self._answer.done():
            error.was_idle = self.used > 1
            self._answer.set_exception(error)


class _TooLarge(Exception):
    """Raised inside the parser's callbacks, which hand it on as the reason of a parse error."""


async def connect(
    host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float, body_bytes_max: int = BODY_BYTES_MAX
) -> Connection:
    """A new connection; `ConnectFailed` names the place and the reason."""
    loop = asyncio.get_running_loop()
    connection = Connection(body_bytes_max)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(
                lambda: connection, host, port, ssl=tls, server_hostname=host if tls is not None else None
            )
    except TimeoutError:
        with suppress(Exception):
            connection.close()
        raise ConnectFailed(f"{host}:{port} did not take a connection in {timeout_s:g} seconds") from None
    except OSError as error:  # refused, unreachable, unknown host, a certificate that is not trusted
        raise ConnectFailed(f"no connection to {host}:{port}: {error}") from error
    return connection


def _give(future: asyncio.Future[Answer], answer: Answer) -> None:
    """Give the answer to its caller, unless a signal (Ctrl+C) has cancelled the caller in this very step."""
    with suppress(asyncio.InvalidStateError):
        future.set_result(answer)
