# ruff: noqa: S608 - the statements are put together from parts of this file; the schema's name is checked
"""The PostgreSQL engine's tables, its function that applies a commit, and every statement that it runs.

The tables are those of the SQLite engine (see the list at the top of `store/sqlite/schema.py`), and `writers`
besides. All is in one schema of the user's choice, named in full in every statement: behind a pooler that hands out a
connection per transaction nothing can be set for a session. Nothing here knows asyncio or commits. Next stop:
`engine.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import InvalidArgument
from penstock.store.postgres import coordination as cluster
from penstock.store.postgres import enqueued

DEFAULT_SCHEMA: Final = "penstock"
FENCED: Final = "PN001"
"""SQLSTATE of a commit under an epoch that has passed."""
SUPERSEDED: Final = "PN002"
"""SQLSTATE of a commit that was given up before it arrived."""
LEFT_OVER: Final = "PN003"
"""SQLSTATE of a commit that writes where rows are that nobody sees any more: they have to be removed first."""
ALL: Final = 2**63 - 1
"""The mark of leftovers of a lane of which everything is gone."""
SLICE: Final = 1000
"""Batches that one commit, or one slice of sweeping, removes of a lane at the most."""
SMALL_ROWS: Final = 5
"""So many times as many of the rows without a body go in a slice."""

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def check_schema(name: str) -> str:
    """The name of a schema that can stand in a statement as it is."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} cannot be the schema's name: small letters, digits and underscores, 63 at the most"
        )
    return name


def in_schema(statement: str, schema: str) -> str:
    """A statement of this module with the schema's name put in."""
    return statement.replace("{s}", schema)


# Hot rows are updated by every commit: half-empty pages let PostgreSQL put the new version beside the old (HOT),
# without touching an index. Rows that come and go are swept early, by count and not by share of the table.
_HOT: Final = "WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)"
_PASSING: Final = (
    "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, "
    "toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000)"
)
_SHORT: Final = "WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000)"

Migration = Sequence[str]

_VERSION_1: Final[Migration] = (
    f"""CREATE TABLE {{s}}.lanes (
        lane bigint PRIMARY KEY, slot integer NOT NULL, first bigint NOT NULL, "end" bigint NOT NULL,
        bytes_end bigint NOT NULL
    ) {_HOT}""",
    f"""CREATE TABLE {{s}}.batches (
        lane bigint, base bigint, count integer NOT NULL, published_ms bigint NOT NULL, bytes_end bigint NOT NULL,
        size bigint NOT NULL, meta bytea NOT NULL, body bytea NOT NULL, PRIMARY KEY (lane, base)
    ) {_PASSING}""",
    # Bodies are compressed by the producer where that pays.
    "ALTER TABLE {s}.batches ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN meta SET STORAGE EXTERNAL",
    f"""CREATE TABLE {{s}}.groups (
        lane bigint, group_id bigint, next bigint NOT NULL, committed bigint NOT NULL, PRIMARY KEY (lane, group_id)
    ) {_HOT}""",
    f"""CREATE TABLE {{s}}.leases (
        lane bigint, group_id bigint, lease_id bigint, deadline_ms bigint NOT NULL, consumer text NOT NULL,
        entries bytea NOT NULL, PRIMARY KEY (lane, group_id, lease_id)
    ) {_PASSING}""",
    f"""CREATE TABLE {{s}}.waiting (
        lane bigint, group_id bigint, chunk bigint, entries bytea NOT NULL, PRIMARY KEY (lane, group_id, chunk)
    ) {_PASSING}""",
    f"""CREATE TABLE {{s}}.dead (
        lane bigint, group_id bigint, start bigint, "end" bigint NOT NULL, attempts bigint NOT NULL,
        reason text NOT NULL, error text NOT NULL, consumer text NOT NULL, dead_ms bigint NOT NULL,
        PRIMARY KEY (lane, group_id, start)
    ) {_PASSING}""",
    f"""CREATE TABLE {{s}}.dedup (
        lane bigint, key bytea, "offset" bigint NOT NULL, expires_ms bigint NOT NULL, PRIMARY KEY (lane, key)
    ) {_SHORT}""",
    "CREATE INDEX dedup_by_expiry ON {s}.dedup (lane, expires_ms)",
    f"""CREATE TABLE {{s}}.outbox (
        id bigint PRIMARY KEY, lane bigint NOT NULL, "offset" bigint NOT NULL, document bytea NOT NULL
    ) {_PASSING}""",
    """CREATE TABLE {s}.catalog (
        kind text COLLATE "C", id bigint, parent bigint NOT NULL, namespace text NOT NULL, name text NOT NULL,
        document bytea NOT NULL, PRIMARY KEY (id, kind)
    )""",
    f"""CREATE TABLE {{s}}.traces (
        namespace text COLLATE "C", trace_id text COLLATE "C", at_ms bigint, id bigint, kind text NOT NULL, queue text,
        queue_id bigint NOT NULL, lane bigint, "offset" bigint, name text NOT NULL, detail text NOT NULL,
        consumer text NOT NULL, PRIMARY KEY (namespace, trace_id, at_ms, id)
    ) {_SHORT}""",
    "CREATE INDEX traces_by_time ON {s}.traces (at_ms)",
    """CREATE TABLE {s}.slots (
        slot integer PRIMARY KEY, epoch bigint NOT NULL, owner text NOT NULL
    ) WITH (fillfactor = 50)""",
    """CREATE TABLE {s}.writers (
        writer text PRIMARY KEY, generation bigint NOT NULL, seen timestamptz NOT NULL
    ) WITH (fillfactor = 50)""",
)

# Several nodes: who is there, who owns what, what was declared since when, and whose turn a row of the outbox is.
_VERSION_2: Final[Migration] = (*cluster.TABLES, *cluster.FUNCTIONS)

_VERSION_4: Final[Migration] = (
    # Batches that end at or below the mark are gone; those of a base below `above` were removed already.
    """CREATE TABLE {s}.leftovers (
        lane bigint PRIMARY KEY, above bigint NOT NULL, below bigint NOT NULL
    ) WITH (fillfactor = 50)""",
    "CREATE INDEX outbox_by_lane ON {s}.outbox (lane)",
    # At its own pace, some 40 MB/s, vacuum would fall behind a queue that is busier, and the table grow all the while.
    """ALTER TABLE {s}.batches SET (
        autovacuum_vacuum_cost_limit = 2000, toast.autovacuum_vacuum_cost_limit = 2000
    )""",
)

# Nothing but functions that are cheaper.
_VERSION_5: Final[Migration] = ()
_VERSION_6: Final[Migration] = ()

# Room on each page for the new version of a row that every commit updates, the mark of the node's last one.
_VERSION_7: Final[Migration] = ("ALTER TABLE {s}.dedup SET (fillfactor = 90)",)

_VERSION_8: Final[Migration] = ("ALTER TABLE {s}.leases ADD COLUMN IF NOT EXISTS session text NOT NULL DEFAULT ''",)

# Who commits holds the locks of his slots together with others; who takes a slot over, or gives up on a commit whose
# answer was lost, holds them alone: he waits for those that have begun, and later ones see what he changed. What is
# called in an assignment costs a tenth of what it costs in a statement of its own.
_FENCE_VARIABLES: Final = """
        is_locked boolean;
        is_current boolean;
        slots_held bigint;
        has_leftovers boolean;
        missed record;"""
_FENCE: Final = f"""
        is_locked := pg_advisory_xact_lock_shared('{{s}}.writers'::regclass::oid::integer, hashtext($1)) IS NULL;
        IF cardinality($3) = 1 THEN
            is_locked := pg_advisory_xact_lock_shared('{{s}}.slots'::regclass::oid::integer, ($3)[1]) IS NULL;
        ELSE
            PERFORM pg_advisory_xact_lock_shared('{{s}}.slots'::regclass::oid::integer, slot)
            FROM (SELECT unnest($3) AS slot ORDER BY 1) AS sorted;
        END IF;
        SELECT
            EXISTS (SELECT FROM {{s}}.writers w WHERE w.writer = $1 AND w.generation = $2),
            (SELECT count(*) FROM {{s}}.slots s WHERE s.slot = ANY ($3) AND s.epoch = ($4)[array_position($3, s.slot)]),
            EXISTS (SELECT FROM {{s}}.leftovers)
        INTO is_current, slots_held, has_leftovers;
        IF NOT is_current THEN
            RAISE EXCEPTION 'this commit was given up before it arrived' USING ERRCODE = '{SUPERSEDED}';
        END IF;
        IF slots_held <> cardinality($3) THEN
            SELECT named.slot, named.epoch, s.epoch AS held, s.owner INTO missed
            FROM unnest($3, $4) AS named (slot, epoch) LEFT JOIN {{s}}.slots s USING (slot)
            WHERE s.epoch IS DISTINCT FROM named.epoch LIMIT 1;
            RAISE EXCEPTION 'slot % is at epoch % of %, not at epoch %', missed.slot,
                coalesce(missed.held::text, 'none'), coalesce(missed.owner, 'nobody'), missed.epoch
                USING ERRCODE = '{FENCED}';
        END IF;"""

# Every row that a commit touches is found by its key. But a plan that is made while a table is small reads all of it,
# and is kept while the table grows; and one that is thought to be dear, as all are in a large table, is compiled each
# time, for milliseconds. So neither may be. And one that could be better for the values at hand is made anew for each:
# the fence took a tenth of a commit that way.
_OFF: Final = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")
_BY_INDEX: Final = "".join(f" SET {name} = off" for name in _OFF) + " SET plan_cache_mode = force_generic_plan"

FUNCTIONS: Final[Migration] = (
    *(
        f"DROP FUNCTION IF EXISTS {{s}}.{name}"
        for name in ("check_fence", "apply_commit", "pairs", "triples", "find_time", "sweep")
    ),
    f"""CREATE FUNCTION {{s}}.check_fence(writer text, generation bigint, slots integer[], epochs bigint[]) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE{_FENCE_VARIABLES}
    BEGIN{_FENCE}
    END $$""",
    # One call a commit, whatever is in it: one round trip, and one transaction by itself. Says whether it left rows
    # that have to be swept.
    f"""CREATE FUNCTION {{s}}.apply_commit(
        writer text, generation bigint, fence_slots integer[], fence_epochs bigint[],
        gone_lanes bigint[], gone_groups bigint[][], gone_leases bigint[][], gone_waiting bigint[][],
        gone_dead bigint[][], expired_dedup bigint[][], new_lanes {{s}}.lanes[], new_groups {{s}}.groups[],
        new_leases {{s}}.leases[], new_waiting {{s}}.waiting[], new_dead {{s}}.dead[], new_dedup {{s}}.dedup[],
        new_batches {{s}}.batches[],
        trims bigint[][], gone_catalog_kinds text[], gone_catalog_ids bigint[], new_catalog {{s}}.catalog[],
        gone_outbox bigint[], new_outbox {{s}}.outbox[], expired_traces bigint, new_traces {{s}}.traces[]
    ) RETURNS boolean LANGUAGE plpgsql{_BY_INDEX} AS $$
    #variable_conflict use_column
    DECLARE{_FENCE_VARIABLES}
        anew bigint[];
        removed bigint;
        updated bigint;
        has_left boolean := false;
        new_version bigint;
    BEGIN{_FENCE}
        IF has_leftovers THEN
            -- Nobody sweeps these lanes meanwhile.
            PERFORM FROM {{s}}.leftovers l WHERE l.lane = ANY (gone_lanes)
                OR l.lane IN (SELECT n.lane FROM unnest(new_lanes) AS n) ORDER BY l.lane FOR UPDATE;
            IF FOUND AND EXISTS (
                SELECT FROM {{s}}.leftovers l JOIN unnest(new_lanes) AS n ON n.lane = l.lane
                WHERE n.lane <> ALL (coalesce(gone_lanes, '{{}}')) AND (l.below = {ALL} OR EXISTS (
                    SELECT FROM unnest(new_batches) AS b WHERE b.lane = l.lane AND b.base < l.below
                ))
            ) THEN
                RAISE EXCEPTION 'rows that are left of a lane have to be removed first' USING ERRCODE = '{LEFT_OVER}';
            END IF;
        END IF;
        IF cardinality(gone_lanes) > 0 THEN
            DELETE FROM {{s}}.lanes WHERE lane = ANY (gone_lanes);
            DELETE FROM {{s}}.groups WHERE lane = ANY (gone_lanes);
            DELETE FROM {{s}}.leases WHERE lane = ANY (gone_lanes);
            DELETE FROM {{s}}.waiting WHERE lane = ANY (gone_lanes);
            DELETE FROM {{s}}.outbox WHERE lane = ANY (gone_lanes);
            -- The many rows of a lane are left to be swept, unless it starts anew in the same commit.
            INSERT INTO {{s}}.leftovers SELECT DISTINCT gone, 0, {ALL} FROM unnest(gone_lanes) AS gone
            ON CONFLICT (lane) DO UPDATE SET below = excluded.below;
            has_left := true;
            anew := ARRAY(SELECT n.lane FROM unnest(new_lanes) AS n WHERE n.lane = ANY (gone_lanes));
            IF cardinality(anew) > 0 THEN
                DELETE FROM {{s}}.batches WHERE lane = ANY (anew);
                DELETE FROM {{s}}.dead WHERE lane = ANY (anew);
                DELETE FROM {{s}}.dedup WHERE lane = ANY (anew);
                DELETE FROM {{s}}.leftovers WHERE lane = ANY (anew);
            END IF;
        END IF;
        IF cardinality(gone_groups) > 0 THEN
            DELETE FROM {{s}}.groups t USING {{s}}.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
            DELETE FROM {{s}}.leases t USING {{s}}.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
            DELETE FROM {{s}}.waiting t USING {{s}}.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
            DELETE FROM {{s}}.dead t USING {{s}}.pairs(gone_groups) k WHERE t.lane = k.a AND t.group_id = k.b;
        END IF;
        IF cardinality(gone_leases) > 0 THEN
            DELETE FROM {{s}}.leases t USING {{s}}.triples(gone_leases) k
            WHERE t.lane = k.a AND t.group_id = k.b AND t.lease_id = k.c;
        END IF;
        IF cardinality(gone_waiting) > 0 THEN
            DELETE FROM {{s}}.waiting t USING {{s}}.triples(gone_waiting) k
            WHERE t.lane = k.a AND t.group_id = k.b AND t.chunk = k.c;
        END IF;
        IF cardinality(gone_dead) > 0 THEN
            DELETE FROM {{s}}.dead t USING {{s}}.triples(gone_dead) k
            WHERE t.lane = k.a AND t.group_id = k.b AND t.start = k.c;
        END IF;
        IF cardinality(expired_dedup) > 0 THEN
            DELETE FROM {{s}}.dedup t USING {{s}}.pairs(expired_dedup) k WHERE t.lane = k.a AND t.expires_ms <= k.b;
        END IF;
        -- These are there already, but for the first time: an update costs less than an insert that finds a row.
        IF cardinality(new_lanes) > 0 THEN
            UPDATE {{s}}.lanes t SET first = n.first, "end" = n."end", bytes_end = n.bytes_end
            FROM unnest(new_lanes) AS n WHERE t.lane = n.lane;
            GET DIAGNOSTICS updated = ROW_COUNT;
            IF updated < cardinality(new_lanes) THEN
                INSERT INTO {{s}}.lanes SELECT * FROM unnest(new_lanes) ON CONFLICT (lane) DO NOTHING;
            END IF;
        END IF;
        IF cardinality(new_groups) > 0 THEN
            UPDATE {{s}}.groups t SET next = n.next, committed = n.committed
            FROM unnest(new_groups) AS n WHERE t.lane = n.lane AND t.group_id = n.group_id;
            GET DIAGNOSTICS updated = ROW_COUNT;
            IF updated < cardinality(new_groups) THEN
                INSERT INTO {{s}}.groups SELECT * FROM unnest(new_groups) ON CONFLICT (lane, group_id) DO NOTHING;
            END IF;
        END IF;
        IF cardinality(new_leases) > 0 THEN
            INSERT INTO {{s}}.leases SELECT * FROM unnest(new_leases) ON CONFLICT (lane, group_id, lease_id) DO UPDATE
            SET deadline_ms = excluded.deadline_ms, consumer = excluded.consumer, entries = excluded.entries,
                session = excluded.session;
        END IF;
        IF cardinality(new_waiting) > 0 THEN
            INSERT INTO {{s}}.waiting SELECT * FROM unnest(new_waiting) ON CONFLICT (lane, group_id, chunk) DO UPDATE
            SET entries = excluded.entries;
        END IF;
        IF cardinality(new_dead) > 0 THEN
            INSERT INTO {{s}}.dead SELECT * FROM unnest(new_dead) ON CONFLICT (lane, group_id, start) DO UPDATE
            SET "end" = excluded."end", attempts = excluded.attempts, reason = excluded.reason, error = excluded.error,
                consumer = excluded.consumer, dead_ms = excluded.dead_ms;
        END IF;
        IF cardinality(new_dedup) > 0 THEN
            INSERT INTO {{s}}.dedup SELECT * FROM unnest(new_dedup) ON CONFLICT (lane, key) DO UPDATE
            SET "offset" = excluded."offset", expires_ms = excluded.expires_ms;
        END IF;
        IF cardinality(new_batches) > 0 THEN
            INSERT INTO {{s}}.batches SELECT * FROM unnest(new_batches) ON CONFLICT (lane, base) DO UPDATE
            SET count = excluded.count, published_ms = excluded.published_ms, bytes_end = excluded.bytes_end,
                size = excluded.size, meta = excluded.meta, body = excluded.body;
        END IF;
        IF cardinality(trims) > 0 THEN
            DELETE FROM {{s}}.batches t WHERE t.ctid = ANY (ARRAY(
                SELECT early.place FROM {{s}}.pairs(trims) k CROSS JOIN LATERAL (
                    SELECT b.ctid AS place FROM {{s}}.batches b
                    WHERE b.lane = k.a AND b.base < k.b AND b.base + b.count <= k.b ORDER BY b.base LIMIT {SLICE}
                ) AS early
            ));
            GET DIAGNOSTICS removed = ROW_COUNT;
            IF removed >= {SLICE} THEN
                INSERT INTO {{s}}.leftovers SELECT k.a, 0, k.b FROM {{s}}.pairs(trims) k WHERE (
                    SELECT b.base + b.count FROM {{s}}.batches b WHERE b.lane = k.a ORDER BY b.base LIMIT 1
                ) <= k.b
                ON CONFLICT (lane) DO UPDATE SET below = greatest(leftovers.below, excluded.below);
                has_left := true;
            END IF;
        END IF;
{cluster.APPLY_CATALOG}
        IF cardinality(gone_outbox) > 0 THEN
            DELETE FROM {{s}}.outbox WHERE id = ANY (gone_outbox);
        END IF;
        IF cardinality(new_outbox) > 0 THEN
            INSERT INTO {{s}}.outbox SELECT * FROM unnest(new_outbox) ON CONFLICT (id) DO UPDATE
            SET lane = excluded.lane, "offset" = excluded."offset", document = excluded.document,
                slot = excluded.slot;
        END IF;
        IF expired_traces IS NOT NULL THEN
            DELETE FROM {{s}}.traces WHERE at_ms <= expired_traces;
        END IF;
        IF cardinality(new_traces) > 0 THEN
            INSERT INTO {{s}}.traces SELECT * FROM unnest(new_traces)
            ON CONFLICT (namespace, trace_id, at_ms, id) DO UPDATE SET
                kind = excluded.kind, queue = excluded.queue, queue_id = excluded.queue_id, lane = excluded.lane,
                "offset" = excluded."offset", name = excluded.name, detail = excluded.detail,
                consumer = excluded.consumer;
        END IF;
        RETURN has_left;
    END $$""",
    """CREATE FUNCTION {s}.pairs(keys bigint[][]) RETURNS TABLE (a bigint, b bigint) LANGUAGE sql IMMUTABLE
    AS $$ SELECT keys[i][1], keys[i][2] FROM generate_subscripts(keys, 1) AS i $$""",
    """CREATE FUNCTION {s}.triples(keys bigint[][]) RETURNS TABLE (a bigint, b bigint, c bigint) LANGUAGE sql IMMUTABLE
    AS $$ SELECT keys[i][1], keys[i][2], keys[i][3] FROM generate_subscripts(keys, 1) AS i $$""",
    # Publish times never fall as offsets rise: halve the offsets, with one look at the batch in the middle each.
    """CREATE FUNCTION {s}.find_time(of_lane bigint, time_ms bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
    DECLARE
        gone bigint; low bigint; high bigint; middle bigint; found record; last record;
    BEGIN
        SELECT below INTO gone FROM {s}.leftovers WHERE lane = of_lane;
        gone := coalesce(gone, 0);
        SELECT max(base) INTO low FROM {s}.batches WHERE lane = of_lane AND base <= gone;
        SELECT base INTO low FROM {s}.batches WHERE lane = of_lane AND base >= coalesce(low, 0) AND base + count > gone
        ORDER BY base LIMIT 1;
        SELECT base, published_ms INTO last FROM {s}.batches WHERE lane = of_lane ORDER BY base DESC LIMIT 1;
        IF low IS NULL OR last.published_ms < time_ms THEN RETURN NULL; END IF;
        high := last.base;
        WHILE low < high LOOP
            middle := low + (high - low) / 2;
            SELECT base, published_ms INTO found FROM {s}.batches
            WHERE lane = of_lane AND base <= middle ORDER BY base DESC LIMIT 1;
            IF found.published_ms < time_ms THEN low := middle + 1; ELSE high := found.base; END IF;
        END LOOP;
        RETURN high;
    END $$""",
    # Removes a slice of what is left of a lane, or of any that nobody else holds; says whether there was anything, held
    # by others or not.
    f"""CREATE FUNCTION {{s}}.sweep(of_lane bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        left_over record; last bigint; removed bigint; total bigint := 0;
    BEGIN
        IF of_lane IS NULL THEN
            SELECT * INTO left_over FROM {{s}}.leftovers ORDER BY lane LIMIT 1 FOR UPDATE SKIP LOCKED;
        ELSE
            SELECT * INTO left_over FROM {{s}}.leftovers WHERE lane = of_lane FOR UPDATE;
        END IF;
        IF NOT FOUND THEN RETURN of_lane IS NULL AND EXISTS (SELECT FROM {{s}}.leftovers); END IF;
        WITH gone AS (
            DELETE FROM {{s}}.batches t WHERE t.lane = left_over.lane AND t.base = ANY (ARRAY(
                SELECT b.base FROM {{s}}.batches b WHERE b.lane = left_over.lane AND b.base >= left_over.above
                AND b.base < left_over.below AND b.base + b.count <= left_over.below ORDER BY b.base LIMIT {SLICE}
            )) RETURNING t.base
        ) SELECT max(base) INTO last FROM gone;
        IF left_over.below = {ALL} THEN
            DELETE FROM {{s}}.dead t WHERE t.ctid = ANY (ARRAY(
                SELECT d.ctid FROM {{s}}.dead d WHERE d.lane = left_over.lane LIMIT {SLICE * SMALL_ROWS}
            ));
            GET DIAGNOSTICS removed = ROW_COUNT;
            total := total + removed;
            DELETE FROM {{s}}.dedup t WHERE t.ctid = ANY (ARRAY(
                SELECT d.ctid FROM {{s}}.dedup d WHERE d.lane = left_over.lane LIMIT {SLICE * SMALL_ROWS}
            ));
            GET DIAGNOSTICS removed = ROW_COUNT;
            total := total + removed;
        END IF;
        IF last IS NULL AND total = 0 THEN
            DELETE FROM {{s}}.leftovers WHERE lane = left_over.lane;
        ELSE
            UPDATE {{s}}.leftovers SET above = coalesce(last, above) WHERE lane = left_over.lane;
        END IF;
        RETURN true;
    END $$""",
)
"""Made anew after any migration: they are always those of the newest version."""

MIGRATIONS: Final[Sequence[Migration]] = (
    _VERSION_1, _VERSION_2, enqueued.MIGRATION, _VERSION_4, _VERSION_5, _VERSION_6, _VERSION_7, _VERSION_8
)  # fmt: skip
"""Entry n brings a schema from version n to n + 1. Entries are only ever added: schemas made by each are out there."""

# Making it -----------------------------------------------------------------------------------------------

# Shrinking the file would need a lock that readers wait for; the room is used again anyway.
VACUUM: Final = "VACUUM (SKIP_LOCKED, TRUNCATE FALSE) {s}.batches"
MIGRATION_LOCK: Final = "SELECT pg_advisory_xact_lock(1349415764, hashtext('{s}'))"
MAKE_SCHEMA: Final = "CREATE SCHEMA IF NOT EXISTS {s}"
HAS_SCHEMA: Final = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = '{s}')"
TABLES: Final = "SELECT count(*) FROM pg_class WHERE relnamespace = '{s}'::regnamespace AND relkind = 'r'"
HAS_VERSION: Final = "SELECT to_regclass('{s}.schema_version') IS NOT NULL"
MAKE_VERSION: Final = "CREATE TABLE {s}.schema_version (version integer NOT NULL)"
FIRST_VERSION: Final = "INSERT INTO {s}.schema_version VALUES (0)"
VERSION: Final = "SELECT version FROM {s}.schema_version"
SET_VERSION: Final = "UPDATE {s}.schema_version SET version = $1"

# Writing -------------------------------------------------------------------------------------------------

NEW_WRITER: Final = "INSERT INTO {s}.writers VALUES ($1, 1, now())"
OLD_WRITERS: Final = "DELETE FROM {s}.writers WHERE seen < now() - interval '30 days'"
END_WRITER: Final = "DELETE FROM {s}.writers WHERE writer = $1"
# Waits for a commit of ours that may still be under way on a lost connection, and makes sure that none comes later.
GIVE_UP: Final = "SELECT pg_advisory_xact_lock('{s}.writers'::regclass::oid::integer, hashtext($1))"
# A row that is gone comes back: `OLD_WRITERS` takes also that of one who commits every day and is never unsure.
NEXT_GENERATION: Final = """
INSERT INTO {s}.writers AS w VALUES ($1, $2, now())
ON CONFLICT (writer) DO UPDATE SET generation = greatest(w.generation + 1, excluded.generation), seen = now()
RETURNING generation"""
LOCK_SLOTS: Final = """
SELECT pg_advisory_xact_lock('{s}.slots'::regclass::oid::integer, slot)
FROM (SELECT unnest($1::integer[]) AS slot ORDER BY 1) AS sorted"""
RAISE_EPOCHS: Final = """
INSERT INTO {s}.slots AS s (slot, epoch, owner, why)
SELECT slot, 1, $2, 'acquired by ' || $2::text FROM unnest($1::integer[]) AS slot
ON CONFLICT (slot) DO UPDATE SET epoch = s.epoch + 1, owner = excluded.owner, node = 0, meant_for = 0,
    why = excluded.why RETURNING slot, epoch"""
SWEEP: Final = "SELECT {s}.sweep($1)"
APPLY: Final = f"SELECT {{s}}.apply_commit({', '.join(f'${number}' for number in range(1, 26))})"
# One statement is one transaction; what it says of enqueued rows is in force with all the rest, or not at all.
_SETTLED_FROM: Final = APPLY.count("$") + 1
APPLY_AND_SETTLE: Final = (
    f"{APPLY}, {{s}}.settle_enqueued({', '.join(f'${number}' for number in range(_SETTLED_FROM, _SETTLED_FROM + 5))})"
)

# Lane images ---------------------------------------------------------------------------------------------

# If the newest batch is gone, all are.
LANES: Final = """
SELECT lane, first, "end", bytes_end, coalesce((
    SELECT CASE WHEN b.base + b.count > coalesce((SELECT below FROM {s}.leftovers o WHERE o.lane = l.lane), 0)
        THEN published_ms END
    FROM {s}.batches b WHERE b.lane = l.lane ORDER BY base DESC LIMIT 1
), 0) FROM {s}.lanes l WHERE lane = ANY ($1::bigint[])"""
GONE_LANES: Final = f"SELECT lane FROM {{s}}.leftovers WHERE lane = ANY ($1::bigint[]) AND below = {ALL}"
GROUPS: Final = """
SELECT lane, group_id, next, committed FROM {s}.groups WHERE lane = ANY ($1::bigint[]) ORDER BY lane, group_id"""
LEASES: Final = """
SELECT lane, group_id, lease_id, deadline_ms, consumer, entries, session FROM {s}.leases
WHERE lane = ANY ($1::bigint[])
ORDER BY lane, group_id, lease_id"""
WAITING: Final = """
SELECT lane, group_id, chunk, entries FROM {s}.waiting WHERE lane = ANY ($1::bigint[])
ORDER BY lane, group_id, chunk"""
DEAD: Final = """
SELECT lane, group_id, start, "end", attempts, reason, error, consumer, dead_ms FROM {s}.dead
WHERE lane = ANY ($1::bigint[]) ORDER BY lane, group_id, start"""
DEDUP_NEWEST: Final = """
SELECT wanted.lane, d.key, d."offset", d.expires_ms FROM unnest($1::bigint[]) AS wanted (lane), LATERAL (
    SELECT key, "offset", expires_ms FROM {s}.dedup WHERE lane = wanted.lane
    ORDER BY expires_ms DESC, key DESC LIMIT $2
) AS d"""

# The log -------------------------------------------------------------------------------------------------

_START: Final = "greatest($2, (SELECT below FROM {s}.leftovers WHERE lane = $1))"
_FROM_BATCH: Final = f"coalesce((SELECT max(base) FROM {{s}}.batches WHERE lane = $1 AND base <= {_START}), {_START})"
BATCHES: Final = f"""
SELECT base, count, published_ms, bytes_end, meta, body FROM {{s}}.batches WHERE lane = $1 AND base = ANY (ARRAY(
    SELECT base FROM (
        SELECT base, sum(size) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
        FROM (
            SELECT base, size FROM {{s}}.batches
            WHERE lane = $1 AND base >= {_FROM_BATCH} AND base < $3 AND base + count > {_START} ORDER BY base LIMIT 1000
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $4
)) ORDER BY base"""
HEADS: Final = f"""
SELECT base, count, published_ms, bytes_end, size, meta FROM {{s}}.batches WHERE lane = $1 AND base = ANY (ARRAY(
    SELECT base FROM (
        SELECT base, sum(length) OVER (ORDER BY base) AS total, row_number() OVER (ORDER BY base) AS number
        FROM (
            SELECT base, octet_length(meta) AS length FROM {{s}}.batches
            WHERE lane = $1 AND base >= {_FROM_BATCH} AND base + count > {_START} ORDER BY base LIMIT $3
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $4
)) ORDER BY base"""
FIND_TIME: Final = "SELECT {s}.find_time($1, $2)"

# The rest ------------------------------------------------------------------------------------------------

DEDUP: Final = f"""
SELECT key, "offset", expires_ms FROM {{s}}.dedup WHERE lane = $1 AND key = ANY ($2::bytea[])
AND NOT EXISTS (SELECT FROM {{s}}.leftovers WHERE lane = $1 AND below = {ALL})"""
CATALOG: Final = "SELECT kind, id, parent, namespace, name, document FROM {s}.catalog ORDER BY id, kind"
OUTBOX: Final = """
SELECT id, lane, "offset", document, slot FROM {s}.outbox WHERE id > $1 AND ($3::integer[] IS NULL OR slot = ANY ($3))
ORDER BY id LIMIT $2"""
TRACE: Final = """
SELECT namespace, trace_id, at_ms, id, kind, queue, queue_id, lane, "offset", name, detail, consumer FROM {s}.traces
WHERE namespace = $1 AND trace_id = $2 ORDER BY at_ms, id LIMIT $3"""
OLDEST_TRACE: Final = "SELECT min(at_ms) FROM {s}.traces"

# A seek per lane, past all of its rows, where DISTINCT would walk every row.
LANES_IN_USE: Final = """
WITH RECURSIVE leased (lane) AS (
    SELECT min(lane) FROM {s}.leases
    UNION ALL
    SELECT (SELECT min(lane) FROM {s}.leases WHERE lane > leased.lane) FROM leased WHERE leased.lane IS NOT NULL
), waits (lane) AS (
    SELECT min(lane) FROM {s}.waiting
    UNION ALL
    SELECT (SELECT min(lane) FROM {s}.waiting WHERE lane > waits.lane) FROM waits WHERE waits.lane IS NOT NULL
)
SELECT lane FROM leased WHERE lane IS NOT NULL UNION SELECT lane FROM waits WHERE lane IS NOT NULL ORDER BY lane"""
