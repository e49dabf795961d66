-- What the nodes call. All but the parts are made again after any migration, in this order: they are always those of the
-- newest version. `{…}` stands for a part; `apply.py` fills in the tables' columns.

-- name: drop_functions
-- Those of the version before.
DROP FUNCTION IF EXISTS penstock.check_fence;
DROP FUNCTION IF EXISTS penstock.apply_commit;
DROP FUNCTION IF EXISTS penstock.pairs;
DROP FUNCTION IF EXISTS penstock.triples;
DROP FUNCTION IF EXISTS penstock.find_time;
DROP FUNCTION IF EXISTS penstock.sweep;

-- name: fence_variables
-- Part: what the fence declares.
is_locked boolean;
is_current boolean;
slots_held bigint;
has_leftovers boolean;
missed record;

-- name: fence
-- Part: commits take a shared lock on their slots; a takeover, or giving up a commit whose answer was lost, takes an
-- exclusive one. It waits for commits that have begun, and later ones see what it changed. A call in an assignment
-- costs a tenth of what it costs in a statement of its own.
is_locked := pg_advisory_xact_lock_shared('penstock.writers'::regclass::oid::integer, hashtext($1)) IS NULL;
IF cardinality($3) = 1 THEN
    is_locked := pg_advisory_xact_lock_shared('penstock.slots'::regclass::oid::integer, ($3)[1]) IS NULL;
ELSE
    PERFORM pg_advisory_xact_lock_shared('penstock.slots'::regclass::oid::integer, slot)
    FROM (SELECT unnest($3) AS slot ORDER BY 1) AS sorted;
END IF;
SELECT
    EXISTS (SELECT FROM penstock.writers w WHERE w.writer = $1 AND w.generation = $2),
    (SELECT count(*) FROM penstock.slots s WHERE s.slot = ANY ($3) AND s.epoch = ($4)[array_position($3, s.slot)]),
    EXISTS (SELECT FROM penstock.leftovers)
INTO is_current, slots_held, has_leftovers;
IF NOT is_current THEN
    RAISE EXCEPTION 'this commit was given up before it arrived' USING ERRCODE = 'PN002';
END IF;
IF slots_held <> cardinality($3) THEN
    SELECT named.slot, named.epoch, s.epoch AS held, s.owner INTO missed
    FROM unnest($3, $4) AS named (slot, epoch) LEFT JOIN penstock.slots s USING (slot)
    WHERE s.epoch IS DISTINCT FROM named.epoch LIMIT 1;
    RAISE EXCEPTION 'slot % is at epoch % of %, not at epoch %', missed.slot,
        coalesce(missed.held::text, 'none'), coalesce(missed.owner, 'nobody'), missed.epoch
        USING ERRCODE = 'PN001';
END IF;

-- name: put_rows
-- Part: put rows of one table.
IF cardinality(new_{table}) > 0 THEN
    INSERT INTO penstock.{table} SELECT * FROM unnest(new_{table}) ON CONFLICT ({key}) DO UPDATE
    SET {columns};
END IF;

-- name: update_rows
-- Part: put rows that are almost always there already: an update costs less than an insert that finds a row.
IF cardinality(new_{table}) > 0 THEN
    UPDATE penstock.{table} t SET {columns} FROM unnest(new_{table}) AS n WHERE {match};
    GET DIAGNOSTICS updated = ROW_COUNT;
    IF updated < cardinality(new_{table}) THEN
        INSERT INTO penstock.{table} SELECT * FROM unnest(new_{table}) ON CONFLICT ({key}) DO NOTHING;
    END IF;
END IF;

-- name: delete_rows
-- Part: delete rows of one table, which belong to a group of a lane.
IF cardinality(gone_{table}) > 0 THEN
    DELETE FROM penstock.{table} t USING penstock.triples(gone_{table}) k WHERE {key};
END IF;

-- name: check_fence
-- Raises unless the writer's generation and the epochs of these slots are current.
CREATE FUNCTION penstock.check_fence(writer text, generation bigint, slots integer[], epochs bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    {fence_variables}
BEGIN
    {fence}
END $$;

-- name: apply_commit
-- Applies a commit; whether it left rows to be swept. One call is one round trip and one transaction.
--
-- Every row that it touches is found by its key. A plan that is made while a table is small would read all of it, and
-- is kept while the table grows; a plan that looks expensive, as all do in a large table, would be compiled each time,
-- for milliseconds; and a plan for the values at hand is made again for each: the fence took a tenth of a commit that way.
CREATE FUNCTION penstock.apply_commit(
    writer text, generation bigint, fence_slots integer[], fence_epochs bigint[],
    gone_lanes bigint[], gone_groups bigint[][], gone_leases bigint[][], gone_waiting bigint[][],
    gone_dead bigint[][], expired_dedup bigint[][], new_lanes penstock.lanes[], new_groups penstock.groups[],
    new_leases penstock.leases[], new_waiting penstock.waiting[], new_dead penstock.dead[], new_dedup penstock.dedup[],
    new_batches penstock.batches[],
    trims bigint[][], gone_catalog_kinds text[], gone_catalog_ids bigint[], new_catalog penstock.catalog[],
    gone_outbox bigint[], new_outbox penstock.outbox[], expired_traces bigint, new_traces penstock.traces[]
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    {fence_variables}
    again bigint[];
    removed bigint;
    updated bigint;
    has_left boolean := false;
    new_version bigint;
    now_ms bigint;
BEGIN
    {fence}
    IF has_leftovers THEN
        -- Nobody sweeps these lanes meanwhile.
        PERFORM FROM penstock.leftovers l WHERE l.lane = ANY (gone_lanes)
            OR l.lane IN (SELECT n.lane FROM unnest(new_lanes) AS n) ORDER BY l.lane FOR UPDATE;
        IF FOUND AND EXISTS (
            SELECT FROM penstock.leftovers l JOIN unnest(new_lanes) AS n ON n.lane = l.lane
            WHERE n.lane <> ALL (coalesce(gone_lanes, '{}')) AND (l.below = 9223372036854775807 OR EXISTS (
                SELECT FROM unnest(new_batches) AS b WHERE b.lane = l.lane AND b.base < l.below
            ))
        ) THEN
            RAISE EXCEPTION 'rows that are left of a lane have to be removed first' USING ERRCODE = 'PN003';
        END IF;
    END IF;
    IF cardinality(gone_lanes) > 0 THEN
        DELETE FROM penstock.lanes WHERE lane = ANY (gone_lanes);
        DELETE FROM penstock.groups WHERE lane = ANY (gone_lanes);
        DELETE FROM penstock.leases WHERE lane = ANY (gone_lanes);
        DELETE FROM penstock.waiting WHERE lane = ANY (gone_lanes);
        DELETE FROM penstock.outbox WHERE lane = ANY (gone_lanes);
        -- The many rows of a lane are left to be swept, unless it starts again in the same commit.
        INSERT INTO penstock.leftovers SELECT DISTINCT gone, 0, 9223372036854775807 FROM unnest(gone_lanes) AS gone
        ON CONFLICT (lane) DO UPDATE SET below = excluded.below;
        has_left := true;
        again := ARRAY(SELECT n.lane FROM unnest(new_lanes) AS n WHERE n.lane = ANY (gone_lanes));
        IF cardinality(again) > 0 THEN
            DELETE FROM penstock.batches WHERE lane = ANY (again);
            DELETE FROM penstock.dead WHERE lane = ANY (again);
            DELETE FROM penstock.dedup WHERE lane = ANY (again);
            DELETE FROM penstock.leftovers WHERE lane = ANY (again);
        END IF;
    END IF;
    IF cardinality(gone_groups) > 0 THEN
        DELETE FROM penstock.groups t USING penstock.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
        DELETE FROM penstock.leases t USING penstock.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
        DELETE FROM penstock.waiting t USING penstock.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
        DELETE FROM penstock.dead t USING penstock.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
    END IF;
    {delete_leases}
    {delete_waiting}
    {delete_dead}
    IF cardinality(expired_dedup) > 0 THEN
        DELETE FROM penstock.dedup t USING penstock.pairs(expired_dedup) k WHERE t.lane = k.a AND t.expires_ms <= k.b;
    END IF;
    {put_lanes}
    {put_groups}
    {put_leases}
    {put_waiting}
    {put_dead}
    {put_dedup}
    {put_batches}
    IF cardinality(trims) > 0 THEN
        DELETE FROM penstock.batches t WHERE t.ctid = ANY (ARRAY(
            SELECT early.place FROM penstock.pairs(trims) k CROSS JOIN LATERAL (
                SELECT b.ctid AS place FROM penstock.batches b
                WHERE b.lane = k.a AND b.base < k.b AND b.base + b.count <= k.b ORDER BY b.base LIMIT {slice}
            ) AS early
        ));
        GET DIAGNOSTICS removed = ROW_COUNT;
        IF removed >= {slice} THEN
            INSERT INTO penstock.leftovers SELECT k.a, 0, k.b FROM penstock.pairs(trims) k WHERE (
                SELECT b.base + b.count FROM penstock.batches b WHERE b.lane = k.a ORDER BY b.base LIMIT 1
            ) <= k.b
            ON CONFLICT (lane) DO UPDATE SET below = greatest(leftovers.below, excluded.below);
            has_left := true;
        END IF;
    END IF;
    -- The counter's row is locked until the commit is in force, so versions come into force in their order.
    IF cardinality(gone_catalog_ids) > 0 OR cardinality(new_catalog) > 0 THEN
        UPDATE penstock.counters SET value = value + 1 WHERE name = 'catalog' RETURNING value INTO new_version;
    END IF;
    IF cardinality(gone_catalog_ids) > 0 THEN
        now_ms := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
        WITH gone AS (
            DELETE FROM penstock.catalog t USING unnest(gone_catalog_kinds, gone_catalog_ids) AS k (kind, id)
            WHERE t.kind = k.kind AND t.id = k.id RETURNING t.*
        )
        INSERT INTO penstock.catalog_deleted AS d SELECT {catalog_columns}, new_version, now_ms FROM gone
        ON CONFLICT (id, kind) DO UPDATE SET {catalog_changes}, version = excluded.version,
            deleted_ms = excluded.deleted_ms;
        -- Deletions are remembered for an hour; a node that is further behind reads everything.
        WITH old AS (DELETE FROM penstock.catalog_deleted WHERE deleted_ms < now_ms - 3600000 RETURNING version)
        UPDATE penstock.counters c SET value = greatest(c.value, (SELECT max(version) FROM old))
        WHERE c.name = 'forgotten' AND EXISTS (SELECT FROM old);
    END IF;
    IF cardinality(new_catalog) > 0 THEN
        DELETE FROM penstock.catalog_deleted d USING unnest(new_catalog) AS n WHERE d.id = n.id AND d.kind = n.kind;
        INSERT INTO penstock.catalog SELECT {catalog_columns}, new_version FROM unnest(new_catalog)
        ON CONFLICT (id, kind) DO UPDATE SET {catalog_changes}, version = excluded.version;
    END IF;
    IF cardinality(gone_outbox) > 0 THEN
        DELETE FROM penstock.outbox WHERE id = ANY (gone_outbox);
    END IF;
    {put_outbox}
    IF expired_traces IS NOT NULL THEN
        DELETE FROM penstock.traces WHERE at_ms <= expired_traces;
    END IF;
    {put_traces}
    RETURN has_left;
END $$;

-- name: pairs
-- Rows of two numbers.
CREATE FUNCTION penstock.pairs(keys bigint[][]) RETURNS TABLE (a bigint, b bigint) LANGUAGE sql IMMUTABLE
AS $$ SELECT keys[i][1], keys[i][2] FROM generate_subscripts(keys, 1) AS i $$;

-- name: triples
-- Rows of three numbers.
CREATE FUNCTION penstock.triples(keys bigint[][]) RETURNS TABLE (a bigint, b bigint, c bigint) LANGUAGE sql IMMUTABLE
AS $$ SELECT keys[i][1], keys[i][2], keys[i][3] FROM generate_subscripts(keys, 1) AS i $$;

-- name: find_time
-- The base of the first batch published at or after a time. Times never fall as offsets rise: a binary search.
CREATE FUNCTION penstock.find_time(of_lane bigint, time_ms bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    gone bigint; low bigint; high bigint; middle bigint; found record; last record;
BEGIN
    SELECT below INTO gone FROM penstock.leftovers WHERE lane = of_lane;
    gone := coalesce(gone, 0);
    SELECT max(base) INTO low FROM penstock.batches WHERE lane = of_lane AND base <= gone;
    SELECT base INTO low FROM penstock.batches WHERE lane = of_lane AND base >= coalesce(low, 0) AND base + count > gone
    ORDER BY base LIMIT 1;
    SELECT base, published_ms INTO last FROM penstock.batches WHERE lane = of_lane ORDER BY base DESC LIMIT 1;
    IF low IS NULL OR last.published_ms < time_ms THEN RETURN NULL; END IF;
    high := last.base;
    WHILE low < high LOOP
        middle := low + (high - low) / 2;
        SELECT base, published_ms INTO found FROM penstock.batches
        WHERE lane = of_lane AND base <= middle ORDER BY base DESC LIMIT 1;
        IF found.published_ms < time_ms THEN low := middle + 1; ELSE high := found.base; END IF;
    END LOOP;
    RETURN high;
END $$;

-- name: sweep
-- Removes a slice of what is left of a lane, or of any lane that nobody else holds; whether there was anything, held
-- by others or not.
CREATE FUNCTION penstock.sweep(of_lane bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    left_over record; last bigint; removed bigint; total bigint := 0;
BEGIN
    IF of_lane IS NULL THEN
        SELECT * INTO left_over FROM penstock.leftovers ORDER BY lane LIMIT 1 FOR UPDATE SKIP LOCKED;
    ELSE
        SELECT * INTO left_over FROM penstock.leftovers WHERE lane = of_lane FOR UPDATE;
    END IF;
    IF NOT FOUND THEN RETURN of_lane IS NULL AND EXISTS (SELECT FROM penstock.leftovers); END IF;
    WITH gone AS (
        DELETE FROM penstock.batches t WHERE t.lane = left_over.lane AND t.base = ANY (ARRAY(
            SELECT b.base FROM penstock.batches b WHERE b.lane = left_over.lane AND b.base >= left_over.above
            AND b.base < left_over.below AND b.base + b.count <= left_over.below ORDER BY b.base LIMIT {slice}
        )) RETURNING t.base
    ) SELECT max(base) INTO last FROM gone;
    IF left_over.below = 9223372036854775807 THEN
        DELETE FROM penstock.dead t WHERE t.ctid = ANY (ARRAY(
            SELECT d.ctid FROM penstock.dead d WHERE d.lane = left_over.lane LIMIT {small_slice}
        ));
        GET DIAGNOSTICS removed = ROW_COUNT;
        total := total + removed;
        DELETE FROM penstock.dedup t WHERE t.ctid = ANY (ARRAY(
            SELECT d.ctid FROM penstock.dedup d WHERE d.lane = left_over.lane LIMIT {small_slice}
        ));
        GET DIAGNOSTICS removed = ROW_COUNT;
        total := total + removed;
    END IF;
    IF last IS NULL AND total = 0 THEN
        DELETE FROM penstock.leftovers WHERE lane = left_over.lane;
    ELSE
        UPDATE penstock.leftovers SET above = coalesce(last, above) WHERE lane = left_over.lane;
    END IF;
    RETURN true;
END $$;
