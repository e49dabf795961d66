-- What all migrations add up to; a test holds them together. For people: a new store runs the migrations.

-- A lane: the first offset kept, the next offset to come, bytes ever appended.
CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY,
    slot INTEGER NOT NULL,
    first INTEGER NOT NULL,
    end INTEGER NOT NULL,
    bytes_end INTEGER NOT NULL
) STRICT;

-- Consecutive messages of a lane, encoded together.
CREATE TABLE batches (
    lane INTEGER NOT NULL,
    base INTEGER NOT NULL,
    count INTEGER NOT NULL,
    published_ms INTEGER NOT NULL,
    bytes_end INTEGER NOT NULL,
    size INTEGER NOT NULL,
    meta BLOB NOT NULL,
    body BLOB NOT NULL,
    segment INTEGER,
    position INTEGER,
    UNIQUE (lane, base)
) STRICT;
CREATE INDEX batches_by_segment ON batches (segment) WHERE segment IS NOT NULL;

-- A group's cursor on a lane.
CREATE TABLE groups (
    lane INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    next INTEGER NOT NULL,
    committed INTEGER NOT NULL,
    PRIMARY KEY (lane, group_id)
) STRICT, WITHOUT ROWID;

-- Offsets in one consumer's hands.
CREATE TABLE leases (
    lane INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    lease_id INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL,
    consumer TEXT NOT NULL,
    entries BLOB NOT NULL,
    session TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (lane, group_id, lease_id)
) STRICT, WITHOUT ROWID;

-- Offsets of one chunk that come back later.
CREATE TABLE waiting (
    lane INTEGER NOT NULL,
    group_id INTEGER NOT NULL,
    chunk INTEGER NOT NULL,
    entries BLOB NOT NULL,
    PRIMARY KEY (lane, group_id, chunk)
) STRICT, WITHOUT ROWID;

-- Offsets that died together, [start, end).
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

-- An id that was published, and where it went.
CREATE TABLE dedup (
    lane INTEGER NOT NULL,
    key BLOB NOT NULL,
    offset INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (lane, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX dedup_by_expiry ON dedup (lane, expires_ms);

-- Something promised to happen elsewhere.
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    document BLOB NOT NULL,
    slot INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX outbox_by_lane ON outbox (lane);

-- A declared queue, group, exchange …
CREATE TABLE catalog (
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    parent INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    document BLOB NOT NULL,
    PRIMARY KEY (id, kind)
) STRICT, WITHOUT ROWID;

-- Who owns a slot, under which epoch, and how that came.
CREATE TABLE slots (
    slot INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL,
    node INTEGER NOT NULL DEFAULT 0,
    meant_for INTEGER NOT NULL DEFAULT 0,
    since_ms INTEGER NOT NULL DEFAULT 0,
    why TEXT NOT NULL DEFAULT ''
) STRICT;

-- Something that happened under a trace id.
CREATE TABLE traces (
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
) STRICT, WITHOUT ROWID;
CREATE INDEX traces_by_time ON traces (at_ms);

-- A file of the log that is written no more, and how many bytes of bodies in it are still needed.
CREATE TABLE segments (segment INTEGER PRIMARY KEY, live_bytes INTEGER NOT NULL) STRICT;

-- One row: whose turn it is, and up to where the log is in these tables.
CREATE TABLE log (
    store_id BLOB NOT NULL,
    turn INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    position INTEGER NOT NULL,
    record INTEGER NOT NULL,
    last_position INTEGER NOT NULL,
    syncs INTEGER NOT NULL
) STRICT;

-- A node that has joined and not left.
CREATE TABLE nodes (
    incarnation INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    version TEXT NOT NULL,
    lease_ms INTEGER NOT NULL,
    joined_ms INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL
) STRICT;

-- The last incarnation and id given away, the catalog's version, and up to which deletions are forgotten.
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the nodes of this store know and nobody else does.
CREATE TABLE cluster (secret TEXT NOT NULL) STRICT;
