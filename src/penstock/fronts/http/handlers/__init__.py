"""The operations of the API, one module a subject. Each has a list `ROUTES`, filled by its handlers' decorators.

For requests that are one operation each, the handlers are made from the table in `wire/http/endpoints.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from inspect import getdoc
from typing import Any, Final

from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import Call, Handler, Route
from penstock.wire.http.answers import Wrapped
from penstock.wire.http.arguments import Arguments, number
from penstock.wire.http.endpoints import ENDPOINTS, NUMBERS, Endpoint, endpoints_of

Register = Callable[[Handler], Handler]

SUBJECTS: Final = (
    "queues",
    "publishing",
    "staging",
    "marks",
    "consuming",
    "groups",
    "streams",
    "scans",
    "inspect",
    "dead",
    "enqueued",
    "exchanges",
    "traces",
    "schedules",
    "sessions",
    "cluster",
    "system",
)
"""The modules beside this one that have routes, in the order of the documentation."""


class Routes(list[Route]):
    """Routes of one subject."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self.module = module

    def add(self, method: str, path: str, answers: Mapping[int, Any], **more: Any) -> Register:
        """Declare the handler below: its path, the answers it gives, and what else a `Route` says."""

        def register(handler: Handler) -> Handler:
            self.append(Route(method, path, handler, answers=answers, **more))
            return handler

        return register

    def answer(self, operation: Callable[..., Awaitable[Any]], answers: Mapping[int, Any]) -> Register:
        """Declare the handler below for a row of the table that needs one of its own."""
        [endpoint] = endpoints_of(operation)
        return self.add(endpoint.method, endpoint.path, answers, errors=endpoint.errors)

    def forward(self, endpoint: Endpoint) -> None:
        """Declare a row of the table: its operation of the broker answers."""
        gives, operation = endpoint.gives, endpoint.operation

        async def handler(call: Call, **given: Arguments) -> Answer:
            names = [path_number(call, part) if part in NUMBERS else text for part, text in call.names.items()]
            options = {name: value for one in given.values() for name, value in one.arguments().items()}
            if options.get("consumer", "") is None:
                options["consumer"] = call.consumer
            result = await getattr(call.broker, operation.__name__)(*names, **options)
            if gives is None:
                return NOTHING
            if issubclass(gives, Wrapped):
                return json_answer(gives.from_result(result, *call.names.values()))
            return json_answer(result)

        handler.__name__ = endpoint.name or operation.__name__
        handler.__doc__ = getdoc(operation)
        handler.__module__ = self.module
        shapes = {"body": endpoint.body, "query": endpoint.query}
        handler.__annotations__ = {part: kind for part, kind in shapes.items() if kind is not None}
        answers = {204: None} if gives is None else {200: gives}
        self.add(endpoint.method, endpoint.path, answers, errors=endpoint.errors)(handler)


def path_number(call: Call, name: str) -> int:
    """A number that is a part of the path."""
    return number(call.names[name], f"the path's {name}")


def all_routes() -> list[Route]:
    """Every operation, in the order of the documentation: a module's own handlers, then the rows of the table."""
    routes: list[Route] = []
    for subject in SUBJECTS:
        own: Routes = import_module(f"{__name__}.{subject}").ROUTES
        made = Routes(own.module)
        for endpoint in ENDPOINTS.get(subject, ()):
            if not any((endpoint.method, endpoint.path) == (route.method, route.path) for route in own):
                made.forward(endpoint)
        routes += [*own, *made]
    return routes
