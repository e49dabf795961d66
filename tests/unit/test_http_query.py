"""The query of a request's target, against the library that reads the general case."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.fronts.http.routes import QUERY_FIELDS_MAX, read_query


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


def test_a_query_may_have_so_many_fields() -> None:
    assert len(read_query(b"&".join(b"a%d" % n for n in range(QUERY_FIELDS_MAX)))) == QUERY_FIELDS_MAX
    with pytest.raises(InvalidArgument, match="fields"):
        read_query(b"&".join(b"a%d" % n for n in range(QUERY_FIELDS_MAX + 1)))
