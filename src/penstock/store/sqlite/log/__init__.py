"""The synced log in front of the SQLite file: where a commit becomes durable."""
