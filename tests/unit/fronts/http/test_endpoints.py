"""The table of endpoints: each row fits the broker's operation that it stands for, at both ends."""

from __future__ import annotations

import inspect
from typing import Final

import pytest
from msgspec.structs import fields

from penstock import AsyncClient
from penstock.api.broker import Broker
from penstock.fronts.http.handlers import SUBJECTS, all_routes
from penstock.wire.http.endpoints import ENDPOINTS, Endpoint
from penstock.wire.http.shapes import MessageBody

ROWS: Final = [endpoint for rows in ENDPOINTS.values() for endpoint in rows]
SAMPLES: Final = {"message": MessageBody()}


def test_every_row_is_a_route() -> None:
    assert ENDPOINTS.keys() <= set(SUBJECTS)
    routes = {(route.method, route.path): route for route in all_routes()}
    assert [(row.method, row.path) for row in ROWS if (row.method, row.path) not in routes] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_request_has_every_argument_that_the_operation_needs_and_no_other(row: Endpoint) -> None:
    assert row.operation is getattr(Broker, row.operation.__name__)
    given: dict[str, object] = {}
    for kind in (row.body, row.query):
        if kind is not None:
            required = {field.name: SAMPLES.get(field.name, "x") for field in fields(kind) if field.required}
            given |= kind(**required).arguments()
    inspect.signature(row.operation).bind(None, *row.names, **given)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_client_asks_by_the_row(row: Endpoint) -> None:
    name = row.operation.__name__
    assert inspect.unwrap(getattr(AsyncClient, "_attach" if name == "attach" else name)) is row.operation
