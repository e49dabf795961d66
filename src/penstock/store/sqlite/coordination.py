"""Members, slots, ids and catalog versions on an SQLite file: the part of the contract that several nodes need.

One file is for one machine, and hardly ever for more than one node, so nothing here costs a single node anything:
deletions from the catalog are not remembered, and `catalog_since` returns everything. Each function runs in the
caller's transaction; the clock is the machine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns

from penstock.model.rows import CatalogChanges, CatalogRow, ClusterView, Joined, Member, NodeRow, SlotRow
from penstock.store.sqlite.file import Connection
from penstock.store.sqlite.statements import SQL


def now_ms() -> int:
    return time_ns() // 1_000_000


def acquire(connection: Connection, slots: Sequence[int], owner: str) -> dict[int, int]:
    values = (owner, now_ms())
    # Read to the end: a statement with RETURNING is not done before that.
    return {slot: connection.execute(SQL.raise_epoch, (slot, *values)).fetchall()[0][0] for slot in set(slots)}


def join(connection: Connection, member: Member) -> Joined:
    [(incarnation,)] = connection.execute(SQL.next_incarnation).fetchall()
    values = (incarnation, member.name, member.url, member.version, member.lease_ms, now_ms())
    connection.execute(SQL.join, values)
    [(secret,)] = connection.execute(SQL.secret).fetchall()
    return Joined(incarnation, secret)


def skip_incarnations(connection: Connection, up_to: int) -> None:
    connection.execute(SQL.skip_incarnations, (up_to,))


def heartbeat(connection: Connection, incarnation: int) -> ClusterView:
    now = now_ms()
    is_member = connection.execute(SQL.heartbeat, (incarnation, now)).rowcount > 0
    nodes = [NodeRow(*row) for row in connection.execute(SQL.nodes, (now,))]
    slots = [SlotRow(*row) for row in connection.execute(SQL.slots)]
    return ClusterView(now, is_member, _counter(connection, "catalog"), nodes, slots)


def take(connection: Connection, slots: Sequence[int], incarnation: int) -> dict[int, int]:
    now = now_ms()
    member = connection.execute(SQL.member, (incarnation,)).fetchone()
    if member is None:
        return {}
    for number, name, age_ms in connection.execute(SQL.dead_nodes, (incarnation, now)).fetchall():
        connection.execute(SQL.delete_node, (number,))
        connection.execute(SQL.free_slots, (number, now, f"{name} was not heard of for {age_ms} ms"))
    taken: dict[int, int] = {}
    for slot in sorted(set(slots)):
        for (epoch,) in connection.execute(SQL.take, (slot, incarnation, member[0], now)).fetchall():
            taken[slot] = epoch
    return taken


def release(connection: Connection, slots: Sequence[int], incarnation: int, to: int) -> None:
    member = connection.execute(SQL.member, (incarnation,)).fetchone()
    name = str(incarnation) if member is None else member[0]
    for slot in slots:
        connection.execute(SQL.release, (slot, incarnation, to, now_ms(), name))


def leave(connection: Connection, incarnation: int) -> None:
    member = connection.execute(SQL.member, (incarnation,)).fetchone()
    if member is not None:
        connection.execute(SQL.delete_node, (incarnation,))
        connection.execute(SQL.free_slots, (incarnation, now_ms(), f"{member[0]} left"))


def reserve_ids(connection: Connection, count: int, above: int) -> int:
    [(last,)] = connection.execute(SQL.reserve_ids, (count, above)).fetchall()
    return int(last) - count + 1


def catalog_since(connection: Connection, version: int) -> CatalogChanges:
    newest = _counter(connection, "catalog")
    if version == newest:
        return CatalogChanges(newest, [], [], False)
    return CatalogChanges(newest, [CatalogRow(*row) for row in connection.execute(SQL.catalog)], [], True)


def _counter(connection: Connection, name: str) -> int:
    return int(connection.execute(SQL.counter, (name,)).fetchone()[0])
