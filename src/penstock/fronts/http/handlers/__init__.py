"""The operations of the API, one module a subject. Each has a list `ROUTES`, filled by its handlers' decorators.

Where a request holds the broker's arguments by their names, and the answer is the broker's result, `ROUTES.forward`
makes the handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Final

from penstock.fronts.http.request import NOTHING, Answer, json_answer
from penstock.fronts.http.routes import NUMBERS, Call, Handler, Route
from penstock.model.errors import InvalidArgument

if TYPE_CHECKING:
    from msgspec import Struct

Register = Callable[[Handler], Handler]

SUBJECTS: Final = (
    "queues", "publishing", "staging", "marks", "consuming", "groups", "streams", "scans", "inspect", "dead",
    "enqueued", "exchanges", "traces", "schedules", "sessions", "cluster", "system",
)  # fmt: skip
"""The modules beside this one that have routes, in the order of the documentation."""


class Routes(list[Route]):
    """Routes of one subject."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def add(self, method: str, path: str, answers: Mapping[int, Any], **more: Any) -> Register:
        """Declare the handler below: its path, the answers it gives, and what else a `Route` says."""

        def register(handler: Handler) -> Handler:
            self.append(Route(method, path, handler, answers=answers, **more))
            return handler

        return register

    def forward(
        self,
        method: str,
        path: str,
        operation: Callable[..., Awaitable[Any]],
        gives: type[Struct] | None = None,
        *,
        body: type[Struct] | None = None,
        query: type[Struct] | None = None,
        name: str = "",
        **more: Any,
    ) -> None:
        """Declare a request that is an operation of the broker by itself.

        The names in the path are its first arguments, the fields of `body` or `query` are arguments by name. What it
        returns is the answer, by itself or as the only field of `gives`.
        """

        async def handler(call: Call, **given: Struct) -> Answer:
            arguments = [path_number(call, part) if part in NUMBERS else text for part, text in call.names.items()]
            options = {field: getattr(one, field) for one in given.values() for field in one.__struct_fields__}
            result = await getattr(call.broker, operation.__name__)(*arguments, **options)
            if gives is None:
                return NOTHING
            return json_answer(result if isinstance(result, gives) else gives(result))

        handler.__name__ = name or operation.__name__
        handler.__doc__ = getdoc(operation)
        handler.__module__ = self._module
        handler.__annotations__ = {part: kind for part, kind in (("body", body), ("query", query)) if kind is not None}
        self.add(method, path, {204: None} if gives is None else {200: gives}, **more)(handler)


def path_number(call: Call, name: str) -> int:
    """A number that is a part of the path."""
    return number(call.names[name], f"the path's {name}")


def number(text: str, what: str) -> int:
    """A whole number in a path or query."""
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise InvalidArgument(f"{what} is {text[:40]!r}; it must be a whole number")
    return int(text)


def all_routes() -> list[Route]:
    """Every operation, in the order of the documentation."""
    modules = [import_module(f"{__name__}.{subject}") for subject in SUBJECTS]
    return [route for module in modules for route in module.ROUTES]
