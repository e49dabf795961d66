-- Several nodes: members, counters, and who owns which slot; catalog versions.

CREATE TABLE penstock.nodes (
    incarnation bigint PRIMARY KEY, name text NOT NULL, url text NOT NULL, version text NOT NULL,
    lease_ms bigint NOT NULL, joined_ms bigint NOT NULL, seen_ms bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE penstock.counters (name text PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50);

INSERT INTO penstock.counters VALUES ('incarnation', 0), ('ids', 0), ('catalog', 1), ('forgotten', 0);

CREATE TABLE penstock.cluster (secret text NOT NULL);

INSERT INTO penstock.cluster VALUES (replace(gen_random_uuid()::text, '-', ''));

ALTER TABLE penstock.slots ADD COLUMN node bigint NOT NULL DEFAULT 0, ADD COLUMN meant_for bigint NOT NULL DEFAULT 0,
    ADD COLUMN since_ms bigint NOT NULL DEFAULT 0, ADD COLUMN why text NOT NULL DEFAULT '';

ALTER TABLE penstock.catalog ADD COLUMN version bigint NOT NULL DEFAULT 1;

CREATE INDEX catalog_by_version ON penstock.catalog (version);

CREATE TABLE penstock.catalog_deleted (
    kind text COLLATE "C", id bigint, parent bigint NOT NULL, namespace text NOT NULL, name text NOT NULL,
    document bytea NOT NULL, version bigint NOT NULL, deleted_ms bigint NOT NULL, PRIMARY KEY (id, kind)
);

CREATE INDEX catalog_deleted_by_version ON penstock.catalog_deleted (version);

CREATE INDEX catalog_deleted_by_time ON penstock.catalog_deleted (deleted_ms);

ALTER TABLE penstock.outbox ADD COLUMN slot integer NOT NULL DEFAULT 0;

UPDATE penstock.outbox SET slot = lane % 64;

CREATE INDEX outbox_by_slot ON penstock.outbox (slot, id);

CREATE FUNCTION penstock.join_node(name text, url text, version text, lease_ms bigint)
RETURNS TABLE (incarnation bigint, secret text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE given bigint; now_ms bigint := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
BEGIN
    PERFORM pg_advisory_xact_lock('penstock.nodes'::regclass::oid::integer, 0);
    UPDATE penstock.counters c SET value = greatest(c.value, (SELECT coalesce(max(epoch), 0) FROM penstock.slots)) + 1
    WHERE c.name = 'incarnation' RETURNING c.value INTO given;
    INSERT INTO penstock.nodes VALUES
        (given, join_node.name, join_node.url, join_node.version, join_node.lease_ms, now_ms, now_ms);
    RETURN QUERY SELECT given, c.secret FROM penstock.cluster c;
END $$;

CREATE FUNCTION penstock.take_slots(wanted integer[], taker bigint)
RETURNS TABLE (taken integer, new_epoch bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE taker_name text; now_ms bigint; place integer := 'penstock.slots'::regclass::oid::integer;
BEGIN
    PERFORM pg_advisory_xact_lock('penstock.nodes'::regclass::oid::integer, 0);
    now_ms := (extract(epoch FROM clock_timestamp()) * 1000)::bigint;
    SELECT n.name INTO taker_name FROM penstock.nodes n WHERE n.incarnation = taker;
    IF NOT FOUND THEN RETURN; END IF;
    WITH dead AS (
        DELETE FROM penstock.nodes n WHERE n.incarnation <> taker AND now_ms - n.seen_ms > n.lease_ms
        RETURNING n.incarnation, n.name, now_ms - n.seen_ms AS age_ms
    )
    UPDATE penstock.slots s SET node = 0, meant_for = 0, since_ms = now_ms,
        why = dead.name || ' was not heard of for ' || dead.age_ms || ' ms'
    FROM dead WHERE s.node = dead.incarnation;
    RETURN QUERY
    INSERT INTO penstock.slots AS s (slot, epoch, owner, node, meant_for, since_ms, why)
    SELECT slot, taker, taker_name, taker, 0, now_ms, 'taken by ' || taker_name
    FROM (SELECT DISTINCT unnest(wanted) AS slot ORDER BY 1) AS sorted WHERE pg_try_advisory_xact_lock(place, slot)
    ON CONFLICT (slot) DO UPDATE SET
        epoch = greatest(s.epoch + 1, taker), owner = taker_name, node = taker, meant_for = 0, since_ms = now_ms,
        why = 'taken by ' || taker_name
            || CASE WHEN s.why = '' THEN '' ELSE ' (' || split_part(s.why, ' (', 1) || ')' END
    WHERE s.node = taker OR NOT EXISTS (SELECT FROM penstock.nodes n WHERE n.incarnation = s.node)
    RETURNING s.slot, s.epoch;
END $$;

CREATE FUNCTION penstock.release_slots(gone integer[], owner_was bigint, taker bigint) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock('penstock.nodes'::regclass::oid::integer, 0);
    UPDATE penstock.slots SET node = 0, meant_for = taker,
    since_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, why = 'released by '
        || coalesce((SELECT n.name FROM penstock.nodes n WHERE n.incarnation = owner_was), owner_was::text)
    WHERE slot = ANY (gone) AND node = owner_was;
END $$;

CREATE FUNCTION penstock.leave_node(leaver bigint) RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE leaver_name text;
BEGIN
    PERFORM pg_advisory_xact_lock('penstock.nodes'::regclass::oid::integer, 0);
    DELETE FROM penstock.nodes n WHERE n.incarnation = leaver RETURNING n.name INTO leaver_name;
    IF FOUND THEN
        UPDATE penstock.slots SET node = 0, meant_for = 0,
        since_ms = (extract(epoch FROM clock_timestamp()) * 1000)::bigint, why = leaver_name || ' left'
        WHERE node = leaver;
    END IF;
END $$;

CREATE FUNCTION penstock.commit_nothing(writer text, generation bigint, slots integer[], epochs bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM penstock.check_fence(writer, generation, slots, epochs);
    UPDATE penstock.writers w SET seen = now() WHERE w.writer = commit_nothing.writer;
END $$;
