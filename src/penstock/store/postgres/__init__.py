"""The PostgreSQL engine: one database that several nodes may share."""
