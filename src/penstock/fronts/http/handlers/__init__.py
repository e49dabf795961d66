"""The operations of the API, one module a subject. Each has a list `ROUTES`, filled by its handlers' decorators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.fronts.http.routes import Handler, Route
from penstock.model.errors import PenstockError
from penstock.wire.http.shapes import JSON_TYPE

Register = Callable[[Handler], Handler]


class Routes(list[Route]):
    """Routes of one subject."""

    def add(
        self,
        method: str,
        path: str,
        answers: Mapping[int, Any],
        *,
        body_schema: Any = None,
        takes_batch: bool = False,
        gives_batches: bool = False,
        gives: str = JSON_TYPE,
        or_gives: str | None = None,
        errors: Iterable[type[PenstockError]] = (),
        is_open: bool = False,
    ) -> Register:
        """Declare the handler below: its path, the answers it gives, the errors it can raise beyond the common ones."""

        def register(handler: Handler) -> Handler:
            self.append(
                Route(
                    method,
                    path,
                    handler,
                    answers=answers,
                    body_schema=body_schema,
                    takes_batch=takes_batch,
                    gives_batches=gives_batches,
                    gives=gives,
                    or_gives=or_gives,
                    errors=errors,
                    is_open=is_open,
                )
            )
            return handler

        return register


def all_routes() -> list[Route]:
    """Every operation, in the order of the documentation."""
    from penstock.fronts.http.handlers import (
        cluster,
        consuming,
        dead,
        enqueued,
        exchanges,
        groups,
        inspect,
        marks,
        publishing,
        queues,
        scans,
        schedules,
        sessions,
        staging,
        streams,
        system,
        traces,
    )

    modules = (
        queues,
        publishing,
        staging,
        marks,
        consuming,
        groups,
        streams,
        scans,
        inspect,
        dead,
        enqueued,
        exchanges,
        traces,
        schedules,
        sessions,
        cluster,
        system,
    )
    return [route for module in modules for route in module.ROUTES]
