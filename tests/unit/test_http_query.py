"""The query of a request's target, against the library that reads the general case."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.fronts.http.routes import split_target


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
            split_target(b"/v1?" + query)
    else:
        assert split_target(b"/v1?" + query) == ("/v1", expected)
