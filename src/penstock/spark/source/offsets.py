"""Where a stream stands: the next offset of each lane of each queue, and the JSON of it in Spark's checkpoint.

    {"v": 1, "queues": {"orders": {"id": 7, "lanes": {"0": 123, "1": 456}}}}

Spark compares positions as text, so the same position is always the same text: queues and lanes are sorted. `id` is the
number that a queue keeps for life; `lost` counts the messages that were skipped with failOnDataLoss=false, and is there
only where there are any. Knows no server and no Spark.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.model.errors import InvalidArgument

VERSION: Final = 1


class QueuePosition(msgspec.Struct, frozen=True):
    """The next offset of each lane of one queue."""

    id: int
    lanes: dict[int, int]
    lost: int = 0


Position = dict[str, QueuePosition]


class _QueueJson(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    lanes: dict[str, int]
    lost: int = 0


class _PositionJson(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    queues: dict[str, _QueueJson]


def position_json(position: Position) -> dict[str, Any]:
    """What Spark keeps of a position."""
    queues: dict[str, Any] = {}
    for name, queue in sorted(position.items()):
        queues[name] = {"id": queue.id, "lanes": {str(lane): queue.lanes[lane] for lane in sorted(queue.lanes)}}
        if queue.lost:
            queues[name]["lost"] = queue.lost
    return {"v": VERSION, "queues": queues}


def position_of(stored: object) -> Position:
    """The position that a checkpoint holds."""
    version = stored.get("v") if isinstance(stored, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise InvalidArgument(
            f"the checkpoint was written by a newer penstock (offsets of version {version}; this one reads {VERSION}): "
            "install that version, or start with a new checkpointLocation"
        )
    try:
        found = msgspec.convert(stored, _PositionJson)
        return {
            name: QueuePosition(queue.id, {int(lane): offset for lane, offset in queue.lanes.items()}, queue.lost)
            for name, queue in found.queues.items()
        }
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidArgument(
            f"the checkpoint's offsets are not those of a penstock source ({error}): {stored!r}; "
            "is the checkpointLocation that of another query?"
        ) from error
