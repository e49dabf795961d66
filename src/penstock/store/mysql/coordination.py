"""Members, slots, ids and catalog versions on MySQL and MariaDB: the part of the contract that several nodes need.

Every change of membership goes to the server as one packet, from START TRANSACTION to COMMIT: a node that is paused in
the middle holds no lock for longer than the server needs. Its clock is the server's. The owner of a slot is in a table
of its own, `slot_owners`: rows of `slots` are locked by commits under way, and membership never waits for those. Knows
no thread; next stop: `engine.py`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from penstock.model.rows import CatalogChanges, CatalogRow, ClusterView, Joined, Member, NodeRow, SlotRow
from penstock.store.mysql.literals import Expression, filled, filled_by_name
from penstock.store.mysql.pool import Connection
from penstock.store.mysql.statements import SQL, numbers

# Members and slots ---------------------------------------------------------------------------------------


def acquire(connection: Connection, slots: Sequence[int], owner: str) -> dict[int, int]:
    """Raise the epochs, whatever node owns the slots: waits for commits that have begun."""
    values = {"slots": _slots(slots), "owner": owner}
    answers = _run(
        connection,
        SQL.begin,
        filled_by_name(SQL.raise_epochs, values),
        filled_by_name(SQL.put_acquired, values),
        filled(SQL.epochs, list(slots)),
        SQL.commit,
    )
    return dict(answers[3].rows)


def join(connection: Connection, member: Member) -> Joined:
    answers = _run(
        connection,
        SQL.begin,
        SQL.lock_members,
        SQL.next_incarnation,
        SQL.put_incarnation,
        filled(SQL.join, member.name, member.url, member.version, member.lease_ms),
        filled(SQL.propose_secret, secrets.token_hex(16).encode()),
        SQL.joined,
        SQL.commit,
    )
    [(incarnation, secret)] = answers[6].rows
    return Joined(incarnation, secret.decode())


def heartbeat(connection: Connection, incarnation: int) -> ClusterView:
    answers = _run(
        connection,
        filled(SQL.renew, incarnation),
        SQL.begin_snapshot,
        SQL.set_now,
        SQL.clock,
        SQL.nodes,
        SQL.slot_rows,
        SQL.commit,
    )
    clock, nodes, slots = (answer.rows for answer in answers[4:7])
    [(now_ms, version)] = clock
    rows = [NodeRow(*row) for row in nodes]
    is_member = any(row.incarnation == incarnation for row in rows)
    return ClusterView(now_ms, is_member, version, rows, [SlotRow(*row) for row in slots])


def take(connection: Connection, slots: Sequence[int], incarnation: int) -> dict[int, int]:
    values = {"slots": _slots(slots), "incarnation": incarnation}
    dead = [filled_by_name(each, values) for each in (SQL.lock_dead, SQL.free_slots, SQL.delete_dead)]
    answers = _run(
        connection,
        SQL.begin,
        SQL.lock_members,
        SQL.set_now,
        filled(SQL.set_name, incarnation),
        *dead,
        filled_by_name(SQL.set_wanted, values),
        SQL.make_slots,
        SQL.set_taken,
        filled_by_name(SQL.raise_taken, values),
        filled_by_name(SQL.put_taken, values),
        SQL.taken_epochs,
        SQL.commit,
    )
    return dict(answers[-2].rows)


def release(connection: Connection, slots: Sequence[int], incarnation: int, to: int) -> None:
    values = {"slots": _slots(slots), "incarnation": incarnation, "to": to}
    name = filled(SQL.set_name, incarnation)
    _run(connection, SQL.begin, SQL.lock_members, name, filled_by_name(SQL.release, values), SQL.commit)


def leave(connection: Connection, incarnation: int) -> None:
    statements = (filled(each, incarnation) for each in (SQL.set_name, SQL.release_all, SQL.leave))
    _run(connection, SQL.begin, SQL.lock_members, *statements, SQL.commit)


def reserve_ids(connection: Connection, count: int, above: int) -> int:
    answers = _run(connection, filled(SQL.reserve_ids, above, count), SQL.reserved)
    last: int = answers[1].rows[0][0]
    return last - count + 1


def _run(connection: Connection, *statements: bytes | str) -> list[Any]:
    """All of them in one packet; their answers in order."""
    return connection.run(b";".join(each.encode() if isinstance(each, str) else each for each in statements))


def _slots(slots: Sequence[int]) -> Expression:
    return numbers([[slot] for slot in sorted(set(slots))], 1)


# The catalog ---------------------------------------------------------------------------------------------


def catalog_since(connection: Connection, version: int) -> CatalogChanges:
    connection.run(SQL.begin_snapshot.encode())
    counters = {name.decode(): value for name, value in connection.fetch(SQL.counters.encode())}
    is_complete = version <= 0 or version < counters["forgotten"]
    found = connection.fetch(filled(SQL.catalog_since, 0 if is_complete else version))
    gone = () if is_complete else connection.fetch(filled(SQL.catalog_deleted_since, version))
    connection.run(SQL.commit.encode())
    rows, deleted = ([catalog_row(row) for row in part] for part in (found, gone))
    return CatalogChanges(counters["catalog"], rows, deleted, is_complete)


def catalog_row(row: Any) -> CatalogRow:
    kind, *values = row
    return CatalogRow(kind.decode(), *values)
