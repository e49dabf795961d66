"""What a client's operations stand on: making a request in a namespace, and decoding its answer.

`requested` makes the method of an operation that is one request, from the table in `wire/http/endpoints.py`.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import msgspec

from penstock.api.arguments import lease_of
from penstock.client.operations.codec import target, with_query
from penstock.client.transport.channel import Request, Retry, Sender, is_repeat
from penstock.model.errors import NotFound, PenstockError
from penstock.wire.http.answers import Wrapped
from penstock.wire.http.endpoints import NUMBERS, Endpoint, endpoints_of
from penstock.wire.http.shapes import BATCH_TYPE, BATCHES_TYPE, JSON_TYPE, encode_json


class Page(Protocol):
    """A part of a list, and the `after` of the next part."""

    @property
    def next(self) -> str | None: ...


Kind = TypeVar("Kind")
PageKind = TypeVar("PageKind", bound=Page)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

TAKES_JSON: Final = f"content-type: {JSON_TYPE}\r\naccept: {JSON_TYPE}\r\n".encode()
TAKES_BATCHES: Final = f"content-type: {JSON_TYPE}\r\naccept: {BATCHES_TYPE}\r\n".encode()
SENDS_BATCH: Final = f"content-type: {BATCH_TYPE}\r\naccept: {JSON_TYPE}\r\n".encode()
_NOTHING: Final = f"accept: {JSON_TYPE}\r\n".encode()

_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


LOST_READERS_KEPT: Final = 1_000


class PublishIds:
    """Names for publishes, so that one that is sent twice is stored once. Unique to this client."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def new(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


class Requests:
    """One namespace's requests over a channel that others share."""

    def __init__(
        self, channel: Sender, namespace: str, consumer: str, retry: Retry, idempotent: bool, ids: PublishIds
    ) -> None:
        self._channel = channel
        self.namespace = namespace
        self.consumer_name = consumer
        self._retry = retry
        self._idempotent = idempotent
        self._ids = ids
        self._lost_reads: dict[tuple[str, str, str], tuple[str, ...]] = {}
        """(queue, group, consumer) → the turns of its last reads whose answers were lost."""
        self._session: str | None = None
        """The id of the session that all requests are in."""

    def _note_lost(self, reader: tuple[str, str, str], turns: tuple[str, ...]) -> None:
        """The answers of these reads were lost; of many readers, those that lost one last are remembered."""
        self._lost_reads.pop(reader, None)
        self._lost_reads[reader] = turns
        while len(self._lost_reads) > LOST_READERS_KEPT:
            del self._lost_reads[next(iter(self._lost_reads))]

    def _target(self, *parts: str) -> bytes:
        path = target(self.namespace, *parts)
        return path if self._session is None else with_query(path, session=self._session)

    async def _get(self, kind: type[Kind], path: bytes) -> Kind:
        return decoded(kind, await self._send(b"GET", path))

    async def _pages(
        self, kind: type[PageKind], path: bytes, prefix: str, limit: int = 1_000
    ) -> AsyncIterator[PageKind]:
        """A list of names that begin with a prefix, page by page."""
        after: str | None = None
        while True:
            page = await self._get(kind, with_query(path, prefix=prefix or None, limit=limit, after=after))
            yield page
            if page.next is None:
                return
            after = page.next

    async def _send(self, method: bytes, path: bytes, body: object = None) -> bytes:
        """A request with a JSON body, or none, that may be repeated."""
        if body is None:
            request = Request(method, path, b"", _NOTHING)
        else:
            request = Request(method, path, encode_json(body), TAKES_JSON)
        return (await self._channel.send(request, self._retry)).body

    async def _request(self, endpoint: Endpoint, given: dict[str, Any]) -> Any:
        """Ask for an operation by its row of the table; `given` are its arguments in their order."""
        first = list(given)[: len(endpoint.names)]
        names = [_in_path(name, given.pop(argument)) for name, argument in zip(endpoint.names, first, strict=True)]
        words = iter(names)
        path = self._target(*(next(words) if part.startswith("{") else part for part in endpoint.parts[1:]))
        if given.get("consumer", "") is None:
            given["consumer"] = self.consumer_name
        if endpoint.query is not None:
            path = with_query(path, **msgspec.to_builtins(endpoint.query.from_arguments(given)))
        body = None if endpoint.body is None else endpoint.body.from_arguments(given)
        try:
            answer = await self._send(endpoint.method.encode(), path, body)
        except NotFound as error:
            if (endpoint.removes or endpoint.method == "DELETE") and is_repeat(error):
                return None  # it was this call that removed it
            raise
        if endpoint.gives is None:
            return None
        found = decoded(endpoint.gives, answer)
        return found.result(*names) if isinstance(found, Wrapped) else found


def _in_path(name: str, value: Any) -> str:
    if name == "lease":
        return str(lease_of(value))
    return str(value) if name in NUMBERS else value


def requested(
    operation: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Requests, Arguments], Coroutine[Any, Any, Result]]:
    """The operation as the request that the table says. Where it has two, a name that is None is in no path."""
    endpoints, parameters = endpoints_of(operation), signature(operation)
    options = [name for name, one in parameters.parameters.items() if one.kind is Parameter.VAR_KEYWORD]

    async def method(self: Requests, /, *args: Arguments.args, **named: Arguments.kwargs) -> Result:
        bound = parameters.bind(self, *args, **named)
        bound.apply_defaults()
        given = dict(list(bound.arguments.items())[1:])
        for name in options:
            given |= given.pop(name)
        values = list(given.values())
        endpoint = next((one for one in endpoints if None not in values[: len(one.names)]), endpoints[-1])
        result: Result = await self._request(endpoint, given)
        return result

    update_wrapper(method, operation, ("__name__", "__qualname__"), ())
    return method


def decoded(kind: type[Kind], body: bytes) -> Kind:
    """An answer's JSON."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        value: Kind = decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise PenstockError(f"the server's answer cannot be read: {error}; is it a newer version?") from error
    return value
