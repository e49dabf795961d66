"""Routes that `Routes.forward` makes: each request fits the broker's operation that it stands for."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from penstock.api.broker import Broker
from penstock.fronts.http.handlers import Routes, all_routes
from penstock.fronts.http.routes import Route

FORWARDED = [route for route in all_routes() if route.handler.__qualname__.startswith(Routes.forward.__qualname__)]


def test_there_are_such_routes() -> None:
    assert len(FORWARDED) > 20


@pytest.mark.parametrize("route", FORWARDED, ids=lambda route: route.name)
def test_a_request_has_every_argument_that_the_operation_needs_and_no_other(route: Route) -> None:
    operation = next(
        one for _, one in inspect.getmembers(Broker) if inspect.getdoc(one) == inspect.getdoc(route.handler)
    )
    shapes = [kind for kind in (route.body, route.query) if kind is not None]
    fields = {field.name: None for kind in shapes for field in msgspec.structs.fields(kind)}
    inspect.signature(operation).bind(None, *route.parameters, **fields)
