"""The query of a request's target, against the library that reads the general case."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fronts.http.handlers import all_routes
from penstock.fronts.http.routes import PATH_KEPT_BYTES, PATHS_KEPT, QUERY_FIELDS_MAX, Router, read_query
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


def test_paths_are_remembered_within_limits() -> None:
    router = Router(all_routes())
    for number in range(3 * PATHS_KEPT):
        route, names, query = router.find_target("POST", b"/v1/queues/q%d/messages?a=%d" % (number, number))
        assert (route.name, names, query) == (
            "POST /v1/queues/{queue}/messages",
            {"queue": f"q{number}"},
            {"a": str(number)},
        )
        assert len(router._found) <= PATHS_KEPT
    assert router.find_target("POST", b"/v1/queues/q1/messages")[1] == {"queue": "q1"}
    before = len(router._found)
    long = "q" * PATH_KEPT_BYTES
    for _ in range(2):
        assert router.find_target("POST", f"/v1/queues/{long}/messages".encode())[1] == {"queue": long}
    assert len(router._found) == before


def test_a_query_may_have_so_many_fields() -> None:
    assert len(read_query(b"&".join(b"a%d" % n for n in range(QUERY_FIELDS_MAX)))) == QUERY_FIELDS_MAX
    with pytest.raises(InvalidArgument, match="fields"):
        read_query(b"&".join(b"a%d" % n for n in range(QUERY_FIELDS_MAX + 1)))
