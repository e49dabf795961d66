"""Large bodies in JSON, decoded a piece at a time: whoever decodes on a thread lets others have their turn in between.

Python's lock is held through each call of a decoder, on a thread too. So a first pass only finds where the items of
lists begin and end, and what has many bytes is decoded item by item; bytes in base64 are decoded part by part. What
comes of it, and what is refused, is the same as with one call. It may not know sockets, threads or routes. Next stop:
`fronts/http/routes.py`.
"""

from __future__ import annotations

from binascii import Error as NotBase64
from binascii import a2b_base64
from io import BytesIO
from types import UnionType
from typing import Annotated, Any, Final, Generic, TypeGuard, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, Struct, UnsetType

PIECE_BYTES: Final = 256 * 1024
"""Of base64 that is decoded at a time: whole groups of four characters. A shorter item is decoded by one call."""

Kind = TypeVar("Kind")

_optional_bytes: Final[msgspec.json.Decoder[bytes | None]] = msgspec.json.Decoder(bytes | None)


class PiecewiseDecoder(Generic[Kind]):
    """Decodes what a `msgspec.json.Decoder` of the same struct does."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind
        self._plain = msgspec.json.Decoder(kind)
        self._items: dict[str, PiecewiseDecoder[Any]] = {}
        """Decoders of the items of its lists, by field."""
        self._bytes: list[str] = []
        """Its fields that are bytes."""
        self._outline: msgspec.json.Decoder[Any] | None = None
        """Decodes all but its lists and bytes, which stay raw; None where it has neither."""
        if _is_struct(kind):
            self._make_outline(kind)

    def _make_outline(self, kind: type[Struct]) -> None:
        fields = [(one.name, self._outlined(one), _default(one)) for one in msgspec.structs.fields(kind)]
        if self._items or self._bytes:
            is_strict = kind.__struct_config__.forbid_unknown_fields
            outline = msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=is_strict)
            self._outline = msgspec.json.Decoder(outline)

    def _outlined(self, field: msgspec.structs.FieldInfo) -> Any:
        """The type of a field in the outline."""
        plain, *metas = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
        choices = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
        if bytes in choices:
            self._bytes.append(field.name)
            return Raw | UnsetType
        for choice in choices:
            item = get_args(choice)[0] if get_origin(choice) is list else None
            if _is_struct(item):
                self._items[field.name] = PiecewiseDecoder(item)
                listed = Annotated[(list[Raw], *metas)] if metas else list[Raw]
                return listed | None if type(None) in choices else listed
        return field.type

    def decode(self, data: bytes | Raw) -> Kind:
        """The value; raises what the plain decoder would."""
        if self._outline is None or len(memoryview(data)) <= PIECE_BYTES:
            return self._plain.decode(data)
        outline = self._outline.decode(data)
        values = msgspec.structs.asdict(outline)
        for name in self._bytes:
            raw = values.pop(name)
            if raw is not UNSET:
                values[name] = _within(name, _decode_bytes, raw)
        for name, decoder in self._items.items():
            if values[name] is not None:
                values[name] = [
                    _within(f"{name}[{index}]", decoder.decode, raw) for index, raw in enumerate(values[name])
                ]
        return self._kind(**values)


def _is_struct(kind: Any) -> TypeGuard[type[Struct]]:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    """What a field of the outline is where it is not given. Bytes are `UNSET` then, whatever they are in the struct."""
    if field.default_factory is not NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    if field.default is NODEFAULT:
        return msgspec.field()
    return msgspec.field(default=UNSET if bytes in get_args(field.type) else field.default)


def _within(place: str, decode: Any, raw: Raw) -> Any:
    """What is decoded of a part of the whole; an error names its place in the whole."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        what, is_deeper, path = str(error).rpartition(" - at `$")
        text = f"{what}{is_deeper}.{place}{path}" if is_deeper else f"{error} - at `$.{place}`"
        raise msgspec.ValidationError(text) from None


def _decode_bytes(raw: Raw) -> bytes | None:
    text = memoryview(raw)
    if len(text) <= PIECE_BYTES:
        return _optional_bytes.decode(raw)
    whole, last = BytesIO(), len(text) - 1
    try:
        for start in range(1, last, PIECE_BYTES):
            end = min(start + PIECE_BYTES, last)
            piece = a2b_base64(text[start:end], strict_mode=True)
            if end < last and len(piece) < PIECE_BYTES // 4 * 3:
                raise NotBase64("it ends before its end")
            whole.write(piece)
    except NotBase64:  # or it has characters that JSON lets one write in two ways: the plain decoder knows
        return _optional_bytes.decode(raw)
    return whole.getvalue()
