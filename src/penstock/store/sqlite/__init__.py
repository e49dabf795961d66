"""The SQLite engine: one file and a synced log beside it, for one machine."""
