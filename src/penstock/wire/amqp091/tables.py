"""Field tables: the typed values of headers and arguments, exact both ways.

Reading keeps a value's type on the wire in the value's class, so that writing it gives the same bytes again:

    t bool · b Int8 · B UInt8 · s Int16 · u UInt16 · I Int32 · i UInt32 · l int · L Long · f Float32 · d float
    D decimal.Decimal · S str (LongBytes where it is not UTF-8) · x bytes · T Timestamp · A list · F dict · V None

All whole numbers are `int`s, both kinds of floats `float`s: compare and compute with them as usual. `plain` takes the
classes away, for headers that other protocols read. (The letters are RabbitMQ's, where the specification differs.)
"""

from __future__ import annotations

import datetime as dt
import decimal
from struct import Struct, error
from typing import Any, Final

from penstock.wire.amqp091.codes import SYNTAX_ERROR

MAX_DEPTH: Final = 64
"""How deep tables and arrays may be nested."""


class Malformed(ValueError):
    """Bytes that are not what the specification says; the text says why."""

    code: int = SYNTAX_ERROR


class Wrong(Exception):
    """What the client did costs it the connection: the reply code and why."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code: Final = code


class Int8(int):
    pass


class UInt8(int):
    pass


class Int16(int):
    pass


class UInt16(int):
    pass


class Int32(int):
    pass


class UInt32(int):
    pass


class Long(int):
    """64 bits with a sign, under the letter L; under l they are plain ints."""


class Float32(float):
    pass


class LongBytes(bytes):
    """A long string that is not UTF-8."""


class Timestamp(int):
    """Seconds since 1970, UTC."""

    def moment(self) -> dt.datetime | None:
        """The time, where Python has one so far away."""
        try:
            return _EPOCH + dt.timedelta(seconds=int(self))
        except OverflowError:
            return None


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_U32: Final = Struct(">I")
_DECIMAL: Final = Struct(">Bi")

# Letter → its bytes and its class; those of one size and no nesting.
_FIXED: Final[dict[int, tuple[Struct, type[int] | type[float]]]] = {
    ord("b"): (Struct(">b"), Int8),
    ord("B"): (Struct(">B"), UInt8),
    ord("s"): (Struct(">h"), Int16),
    ord("u"): (Struct(">H"), UInt16),
    ord("I"): (Struct(">i"), Int32),
    ord("i"): (_U32, UInt32),
    ord("l"): (Struct(">q"), int),
    ord("L"): (Struct(">q"), Long),
    ord("f"): (Struct(">f"), Float32),
    ord("d"): (Struct(">d"), float),
    ord("T"): (Struct(">Q"), Timestamp),
}
_SIZES: Final = {letter: fixed.size for letter, (fixed, _) in _FIXED.items()} | {ord("t"): 1, ord("D"): 5, ord("V"): 0}
_BY_CLASS: Final = {kind: (bytes((letter,)), fixed) for letter, (fixed, kind) in _FIXED.items()}
_VARIABLE: Final = frozenset(b"Sx")
_NESTED: Final = frozenset(b"AF")


def decode_table(data: bytes, position: int = 0) -> tuple[dict[str, Any], int]:
    """The table that begins at the position with its length, and the position after it; raises Malformed."""
    try:
        return _table(data, position, len(data), 1)
    except (error, IndexError):
        raise Malformed("a table ends before its length says so") from None


def check_table(data: bytes, position: int, end: int) -> int:
    """The position after the table that begins at the position, all of it well formed; raises Malformed."""
    try:
        return _check_items(data, position, end, 1, named=True)
    except (error, IndexError):
        raise Malformed("a table ends before its length says so") from None


def encode_table(table: dict[str, Any]) -> bytes:
    """The table with its length; what cannot be written raises Malformed."""
    return _encode_table(table, 1)


def plain(value: Any) -> Any:
    """The value without its class: int, float, str, bytes, bool, None, datetime, list, dict; decimals as text."""
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None or kind is bytes:
        return value
    if kind is dict:
        return {name: plain(item) for name, item in value.items()}
    if kind is list:
        return [plain(item) for item in value]
    if kind is Timestamp:
        moment = value.moment()
        return int(value) if moment is None else moment
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, decimal.Decimal):
        return str(value)
    return value


def _bounds(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Where what begins with a length of 32 bits has its content."""
    (length,) = _U32.unpack_from(data, position)
    start = position + 4
    if start + length > end:
        raise Malformed(f"a length of {length} bytes where {max(end - start, 0)} are left")
    return start, start + length


def _table(data: bytes, position: int, end: int, depth: int) -> tuple[dict[str, Any], int]:
    position, end = _bounds(data, position, end)
    table: dict[str, Any] = {}
    while position < end:
        after = position + 1 + data[position]
        if after >= end:
            raise Malformed("a table's name ends after the table")
        name = data[position + 1 : after]
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise Malformed(f"a table's name is not UTF-8: {name[:40]!r}") from None
        table[text], position = _value(data, after, end, depth)
    return table, position


def _array(data: bytes, position: int, end: int, depth: int) -> tuple[list[Any], int]:
    position, end = _bounds(data, position, end)
    values: list[Any] = []
    while position < end:
        value, position = _value(data, position, end, depth)
        values.append(value)
    return values, position


def _value(data: bytes, position: int, end: int, depth: int) -> tuple[Any, int]:
    letter = data[position]
    position += 1
    size = _SIZES.get(letter)
    if size is not None:
        if position + size > end:
            raise Malformed(f"a value of type {chr(letter)} ends after its table")
        return _fixed(letter, data, position), position + size
    if letter in _VARIABLE:
        start, after = _bounds(data, position, end)
        content = data[start:after]
        return (content if letter == ord("x") else _text(content)), after
    if letter in _NESTED:
        if depth >= MAX_DEPTH:
            raise Malformed(f"tables nested deeper than {MAX_DEPTH} levels")
        return (_table if letter == ord("F") else _array)(data, position, end, depth + 1)
    raise Malformed(f"a value of the unknown type {bytes((letter,))!r}")


def _fixed(letter: int, data: bytes, position: int) -> Any:
    known = _FIXED.get(letter)
    if known is not None:
        (number,) = known[0].unpack_from(data, position)
        return number if known[1] is int or known[1] is float else known[1](number)
    if letter == ord("t"):
        return data[position] != 0
    if letter == ord("V"):
        return None
    scale, mantissa = _DECIMAL.unpack_from(data, position)
    sign, digits, _ = decimal.Decimal(mantissa).as_tuple()
    return decimal.Decimal((sign, digits, -scale))


def _text(content: bytes) -> str | LongBytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return LongBytes(content)


def _check_items(data: bytes, position: int, end: int, depth: int, *, named: bool) -> int:
    position, end = _bounds(data, position, end)
    while position < end:
        if named:
            start = position + 1
            position = start + data[position]
            if position >= end:
                raise Malformed("a table's name ends after the table")
            name = data[start:position]
            if not name.isascii():
                check_utf8(name, "a table's name")
        letter = data[position]
        position += 1
        size = _SIZES.get(letter)
        if size is not None:
            position += size
            if position > end:
                raise Malformed(f"a value of type {chr(letter)} ends after its table")
        elif letter in _VARIABLE:
            position = _bounds(data, position, end)[1]
        elif letter in _NESTED:
            if depth >= MAX_DEPTH:
                raise Malformed(f"tables nested deeper than {MAX_DEPTH} levels")
            position = _check_items(data, position, end, depth + 1, named=letter == ord("F"))
        else:
            raise Malformed(f"a value of the unknown type {bytes((letter,))!r}")
    return position


def check_utf8(text: bytes, what: str) -> None:
    """Raises Malformed where the text is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        raise Malformed(f"{what} is not UTF-8: {text[:40]!r}") from None


def _encode_table(table: dict[str, Any], depth: int) -> bytes:
    parts: list[bytes] = []
    for name, value in table.items():
        encoded = name.encode()
        if len(encoded) > 255:
            raise Malformed(f"a table's name has {len(encoded)} bytes, more than 255: {name[:40]!r}…")
        parts += (bytes((len(encoded),)), encoded, _encode_value(value, depth))
    return _with_length(b"".join(parts))


def _with_length(content: bytes) -> bytes:
    return _U32.pack(len(content)) + content


def _encode_value(value: Any, depth: int) -> bytes:
    kind = type(value)
    known = _BY_CLASS.get(kind)
    if known is not None:
        try:
            return known[0] + known[1].pack(value)
        except (error, OverflowError):
            raise Malformed(f"{value!r} does not fit into 64 bits") from None
    if kind is str:
        return b"S" + _with_length(value.encode("utf-8", "surrogateescape"))
    if kind is bool:
        return b"t\x01" if value else b"t\x00"
    if value is None:
        return b"V"
    if kind is LongBytes:
        return b"S" + _with_length(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return b"x" + _with_length(bytes(value))
    if isinstance(value, dict | list):
        if depth >= MAX_DEPTH:
            raise Malformed(f"tables nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            return b"F" + _encode_table(value, depth + 1)
        return b"A" + _with_length(b"".join([_encode_value(item, depth + 1) for item in value]))
    if isinstance(value, dt.datetime):
        return _encode_value(Timestamp(max(0, int(value.timestamp()))), depth)
    if isinstance(value, decimal.Decimal):
        return _encode_decimal(value)
    raise Malformed(f"a table cannot hold a value of type {kind.__name__}: {value!r:.80}")


def _encode_decimal(value: decimal.Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    mantissa = int("".join(map(str, digits)) or "0") * (-1 if sign else 1)
    if not isinstance(exponent, int) or exponent > 9:
        raise Malformed(f"a table cannot hold the decimal {value}")
    if exponent > 0:
        mantissa, exponent = mantissa * 10**exponent, 0
    try:
        return b"D" + _DECIMAL.pack(-exponent, mantissa)
    except error:
        raise Malformed(f"a table cannot hold the decimal {value}: 31 bits and 255 places at most") from None
