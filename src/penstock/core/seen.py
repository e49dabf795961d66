"""A Bloom filter in generations over keys that are no longer in memory.

What it denies was never added; what it affirms must be looked up in the store. It takes two bytes a key, so that
millions fit. A generation is dropped whole when the last of its keys has expired. Knows nothing of messages or lanes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

FIRST_KEYS: Final = 1 << 18
"""Keys of the first generations; later ones are larger, so that there are never many to probe."""
BITS_A_KEY: Final = 16
PROBES: Final = 7
BYTES_MAX: Final = 64 * 1024 * 1024

_LOW: Final = (1 << 64) - 1


class _Generation:
    __slots__ = ("bits", "expires_ms", "mask", "room")

    def __init__(self, keys: int) -> None:
        self.bits = bytearray(keys * BITS_A_KEY // 8)
        self.mask = keys * BITS_A_KEY - 1
        self.room = keys
        self.expires_ms = 0


class Seen:
    """Keys added, by generation, oldest first."""

    __slots__ = ("_generations", "unknown_until_ms")

    def __init__(self, unknown_until_ms: int = 0) -> None:
        self._generations: list[_Generation] = []
        self.unknown_until_ms = unknown_until_ms
        """Until then the store may hold keys that were never added here."""

    def add(self, key: bytes, expires_ms: int) -> None:
        """Remember a key until it expires."""
        generations = self._generations
        if not generations or not generations[-1].room:
            generations.append(_Generation(FIRST_KEYS << len(generations) // 4))
            self._shorten()
        newest = generations[-1]
        newest.room -= 1
        newest.expires_ms = max(newest.expires_ms, expires_ms)
        at, step = _hashes(key)
        for _ in range(PROBES):
            place = at & newest.mask
            newest.bits[place >> 3] |= 1 << (place & 7)
            at += step

    def _shorten(self) -> None:
        """Drop the oldest generations past BYTES_MAX; until their keys have expired, every key may be in the store."""
        while sum(len(one.bits) for one in self._generations) > BYTES_MAX:
            self.unknown_until_ms = max(self.unknown_until_ms, self._generations.pop(0).expires_ms)

    def may_hold(self, key: bytes, now_ms: int) -> bool:
        """Whether the key may be in the store; False is certain."""
        if now_ms < self.unknown_until_ms:
            return True
        start, step = _hashes(key)
        return any(_holds(generation, start, step) for generation in self._generations)

    def expire(self, now_ms: int) -> None:
        """Drop the generations whose keys have all expired."""
        self._generations = [generation for generation in self._generations if generation.expires_ms > now_ms]

    def is_empty(self, now_ms: int) -> bool:
        """Whether the store holds no key that is not in memory."""
        return not self._generations and now_ms >= self.unknown_until_ms


def _hashes(key: bytes) -> tuple[int, int]:
    value = int.from_bytes(key if len(key) == 16 else blake2b(key, digest_size=16).digest(), "little")
    return value & _LOW, value >> 64 | 1


def _holds(generation: _Generation, at: int, step: int) -> bool:
    bits, mask = generation.bits, generation.mask
    for _ in range(PROBES):
        place = at & mask
        if not bits[place >> 3] >> (place & 7) & 1:
            return False
        at += step
    return True
