"""A request to whichever node answers, sent again where that is safe.

Knows which failures may be repeated, how long to pause in between, and when to give up; nothing of what is asked. A
request that may have reached the server is sent again only if its sender said that doing it twice is the same as doing
it once. Next stop: `client.py`, which knows that of each operation.
"""

from __future__ import annotations

import asyncio
import math
import random
import ssl
import time
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from penstock.api.arguments import check_number
from penstock.client.operations.errors import error_of
from penstock.client.transport.connection import BODY_BYTES_MAX, Answer, ConnectFailed, ConnectionLost
from penstock.client.transport.pool import NodePool, Nodes, addresses_of
from penstock.model import INTEGER_MAX, check_integer
from penstock.model.errors import Closed, InvalidArgument, PenstockError, Unavailable
from penstock.version import VERSION


class Retry(Struct, frozen=True, kw_only=True):
    """How often, and for how long, a request is sent again after a lost connection or an answer that asks for it."""

    attempts: int = 30
    """The first one counts; 1 is no retry at all."""
    seconds: float = 60.0
    """No attempt begins later than this after the first."""
    pause_seconds: float = 0.05
    """The longest first pause; each further one is up to twice as long. All are random: from nothing to the longest."""
    pause_seconds_max: float = 2.0

    def check(self) -> Retry:
        """Raise unless every number makes sense."""
        check_integer(self.attempts, "retry's attempts", 1, INTEGER_MAX)
        for name in ("seconds", "pause_seconds", "pause_seconds_max"):
            check_number(getattr(self, name), f"retry's {name}", 0, math.inf)
        return self

    def pause(self, attempt: int) -> float:
        return random.uniform(0.0, min(self.pause_seconds_max, self.pause_seconds * 2.0 ** min(attempt - 1, 30)))


NO_RETRY: Final = Retry(attempts=1)


class OutcomeUnknown(Unavailable):
    """A request that must not be repeated was sent, and its answer was lost: it was carried out, or it was not."""

    code = "outcome_unknown"


class Request(Struct, frozen=True):
    """One operation, ready to be sent to any node."""

    method: bytes
    target: bytes
    """Path and query, encoded."""
    body: bytes = b""
    headers: bytes = b""
    """Whole lines, each with its end."""
    timeout_s: float | None = None
    """None: the channel's."""
    is_repeatable: bool = True
    """Doing it twice is the same as doing it once."""
    more: bytes = b""
    """The rest of the body, where that is large: it is sent from where it is."""


class Reply(Struct, frozen=True):
    body: bytes
    is_repeat: bool
    """An attempt before this one may have been carried out."""
    status: int = 200


class Sender(Protocol):
    """Whatever answers a client's requests: a channel, or a node that asks others (`node/cluster/forward.py`)."""

    timeout_s: float

    async def send(self, request: Request, retry: Retry) -> Reply:
        """The successful answer, or an error."""

    def close(self) -> None:
        """End what is under way."""


class Channel:
    """What all of a client's namespaces share: the nodes and the rules for trying again."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None,
        timeout_s: float,
        connect_timeout_s: float,
        connections_max: int,
        tls: ssl.SSLContext | None,
        answer_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        addresses = addresses_of(urls)
        if tls is None and any(address.is_secure for address in addresses):
            tls = ssl.create_default_context()
        self._nodes = Nodes(
            [
                NodePool(
                    address,
                    headers=_common_headers(address.label, token),
                    tls=tls if address.is_secure else None,
                    connections_max=connections_max,
                    connect_timeout_s=connect_timeout_s,
                    body_bytes_max=answer_bytes_max,
                )
                for address in addresses
            ]
        )
        self.timeout_s = timeout_s
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that its connections belong to: the first that it was used in."""

    def close(self) -> None:
        """End every connection. What is under way fails."""
        self._is_closed = True
        self._nodes.close()

    async def send(self, request: Request, retry: Retry) -> Reply:
        """The successful answer, or the error of the last attempt."""
        if self._is_closed:
            raise Closed("the client is closed")
        if self._loop is not asyncio.get_running_loop():
            self._belong()
        pool = self._nodes.pick()
        try:
            answer = await self._once(pool, request, fresh=False)
        except (ConnectFailed, ConnectionLost) as error:
            failure: Exception = error
        else:
            pool.answered()
            if answer.status < 400:
                return Reply(answer.body, False, answer.status)
            failure = _Refused(answer)
        return await _Attempts(self, request, retry, pool, failure).go_on()

    def _belong(self) -> None:
        if self._loop is not None:
            raise InvalidArgument(
                "this client was used in another event loop, which its connections belong to: make an AsyncClient in "
                "each asyncio.run, or share a penstock.Client, which has a loop of its own"
            )
        self._loop = asyncio.get_running_loop()

    def _once(self, pool: NodePool, request: Request, *, fresh: bool) -> Awaitable[Answer]:
        begun, body = (request.body, request.more) if request.more else (b"", request.body)
        head = b"".join(
            (
                request.method,
                b" ",
                pool.prefix,
                request.target,
                pool.headers,
                request.headers,
                b"content-length: %d\r\n\r\n" % (len(begun) + len(body)),
                begun,
            )
        )
        return pool.request(head, body, request.timeout_s or self.timeout_s, fresh=fresh)


class _Refused(Exception):
    """An answer that is an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.error = error_of(answer)
        self.pause_s = _seconds(answer.headers.get(b"retry-after", b""))


class _Attempts:
    """What follows when the first attempt has failed."""

    def __init__(self, channel: Channel, request: Request, retry: Retry, pool: NodePool, failure: Exception) -> None:
        self._channel = channel
        self._request = request
        self._retry = retry
        self._pool = pool
        self._failure = failure
        self._is_unsure = False
        self._began = time.monotonic()

    async def go_on(self) -> Reply:
        attempt = 1
        had_idle = False
        while True:
            self._judge()
            failure = self._failure
            # A connection that the server closed while it was idle says nothing about the server: at once on a new one.
            is_stale = isinstance(failure, ConnectionLost) and failure.was_idle and not failure.answer_begun
            if is_stale and not had_idle:
                had_idle = True
            else:
                self._pool.failed()
                await self._pause(attempt)
                attempt += 1
                self._pool = self._channel._nodes.pick()
            try:
                answer = await self._channel._once(self._pool, self._request, fresh=is_stale)
            except (ConnectFailed, ConnectionLost) as error:
                self._failure = error
                continue
            self._pool.answered()
            if answer.status < 400:
                return Reply(answer.body, self._is_unsure, answer.status)
            self._failure = _Refused(answer)

    def _judge(self) -> None:
        """Raise where there is nothing to be gained, or something to be spoilt, by another attempt."""
        failure = self._failure
        if isinstance(failure, _Refused):
            if not failure.error.row.retryable:
                raise _marked(failure.error, self._is_unsure)
            self._is_unsure = self._is_unsure or failure.error.row.may_be_done
            if self._is_unsure and not self._request.is_repeatable:
                raise failure.error
        elif isinstance(failure, ConnectionLost):
            self._is_unsure = True
            if not self._request.is_repeatable:
                raise OutcomeUnknown(
                    f"{failure} after the request was sent: it is not known whether it was carried out, and it carries "
                    "nothing that would make it safe to send it again"
                ) from failure

    async def _pause(self, attempt: int) -> None:
        failure = self._failure
        pause = self._retry.pause(attempt)
        if isinstance(failure, _Refused):
            # Clients turned away together should not come back together.
            pause = failure.pause_s + pause
        elif self._channel._nodes.has_another():
            pause = 0.0
        late = time.monotonic() + pause - self._began > self._retry.seconds
        if attempt >= self._retry.attempts or late:
            raise self._given_up(attempt)
        await asyncio.sleep(pause)
        if self._channel._is_closed:
            raise Closed("the client was closed before there was an answer")

    def _given_up(self, attempt: int) -> PenstockError:
        failure = self._failure
        if isinstance(failure, _Refused):
            return _marked(failure.error, self._is_unsure)
        times = "the first attempt" if attempt == 1 else f"{attempt} attempts"
        doubt = "; it is not known whether it was carried out" if self._is_unsure else ""
        error = Unavailable(f"no answer after {times}: {failure}{doubt}")
        error.__cause__ = failure
        return error


def _marked(error: PenstockError, is_unsure: bool) -> PenstockError:
    if is_unsure:
        mark_repeated(error)
    return error


def mark_repeated(error: PenstockError) -> None:
    """Say of an error, to programs and to people, that an earlier attempt may have succeeded."""
    error.is_repeat = True
    error.add_note(REPEATED)


def is_repeat(error: BaseException) -> bool:
    """Whether the error is the answer to a repeated request, of which an earlier attempt may have succeeded."""
    return isinstance(error, PenstockError) and error.is_repeat


REPEATED: Final = "an earlier attempt of the same request may have been carried out before its answer was lost"


def _common_headers(label: str, token: str | None) -> bytes:
    if token is not None and not (token.isascii() and token.isprintable() and token):
        raise InvalidArgument("the token is empty or has characters that a header cannot carry")
    lines = [f" HTTP/1.1\r\nhost: {label}", f"user-agent: penstock/{VERSION}"]
    if token is not None:
        lines.append(f"authorization: Bearer {token}")
    return "\r\n".join([*lines, ""]).encode()


def _seconds(text: bytes) -> float:
    """Retry-After in seconds; a date, or nothing that can be read, is no wish."""
    return min(float(text), 60.0) if text.isdigit() else 0.0
