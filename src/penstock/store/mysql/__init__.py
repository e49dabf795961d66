"""The MySQL and MariaDB engine: one database that several nodes may share."""
