# ruff: noqa: S608 - the statements are put together from parts of this file
"""The MySQL and MariaDB engine's tables, and every statement that reads them.

The tables are those of the SQLite engine (see the list at the top of `store/sqlite/schema.py`), and besides
`writers`, which decides commits whose answer was lost, and `leftovers`: what is gone for every reader and still has
to be removed. Text that is part of a key is kept as bytes: no collation makes two names one. Only what MariaDB 10.6
and MySQL 8.0.19 both understand is used. Nothing here knows connections or commits. Next stops: `commit.py`,
`engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.store.mysql import coordination, enqueued

ALL: Final = 2**63 - 1
"""The mark of leftovers of a lane of which everything is gone."""
SLICE: Final = 1000
"""Batches that one commit, or one slice of sweeping, removes of a lane at the most."""
SMALL_ROWS: Final = 5
"""So many times as many of the rows without a body go in a slice."""

Migration = Sequence[str]

_TEXT: Final = "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_TABLE: Final = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC"

_VERSION_1: Final[Migration] = (
    f"""CREATE TABLE IF NOT EXISTS lanes (
        lane bigint PRIMARY KEY, slot integer NOT NULL, `first` bigint NOT NULL, `end` bigint NOT NULL,
        bytes_end bigint NOT NULL
    ) {_TABLE}""",
    # A body that does not fit into a packet lies in several parts. The first has what is known of the whole batch.
    f"""CREATE TABLE IF NOT EXISTS batches (
        lane bigint, base bigint, part integer, parts integer NOT NULL, `count` integer NOT NULL,
        published_ms bigint NOT NULL, bytes_end bigint NOT NULL, size bigint NOT NULL, meta longblob NOT NULL,
        body longblob NOT NULL, PRIMARY KEY (lane, base, part)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS `groups` (
        lane bigint, group_id bigint, `next` bigint NOT NULL, committed bigint NOT NULL, PRIMARY KEY (lane, group_id)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS leases (
        lane bigint, group_id bigint, lease_id bigint, deadline_ms bigint NOT NULL, consumer {_TEXT} NOT NULL,
        entries longblob NOT NULL, PRIMARY KEY (lane, group_id, lease_id)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS waiting (
        lane bigint, group_id bigint, chunk bigint, entries longblob NOT NULL, PRIMARY KEY (lane, group_id, chunk)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS dead (
        lane bigint, group_id bigint, start bigint, `end` bigint NOT NULL, attempts bigint NOT NULL,
        reason {_TEXT} NOT NULL, error {_TEXT} NOT NULL, consumer {_TEXT} NOT NULL, dead_ms bigint NOT NULL,
        PRIMARY KEY (lane, group_id, start)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS dedup (
        lane bigint, `key` varbinary(255), `offset` bigint NOT NULL, expires_ms bigint NOT NULL,
        PRIMARY KEY (lane, `key`), KEY dedup_by_expiry (lane, expires_ms)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS outbox (
        id bigint PRIMARY KEY, lane bigint NOT NULL, `offset` bigint NOT NULL, document longblob NOT NULL,
        slot integer NOT NULL, KEY outbox_by_lane (lane), KEY outbox_by_slot (slot, id)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS catalog (
        kind varbinary(255), id bigint, parent bigint NOT NULL, namespace {_TEXT} NOT NULL, name {_TEXT} NOT NULL,
        document longblob NOT NULL, version bigint NOT NULL, PRIMARY KEY (id, kind), KEY catalog_by_version (version)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS traces (
        namespace varbinary(1020), trace_id varbinary(1020), at_ms bigint, id bigint, kind {_TEXT} NOT NULL,
        queue {_TEXT}, queue_id bigint NOT NULL, lane bigint, `offset` bigint, name {_TEXT} NOT NULL,
        detail {_TEXT} NOT NULL, consumer {_TEXT} NOT NULL, PRIMARY KEY (namespace, trace_id, at_ms, id),
        KEY traces_by_time (at_ms)
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS slots (
        slot integer PRIMARY KEY, epoch bigint NOT NULL, owner {_TEXT} NOT NULL
    ) {_TABLE}""",
    f"""CREATE TABLE IF NOT EXISTS writers (
        writer varbinary(64) PRIMARY KEY, generation bigint NOT NULL, seen datetime(6) NOT NULL
    ) {_TABLE}""",
    # Batches that end at or below the mark are gone; those of a base below `above` were removed already.
    f"""CREATE TABLE IF NOT EXISTS leftovers (
        lane bigint PRIMARY KEY, above bigint NOT NULL, below bigint NOT NULL
    ) {_TABLE}""",
    # Locked by who changes rows that belong to no lane: 1, and the second by who changes what belongs to whom.
    f"CREATE TABLE IF NOT EXISTS shared (id integer PRIMARY KEY) {_TABLE}",
    "INSERT IGNORE INTO shared VALUES (1), (2)",
    *coordination.tables(_TEXT, _TABLE),
    enqueued.table(_TEXT, _TABLE),
)

# MySQL has no ADD COLUMN IF NOT EXISTS.
_VERSION_2: Final[Migration] = (
    f"""SET @statement = (
        SELECT if(count(*), 'DO 0', 'ALTER TABLE leases ADD COLUMN session {_TEXT} NOT NULL DEFAULT ('''')')
        FROM information_schema.columns
        WHERE table_schema = DATABASE() AND table_name = 'leases' AND column_name = 'session'
    )""",
    "PREPARE migration FROM @statement",
    "EXECUTE migration",
    "DEALLOCATE PREPARE migration",
)

MIGRATIONS: Final[Sequence[Migration]] = (_VERSION_1, _VERSION_2)
"""Entry n brings a database from version n to n + 1. Entries are only ever added: databases made by each are out there.

A statement that makes or changes a table commits by itself, so one that was interrupted is run again: each must be fine
with being run twice.
"""

# Making it -----------------------------------------------------------------------------------------------

MIGRATION_LOCK: Final = "SELECT GET_LOCK(%s, 60)"
END_MIGRATION: Final = "SELECT RELEASE_LOCK(%s)"
HAS_DATABASE: Final = "SELECT count(*) FROM information_schema.schemata WHERE schema_name = %s"
TABLES: Final = "SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()"
HAS_VERSION: Final = f"{TABLES} AND table_name = 'schema_version'"
MAKE_VERSION: Final = (
    f"CREATE TABLE IF NOT EXISTS schema_version (id integer PRIMARY KEY, version integer NOT NULL) {_TABLE}"
)
VERSION: Final = "SELECT coalesce(max(version), 0) FROM schema_version"
SET_VERSION: Final = "REPLACE INTO schema_version VALUES (1, %s)"

# Lane images ---------------------------------------------------------------------------------------------

GONE_LANES: Final = "SELECT lane FROM leftovers WHERE lane IN (%s) AND below = 9223372036854775807"
# If the newest batch is gone, all are.
LANES: Final = """
SELECT lane, `first`, `end`, bytes_end, coalesce((
    SELECT if(b.base + b.`count` > coalesce((SELECT below FROM leftovers o WHERE o.lane = l.lane), 0), published_ms, 0)
    FROM batches b WHERE b.lane = l.lane ORDER BY b.base DESC LIMIT 1
), 0) FROM lanes l WHERE lane IN (%s)"""
GROUPS: Final = """
SELECT lane, group_id, `next`, committed FROM `groups` WHERE lane IN (%s) ORDER BY lane, group_id"""
LEASES: Final = """
SELECT lane, group_id, lease_id, deadline_ms, consumer, entries, session FROM leases WHERE lane IN (%s)
ORDER BY lane, group_id, lease_id"""
WAITING: Final = """
SELECT lane, group_id, chunk, entries FROM waiting WHERE lane IN (%s) ORDER BY lane, group_id, chunk"""
DEAD: Final = """
SELECT lane, group_id, start, `end`, attempts, reason, error, consumer, dead_ms FROM dead WHERE lane IN (%s)
ORDER BY lane, group_id, start"""
DEDUP_LANES: Final = "SELECT DISTINCT lane FROM dedup WHERE lane IN (%s)"
# One lane a statement: a limit for each of several would need more than both databases have.
DEDUP_NEWEST: Final = """
SELECT `key`, `offset`, expires_ms FROM dedup WHERE lane = %s ORDER BY expires_ms DESC, `key` DESC LIMIT %s"""

# The log -------------------------------------------------------------------------------------------------

# Neither database looks for rows by a value that a subquery finds; by a variable it does.
GONE: Final = "SET @gone = coalesce((SELECT below FROM leftovers WHERE lane = %(lane)s), 0)"
START: Final = "SET @start = greatest(%(start)s, @gone)"
FROM_BATCH: Final = """
SET @from_batch = coalesce((SELECT max(base) FROM batches WHERE lane = %(lane)s AND base <= @start), @start)"""
_NEAR: Final = "lane = %(lane)s AND base >= @from_batch AND base + `count` > @start AND part = 0"
BATCHES: Final = f"""
SELECT b.base, b.`count`, b.published_ms, b.bytes_end, b.part, b.parts, b.meta, b.body FROM (
    SELECT base, sum(size) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
    FROM (SELECT base, size FROM batches WHERE {_NEAR} AND base < %(end)s ORDER BY base LIMIT 1000) AS near
) AS sized STRAIGHT_JOIN batches b ON b.lane = %(lane)s AND b.base = sized.base
WHERE sized.number = 1 OR sized.total <= %(bytes_most)s ORDER BY b.base, b.part"""
HEADS: Final = f"""
SELECT b.base, b.`count`, b.published_ms, b.bytes_end, b.size, b.meta FROM (
    SELECT base, sum(length) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
    FROM (
        SELECT base, octet_length(meta) AS length FROM batches WHERE {_NEAR} ORDER BY base LIMIT %(batches_most)s
    ) AS near
) AS sized STRAIGHT_JOIN batches b ON b.lane = %(lane)s AND b.base = sized.base AND b.part = 0
WHERE sized.number = 1 OR sized.total <= %(bytes_most)s ORDER BY b.base"""
# Publish times never fall as offsets rise: `images.py` halves the offsets, with a look at the middle.
FIRST_BATCH: Final = f"SELECT base, published_ms FROM batches WHERE {_NEAR} ORDER BY base LIMIT 1"
BATCH_BEFORE: Final = """
SELECT base, published_ms FROM batches WHERE lane = %(lane)s AND base <= %(base)s ORDER BY base DESC LIMIT 1"""

# The rest ------------------------------------------------------------------------------------------------

DEDUP: Final = """
SELECT `key`, `offset`, expires_ms FROM dedup WHERE lane = %s AND `key` IN (%s) AND NOT EXISTS (
    SELECT 1 FROM leftovers o WHERE o.lane = dedup.lane AND o.below = 9223372036854775807
)"""
CATALOG: Final = "SELECT kind, id, parent, namespace, name, document FROM catalog ORDER BY id, kind"
OUTBOX: Final = "SELECT id, lane, `offset`, document, slot FROM outbox WHERE id > %s ORDER BY id LIMIT %s"
OUTBOX_OF_SLOTS: Final = """
SELECT id, lane, `offset`, document, slot FROM outbox WHERE id > %s AND slot IN (%s) ORDER BY id LIMIT %s"""
TRACE: Final = """
SELECT namespace, trace_id, at_ms, id, kind, queue, queue_id, lane, `offset`, name, detail, consumer FROM traces
WHERE namespace = %s AND trace_id = %s ORDER BY at_ms, id LIMIT %s"""
OLDEST_TRACE: Final = "SELECT min(at_ms) FROM traces"
# Either side is a walk over the index that looks at one row of each lane.
LANES_IN_USE: Final = "SELECT DISTINCT lane FROM leases UNION SELECT DISTINCT lane FROM waiting ORDER BY lane"
SLOTS: Final = "SELECT slot, epoch, owner FROM slots"
# Where the next slice begins: at the lowest batch that is left.
SWEPT: Final = "UPDATE leftovers SET above = least(@end_0, below) WHERE lane = %s"
GENERATION: Final = "SELECT generation FROM writers WHERE writer = %s"
