-- Lanes, their log and groups, the outbox, the catalog, traces, slots and writers.

CREATE TABLE penstock.lanes (
    lane bigint PRIMARY KEY, slot integer NOT NULL, first bigint NOT NULL, "end" bigint NOT NULL,
    bytes_end bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE penstock.batches (
    lane bigint, base bigint, count integer NOT NULL, published_ms bigint NOT NULL, bytes_end bigint NOT NULL,
    size bigint NOT NULL, meta bytea NOT NULL, body bytea NOT NULL, PRIMARY KEY (lane, base)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000);

ALTER TABLE penstock.batches ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN meta SET STORAGE EXTERNAL;

CREATE TABLE penstock.groups (
    lane bigint, group_id bigint, next bigint NOT NULL, committed bigint NOT NULL, PRIMARY KEY (lane, group_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE penstock.leases (
    lane bigint, group_id bigint, lease_id bigint, deadline_ms bigint NOT NULL, consumer text NOT NULL,
    entries bytea NOT NULL, PRIMARY KEY (lane, group_id, lease_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000);

CREATE TABLE penstock.waiting (
    lane bigint, group_id bigint, chunk bigint, entries bytea NOT NULL, PRIMARY KEY (lane, group_id, chunk)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000);

CREATE TABLE penstock.dead (
    lane bigint, group_id bigint, start bigint, "end" bigint NOT NULL, attempts bigint NOT NULL,
    reason text NOT NULL, error text NOT NULL, consumer text NOT NULL, dead_ms bigint NOT NULL,
    PRIMARY KEY (lane, group_id, start)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000);

CREATE TABLE penstock.dedup (
    lane bigint, key bytea, "offset" bigint NOT NULL, expires_ms bigint NOT NULL, PRIMARY KEY (lane, key)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX dedup_by_expiry ON penstock.dedup (lane, expires_ms);

CREATE TABLE penstock.outbox (
    id bigint PRIMARY KEY, lane bigint NOT NULL, "offset" bigint NOT NULL, document bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000);

CREATE TABLE penstock.catalog (
    kind text COLLATE "C", id bigint, parent bigint NOT NULL, namespace text NOT NULL, name text NOT NULL,
    document bytea NOT NULL, PRIMARY KEY (id, kind)
);

CREATE TABLE penstock.traces (
    namespace text COLLATE "C", trace_id text COLLATE "C", at_ms bigint, id bigint, kind text NOT NULL, queue text,
    queue_id bigint NOT NULL, lane bigint, "offset" bigint, name text NOT NULL, detail text NOT NULL,
    consumer text NOT NULL, PRIMARY KEY (namespace, trace_id, at_ms, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE INDEX traces_by_time ON penstock.traces (at_ms);

CREATE TABLE penstock.slots (
    slot integer PRIMARY KEY, epoch bigint NOT NULL, owner text NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE penstock.writers (
    writer text PRIMARY KEY, generation bigint NOT NULL, seen timestamptz NOT NULL
) WITH (fillfactor = 50);
