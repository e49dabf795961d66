"""The OpenAPI 3.1 document, made from the routes and their shapes: it cannot say what the code does not do."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from penstock.fronts.http.routes import Route
from penstock.model.errors import (
    Closed,
    Forbidden,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    Overloaded,
    PenstockError,
    Unavailable,
)
from penstock.version import VERSION
from penstock.wire.http.endpoints import NUMBERS
from penstock.wire.http.shapes import BATCH_TYPE, BATCHES_TYPE, JSON_TYPE, ErrorAnswer

Schema = dict[str, Any]

REFERENCE: Final = "#/components/schemas/{name}"
COMMON: Final[tuple[type[PenstockError], ...]] = (
    InvalidArgument,
    Forbidden,
    NotFound,
    MessageTooLarge,
    Overloaded,
    Unavailable,
    Closed,
)
"""What any operation under /v1 may answer beside its own errors."""
HTTP_LEVEL: Final = (400, 401, 404, 405, 408, 413, 415, 431, 500, 503)
MEANING: Final = {
    200: "Done.",
    201: "Created.",
    202: "The store is away: buffered in the server's spool, durably.",
    204: "Done; there is nothing to say.",
    400: "A value is wrong; the message names it.",
    401: "The server wants a token.",
    403: "Not allowed, or there are as many as there may be.",
    404: "There is no such thing.",
    405: "Not this method.",
    406: "Not in the form that Accept asks for.",
    408: "The request did not arrive in time.",
    409: "Against what is: the lease has passed on, the mark has moved, or the declaration contradicts.",
    410: "Retention has removed the offset.",
    413: "Too large.",
    415: "Not this media type.",
    421: "Another node owns this; only nodes are answered so, by each other.",
    422: "A mandatory message reached no queue.",
    429: "A queue is full, or too many wait; try again later.",
    431: "The headers are too large.",
    500: "The server failed.",
    503: "The store does not take commits now, or the server is stopping; try again.",
}


def document(routes: Iterable[Route]) -> Schema:
    """The whole document."""
    listed = list(routes)
    kinds = _kinds(listed)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, Schema] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": VERSION,
            "description": "A durable message queue: task queues and event streams over one log.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(routes: list[Route]) -> list[Any]:
    kinds: list[Any] = [ErrorAnswer]
    for route in routes:
        kinds += [kind for kind in (*route.answers.values(), route.body_schema, route.query) if kind is not None]
    return list({id(kind): kind for kind in kinds}.values())


def _operation(route: Route, by_kind: dict[int, Schema], components: dict[str, Any]) -> Schema:
    text = inspect.getdoc(route.handler) or ""
    operation: Schema = {
        "operationId": route.handler.__name__,
        "tags": [tag(route)],
        "summary": text,
        "parameters": _parameters(route, components),
        "responses": _responses(route, by_kind),
    }
    kind = route.body_schema
    if kind is not None:
        content: Schema = {JSON_TYPE: {"schema": by_kind[id(kind)]}}
        if route.takes_batch:
            content[BATCH_TYPE] = {"schema": {"type": "string", "contentMediaType": BATCH_TYPE}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def tag(route: Route) -> str:
    """The subject an operation belongs to: its module."""
    return route.handler.__module__.rpartition(".")[2]


def _parameters(route: Route, components: dict[str, Any]) -> list[Schema]:
    parameters: list[Schema] = []
    for name in route.parameters:
        schema: Schema = {"type": "string", "minLength": 1}
        if name in NUMBERS:
            schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    if route.path.startswith("/v1/"):
        namespace = {"type": "string", "default": "default", "minLength": 1, "maxLength": 255}
        parameters.append({"name": "namespace", "in": "query", "required": False, "schema": namespace})
        session = {"type": "string", "minLength": 1, "maxLength": 64}
        parameters.append({"name": "session", "in": "query", "required": False, "schema": session})
    if route.query is not None:
        shape = components[route.query.__name__]
        for name, schema in shape["properties"].items():
            required = name in shape.get("required", ())
            parameters.append({"name": name, "in": "query", "required": required, "schema": _given(schema)})
    return parameters


def _given(schema: Schema) -> Schema:
    """What a query parameter is where it is given: a query has no null, leaving it out stands for that."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else schema


def _responses(route: Route, by_kind: dict[int, Schema]) -> Schema:
    responses: Schema = {}
    for status, kind in route.answers.items():
        responses[str(status)] = {"description": MEANING[status]}
        if kind is not None:
            content: Schema = {route.gives: {"schema": by_kind[id(kind)]}}
            if route.gives_batches:
                content[BATCHES_TYPE] = {"schema": {"type": "string", "contentMediaType": BATCHES_TYPE}}
            if route.or_gives is not None:
                content[route.or_gives] = {"schema": {"type": "string", "contentMediaType": route.or_gives}}
            responses[str(status)]["content"] = content
    errors = (*COMMON, *route.errors) if route.path.startswith("/v1/") else tuple(route.errors)
    statuses = {error.row.http for error in errors} | set(HTTP_LEVEL)
    if route.or_gives is not None:
        statuses.add(406)
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": MEANING[status],
            "content": {JSON_TYPE: {"schema": by_kind[id(ErrorAnswer)]}},
        }
    return responses
