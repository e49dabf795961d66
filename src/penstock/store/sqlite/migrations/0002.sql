-- Traces.

CREATE TABLE traces (
    namespace TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    queue TEXT,
    queue_id INTEGER NOT NULL,
    lane INTEGER,
    offset INTEGER,
    name TEXT NOT NULL,
    detail TEXT NOT NULL,
    consumer TEXT NOT NULL,
    PRIMARY KEY (namespace, trace_id, at_ms, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX traces_by_time ON traces (at_ms);
