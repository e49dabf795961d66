"""The SQLite file's schema: how a file reaches the newest version. The steps are in `migrations/`.

Nothing here knows threads, asyncio or commits. A file's version is its `user_version`; a new file runs the same
migrations as an old one, so there is one way to each schema. `docs/schema/sqlite.sql` shows what they add
up to. Next stop: `statements.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import StoreCorrupt
from penstock.store.sql.queries import Migration, load_migrations
from penstock.store.sqlite.statements import SQL

APPLICATION_ID: Final = 0x504E5354
"""`PNST` in the file's header: tells a Penstock file from someone else's SQLite database."""
MIGRATIONS: Final = load_migrations(__package__)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the file to the newest schema, one transaction a version; refuse what Penstock cannot have written."""
    while check_version(connection, migrations) < len(migrations):
        connection.execute("BEGIN IMMEDIATE")
        # Asked again under the write lock: another process may have opened the same new file.
        version = check_version(connection, migrations)
        if version < len(migrations):
            for statement in migrations[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
        connection.execute("COMMIT")


def check_version(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> int:
    """The file's version; an error where it is not Penstock's or is newer than this Penstock."""
    version, application, tables = connection.execute(SQL.file_version).fetchone()
    if application != APPLICATION_ID and (version or tables):
        raise StoreCorrupt("it is an SQLite database that Penstock did not make; name another file")
    if version > len(migrations):
        raise StoreCorrupt(
            f"it has schema version {version} and this Penstock knows versions up to {len(migrations)}; "
            f"open it with the newer Penstock that wrote it"
        )
    return int(version)
