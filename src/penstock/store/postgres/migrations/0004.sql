-- Leftovers: what was trimmed or deleted and is still to be swept.

CREATE TABLE penstock.leftovers (
    lane bigint PRIMARY KEY, above bigint NOT NULL, below bigint NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX outbox_by_lane ON penstock.outbox (lane);

ALTER TABLE penstock.batches SET (
    autovacuum_vacuum_cost_limit = 2000, toast.autovacuum_vacuum_cost_limit = 2000
);
