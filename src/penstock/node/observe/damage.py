"""What was found damaged in the store: told once in the log, counted, and shown with the node's readiness.

It may not know how damage is found, nor what becomes of the messages. Next stop: `node/consume/bodies.py`, which meets
damaged batches; `node/lanes.py`, which meets damaged metadata and rows; the store, which finds what a crash left.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.batch import Reader
from penstock.model.errors import StoreCorrupt
from penstock.node.catalog import Catalog
from penstock.store.contract import FAILS_CHECKSUM, Store

Part = Literal["body", "meta"]
PARTS: Final[dict[Part, str]] = {"body": "body", "meta": "metadata"}
_log = logging.getLogger("penstock.node")


@dataclass(eq=False, repr=False)
class Damage:
    """All is counted since the process began; what the store keeps lasts longer."""

    _store: Store
    _catalog: Catalog
    messages: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """By what of their batch is damaged."""
    _known: dict[tuple[int, int, Part], str] = field(default_factory=dict)
    """(lane, first offset of the batch, what of it) → what is said of it."""
    _lanes: set[int] = field(default_factory=set)

    def found(self, lane_id: int, start: int, end: int, part: Part, problem: str = "") -> str:
        """Messages [start, end), a batch of a lane, are damaged; the text that says so.

        `problem`: what is wrong, where the store cannot say.
        """
        key = lane_id, start, part
        text = self._known.get(key)
        if text is None:
            place = self._store.body_place(lane_id, start) if part == "body" else self._store.place
            known = self._store.body_problem(lane_id, start) if part == "body" else FAILS_CHECKSUM
            text = f"{self._name(lane_id)}, offsets {start} to {end - 1}: the {PARTS[part]} in the store "
            text = self._known[key] = text + (problem or known)
            self.messages[part] += end - start
            _log.error("%s; file: %s", text, place)
        return text

    def found_in(self, lane_id: int, base: int, reader: Reader) -> str:
        """The same of a batch that was read."""
        part: Part = "body" if reader.is_meta_intact() else "meta"
        return self.found(lane_id, base, base + reader.batch.count, part)

    def lane_found(self, lane_id: int, error: StoreCorrupt) -> StoreCorrupt:
        """What is stored of a lane's groups, leases or dead letters cannot be understood; what its callers are told."""
        text = f"{self._name(lane_id)}: {error}"
        if lane_id not in self._lanes:
            self._lanes.add(lane_id)
            _log.error("%s; file: %s", text, self._store.place)
        return StoreCorrupt(text)

    def lane_is_well(self, lane_id: int) -> None:
        """It could be loaded, perhaps after a repair."""
        self._lanes.discard(lane_id)

    @property
    def lanes(self) -> int:
        """Lanes that cannot be loaded."""
        return len(self._lanes)

    def _name(self, lane_id: int) -> str:
        queue = self._catalog.by_lane.get(lane_id)
        if queue is None:
            return f"a queue that is gone, lane {lane_id}"
        return f"queue {queue.namespace}/{queue.name}, lane {queue.index_of(lane_id)}"

    def notes(self) -> list[str]:
        """What is damaged, for people to read, without names: whoever may ask for readiness may see it."""
        notes = self._store.damage()
        if count := sum(self.messages.values()):
            notes.append(
                f"{count} messages fail their checksum or cannot be read; the server's log says which. Groups that "
                "came to them have them as dead letters with the reason 'damaged'"
            )
        if self._lanes:
            notes.append(
                f"{self.lanes} lanes cannot be used: rows of theirs cannot be understood; the server's log says which"
            )
        return notes
