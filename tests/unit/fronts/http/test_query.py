"""The query of a request's target, against the library that reads the general case."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fronts.http.handlers import all_routes
from penstock.fronts.http.routes import (
    QUERIES_KEPT,
    QUERY_FIELDS_MAX,
    QUERY_KEPT_BYTES,
    Query,
    Router,
    read_query,
)
from penstock.model.errors import InvalidArgument


@given(st.text(alphabet="ab=&%+;12?/ é", max_size=12))
def test_a_query_is_read_as_the_library_reads_it(text: str) -> None:
    query = text.encode()
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
        expected = dict(pairs) if len(dict(pairs)) == len(pairs) else None
    except ValueError:
        expected = None
    if expected is None:
        with pytest.raises(InvalidArgument):
            read_query(query)
    else:
        assert read_query(query) == expected


def test_queries_are_remembered_within_limits() -> None:
    router = Router(all_routes())
    for number in range(3 * QUERIES_KEPT):
        route, names, query = router.find_target("POST", b"/v1/queues/q%d/messages?a=%d" % (number, number))
        assert (route.name, names, query) == (
            "POST /v1/queues/{queue}/messages",
            {"queue": f"q{number}"},
            Query("default", None, {"a": str(number)}),
        )
        assert len(router._queries) <= QUERIES_KEPT
    router = Router(all_routes())
    for more in (b"", b"q"):
        raw = b"q" * QUERY_KEPT_BYTES + more
        assert router.find_target("POST", b"/v1/queues/q1/messages?" + raw)[2].rest == {raw.decode(): ""}
    assert list(router._queries) == [b"q" * QUERY_KEPT_BYTES]


@pytest.mark.parametrize("name", ["q", "a%2Fb", "%C3%A4", "claim", "v1", "", "a.b~c"])
def test_every_route_is_found_by_its_ends_as_by_its_whole_path(name: str) -> None:
    router = Router(all_routes())
    assert len(router._by_ends) >= 18
    for route in router.routes:
        path = "/" + "/".join(name if part.startswith("{") else part for part in route.parts)
        found = router.find_target(route.method, path.encode())
        assert found[:2] == router.find(route.method, path)


def test_a_query_may_have_so_many_fields() -> None:
    assert len(read_query(b"&".join(b"a%d" % n for n in range(QUERY_FIELDS_MAX)))) == QUERY_FIELDS_MAX
    with pytest.raises(InvalidArgument, match="fields"):
        read_query(b"&".join(b"a%d" % n for n in range(QUERY_FIELDS_MAX + 1)))
