-- Leases name their session. MySQL has no ADD COLUMN IF NOT EXISTS.

SET @statement = (
    SELECT if(count(*), 'DO 0',
    'ALTER TABLE leases ADD COLUMN session longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ('''')')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = 'leases' AND column_name = 'session'
);

PREPARE migration FROM @statement;

EXECUTE migration;

DEALLOCATE PREPARE migration;
