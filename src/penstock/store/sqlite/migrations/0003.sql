-- Bodies move to the log; the tables are its index.

ALTER TABLE batches ADD COLUMN segment INTEGER;

ALTER TABLE batches ADD COLUMN position INTEGER;

CREATE INDEX batches_by_segment ON batches (segment) WHERE segment IS NOT NULL;

CREATE TABLE segments (segment INTEGER PRIMARY KEY, live_bytes INTEGER NOT NULL) STRICT;

CREATE TABLE log (
    store_id BLOB NOT NULL,
    turn INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    position INTEGER NOT NULL,
    record INTEGER NOT NULL,
    last_position INTEGER NOT NULL,
    syncs INTEGER NOT NULL
) STRICT;

INSERT INTO log VALUES (randomblob(16), 0, 0, 0, 1, 0, 0);
