"""The MySQL engine's schema: how a database reaches the newest version. The steps are in `migrations/`.

A statement that makes or changes a table commits by itself, so a migration that was interrupted is run again: each
statement must be fine with being run twice. `docs/schema/mysql.sql` shows what they add up to. Next stop:
`statements.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import InvalidArgument, Unavailable
from penstock.store.mysql.literals import filled
from penstock.store.mysql.pool import Connection, StoreAddress
from penstock.store.mysql.statements import SQL, quoted
from penstock.store.sql.queries import Migration, fill, load_migrations

MIGRATIONS: Final = load_migrations(__package__)


def migrate(connection: Connection, address: StoreAddress, migrations: Sequence[Migration]) -> None:
    """Bring the database to the newest version, under a lock; refuse what Penstock cannot have made.

    The connection is one that has no database yet.
    """
    # Its name may not be longer than a database's.
    lock = "penstock " + hashlib.blake2b(address.database.encode(), digest_size=16).hexdigest()
    if connection.fetch(filled(SQL.lock_migration, lock)) != ((1,),):
        raise Unavailable(f"{address.label}: another process has been bringing it up to date for a minute")
    try:
        name = quoted(address.database)
        if not connection.fetch(filled(SQL.has_database, address.database))[0][0]:
            connection.run(fill(SQL.make_database, database=name).encode())
        connection.run(fill(SQL.use_database, database=name).encode())
        _migrate(connection, address, migrations)
    finally:
        connection.fetch(filled(SQL.unlock_migration, lock))


def _migrate(connection: Connection, address: StoreAddress, migrations: Sequence[Migration]) -> None:
    if not connection.fetch(SQL.has_version.encode())[0][0]:
        if connection.fetch(SQL.count_tables.encode())[0][0]:
            raise InvalidArgument(
                f"the database {address.database!r} has tables that Penstock did not make; name another in the URL"
            )
        connection.run(SQL.make_version.encode())
    version: int = connection.fetch(SQL.version.encode())[0][0]
    if version > len(migrations):
        raise InvalidArgument(
            f"the database {address.database!r} is of version {version} and this Penstock knows versions up to "
            f"{len(migrations)}; run the newer Penstock that wrote it"
        )
    for number, statements in enumerate(migrations[version:], version + 1):
        for statement in statements:
            connection.run(statement.encode())
        connection.run(filled(SQL.put_version, number))
