-- Lanes, their log and groups, the outbox, the catalog and slots.

PRAGMA application_id = 1347310420;

CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY,
    slot INTEGER NOT NULL,
    first INTEGER NOT NULL,
    end INTEGER NOT NULL,
    bytes_end INTEGER NOT NULL
) STRICT;

CREATE TABLE batches (
    lane INTEGER NOT NULL,
    base INTEGER NOT NULL,
    count INTEGER NOT NULL,
    published_ms INTEGER NOT NULL,
    bytes_end INTEGER NOT NULL,
    size INTEGER NOT NULL,
    meta BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (lane, base)
) STRICT;

CREATE TABLE groups (
    lane INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    next INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    PRIMARY KEY (lane, group_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    lane INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    lease_id INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    entries BLOB NOT NULL,
    PRIMARY KEY (lane, group_id, lease_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE waiting (
    lane INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    entries BLOB NOT NULL,
    PRIMARY KEY (lane, group_id, chunk)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead (
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
) STRICT, WITHOUT ROWID;

CREATE TABLE dedup (
    lane INTEGER NOT NULL,
    key BLOB NOT NULL,
    offset INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (lane, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedup_by_expiry ON dedup (lane, expires_ms);

CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    document BLOB NOT NULL
) STRICT;

CREATE INDEX outbox_by_lane ON outbox (lane);

CREATE TABLE catalog (
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    parent INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (id, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE slots (
    slot INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL
) STRICT;
