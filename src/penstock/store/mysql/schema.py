"""The MySQL engine's server and schema: what a server must be like, and how a database reaches the newest version.

A statement that makes or changes a table commits by itself, so a migration that was interrupted is run again: each
statement must be fine with being run twice. The steps are in `migrations/`; `docs/schema/mysql.sql` shows what they add
up to. Next stop: `statements.py`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import InvalidArgument, NotFound, Unavailable
from penstock.store.mysql.pool import Connection, StoreAddress
from penstock.store.mysql.statements import SQL, filled, quoted
from penstock.store.sql.queries import Migration, fill, load_migrations

MIGRATIONS: Final = load_migrations(__package__)
PACKET_LEAST: Final = 16 << 20
"""The longest row that can be: metadata of a batch, encoded."""
_VERSIONS_LEAST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0, 19)}

log = logging.getLogger("penstock.store.mysql")


def check_made(connection: Connection, address: StoreAddress, migrations: Sequence[Migration]) -> None:
    """Raise unless the database is there and up to date; changes nothing. The connection has no database yet."""
    there = connection.fetch(filled(SQL.has_database, address.database))[0][0]
    if there:
        connection.run(fill(SQL.use_database, database=quoted(address.database)).encode())
    if not there or not connection.fetch(SQL.has_version.encode())[0][0]:
        raise NotFound(f"there is no store in the database {address.database!r}")
    version: int = connection.fetch(SQL.version.encode())[0][0]
    if version < len(migrations):
        raise InvalidArgument(
            f"the database {address.database!r} is of version {version}, this Penstock's of {len(migrations)}: start a "
            "server on it once, which brings it up to date"
        )


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


# The server -------------------------------------------------------------------------------------------


def check_server(connection: Connection, label: str) -> int:
    """Refuse a server that loses what it answered, or is too old; how long a packet may be."""
    settings = dict(connection.fetch(SQL.variables.encode()))
    check_version(settings["version"], label)
    packet_most = int(settings["max_allowed_packet"])
    if packet_most < PACKET_LEAST:
        raise InvalidArgument(
            f"{label} has max_allowed_packet = {packet_most}; it takes {PACKET_LEAST} at the least to keep every "
            f"batch:  SET GLOBAL max_allowed_packet = {PACKET_LEAST}, and the same in the server's configuration"
        )
    for name, wanted, why in losses(settings):
        raise InvalidArgument(f"{label} has {name} = {settings[name]}: {why}. Set it to {wanted}.")
    if settings.get("innodb_flush_method") == "O_DIRECT_NO_FSYNC":
        log.warning("%s has innodb_flush_method = O_DIRECT_NO_FSYNC: safe only on disks that lose nothing", label)
    return packet_most


def losses(settings: dict[str, str]) -> list[tuple[str, str, str]]:
    """Settings under which messages that were answered could be lost, or a node write to what is another's."""
    lost, fenced = "messages that were answered could be lost", "a node that lost its queues could still write to them"
    found: list[tuple[str, str, str]] = []
    if settings["innodb_flush_log_at_trx_commit"] not in ("1", "3"):
        found.append(("innodb_flush_log_at_trx_commit", "1", lost))
    if settings.get("innodb_doublewrite", "ON").upper() in ("OFF", "0", "DETECT_ONLY"):
        found.append(("innodb_doublewrite", "ON", lost))
    if settings.get("innodb_flush_method") in ("nosync", "littlesync"):
        found.append(("innodb_flush_method", "O_DIRECT or fsync", lost))
    if settings.get("log_bin") == "ON":
        # After a crash what is missing in the binary log is undone in the tables too.
        if settings.get("sync_binlog") != "1":
            found.append(("sync_binlog", "1", lost))
        if settings.get("binlog_format") == "STATEMENT":
            found.append(("binlog_format", "ROW", "commits cannot be written to the binary log so"))
    # What one server of such a cluster has locked for reading the others do not know.
    if settings.get("wsrep_on") == "ON":
        found.append(("wsrep_on", "OFF", fenced))
    if settings.get("group_replication_single_primary_mode") == "OFF":
        found.append(("group_replication_single_primary_mode", "ON", fenced))
    return found


def check_version(version: str, label: str) -> None:
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    numbers = tuple(int(part) for part in version.partition("-")[0].split(".") if part.isdigit())
    least = _VERSIONS_LEAST[kind]
    if numbers < least:
        raise InvalidArgument(f"{label} is {kind} {version}; it takes {kind} {'.'.join(map(str, least))} or newer")
