-- Leases name their session.

ALTER TABLE leases ADD COLUMN session TEXT NOT NULL DEFAULT '';
