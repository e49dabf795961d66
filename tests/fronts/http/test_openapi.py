"""The OpenAPI document: that it is one, that nothing is missing, that the server keeps to it under random requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.openapi import from_dict
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock import Message, encode
from penstock.fronts.http.errors import FAULTS
from penstock.fronts.http.handlers import all_routes
from penstock.fronts.http.openapi import MEANING, document
from penstock.fronts.http.page import render
from penstock.model.errors import CLASSES
from penstock.store.memory.engine import MemoryStore
from tests.fronts.http.rig import Front, front_on, over_http

EXAMPLES: Final = 20
WAIT_S_MAX: Final = 0.01
DOCUMENT: Final = document(all_routes())
OPERATIONS: Final = {
    operation["operationId"]: (path, method)
    for path, of in DOCUMENT["paths"].items()
    for method, operation in of.items()
}
ENDLESS: Final = "events"
WORK: Final = [
    (operation, mode)
    for operation, (path, method) in sorted(OPERATIONS.items())
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # Of what takes nothing, nothing can be wrong.
    if operation != ENDLESS and (mode is GenerationMode.POSITIVE or DOCUMENT["paths"][path][method]["parameters"])
]

# The document --------------------------------------------------------------------------------------------


def test_every_route_is_documented_once() -> None:
    routes = all_routes()
    assert len({(route.method, route.path) for route in routes}) == len(routes)
    assert sorted(OPERATIONS.values()) == sorted((route.path, route.method.lower()) for route in routes)
    assert len(OPERATIONS) == len(routes), "two operations have the same operationId"
    for of in DOCUMENT["paths"].values():
        for operation in of.values():
            assert operation["summary"], operation["operationId"]


def test_every_reference_leads_somewhere() -> None:
    def references(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if "$ref" in part:
                yield part["$ref"]
            for value in part.values():
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    found = set(references(DOCUMENT))
    assert found
    assert {one.removeprefix("#/components/schemas/") for one in found} <= set(DOCUMENT["components"]["schemas"])


def test_the_shape_of_the_document() -> None:
    """What OpenAPI 3.1 demands of the parts that are used here."""
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert {"title", "version"} <= set(DOCUMENT["info"])
    for path, of in DOCUMENT["paths"].items():
        assert path.startswith("/")
        for method, operation in of.items():
            assert method in ("get", "put", "post", "delete", "patch")
            names = [(one["in"], one["name"]) for one in operation["parameters"]]
            assert len(set(names)) == len(names)
            in_path = {name for place, name in names if place == "path"}
            assert in_path == {part[1:-1] for part in path.split("/") if part.startswith("{")}
            assert '"null"' not in json.dumps(operation["parameters"]), "a query has no null"
            assert all(one["required"] for one in operation["parameters"] if one["in"] == "path")
            assert all(one["in"] in ("path", "query") and "schema" in one for one in operation["parameters"])
            assert any(status.startswith("2") for status in operation["responses"])
            for status, response in operation["responses"].items():
                assert 200 <= int(status) < 600
                assert response["description"]
                assert all("schema" in content for content in response.get("content", {}).values())


def test_every_schema_is_a_json_schema() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
        assert "title" in schema, name
    for of in DOCUMENT["paths"].values():
        for operation in of.values():
            for parameter in operation["parameters"]:
                jsonschema_rs.meta.validate(
                    {"$schema": "https://json-schema.org/draft/2020-12/schema", **parameter["schema"]}
                )


def test_every_error_has_a_meaning() -> None:
    assert {kind.row.http for kind in CLASSES.values()} | {fault.status for fault in FAULTS} <= set(MEANING)


@over_http()
async def test_the_document_is_what_the_server_gives(front: Front) -> None:
    reply = await front.call("GET", "/openapi.json")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json() == DOCUMENT


def test_the_page_shows_every_operation_and_escapes_what_it_shows() -> None:
    page = render(DOCUMENT).decode()
    for path, method in OPERATIONS.values():
        assert f'<b class="method">{method.upper()}</b> <code>{path}</code>' in page
    hostile = render(DOCUMENT | {"info": DOCUMENT["info"] | {"description": "<script>alert(1)</script>"}}).decode()
    assert "<script>" not in hostile


# Random requests -----------------------------------------------------------------------------------------


class Served:
    """A server in a thread of its own, for clients that block; with something of everything in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._end = asyncio.Event()
        self._ready: asyncio.Future[Front]
        self.session = ""
        self.front = self._do(self._open())

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> Front:
        self._ready = self._loop.create_future()
        self._serving = self._loop.create_task(self._serve())
        return await self._ready

    async def _serve(self) -> None:
        async with front_on(MemoryStore(), stop_seconds=1.0) as front:
            self._ready.set_result(front)
            await self._end.wait()

    async def _fill(self) -> str:
        """Whatever random requests have made of it, all is there again; a lease that can be settled."""
        broker = self.front.broker
        if await broker.has_queue("mail"):
            await broker.delete_queue("mail")
        await broker.declare_queue("mail", backoff_ms=0, max_attempts=0)
        await broker.declare_group("mail", "default")
        await broker.declare_group("mail", "watch", kind="stream")
        if "all" not in await broker.exchanges():
            await broker.declare_exchange("all", kind="fanout")
        await broker.bind("all", "mail")
        await broker.publish_many("mail", [Message(b"a", trace_id="trace"), Message(b"\xff", headers={"a": b"b"})])
        await broker.declare_schedule("nightly", message=Message(b"x"), queue="mail", cron="0 3 1 1 *")
        await broker.reject(await broker.claim("mail"), error="bad")
        await broker.put_mark("ledger", {"written": [1, 2]})
        await broker.stage("open", "a", encode([Message(b"staged")]), queue="mail")
        sessions = self.front.server.sessions
        if not len(sessions):
            self.session = sessions.begin(600.0).id
        return str((await broker.claim("mail")).lease)

    def fill(self) -> str:
        return str(self._do(self._fill()))

    async def _close(self) -> None:
        self._end.set()
        await self._serving

    def close(self) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.close()


CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def tamed(case: Case[Any], lease: str, session: str, is_known: bool) -> Case[Any]:
    """A case whose wait is short and which, every other time, is about things that exist."""
    wait = case.body.get("wait") if isinstance(case.body, dict) else None
    if isinstance(case.body, dict) and isinstance(wait, int | float):
        case.body["wait"] = min(wait, WAIT_S_MAX)
    if is_known:
        names = {
            "queue": "mail",
            "group": "default",
            "exchange": "all",
            "schedule": "nightly",
            "trace": "trace",
            "lease": lease,
            "session": session,
            "lane": 0,
            "offset": 0,
            "mark": "ledger",
            "transaction": "open",
            "chunk": "a",
        }
        if "/read" in case.path or "/commit" in case.path:
            names["group"] = "watch"
        case.path_parameters = {name: names[name] for name in case.path_parameters or {}}
        case.query = {name: value for name, value in (case.query or {}).items() if name not in ("namespace", "session")}
        if isinstance(case.body, dict) and "group" in case.body:
            case.body["group"] = "default"
    return case


@pytest.mark.timeout(100)
@pytest.mark.parametrize(("operation", "mode"), WORK, ids=lambda one: getattr(one, "value", one))
def test_the_server_keeps_to_its_document(served: Served, operation: str, mode: GenerationMode) -> None:
    path, method = OPERATIONS[operation]
    schema = from_dict(DOCUMENT, config=schemathesis.Config())
    chosen = schema[path][method.upper()]
    address = f"http://127.0.0.1:{served.front.server.port}"

    @seed(20_260_116)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=chosen.as_strategy(generation_mode=mode), is_known=st.booleans())
    def check(case: Case[Any], is_known: bool) -> None:
        lease = served.fill()
        tamed(case, lease, served.session, is_known).call_and_validate(base_url=address, checks=CHECKS, timeout=20)

    check()
