"""What a verification found wrong, in the store's own words: which check, what, and where.

Next stop: `penstock/maintenance/verify.py`, which says whose messages they are.
"""

from __future__ import annotations

import msgspec


class Damage(msgspec.Struct, frozen=True):
    """One thing that is not as it must be."""

    check: str
    """`file`, `log`, `index`, `checksum`, `offsets`, `rows` or `catalog`."""
    problem: str
    lane: int | None = None
    start: int | None = None
    end: int | None = None
    """The messages that it concerns, [start, end)."""
    file: str | None = None
