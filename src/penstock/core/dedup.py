"""The dedup ids of one lane: the offset first published under each, until its window ends.

Ids outlive acks and retention. The newest are in memory; a Bloom filter over the older ones (`seen.py`) recognizes
nearly every new id. For the rest the node asks the store first and passes what it found to `find`. Nothing is
forgotten while such a question is open, so an id is always in memory, in the store's answer, or new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice, repeat, takewhile
from typing import Final

from penstock.core.seen import Seen
from penstock.model import INTEGER_MAX
from penstock.model.rows import DedupRow
from penstock.model.work import Steps

IDS_IN_MEMORY_MAX: Final = 100_000
FORGET_AT_ONCE: Final = 2_000
"""Ids that are forgotten in one step: a few milliseconds."""
FORGET_SHARE: Final = 128
"""A surplus of less than this part of the limit is left: to find the first key of a dict whose first were deleted takes
long, and is done once for many."""
PUBLISH_KEY_BYTES_MAX: Final = 64
"""A longer publish id is hashed."""


def dedup_key(partition: str | None, id: str) -> bytes:
    """The key of a message's dedup id within its partition; the length prefix keeps the two apart."""
    scope = (partition or "").encode()
    return blake2b(b"%d:%b%b" % (len(scope), scope, id.encode()), digest_size=16).digest()


def dedup_keys(partitions: Sequence[str | None] | None, ids: Sequence[str | None]) -> list[bytes | None]:
    """The keys of many messages' ids; None for those without an id."""
    scopes: Iterable[str | None] = repeat(None) if partitions is None else partitions
    return [None if id is None else dedup_key(scope, id) for scope, id in zip(scopes, ids, strict=False)]


def publish_key(id: str) -> bytes:
    """The key of a whole publish's id; the prefix, which is no length, keeps it apart from any message's.

    Short ids are kept as they are: the ids of one client are consecutive, and so are their rows in the store, which
    then writes one page for many of them.
    """
    key = b"publish:%b" % id.encode()
    return key if 16 < len(key) <= PUBLISH_KEY_BYTES_MAX else blake2b(key, digest_size=16).digest()


class Dedup:
    """Dedup rows by key, oldest first."""

    __slots__ = ("_older", "by_key", "complete", "questions", "uncommitted", "unsealed")

    def __init__(self, rows: list[DedupRow], complete: bool) -> None:
        self.by_key: dict[bytes, DedupRow] = {row.key: row for row in rows}
        self.complete = complete
        """Whether every id whose window is open is in memory."""
        # Ids that were not loaded expire before any that was.
        unknown_until_ms = min((row.expires_ms for row in rows), default=INTEGER_MAX)
        self._older = Seen(0 if complete else unknown_until_ms)
        self.questions = 0
        """Look-ups in the store under way: until they are answered, no id is forgotten."""
        self.uncommitted = 0
        self.unsealed: list[DedupRow] = []

    def unsure_of(self, keys: Iterable[bytes], now_ms: int) -> list[bytes]:
        """The keys that must be looked up in the store."""
        if self.complete:
            return []
        return [key for key in keys if key not in self.by_key and self._older.may_hold(key, now_ms)]

    def find(self, key: bytes, now_ms: int, stored: dict[bytes, DedupRow] | None) -> int | None:
        """The offset first published under the key, if its window is still open."""
        row = self.by_key.get(key)
        if row is None and stored is not None:
            row = stored.get(key)
        return row.offset if row is not None and row.expires_ms > now_ms else None

    def add(self, row: DedupRow) -> None:
        """Remember a key, to be stored with the next commit."""
        self.by_key.pop(row.key, None)
        self.by_key[row.key] = row
        self.unsealed.append(row)
        self.uncommitted += 1

    def are_new(self, keys: Sequence[bytes | None], stored: dict[bytes, DedupRow] | None) -> bool:
        """Whether these are keys of which none is known, and none comes twice: at the speed of C."""
        if None in keys or not self.by_key.keys().isdisjoint(keys):
            return False
        return (not stored or stored.keys().isdisjoint(keys)) and len(set(keys)) == len(keys)

    def add_new(self, keys: Sequence[bytes | None], offset: int, expires_ms: int) -> None:
        """Remember keys that are new, of messages from an offset on."""
        rows = [DedupRow(key, place, expires_ms) for place, key in enumerate(keys, offset) if key is not None]
        self.by_key.update([(row.key, row) for row in rows])
        self.unsealed += rows
        self.uncommitted += len(rows)

    def seal(self) -> list[DedupRow]:
        """The rows added since the last seal."""
        rows, self.unsealed = self.unsealed, []
        return rows

    def committed(self, count: int) -> None:
        """The `count` oldest uncommitted ids are in the store now; forget the oldest ids beyond the limit.

        After a commit of many, only some: the next ones, or `forgetting`, go on.
        """
        self.uncommitted -= count
        assert self.uncommitted >= 0, f"{count} ids were committed, {self.uncommitted + count} waited for it"
        if self.surplus > IDS_IN_MEMORY_MAX // FORGET_SHARE:
            self._forget(FORGET_AT_ONCE)

    @property
    def surplus(self) -> int:
        """How many ids are in memory that the store has, beyond the limit."""
        return len(self.by_key) - max(IDS_IN_MEMORY_MAX, self.uncommitted)

    @property
    def is_overfull(self) -> bool:
        """Whether so many are to be forgotten that no more should come before."""
        return self.surplus > IDS_IN_MEMORY_MAX

    def forgetting(self) -> Steps[None]:
        """Forget the oldest ids beyond the limit, with a stop after each step."""
        while self.surplus > 0 and self.questions == 0:
            self._forget(FORGET_AT_ONCE)
            yield None

    def _forget(self, most: int) -> None:
        if self.questions:
            return
        for key in list(islice(self.by_key, min(self.surplus, most))):
            self._older.add(key, self.by_key.pop(key).expires_ms)
            self.complete = False

    def expire(self, now_ms: int) -> bool:
        """Forget ids whose window has ended; whether there may have been any."""
        before = len(self.by_key)
        for row in list(takewhile(lambda row: row.expires_ms <= now_ms, self.by_key.values())):
            del self.by_key[row.key]
        has_older = not self.complete
        self._older.expire(now_ms)
        self.complete = self._older.is_empty(now_ms)
        return len(self.by_key) != before or has_older

    def check(self) -> None:
        """Assert that ids are filed under their key, and that what is unsealed is counted as uncommitted."""
        assert all(row.key == key for key, row in self.by_key.items()), "an id is filed under another key"
        assert len(self.unsealed) <= self.uncommitted, f"{len(self.unsealed)} unsealed, {self.uncommitted} uncommitted"
