"""Methods: the bytes and fields that pamqp has, and names that its constructors refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.commands import Basic, Queue

from penstock.wire.amqp091 import methods
from penstock.wire.amqp091.methods import Unknown, decode, encode, make
from penstock.wire.amqp091.tables import Malformed

KINDS: list[type[Frame]] = list(commands.INDEX_MAPPING.values())
# Names that pamqp's own checks let through: it is the oracle here.
NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=40)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": NAMES,
    "longstr": st.text(max_size=300),
    "table": st.dictionaries(st.text(max_size=20), st.text() | st.booleans(), max_size=1),
}
FIXED: dict[str, Any] = {
    "ticket": 0,
    "reserved_1": 0,
    "insist": False,
    "capabilities": "",
    "known_hosts": "",
    "out_of_band": "0",
    "channel_id": "0",
    "internal": False,
    "cluster_id": "",
}


@st.composite
def any_method(draw: st.DrawFn) -> Frame:
    kind = draw(st.sampled_from(KINDS))
    fields: dict[str, Any] = {}
    for name in kind.attributes():
        field_type = kind.amqp_type(name)
        fixed = FIXED.get(name)
        fits = name in FIXED and isinstance(fixed, {"bit": bool, "shortstr": str, "longstr": str}.get(field_type, int))
        fields[name] = fixed if fits else draw(FIELDS[field_type])
    return make(kind, **fields)


def fields_of(method: Frame) -> dict[str, Any]:
    return {name: getattr(method, name) for name in method.attributes()}


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@given(any_method())
def test_the_same_bytes_and_fields_as_pamqp(method: Frame) -> None:
    payload = encode(method)
    # pamqp reads what we write, and we read what pamqp writes.
    data = b"\x01\x00\x07" + len(payload).to_bytes(4) + payload + b"\xce"
    consumed, channel, theirs = frame.unmarshal(data)
    assert (consumed, channel) == (len(data), 7)
    assert isinstance(theirs, Frame)
    assert type(theirs) is type(method)
    assert fields_of(theirs) == fields_of(method)
    assert fields_of(decode(payload)) == fields_of(method)
    assert frame.marshal(theirs, 7) == data


@given(any_method(), st.data())
def test_cut_or_longer_is_malformed(method: Frame, data: st.DataObject) -> None:
    payload = encode(method)
    if len(payload) > 4:
        with pytest.raises(Malformed):
            decode(payload[: data.draw(st.integers(0, len(payload) - 1))])
    with pytest.raises(Malformed):
        decode(payload + b"\x00")


@given(st.sampled_from(KINDS), st.binary(max_size=60))
def test_any_bytes_are_a_method_or_malformed(kind: type[Frame], data: bytes) -> None:
    payload = kind.index.to_bytes(4) + data
    try:
        method = decode(payload)
    except Malformed:
        return
    assert type(method) is kind
    encode(method)


@given(st.text(max_size=255).filter(lambda name: len(name.encode()) <= 255))
def test_any_name_that_fits_is_a_name(name: str) -> None:
    method = make(Queue.DeclareOk, queue=name, message_count=3, consumer_count=1)
    again = decode(encode(method))
    assert isinstance(again, Queue.DeclareOk)
    assert again.queue == name
    assert encode(make(Queue.DeclareOk, queue=name.encode(), message_count=3, consumer_count=1)) == encode(method)


def test_names_have_255_bytes_at_most() -> None:
    encode(make(Queue.DeclareOk, queue="ü" * 127))
    with pytest.raises(Malformed, match="256 bytes"):
        encode(make(Queue.DeclareOk, queue="ü" * 128))


def test_a_name_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(Malformed, match="UTF-8"):
        decode(encode(make(Queue.Purge, queue=b"\xff\xfe")))


def test_numbers_that_do_not_fit_are_malformed() -> None:
    with pytest.raises(Malformed, match="message_count"):
        encode(make(Queue.PurgeOk, message_count=2**32))


def test_an_unknown_method_is_told_from_a_malformed_one() -> None:
    for index in (0x003C0063, 0x0001000A, 0, 0xFFFFFFFF):
        with pytest.raises(Unknown, match=f"method {index & 0xFFFF} of class {index >> 16}"):
            decode(index.to_bytes(4))
    with pytest.raises(Malformed, match="3 bytes"):
        decode(b"\x00\x3c\x00")


def test_a_field_that_there_is_not_is_named() -> None:
    with pytest.raises(TypeError, match="colour"):
        make(Basic.Qos, colour=1)
    assert make(Basic.Qos, prefetch_count=7).prefetch_count == 7


def test_no_method_has_more_bits_in_a_row_than_an_octet() -> None:
    for plan in methods._PLANS.values():
        kinds = "".join("b" if kind == "bit" else "." for _, kind in plan)
        assert "b" * 9 not in kinds
