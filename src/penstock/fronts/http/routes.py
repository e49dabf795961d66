"""Who answers which request: paths with named parts to handlers, and what each handler takes and gives.

A handler takes a `Call` and, by the names of its parameters, the decoded `body` and `query`. It gives a ticket of its
answer, or is a coroutine function. The same table makes the OpenAPI document, so what is not declared here does not
exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec

from penstock.api.front_broker import FrontBroker
from penstock.api.ticket import Ticket
from penstock.fronts.answers import on_thread
from penstock.fronts.http.errors import MALFORMED, MEDIA_TYPE, METHOD_NOT_ALLOWED, NO_SUCH_PATH, HttpError
from penstock.fronts.http.request import Answer, Request, Stream
from penstock.model import DEFAULT_NAMESPACE
from penstock.model.errors import InvalidArgument, PenstockError
from penstock.wire.http.large_json import PiecewiseDecoder
from penstock.wire.http.shapes import BATCH_TYPE, JSON_TYPE

if TYPE_CHECKING:
    from penstock.fronts.http.server import HttpServer

QUERY_BYTES_MAX: Final = 16 * 1024
QUERY_FIELDS_MAX: Final = 100
QUERIES_KEPT: Final = 1_024
QUERY_KEPT_BYTES: Final = 256
"""Queries remembered, and the longest: clients choose them, so both are bounded."""
NAMESPACE: Final = "namespace"
SESSION: Final = "session"
PUBLISH_ID: Final = "publish_id"
"""Of a query that has one no other is like it."""

Kind = TypeVar("Kind")
Handler = Callable[..., Awaitable[Answer | Stream]]


class Call:
    """One request on its way through a handler."""

    __slots__ = ("broker", "consumer", "names", "request", "server")

    def __init__(
        self, server: HttpServer, broker: FrontBroker, request: Request, names: Mapping[str, str], consumer: str
    ) -> None:
        self.server = server
        self.broker = broker
        """In the namespace that was asked for."""
        self.request = request
        self.names = names
        """The named parts of the path."""
        self.consumer = consumer
        """Who claims, unless the request says so: the other end of the connection."""


class Route:
    """One operation."""

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        *,
        answers: Mapping[int, Any],
        body_schema: Any = None,
        takes_batch: bool = False,
        gives_batches: bool = False,
        gives: str = JSON_TYPE,
        or_gives: str | None = None,
        errors: Iterable[type[PenstockError]] = (),
        is_open: bool = False,
    ) -> None:
        hints = get_type_hints(handler)
        self.method = method
        self.path = path
        self.handler = handler
        self.needs_task = iscoroutinefunction(handler)
        """Its answer is no ticket: something other than a commit may have to be waited for."""
        self.name = f"{method} {path}"
        self.parts = path.strip("/").split("/")
        self.parameters = [part[1:-1] for part in self.parts if part.startswith("{")]
        self.body = hints.get("body")
        self.query = hints.get("query")
        self.answers = answers
        self.takes_batch = takes_batch
        """Whether a body may be an encoded batch instead of JSON; then `body` is None."""
        self.gives_batches = gives_batches
        self.gives = gives
        self.or_gives = or_gives
        """Another media type that `Accept` may ask for; one that is neither is answered 406."""
        self.errors = list(errors)
        self.is_open = is_open
        """Answered without a token."""
        self.json_body = (
            next(kind for kind in get_args(self.body) if kind is not type(None)) if takes_batch else self.body
        )
        """What a JSON body must be: `null` does not stand for a batch."""
        self.body_schema = body_schema or self.json_body
        self._decoder = None if self.body is None else msgspec.json.Decoder(self.json_body)
        self._long_decoder = None if self.json_body is None else PiecewiseDecoder(self.json_body)

    def call(self, call: Call, query: Mapping[str, str]) -> Awaitable[Answer | Stream]:
        """Decode what the handler takes, and run it."""
        request = call.request
        if request.parts and self._is_long(request):
            later = self._call_later(call, query)
            return later if self.needs_task else Ticket.of(later)
        if self._decoder is None:
            return self.handler(call, **self._arguments(query))
        body = self._decoded(request)
        if self.query is None and not query:
            return self.handler(call, body=body)
        return self.handler(call, body=body, **self._arguments(query))

    def _is_long(self, request: Request) -> bool:
        return self._decoder is not None and request.is_long and self._takes_json(request)

    async def _call_later(self, call: Call, query: Mapping[str, str]) -> Answer | Stream:
        """The same of a body that takes long to decode: on a thread, so that others are answered meanwhile."""
        arguments = self._arguments(query)
        arguments["body"] = await on_thread(partial(self._long_decoded, call.request))
        return await self.handler(call, **arguments)

    def _arguments(self, query: Mapping[str, str]) -> dict[str, Any]:
        """What it takes beside the body."""
        arguments: dict[str, Any] = {}
        if self.query is not None:
            arguments["query"] = _convert(query, self.query)
        elif query:
            raise InvalidArgument(
                f"unknown query parameter {next(iter(query))!r}; {self.name} takes namespace and session only"
            )
        return arguments

    def _decoded(self, request: Request) -> Any:
        assert self._decoder is not None
        if request.headers.media_type != JSON_TYPE and not self._takes_json(request):
            return None
        try:
            return self._decoder.decode(request.body or b"{}")
        except UnicodeDecodeError as error:
            raise _not_utf8(error) from None

    def _long_decoded(self, request: Request) -> Any:
        assert self._long_decoder is not None
        try:
            return self._long_decoder.decode(request.body)
        except UnicodeDecodeError as error:
            raise _not_utf8(error) from None
        finally:
            request.drop_body()

    def _takes_json(self, request: Request) -> bool:
        """Whether the body is JSON; False for a batch. Raises where it is neither."""
        media_type = request.headers.media_type
        if not media_type and not request.body:
            media_type = JSON_TYPE  # nothing is said about what is not there
        if self.takes_batch and media_type == BATCH_TYPE:
            return False
        if media_type != JSON_TYPE:
            known = f"{JSON_TYPE} or {BATCH_TYPE}" if self.takes_batch else JSON_TYPE
            raise HttpError(MEDIA_TYPE, f"Content-Type is {media_type!r}; {self.name} takes {known}")
        return True


def _not_utf8(error: UnicodeDecodeError) -> HttpError:
    return HttpError(MALFORMED, f"the body is not UTF-8: {error}")


def _convert(query: Mapping[str, str], kind: type[Kind]) -> Kind:
    try:
        return msgspec.convert(query, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"in the query: {error}") from None


# Finding -------------------------------------------------------------------------------------------------


class Query(NamedTuple):
    """What the query of a target says."""

    namespace: str
    session: str | None
    rest: Mapping[str, str]
    """What is for the handler."""


class _Branch:
    """One step of a path: fixed words first, then whatever name stands there."""

    __slots__ = ("named", "routes", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Branch] = {}
        self.named: _Branch | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """All routes, as a tree of path parts."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._root = _Branch()
        self._queries: dict[bytes, Query] = {}
        """Queries as they were sent lately: a client's are the same ones over and over."""
        for route in self.routes:
            branch = self._root
            for part in route.parts:
                if part.startswith("{"):
                    branch.named = branch.named or _Branch()
                    branch = branch.named
                else:
                    branch = branch.words.setdefault(part, _Branch())
            branch.routes[route.method] = route
        self._by_ends = {
            (route.method, "/" + "/".join(route.parts[:-2]), route.parts[-1]): (route, route.parameters[0])
            for route in self.routes
            if self._is_told_by_ends(route)
        }
        """Routes that are told by what stands before and behind the one name in their path, as most are."""

    def _is_told_by_ends(self, route: Route) -> bool:
        """Whether its path is words, one name in whose place no word can stand, and a last word."""
        *words, name, last = ["", *route.parts]
        branch: _Branch | None = self._root
        for word in words[1:]:
            branch = None if branch is None else branch.words.get(word)
        return branch is not None and not branch.words and name.startswith("{") and not last.startswith("{")

    def find_target(self, method: str, target: bytes) -> tuple[Route, Mapping[str, str], Query]:
        """The route of a request line's target, the names in its path, and its query."""
        raw_path, _, raw_query = target.partition(b"?")
        path = _path(raw_path)
        front, _, last = path.rpartition("/")
        front, _, name = front.rpartition("/")
        found = self._by_ends.get((method, front, last))
        if found is None or not name or "%" in name:
            route, names = self.find(method, path)
        else:
            route, names = found[0], {found[1]: name}
        return route, names, self._queries.get(raw_query) or self._query(raw_query)

    def _query(self, raw: bytes) -> Query:
        fields = read_query(raw)
        query = Query(fields.pop(NAMESPACE, DEFAULT_NAMESPACE), fields.pop(SESSION, None), fields)
        if len(raw) <= QUERY_KEPT_BYTES and PUBLISH_ID not in fields:
            if len(self._queries) >= QUERIES_KEPT:
                self._queries.clear()
            self._queries[raw] = query
        return query

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """The route of a path and the names in it; raises where there is none."""
        branch, values = self._root, []
        for part in path[1:].split("/"):
            following = branch.words.get(part)
            if following is None:
                following = branch.named
                if following is None:
                    raise HttpError(NO_SUCH_PATH, f"there is nothing at {path[:200]!r}; see /docs for what there is")
                values.append(_name(part))
            branch = following
        route = branch.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            if not branch.routes:
                raise HttpError(NO_SUCH_PATH, f"there is nothing at {path[:200]!r}; see /docs for what there is")
            allowed = ", ".join(sorted(branch.routes))
            raise HttpError(
                METHOD_NOT_ALLOWED, f"{method} is not for {path[:200]!r}; it takes {allowed}", (("Allow", allowed),)
            )
        return route, dict(zip(route.parameters, values, strict=True))


def _name(part: str) -> str:
    if "%" not in part:
        return part
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{part[:100]!r} in the path is not UTF-8 when percent-decoded") from None


def _path(raw: bytes) -> str:
    """The path of a request line's target, which may be a whole address."""
    try:
        path = raw.decode("ascii")
    except UnicodeDecodeError:
        raise HttpError(MALFORMED, "the path has bytes that are not ASCII; percent-encode them") from None
    if not path.startswith("/"):
        _, separator, rest = path.partition("://")
        path = "/" + rest.partition("/")[2] if separator else path
    if not path.startswith("/"):
        raise HttpError(MALFORMED, f"{path[:100]!r} is not a path")
    return path


def read_query(raw: bytes) -> dict[str, str]:
    if len(raw) > QUERY_BYTES_MAX:
        raise InvalidArgument(f"the query has {len(raw)} bytes; the limit is {QUERY_BYTES_MAX}")
    try:
        text = raw.decode("ascii")
        fields = text.split("&")
        if "%" in text or "+" in text or len(fields) > QUERY_FIELDS_MAX:
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
        else:  # names and values as they are, as each request of the clients has them
            parts = [field.partition("=") for field in fields if field]
            pairs = [(name, value) for name, _, value in parts]
    except ValueError as error:
        raise InvalidArgument(f"the query cannot be read: {error}") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidArgument("a query parameter is given twice")
    return query
