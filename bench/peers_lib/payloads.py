"""Messages with ids in them, and the check that every one came once. Knows no peer.

A payload starts with an id and the time of publishing, then has filler: random bytes that do not compress, or JSON
text that does. In a payload of text the id and the time are written in hexadecimal, so that all of it is text.
"""

from __future__ import annotations

import random
import struct
import time
from array import array
from itertools import chain
from typing import Final

JSON_FILLER: Final = (
    b'{"order":"A-1041","customer":"c-88213","status":"paid","currency":"EUR","amount":129.90,"lines":3,'
    b'"note":"leave at the door","source":"web","region":"eu-central","version":7,"flags":[]}'
)
FILLERS: Final = 256
_pack: Final = struct.Struct("<QQ").pack


class Source:
    """Makes payloads with the ids 0, 1, 2…"""

    def __init__(self, kind: str, length: int) -> None:
        self._is_text = kind == "json"
        length -= 32 if self._is_text else 16
        if self._is_text:
            self._fillers = [(JSON_FILLER * (length // len(JSON_FILLER) + 1))[:length]]
        else:
            chance = random.Random(1)
            self._fillers = [chance.randbytes(length) for _ in range(FILLERS)]
        self.next_id = 0

    def payloads(self, count: int, stamp_ns: int | None = None) -> list[bytes]:
        """With the time given, or now."""
        first = self.next_id
        self.next_id += count
        stamp = time.monotonic_ns() if stamp_ns is None else stamp_ns
        fillers, many = self._fillers, len(self._fillers)
        ids = range(first, first + count)
        if self._is_text:
            return [b"%016x%016x%b" % (id, stamp, fillers[0]) for id in ids]
        return [_pack(id, stamp) + fillers[id % many] for id in ids]


class Checker:
    """Collects the ids of messages as they are acknowledged, and their times in the queue."""

    def __init__(self, kind: str, *, time_all: bool = False) -> None:
        self._is_text = kind == "json"
        self._time_all = time_all
        self.ids = array("Q")
        self.times_ms: list[float] = []

    def add(self, payloads: list[bytes]) -> None:
        """The time of the first alone is kept, unless all were asked for: those of a batch were published together."""
        now = time.monotonic_ns()
        if self._is_text:
            words = array("Q", chain.from_iterable((int(p[:16], 16), int(p[16:32], 16)) for p in payloads))
        else:
            words = array("Q")
            words.frombytes(b"".join([payload[:16] for payload in payloads]))
        self.ids.extend(words[0::2])
        stamps = words[1::2] if self._time_all else words[1:2]
        self.times_ms += [(now - stamp) / 1e6 for stamp in stamps]

    def verdict(self, expected: int) -> tuple[int, int]:
        """(lost, duplicated) against the ids 0 to expected. An id that nobody sent counts as both."""
        seen = set(self.ids)
        known = seen & set(range(expected))
        return expected - len(known), len(self.ids) - len(known)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
