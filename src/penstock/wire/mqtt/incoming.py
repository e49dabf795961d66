"""Bytes as they come, cut into packets: only lengths are looked at here, and nothing is kept twice.

A length that is not allowed is refused when it is read, before the packet's bytes are there.
"""

from __future__ import annotations

from penstock.wire.mqtt.reasons import Reason, Refused


class IncomingPackets:
    """Feed it bytes; `next` then finds the packets, whose bodies are `data[start:end]`."""

    __slots__ = ("_chunks", "_missing", "_position", "data", "end", "first", "maximum", "start")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        """Bytes of the longest packet allowed, its header included."""
        self.data = b""
        self.first = 0
        self.start = 0
        self.end = 0
        self._position = 0
        self._chunks: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> None:
        """More bytes: joined with what is left only when they complete a packet, so that long ones cost no more."""
        if not data:
            return
        if self._chunks or self._position < len(self.data):
            self._chunks.append(data)
            self._missing -= len(data)
        else:
            self.data = data
            self._position = 0

    def peek(self) -> int | None:
        """The first byte of the packet that comes next, if it is there."""
        return self.data[self._position] if self._position < len(self.data) else None

    def next(self) -> bool:
        """Whether there is another whole packet."""
        if self._chunks:
            if self._missing > 0:
                return False
            self.data = b"".join([self.data[self._position :], *self._chunks])
            self._chunks.clear()
            self._position = 0
        data = self.data
        position = self._position
        size = len(data)
        if size - position < 2:
            return self._wait(1)
        length = data[position + 1]
        start = position + 2
        if length >= 0x80:
            length, start = self._long_length(position)
            if not start:
                return self._wait(1)
        if start - position + length > self.maximum:
            raise Refused(
                Reason.PACKET_TOO_LARGE, f"a packet of {length} bytes, but at most {self.maximum} are allowed"
            )
        end = start + length
        if end > size:
            return self._wait(end - size)
        self.first = data[position]
        self.start = start
        self.end = end
        self._position = end
        return True

    def _wait(self, missing: int) -> bool:
        self._missing = missing
        if self._position == len(self.data):
            self.data = b""
            self._position = 0
        return False

    def _long_length(self, position: int) -> tuple[int, int]:
        """A length of several bytes and where the body starts; 0 for the latter when it has not come whole."""
        data = self.data
        length = shift = 0
        for index in range(position + 1, min(position + 5, len(data))):
            byte = data[index]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte:
                    raise Refused(Reason.MALFORMED_PACKET, "a remaining length with a needless last byte")
                return length, index + 1
            shift += 7
        if shift == 28:
            raise Refused(Reason.MALFORMED_PACKET, "a remaining length of more than 4 bytes")
        return 0, 0

    def check_waiting(self) -> None:
        """Bound what has arrived and is not read yet."""
        waiting = len(self.data) - self._position + sum(map(len, self._chunks))
        if waiting > max(self.maximum, 1 << 20):
            raise Refused(Reason.QUOTA_EXCEEDED, f"{waiting} bytes came before CONNECT was answered")

    def drop(self) -> None:
        self.data = b""
        self.start = self.end = self._position = 0
        self._chunks.clear()
