"""Lane images out of a MySQL or MariaDB database. Next stop: `mysql.py`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.store import mysql_schema as sql
from penstock.store.contract import DeadRow, DedupRow, GroupRow, LaneImage, LeaseRow, WaitingRow
from penstock.store.mysql_literals import filled
from penstock.store.mysql_pool import Connection


def load(connection: Connection, lanes: Sequence[int], dedup_most: int) -> list[LaneImage]:
    """The images of these lanes as they were at one moment."""
    if not lanes:
        return []
    connection.run(
        b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
    )
    images = {lane: LaneImage(lane) for lane in lanes}
    gone = {lane for (lane,) in connection.fetch(filled(sql.GONE_LANES, list(images)))}
    wanted = [lane for lane in images if lane not in gone]
    if wanted:
        _fill(connection, images, wanted, dedup_most)
    connection.run(b"COMMIT")
    return [images[lane] for lane in lanes]


def _fill(connection: Connection, images: dict[int, LaneImage], wanted: list[int], dedup_most: int) -> None:
    for lane, first, end, bytes_end, published_ms in connection.fetch(filled(sql.LANES, wanted)):
        image = images[lane]
        image.first, image.end, image.bytes_end, image.published_ms = first, end, bytes_end, published_ms
    for lane, *values in connection.fetch(filled(sql.GROUPS, wanted)):
        images[lane].groups.append(GroupRow(*values))
    for lane, *values in connection.fetch(filled(sql.LEASES, wanted)):
        images[lane].leases.append(LeaseRow(*values))
    for lane, *values in connection.fetch(filled(sql.WAITING, wanted)):
        images[lane].waiting.append(WaitingRow(*values))
    for lane, *values in connection.fetch(filled(sql.DEAD, wanted)):
        images[lane].dead.append(DeadRow(*values))
    having = [lane for (lane,) in connection.fetch(filled(sql.DEDUP_LANES, wanted))]
    # One more than asked for, to know whether there are more; they come newest first.
    for lane in having:
        rows = connection.fetch(filled(sql.DEDUP_NEWEST, lane, dedup_most + 1))
        found = [DedupRow(*values) for values in rows]
        images[lane].dedup_complete = len(found) <= dedup_most
        images[lane].dedup = found[:dedup_most][::-1]
