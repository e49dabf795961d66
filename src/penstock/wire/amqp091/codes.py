"""Numbers that the protocol's specification fixes: reply codes, frame types, and the methods of the fast path."""

from __future__ import annotations

from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
"""Type, channel, size and the end octet: a frame's bytes besides its payload."""
FRAME_MIN_SIZE: Final = 4096
"""Every peer must take frames so large; no smaller limit can be agreed upon."""
FRAME_SIZE_BEFORE_TUNING: Final = 8192
"""Before tuning and login."""

BASIC: Final = 60

BASIC_PUBLISH: Final = 0x003C0028
BASIC_RETURN: Final = 0x003C0032
BASIC_DELIVER: Final = 0x003C003C
BASIC_GET_OK: Final = 0x003C0047
BASIC_ACK: Final = 0x003C0050
BASIC_REJECT: Final = 0x003C005A
BASIC_NACK: Final = 0x003C0078

CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

NAMES: Final = {code: name for name, code in tuple(globals().items()) if type(code) is int and 300 < code < 600}
"""How RabbitMQ names a code at the beginning of its reply text: some clients look for it there."""


def reply_text(code: int, text: str) -> str:
    """The text with the code's name before it, short enough to be sent (255 bytes of UTF-8)."""
    name = NAMES.get(code)
    whole = text if name is None or text.startswith(name) else f"{name} - {text}"
    encoded = whole.encode("utf-8", "replace")
    return whole if len(encoded) <= 255 else encoded[:252].decode("utf-8", "ignore") + "…"
