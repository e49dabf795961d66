-- What all migrations add up to; a test holds them together. For people: a new store runs the migrations.
-- Functions and triggers are in `functions.sql` and in the migrations 0002 and 0003.

-- A lane: the first offset kept, the next offset to come, bytes ever appended.
CREATE TABLE penstock.lanes (
    lane bigint PRIMARY KEY, slot integer NOT NULL, first bigint NOT NULL, "end" bigint NOT NULL,
    bytes_end bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Consecutive messages of a lane, encoded together.
CREATE TABLE penstock.batches (
    lane bigint, base bigint, count integer NOT NULL, published_ms bigint NOT NULL, bytes_end bigint NOT NULL,
    size bigint NOT NULL, meta bytea NOT NULL, body bytea NOT NULL, PRIMARY KEY (lane, base)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_limit = 2000,
    toast.autovacuum_vacuum_cost_limit = 2000
);
-- Bodies are compressed by the producer where that pays.
ALTER TABLE penstock.batches ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN meta SET STORAGE EXTERNAL;

-- A group's cursor on a lane.
CREATE TABLE penstock.groups (
    lane bigint, group_id bigint, next bigint NOT NULL, committed bigint NOT NULL, PRIMARY KEY (lane, group_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Offsets in one consumer's hands.
CREATE TABLE penstock.leases (
    lane bigint, group_id bigint, lease_id bigint, deadline_ms bigint NOT NULL, consumer text NOT NULL,
    entries bytea NOT NULL, session text NOT NULL DEFAULT '', PRIMARY KEY (lane, group_id, lease_id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000
);

-- Offsets of one chunk that come back later.
CREATE TABLE penstock.waiting (
    lane bigint, group_id bigint, chunk bigint, entries bytea NOT NULL, PRIMARY KEY (lane, group_id, chunk)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000
);

-- Offsets that died together, [start, end).
CREATE TABLE penstock.dead (
    lane bigint, group_id bigint, start bigint, "end" bigint NOT NULL, attempts bigint NOT NULL,
    reason text NOT NULL, error text NOT NULL, consumer text NOT NULL, dead_ms bigint NOT NULL,
    PRIMARY KEY (lane, group_id, start)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000
);

-- An id that was published, and where it went.
CREATE TABLE penstock.dedup (
    lane bigint, key bytea, "offset" bigint NOT NULL, expires_ms bigint NOT NULL, PRIMARY KEY (lane, key)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX dedup_by_expiry ON penstock.dedup (lane, expires_ms);

-- Something promised to happen elsewhere.
CREATE TABLE penstock.outbox (
    id bigint PRIMARY KEY, lane bigint NOT NULL, "offset" bigint NOT NULL, document bytea NOT NULL,
    slot integer NOT NULL DEFAULT 0
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000
);
CREATE INDEX outbox_by_slot ON penstock.outbox (slot, id);
CREATE INDEX outbox_by_lane ON penstock.outbox (lane);

-- A declared queue, group, exchange …
CREATE TABLE penstock.catalog (
    kind text COLLATE "C", id bigint, parent bigint NOT NULL, namespace text NOT NULL, name text NOT NULL,
    document bytea NOT NULL, version bigint NOT NULL DEFAULT 1, PRIMARY KEY (id, kind)
);
CREATE INDEX catalog_by_version ON penstock.catalog (version);

-- What was deleted from the catalog during the last hour.
CREATE TABLE penstock.catalog_deleted (
    kind text COLLATE "C", id bigint, parent bigint NOT NULL, namespace text NOT NULL, name text NOT NULL,
    document bytea NOT NULL, version bigint NOT NULL, deleted_ms bigint NOT NULL, PRIMARY KEY (id, kind)
);
CREATE INDEX catalog_deleted_by_version ON penstock.catalog_deleted (version);
CREATE INDEX catalog_deleted_by_time ON penstock.catalog_deleted (deleted_ms);

-- Something that happened under a trace id.
CREATE TABLE penstock.traces (
    namespace text COLLATE "C", trace_id text COLLATE "C", at_ms bigint, id bigint, kind text NOT NULL, queue text,
    queue_id bigint NOT NULL, lane bigint, "offset" bigint, name text NOT NULL, detail text NOT NULL,
    consumer text NOT NULL, PRIMARY KEY (namespace, trace_id, at_ms, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX traces_by_time ON penstock.traces (at_ms);

-- Who owns a slot, under which epoch, and how that came.
CREATE TABLE penstock.slots (
    slot integer PRIMARY KEY, epoch bigint NOT NULL, owner text NOT NULL,
    node bigint NOT NULL DEFAULT 0, meant_for bigint NOT NULL DEFAULT 0, since_ms bigint NOT NULL DEFAULT 0,
    why text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

-- An open store, and the generation of its commits (`store/sql/lost_answer.py`).
CREATE TABLE penstock.writers (
    writer text PRIMARY KEY, generation bigint NOT NULL, seen timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Batches that end at or below `below` are gone and not swept yet; those of a base below `above` are removed.
CREATE TABLE penstock.leftovers (
    lane bigint PRIMARY KEY, above bigint NOT NULL, below bigint NOT NULL
) WITH (fillfactor = 50);

-- A node that has joined and not left.
CREATE TABLE penstock.nodes (
    incarnation bigint PRIMARY KEY, name text NOT NULL, url text NOT NULL, version text NOT NULL,
    lease_ms bigint NOT NULL, joined_ms bigint NOT NULL, seen_ms bigint NOT NULL
) WITH (fillfactor = 50);

-- The last incarnation and id given away, the catalog's version, and up to which deletions are forgotten.
CREATE TABLE penstock.counters (name text PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50);

-- What the nodes of this store know and nobody else does.
CREATE TABLE penstock.cluster (secret text NOT NULL);

-- What applications have put here in transactions of their own.
CREATE TABLE penstock.enqueued (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, namespace text NOT NULL DEFAULT 'default', queue text,
    exchange text, key text, payload bytea NOT NULL, partition text, headers json,
    priority integer NOT NULL DEFAULT 0, delay_ms bigint NOT NULL DEFAULT 0, not_before timestamptz, ttl_ms bigint,
    dedup_id text, content_type text, correlation_id text, trace_id text, mandatory boolean NOT NULL DEFAULT true,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(), error text, failed_at timestamptz,
    CONSTRAINT not_before_can_be_read CHECK (not_before BETWEEN '1970-01-01 00:00Z' AND '9999-12-31 00:00Z')
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000
);
ALTER TABLE penstock.enqueued ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE INDEX enqueued_to_publish ON penstock.enqueued (id) WHERE failed_at IS NULL;
CREATE INDEX enqueued_failed ON penstock.enqueued (namespace, id) WHERE failed_at IS NOT NULL;
