"""The dedup ids of one lane: which message of a partition was published under an id, and until when that counts.

Ids outlive acks and retention. The newest are in memory; of older ones enough is remembered to know nearly every id
that was never there (`seen.py`). For the others the node asks the store first and hands what it found to `find`.
Nothing is forgotten while such a question is open, so an id is always in memory, in the answer, or new.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from penstock.core.seen import Seen
from penstock.model import INTEGER_MAX
from penstock.model.rows import DedupRow

IDS_IN_MEMORY_MAX: Final = 100_000
PUBLISH_KEY_BYTES_MAX: Final = 64


def dedup_key(partition: str | None, id: str) -> bytes:
    """A fixed-size name for an id inside its partition; the length prefix keeps the two apart."""
    scope = (partition or "").encode()
    return blake2b(b"%d:%b%b" % (len(scope), scope, id.encode()), digest_size=16).digest()


def publish_key(id: str) -> bytes:
    """The same for the id of a whole publish; the prefix, which is no length, keeps it from any message's.

    Short ids are kept as they are: those of one client follow each other, and so do their rows in the store, which
    writes a page for many of them instead of one for each.
    """
    key = b"publish:%b" % id.encode()
    return key if 16 < len(key) <= PUBLISH_KEY_BYTES_MAX else blake2b(key, digest_size=16).digest()


class Dedup:
    """Ids by key, oldest first."""

    __slots__ = ("_older", "by_key", "complete", "questions", "uncommitted", "unsealed")

    def __init__(self, rows: list[DedupRow], complete: bool) -> None:
        self.by_key: dict[bytes, DedupRow] = {row.key: row for row in rows}
        self.complete = complete
        """Whether every id that counts is in memory."""
        # Those that were not loaded expire before any that was.
        unknown_until_ms = min((row.expires_ms for row in rows), default=INTEGER_MAX)
        self._older = Seen(0 if complete else unknown_until_ms)
        self.questions = 0
        self.uncommitted = 0
        self.unsealed: list[DedupRow] = []

    def unsure_of(self, keys: Iterable[bytes], now_ms: int) -> list[bytes]:
        """The keys of which only the store can say whether they are known."""
        if self.complete:
            return []
        return [key for key in keys if key not in self.by_key and self._older.may_hold(key, now_ms)]

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
        assert self.uncommitted >= 0, f"{count} ids were committed, {self.uncommitted + count} waited for it"
        if self.questions == 0:
            while len(self.by_key) > IDS_IN_MEMORY_MAX and len(self.by_key) > self.uncommitted:
                key = next(iter(self.by_key))
                self._older.add(key, self.by_key.pop(key).expires_ms)
                self.complete = False

    def expire(self, now_ms: int) -> bool:
        """Forget ids that no longer count; whether there were any."""
        before = len(self.by_key)
        while self.by_key:
            key, row = next(iter(self.by_key.items()))
            if row.expires_ms > now_ms:
                break
            del self.by_key[key]
        has_older = not self.complete
        self._older.expire(now_ms)
        self.complete = self._older.is_empty(now_ms)
        return len(self.by_key) != before or has_older

    def check(self) -> None:
        """Assert that no id that waits for its commit was forgotten."""
        assert all(row.key == key for key, row in self.by_key.items()), "an id is filed under another key"
        assert len(self.unsealed) <= self.uncommitted, f"{len(self.unsealed)} unsealed, {self.uncommitted} uncommitted"
        forgotten = [row.key for row in self.unsealed if row.key not in self.by_key]
        assert not forgotten, f"ids {forgotten} are not stored yet, and not in memory"
