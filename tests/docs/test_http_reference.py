"""docs/http.md: that it is current, and that it names everything the server does."""

from __future__ import annotations

import msgspec
import pytest

from penstock.fronts.http.handlers import all_routes
from penstock.fronts.http.routes import Route
from penstock.model.errors import CLASSES
from tools import make_http_reference

ROUTES = all_routes()


def test_the_page_is_what_the_tool_makes() -> None:
    assert make_http_reference.RESULT.read_text() == make_http_reference.render(), "run tools/make_http_reference.py"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_operation_is_on_the_page(route: Route) -> None:
    text = make_http_reference.render()
    assert text.count(f"### `{route.method} {route.path}`\n") == 1
    assert set(route.parameters) <= set(make_http_reference.PATH_WORDS)
    if route.query is not None:
        words = make_http_reference.docstrings(route.query)
        for field in msgspec.structs.fields(route.query):
            assert words.get(field.name), f"{route.query.__name__}.{field.name} has no words"


def test_every_field_of_a_request_has_words() -> None:
    bodies = [kind for kind in make_http_reference.shapes(ROUTES) if kind.__name__.endswith(("Request", "Choice"))]
    assert bodies
    for kind in bodies:
        words = make_http_reference.docstrings(kind)
        missing = [field.name for field in msgspec.structs.fields(kind) if not words.get(field.name)]
        assert missing == [], f"{kind.__name__}: {missing}"


def test_every_error_is_on_the_page() -> None:
    text = make_http_reference.render()
    for code, kind in CLASSES.items():
        assert (f"| {kind.row.http} | `{code}` |" in text) == (code not in ("error", "not_owner", "unknown_error"))


def test_shapes_are_listed_once_and_linked() -> None:
    text = make_http_reference.render()
    for kind in make_http_reference.shapes(ROUTES):
        assert text.count(f"\n### {kind.__name__}\n") == 1
        assert f"](#{kind.__name__.lower()})" in text or kind.__name__ == "ErrorAnswer"
