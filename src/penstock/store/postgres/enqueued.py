# ruff: noqa: S608 - the statements are put together from parts of this file; the schema's name is checked
"""Transactional enqueue on PostgreSQL: the table that applications write, the functions that they call, the statements.

An application puts rows into `enqueued` inside its own transaction, by `publish`, `publish_to`, `publish_many` or an
INSERT; a node takes them out in the commit that publishes them. What can be checked is checked by a trigger, so that a
mistake is the application's error and not a row that waits for somebody to look at it. The functions run with the
rights of whoever made the schema: a role that may call them needs no right on any table. Nothing here knows asyncio or
commits. Next stop: `schema.py`, which has all other tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.model import (
    HEADERS_BYTES_MAX,
    ID_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_MAX,
    PRIORITY_MAX,
    SPAN_MS_MAX,
)

CHANNEL: Final = "penstock_enqueued"
"""What is notified when rows are committed; the payload is the schema's name."""
WRONG: Final = "22023"
"""SQLSTATE of a value that cannot be published: invalid_parameter_value."""
HEADERS_TEXT_MAX: Final = 4 * HEADERS_BYTES_MAX
"""JSON writes some values longer than they are."""

_TEXT_COLUMNS: Final = (
    ("key", NAME_CHARACTERS_MAX),
    ("partition", PARTITION_CHARACTERS_MAX),
    ("dedup_id", ID_CHARACTERS_MAX),
    ("content_type", ID_CHARACTERS_MAX),
    ("correlation_id", ID_CHARACTERS_MAX),
    ("trace_id", ID_CHARACTERS_MAX),
)
_NUMBERS: Final = (("priority", PRIORITY_MAX), ("delay_ms", SPAN_MS_MAX), ("ttl_ms", SPAN_MS_MAX))
_COLUMNS: Final = (
    "namespace, queue, exchange, key, payload, partition, headers, priority, delay_ms, not_before, ttl_ms, dedup_id, "
    "content_type, correlation_id, trace_id, mandatory"
)
# The arguments that both functions have, behind their own.
_OPTIONS: Final = """partition text DEFAULT NULL, headers json DEFAULT NULL,
        priority integer DEFAULT 0, delay_ms bigint DEFAULT 0, not_before timestamptz DEFAULT NULL,
        ttl_ms bigint DEFAULT NULL, dedup_id text DEFAULT NULL, content_type text DEFAULT NULL,
        correlation_id text DEFAULT NULL, trace_id text DEFAULT NULL, namespace text DEFAULT 'default'"""
_FIRST_TIME: Final = "'1970-01-01 00:00Z'"
_LAST_TIME: Final = "'9999-12-31 00:00Z'"
_AS_OWNER: Final = "LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp"


def _wrong(condition: str, text: str, *values: str) -> str:
    """A check: if the condition holds, an error in the application's transaction."""
    given = "".join(f", {value}" for value in values)
    return f"IF {condition} THEN RAISE EXCEPTION '{text}'{given} USING ERRCODE = '{WRONG}'; END IF;"


def _checks() -> str:
    names = [
        _wrong(
            f"NEW.{name} IS NOT NULL AND (char_length(NEW.{name}) NOT BETWEEN 1 AND {NAME_CHARACTERS_MAX} "
            rf"OR NEW.{name} ~ '[\u0001-\u001f\u007f]')",
            f"{name} is %; it must have 1 to {NAME_CHARACTERS_MAX} characters, none of them a control character",
            f"quote_literal(left(NEW.{name}, 40))",
        )
        for name in ("namespace", "queue", "exchange")
    ]
    texts = [
        _wrong(
            f"char_length(NEW.{name}) > {most}", f"{name} has % characters; the limit is {most}",
            f"char_length(NEW.{name})",
        )
        for name, most in _TEXT_COLUMNS
    ]  # fmt: skip
    numbers = [
        _wrong(f"NEW.{name} NOT BETWEEN 0 AND {most}", f"{name} is %; it must be 0 to {most}", f"NEW.{name}")
        for name, most in _NUMBERS
    ]
    return "\n        ".join(
        [
            _wrong(
                "(NEW.queue IS NULL) = (NEW.exchange IS NULL)",
                "a message needs one of queue and exchange to be published to, not %",
                "CASE WHEN NEW.queue IS NULL THEN 'neither' ELSE 'both' END",
            ),
            _wrong("NEW.payload IS NULL", "a message needs a payload; it may be empty"),
            _wrong(
                f"octet_length(NEW.payload) > {PAYLOAD_BYTES_MAX}",
                f"payload has % bytes; the limit is {PAYLOAD_BYTES_MAX}", "octet_length(NEW.payload)",
            ),
            *names, *texts, *numbers,
            _wrong(
                f"NEW.not_before NOT BETWEEN {_FIRST_TIME} AND {_LAST_TIME}",
                "not_before is %; it must be in the years 1970 to 9999", "NEW.not_before",
            ),
            _wrong(
                "json_typeof(NEW.headers) <> 'object'", "headers are a JSON %; they must be an object",
                "json_typeof(NEW.headers)",
            ),
            _wrong(
                f"octet_length(NEW.headers::text) > {HEADERS_TEXT_MAX}",
                f"headers have % bytes as JSON; the limit is {HEADERS_TEXT_MAX}", "octet_length(NEW.headers::text)",
            ),
        ]
    )  # fmt: skip


def _function(name: str, kind: str, *, more: str, target: str, mandatory: str) -> str:
    return f"""CREATE FUNCTION {{s}}.{name}(
        {kind} text, payload bytea, key text DEFAULT NULL, {_OPTIONS}{more}
    ) RETURNS bigint {_AS_OWNER} AS $$
    #variable_conflict use_variable
    DECLARE
        id bigint;
    BEGIN
        INSERT INTO {{s}}.enqueued AS e ({_COLUMNS})
        VALUES (coalesce(namespace, 'default'), {target}, key, payload, partition, headers, coalesce(priority, 0),
                coalesce(delay_ms, 0), not_before, ttl_ms, dedup_id, content_type, correlation_id, trace_id,
                coalesce({mandatory}, true))
        RETURNING e.id INTO id;
        RETURN id;
    END $$"""


# A message of `publish_many` has the names that it has in the HTTP API; a name that is none of them is a mistake. Its
# headers may be an object, or one written as text: PostgreSQL reads no NUL character inside of the whole.
_MEMBERS: Final = (
    "namespace text, queue text, exchange text, key text, payload text, payload_base64 text, partition text, "
    "headers json, priority integer, delay_ms bigint, not_before_ms bigint, ttl_ms bigint, dedup_id text, "
    "content_type text, correlation_id text, trace_id text, mandatory boolean"
)
_MEMBER_NAMES: Final = ", ".join(f"'{member.split()[0]}'" for member in _MEMBERS.split(", "))

MIGRATION: Final[Sequence[str]] = (
    f"""CREATE TABLE {{s}}.enqueued (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, namespace text NOT NULL DEFAULT 'default', queue text,
        exchange text, key text, payload bytea NOT NULL, partition text, headers json,
        priority integer NOT NULL DEFAULT 0, delay_ms bigint NOT NULL DEFAULT 0, not_before timestamptz, ttl_ms bigint,
        dedup_id text, content_type text, correlation_id text, trace_id text, mandatory boolean NOT NULL DEFAULT true,
        enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(), error text, failed_at timestamptz,
        CONSTRAINT not_before_can_be_read CHECK (not_before BETWEEN {_FIRST_TIME} AND {_LAST_TIME})
    ) WITH (
        autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
        toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000
    )""",
    "ALTER TABLE {s}.enqueued ALTER COLUMN payload SET STORAGE EXTERNAL",
    # Rows that have failed stay where they are, and must not be in the way of the others.
    "CREATE INDEX enqueued_to_publish ON {s}.enqueued (id) WHERE failed_at IS NULL",
    "CREATE INDEX enqueued_failed ON {s}.enqueued (namespace, id) WHERE failed_at IS NOT NULL",
    f"""CREATE FUNCTION {{s}}.check_enqueued() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        {_checks()}
        NEW.enqueued_at := clock_timestamp();
        NEW.error := NULL;
        NEW.failed_at := NULL;
        RETURN NEW;
    END $$""",
    """CREATE TRIGGER enqueued_is_checked BEFORE INSERT ON {s}.enqueued
    FOR EACH ROW EXECUTE FUNCTION {s}.check_enqueued()""",
    # Sent by the database when the transaction commits, once however many rows it has.
    f"""CREATE FUNCTION {{s}}.notify_enqueued() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('{CHANNEL}', TG_TABLE_SCHEMA);
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER enqueued_is_notified AFTER INSERT ON {s}.enqueued
    FOR EACH STATEMENT EXECUTE FUNCTION {s}.notify_enqueued()""",
    _function("publish", "queue", more="", target="queue, NULL", mandatory="true"),
    _function(
        "publish_to",
        "exchange",
        more=", mandatory boolean DEFAULT true",
        target="NULL, exchange",
        mandatory="mandatory",
    ),
    f"""CREATE FUNCTION {{s}}.publish_many(messages json) RETURNS bigint {_AS_OWNER} AS $$
    DECLARE
        unknown text; enqueued bigint;
    BEGIN
        IF messages IS NULL OR json_typeof(messages) <> 'array' THEN
            RAISE EXCEPTION 'messages must be a JSON array of objects' USING ERRCODE = '{WRONG}';
        END IF;
        SELECT name INTO unknown FROM json_array_elements(messages) AS m (one), json_object_keys(m.one) AS k (name)
        WHERE name NOT IN ({_MEMBER_NAMES}) LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'a message has the unknown member %', quote_literal(unknown) USING ERRCODE = '{WRONG}';
        END IF;
        SELECT m.payload INTO unknown FROM json_to_recordset(messages) AS m (payload text, payload_base64 text)
        WHERE m.payload IS NOT NULL AND m.payload_base64 IS NOT NULL LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'a message has both payload and payload_base64; give one' USING ERRCODE = '{WRONG}';
        END IF;
        INSERT INTO {{s}}.enqueued ({_COLUMNS})
        SELECT coalesce(m.namespace, 'default'), m.queue, m.exchange, m.key,
            coalesce(decode(m.payload_base64, 'base64'), convert_to(m.payload, 'UTF8')), m.partition,
            CASE json_typeof(m.headers) WHEN 'string' THEN (m.headers #>> '{{}}')::json ELSE m.headers END,
            coalesce(m.priority, 0), coalesce(m.delay_ms, 0), to_timestamp(m.not_before_ms / 1000.0), m.ttl_ms,
            m.dedup_id, m.content_type, m.correlation_id, m.trace_id, coalesce(m.mandatory, true)
        FROM ROWS FROM (json_to_recordset(messages) AS ({_MEMBERS})) WITH ORDINALITY AS m (
            {", ".join(member.split()[0] for member in _MEMBERS.split(", "))}, place
        ) ORDER BY m.place;
        GET DIAGNOSTICS enqueued = ROW_COUNT;
        RETURN enqueued;
    END $$""",
    # Everybody may execute a function unless told otherwise; here everybody is told.
    "REVOKE ALL ON FUNCTION {s}.publish FROM PUBLIC",
    "REVOKE ALL ON FUNCTION {s}.publish_to FROM PUBLIC",
    "REVOKE ALL ON FUNCTION {s}.publish_many FROM PUBLIC",
    """CREATE FUNCTION {s}.settle_enqueued(
        gone bigint[], failed bigint[], errors text[], failed_ms bigint[], retried bigint[]
    ) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        IF cardinality(gone) > 0 THEN
            DELETE FROM {s}.enqueued WHERE id = ANY (gone);
        END IF;
        IF cardinality(failed) > 0 THEN
            UPDATE {s}.enqueued e SET error = f.error, failed_at = to_timestamp(f.ms / 1000.0)
            FROM unnest(failed, errors, failed_ms) AS f (id, error, ms) WHERE e.id = f.id;
        END IF;
        IF cardinality(retried) > 0 THEN
            UPDATE {s}.enqueued SET error = NULL, failed_at = NULL WHERE id = ANY (retried);
        END IF;
    END $$""",
)
"""The step that brings all of it into a schema."""

# Reading -------------------------------------------------------------------------------------------------

_MS: Final = "floor(extract(epoch FROM {column}) * 1000)::bigint"
# The payloads' sizes are looked at before any payload is read.
ENQUEUED: Final = f"""
SELECT id, namespace, queue, exchange, payload, key, partition, headers::text, priority, delay_ms,
    coalesce({_MS.format(column="not_before")}, 0), ttl_ms, dedup_id, content_type, correlation_id, trace_id, mandatory,
    {_MS.format(column="enqueued_at")}
FROM {{s}}.enqueued WHERE id = ANY (ARRAY(
    SELECT id FROM (
        SELECT id, sum(size) OVER (ORDER BY id) AS total, row_number() OVER (ORDER BY id) AS number FROM (
            SELECT id, octet_length(payload) AS size FROM {{s}}.enqueued e
            WHERE failed_at IS NULL AND NOT EXISTS (
                SELECT FROM unnest($3::text[], $4::text[], $5::text[]) AS passed (namespace, queue, exchange)
                WHERE e.namespace = passed.namespace AND e.queue IS NOT DISTINCT FROM passed.queue
                    AND e.exchange IS NOT DISTINCT FROM passed.exchange
            ) ORDER BY id LIMIT $1
        ) AS near
    ) AS sized WHERE number = 1 OR total <= $2
)) AND failed_at IS NULL ORDER BY id"""
FAILED: Final = f"""
SELECT id, namespace, queue, exchange, key, octet_length(payload), {_MS.format(column="enqueued_at")},
    coalesce(error, ''), {_MS.format(column="failed_at")}
FROM {{s}}.enqueued WHERE failed_at IS NOT NULL AND namespace = $1 AND id > $2 ORDER BY id LIMIT $3"""
COUNT_FAILED: Final = "SELECT count(*) FROM {s}.enqueued WHERE failed_at IS NOT NULL"
