"""What was found damaged in the store: told once in the log, counted, and shown with the node's readiness.

It may not know how damage is found, nor what becomes of the messages. Next stop: `node/consume/claims.py`, which meets
damaged batches; the store itself, which finds what a crash left.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from penstock.node.catalog import Catalog
from penstock.store.contract import Store

_log = logging.getLogger("penstock.node")


@dataclass(eq=False, repr=False)
class Damage:
    """Messages are counted since the process began; what the store keeps lasts longer."""

    _store: Store
    _catalog: Catalog
    messages: int = 0
    _known: set[tuple[int, int]] = field(default_factory=set)
    """(lane, offset) of the first message of each range."""

    def found(self, lane_id: int, start: int, end: int) -> str:
        """Messages [start, end) of a lane fail their checksum; the text that says so."""
        queue = self._catalog.by_lane.get(lane_id)
        name = "a queue that is gone" if queue is None else f"queue {queue.namespace}/{queue.name}"
        index = lane_id if queue is None else queue.index_of(lane_id)
        text = f"{name}, lane {index}, offsets {start} to {end - 1}: the body in the store fails its checksum"
        if (lane_id, start) not in self._known:
            self._known.add((lane_id, start))
            self.messages += end - start
            _log.error("%s", text)
        return text

    def notes(self) -> list[str]:
        """What is damaged, for people to read, without names: whoever may ask for readiness may see it."""
        notes = self._store.damage()
        if self.messages:
            notes.append(
                f"{self.messages} messages fail their checksum; the server's log says which. Groups that came to them "
                "have them as dead letters with the reason 'damaged'"
            )
        return notes
