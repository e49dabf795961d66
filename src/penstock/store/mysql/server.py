"""What a MySQL or MariaDB server must be like to be trusted with messages. Next stop: `schema.py`."""

from __future__ import annotations

import logging
from typing import Final

from penstock.model.errors import InvalidArgument
from penstock.store.mysql.pool import Connection
from penstock.store.mysql.statements import SQL

PACKET_LEAST: Final = 16 << 20
"""The longest row that can be: metadata of a batch, encoded."""
_VERSIONS_LEAST: Final = {"MariaDB": (10, 6), "MySQL": (8, 0, 19)}

log = logging.getLogger("penstock.store.mysql")


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
