-- Every statement that the engine runs, but for the migrations. `statements.py` fills in tables and columns.

-- The file --------------------------------------------------------------------------------------------------

-- name: file_version
-- What the file's header says, and whether anything is in it.
SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
FROM pragma_user_version, pragma_application_id

-- name: try_to_write
-- Fails on a file that may only be read, where BEGIN IMMEDIATE would not; changes nothing.
DELETE FROM slots WHERE slot = -1

-- The log ---------------------------------------------------------------------------------------------------

-- name: log
-- Whose turn it is, and up to where the log is in the tables.
SELECT store_id, turn, segment, position, record, last_position FROM log LIMIT 1

-- name: put_turn
-- A store that takes its turn.
UPDATE log SET turn = ?

-- name: put_position
-- Up to where the log is in the tables.
UPDATE log SET segment = ?, position = ?, record = ?, last_position = ? WHERE turn = ?

-- name: count_sync
-- A commit that changes nothing is not written: this one is, and all before it reach the disk with it.
UPDATE log SET syncs = syncs + 1

-- name: segments
-- All of them, and what of them is needed.
SELECT segment, live_bytes FROM segments

-- name: put_segment
-- What of a segment is needed.
REPLACE INTO segments (segment, live_bytes) VALUES (?, ?)

-- name: delete_segment
-- A segment that nothing is needed of.
DELETE FROM segments WHERE segment = ?

-- name: live_in_segment
-- Bodies that are still needed of a segment.
SELECT rowid, position, size - length(meta), lane, base FROM batches WHERE segment = ?

-- name: inline_body
-- Move a body from its segment into its row.
UPDATE batches SET body = ?, segment = NULL, position = NULL WHERE rowid = ?

-- Slots -----------------------------------------------------------------------------------------------------

-- name: raise_epoch
-- Take a slot, whoever owns it.
INSERT INTO slots (slot, epoch, owner, since_ms, why) VALUES (?1, 1, ?2, ?3, 'acquired by ' || ?2)
ON CONFLICT (slot) DO UPDATE SET
    epoch = epoch + 1, owner = excluded.owner, node = 0, meant_for = 0, since_ms = excluded.since_ms, why = excluded.why
RETURNING epoch

-- name: held_slots
-- Slots and their epochs.
SELECT slot, epoch, owner FROM slots WHERE slot >= 0

-- name: put_epoch
-- What the log says of epochs is newer than a file that lost its last writes.
INSERT INTO slots (slot, epoch, owner) VALUES (?, ?, 'the log')
ON CONFLICT (slot) DO UPDATE SET epoch = excluded.epoch WHERE epoch < excluded.epoch

-- Several nodes ---------------------------------------------------------------------------------------------

-- name: next_incarnation
-- Above every epoch there is.
UPDATE counters SET value = max(value, (SELECT coalesce(max(epoch), 0) FROM slots)) + 1 WHERE name = 'incarnation'
RETURNING value

-- name: skip_incarnations
-- Those up to a number are not given.
UPDATE counters SET value = max(value, ?) WHERE name = 'incarnation'

-- name: secret
-- What only the nodes of this store know.
SELECT secret FROM cluster

-- name: join
-- A new member.
INSERT INTO nodes (incarnation, name, url, version, lease_ms, joined_ms, seen_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)

-- name: heartbeat
-- Renew a member's lease.
UPDATE nodes SET seen_ms = ?2 WHERE incarnation = ?1

-- name: nodes
-- All members, and for how long they were not heard of.
SELECT incarnation, name, url, version, lease_ms, joined_ms, ?1 - seen_ms FROM nodes ORDER BY incarnation

-- name: slots
-- All slots and their owners.
SELECT slot, epoch, node, meant_for, since_ms, why FROM slots WHERE slot >= 0 ORDER BY slot

-- name: counter
-- A counter's value.
SELECT value FROM counters WHERE name = ?

-- name: member
-- The name of a member.
SELECT name FROM nodes WHERE incarnation = ?

-- name: dead_nodes
-- Members whose lease has run out.
SELECT incarnation, name, ?2 - seen_ms FROM nodes WHERE incarnation <> ?1 AND ?2 - seen_ms > lease_ms

-- name: delete_node
-- A member that is none any more.
DELETE FROM nodes WHERE incarnation = ?

-- name: free_slots
-- Slots of a member that is none any more.
UPDATE slots SET node = 0, meant_for = 0, since_ms = ?2, why = ?3 WHERE node = ?1

-- name: take
-- Own a slot that is free.
INSERT INTO slots (slot, epoch, owner, node, meant_for, since_ms, why) VALUES (?1, ?2, ?3, ?2, 0, ?4, 'taken by ' || ?3)
ON CONFLICT (slot) DO UPDATE SET
    epoch = max(epoch + 1, ?2), owner = ?3, node = ?2, meant_for = 0, since_ms = ?4,
    why = 'taken by ' || ?3 || CASE WHEN why = '' THEN '' ELSE
        ' (' || CASE WHEN instr(why, ' (') THEN substr(why, 1, instr(why, ' (') - 1) ELSE why END || ')' END
WHERE node = ?2 OR node NOT IN (SELECT incarnation FROM nodes)
RETURNING epoch

-- name: release
-- A slot that is free again.
UPDATE slots SET node = 0, meant_for = ?3, since_ms = ?4, why = 'released by ' || ?5 WHERE slot = ?1 AND node = ?2

-- name: reserve_ids
-- The last of so many new ids.
UPDATE counters SET value = max(value, ?2) + ?1 WHERE name = 'ids' RETURNING value

-- name: raise_catalog
-- A new version of the catalog.
UPDATE counters SET value = value + 1 WHERE name = 'catalog'

-- Rows that go ----------------------------------------------------------------------------------------------

-- name: delete_log
-- All batches of a lane, and the bytes of the log that they needed.
DELETE FROM batches WHERE lane = ? RETURNING segment, size - length(meta)

-- name: delete_expired_dedup
-- Expired ids of a lane.
DELETE FROM dedup WHERE lane = ? AND expires_ms <= ?

-- name: delete_expired_traces
-- Traces up to a time.
DELETE FROM traces WHERE at_ms <= ?

-- name: trim
-- Takes a JSON list of lanes and offsets. One bound makes it a range of the index, the other keeps what reaches
-- past it.
DELETE FROM batches WHERE rowid IN (
    SELECT held.rowid FROM json_each(?) AS wanted CROSS JOIN batches AS held
    WHERE held.lane = json_extract(wanted.value, '$[0]') AND held.base < json_extract(wanted.value, '$[1]')
    AND held.base + held.count <= json_extract(wanted.value, '$[1]')
) RETURNING segment, size - length(meta)

-- name: bases
-- Batches that are put again: seldom any, but what they held of a segment is needed no more.
SELECT held.lane, held.base FROM json_each(?) AS wanted CROSS JOIN batches AS held
WHERE held.lane = json_extract(wanted.value, '$[0]')
AND held.base >= json_extract(wanted.value, '$[1]') AND held.base <= json_extract(wanted.value, '$[2]')

-- name: delete_batch
-- One batch, and the bytes of the log that it needed.
DELETE FROM batches WHERE lane = ? AND base = ? RETURNING segment, size - length(meta)

-- name: delete_rows
-- Template: the rows that these columns match.
DELETE FROM {table} WHERE {match}

-- Rows that are put -----------------------------------------------------------------------------------------

-- name: put_batch
-- Without its body, which is in the log.
INSERT INTO batches (lane, base, count, published_ms, bytes_end, size, meta, segment, position, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, x'')

-- name: put_row
-- Template: a row of one table.
REPLACE INTO {table} ({columns}) VALUES ({places})

-- Lane images: one statement a table, however many lanes (a JSON list of their numbers) ---------------------

-- name: load_lanes
-- Cursors, and when the newest batch was published.
SELECT lane, first, end, bytes_end, coalesce(
    (SELECT published_ms FROM batches WHERE batches.lane = lanes.lane ORDER BY base DESC LIMIT 1), 0
) FROM lanes WHERE lane IN (SELECT value FROM json_each(?))

-- name: lanes_with_dedup
-- Lanes that have ids at all. The newest are then asked for lane by lane: a limit per lane needs a seek each.
SELECT wanted.value FROM json_each(?) AS wanted WHERE EXISTS (SELECT 1 FROM dedup WHERE lane = wanted.value)

-- name: load_dedup
-- The newest ids of a lane, newest first.
SELECT key, offset, expires_ms FROM dedup WHERE lane = ? ORDER BY expires_ms DESC, key DESC LIMIT ?

-- name: load_rows
-- Template: all rows of these lanes in one table.
SELECT {columns} FROM {table} WHERE lane IN (SELECT value FROM json_each(?)) ORDER BY {key}

-- Batches ---------------------------------------------------------------------------------------------------

-- name: batch_at
-- The batch that holds an offset or, where none does, the last one before it.
SELECT base, published_ms FROM batches WHERE lane = ? AND base <= ? ORDER BY base DESC LIMIT 1

-- name: first_batch
-- The first batch of a lane.
SELECT base, published_ms FROM batches WHERE lane = ? ORDER BY base LIMIT 1

-- name: sizes
-- Sizes of the batches that overlap a range.
SELECT base, size FROM batches WHERE lane = ?1 AND base >= ?2 AND base < ?4 AND base + count > ?3 ORDER BY base

-- name: batches
-- Batches, and where their bodies are.
SELECT base, count, published_ms, bytes_end, size, meta, coalesce(segment, 0), coalesce(position, 0), body FROM batches
WHERE lane = ? AND base >= ? AND base <= ? ORDER BY base

-- name: heads
-- Batches without their bodies.
SELECT base, count, published_ms, bytes_end, size, meta FROM batches
WHERE lane = ?1 AND base >= ?2 AND base + count > ?3 ORDER BY base LIMIT ?4

-- The rest --------------------------------------------------------------------------------------------------

-- name: find_dedup
-- The row of a key.
SELECT key, offset, expires_ms FROM dedup WHERE lane = ? AND key = ?

-- name: catalog
-- Everything declared.
SELECT {catalog_columns} FROM catalog ORDER BY id, kind

-- name: outbox
-- Outbox rows behind an id.
SELECT {outbox_columns} FROM outbox WHERE id > ? ORDER BY id LIMIT ?

-- name: find_trace
-- The oldest rows of a trace.
SELECT {traces_columns} FROM traces
WHERE namespace = ? AND trace_id = ? ORDER BY at_ms, id LIMIT ?

-- name: oldest_trace
-- The time of the oldest trace row of all.
SELECT min(at_ms) FROM traces

-- name: lanes_in_use
-- Template: lanes that have rows in a table. A seek per lane, past all of its rows, where DISTINCT would walk every row.
WITH RECURSIVE used (lane) AS (
    SELECT min(lane) FROM {table}
    UNION ALL
    SELECT (SELECT min(lane) FROM {table} WHERE lane > used.lane) FROM used WHERE used.lane IS NOT NULL
)
SELECT lane FROM used WHERE lane IS NOT NULL

-- For the tools ---------------------------------------------------------------------------------------------

-- name: list_lanes
-- Lanes above a number.
SELECT lane FROM lanes WHERE lane > ? ORDER BY lane LIMIT ?

-- name: list_dedup
-- Ids of a lane above a key.
SELECT key, offset, expires_ms FROM dedup WHERE lane = ?1 AND (?2 IS NULL OR key > ?2) AND offset >= ?4
ORDER BY key LIMIT ?3

-- name: list_traces
-- Traces behind a time, all of one time together.
SELECT {traces_columns} FROM traces WHERE at_ms > ?1 AND at_ms <= (
    SELECT max(at_ms) FROM (SELECT at_ms FROM traces WHERE at_ms > ?1 ORDER BY at_ms LIMIT ?2)
) ORDER BY at_ms

-- name: pointers
-- Batches whose bodies are in a segment.
SELECT lane, base, count, published_ms, bytes_end, size, meta, segment, position FROM batches
WHERE segment = ?

-- name: skip_after_restore
-- A number of incarnations or ids that may have been given since.
UPDATE counters SET value = max(value, ?2) + ?3 WHERE name = ?1

-- name: put_line
-- A restored store goes another way than the one that was backed up, and so does its log.
REPLACE INTO counters (name, value) VALUES ('line', ?)

-- name: counters
-- All counters.
SELECT name, value FROM counters

-- name: put_store_id
-- The id of the store that a file was salvaged from.
UPDATE log SET store_id = ?

-- name: drop_trimmed
-- Batches in front of their lane's first offset: the record that trimmed them may be lost.
DELETE FROM batches WHERE base + count <= (SELECT first FROM lanes WHERE lanes.lane = batches.lane)

-- name: salvage_rows
-- Template: all rows of a table, from one end to the other.
SELECT {columns} FROM {table} ORDER BY {order}
