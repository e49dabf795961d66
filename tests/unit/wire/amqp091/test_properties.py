"""Properties: read on demand, kept as they came, and the same as pamqp's."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from penstock.wire.amqp091.properties import NAMES, NONE, Properties, build
from penstock.wire.amqp091.tables import Malformed, Timestamp, encode_table
from tests.unit.wire.amqp091.client import values_of
from tests.unit.wire.amqp091.test_tables import TABLES

SHORT = st.text(max_size=60)
VALUES: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(NAMES, SHORT) | {
    "headers": TABLES,
    "delivery_mode": st.integers(0, 255),
    "priority": st.integers(0, 255),
    "timestamp": st.integers(0, 2**64 - 1).map(Timestamp),
}
PROPERTIES = st.fixed_dictionaries({}, optional=VALUES)


@given(PROPERTIES)
def test_what_is_built_is_read(values: dict[str, Any]) -> None:
    raw = build(**values)
    properties = Properties(raw)
    assert properties.raw == raw
    assert build(**values_of(properties)) == raw
    assert list(values_of(properties)) == [name for name in NAMES if name in values]
    for name in NAMES:
        assert (name in properties) is (name in values)
        if name not in ("headers", *values):
            assert getattr(properties, name) is None
        elif name != "headers":
            assert getattr(properties, name) == values[name]
    assert properties.raw_headers == (encode_table(values["headers"]) if "headers" in values else None)


# What pamqp takes: no empty texts (it leaves them out), times up to 2106, modes 1 and 2, no cluster_id.
THEIRS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys([name for name in NAMES if name != "cluster_id"], st.text(min_size=1, max_size=60))
    | {
        "headers": st.dictionaries(st.text(max_size=20), st.text() | st.integers(-100, 100), min_size=1, max_size=4),
        "delivery_mode": st.integers(1, 2),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**32 - 1).map(lambda at: dt.datetime.fromtimestamp(at, tz=dt.UTC)),
    },
)


@given(THEIRS)
def test_as_pamqp_writes_and_reads_them(values: dict[str, Any]) -> None:
    theirs = Basic.Properties(**values).marshal()
    properties = Properties(theirs)
    for name, value in values.items():
        mine = getattr(properties, name)
        assert (mine.moment() if isinstance(mine, Timestamp) else mine) == value
    ours = build(**values)
    if "headers" not in values:  # pamqp sorts a table's names and takes the smallest type
        assert ours == theirs
    header = ContentHeader()
    header.unmarshal(b"\x00\x3c" + bytes(10) + ours)
    for name, value in values.items():
        assert getattr(header.properties, name) == value


@given(PROPERTIES, PROPERTIES)
def test_replacing_leaves_the_others_as_they_came(values: dict[str, Any], changes: dict[str, Any]) -> None:
    raw = build(**values)
    assert Properties(raw).replaced(**changes) == build(**(values | changes))
    assert Properties(raw).replaced(**dict.fromkeys(values)) == NONE


def test_the_headers_bytes_are_kept_even_where_reading_would_lose_something() -> None:
    twice = b"\x01at\x01" * 2
    raw = b"\x30\x00" + len(twice).to_bytes(4) + twice + b"\x02"
    properties = Properties(raw)
    assert properties.headers == {"a": True}
    assert properties.replaced(priority=3) == b"\x38\x00" + raw[2:] + b"\x03"


@given(PROPERTIES, st.data())
def test_cut_or_longer_is_malformed(values: dict[str, Any], data: st.DataObject) -> None:
    raw = build(**values)
    with pytest.raises(Malformed):
        Properties(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(Malformed):
        Properties(raw + b"\x00")


@given(st.binary(max_size=80))
def test_any_bytes_are_properties_or_malformed(raw: bytes) -> None:
    try:
        properties = Properties(raw)
    except Malformed:
        return
    assert properties.raw == raw
    # Whatever was found good can be read, all of it.
    assert set(values_of(properties)) <= set(NAMES)


@pytest.mark.parametrize("flags", [1, 2, 3, 0x8001])
def test_flags_without_a_meaning_are_malformed(flags: int) -> None:
    with pytest.raises(Malformed, match="flags"):
        Properties(flags.to_bytes(2) + b"\x00" * (flags > 3))


def test_a_text_has_255_bytes_at_most_and_must_be_utf8() -> None:
    assert Properties(build(reply_to="ü" * 127)).reply_to == "ü" * 127
    with pytest.raises(Malformed, match="256 bytes"):
        build(reply_to="ü" * 128)
    with pytest.raises(Malformed, match="UTF-8"):
        Properties(build(reply_to=b"\xff"))
    with pytest.raises(Malformed, match="0 to 255"):
        build(priority=256)


def test_unknown_properties_are_named() -> None:
    with pytest.raises(TypeError, match="colour"):
        build(colour="red")


def test_no_properties() -> None:
    assert values_of(Properties(NONE)) == {}
    assert build() == NONE
