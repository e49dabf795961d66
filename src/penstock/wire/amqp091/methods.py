"""Methods to bytes and back, by pamqp's descriptions of them.

pamqp knows every method's fields and their types, and its classes name the methods. Its constructors refuse names that
RabbitMQ allows (a queue named `ünï q?*`), and its reader takes a field that ends too early for a short one; so the
fields are read and written here, and `make` builds an object without its constructor.
"""

from __future__ import annotations

import datetime as dt
from struct import Struct, error
from typing import Any, Final, TypeVar

from pamqp import commands
from pamqp.base import Frame

from penstock.wire.amqp091 import codes
from penstock.wire.amqp091.tables import Malformed, decode_table, encode_table

AnyFrame = TypeVar("AnyFrame", bound=Frame)

_INDEX: Final = Struct(">I")
_NUMBERS: Final = {
    "octet": Struct(">B"),
    "short": Struct(">H"),
    "long": Struct(">I"),
    "longlong": Struct(">Q"),
    "timestamp": Struct(">Q"),
}
_NOTHING: Final = {"bit": False, "shortstr": "", "longstr": "", "table": None}

_KINDS: Final[dict[int, type[Frame]]] = dict(commands.INDEX_MAPPING)
_PLANS: Final[dict[type[Frame], tuple[tuple[str, str], ...]]] = {
    kind: tuple((name, kind.amqp_type(name)) for name in kind.attributes()) for kind in _KINDS.values()
}
"""Each method's fields, in order, with their types."""


class Unknown(Malformed):
    """A method that the protocol does not have."""

    code = codes.NOT_IMPLEMENTED


def make(kind: type[AnyFrame], **fields: Any) -> AnyFrame:
    """The method with these fields and nothing in the others, unchecked; text may be str or bytes."""
    method = kind.__new__(kind)
    plan = _PLANS[kind]
    for name, field_type in plan:
        setattr(method, name, fields.pop(name, _NOTHING.get(field_type, 0)))
    if fields:
        raise TypeError(f"{kind.name} has no field {', '.join(fields)}; it has {', '.join(name for name, _ in plan)}")
    return method


def decode(payload: bytes) -> Frame:
    """The method of a frame's payload; raises Unknown, or Malformed where its fields are not well formed."""
    if len(payload) < 4:
        raise Malformed(f"a method frame with {len(payload)} bytes")
    (index,) = _INDEX.unpack_from(payload)
    kind = _KINDS.get(index)
    if kind is None:
        raise Unknown(f"there is no method {index & 0xFFFF} of class {index >> 16}")
    method = kind.__new__(kind)
    position, bit = 4, 0
    try:
        for name, field_type in _PLANS[kind]:
            if field_type == "bit":
                # Up to eight bits in a row share an octet; no method has more.
                setattr(method, name, bool(payload[position] & 1 << bit))
                bit += 1
                continue
            if bit:
                position, bit = position + 1, 0
            value, position = _decode_field(field_type, payload, position)
            setattr(method, name, value)
    except (error, IndexError):
        raise Malformed(f"{kind.name} ends in the middle of its fields") from None
    except Malformed as bad:
        raise Malformed(f"{kind.name}: {bad}") from None
    position += bit > 0
    if position != len(payload):
        raise Malformed(f"{kind.name} has {len(payload) - position} bytes after its last field")
    return method


def encode(method: Frame) -> bytes:
    """The payload of the method's frame; text may be str or bytes. Too long a text raises Malformed."""
    parts = [_INDEX.pack(method.index)]
    bits, bit = 0, 0
    for name, field_type in _PLANS[type(method)]:
        value = getattr(method, name, None)
        if field_type == "bit":
            bits |= bool(value) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes((bits,)))
            bits, bit = 0, 0
        parts.append(_encode_field(method, name, field_type, value))
    if bit:
        parts.append(bytes((bits,)))
    return b"".join(parts)


def _decode_field(field_type: str, payload: bytes, position: int) -> tuple[Any, int]:
    if field_type == "shortstr":
        end = position + 1 + payload[position]
        return _text(payload, position + 1, end), end
    if field_type == "table":
        return decode_table(payload, position)
    if field_type == "longstr":
        end = position + 4 + _INDEX.unpack_from(payload, position)[0]
        return _long_text(payload, position + 4, end), end
    number = _NUMBERS[field_type]
    return number.unpack_from(payload, position)[0], position + number.size


def _text(payload: bytes, start: int, end: int) -> str:
    if end > len(payload):
        raise IndexError
    try:
        return payload[start:end].decode()
    except UnicodeDecodeError:
        raise Malformed(f"a name is not UTF-8: {payload[start:end][:40]!r}") from None


def _long_text(payload: bytes, start: int, end: int) -> str | bytes:
    """As pamqp does: bytes where it is not UTF-8."""
    if end > len(payload):
        raise IndexError
    content = payload[start:end]
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _encode_field(method: Frame, name: str, field_type: str, value: Any) -> bytes:
    if field_type in ("shortstr", "longstr"):
        text = value.encode() if isinstance(value, str) else bytes(value or b"")
        if field_type == "longstr":
            return _INDEX.pack(len(text)) + text
        if len(text) > 255:
            raise Malformed(f"{method.name}: {name} has {len(text)} bytes, more than 255: {text[:40]!r}…")
        return bytes((len(text),)) + text
    if field_type == "table":
        return encode_table(value or {})
    if isinstance(value, dt.datetime):
        value = int(value.timestamp())
    try:
        return _NUMBERS[field_type].pack(value or 0)
    except error:
        raise Malformed(f"{method.name}: {name} cannot be {value!r}") from None
