"""Renews a member's lease from a thread, over a connection of its own. Next stop: `node/cluster/renewal.py`."""

from __future__ import annotations

from penstock.model.rows import ClusterView, NodeRow, SlotRow
from penstock.store.mysql.pool import Answer, Connection, Threads
from penstock.store.mysql.statements import SQL, filled_by_name


class MysqlRenewing:
    """Used from one thread, which is not the event loop's."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def renew(self, incarnation: int) -> bool:
        def beat(connection: Connection) -> list[Answer]:
            return connection.run(heartbeat(incarnation))

        return view_of(self._threads.run_here(beat), incarnation).is_member

    def close(self) -> None:
        self._threads.close_idle()


def heartbeat(incarnation: int) -> bytes:
    """The statements of a heartbeat."""
    return filled_by_name(SQL.heartbeat, {"incarnation": incarnation})


def view_of(answers: list[Answer], incarnation: int) -> ClusterView:
    """What a heartbeat was answered."""
    [(now_ms, version)], nodes, slots = (answer.rows for answer in answers[-4:-1])
    rows = [NodeRow(*row) for row in nodes]
    is_member = any(row.incarnation == incarnation for row in rows)
    return ClusterView(now_ms, is_member, version, rows, [SlotRow(*row) for row in slots])
