"""Shows how far a stream or an archive has come: a stream group on each of its queues, moved forward behind it.

`penstock group list` shows its lag. It is a view: Spark's checkpoint alone decides where a query goes on, and the
lake's marks where an archive does. Like every stream group, it keeps messages from being removed on a queue without
`retain_…` options, and on no other unless it holds them. It never moves back: a query that starts again from an
earlier place catches up with it first.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.api.options import GroupOptions
from penstock.model.errors import NotFound, PenstockError
from penstock.spark.clients import Access, client_of
from penstock.spark.source.offsets import Position

logger: Final = logging.getLogger("penstock.spark")


class Cursor:
    """The progress of one query or job, as a group on every queue it reads."""

    def __init__(self, access: Access, name: str, holds: bool | None = None) -> None:
        """`holds`: retention waits for the cursor, or does not; None leaves that as it was declared."""
        self._access = access
        self._name = name
        self._holds = holds
        self._places: dict[str, tuple[int, dict[int, int]]] = {}
        """By queue, its id and what is committed of each lane."""

    def declare(self, position: Position) -> None:
        """Make sure that the group is there. Raises where it cannot be, such as for a work group of the same name."""
        for queue, place in position.items():
            known = self._places.get(queue)
            if known is None or known[0] != place.id:
                self._declare(queue)
                self._places[queue] = (place.id, {})

    def _declare(self, queue: str) -> None:
        client = client_of(self._access)
        groups = client.groups(queue)
        if self._name in groups and groups[self._name].get("kind") != "stream":
            raise PenstockError(
                f"the option cursor is {self._name!r}, and queue {queue!r} has a group of that name that hands out "
                "work: a cursor needs a name of its own"
            )
        options: GroupOptions = {"kind": "stream", "auto_commit": False}
        if self._holds is not None:
            options["holds"] = self._holds
        if self._name not in groups or self._holds is not None:
            client.declare_group(queue, self._name, **options)

    def advance(self, position: Position) -> None:
        """Everything below the position is done with. A failure is told in the log and tried again later."""
        for queue, place in position.items():
            for lane, offset in place.lanes.items():
                try:
                    self.declare({queue: place})
                    committed = self._places[queue][1]
                    if committed.get(lane, -1) < offset:
                        client_of(self._access).commit(queue, self._name, offset, lane=lane, only_forward=True)
                        committed[lane] = offset
                except NotFound:
                    self._places.pop(queue, None)  # the group was deleted: the next step declares it again
                except PenstockError as error:
                    logger.warning("cursor %r stays behind on lane %s of queue %r: %s", self._name, lane, queue, error)
