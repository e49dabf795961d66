-- Every statement that a node runs, but for the functions in `functions.sql` and the migrations. Written for the schema
-- `penstock`; where the URL names another, that is put in its place. Named in full in every statement: behind a pooler
-- that hands out a connection per transaction nothing can be set for a session.

-- Making it ------------------------------------------------------------------------------------------------

-- name: lock_migration
-- Held until the schema is up to date; others that open it wait.
SELECT pg_advisory_xact_lock(1349415764, hashtext($1))

-- name: has_schema
-- Whether the database has a schema of this name.
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)

-- name: make_schema
-- The schema, if another process has not made it meanwhile.
CREATE SCHEMA IF NOT EXISTS {schema}

-- name: count_tables
-- How many tables the schema has.
SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = $1 AND relkind = 'r'

-- name: has_version
-- Whether the schema is one of ours.
SELECT to_regclass('penstock.schema_version') IS NOT NULL

-- name: make_version
-- The table that holds the version: no migration so far.
CREATE TABLE penstock.schema_version (version integer NOT NULL);
INSERT INTO penstock.schema_version VALUES (0)

-- name: version
-- How many migrations the schema has seen.
SELECT version FROM penstock.schema_version

-- name: put_version
-- Note the migrations.
UPDATE penstock.schema_version SET version = $1

-- name: setting
-- A setting of the server, as it holds for this session.
SELECT current_setting($1)

-- name: vacuum
-- Shrinking the file would need a lock that readers wait for; the room is used again anyway.
VACUUM (SKIP_LOCKED, TRUNCATE FALSE) penstock.batches

-- Writing --------------------------------------------------------------------------------------------------

-- name: put_writer
-- A store that was opened.
INSERT INTO penstock.writers VALUES ($1, 1, now())

-- name: delete_old_writers
-- Writers that were not seen for long.
DELETE FROM penstock.writers WHERE seen < now() - interval '30 days'

-- name: delete_writer
-- A store that was closed.
DELETE FROM penstock.writers WHERE writer = $1

-- name: lock_writer
-- Waits for a commit of ours that may still be under way on a lost connection, and makes sure that none comes later.
SELECT pg_advisory_xact_lock('penstock.writers'::regclass::oid::integer, hashtext($1))

-- name: raise_generation
-- A row that is gone comes back: `delete_old_writers` also takes that of a writer that has never lost an answer.
INSERT INTO penstock.writers AS w VALUES ($1, $2, now())
ON CONFLICT (writer) DO UPDATE SET generation = greatest(w.generation + 1, excluded.generation), seen = now()
RETURNING generation

-- name: lock_slots
-- Waits for commits under way on these slots.
SELECT pg_advisory_xact_lock('penstock.slots'::regclass::oid::integer, slot)
FROM (SELECT unnest($1::integer[]) AS slot ORDER BY 1) AS sorted

-- name: raise_epochs
-- Take slots, whoever owns them.
INSERT INTO penstock.slots AS s (slot, epoch, owner, why)
SELECT slot, 1, $2, 'acquired by ' || $2::text FROM unnest($1::integer[]) AS slot
ON CONFLICT (slot) DO UPDATE SET epoch = s.epoch + 1, owner = excluded.owner, node = 0, meant_for = 0,
    why = excluded.why RETURNING slot, epoch

-- name: sweep
-- Remove a slice of leftovers.
SELECT penstock.sweep($1)

-- name: apply
-- One call is one transaction.
SELECT penstock.apply_commit({arguments})

-- name: apply_and_settle
-- What a commit says of enqueued rows is in force with all the rest, or not at all.
SELECT penstock.apply_commit({arguments}), penstock.settle_enqueued({settled})

-- name: commit_nothing
-- A commit without rows.
SELECT penstock.commit_nothing($1, $2, $3, $4)

-- Lane images ----------------------------------------------------------------------------------------------

-- name: deleted_lanes
-- Lanes of which everything is gone, and not all of it swept.
SELECT lane FROM penstock.leftovers WHERE lane = ANY ($1::bigint[]) AND below = 9223372036854775807

-- name: load_lanes
-- Cursors, and when the newest batch was published. If the newest batch is gone, all are.
SELECT lane, first, "end", bytes_end, coalesce((
    SELECT CASE WHEN b.base + b.count > coalesce((SELECT below FROM penstock.leftovers o WHERE o.lane = l.lane), 0)
        THEN published_ms END
    FROM penstock.batches b WHERE b.lane = l.lane ORDER BY base DESC LIMIT 1
), 0) FROM penstock.lanes l WHERE lane = ANY ($1::bigint[])

-- name: load_rows
-- Template: all rows of these lanes in one table.
SELECT {columns} FROM penstock.{table} WHERE lane = ANY ($1::bigint[]) ORDER BY {key}

-- name: load_dedup
-- The newest ids of each lane, newest first.
SELECT wanted.lane, d.key, d."offset", d.expires_ms FROM unnest($1::bigint[]) AS wanted (lane), LATERAL (
    SELECT key, "offset", expires_ms FROM penstock.dedup WHERE lane = wanted.lane
    ORDER BY expires_ms DESC, key DESC LIMIT $2
) AS d

-- The log --------------------------------------------------------------------------------------------------

-- name: start
-- Part: where reading a lane starts, behind what is trimmed and not swept yet.
greatest($2, (SELECT below FROM penstock.leftovers WHERE lane = $1))

-- name: first_base
-- Part: the base of the batch that may hold the start.
coalesce((SELECT max(base) FROM penstock.batches WHERE lane = $1 AND base <= {start}), {start})

-- name: read
-- Batches from an offset on; no body is read only to find that it does not fit.
SELECT base, count, published_ms, bytes_end, meta, body FROM penstock.batches WHERE lane = $1 AND base = ANY (ARRAY(
    SELECT base FROM (
        SELECT base, sum(size) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
        FROM (
            SELECT base, size FROM penstock.batches
            WHERE lane = $1 AND base >= {first_base} AND base < $3 AND base + count > {start} ORDER BY base LIMIT 1000
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $4
)) ORDER BY base

-- name: heads
-- Batches without their bodies.
SELECT base, count, published_ms, bytes_end, size, meta FROM penstock.batches WHERE lane = $1 AND base = ANY (ARRAY(
    SELECT base FROM (
        SELECT base, sum(length) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
        FROM (
            SELECT base, octet_length(meta) AS length FROM penstock.batches
            WHERE lane = $1 AND base >= {first_base} AND base + count > {start} ORDER BY base LIMIT $3
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $4
)) ORDER BY base

-- name: find_time
-- The first batch published at or after a time.
SELECT penstock.find_time($1, $2)

-- The rest -------------------------------------------------------------------------------------------------

-- name: find_dedup
-- Rows of these keys.
SELECT key, "offset", expires_ms FROM penstock.dedup WHERE lane = $1 AND key = ANY ($2::bytea[])
AND NOT EXISTS (SELECT FROM penstock.leftovers WHERE lane = $1 AND below = 9223372036854775807)

-- name: catalog
-- Everything declared.
SELECT {catalog_columns} FROM penstock.catalog ORDER BY id, kind

-- name: outbox
-- Outbox rows behind an id, of some slots or all.
SELECT {outbox_columns} FROM penstock.outbox WHERE id > $1 AND ($3::integer[] IS NULL OR slot = ANY ($3)) ORDER BY id LIMIT $2

-- name: find_trace
-- The oldest rows of a trace.
SELECT {traces_columns} FROM penstock.traces WHERE namespace = $1 AND trace_id = $2 ORDER BY at_ms, id LIMIT $3

-- name: oldest_trace
-- The time of the oldest trace row of all.
SELECT min(at_ms) FROM penstock.traces

-- name: lanes_in_use
-- A seek per lane, past all of its rows, where DISTINCT would walk every row.
WITH RECURSIVE leased (lane) AS (
    SELECT min(lane) FROM penstock.leases
    UNION ALL
    SELECT (SELECT min(lane) FROM penstock.leases WHERE lane > leased.lane) FROM leased WHERE leased.lane IS NOT NULL
), waits (lane) AS (
    SELECT min(lane) FROM penstock.waiting
    UNION ALL
    SELECT (SELECT min(lane) FROM penstock.waiting WHERE lane > waits.lane) FROM waits WHERE waits.lane IS NOT NULL
)
SELECT lane FROM leased WHERE lane IS NOT NULL UNION SELECT lane FROM waits WHERE lane IS NOT NULL ORDER BY lane

-- For the tools --------------------------------------------------------------------------------------------

-- name: list_lanes
-- Lanes above a number.
SELECT lane FROM penstock.lanes WHERE lane > $1 ORDER BY lane LIMIT $2

-- name: list_dedup
-- Ids of a lane above a key.
SELECT key, "offset", expires_ms FROM penstock.dedup
WHERE lane = $1 AND ($2::bytea IS NULL OR key > $2) AND "offset" >= $4
AND NOT EXISTS (SELECT FROM penstock.leftovers WHERE lane = $1 AND below = 9223372036854775807)
ORDER BY key LIMIT $3

-- name: list_traces
-- Traces behind a time, all of one time together.
SELECT {traces_columns} FROM penstock.traces WHERE at_ms > $1 AND at_ms <= (
    SELECT max(at_ms) FROM (SELECT at_ms FROM penstock.traces WHERE at_ms > $1 ORDER BY at_ms LIMIT $2) AS near
) ORDER BY at_ms

-- name: skip_incarnations
-- Those up to a number are not given.
UPDATE penstock.counters SET value = greatest(value, $1) WHERE name = 'incarnation'

-- Several nodes --------------------------------------------------------------------------------------------

-- name: now_ms
-- Part: the database's clock.
(extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: join
-- A new member.
SELECT incarnation, secret FROM penstock.join_node($1, $2, $3, $4)

-- name: heartbeat
-- Renews the member's lease; all members and slots as JSON, so that it is one row.
WITH beat AS (UPDATE penstock.nodes SET seen_ms = {now_ms} WHERE incarnation = $1 RETURNING incarnation)
SELECT {now_ms}, EXISTS (SELECT FROM beat), (SELECT value FROM penstock.counters WHERE name = 'catalog'),
    (SELECT json_agg(json_build_array(incarnation, name, url, version, lease_ms, joined_ms,
        CASE WHEN incarnation = $1 THEN 0 ELSE greatest({now_ms} - seen_ms, 0) END) ORDER BY incarnation)::text FROM penstock.nodes),
    (SELECT json_agg(json_build_array(slot, epoch, node, meant_for, since_ms, why) ORDER BY slot)::text
     FROM penstock.slots)

-- name: take
-- Own slots that are free.
SELECT taken, new_epoch FROM penstock.take_slots($1, $2)

-- name: release
-- Slots that are free again.
SELECT penstock.release_slots($1, $2, $3)

-- name: leave
-- A member that is none any more.
SELECT penstock.leave_node($1)

-- name: reserve_ids
-- The first of so many new ids.
UPDATE penstock.counters SET value = greatest(value, $2) + $1 WHERE name = 'ids' RETURNING value - $1 + 1

-- name: catalog_counters
-- The catalog's version, and up to which deletions are forgotten.
SELECT name, value FROM penstock.counters WHERE name IN ('catalog', 'forgotten')

-- name: catalog_since
-- What was declared since a version.
SELECT {catalog_columns} FROM penstock.catalog WHERE version > $1 ORDER BY id, kind

-- name: catalog_deleted_since
-- What was deleted since a version.
SELECT {catalog_columns} FROM penstock.catalog_deleted WHERE version > $1 ORDER BY version

-- What applications enqueue --------------------------------------------------------------------------------

-- name: enqueued
-- The lowest rows that have not failed, but for these targets. Payloads' sizes are looked at before any is read.
SELECT id, namespace, queue, exchange, payload, key, partition, headers::text, priority, delay_ms,
    coalesce(floor(extract(epoch FROM not_before) * 1000)::bigint, 0), ttl_ms, dedup_id, content_type, correlation_id,
    trace_id, mandatory, floor(extract(epoch FROM enqueued_at) * 1000)::bigint
FROM penstock.enqueued WHERE id = ANY (ARRAY(
    SELECT id FROM (
        SELECT id, sum(size) OVER (ORDER BY id) AS total, row_number() OVER (ORDER BY id) AS number FROM (
            SELECT id, octet_length(payload) AS size FROM penstock.enqueued e
            WHERE failed_at IS NULL AND NOT EXISTS (
                SELECT FROM unnest($3::text[], $4::text[], $5::text[]) AS passed (namespace, queue, exchange)
                WHERE e.namespace = passed.namespace AND e.queue IS NOT DISTINCT FROM passed.queue
                    AND e.exchange IS NOT DISTINCT FROM passed.exchange
            ) ORDER BY id LIMIT $1
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $2
)) AND failed_at IS NULL ORDER BY id

-- name: failed_enqueued
-- Rows of a namespace that have failed.
SELECT id, namespace, octet_length(payload), floor(extract(epoch FROM enqueued_at) * 1000)::bigint, coalesce(error, ''),
    floor(extract(epoch FROM failed_at) * 1000)::bigint, queue, exchange, key
FROM penstock.enqueued WHERE failed_at IS NOT NULL AND namespace = $1 AND id > $2 ORDER BY id LIMIT $3

-- name: all_enqueued
-- Rows above an id, failed or not. Payloads' sizes are looked at before any is read.
SELECT id, namespace, queue, exchange, payload, key, partition, headers::text, priority, delay_ms,
    coalesce(floor(extract(epoch FROM not_before) * 1000)::bigint, 0), ttl_ms, dedup_id, content_type, correlation_id,
    trace_id, mandatory, floor(extract(epoch FROM enqueued_at) * 1000)::bigint,
    error, floor(extract(epoch FROM failed_at) * 1000)::bigint
FROM penstock.enqueued WHERE id = ANY (ARRAY(
    SELECT id FROM (
        SELECT id, sum(size) OVER (ORDER BY id) AS total, row_number() OVER (ORDER BY id) AS number FROM (
            SELECT id, octet_length(payload) AS size FROM penstock.enqueued WHERE id > $1 ORDER BY id LIMIT 1000
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $2
)) ORDER BY id

-- name: put_enqueued
-- A row of another store.
INSERT INTO penstock.enqueued (
    id, namespace, queue, exchange, payload, key, partition, headers, priority, delay_ms, not_before, ttl_ms, dedup_id,
    content_type, correlation_id, trace_id, mandatory
) OVERRIDING SYSTEM VALUE VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, to_timestamp(0) + nullif($11::bigint, 0) * interval '1 millisecond', $12,
    $13, $14, $15, $16, $17
)

-- name: date_enqueued
-- When it was enqueued and why it failed, which nobody may say who enqueues.
UPDATE penstock.enqueued SET enqueued_at = to_timestamp(0) + $2::bigint * interval '1 millisecond', error = $3,
    failed_at = to_timestamp(0) + $4::bigint * interval '1 millisecond'
WHERE id = $1

-- name: raise_enqueued
-- Whoever enqueues from now on gets higher ids.
SELECT setval(pg_get_serial_sequence('penstock.enqueued', 'id'), (SELECT max(id) FROM penstock.enqueued))

-- name: count_failed_enqueued
-- How many rows have failed.
SELECT count(*) FROM penstock.enqueued WHERE failed_at IS NOT NULL
