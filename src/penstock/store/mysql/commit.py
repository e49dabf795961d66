# ruff: noqa: S608 - the statements are put together from parts of this file
"""A commit as the statements that apply it, in MySQL's and MariaDB's dialect.

They go to the server in one packet where they fit into one, from START TRANSACTION to COMMIT: one round trip, and no
moment in which a transaction waits for a node that is paused. The server stops at the first statement that fails, so a
fence is a statement that fails. Their order is the same in every commit, lanes of one writer are never another's, and
rows are found by whole keys of an index that is named: commits of several writers never wait for each other in a
circle. It may not know connections. Next stop: `engine.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from penstock.model.rows import BatchRow, Commit, slot_of
from penstock.store.checks import changes_enqueued
from penstock.store.mysql.coordination import NEW_VERSION, catalog_deletions
from penstock.store.mysql.enqueued import settled
from penstock.store.mysql.literals import filled, literals, numbers
from penstock.store.mysql.schema import ALL, SLICE, SMALL_ROWS

BEGIN: Final = b"START TRANSACTION"
END: Final = b"COMMIT"
NOTE_LEFTOVERS: Final = b"INSERT INTO leftovers"
"""How statements begin that note what has to be swept: if one changed a row, there is something."""
BODY_PART_BYTES: Final = 4 << 20
"""A longer body lies in several rows: neither a statement nor an answer may be longer than max_allowed_packet."""
STATEMENT_BYTES: Final = 1 << 20
"""A statement takes more rows until it is so long."""

Row = tuple[Any, ...]

# Not a number any more where the condition holds: the statement fails with OUT_OF_RANGE, and what follows is not done.
_FAILS_IF: Final = "SELECT 18446744073709551615 + (%s)"
_WRITER: Final = "SELECT 18446744073709551615 + (count(*) <> 1) FROM writers WHERE writer = %s AND generation = %s "
_SHARED: Final = "LOCK IN SHARE MODE"
_ALONE: Final = "FOR UPDATE"


def fence(commit: Commit, writer: str, generation: int) -> Iterator[bytes]:
    """Who commits holds the rows of his slots together with others; who takes a slot over holds them alone.

    He waits for commits that have begun, and later ones see the epoch that he raised. The writer's own row does the
    same for a commit whose answer was lost and that was given up.
    """
    yield filled(_WRITER + (_ALONE if is_empty(commit) else _SHARED), writer.encode(), generation)
    if commit.epochs:
        yield (
            filled(_FAILS_IF % "count(*) <> %s", len(commit.epochs))
            + b" FROM " + numbers(sorted(commit.epochs.items()), 2)
            + b" STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a AND t.epoch = k.b LOCK IN SHARE MODE"
        )  # fmt: skip
    if commit.catalog or commit.catalog_deleted or commit.traces_expired_ms is not None:
        yield b"SELECT id FROM shared FORCE INDEX (PRIMARY) WHERE id = 1 FOR UPDATE"
    # Rows that would be taken for what is left of older ones; and nobody sweeps these lanes meanwhile.
    lowest = [[lane.lane, min((row.base for row in lane.batches), default=ALL - 1)] for lane in commit.lanes
              if lane.lane not in commit.lanes_deleted]  # fmt: skip
    touched = sorted(lowest + [[lane, ALL] for lane in commit.lanes_deleted])
    if touched:
        yield (
            (_FAILS_IF % "coalesce(sum(k.b < t.below), 0) <> 0").encode() + b" FROM " + numbers(touched, 2)
            + b" STRAIGHT_JOIN leftovers t FORCE INDEX (PRIMARY) ON t.lane = k.a FOR UPDATE"
        )  # fmt: skip


def changes(commit: Commit, writer: str) -> Iterator[bytes]:
    """What the commit changes, deletes before puts. One without rows writes something all the same."""
    if is_empty(commit):
        yield filled("UPDATE writers SET seen = utc_timestamp(6) WHERE writer = %s", writer.encode())
        return
    lanes = commit.lanes
    yield from _gone_lanes(commit)
    for table in ("`groups`", "leases", "waiting", "dead"):
        groups = [(lane.lane, group) for lane in lanes for group in lane.groups_deleted]
        yield from _deleted(table, ("lane", "group_id"), groups)
    yield from _deleted("leases", ("lane", "group_id", "lease_id"), _keys(commit, "leases_deleted"))
    yield from _deleted("waiting", ("lane", "group_id", "chunk"), _keys(commit, "waiting_deleted"))
    yield from _deleted("dead", ("lane", "group_id", "start"), _keys(commit, "dead_deleted"))
    expired = [(lane.lane, lane.dedup_expired_ms) for lane in lanes if lane.dedup_expired_ms is not None]
    if expired:
        ranges = b" OR ".join(b"(lane = %d AND expires_ms <= %d)" % pair for pair in sorted(expired))
        yield b"DELETE t FROM dedup AS t FORCE INDEX (dedup_by_expiry) WHERE " + ranges
    yield from _put(
        "lanes (lane, slot, `first`, `end`, bytes_end)",
        "`first`, `end`, bytes_end",
        1,
        [(lane.lane, slot_of(lane.lane), lane.first, lane.end, lane.bytes_end) for lane in lanes],
    )
    yield from _put(
        "`groups` (lane, group_id, `next`, committed)",
        "`next`, committed",
        2,
        [(lane.lane, row.group, row.next, row.committed) for lane in lanes for row in lane.groups],
    )
    yield from _put(
        "leases (lane, group_id, lease_id, deadline_ms, consumer, entries, session)",
        "deadline_ms, consumer, entries, session",
        3,
        [
            (lane.lane, row.group, row.lease, row.deadline_ms, row.consumer, row.entries, row.session)
            for lane in lanes
            for row in lane.leases
        ],
    )
    yield from _put(
        "waiting (lane, group_id, chunk, entries)",
        "entries",
        3,
        [(lane.lane, row.group, row.chunk, row.entries) for lane in lanes for row in lane.waiting],
    )
    yield from _put(
        "dead (lane, group_id, start, `end`, attempts, reason, error, consumer, dead_ms)",
        "`end`, attempts, reason, error, consumer, dead_ms",
        3,
        [
            (lane.lane, row.group, row.start, row.end, row.attempts, row.reason, row.error, row.consumer, row.dead_ms)
            for lane in lanes
            for row in lane.dead
        ],
    )
    yield from _put(
        "dedup (lane, `key`, `offset`, expires_ms)",
        "`offset`, expires_ms",
        2,
        [(lane.lane, row.key, row.offset, row.expires_ms) for lane in lanes for row in lane.dedup],
    )
    yield from _put(
        "batches (lane, base, part, parts, `count`, published_ms, bytes_end, size, meta, body)",
        "parts, `count`, published_ms, bytes_end, size, meta, body",
        3,
        (part for lane in lanes for row in lane.batches for part in batch_parts(lane.lane, row)),
    )
    yield from _trimmed([(lane.lane, lane.trim_to) for lane in lanes if lane.trim_to is not None])
    yield from _of_no_lane(commit)  # fmt: skip


def is_empty(commit: Commit) -> bool:
    return not (
        commit.lanes or commit.lanes_deleted or commit.catalog or commit.catalog_deleted or commit.outbox
        or commit.outbox_deleted or commit.traces or commit.traces_expired_ms is not None or changes_enqueued(commit)
    )  # fmt: skip


def packets(statements: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The statements, joined to packets that the server takes."""
    packet: list[bytes] = []
    size = 0
    for statement in statements:
        if packet and size + len(statement) + 1 > most:
            yield b";".join(packet)
            packet, size = [], 0
        packet.append(statement)
        size += len(statement) + 1
    if packet:
        yield b";".join(packet)


def batch_parts(lane: int, row: BatchRow) -> Iterator[Row]:
    """The rows of one batch. A body beside a long meta has rows of its own: no row is longer than a packet."""
    beside = BODY_PART_BYTES if len(row.meta) <= BODY_PART_BYTES // 4 else 0
    later = range(beside, len(row.body), BODY_PART_BYTES)
    bodies = [row.body[:beside], *(row.body[start : start + BODY_PART_BYTES] for start in later)]
    for part, body in enumerate(bodies):
        meta = b"" if part else row.meta
        yield lane, row.base, part, len(bodies), row.count, row.published_ms, row.bytes_end, row.size, meta, body


# Rows that go --------------------------------------------------------------------------------------------


def _keys(commit: Commit, name: str) -> list[Row]:
    return [(lane.lane, *key) for lane in commit.lanes for key in getattr(lane, name)]


def _deleted(table: str, columns: Sequence[str], rows: Sequence[Row], index: str = "PRIMARY") -> Iterator[bytes]:
    """The rows of these keys, or of what keys begin with."""
    if rows:
        matched = " AND ".join(f"t.{column} = k.{'abc'[place]}" for place, column in enumerate(columns))
        yield (
            b"DELETE t FROM " + numbers(sorted(set(rows)), len(columns))
            + f" STRAIGHT_JOIN {table} AS t FORCE INDEX ({index}) ON {matched}".encode()
        )  # fmt: skip


def _gone_lanes(commit: Commit) -> Iterator[bytes]:
    """Lanes that go leave their many rows to be swept, unless they start anew in the same commit."""
    changed = {lane.lane for lane in commit.lanes}
    gone = [(lane,) for lane in commit.lanes_deleted]
    for table in ("lanes", "`groups`", "leases", "waiting"):
        yield from _deleted(table, ("lane",), gone)
    yield from _deleted("outbox", ("lane",), gone, "outbox_by_lane")
    anew = [row for row in gone if row[0] in changed]
    for table in ("batches", "dead", "dedup", "leftovers"):
        yield from _deleted(table, ("lane",), anew)
    yield from _put("leftovers (lane, above, below)", "below", 1, [
        (lane, 0, ALL) for (lane,) in gone if lane not in changed
    ])  # fmt: skip


def _trimmed(trims: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Batches that end at or below a mark: some at once, and a note of the others, which nobody sees any more."""
    if not trims:
        return
    trims = sorted(trims)
    yield b"SET " + b", ".join(
        filled(f"@end_{place} = coalesce(({_BATCH_AFTER}), %s)", lane, below, below)
        for place, (lane, below) in enumerate(trims)
    )
    yield b"DELETE t FROM batches AS t FORCE INDEX (PRIMARY) WHERE " + b" OR ".join(
        filled(f"(lane = %s AND base < @end_{place} AND base + `count` <= %s)", lane, below)
        for place, (lane, below) in enumerate(trims)
    )
    yield (
        NOTE_LEFTOVERS
        + b" SELECT k.a, 0, k.b FROM " + numbers(trims, 2)
        + b" WHERE (SELECT x.base + x.`count` FROM batches x WHERE x.lane = k.a ORDER BY x.base LIMIT 1) <= k.b"
          b" ON DUPLICATE KEY UPDATE leftovers.below = greatest(leftovers.below, k.b)"
    )  # fmt: skip


_BATCH_AFTER: Final = (
    f"SELECT base FROM batches WHERE lane = %s AND base < %s AND part = 0 ORDER BY base LIMIT 1 OFFSET {SLICE}"
)


def sweep_slice(lane: int, above: int, below: int) -> Iterator[bytes]:
    """Statements that remove some of what is left of a lane; each says how many rows it removed, but for the first."""
    after = (
        "SELECT base FROM batches WHERE lane = %s AND base >= %s AND base < %s AND part = 0 ORDER BY base LIMIT 1 "
        f"OFFSET {SLICE}"
    )
    yield filled(f"SET @end_0 = coalesce(({after}), %s)", lane, above, below, below)
    yield filled(
        "DELETE t FROM batches AS t FORCE INDEX (PRIMARY) "
        "WHERE lane = %s AND base >= %s AND base < @end_0 AND base + `count` <= %s",
        lane, above, below,
    )  # fmt: skip
    if below == ALL:
        for table, key in (("dead", ("lane", "group_id", "start")), ("dedup", ("lane", "`key`"))):
            some = f"SELECT {', '.join(key)} FROM {table} WHERE lane = {lane} LIMIT {SLICE * SMALL_ROWS}"
            matched = " AND ".join(f"t.{column} = k.{column}" for column in key)
            yield f"DELETE t FROM ({some}) AS k STRAIGHT_JOIN {table} AS t FORCE INDEX (PRIMARY) ON {matched}".encode()


# Rows that come ------------------------------------------------------------------------------------------


def _put(into: str, replaced: str, key: int, rows: Iterable[Row]) -> Iterator[bytes]:
    """Put rows, in the order of their keys, in as many statements as their bytes need."""
    head = b"INSERT INTO " + into.encode() + b" VALUES "
    columns = [column.strip() for column in replaced.split(",")]
    tail = b" ON DUPLICATE KEY UPDATE " + ", ".join(f"{column} = VALUES({column})" for column in columns).encode()
    values: list[bytes] = []
    size = 0
    latest = {row[:key]: row for row in rows}
    for place in sorted(latest):
        value = b"(" + literals(latest[place]) + b")"
        if values and size + len(value) > STATEMENT_BYTES:
            yield head + b",".join(values) + tail
            values, size = [], 0
        values.append(value)
        size += len(value)
    if values:
        yield head + b",".join(values) + tail


def _of_no_lane(commit: Commit) -> Iterator[bytes]:
    yield from catalog_deletions(commit)
    yield from _put(
        "catalog (kind, id, parent, namespace, name, document, version)",
        "parent, namespace, name, document, version", 2,
        [(row.kind.encode(), row.id, row.parent, row.namespace, row.name, row.document, NEW_VERSION)
         for row in commit.catalog],
    )  # fmt: skip
    yield from _deleted("outbox", ("id",), [(id,) for id in commit.outbox_deleted])
    yield from _put("outbox (id, lane, `offset`, document, slot)", "lane, `offset`, document, slot", 1, [
        (row.id, row.lane, row.offset, row.document, row.slot) for row in commit.outbox
    ])  # fmt: skip
    if commit.traces_expired_ms is not None:
        yield filled("DELETE t FROM traces AS t FORCE INDEX (traces_by_time) WHERE at_ms <= %s",
                     commit.traces_expired_ms)  # fmt: skip
    yield from _put(
        "traces (namespace, trace_id, at_ms, id, kind, queue, queue_id, lane, `offset`, name, detail, consumer)",
        "kind, queue, queue_id, lane, `offset`, name, detail, consumer", 4,
        [(row.namespace.encode(), row.trace_id.encode(), row.at_ms, row.id, row.kind, row.queue, row.queue_id,
          row.lane, row.offset, row.name, row.detail, row.consumer) for row in commit.traces],
    )  # fmt: skip
    yield from settled(commit)
