# ruff: noqa: S608 - the statements are put together from parts of this file
"""Members, slots, ids and catalog versions on MySQL and MariaDB: the part of the contract that several nodes need.

Every change of membership goes to the server as one packet, from START TRANSACTION to COMMIT: a node that is paused in
the middle holds no lock for longer than the server needs. Its clock is the server's. Who owns a slot lies in a table of
its own, `slot_owners`: rows of `slots` are locked by commits under way, and here nobody waits for those. Knows no
thread; next stop: `engine.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

from penstock.model.rows import CatalogChanges, CatalogRow, ClusterView, Commit, Joined, Member, NodeRow, SlotRow
from penstock.store.mysql.literals import Expression, filled, literal, numbers
from penstock.store.mysql.pool import Connection

TOMBSTONES_MS: Final = 3_600_000
"""How long deletions from the catalog are remembered; who is further behind than that reads everything."""

NOW_MS: Final = "timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)) DIV 1000"
_BEGIN: Final = b"START TRANSACTION"
_END: Final = b"COMMIT"
_SNAPSHOT: Final = (
    b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
)
# Changes of membership happen one after the other.
_ALONE: Final = b"SELECT id FROM shared FORCE INDEX (PRIMARY) WHERE id = 2 FOR UPDATE"
_CATALOG: Final = "kind, id, parent, namespace, name, document"


def tables(text: str, table: str) -> Sequence[str]:
    """Statements that make the tables; `text` is the type of texts, `table` what stands behind the columns."""
    return (
        f"""CREATE TABLE IF NOT EXISTS nodes (
            incarnation bigint PRIMARY KEY, name {text} NOT NULL, url {text} NOT NULL, version {text} NOT NULL,
            lease_ms bigint NOT NULL, joined_ms bigint NOT NULL, seen_ms bigint NOT NULL
        ) {table}""",
        f"""CREATE TABLE IF NOT EXISTS slot_owners (
            slot integer PRIMARY KEY, node bigint NOT NULL, meant_for bigint NOT NULL, since_ms bigint NOT NULL,
            why {text} NOT NULL
        ) {table}""",
        # The last incarnation and id given away, the catalog's version, and up to which deletions are forgotten.
        f"CREATE TABLE IF NOT EXISTS counters (name varbinary(64) PRIMARY KEY, value bigint NOT NULL) {table}",
        "INSERT IGNORE INTO counters VALUES ('incarnation', 0), ('ids', 0), ('catalog', 1), ('forgotten', 0)",
        f"CREATE TABLE IF NOT EXISTS cluster (id integer PRIMARY KEY, secret varbinary(64) NOT NULL) {table}",
        f"""CREATE TABLE IF NOT EXISTS catalog_deleted (
            kind varbinary(255), id bigint, parent bigint NOT NULL, namespace {text} NOT NULL, name {text} NOT NULL,
            document longblob NOT NULL, version bigint NOT NULL, deleted_ms bigint NOT NULL, PRIMARY KEY (id, kind),
            KEY catalog_deleted_by_version (version), KEY catalog_deleted_by_time (deleted_ms)
        ) {table}""",
    )


# Members and slots ---------------------------------------------------------------------------------------


def acquire(connection: Connection, slots: Sequence[int], owner: str) -> dict[int, int]:
    """Raise the epochs, whoever has the slots: waits for commits that have begun."""
    values = b",".join(filled("(%s, 1, %s)", slot, owner) for slot in slots)
    answers = _run(
        connection,
        _BEGIN,
        b"INSERT INTO slots (slot, epoch, owner) VALUES " + values
        + b" ON DUPLICATE KEY UPDATE epoch = epoch + 1, owner = VALUES(owner)",
        b"INSERT INTO slot_owners (slot, node, meant_for, since_ms, why) VALUES "
        + b",".join(filled(f"(%s, 0, 0, {NOW_MS}, %s)", slot, f"acquired by {owner}") for slot in slots)
        + b" ON DUPLICATE KEY UPDATE node = 0, meant_for = 0, since_ms = VALUES(since_ms), why = VALUES(why)",
        filled("SELECT slot, epoch FROM slots WHERE slot IN (%s)", list(slots)),
        _END,
    )  # fmt: skip
    return dict(answers[3].rows)


def join(connection: Connection, member: Member) -> Joined:
    answers = _run(
        connection,
        _BEGIN,
        _ALONE,
        b"SET @given = greatest((SELECT value FROM counters WHERE name = 'incarnation'),"
        b" (SELECT coalesce(max(epoch), 0) FROM slots)) + 1",
        b"UPDATE counters SET value = @given WHERE name = 'incarnation'",
        filled(
            f"INSERT INTO nodes VALUES (@given, %s, %s, %s, %s, {NOW_MS}, {NOW_MS})",
            member.name, member.url, member.version, member.lease_ms,
        ),
        # Of all that are proposed, the first is kept.
        filled("INSERT IGNORE INTO cluster VALUES (1, %s)", secrets.token_hex(16).encode()),
        b"SELECT @given, secret FROM cluster",
        _END,
    )  # fmt: skip
    [(incarnation, secret)] = answers[6].rows
    return Joined(incarnation, secret.decode())


def heartbeat(connection: Connection, incarnation: int) -> ClusterView:
    answers = _run(
        connection,
        filled(f"UPDATE nodes SET seen_ms = {NOW_MS} WHERE incarnation = %s", incarnation),
        _SNAPSHOT,
        f"SET @now = {NOW_MS}".encode(),
        b"SELECT @now, value FROM counters WHERE name = 'catalog'",
        b"SELECT incarnation, name, url, version, lease_ms, joined_ms, greatest(@now - seen_ms, 0) FROM nodes"
        b" ORDER BY incarnation",
        b"SELECT slot, epoch, node, meant_for, since_ms, why FROM slots JOIN slot_owners USING (slot) ORDER BY slot",
        _END,
    )
    clock, nodes, slots = (answer.rows for answer in answers[4:7])
    [(now_ms, version)] = clock
    rows = [NodeRow(*row) for row in nodes]
    is_member = any(row.incarnation == incarnation for row in rows)
    return ClusterView(now_ms, is_member, version, rows, [SlotRow(*row) for row in slots])


def take(connection: Connection, slots: Sequence[int], incarnation: int) -> dict[int, int]:
    wanted = numbers([[slot] for slot in sorted(set(slots))], 1)
    # What is true of the members at @now stays true while those of whom it is are locked.
    dead = filled("@name IS NOT NULL AND n.incarnation <> %s AND @now - n.seen_ms > n.lease_ms", incarnation)
    answers = _run(
        connection,
        _BEGIN,
        _ALONE,
        f"SET @now = {NOW_MS}".encode(),
        _name_of(incarnation),
        b"SELECT count(*) FROM nodes n WHERE " + dead + b" FOR UPDATE",
        b"UPDATE nodes n JOIN slot_owners o ON o.node = n.incarnation SET o.node = 0, o.meant_for = 0,"
        b" o.since_ms = @now, o.why = concat(n.name, ' was not heard of for ', @now - n.seen_ms, ' ms') WHERE " + dead,
        b"DELETE n FROM nodes n WHERE " + dead,
        filled("SELECT group_concat(k.a) INTO @wanted FROM ") + wanted
        + filled(
            " LEFT JOIN slot_owners o ON o.slot = k.a LEFT JOIN nodes n ON n.incarnation = o.node"
            " WHERE @name IS NOT NULL AND (n.incarnation IS NULL OR n.incarnation = %s)", incarnation,
        ),
        b"INSERT IGNORE INTO slots (slot, epoch, owner) SELECT k.a, 0, '' FROM " + _listed("@wanted")
        + b" LEFT JOIN slots t ON t.slot = k.a WHERE t.slot IS NULL",
        # Slots under whose old epoch a commit is on its way are left for the next time: nobody waits here.
        b"SELECT group_concat(t.slot) INTO @taken FROM " + _listed("@wanted")
        + b" STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a FOR UPDATE SKIP LOCKED",
        b"UPDATE " + _listed("@taken") + b" STRAIGHT_JOIN slots t FORCE INDEX (PRIMARY) ON t.slot = k.a"
        + filled(" SET t.epoch = greatest(t.epoch + 1, %s), t.owner = @name", incarnation),
        filled("INSERT INTO slot_owners (slot, node, meant_for, since_ms, why)"
               " SELECT k.a, %s, 0, @now, concat('taken by ', @name) FROM ", incarnation) + _listed("@taken")
        + b" ON DUPLICATE KEY UPDATE slot_owners.why = concat(VALUES(why), if(slot_owners.why = '', '',"
        b" concat(' (', substring_index(slot_owners.why, ' (', 1), ')'))),"
        b" node = VALUES(node), meant_for = 0, since_ms = VALUES(since_ms)",
        b"SELECT slot, epoch FROM slots WHERE find_in_set(slot, @taken)",
        _END,
    )  # fmt: skip
    return dict(answers[-2].rows)


def release(connection: Connection, slots: Sequence[int], incarnation: int, to: int) -> None:
    _run(
        connection,
        _BEGIN,
        _ALONE,
        _name_of(incarnation),
        b"UPDATE " + numbers([[slot] for slot in sorted(set(slots))], 1)
        + b" STRAIGHT_JOIN slot_owners o FORCE INDEX (PRIMARY) ON o.slot = k.a"
        + filled(
            f" SET o.node = 0, o.meant_for = %s, o.since_ms = {NOW_MS},"
            " o.why = concat('released by ', coalesce(@name, %s)) WHERE o.node = %s",
            to, str(incarnation), incarnation,
        ),
        _END,
    )  # fmt: skip


def leave(connection: Connection, incarnation: int) -> None:
    _run(
        connection,
        _BEGIN,
        _ALONE,
        _name_of(incarnation),
        filled(f"UPDATE slot_owners SET node = 0, meant_for = 0, since_ms = {NOW_MS}, why = concat(@name, ' left')"
               " WHERE node = %s AND @name IS NOT NULL", incarnation),
        filled("DELETE FROM nodes WHERE incarnation = %s", incarnation),
        _END,
    )  # fmt: skip


def reserve_ids(connection: Connection, count: int, above: int) -> int:
    answers = _run(
        connection,
        filled("UPDATE counters SET value = last_insert_id(greatest(value, %s) + %s) WHERE name = 'ids'", above, count),
        b"SELECT last_insert_id()",
    )
    last: int = answers[1].rows[0][0]
    return last - count + 1


def _run(connection: Connection, *statements: bytes) -> list[Any]:
    return connection.run(b";".join(statements))


def _name_of(incarnation: int) -> bytes:
    """NULL for one who is no member."""
    return filled("SET @name = (SELECT name FROM nodes WHERE incarnation = %s)", incarnation)


def _listed(variable: str) -> bytes:
    """The numbers that a variable lists, as a table to join with."""
    document = f"concat('[', coalesce({variable}, ''), ']')"
    return f"JSON_TABLE({document}, '$[*]' COLUMNS (a bigint PATH '$')) AS k".encode()


# The catalog ---------------------------------------------------------------------------------------------


def catalog_since(connection: Connection, version: int) -> CatalogChanges:
    connection.run(_SNAPSHOT)
    counters = {name.decode(): value for name, value in connection.fetch(b"SELECT name, value FROM counters")}
    is_complete = version <= 0 or version < counters["forgotten"]
    found = connection.fetch(
        filled(f"SELECT {_CATALOG} FROM catalog WHERE version > %s ORDER BY id, kind", 0 if is_complete else version)
    )
    gone = () if is_complete else connection.fetch(
        filled(f"SELECT {_CATALOG} FROM catalog_deleted WHERE version > %s ORDER BY version, id, kind", version)
    )  # fmt: skip
    connection.run(_END)
    rows, deleted = ([catalog_row(row) for row in part] for part in (found, gone))
    return CatalogChanges(counters["catalog"], rows, deleted, is_complete)


def catalog_row(row: Any) -> CatalogRow:
    kind, *values = row
    return CatalogRow(kind.decode(), *values)


NEW_VERSION: Final = Expression(b"@version")
"""In a statement behind those of `catalog_deletions`: the version that the commit gives the catalog."""


def catalog_deletions(commit: Commit) -> Iterator[bytes]:
    """A new version of the catalog, and what goes from it. Such commits come into force one after the other."""
    if not (commit.catalog or commit.catalog_deleted):
        return
    yield b"UPDATE counters SET value = value + 1 WHERE name = 'catalog'"
    yield b"SET @version = (SELECT value FROM counters WHERE name = 'catalog')"
    if commit.catalog_deleted:
        named = _named(commit.catalog_deleted)
        yield (
            f"REPLACE INTO catalog_deleted ({_CATALOG}, version, deleted_ms)"
            f" SELECT {_CATALOG}, @version, {NOW_MS} FROM catalog WHERE ".encode()
            + named
        )
        yield b"DELETE FROM catalog WHERE " + named
        yield f"SET @old = {NOW_MS} - {TOMBSTONES_MS}".encode()
        yield (
            b"UPDATE counters SET value = greatest(value, coalesce("
            b"(SELECT max(version) FROM catalog_deleted WHERE deleted_ms < @old), 0)) WHERE name = 'forgotten'"
        )
        yield b"DELETE FROM catalog_deleted WHERE deleted_ms < @old"
    if commit.catalog:
        yield b"DELETE FROM catalog_deleted WHERE " + _named([(row.kind, row.id) for row in commit.catalog])


def _named(keys: Sequence[tuple[str, int]]) -> bytes:
    return b" OR ".join(b"(id = %s AND kind = %s)" % (literal(id), literal(kind.encode())) for kind, id in keys)
