"""Rows to write, and what a store must say afterwards: shared by the tests of this folder."""

from __future__ import annotations

from typing import Any

from penstock.model.rows import (
    SLOTS,
    BatchRow,
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneChange,
    LaneImage,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)
from penstock.store.contract import Store

LANE = 5
EVERYTHING = 1 << 40
"""A limit that no test reaches."""


async def own_all(store: Store, owner: str = "me") -> dict[int, int]:
    return await store.acquire(range(SLOTS), owner)


def batches(
    *counts: int, base: int = 0, meta: bytes = b"m", body: bytes = b"body", start_ms: int = 100
) -> list[BatchRow]:
    """Consecutive batches of these counts, published 10 ms apart."""
    rows: list[BatchRow] = []
    for index, count in enumerate(counts):
        bytes_end = (index + 1) * (len(meta) + len(body))
        rows.append(BatchRow(base, count, start_ms + 10 * index, bytes_end, meta, body))
        base += count
    return rows


def change(lane: int = LANE, **fields: Any) -> LaneChange:
    rows: list[BatchRow] = fields.get("batches", [])
    defaults: dict[str, Any] = {
        "first": rows[0].base if rows else 0,
        "end": rows[-1].end if rows else 0,
        "bytes_end": rows[-1].bytes_end if rows else 0,
    }
    return LaneChange(lane=lane, **{**defaults, **fields})


def commit(epochs: dict[int, int], *changes: LaneChange, **fields: Any) -> Commit:
    """A commit that names the epochs of just the slots that it touches."""
    touched = [*(changed.lane for changed in changes), *fields.get("lanes_deleted", [])]
    slots = {slot_of(lane) for lane in touched}
    return Commit(epochs={slot: epochs[slot] for slot in slots}, lanes=list(changes), **fields)


def lanes_together(store: Store, count: int) -> list[int]:
    """`LANE` and others that one commit may hold: of several slots where the engine can do that."""
    step = 1 if store.capabilities.spans_slots else SLOTS
    return [LANE + step * index for index in range(count)]


def full_change(lane: int = LANE) -> LaneChange:
    """A change with a row in every table of a lane, for two groups."""
    return change(
        lane,
        batches=batches(3, 4),
        groups=[GroupRow(1, 7, 0), GroupRow(2, 3, 2)],
        leases=[LeaseRow(1, 10, 5000, "worker", b"\x01", "session-1"), LeaseRow(2, 10, 6000, "other", b"\x02")],
        waiting=[WaitingRow(1, 0, b"w1"), WaitingRow(2, 0, b"w2")],
        dead=[DeadRow(1, 2, 3, 4, "attempts", "boom", "worker", 99), DeadRow(2, 2, 3, 1, "ttl", "", "", 98)],
        dedup=[DedupRow(b"a", 0, 1000), DedupRow(b"b", 1, 2000)],
    )


def image_of(full: LaneChange) -> LaneImage:
    """What `load` must return after that change alone was applied to a new lane."""
    return LaneImage(
        full.lane,
        full.first,
        full.end,
        full.bytes_end,
        full.groups,
        full.leases,
        full.waiting,
        full.dead,
        full.dedup,
        published_ms=full.batches[-1].published_ms if full.batches else 0,
    )


def in_order(image: LaneImage) -> LaneImage:
    """The image with its rows in one order: the contract promises none but that of dedup ids."""
    return LaneImage(
        image.lane,
        image.first,
        image.end,
        image.bytes_end,
        sorted(image.groups, key=lambda row: row.group),
        sorted(image.leases, key=lambda row: (row.group, row.lease)),
        sorted(image.waiting, key=lambda row: (row.group, row.chunk)),
        sorted(image.dead, key=lambda row: (row.group, row.start)),
        sorted(image.dedup, key=lambda row: (row.expires_ms, row.key)),
        image.dedup_complete,
        image.published_ms,
    )


async def load_one(store: Store, lane: int = LANE, dedup_most: int = 1000) -> LaneImage:
    (image,) = await store.load([lane], dedup_most)
    return in_order(image)


async def all_batches(store: Store, lane: int = LANE) -> list[BatchRow]:
    return await store.read(lane, 0, 1 << 62, EVERYTHING)


CATALOG = [CatalogRow("queue", 1, 0, "default", "orders", b"{}"), CatalogRow("group", 2, 1, "default", "mail", b"")]
TRACES = [
    TraceRow("default", "t", 100, 1, "published", "orders", 7, 0, 3),
    TraceRow("default", "t", 100, 2, "event", "orders", 7, 0, 3, "charged", "12 EUR", "worker"),
    TraceRow("default", "t", 105, 3, "event", name="charged"),
]
"""By rising time; two of one time."""
OUTBOX = [OutboxRow(id, LANE, offset, b"document", slot_of(LANE)) for id, offset in ((1, 0), (2, 1), (5, 2))]
