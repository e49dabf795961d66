# ruff: noqa: S608 - the statements are put together from parts of this file; the schema's name is checked
"""Members, slots, ids and catalog versions on PostgreSQL: tables, functions, and the statements that call them.

Every change of membership is one call of one function: one statement, so that a node that is stopped in the middle
holds no lock for longer than the database needs. Its clock is the database's. Knows no connection; next stop:
`engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock.model.rows import SLOTS, CatalogRow, ClusterView, NodeRow, SlotRow
from penstock.store.sql.text import restored

TOMBSTONES_MS: Final = 3_600_000
"""How long deletions from the catalog are remembered; who is further behind than that reads everything."""

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Changes of membership happen one after the other.
_ALONE: Final = "PERFORM pg_advisory_xact_lock('{s}.nodes'::regclass::oid::integer, 0);"

TABLES: Final[Sequence[str]] = (
    """CREATE TABLE {s}.nodes (
        incarnation bigint PRIMARY KEY, name text NOT NULL, url text NOT NULL, version text NOT NULL,
        lease_ms bigint NOT NULL, joined_ms bigint NOT NULL, seen_ms bigint NOT NULL
    ) WITH (fillfactor = 50)""",
    # The last incarnation and id given away, the catalog's version, and up to which of them deletions are forgotten.
    "CREATE TABLE {s}.counters (name text PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50)",
    "INSERT INTO {s}.counters VALUES ('incarnation', 0), ('ids', 0), ('catalog', 1), ('forgotten', 0)",
    "CREATE TABLE {s}.cluster (secret text NOT NULL)",
    "INSERT INTO {s}.cluster VALUES (replace(gen_random_uuid()::text, '-', ''))",
    """ALTER TABLE {s}.slots ADD COLUMN node bigint NOT NULL DEFAULT 0, ADD COLUMN meant_for bigint NOT NULL DEFAULT 0,
        ADD COLUMN since_ms bigint NOT NULL DEFAULT 0, ADD COLUMN why text NOT NULL DEFAULT ''""",
    "ALTER TABLE {s}.catalog ADD COLUMN version bigint NOT NULL DEFAULT 1",
    "CREATE INDEX catalog_by_version ON {s}.catalog (version)",
    """CREATE TABLE {s}.catalog_deleted (
        kind text COLLATE "C", id bigint, parent bigint NOT NULL, namespace text NOT NULL, name text NOT NULL,
        document bytea NOT NULL, version bigint NOT NULL, deleted_ms bigint NOT NULL, PRIMARY KEY (id, kind)
    )""",
    "CREATE INDEX catalog_deleted_by_version ON {s}.catalog_deleted (version)",
    "CREATE INDEX catalog_deleted_by_time ON {s}.catalog_deleted (deleted_ms)",
    "ALTER TABLE {s}.outbox ADD COLUMN slot integer NOT NULL DEFAULT 0",
    f"UPDATE {{s}}.outbox SET slot = lane % {SLOTS}",
    "CREATE INDEX outbox_by_slot ON {s}.outbox (slot, id)",
)

FUNCTIONS: Final[Sequence[str]] = (
    f"""CREATE FUNCTION {{s}}.join_node(name text, url text, version text, lease_ms bigint)
    RETURNS TABLE (incarnation bigint, secret text) LANGUAGE plpgsql AS $$
    #variable_conflict use_column
    DECLARE given bigint; now_ms bigint := {_NOW};
    BEGIN
        {_ALONE}
        UPDATE {{s}}.counters c SET value = greatest(c.value, (SELECT coalesce(max(epoch), 0) FROM {{s}}.slots)) + 1
        WHERE c.name = 'incarnation' RETURNING c.value INTO given;
        INSERT INTO {{s}}.nodes VALUES
            (given, join_node.name, join_node.url, join_node.version, join_node.lease_ms, now_ms, now_ms);
        RETURN QUERY SELECT given, c.secret FROM {{s}}.cluster c;
    END $$""",
    # Slots under whose old epoch a commit is on its way are left for the next time: nobody waits here.
    f"""CREATE FUNCTION {{s}}.take_slots(wanted integer[], taker bigint)
    RETURNS TABLE (taken integer, new_epoch bigint) LANGUAGE plpgsql AS $$
    #variable_conflict use_column
    DECLARE taker_name text; now_ms bigint; place integer := '{{s}}.slots'::regclass::oid::integer;
    BEGIN
        {_ALONE}
        now_ms := {_NOW};
        SELECT n.name INTO taker_name FROM {{s}}.nodes n WHERE n.incarnation = taker;
        IF NOT FOUND THEN RETURN; END IF;
        WITH dead AS (
            DELETE FROM {{s}}.nodes n WHERE n.incarnation <> taker AND now_ms - n.seen_ms > n.lease_ms
            RETURNING n.incarnation, n.name, now_ms - n.seen_ms AS age_ms
        )
        UPDATE {{s}}.slots s SET node = 0, meant_for = 0, since_ms = now_ms,
            why = dead.name || ' was not heard of for ' || dead.age_ms || ' ms'
        FROM dead WHERE s.node = dead.incarnation;
        RETURN QUERY
        INSERT INTO {{s}}.slots AS s (slot, epoch, owner, node, meant_for, since_ms, why)
        SELECT slot, taker, taker_name, taker, 0, now_ms, 'taken by ' || taker_name
        FROM (SELECT DISTINCT unnest(wanted) AS slot ORDER BY 1) AS sorted WHERE pg_try_advisory_xact_lock(place, slot)
        ON CONFLICT (slot) DO UPDATE SET
            epoch = greatest(s.epoch + 1, taker), owner = taker_name, node = taker, meant_for = 0, since_ms = now_ms,
            why = 'taken by ' || taker_name
                || CASE WHEN s.why = '' THEN '' ELSE ' (' || split_part(s.why, ' (', 1) || ')' END
        WHERE s.node = taker OR NOT EXISTS (SELECT FROM {{s}}.nodes n WHERE n.incarnation = s.node)
        RETURNING s.slot, s.epoch;
    END $$""",
    f"""CREATE FUNCTION {{s}}.release_slots(gone integer[], owner_was bigint, taker bigint) RETURNS void
    LANGUAGE plpgsql AS $$
    #variable_conflict use_column
    BEGIN
        {_ALONE}
        UPDATE {{s}}.slots SET node = 0, meant_for = taker, since_ms = {_NOW}, why = 'released by '
            || coalesce((SELECT n.name FROM {{s}}.nodes n WHERE n.incarnation = owner_was), owner_was::text)
        WHERE slot = ANY (gone) AND node = owner_was;
    END $$""",
    f"""CREATE FUNCTION {{s}}.leave_node(leaver bigint) RETURNS void LANGUAGE plpgsql AS $$
    #variable_conflict use_column
    DECLARE leaver_name text;
    BEGIN
        {_ALONE}
        DELETE FROM {{s}}.nodes n WHERE n.incarnation = leaver RETURNING n.name INTO leaver_name;
        IF FOUND THEN
            UPDATE {{s}}.slots SET node = 0, meant_for = 0, since_ms = {_NOW}, why = leaver_name || ' left'
            WHERE node = leaver;
        END IF;
    END $$""",
    # A commit without rows, in one statement for the same reason.
    """CREATE FUNCTION {s}.commit_nothing(writer text, generation bigint, slots integer[], epochs bigint[])
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM {s}.check_fence(writer, generation, slots, epochs);
        UPDATE {s}.writers w SET seen = now() WHERE w.writer = commit_nothing.writer;
    END $$""",
)

# What `apply_commit` does with the catalog. The counter's row is locked until the commit is in force, so that versions
# come into force in their order.
APPLY_CATALOG: Final = f"""
        IF cardinality(gone_catalog_ids) > 0 OR cardinality(new_catalog) > 0 THEN
            UPDATE {{s}}.counters SET value = value + 1 WHERE name = 'catalog' RETURNING value INTO new_version;
        END IF;
        IF cardinality(gone_catalog_ids) > 0 THEN
            WITH gone AS (
                DELETE FROM {{s}}.catalog t USING unnest(gone_catalog_kinds, gone_catalog_ids) AS k (kind, id)
                WHERE t.kind = k.kind AND t.id = k.id RETURNING t.*
            )
            INSERT INTO {{s}}.catalog_deleted AS d
            SELECT kind, id, parent, namespace, name, document, new_version, {_NOW} FROM gone
            ON CONFLICT (id, kind) DO UPDATE SET parent = excluded.parent, namespace = excluded.namespace,
                name = excluded.name, document = excluded.document, version = excluded.version,
                deleted_ms = excluded.deleted_ms;
            WITH old AS (
                DELETE FROM {{s}}.catalog_deleted WHERE deleted_ms < {_NOW} - {TOMBSTONES_MS} RETURNING version
            )
            UPDATE {{s}}.counters c SET value = greatest(c.value, (SELECT max(version) FROM old))
            WHERE c.name = 'forgotten' AND EXISTS (SELECT FROM old);
        END IF;
        IF cardinality(new_catalog) > 0 THEN
            DELETE FROM {{s}}.catalog_deleted d USING unnest(new_catalog) AS n WHERE d.id = n.id AND d.kind = n.kind;
            INSERT INTO {{s}}.catalog
            SELECT kind, id, parent, namespace, name, document, new_version FROM unnest(new_catalog)
            ON CONFLICT (id, kind) DO UPDATE SET parent = excluded.parent, namespace = excluded.namespace,
                name = excluded.name, document = excluded.document, version = excluded.version;
        END IF;"""

# Statements ----------------------------------------------------------------------------------------------

JOIN: Final = "SELECT incarnation, secret FROM {s}.join_node($1, $2, $3, $4)"
HEARTBEAT: Final = f"""
WITH beat AS (UPDATE {{s}}.nodes SET seen_ms = {_NOW} WHERE incarnation = $1 RETURNING incarnation)
SELECT {_NOW}, EXISTS (SELECT FROM beat), (SELECT value FROM {{s}}.counters WHERE name = 'catalog'),
    (SELECT json_agg(json_build_array(incarnation, name, url, version, lease_ms, joined_ms,
        CASE WHEN incarnation = $1 THEN 0 ELSE {_NOW} - seen_ms END) ORDER BY incarnation)::text FROM {{s}}.nodes),
    (SELECT json_agg(json_build_array(slot, epoch, node, meant_for, since_ms, why) ORDER BY slot)::text
     FROM {{s}}.slots)"""
TAKE: Final = "SELECT taken, new_epoch FROM {s}.take_slots($1, $2)"
RELEASE: Final = "SELECT {s}.release_slots($1, $2, $3)"
LEAVE: Final = "SELECT {s}.leave_node($1)"
RESERVE_IDS: Final = """
UPDATE {s}.counters SET value = greatest(value, $2) + $1 WHERE name = 'ids' RETURNING value - $1 + 1"""
COMMIT_NOTHING: Final = "SELECT {s}.commit_nothing($1, $2, $3, $4)"
COUNTERS: Final = "SELECT name, value FROM {s}.counters WHERE name IN ('catalog', 'forgotten')"
CATALOG_SINCE: Final = """
SELECT kind, id, parent, namespace, name, document FROM {s}.catalog WHERE version > $1 ORDER BY id, kind"""
DELETED_SINCE: Final = """
SELECT kind, id, parent, namespace, name, document FROM {s}.catalog_deleted WHERE version > $1 ORDER BY version"""


def view_of(row: Any) -> ClusterView:
    now_ms, is_member, version, nodes, slots = row
    return ClusterView(
        now_ms,
        is_member,
        version,
        [_node(*values) for values in msgspec.json.decode(nodes or "[]")],
        [SlotRow(*values) for values in msgspec.json.decode(slots or "[]")],
    )


def _node(incarnation: int, name: str, url: str, version: str, lease_ms: int, joined_ms: int, age_ms: int) -> NodeRow:
    return NodeRow(incarnation, name, url, version, lease_ms, joined_ms, max(age_ms, 0))


def catalog_row(row: Any) -> CatalogRow:
    kind, id, parent, namespace, name, document = row
    return CatalogRow(kind, id, parent, restored(namespace), restored(name), document)
