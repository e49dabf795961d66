"""Members, slots, ids and the catalog of the memory engine: the part of the contract that several nodes need.

Nothing here waits, or knows the rows of lanes. Next stop: `engine.py`, which has those.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Final

from penstock.model.errors import Closed
from penstock.model.rows import CatalogChanges, CatalogRow, ClusterView, Joined, Member, NodeRow, SlotRow
from penstock.store.closing import fenced
from penstock.store.contract import FAILS_CHECKSUM

TOMBSTONES_MAX: Final = 10_000
"""Deletions that are remembered; a node that is further behind reads everything."""

_Key = tuple[str, int]


class MemoryCoordination:
    """Members, the owner and epoch of each slot, and what was declared."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._members: dict[int, tuple[Member, int, int]] = {}
        """incarnation → what it said of itself, when it joined, when it was last heard of"""
        self._last_incarnation = 0
        self._last_id = 0
        self._secret = secrets.token_hex(16)
        self._slots: dict[int, SlotRow] = {}
        self._owners: dict[int, str] = {}
        """slot → the name of its owner, or of the last one"""
        self._catalog = CatalogTable()
        self._closed = False

    async def acquire(self, slots: Sequence[int], owner: str) -> dict[int, int]:
        self._check_open()
        taken = {slot: self._epoch(slot) + 1 for slot in slots}
        now_ms, note = self._now_ms(), f"acquired by {owner}"
        for slot, epoch in taken.items():
            self._slots[slot] = SlotRow(slot, epoch, 0, 0, now_ms, note)
            self._owners[slot] = owner
        return taken

    async def join(self, member: Member) -> Joined:
        self._check_open()
        self._last_incarnation = max(self._last_incarnation, *(row.epoch for row in self._slots.values()), 0) + 1
        now_ms = self._now_ms()
        self._members[self._last_incarnation] = (member, now_ms, now_ms)
        return Joined(self._last_incarnation, self._secret)

    async def skip_incarnations(self, up_to: int) -> None:
        self._check_open()
        self._last_incarnation = max(self._last_incarnation, up_to)

    async def heartbeat(self, incarnation: int) -> ClusterView:
        self._check_open()
        now_ms = self._now_ms()
        known = self._members.get(incarnation)
        if known is not None:
            self._members[incarnation] = (known[0], known[1], now_ms)
        nodes = [
            NodeRow(number, one.name, one.url, one.version, one.lease_ms, joined_ms, now_ms - seen_ms)
            for number, (one, joined_ms, seen_ms) in sorted(self._members.items())
        ]
        slots = [self._slots[slot] for slot in sorted(self._slots)]
        return ClusterView(now_ms, known is not None, self._catalog.version, nodes, slots)

    async def take(self, slots: Sequence[int], incarnation: int) -> dict[int, int]:
        self._check_open()
        now_ms = self._now_ms()
        if incarnation not in self._members:
            return {}
        name = self._members[incarnation][0].name
        for number, (one, _, seen_ms) in list(self._members.items()):
            if number != incarnation and now_ms - seen_ms > one.lease_ms:
                self._let_go(number, f"{one.name} was not heard of for {now_ms - seen_ms} ms")
                del self._members[number]
        taken: dict[int, int] = {}
        for slot in sorted(set(slots)):
            row = self._slots.get(slot)
            if row is None or row.node == incarnation or row.node not in self._members:
                epoch = taken[slot] = max(self._epoch(slot) + 1, incarnation)
                before = "" if row is None or not row.why else f" ({row.why.partition(' (')[0]})"
                self._slots[slot] = SlotRow(slot, epoch, incarnation, 0, now_ms, f"taken by {name}{before}")
                self._owners[slot] = name
        return taken

    async def release(self, slots: Sequence[int], incarnation: int, to: int = 0) -> None:
        self._check_open()
        name = self._members[incarnation][0].name if incarnation in self._members else str(incarnation)
        for slot in slots:
            row = self._slots.get(slot)
            if row is not None and row.node == incarnation:
                self._slots[slot] = SlotRow(slot, row.epoch, 0, to, self._now_ms(), f"released by {name}")

    async def leave(self, incarnation: int) -> None:
        self._check_open()
        known = self._members.pop(incarnation, None)
        if known is not None:
            self._let_go(incarnation, f"{known[0].name} left")

    async def reserve_ids(self, count: int, above: int = 0) -> int:
        self._check_open()
        first = max(self._last_id, above) + 1
        self._last_id = first + count - 1
        return first

    async def catalog(self) -> list[CatalogRow]:
        self._check_open()
        return self._catalog.in_order()

    async def catalog_since(self, version: int) -> CatalogChanges:
        self._check_open()
        return self._catalog.since(version)

    def renewing(self, _seconds: float) -> None:
        return None

    @property
    def place(self) -> str:
        return "memory"

    def body_place(self, lane: int, base: int) -> str:  # noqa: ARG002 - all is in one place
        return self.place

    def body_problem(self, lane: int, base: int) -> str:  # noqa: ARG002 - it is always the same
        return FAILS_CHECKSUM

    def damage(self) -> list[str]:
        return []

    async def close(self) -> None:
        """Refuse every later call. The rows stay."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _check_epochs(self, epochs: dict[int, int]) -> None:
        for slot, epoch in epochs.items():
            held = self._slots[slot].epoch if slot in self._slots else None
            if held != epoch:
                owner = self._owners.get(slot, "nobody")
                raise fenced(f"slot {slot} is at epoch {held} of {owner}, not at epoch {epoch}")

    def _epoch(self, slot: int) -> int:
        return self._slots[slot].epoch if slot in self._slots else 0

    def _let_go(self, incarnation: int, why: str) -> None:
        for slot, row in list(self._slots.items()):
            if row.node == incarnation:
                self._slots[slot] = SlotRow(slot, row.epoch, 0, 0, self._now_ms(), why)


class CatalogTable:
    """The declared rows with the version at which each was put, and those that were deleted lately."""

    def __init__(self) -> None:
        self.rows: dict[_Key, CatalogRow] = {}
        self.version = 0
        self._put_at: dict[_Key, int] = {}
        self._deleted: dict[_Key, tuple[int, CatalogRow]] = {}
        self._forgotten = 0
        """Deletions up to this version are not remembered any more."""

    def apply(self, rows: Sequence[CatalogRow], deleted: Sequence[_Key]) -> None:
        if rows or deleted:
            self.version += 1
        for key in deleted:
            row = self.rows.pop(key, None)
            if row is not None:
                self._put_at.pop(key)
                self._deleted.pop(key, None)
                self._deleted[key] = (self.version, row)
        for row in rows:
            self.rows[row.kind, row.id] = row
            self._put_at[row.kind, row.id] = self.version
            self._deleted.pop((row.kind, row.id), None)
        while len(self._deleted) > TOMBSTONES_MAX:
            key = next(iter(self._deleted))
            self._forgotten = self._deleted.pop(key)[0]

    def in_order(self) -> list[CatalogRow]:
        return sorted(self.rows.values(), key=lambda row: (row.id, row.kind))

    def since(self, version: int) -> CatalogChanges:
        if version <= 0 or version < self._forgotten:
            return CatalogChanges(self.version, self.in_order(), [], True)
        rows = [row for row in self.in_order() if self._put_at[row.kind, row.id] > version]
        deleted = [row for at, row in self._deleted.values() if at > version]
        return CatalogChanges(self.version, rows, deleted, False)
