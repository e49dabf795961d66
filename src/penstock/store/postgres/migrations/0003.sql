-- Transactional enqueue: the table, its checks, and the functions that applications call.

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

CREATE FUNCTION penstock.check_enqueued() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    one_target CONSTANT text := 'a message needs one of queue and exchange to be published to, not ';
    name_rule CONSTANT text := '%s is %L; it must have 1 to 255 characters, none of them a control character';
    problem text;
BEGIN
    problem := CASE
        WHEN NEW.queue IS NULL AND NEW.exchange IS NULL THEN one_target || 'neither'
        WHEN NEW.queue IS NOT NULL AND NEW.exchange IS NOT NULL THEN one_target || 'both'
        WHEN NEW.payload IS NULL THEN 'a message needs a payload; it may be empty'
        WHEN octet_length(NEW.payload) > 16777216
            THEN format('payload has %s bytes; the limit is 16777216', octet_length(NEW.payload))
        WHEN char_length(NEW.namespace) NOT BETWEEN 1 AND 255 OR NEW.namespace ~ '[\u0001-\u001f\u007f]'
            THEN format(name_rule, 'namespace', left(NEW.namespace, 40))
        WHEN char_length(NEW.queue) NOT BETWEEN 1 AND 255 OR NEW.queue ~ '[\u0001-\u001f\u007f]'
            THEN format(name_rule, 'queue', left(NEW.queue, 40))
        WHEN char_length(NEW.exchange) NOT BETWEEN 1 AND 255 OR NEW.exchange ~ '[\u0001-\u001f\u007f]'
            THEN format(name_rule, 'exchange', left(NEW.exchange, 40))
        WHEN char_length(NEW.key) > 255
            THEN format('key has %s characters; the limit is 255', char_length(NEW.key))
        WHEN char_length(NEW.partition) > 1024
            THEN format('partition has %s characters; the limit is 1024', char_length(NEW.partition))
        WHEN char_length(NEW.dedup_id) > 255
            THEN format('dedup_id has %s characters; the limit is 255', char_length(NEW.dedup_id))
        WHEN char_length(NEW.content_type) > 255
            THEN format('content_type has %s characters; the limit is 255', char_length(NEW.content_type))
        WHEN char_length(NEW.correlation_id) > 255
            THEN format('correlation_id has %s characters; the limit is 255', char_length(NEW.correlation_id))
        WHEN char_length(NEW.trace_id) > 255
            THEN format('trace_id has %s characters; the limit is 255', char_length(NEW.trace_id))
        WHEN NEW.priority NOT BETWEEN 0 AND 255
            THEN format('priority is %s; it must be 0 to 255', NEW.priority)
        WHEN NEW.delay_ms NOT BETWEEN 0 AND 316224000000
            THEN format('delay_ms is %s; it must be 0 to 316224000000', NEW.delay_ms)
        WHEN NEW.ttl_ms NOT BETWEEN 0 AND 316224000000
            THEN format('ttl_ms is %s; it must be 0 to 316224000000', NEW.ttl_ms)
        WHEN NEW.not_before NOT BETWEEN '1970-01-01 00:00Z' AND '9999-12-31 00:00Z'
            THEN format('not_before is %s; it must be in the years 1970 to 9999', NEW.not_before)
        WHEN json_typeof(NEW.headers) <> 'object'
            THEN format('headers are a JSON %s; they must be an object', json_typeof(NEW.headers))
        WHEN octet_length(NEW.headers::text) > 262144
            THEN format('headers have %s bytes as JSON; the limit is 262144', octet_length(NEW.headers::text))
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '%', problem USING ERRCODE = '22023';
    END IF;
    NEW.enqueued_at := clock_timestamp();
    NEW.error := NULL;
    NEW.failed_at := NULL;
    RETURN NEW;
END $$;

CREATE TRIGGER enqueued_is_checked BEFORE INSERT ON penstock.enqueued
FOR EACH ROW EXECUTE FUNCTION penstock.check_enqueued();

CREATE FUNCTION penstock.notify_enqueued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('penstock_enqueued', TG_TABLE_SCHEMA);
    RETURN NULL;
END $$;

CREATE TRIGGER enqueued_is_notified AFTER INSERT ON penstock.enqueued
FOR EACH STATEMENT EXECUTE FUNCTION penstock.notify_enqueued();

CREATE FUNCTION penstock.publish(
    queue text, payload bytea, key text DEFAULT NULL, partition text DEFAULT NULL, headers json DEFAULT NULL,
    priority integer DEFAULT 0, delay_ms bigint DEFAULT 0, not_before timestamptz DEFAULT NULL,
    ttl_ms bigint DEFAULT NULL, dedup_id text DEFAULT NULL, content_type text DEFAULT NULL,
    correlation_id text DEFAULT NULL, trace_id text DEFAULT NULL, namespace text DEFAULT 'default'
) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id bigint;
BEGIN
    INSERT INTO penstock.enqueued AS e (
        namespace, queue, key, payload, partition, headers, priority, delay_ms, not_before, ttl_ms, dedup_id,
        content_type, correlation_id, trace_id
    )
    VALUES (
        coalesce(namespace, 'default'), queue, key, payload, partition, headers, coalesce(priority, 0),
        coalesce(delay_ms, 0), not_before, ttl_ms, dedup_id, content_type, correlation_id, trace_id
    )
    RETURNING e.id INTO id;
    RETURN id;
END $$;

CREATE FUNCTION penstock.publish_to(
    exchange text, payload bytea, key text DEFAULT NULL, partition text DEFAULT NULL, headers json DEFAULT NULL,
    priority integer DEFAULT 0, delay_ms bigint DEFAULT 0, not_before timestamptz DEFAULT NULL,
    ttl_ms bigint DEFAULT NULL, dedup_id text DEFAULT NULL, content_type text DEFAULT NULL,
    correlation_id text DEFAULT NULL, trace_id text DEFAULT NULL, namespace text DEFAULT 'default',
    mandatory boolean DEFAULT true
) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id bigint;
BEGIN
    INSERT INTO penstock.enqueued AS e (
        namespace, exchange, key, payload, partition, headers, priority, delay_ms, not_before, ttl_ms, dedup_id,
        content_type, correlation_id, trace_id, mandatory
    )
    VALUES (
        coalesce(namespace, 'default'), exchange, key, payload, partition, headers, coalesce(priority, 0),
        coalesce(delay_ms, 0), not_before, ttl_ms, dedup_id, content_type, correlation_id, trace_id,
        coalesce(mandatory, true)
    )
    RETURNING e.id INTO id;
    RETURN id;
END $$;

CREATE FUNCTION penstock.publish_many(messages json) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    unknown text; enqueued bigint;
BEGIN
    IF messages IS NULL OR json_typeof(messages) <> 'array' THEN
        RAISE EXCEPTION 'messages must be a JSON array of objects' USING ERRCODE = '22023';
    END IF;
    SELECT name INTO unknown FROM json_array_elements(messages) AS m (one), json_object_keys(m.one) AS k (name)
    WHERE name NOT IN ('namespace', 'queue', 'exchange', 'key', 'payload', 'payload_base64', 'partition', 'headers',
        'priority', 'delay_ms', 'not_before_ms', 'ttl_ms', 'dedup_id', 'content_type', 'correlation_id', 'trace_id',
        'mandatory') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a message has the unknown member %', quote_literal(unknown) USING ERRCODE = '22023';
    END IF;
    SELECT m.payload INTO unknown FROM json_to_recordset(messages) AS m (payload text, payload_base64 text)
    WHERE m.payload IS NOT NULL AND m.payload_base64 IS NOT NULL LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'a message has both payload and payload_base64; give one' USING ERRCODE = '22023';
    END IF;
    INSERT INTO penstock.enqueued (
        namespace, queue, exchange, key, payload, partition, headers, priority, delay_ms, not_before, ttl_ms,
        dedup_id, content_type, correlation_id, trace_id, mandatory
    )
    SELECT coalesce(m.namespace, 'default'), m.queue, m.exchange, m.key,
        coalesce(decode(m.payload_base64, 'base64'), convert_to(m.payload, 'UTF8')), m.partition,
        CASE json_typeof(m.headers) WHEN 'string' THEN (m.headers #>> '{}')::json ELSE m.headers END,
        coalesce(m.priority, 0), coalesce(m.delay_ms, 0), to_timestamp(m.not_before_ms / 1000.0), m.ttl_ms,
        m.dedup_id, m.content_type, m.correlation_id, m.trace_id, coalesce(m.mandatory, true)
    FROM ROWS FROM (json_to_recordset(messages) AS (namespace text, queue text, exchange text, key text,
        payload text, payload_base64 text, partition text, headers json, priority integer, delay_ms bigint,
        not_before_ms bigint, ttl_ms bigint, dedup_id text, content_type text, correlation_id text, trace_id text,
        mandatory boolean)) WITH ORDINALITY AS m ORDER BY m.ordinality;
    GET DIAGNOSTICS enqueued = ROW_COUNT;
    RETURN enqueued;
END $$;

REVOKE ALL ON FUNCTION penstock.publish FROM PUBLIC;

REVOKE ALL ON FUNCTION penstock.publish_to FROM PUBLIC;

REVOKE ALL ON FUNCTION penstock.publish_many FROM PUBLIC;

CREATE FUNCTION penstock.settle_enqueued(
    gone bigint[], failed bigint[], errors text[], failed_ms bigint[], retried bigint[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(gone) > 0 THEN
        DELETE FROM penstock.enqueued WHERE id = ANY (gone);
    END IF;
    IF cardinality(failed) > 0 THEN
        UPDATE penstock.enqueued e SET error = f.error, failed_at = to_timestamp(f.ms / 1000.0)
        FROM unnest(failed, errors, failed_ms) AS f (id, error, ms) WHERE e.id = f.id;
    END IF;
    IF cardinality(retried) > 0 THEN
        UPDATE penstock.enqueued SET error = NULL, failed_at = NULL WHERE id = ANY (retried);
    END IF;
END $$;
