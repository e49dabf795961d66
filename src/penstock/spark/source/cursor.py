"""Shows how far a stream has come: a stream group on each of its queues, moved forward behind the query.

`penstock group list` shows its lag. It is a view: Spark's checkpoint alone decides where a query goes on. Like every
stream group, it keeps messages from being removed on a queue without `retain_…` options, and on no other. It never
moves back: a query that starts again from an earlier place catches up with it first.
"""

from __future__ import annotations

from typing import Final

from penstock.api.options import GroupOptions
from penstock.model.errors import NotFound, PenstockError
from penstock.spark.clients import Access, client_of
from penstock.spark.source.losses import logger
from penstock.spark.source.offsets import Position

GROUP_OPTIONS: Final[GroupOptions] = {"kind": "stream", "auto_commit": False}


class Cursor:
    """The progress of one query as a group on every queue it reads."""

    def __init__(self, access: Access, name: str) -> None:
        self._access = access
        self._name = name
        self._places: dict[str, tuple[int, dict[int, int]]] = {}
        """By queue, its id and what is committed of each lane."""

    def declare(self, position: Position) -> None:
        """Make sure that the group is there. Raises where it cannot be, such as for a work group of the same name."""
        for queue, place in position.items():
            known = self._places.get(queue)
            if known is None or known[0] != place.id:
                self._declare(queue, place.id)

    def _declare(self, queue: str, queue_id: int) -> None:
        client = client_of(self._access)
        groups = client.groups(queue)
        if self._name not in groups:
            client.declare_group(queue, self._name, **GROUP_OPTIONS)
        elif groups[self._name].get("kind") != "stream":
            raise PenstockError(
                f"the option cursor is {self._name!r}, and queue {queue!r} has a group of that name that hands out "
                "work: a cursor needs a name of its own"
            )
        self._places[queue] = (queue_id, {})

    def advance(self, position: Position) -> None:
        """The query is done with everything below the position. A failure is told in the log and tried again later."""
        for queue, place in position.items():
            for lane, offset in place.lanes.items():
                known = self._places.get(queue)
                if known is None or known[0] != place.id or known[1].get(lane, -1) < offset:
                    self._move(queue, place.id, lane, offset)

    def _move(self, queue: str, queue_id: int, lane: int, offset: int) -> None:
        try:
            known = self._places.get(queue)
            if known is None or known[0] != queue_id:
                self._declare(queue, queue_id)
            client_of(self._access).commit(queue, self._name, offset, lane=lane, only_forward=True)
            self._places[queue][1][lane] = offset
        except NotFound:
            self._places.pop(queue, None)  # the group was deleted: the next step declares it again
        except PenstockError as error:
            logger.warning("cursor %r stays behind on lane %s of queue %r: %s", self._name, lane, queue, error)
