"""The dedup ids of one lane: which message of a partition was published under an id, and until when that counts.

Ids outlive acks and retention. The newest are in memory; where there are more, the node asks the store for the
ids of a publish first and hands what it found to `find`. Nothing is forgotten while such a question is open, so
an id is always in memory, in the answer, or new.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from penstock.rows import DedupRow

IDS_IN_MEMORY_MAX: Final = 100_000


def dedup_key(partition: str | None, id: str) -> bytes:
    """A fixed-size name for an id inside its partition; the length prefix keeps the two apart."""
    scope = (partition or "").encode()
    return blake2b(b"%d:%b%b" % (len(scope), scope, id.encode()), digest_size=16).digest()


def publish_key(id: str) -> bytes:
    """The same for the id of a whole publish; the prefix, which is no length, keeps it from any message's."""
    return blake2b(b"publish:%b" % id.encode(), digest_size=16).digest()


class Dedup:
    """Ids by key, oldest first."""

    __slots__ = ("by_key", "complete", "questions", "uncommitted", "unsealed")

    def __init__(self, rows: list[DedupRow], complete: bool) -> None:
        self.by_key: dict[bytes, DedupRow] = {row.key: row for row in rows}
        self.complete = complete
        self.questions = 0
        self.uncommitted = 0
        self.unsealed: list[DedupRow] = []

    def find(self, key: bytes, now_ms: int, stored: dict[bytes, DedupRow] | None) -> int | None:
        """The offset first published under the key, if that still counts."""
        row = self.by_key.get(key)
        if row is None and stored is not None:
            row = stored.get(key)
        return row.offset if row is not None and row.expires_ms > now_ms else None

    def add(self, row: DedupRow) -> None:
        self.by_key.pop(row.key, None)
        self.by_key[row.key] = row
        self.unsealed.append(row)
        self.uncommitted += 1

    def seal(self) -> list[DedupRow]:
        rows, self.unsealed = self.unsealed, []
        return rows

    def committed(self, count: int) -> None:
        """So many of the oldest uncommitted ids are in the store now; forget the oldest beyond the limit."""
        self.uncommitted -= count
        if self.questions == 0:
            while len(self.by_key) > IDS_IN_MEMORY_MAX and len(self.by_key) > self.uncommitted:
                del self.by_key[next(iter(self.by_key))]
                self.complete = False

    def expire(self, now_ms: int) -> bool:
        """Forget ids that no longer count; whether there were any."""
        before = len(self.by_key)
        while self.by_key:
            key, row = next(iter(self.by_key.items()))
            if row.expires_ms > now_ms:
                break
            del self.by_key[key]
        return len(self.by_key) != before or (not self.complete)
