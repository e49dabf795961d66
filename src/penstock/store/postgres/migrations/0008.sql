-- Leases name their session.

ALTER TABLE penstock.leases ADD COLUMN IF NOT EXISTS session text NOT NULL DEFAULT '';
