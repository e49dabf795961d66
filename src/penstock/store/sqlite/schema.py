"""The SQLite engine's tables, every statement that it runs on them, and how a file reaches the newest schema.

Nothing here knows threads, asyncio or commits. A file's version is its `user_version`; a new file runs the same
migrations as an old one, so there is one way to each schema. Next stop: `engine.py`, which runs the statements.

| table | one row for | found by |
| --- | --- | --- |
| lanes | a lane: first offset kept, next offset to come, bytes ever appended | lane |
| batches | consecutive messages; their body is in the log, or where segment is NULL here | lane, base; by segment |
| groups | a group's cursor on a lane | lane, group_id |
| leases | offsets in one consumer's hands | lane, group_id, lease_id |
| waiting | offsets of one chunk that come back later | lane, group_id, chunk |
| dead | offsets that died together, [start, end) | lane, group_id, start |
| dedup | an id that was published, and where it went | lane, key; by expiry |
| outbox | something promised to happen elsewhere | id |
| catalog | a declared queue, group, exchange … | id, kind |
| traces | something that happened under a trace id | namespace, trace_id, at_ms, id; by time |
| slots | who owns a slot, under which epoch, and how that came | slot |
| nodes | a node that has joined and not left | incarnation |
| counters | the last incarnation and id given away, the catalog's version | name |
| segments | a file of the log that is written no more, and how many bytes of bodies in it are still needed | segment |
| log | the one row that says whose turn it is, and up to where the log is in these tables | |
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import StoreCorrupt
from penstock.model.rows import SLOTS

APPLICATION_ID: Final = 0x504E5354
"""`PNST` in the file's header: tells a Penstock file from someone else's SQLite database."""

Migration = Sequence[str]

_VERSION_1: Final[Migration] = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    """CREATE TABLE lanes (
        lane INTEGER PRIMARY KEY,
        slot INTEGER NOT NULL,
        first INTEGER NOT NULL,
        end INTEGER NOT NULL,
        bytes_end INTEGER NOT NULL
    ) STRICT""",
    # A rowid table with an index beside it: a body of 200 KB in a WITHOUT ROWID tree costs a third of the speed.
    """CREATE TABLE batches (
        lane INTEGER NOT NULL,
        base INTEGER NOT NULL,
        count INTEGER NOT NULL,
        published_ms INTEGER NOT NULL,
        bytes_end INTEGER NOT NULL,
        size INTEGER NOT NULL,
        meta BLOB NOT NULL,
        body BLOB NOT NULL,
        UNIQUE (lane, base)
    ) STRICT""",
    """CREATE TABLE groups (
        lane INTEGER NOT NULL,
        group_id INTEGER NOT NULL,
        next INTEGER NOT NULL,
        committed INTEGER NOT NULL,
        PRIMARY KEY (lane, group_id)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE leases (
        lane INTEGER NOT NULL,
        group_id INTEGER NOT NULL,
        lease_id INTEGER NOT NULL,
        deadline_ms INTEGER NOT NULL,
        consumer TEXT NOT NULL,
        entries BLOB NOT NULL,
        PRIMARY KEY (lane, group_id, lease_id)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE waiting (
        lane INTEGER NOT NULL,
        group_id INTEGER NOT NULL,
        chunk INTEGER NOT NULL,
        entries BLOB NOT NULL,
        PRIMARY KEY (lane, group_id, chunk)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE dead (
        lane INTEGER NOT NULL,
        group_id INTEGER NOT NULL,
        start INTEGER NOT NULL,
        end INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        reason TEXT NOT NULL,
        error TEXT NOT NULL,
        consumer TEXT NOT NULL,
        dead_ms INTEGER NOT NULL,
        PRIMARY KEY (lane, group_id, start)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE dedup (
        lane INTEGER NOT NULL,
        key BLOB NOT NULL,
        offset INTEGER NOT NULL,
        expires_ms INTEGER NOT NULL,
        PRIMARY KEY (lane, key)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX dedup_by_expiry ON dedup (lane, expires_ms)",
    """CREATE TABLE outbox (
        id INTEGER PRIMARY KEY,
        lane INTEGER NOT NULL,
        offset INTEGER NOT NULL,
        document BLOB NOT NULL
    ) STRICT""",
    "CREATE INDEX outbox_by_lane ON outbox (lane)",
    """CREATE TABLE catalog (
        id INTEGER NOT NULL,
        kind TEXT NOT NULL,
        parent INTEGER NOT NULL,
        namespace TEXT NOT NULL,
        name TEXT NOT NULL,
        document BLOB NOT NULL,
        PRIMARY KEY (id, kind)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE slots (
        slot INTEGER PRIMARY KEY,
        epoch INTEGER NOT NULL,
        owner TEXT NOT NULL
    ) STRICT""",
)

_VERSION_2: Final[Migration] = (
    """CREATE TABLE traces (
        namespace TEXT NOT NULL,
        trace_id TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        id INTEGER NOT NULL,
        kind TEXT NOT NULL,
        queue TEXT,
        queue_id INTEGER NOT NULL,
        lane INTEGER,
        offset INTEGER,
        name TEXT NOT NULL,
        detail TEXT NOT NULL,
        consumer TEXT NOT NULL,
        PRIMARY KEY (namespace, trace_id, at_ms, id)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX traces_by_time ON traces (at_ms)",
)

_VERSION_3: Final[Migration] = (
    # Bodies are in the log; those of older files and of segments that were given up are in `body`.
    "ALTER TABLE batches ADD COLUMN segment INTEGER",
    "ALTER TABLE batches ADD COLUMN position INTEGER",
    "CREATE INDEX batches_by_segment ON batches (segment) WHERE segment IS NOT NULL",
    "CREATE TABLE segments (segment INTEGER PRIMARY KEY, live_bytes INTEGER NOT NULL) STRICT",
    """CREATE TABLE log (
        store_id BLOB NOT NULL,
        turn INTEGER NOT NULL,
        segment INTEGER NOT NULL,
        position INTEGER NOT NULL,
        record INTEGER NOT NULL,
        last_position INTEGER NOT NULL,
        syncs INTEGER NOT NULL
    ) STRICT""",
    "INSERT INTO log VALUES (randomblob(16), 0, 0, 0, 1, 0, 0)",
)

_VERSION_4: Final[Migration] = (
    """CREATE TABLE nodes (
        incarnation INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        url TEXT NOT NULL,
        version TEXT NOT NULL,
        lease_ms INTEGER NOT NULL,
        joined_ms INTEGER NOT NULL,
        seen_ms INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE counters (
        name TEXT PRIMARY KEY,
        value INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    "INSERT INTO counters (name, value) VALUES ('incarnation', 0), ('ids', 0), ('catalog', 1)",
    "CREATE TABLE cluster (secret TEXT NOT NULL) STRICT",
    "INSERT INTO cluster (secret) VALUES (lower(hex(randomblob(16))))",
    "ALTER TABLE slots ADD COLUMN node INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE slots ADD COLUMN meant_for INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE slots ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE slots ADD COLUMN why TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE outbox ADD COLUMN slot INTEGER NOT NULL DEFAULT 0",
    f"UPDATE outbox SET slot = lane % {SLOTS}",  # noqa: S608 - a number of ours
)

_VERSION_5: Final[Migration] = ("ALTER TABLE leases ADD COLUMN session TEXT NOT NULL DEFAULT ''",)

MIGRATIONS: Final[Sequence[Migration]] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)
"""Entry n brings a file from version n to n + 1. Entries are only ever added: files made by each are out there."""


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the file to the newest schema, one transaction a version; refuse what Penstock cannot have written."""
    while check_version(connection, migrations) < len(migrations):
        connection.execute("BEGIN IMMEDIATE")
        # Asked again under the write lock: another process may have opened the same new file.
        version = check_version(connection, migrations)
        if version < len(migrations):
            for statement in migrations[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")


def check_version(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> int:
    """The file's version; an error where it is not Penstock's or is newer than this Penstock."""
    version, application, tables = connection.execute(FILE_VERSION).fetchone()
    if application != APPLICATION_ID and (version or tables):
        raise StoreCorrupt("it is an SQLite database that Penstock did not make; name another file")
    if version > len(migrations):
        raise StoreCorrupt(
            f"it has schema version {version} and this Penstock knows versions up to {len(migrations)}; "
            f"open it with the newer Penstock that wrote it"
        )
    return int(version)


FILE_VERSION: Final = """
SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
FROM pragma_user_version, pragma_application_id"""

# Fails on a file that may only be read, where BEGIN IMMEDIATE would not; changes nothing.
TRY_TO_WRITE: Final = "DELETE FROM slots WHERE slot = -1"
# The log -------------------------------------------------------------------------------------------------

LOG: Final = "SELECT store_id, turn, segment, position, record, last_position FROM log LIMIT 1"
PUT_TURN: Final = "UPDATE log SET turn = ?"
PUT_MARK: Final = "UPDATE log SET segment = ?, position = ?, record = ?, last_position = ? WHERE turn = ?"
# A commit that changes nothing is not written: this one is, and all before it reach the disk with it.
COUNT_SYNC: Final = "UPDATE log SET syncs = syncs + 1"
SEGMENTS: Final = "SELECT segment, live_bytes FROM segments"
PUT_SEGMENT: Final = "REPLACE INTO segments (segment, live_bytes) VALUES (?, ?)"
DELETE_SEGMENT: Final = "DELETE FROM segments WHERE segment = ?"
LIVE_IN_SEGMENT: Final = "SELECT rowid, position, size - length(meta), lane, base FROM batches WHERE segment = ?"
TAKE_BODY_IN: Final = "UPDATE batches SET body = ?, segment = NULL, position = NULL WHERE rowid = ?"

# Slots ---------------------------------------------------------------------------------------------------

RAISE_EPOCH: Final = """
INSERT INTO slots (slot, epoch, owner, since_ms, why) VALUES (?1, 1, ?2, ?3, 'acquired by ' || ?2)
ON CONFLICT (slot) DO UPDATE SET
    epoch = epoch + 1, owner = excluded.owner, node = 0, meant_for = 0, since_ms = excluded.since_ms, why = excluded.why
RETURNING epoch"""

HELD: Final = "SELECT slot, epoch, owner FROM slots WHERE slot >= 0"
# What the log says of epochs is newer than a file that lost its last writes.
PUT_EPOCH: Final = """
INSERT INTO slots (slot, epoch, owner) VALUES (?, ?, 'the log')
ON CONFLICT (slot) DO UPDATE SET epoch = excluded.epoch WHERE epoch < excluded.epoch"""

# Several nodes -------------------------------------------------------------------------------------------

NEXT_INCARNATION: Final = """
UPDATE counters SET value = max(value, (SELECT coalesce(max(epoch), 0) FROM slots)) + 1 WHERE name = 'incarnation'
RETURNING value"""
SECRET: Final = "SELECT secret FROM cluster"
JOIN: Final = """
INSERT INTO nodes (incarnation, name, url, version, lease_ms, joined_ms, seen_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)"""
BEAT: Final = "UPDATE nodes SET seen_ms = ?2 WHERE incarnation = ?1"
NODES: Final = """
SELECT incarnation, name, url, version, lease_ms, joined_ms, ?1 - seen_ms FROM nodes ORDER BY incarnation"""
SLOT_ROWS: Final = "SELECT slot, epoch, node, meant_for, since_ms, why FROM slots WHERE slot >= 0 ORDER BY slot"
COUNTER: Final = "SELECT value FROM counters WHERE name = ?"
MEMBER: Final = "SELECT name FROM nodes WHERE incarnation = ?"
DEAD_NODES: Final = """
SELECT incarnation, name, ?2 - seen_ms FROM nodes WHERE incarnation <> ?1 AND ?2 - seen_ms > lease_ms"""
DELETE_NODE: Final = "DELETE FROM nodes WHERE incarnation = ?"
LET_GO: Final = "UPDATE slots SET node = 0, meant_for = 0, since_ms = ?2, why = ?3 WHERE node = ?1"
TAKE: Final = """
INSERT INTO slots (slot, epoch, owner, node, meant_for, since_ms, why) VALUES (?1, ?2, ?3, ?2, 0, ?4, 'taken by ' || ?3)
ON CONFLICT (slot) DO UPDATE SET
    epoch = max(epoch + 1, ?2), owner = ?3, node = ?2, meant_for = 0, since_ms = ?4,
    why = 'taken by ' || ?3 || CASE WHEN why = '' THEN '' ELSE
        ' (' || CASE WHEN instr(why, ' (') THEN substr(why, 1, instr(why, ' (') - 1) ELSE why END || ')' END
WHERE node = ?2 OR node NOT IN (SELECT incarnation FROM nodes)
RETURNING epoch"""
RELEASE: Final = """
UPDATE slots SET node = 0, meant_for = ?3, since_ms = ?4, why = 'released by ' || ?5 WHERE slot = ?1 AND node = ?2"""
RESERVE_IDS: Final = "UPDATE counters SET value = max(value, ?2) + ?1 WHERE name = 'ids' RETURNING value"
RAISE_CATALOG: Final = "UPDATE counters SET value = value + 1 WHERE name = 'catalog'"

# Whole lanes and groups that go --------------------------------------------------------------------------

DELETE_LOG: Final = "DELETE FROM batches WHERE lane = ? RETURNING segment, size - length(meta)"
LANE_DELETES: Final = (
    "DELETE FROM lanes WHERE lane = ?",
    "DELETE FROM groups WHERE lane = ?",
    "DELETE FROM leases WHERE lane = ?",
    "DELETE FROM waiting WHERE lane = ?",
    "DELETE FROM dead WHERE lane = ?",
    "DELETE FROM dedup WHERE lane = ?",
    "DELETE FROM outbox WHERE lane = ?",
)

GROUP_DELETES: Final = (
    "DELETE FROM groups WHERE lane = ? AND group_id = ?",
    "DELETE FROM leases WHERE lane = ? AND group_id = ?",
    "DELETE FROM waiting WHERE lane = ? AND group_id = ?",
    "DELETE FROM dead WHERE lane = ? AND group_id = ?",
)

# Rows that go --------------------------------------------------------------------------------------------

DELETE_LEASE: Final = "DELETE FROM leases WHERE lane = ? AND group_id = ? AND lease_id = ?"
DELETE_WAITING: Final = "DELETE FROM waiting WHERE lane = ? AND group_id = ? AND chunk = ?"
DELETE_DEAD: Final = "DELETE FROM dead WHERE lane = ? AND group_id = ? AND start = ?"
DELETE_DEDUP: Final = "DELETE FROM dedup WHERE lane = ? AND expires_ms <= ?"
DELETE_CATALOG: Final = "DELETE FROM catalog WHERE kind = ? AND id = ?"
DELETE_OUTBOX: Final = "DELETE FROM outbox WHERE id = ?"
DELETE_TRACES: Final = "DELETE FROM traces WHERE at_ms <= ?"

# A JSON list of lanes and offsets. One bound makes it a range of the index, the other keeps what reaches past it.
TRIM: Final = """
DELETE FROM batches WHERE rowid IN (
    SELECT held.rowid FROM json_each(?) AS wanted CROSS JOIN batches AS held
    WHERE held.lane = json_extract(wanted.value, '$[0]') AND held.base < json_extract(wanted.value, '$[1]')
    AND held.base + held.count <= json_extract(wanted.value, '$[1]')
) RETURNING segment, size - length(meta)"""
# Batches that are put again: seldom any, but what they held of a segment is needed no more.
BASES: Final = """
SELECT held.lane, held.base FROM json_each(?) AS wanted CROSS JOIN batches AS held
WHERE held.lane = json_extract(wanted.value, '$[0]')
AND held.base >= json_extract(wanted.value, '$[1]') AND held.base <= json_extract(wanted.value, '$[2]')"""
DELETE_BATCH: Final = "DELETE FROM batches WHERE lane = ? AND base = ? RETURNING segment, size - length(meta)"

# Rows that are put ---------------------------------------------------------------------------------------

PUT_LANE: Final = "REPLACE INTO lanes (lane, slot, first, end, bytes_end) VALUES (?, ?, ?, ?, ?)"
PUT_BATCH: Final = """
INSERT INTO batches (lane, base, count, published_ms, bytes_end, size, meta, segment, position, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, x'')"""
PUT_GROUP: Final = "REPLACE INTO groups (lane, group_id, next, committed) VALUES (?, ?, ?, ?)"
PUT_LEASE: Final = """
REPLACE INTO leases (lane, group_id, lease_id, deadline_ms, consumer, entries, session) VALUES (?, ?, ?, ?, ?, ?, ?)"""
PUT_WAITING: Final = "REPLACE INTO waiting (lane, group_id, chunk, entries) VALUES (?, ?, ?, ?)"
PUT_DEAD: Final = """
REPLACE INTO dead (lane, group_id, start, end, attempts, reason, error, consumer, dead_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
PUT_DEDUP: Final = "REPLACE INTO dedup (lane, key, offset, expires_ms) VALUES (?, ?, ?, ?)"
PUT_CATALOG: Final = "REPLACE INTO catalog (kind, id, parent, namespace, name, document) VALUES (?, ?, ?, ?, ?, ?)"
PUT_OUTBOX: Final = "REPLACE INTO outbox (id, lane, offset, document, slot) VALUES (?, ?, ?, ?, ?)"
PUT_TRACE: Final = """
REPLACE INTO traces (namespace, trace_id, at_ms, id, kind, queue, queue_id, lane, offset, name, detail, consumer)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

# Lane images: one statement a table, however many lanes (a JSON list of their numbers) -------------------------

LANES: Final = """
SELECT lane, first, end, bytes_end, coalesce(
    (SELECT published_ms FROM batches WHERE batches.lane = lanes.lane ORDER BY base DESC LIMIT 1), 0
) FROM lanes WHERE lane IN (SELECT value FROM json_each(?))"""
GROUPS: Final = """
SELECT lane, group_id, next, committed FROM groups WHERE lane IN (SELECT value FROM json_each(?))
ORDER BY lane, group_id"""
LEASES: Final = """
SELECT lane, group_id, lease_id, deadline_ms, consumer, entries, session FROM leases
WHERE lane IN (SELECT value FROM json_each(?)) ORDER BY lane, group_id, lease_id"""
WAITING: Final = """
SELECT lane, group_id, chunk, entries FROM waiting WHERE lane IN (SELECT value FROM json_each(?))
ORDER BY lane, group_id, chunk"""
DEAD: Final = """
SELECT lane, group_id, start, end, attempts, reason, error, consumer, dead_ms FROM dead
WHERE lane IN (SELECT value FROM json_each(?)) ORDER BY lane, group_id, start"""
# Which lanes have ids at all; the newest are then asked for lane by lane, for a limit per lane needs a seek each.
DEDUP_LANES: Final = """
SELECT wanted.value FROM json_each(?) AS wanted WHERE EXISTS (SELECT 1 FROM dedup WHERE lane = wanted.value)"""
DEDUP_NEWEST: Final = """
SELECT key, offset, expires_ms FROM dedup WHERE lane = ? ORDER BY expires_ms DESC, key DESC LIMIT ?"""

# The log -------------------------------------------------------------------------------------------------

# The batch that holds an offset or, where none does, the last one before it.
BATCH_AT: Final = """
SELECT base, published_ms FROM batches WHERE lane = ? AND base <= ? ORDER BY base DESC LIMIT 1"""
FIRST_BATCH: Final = "SELECT base, published_ms FROM batches WHERE lane = ? ORDER BY base LIMIT 1"
SIZES: Final = """
SELECT base, size FROM batches WHERE lane = ?1 AND base >= ?2 AND base < ?4 AND base + count > ?3 ORDER BY base"""
BATCHES: Final = """
SELECT base, count, published_ms, bytes_end, size, meta, coalesce(segment, 0), coalesce(position, 0), body FROM batches
WHERE lane = ? AND base >= ? AND base <= ? ORDER BY base"""
HEADS: Final = """
SELECT base, count, published_ms, bytes_end, size, meta FROM batches
WHERE lane = ?1 AND base >= ?2 AND base + count > ?3 ORDER BY base LIMIT ?4"""

# The rest ------------------------------------------------------------------------------------------------

DEDUP: Final = "SELECT key, offset, expires_ms FROM dedup WHERE lane = ? AND key = ?"
CATALOG: Final = "SELECT kind, id, parent, namespace, name, document FROM catalog ORDER BY id, kind"
OUTBOX: Final = "SELECT id, lane, offset, document, slot FROM outbox WHERE id > ? ORDER BY id LIMIT ?"
TRACE: Final = """
SELECT namespace, trace_id, at_ms, id, kind, queue, queue_id, lane, offset, name, detail, consumer FROM traces
WHERE namespace = ? AND trace_id = ? ORDER BY at_ms, id LIMIT ?"""
OLDEST_TRACE: Final = "SELECT min(at_ms) FROM traces"

# A seek per lane, past all of its rows, where DISTINCT would walk every row.
LEASED_LANES: Final = """
WITH RECURSIVE used (lane) AS (
    SELECT min(lane) FROM leases
    UNION ALL
    SELECT (SELECT min(lane) FROM leases WHERE lane > used.lane) FROM used WHERE used.lane IS NOT NULL
)
SELECT lane FROM used WHERE lane IS NOT NULL"""
WAITING_LANES: Final = """
WITH RECURSIVE used (lane) AS (
    SELECT min(lane) FROM waiting
    UNION ALL
    SELECT (SELECT min(lane) FROM waiting WHERE lane > used.lane) FROM used WHERE used.lane IS NOT NULL
)
SELECT lane FROM used WHERE lane IS NOT NULL"""
