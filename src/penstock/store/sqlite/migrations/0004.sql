-- Several nodes: members, counters, and who owns which slot.

CREATE TABLE nodes (
    incarnation INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    version TEXT NOT NULL,
    lease_ms INTEGER NOT NULL,
    joined_ms INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO counters (name, value) VALUES ('incarnation', 0), ('ids', 0), ('catalog', 1);

CREATE TABLE cluster (secret TEXT NOT NULL) STRICT;

INSERT INTO cluster (secret) VALUES (lower(hex(randomblob(16))));

ALTER TABLE slots ADD COLUMN node INTEGER NOT NULL DEFAULT 0;

ALTER TABLE slots ADD COLUMN meant_for INTEGER NOT NULL DEFAULT 0;

ALTER TABLE slots ADD COLUMN since_ms INTEGER NOT NULL DEFAULT 0;

ALTER TABLE slots ADD COLUMN why TEXT NOT NULL DEFAULT '';

ALTER TABLE outbox ADD COLUMN slot INTEGER NOT NULL DEFAULT 0;

UPDATE outbox SET slot = lane % 64;
