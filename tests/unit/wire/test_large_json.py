"""Large JSON in pieces: what comes of it, and what is refused, is what one call of a decoder makes of it."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from penstock.wire.http import large_json
from penstock.wire.http.large_json import PIECE_BYTES, PiecewiseDecoder
from penstock.wire.http.shapes import NextRequest, PublishRequest, SettleRequest, TransactionRequest

NOISE = random.Random(0).randbytes(PIECE_BYTES * 2)
BIG = "x" * (PIECE_BYTES + 1)


def plain(kind: Any, data: bytes) -> Any:
    """The value, or the error, that one call gives."""
    return outcome(msgspec.json.Decoder(kind).decode, data)


def outcome(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return type(error), str(error) if isinstance(error, msgspec.ValidationError) else ""


def message(size: int) -> bytes:
    return b'{"messages":[{"payload_base64":"' + b64encode(NOISE[:size]) + b'","key":"k"},{"payload":"small"}]}'


SIZES = [PIECE_BYTES // 4 * 3 + more for more in (-2, -1, 0, 1, 2)] + [
    PIECE_BYTES // 2 * 3 + more for more in (-1, 0, 1)
]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_of_any_length_come_out_as_they_went_in(size: int) -> None:
    found = PiecewiseDecoder(PublishRequest).decode(message(size))
    assert found == plain(PublishRequest, message(size))
    assert found.messages[0].payload_base64 == NOISE[:size]


def test_no_call_decodes_more_than_a_piece_of_base64() -> None:
    lengths: list[int] = []

    def noted(data: memoryview, **options: Any) -> bytes:
        lengths.append(len(data))
        return a2b_base64(data, **options)

    with patch.object(large_json, "a2b_base64", noted):
        PiecewiseDecoder(PublishRequest).decode(message(len(NOISE)))
    assert max(lengths) == PIECE_BYTES
    assert len(lengths) > 2


RIGHT: dict[str, tuple[Any, Any]] = {
    "messages": (
        PublishRequest,
        {"messages": [{"payload": f"{n}{'x' * 500}", "headers": {"n": n}} for n in range(999)]},
    ),
    "null and nothing": (PublishRequest, {"messages": [{"payload_base64": None, "payload": BIG}, {"key": BIG[:9]}]}),
    "any value": (PublishRequest, {"messages": [{"payload_json": {"a": [1, None, BIG]}}, {"payload_json": None}]}),
    "verdicts": (
        SettleRequest,
        {"verdicts": [{"action": "nack", "offsets": [n], "error": "e" * 99} for n in range(9999)]},
    ),
    "no list": (NextRequest, {"verdicts": None, "consumer": BIG}),
    "a list that may be left out": (NextRequest, {"consumer": BIG, "max": 7}),
    "lists in lists": (
        TransactionRequest,
        {
            "settle": [{"lease": "1-2-3", "verdicts": [{"action": "ack"}]}],
            "publish": [
                {"queue": "q", "messages": [{"payload_base64": b64encode(NOISE).decode()}, {"payload": BIG}]},
                {"exchange": "x", "messages": [{"payload": "y"}]},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_the_same_as_with_one_call(name: str) -> None:
    kind, value = RIGHT[name]
    data = json.dumps(value).encode()
    assert len(data) > PIECE_BYTES
    expected = plain(kind, data)
    assert isinstance(expected, kind), expected
    assert PiecewiseDecoder(kind).decode(data) == expected


def test_base64_may_be_written_with_escapes() -> None:
    """As PHP does: a slash with a backslash before it."""
    data = message(len(NOISE)).replace(b"/", b"\\/")
    assert b"\\/" in data
    assert PiecewiseDecoder(PublishRequest).decode(data).messages[0].payload_base64 == NOISE


def test_base64_may_lack_its_padding() -> None:
    data = with_text(b64encode(NOISE + b"1").decode().rstrip("="))
    assert PiecewiseDecoder(PublishRequest).decode(data).messages[1].payload_base64 == NOISE + b"1"


def with_text(text: str) -> bytes:
    return json.dumps({"messages": [{"payload": BIG}, {"payload_base64": text}]}).encode()


ENCODED = b64encode(NOISE).decode()
WRONG: dict[str, tuple[Any, bytes]] = {
    "a bad character": (PublishRequest, with_text(ENCODED[:-9] + "*" + ENCODED[-8:])),
    "padding in the middle": (PublishRequest, with_text("AA==" + ENCODED)),
    "padding at the end of a piece": (PublishRequest, with_text(ENCODED[: PIECE_BYTES - 4] + "AA==" + ENCODED)),
    "a line feed": (PublishRequest, with_text(ENCODED[:76] + "\n" + ENCODED[76:])),
    "a number for bytes": (PublishRequest, json.dumps({"messages": [{"payload": BIG, "payload_base64": 5}]}).encode()),
    "a number for text": (PublishRequest, json.dumps({"messages": [{"payload": BIG}, {"payload": 5}]}).encode()),
    "a wrong item": (PublishRequest, json.dumps({"messages": [{"payload": BIG}, 7]}).encode()),
    "an unknown field": (PublishRequest, json.dumps({"messages": [{"payload": BIG}, {"paylod": "x"}]}).encode()),
    "an unknown field at the top": (PublishRequest, json.dumps({"messages": [{"payload": BIG}], "x": 1}).encode()),
    "no list": (PublishRequest, json.dumps({"x": BIG}).encode()),
    "an empty list": (SettleRequest, json.dumps({"verdicts": []}).encode() + b" " * PIECE_BYTES),
    "deep in lists": (
        TransactionRequest,
        json.dumps({"publish": [{"queue": "q", "messages": [{"payload": BIG}, {"key": 1}]}]}).encode(),
    ),
    "half of it": (PublishRequest, message(len(NOISE))[:-3]),
    "something behind it": (PublishRequest, message(len(NOISE)) + b"x"),
    "no UTF-8": (PublishRequest, json.dumps({"messages": [{"payload": BIG}]}).encode().replace(b"xx", b"x\xff", 1)),
    "a bad item": (PublishRequest, b'{"messages":[{"payload":"' + BIG.encode() + b'"},{"key":tru}]}'),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_in_the_same_words(name: str) -> None:
    kind, data = WRONG[name]
    assert len(data) > PIECE_BYTES
    expected = plain(kind, data)
    assert isinstance(expected, tuple), expected
    assert outcome(PiecewiseDecoder(kind).decode, data) == expected


def test_what_is_small_is_decoded_by_one_call() -> None:
    with patch.object(large_json, "_within", side_effect=AssertionError):
        assert PiecewiseDecoder(PublishRequest).decode(b'{"messages":[{"payload":"x"}]}').messages[0].payload == "x"
