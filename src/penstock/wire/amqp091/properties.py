"""The properties of a message: the flags and the list of its content header, kept as they came.

`Properties` reads them on demand: making one finds where each property lies and checks that all is well formed; a text
is decoded, and the headers' table read, on first use. `build` writes new ones.
"""

from __future__ import annotations

import datetime as dt
from struct import Struct
from typing import Any, Final

from penstock.wire.amqp091.tables import Malformed, Timestamp, check_table, check_utf8, decode_table, encode_table

_FLAGS: Final = Struct(">H")
_SECONDS: Final = Struct(">Q")

NAMES: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "message_type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""In the order of the list on the wire; the first has the highest flag."""

_BIT: Final = {name: 0x8000 >> index for index, name in enumerate(NAMES)}
_OCTETS: Final = frozenset(("delivery_mode", "priority"))
_UNUSED_FLAGS: Final = 0x0003
"""One says that more flags follow, which this class of content does not have; the other has no meaning."""

NONE: Final = b"\x00\x00"
"""The bytes of no properties at all."""


def _layout(flags: int) -> tuple[tuple[str, str], ...]:
    """Which properties a list with these flags has, and what they are."""
    kinds = {"headers": "table", "timestamp": "seconds"} | dict.fromkeys(_OCTETS, "octet")
    return tuple((name, kinds.get(name, "text")) for name in NAMES if flags & _BIT[name])


class Layouts(dict[int, tuple[tuple[str, str], ...]]):
    """Found once for each combination of flags: there are 16,384, and programs use a few."""

    def __missing__(self, flags: int) -> tuple[tuple[str, str], ...]:
        if flags & _UNUSED_FLAGS:
            raise Malformed(f"content header flags {flags:#06x}: the two lowest bits have no meaning here")
        layout = self[flags] = _layout(flags)
        return layout


_LAYOUTS: Final = Layouts()


def locate(raw: bytes) -> dict[str, int]:
    """Where each property that is there begins; raises Malformed where anything is not as it should be."""
    end = len(raw)
    if end < 2:
        raise Malformed("a content header without flags")
    position = 2
    places: dict[str, int] = {}
    for name, kind in _LAYOUTS[raw[0] << 8 | raw[1]]:
        places[name] = position
        if position >= end:
            raise Malformed(f"the content header ends before its {name}")
        if kind == "text":
            start = position + 1
            position = start + raw[position]
            text = raw[start:position]
            if not text.isascii():
                check_utf8(text, name)
        elif kind == "octet":
            position += 1
        elif kind == "table":
            position = check_table(raw, position, end)
        else:
            position += 8
    if position != end:
        problem = "ends before" if position > end else f"has {end - position} bytes after"
        raise Malformed(f"the content header {problem} the last of its properties")
    return places


_REMEMBERED: Final = 1024
_REMEMBERED_BYTES: Final = 128
_good: Final[set[bytes]] = {NONE}
"""Properties that were found good: those of most programs repeat."""


def check_properties(raw: bytes) -> None:
    """Raises Malformed where they are not well formed."""
    if raw in _good:
        return
    locate(raw)
    if len(raw) <= _REMEMBERED_BYTES:
        if len(_good) >= _REMEMBERED:
            _good.clear()
        _good.add(raw)


class _Text:
    """A property that is a text."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, properties: Properties, _owner: type) -> str | None:
        position, raw = properties._places.get(self._name), properties.raw
        return None if position is None else raw[position + 1 : position + 1 + raw[position]].decode()


class Properties:
    """Properties as they came; each is None where it is not there. Raises Malformed for bytes that are not any."""

    __slots__ = ("raw", "_places")

    content_type = _Text()
    content_encoding = _Text()
    correlation_id = _Text()
    reply_to = _Text()
    expiration = _Text()
    message_id = _Text()
    message_type = _Text()
    user_id = _Text()
    app_id = _Text()
    cluster_id = _Text()

    def __init__(self, raw: bytes = NONE) -> None:
        self.raw: Final = raw
        self._places: Final = {} if raw == NONE else locate(raw)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    @property
    def headers(self) -> dict[str, Any] | None:
        """With each value's type kept: see `tables`."""
        position = self._places.get("headers")
        return None if position is None else decode_table(self.raw, position)[0]

    @property
    def raw_headers(self) -> bytes | None:
        """The headers' table as it came, with its length."""
        position = self._places.get("headers")
        if position is None:
            return None
        return self.raw[position : position + 4 + int.from_bytes(self.raw[position : position + 4])]

    @property
    def delivery_mode(self) -> int | None:
        return self._octet("delivery_mode")

    @property
    def priority(self) -> int | None:
        return self._octet("priority")

    def _octet(self, name: str) -> int | None:
        position = self._places.get(name)
        return None if position is None else self.raw[position]

    @property
    def timestamp(self) -> Timestamp | None:
        position = self._places.get("timestamp")
        return None if position is None else Timestamp(_SECONDS.unpack_from(self.raw, position)[0])

    def replaced(self, **changes: Any) -> bytes:
        """The bytes with some properties changed, added, or taken away (None); the others as they came."""
        return build(**({name: Raw(self._bytes(name)) for name in self._places} | changes))

    def _bytes(self, name: str) -> bytes:
        start = self._places[name]
        if name in _OCTETS:
            return self.raw[start : start + 1]
        if name == "timestamp":
            return self.raw[start : start + 8]
        if name == "headers":
            return self.raw_headers or b""
        return self.raw[start : start + 1 + self.raw[start]]


class Raw(bytes):
    """A property's bytes, as they stand in the list."""


def build(**properties: Any) -> bytes:
    """Flags and list; values that are None are left out. A text over 255 bytes of UTF-8 raises Malformed."""
    unknown = properties.keys() - _BIT.keys()
    if unknown:
        raise TypeError(f"there is no property {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    flags, parts = 0, [b""]
    for name in NAMES:
        value = properties.get(name)
        if value is not None:
            flags |= _BIT[name]
            parts.append(value if type(value) is Raw else _encoded(name, value))
    parts[0] = _FLAGS.pack(flags)
    return b"".join(parts)


def _encoded(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_table(value)
    if name in _OCTETS:
        if not 0 <= value <= 255:
            raise Malformed(f"{name} is {value}, which is not within 0 to 255")
        return bytes((value,))
    if name == "timestamp":
        return _SECONDS.pack(max(0, int(value.timestamp() if isinstance(value, dt.datetime) else value)))
    text = value.encode() if isinstance(value, str) else bytes(value)
    if len(text) > 255:
        raise Malformed(f"{name} has {len(text)} bytes, more than 255: {text[:40]!r}…")
    return bytes((len(text),)) + text
