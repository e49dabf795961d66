"""How a consumer of a stream is told of messages that are damaged in the store: by a header of the next message.

Protocols that push messages have no answer to put it into. Knows no protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.api.results import DamagedRange, Received

DAMAGED_HEADER: Final = "x-stream-damaged"
"""`LANE:FIRST-LAST`, several with commas: what was passed over before this message."""
TOLD_MAX: Final = 100
"""Ranges that are kept until the next message."""


class PassedOver:
    """What one consumer was not told of yet."""

    def __init__(self) -> None:
        self._ranges: list[DamagedRange] = []

    def add(self, damaged: Sequence[DamagedRange]) -> None:
        self._ranges = [*self._ranges, *damaged][:TOLD_MAX]

    def before(self, received: Received) -> str:
        """What the header of a message says, once; empty where there is nothing to tell."""
        if not self._ranges:
            return ""
        lane, offset = received.lane, received.offset
        told = [gap for gap in self._ranges if gap.lane != lane or gap.start < offset]
        self._ranges = [gap for gap in self._ranges if gap not in told]
        return ",".join([f"{gap.lane}:{gap.start}-{gap.end - 1}" for gap in told])
