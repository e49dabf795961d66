-- Every statement that a node runs, but for the migrations. `%s` and `%(name)s` are values, filled in by `statements.py`:
-- a whole commit goes to the server as text in one packet. `{name}` stands for a part of this file, or for a table and
-- its columns.

-- Making it ------------------------------------------------------------------------------------------------

-- name: lock_migration
-- Held until the database is up to date; others that open it wait.
SELECT GET_LOCK(%s, 60)

-- name: unlock_migration
-- Ends `lock_migration`.
SELECT RELEASE_LOCK(%s)

-- name: has_database
-- Whether the server has a database of this name.
SELECT count(*) FROM information_schema.schemata WHERE schema_name = %s

-- name: make_database
-- A database whose texts can hold every character.
CREATE DATABASE {database} CHARACTER SET utf8mb4

-- name: use_database
-- The database of all that follows on this connection.
USE {database}

-- name: count_tables
-- How many tables the database has.
SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE()

-- name: has_version
-- Whether the database is one of ours.
SELECT count(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'schema_version'

-- name: make_version
-- The table that holds the version.
CREATE TABLE IF NOT EXISTS schema_version (id integer PRIMARY KEY, version integer NOT NULL)
ENGINE = InnoDB ROW_FORMAT = DYNAMIC

-- name: version
-- How many migrations the database has seen.
SELECT coalesce(max(version), 0) FROM schema_version

-- name: put_version
-- Note a migration.
REPLACE INTO schema_version VALUES (1, %s)

-- name: variables
-- The server's settings.
SHOW VARIABLES

-- Transactions ---------------------------------------------------------------------------------------------

-- name: begin
-- A transaction that writes.
START TRANSACTION

-- name: begin_snapshot
-- A transaction that reads the state of one moment.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY

-- name: commit
-- The end of either.
COMMIT

-- name: now_ms
-- Part: the server's clock.
timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) DIV 1000

-- name: numbers
-- Part: a JSON document of whole numbers as a table to join with.
JSON_TABLE(%(document)s, '$[*]' COLUMNS ({columns})) AS k

-- The fence ------------------------------------------------------------------------------------------------

-- The server stops at the first statement that fails, so a fence is a statement that fails: a number beyond what a
-- bigint holds, where the condition is true.

-- name: check_writer
-- Fails unless the writer's generation is current. The row is locked against `raise_generation`; no other commit of the
-- writer is under way that could want it.
SELECT 18446744073709551615 + (count(*) <> 1) FROM writers WHERE writer = %s AND generation = %s FOR UPDATE

-- name: check_epochs
-- Fails unless all slots have these epochs. A takeover waits for commits that have begun; later ones see its epoch.
SELECT 18446744073709551615 + (count(*) <> %(count)s) FROM %(slots)s
STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a AND t.epoch = k.b LOCK IN SHARE MODE

-- name: lock_shared_rows
-- Held by commits that change the catalog or expire traces: one after the other.
SELECT id FROM shared FORCE INDEX (PRIMARY) WHERE id = 1 FOR UPDATE

-- name: check_leftovers
-- Fails where new rows would be taken for what is left of older ones; and nobody sweeps these lanes meanwhile.
SELECT 18446744073709551615 + (coalesce(sum(k.b < t.below), 0) <> 0) FROM %(lanes)s
STRAIGHT_JOIN leftovers t FORCE INDEX (PRIMARY) ON t.lane = k.a FOR UPDATE

-- name: generation
-- The current generation of a writer.
SELECT generation FROM writers WHERE writer = %s

-- name: slots
-- All slots, to say why a commit was fenced.
SELECT slot, epoch, owner FROM slots

-- Writers --------------------------------------------------------------------------------------------------

-- name: put_writer
-- A store that was opened.
INSERT INTO writers VALUES (%s, 1, utc_timestamp(6))

-- name: old_writers
-- Looked for without a lock: commits lock the rows of their writers.
SELECT writer FROM writers WHERE seen < utc_timestamp(6) - INTERVAL 30 DAY

-- name: delete_writers
-- Writers that were not seen for long, or say goodbye.
DELETE FROM writers WHERE writer IN (%s)

-- name: touch_writer
-- What a commit without rows writes.
UPDATE writers SET seen = utc_timestamp(6) WHERE writer = %s

-- name: raise_generation
-- Waits for a commit of ours that may still be under way on a lost connection. A row that is gone comes back:
-- `delete_writers` also takes that of a writer that has never lost an answer.
START TRANSACTION;
INSERT INTO writers VALUES (%(writer)s, %(generation)s, utc_timestamp(6))
ON DUPLICATE KEY UPDATE generation = greatest(generation + 1, VALUES(generation)), seen = VALUES(seen);
SELECT generation FROM writers WHERE writer = %(writer)s;
COMMIT

-- Rows that come and go ------------------------------------------------------------------------------------

-- name: put_rows
-- Template: the head of a statement that puts rows.
INSERT INTO {table} ({columns}) VALUES

-- name: put_rows_end
-- Template: its end.
ON DUPLICATE KEY UPDATE {changes}

-- name: delete_rows
-- Template: the rows of these keys, or of what keys begin with.
DELETE t FROM %(keys)s STRAIGHT_JOIN {table} AS t FORCE INDEX ({index}) ON {match}

-- name: delete_expired_dedup
-- Expired ids of several lanes.
DELETE t FROM dedup AS t FORCE INDEX (dedup_by_expiry) WHERE %(ranges)s

-- name: expired_dedup
-- Part: those of one lane.
(lane = %s AND expires_ms <= %s)

-- name: delete_expired_traces
-- Traces up to a time.
DELETE t FROM traces AS t FORCE INDEX (traces_by_time) WHERE at_ms <= %s

-- name: raise_catalog
-- A new version of the catalog, for the statements of the same commit. Such commits come into force one after the other.
UPDATE counters SET value = value + 1 WHERE name = 'catalog';
SET @version = (SELECT value FROM counters WHERE name = 'catalog')

-- name: delete_catalog
-- Declared things of these keys; remembered for an hour: a node that is further behind reads everything.
REPLACE INTO catalog_deleted ({catalog_columns}, version, deleted_ms)
SELECT {catalog_columns}, @version, {now_ms} FROM catalog WHERE %(keys)s;
DELETE FROM catalog WHERE %(keys)s;
SET @old = {now_ms} - 3600000;
UPDATE counters SET value = greatest(value, coalesce(
    (SELECT max(version) FROM catalog_deleted WHERE deleted_ms < @old), 0
)) WHERE name = 'forgotten';
DELETE FROM catalog_deleted WHERE deleted_ms < @old

-- name: undelete
-- Deletions of what is declared again.
DELETE FROM catalog_deleted WHERE %(keys)s

-- name: catalog_key
-- Part: one of the keys.
(id = %s AND kind = %s)

-- Trimming and sweeping ------------------------------------------------------------------------------------

-- name: trim_ends
-- Where the first slice of what is trimmed ends, in a variable for each lane.
SET %(ends)s

-- name: trim_end
-- Part: of one lane.
@end_%(number)s = coalesce((
    SELECT base FROM batches WHERE lane = %(lane)s AND base >= %(above)s AND base < %(below)s AND part = 0
    ORDER BY base LIMIT 1 OFFSET {slice}
), %(below)s)

-- name: trim
-- The first slices of what is trimmed.
DELETE t FROM batches AS t FORCE INDEX (PRIMARY) WHERE %(ranges)s

-- name: trim_range
-- Part: of one lane.
(lane = %(lane)s AND base >= %(above)s AND base < @end_%(number)s AND base + `count` <= %(below)s)

-- name: note_deleted_lanes
-- Lanes that are gone and not removed yet: nobody sees them any more.
INSERT INTO leftovers SELECT k.a, 0, 9223372036854775807 FROM %(lanes)s
ON DUPLICATE KEY UPDATE leftovers.below = VALUES(below)

-- name: note_leftovers
-- What is trimmed and not removed yet: nobody sees it any more.
INSERT INTO leftovers SELECT k.a, 0, k.b FROM %(trims)s
WHERE (SELECT x.base + x.`count` FROM batches x WHERE x.lane = k.a ORDER BY x.base LIMIT 1) <= k.b
ON DUPLICATE KEY UPDATE leftovers.below = greatest(leftovers.below, k.b)

-- name: any_leftover
-- Leftovers that nobody else sweeps.
SELECT lane, above, below FROM leftovers LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: leftover_of_lane
-- Leftovers of one lane.
SELECT lane, above, below FROM leftovers WHERE lane = %s FOR UPDATE

-- name: has_leftovers
-- Whether there are any, held by others or not.
SELECT lane FROM leftovers LIMIT 1

-- name: sweep_rows
-- Template: a slice of the rows without a body of a lane that is gone.
DELETE t FROM (SELECT {key} FROM {table} WHERE lane = %s LIMIT {small_slice}) AS k
STRAIGHT_JOIN {table} AS t FORCE INDEX (PRIMARY) ON {match}

-- name: put_swept
-- Where the next slice begins: at the lowest batch that is left.
UPDATE leftovers SET above = least(@end_0, below) WHERE lane = %s

-- name: delete_leftover
-- Everything of the lane is swept.
DELETE FROM leftovers WHERE lane = %s

-- Lane images ----------------------------------------------------------------------------------------------

-- name: deleted_lanes
-- Lanes of which everything is gone, and not all of it swept.
SELECT lane FROM leftovers WHERE lane IN (%s) AND below = 9223372036854775807

-- name: load_lanes
-- Cursors, and when the newest batch was published. If the newest batch is gone, all are.
SELECT lane, `first`, `end`, bytes_end, coalesce((
    SELECT if(b.base + b.`count` > coalesce((SELECT below FROM leftovers o WHERE o.lane = l.lane), 0), published_ms, 0)
    FROM batches b WHERE b.lane = l.lane ORDER BY b.base DESC LIMIT 1
), 0) FROM lanes l WHERE lane IN (%s)

-- name: load_rows
-- Template: all rows of these lanes in one table.
SELECT {columns} FROM {table} WHERE lane IN (%s) ORDER BY {key}

-- name: lanes_with_dedup
-- Lanes that have ids at all.
SELECT DISTINCT lane FROM dedup WHERE lane IN (%s)

-- name: load_dedup
-- The newest ids of one lane, newest first: a limit for each of several would need more than both databases have.
SELECT `key`, `offset`, expires_ms FROM dedup WHERE lane = %s ORDER BY expires_ms DESC, `key` DESC LIMIT %s

-- The log --------------------------------------------------------------------------------------------------

-- Neither database looks for rows by a value that a subquery finds; by a variable it does.

-- name: from_start
-- Part: sets where reading starts, behind what is trimmed and not swept yet, and the base of the batch that may hold it.
SET @gone = coalesce((SELECT below FROM leftovers WHERE lane = %(lane)s), 0);
SET @start = greatest(%(start)s, @gone);
SET @from_batch = coalesce((SELECT max(base) FROM batches WHERE lane = %(lane)s AND base <= @start), @start)

-- name: near
-- Part: batches that end after the start.
lane = %(lane)s AND base >= @from_batch AND base + `count` > @start AND part = 0

-- name: read
-- Batches by their parts; no body is read only to find that it does not fit.
{from_start};
SELECT b.base, b.`count`, b.published_ms, b.bytes_end, b.part, b.parts, b.meta, b.body FROM (
    SELECT base, sum(size) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
    FROM (SELECT base, size FROM batches WHERE {near} AND base < %(end)s ORDER BY base LIMIT 1000) AS near
) AS sized STRAIGHT_JOIN batches b ON b.lane = %(lane)s AND b.base = sized.base
WHERE sized.number = 1 OR sized.total <= %(bytes_most)s ORDER BY b.base, b.part

-- name: heads
-- Batches without their bodies.
{from_start};
SELECT b.base, b.`count`, b.published_ms, b.bytes_end, b.size, b.meta FROM (
    SELECT base, sum(length) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
    FROM (
        SELECT base, octet_length(meta) AS length FROM batches WHERE {near} ORDER BY base LIMIT %(batches_most)s
    ) AS near
) AS sized STRAIGHT_JOIN batches b ON b.lane = %(lane)s AND b.base = sized.base AND b.part = 0
WHERE sized.number = 1 OR sized.total <= %(bytes_most)s ORDER BY b.base

-- name: first_batch
-- The first batch from the start on.
{from_start};
SELECT base, published_ms FROM batches WHERE {near} ORDER BY base LIMIT 1

-- name: batch_before
-- The batch that holds an offset, or the last one before it.
SELECT base, published_ms FROM batches WHERE lane = %(lane)s AND base <= %(base)s ORDER BY base DESC LIMIT 1

-- The rest -------------------------------------------------------------------------------------------------

-- name: find_dedup
-- Rows of these keys.
SELECT `key`, `offset`, expires_ms FROM dedup WHERE lane = %s AND `key` IN (%s) AND NOT EXISTS (
    SELECT 1 FROM leftovers o WHERE o.lane = dedup.lane AND o.below = 9223372036854775807
)

-- name: catalog
-- Everything declared.
SELECT {catalog_columns} FROM catalog ORDER BY id, kind

-- name: outbox
-- Outbox rows behind an id.
SELECT {outbox_columns} FROM outbox WHERE id > %s ORDER BY id LIMIT %s

-- name: outbox_of_slots
-- Those of some slots.
SELECT {outbox_columns} FROM outbox WHERE id > %s AND slot IN (%s) ORDER BY id LIMIT %s

-- name: find_trace
-- The oldest rows of a trace.
SELECT {traces_columns} FROM traces WHERE namespace = %s AND trace_id = %s ORDER BY at_ms, id LIMIT %s

-- name: oldest_trace
-- The time of the oldest trace row of all.
SELECT min(at_ms) FROM traces

-- name: lanes_in_use
-- Either side is a walk over the index that looks at one row of each lane.
SELECT DISTINCT lane FROM leases UNION SELECT DISTINCT lane FROM waiting ORDER BY lane

-- For the tools --------------------------------------------------------------------------------------------

-- name: list_lanes
-- Lanes above a number.
SELECT lane FROM lanes WHERE lane > %s ORDER BY lane LIMIT %s

-- name: list_dedup
-- Ids of a lane above a key.
SELECT `key`, `offset`, expires_ms FROM dedup WHERE lane = %s AND `key` > %s AND `offset` >= %s
AND NOT EXISTS (
    SELECT 1 FROM leftovers o WHERE o.lane = dedup.lane AND o.below = 9223372036854775807
) ORDER BY `key` LIMIT %s

-- name: first_dedup
-- The first ids of a lane.
SELECT `key`, `offset`, expires_ms FROM dedup WHERE lane = %s AND `offset` >= %s AND NOT EXISTS (
    SELECT 1 FROM leftovers o WHERE o.lane = dedup.lane AND o.below = 9223372036854775807
) ORDER BY `key` LIMIT %s

-- name: list_traces
-- Traces behind a time, all of one time together.
SELECT {traces_columns} FROM traces WHERE at_ms > %s AND at_ms <= (
    SELECT max(at_ms) FROM (SELECT at_ms FROM traces WHERE at_ms > %s ORDER BY at_ms LIMIT %s) AS near
) ORDER BY at_ms

-- name: skip_incarnations
-- Those up to a number are not given.
UPDATE counters SET value = greatest(value, %(up_to)s) WHERE name = 'incarnation'

-- Several nodes --------------------------------------------------------------------------------------------

-- One packet each: a node that is paused in the middle holds no lock for longer than the server needs.

-- name: lock_members
-- Part: changes of membership happen one after the other.
SELECT id FROM shared FORCE INDEX (PRIMARY) WHERE id = 2 FOR UPDATE

-- name: set_name
-- Part: the member's name; NULL for one who is no member.
SET @name = (SELECT name FROM nodes WHERE incarnation = %(incarnation)s)

-- name: acquire
-- Take slots, whoever owns them: waits for commits that have begun.
START TRANSACTION;
INSERT INTO slots (slot, epoch, owner) SELECT k.a, 1, %(owner)s FROM %(slots)s
ON DUPLICATE KEY UPDATE slots.epoch = slots.epoch + 1, slots.owner = VALUES(owner);
-- No member owns them.
INSERT INTO slot_owners (slot, node, meant_for, since_ms, why)
SELECT k.a, 0, 0, {now_ms}, concat('acquired by ', %(owner)s) FROM %(slots)s
ON DUPLICATE KEY UPDATE slot_owners.node = 0, slot_owners.meant_for = 0, slot_owners.since_ms = VALUES(since_ms),
    slot_owners.why = VALUES(why);
SELECT t.slot, t.epoch FROM %(slots)s STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a;
COMMIT

-- name: join
-- A new member, with an incarnation above every epoch there is. Of all secrets that are proposed, the first is kept.
START TRANSACTION;
{lock_members};
SET @given = greatest(
    (SELECT value FROM counters WHERE name = 'incarnation'), (SELECT coalesce(max(epoch), 0) FROM slots)
) + 1;
UPDATE counters SET value = @given WHERE name = 'incarnation';
INSERT INTO nodes VALUES (@given, %(name)s, %(url)s, %(version)s, %(lease_ms)s, {now_ms}, {now_ms});
INSERT IGNORE INTO cluster VALUES (1, %(secret)s);
SELECT @given, secret FROM cluster;
COMMIT

-- name: heartbeat
-- Renew a member's lease; then, of one moment: the time and the catalog's version, all members, all slots.
UPDATE nodes SET seen_ms = {now_ms} WHERE incarnation = %(incarnation)s;
{begin_snapshot};
SET @now = {now_ms};
SELECT @now, value FROM counters WHERE name = 'catalog';
SELECT incarnation, name, url, version, lease_ms, joined_ms, greatest(@now - seen_ms, 0) FROM nodes
ORDER BY incarnation;
SELECT slot, epoch, node, meant_for, since_ms, why FROM slots JOIN slot_owners USING (slot) ORDER BY slot;
COMMIT

-- name: is_dead
-- Part: other members whose lease has run out. What is true at @now stays true while they are locked.
@name IS NOT NULL AND n.incarnation <> %(incarnation)s AND @now - n.seen_ms > n.lease_ms

-- name: take
-- Own those of these slots that are free.
START TRANSACTION;
{lock_members};
SET @now = {now_ms};
{set_name};
-- Members whose lease has run out are none any more, and their slots are free.
SELECT count(*) FROM nodes n WHERE {is_dead} FOR UPDATE;
UPDATE nodes n JOIN slot_owners o ON o.node = n.incarnation SET o.node = 0, o.meant_for = 0, o.since_ms = @now,
    o.why = concat(n.name, ' was not heard of for ', @now - n.seen_ms, ' ms') WHERE {is_dead};
DELETE n FROM nodes n WHERE {is_dead};
-- Which of these slots are free, or the member's already. Slots that nobody ever took have no row yet.
SELECT group_concat(k.a) INTO @wanted FROM %(slots)s
LEFT JOIN slot_owners o ON o.slot = k.a LEFT JOIN nodes n ON n.incarnation = o.node
WHERE @name IS NOT NULL AND (n.incarnation IS NULL OR n.incarnation = %(incarnation)s);
INSERT IGNORE INTO slots (slot, epoch, owner) SELECT k.a, 0, '' FROM {wanted}
LEFT JOIN slots t ON t.slot = k.a WHERE t.slot IS NULL;
-- Slots under whose old epoch a commit is on its way are left for the next time: nobody waits here.
SELECT group_concat(t.slot) INTO @taken FROM {wanted}
STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a FOR UPDATE SKIP LOCKED;
UPDATE {taken} STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a
SET t.epoch = greatest(t.epoch + 1, %(incarnation)s), t.owner = @name;
INSERT INTO slot_owners (slot, node, meant_for, since_ms, why)
SELECT k.a, %(incarnation)s, 0, @now, concat('taken by ', @name) FROM {taken}
ON DUPLICATE KEY UPDATE slot_owners.why = concat(VALUES(why), if(slot_owners.why = '', '',
    concat(' (', substring_index(slot_owners.why, ' (', 1), ')'))),
    node = VALUES(node), meant_for = 0, since_ms = VALUES(since_ms);
SELECT slot, epoch FROM slots WHERE find_in_set(slot, @taken);
COMMIT

-- name: wanted
-- Part: slots in @wanted, as a table to join with.
JSON_TABLE(concat('[', coalesce(@wanted, ''), ']'), '$[*]' COLUMNS (a bigint PATH '$')) AS k

-- name: taken
-- Part: slots in @taken, as a table to join with.
JSON_TABLE(concat('[', coalesce(@taken, ''), ']'), '$[*]' COLUMNS (a bigint PATH '$')) AS k

-- name: release
-- Slots of a member that are free again.
START TRANSACTION;
{lock_members};
{set_name};
UPDATE %(slots)s STRAIGHT_JOIN slot_owners o FORCE INDEX (PRIMARY) ON o.slot = k.a
SET o.node = 0, o.meant_for = %(to)s, o.since_ms = {now_ms},
    o.why = concat('released by ', coalesce(@name, %(incarnation)s)) WHERE o.node = %(incarnation)s;
COMMIT

-- name: leave
-- A member that is none any more, and all of its slots.
START TRANSACTION;
{lock_members};
{set_name};
UPDATE slot_owners SET node = 0, meant_for = 0, since_ms = {now_ms}, why = concat(@name, ' left')
WHERE node = %(incarnation)s AND @name IS NOT NULL;
DELETE FROM nodes WHERE incarnation = %(incarnation)s;
COMMIT

-- name: reserve_ids
-- Ids above a number: the last of them.
UPDATE counters SET value = last_insert_id(greatest(value, %(above)s) + %(count)s) WHERE name = 'ids';
SELECT last_insert_id()

-- name: counters
-- All counters.
SELECT name, value FROM counters

-- name: catalog_since
-- What was declared since a version.
SELECT {catalog_columns} FROM catalog WHERE version > %s ORDER BY id, kind

-- name: catalog_deleted_since
-- What was deleted since a version.
SELECT {catalog_columns} FROM catalog_deleted WHERE version > %s ORDER BY version, id, kind

-- What applications enqueue --------------------------------------------------------------------------------

-- name: enqueued
-- The lowest rows that have not failed, but for some targets. Payloads' sizes are looked at before any is read.
SELECT e.id, e.namespace, e.queue, e.exchange, e.payload, e.`key`, e.`partition`, e.headers, e.priority, e.delay_ms,
    e.not_before_ms, e.ttl_ms, e.dedup_id, e.content_type, e.correlation_id, e.trace_id, e.mandatory, e.enqueued_ms
FROM (
    SELECT id, sum(size) OVER (ORDER BY id) AS total, row_number() OVER (ORDER BY id) AS number FROM (
        SELECT id, octet_length(payload) AS size FROM enqueued WHERE failed_ms IS NULL AND NOT (%(passing)s)
        ORDER BY id LIMIT %(most)s
    ) AS near
) AS sized STRAIGHT_JOIN enqueued e ON e.id = sized.id
WHERE e.failed_ms IS NULL AND (sized.number = 1 OR sized.total <= %(bytes_most)s) ORDER BY e.id

-- name: passing
-- Part: rows for one target. As bytes: to a collation, names with and without a space at their end are the same.
(CAST(namespace AS BINARY) = %s AND CAST(queue AS BINARY) <=> %s AND CAST(exchange AS BINARY) <=> %s)

-- name: failed_enqueued
-- Rows of a namespace that have failed.
SELECT id, namespace, octet_length(payload), enqueued_ms, coalesce(error, ''), failed_ms, queue, exchange, `key`
FROM enqueued WHERE failed_ms IS NOT NULL AND CAST(namespace AS BINARY) = %s AND id > %s ORDER BY id LIMIT %s

-- name: all_enqueued
-- Rows above an id, failed or not. Payloads' sizes are looked at before any is read.
SELECT e.id, e.namespace, e.queue, e.exchange, e.payload, e.`key`, e.`partition`, e.headers, e.priority, e.delay_ms,
    e.not_before_ms, e.ttl_ms, e.dedup_id, e.content_type, e.correlation_id, e.trace_id, e.mandatory, e.enqueued_ms,
    e.error, e.failed_ms
FROM (
    SELECT id, sum(size) OVER (ORDER BY id) AS total, row_number() OVER (ORDER BY id) AS number FROM (
        SELECT id, octet_length(payload) AS size FROM enqueued WHERE id > %s ORDER BY id LIMIT 1000
    ) AS near
) AS sized STRAIGHT_JOIN enqueued e ON e.id = sized.id
WHERE sized.number = 1 OR sized.total <= %s ORDER BY e.id

-- name: put_enqueued
-- A row of another store.
INSERT INTO enqueued (
    id, namespace, queue, exchange, payload, `key`, `partition`, headers, priority, delay_ms, not_before_ms, ttl_ms,
    dedup_id, content_type, correlation_id, trace_id, mandatory, enqueued_ms, error, failed_ms
) VALUES (%s)

-- name: count_failed_enqueued
-- How many rows have failed.
SELECT count(*) FROM enqueued WHERE failed_ms IS NOT NULL

-- name: newest_enqueued
-- The newest row there is.
SELECT coalesce(max(id), 0) FROM enqueued

-- name: delete_enqueued
-- Rows that are published.
DELETE e FROM %(ids)s STRAIGHT_JOIN enqueued AS e FORCE INDEX (PRIMARY) ON e.id = k.a

-- name: fail_enqueued
-- Rows that cannot be published.
UPDATE %(ids)s STRAIGHT_JOIN enqueued AS e FORCE INDEX (PRIMARY) ON e.id = k.a
SET e.error = %(error)s, e.failed_ms = %(failed_ms)s

-- name: retry_enqueued
-- Rows that are tried again.
UPDATE %(ids)s STRAIGHT_JOIN enqueued AS e FORCE INDEX (PRIMARY) ON e.id = k.a SET e.error = NULL, e.failed_ms = NULL
