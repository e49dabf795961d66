"""Members, slots, ids and catalog versions on an SQLite file: the part of the contract that several nodes need.

One file is for one machine, and hardly ever for more than one node, so nothing is kept here that would cost a single
one: of deletions from the catalog nothing is remembered, and who asks what has changed is given everything. Each
function is one transaction of the caller's; its clock is that of the machine.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from time import time_ns

from penstock.model.rows import CatalogChanges, CatalogRow, ClusterView, Joined, Member, NodeRow, SlotRow
from penstock.store.sqlite import schema as sql

Connection = sqlite3.Connection


def now_ms() -> int:
    return time_ns() // 1_000_000


def acquire(connection: Connection, slots: Sequence[int], owner: str) -> dict[int, int]:
    values = (owner, now_ms())
    # Read to the end: a statement with RETURNING is not done before that.
    return {slot: connection.execute(sql.RAISE_EPOCH, (slot, *values)).fetchall()[0][0] for slot in set(slots)}


def join(connection: Connection, member: Member) -> Joined:
    [(incarnation,)] = connection.execute(sql.NEXT_INCARNATION).fetchall()
    values = (incarnation, member.name, member.url, member.version, member.lease_ms, now_ms())
    connection.execute(sql.JOIN, values)
    [(secret,)] = connection.execute(sql.SECRET).fetchall()
    return Joined(incarnation, secret)


def heartbeat(connection: Connection, incarnation: int) -> ClusterView:
    now = now_ms()
    is_member = connection.execute(sql.BEAT, (incarnation, now)).rowcount > 0
    nodes = [NodeRow(*row) for row in connection.execute(sql.NODES, (now,))]
    slots = [SlotRow(*row) for row in connection.execute(sql.SLOT_ROWS)]
    return ClusterView(now, is_member, _counter(connection, "catalog"), nodes, slots)


def take(connection: Connection, slots: Sequence[int], incarnation: int) -> dict[int, int]:
    now = now_ms()
    member = connection.execute(sql.MEMBER, (incarnation,)).fetchone()
    if member is None:
        return {}
    for number, name, age_ms in connection.execute(sql.DEAD_NODES, (incarnation, now)).fetchall():
        connection.execute(sql.DELETE_NODE, (number,))
        connection.execute(sql.LET_GO, (number, now, f"{name} was not heard of for {age_ms} ms"))
    taken: dict[int, int] = {}
    for slot in sorted(set(slots)):
        for (epoch,) in connection.execute(sql.TAKE, (slot, incarnation, member[0], now)).fetchall():
            taken[slot] = epoch
    return taken


def release(connection: Connection, slots: Sequence[int], incarnation: int, to: int) -> None:
    member = connection.execute(sql.MEMBER, (incarnation,)).fetchone()
    name = str(incarnation) if member is None else member[0]
    for slot in slots:
        connection.execute(sql.RELEASE, (slot, incarnation, to, now_ms(), name))


def leave(connection: Connection, incarnation: int) -> None:
    member = connection.execute(sql.MEMBER, (incarnation,)).fetchone()
    if member is not None:
        connection.execute(sql.DELETE_NODE, (incarnation,))
        connection.execute(sql.LET_GO, (incarnation, now_ms(), f"{member[0]} left"))


def reserve_ids(connection: Connection, count: int, above: int) -> int:
    [(last,)] = connection.execute(sql.RESERVE_IDS, (count, above)).fetchall()
    return int(last) - count + 1


def catalog_since(connection: Connection, version: int) -> CatalogChanges:
    newest = _counter(connection, "catalog")
    if version == newest:
        return CatalogChanges(newest, [], [], False)
    return CatalogChanges(newest, [CatalogRow(*row) for row in connection.execute(sql.CATALOG)], [], True)


def _counter(connection: Connection, name: str) -> int:
    return int(connection.execute(sql.COUNTER, (name,)).fetchone()[0])
