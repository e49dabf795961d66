"""Reads a worker's journal and says, message by message, what was lost, doubled, reordered or came back.

Nothing here knows how a broker works: only what it promised to those it answered.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Seen:
    """All that the journal says of one queue."""

    confirmed: set[str] = field(default_factory=set)
    """Published, and answered."""
    asked: set[str] = field(default_factory=set)
    """Published, perhaps not answered."""
    delivered: set[str] = field(default_factory=set)
    ack_asked: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    offsets: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)


class Checker:
    """Goes through a journal line by line; `faults` is empty if every promise was kept."""

    def __init__(self) -> None:
        self.queues: dict[str, Seen] = defaultdict(Seen)
        self.faults: list[str] = []
        self.dead: dict[str, int] = {}
        self.moves: dict[str, list[str]] = defaultdict(list)
        self.open: dict[str, set[int]] = defaultdict(set)
        """By partition of `ordered`: numbers that are there, with no ack under way."""
        self.drained: set[str] = set()
        self.draining = False
        self.lives = 0
        self.ended = False

    def read(self, journal: Path) -> None:
        for line in journal.read_text().splitlines():
            word, *rest = json.loads(line)
            getattr(self, f"_{word}")(*rest)
        self._finish()

    def _fault(self, text: str) -> None:
        self.faults.append(text)

    # Lines ------------------------------------------------------------------------------------------------

    def _born(self, life: int) -> None:
        pass

    def _open(self, life: int) -> None:
        self.lives += 1

    def _failed(self, life: int, error: str) -> None:
        self._fault(f"life {life} failed: {error}")

    def _lost(self, queue: str) -> None:
        """A lease ended before it was settled: slow, not wrong."""

    def _drain(self) -> None:
        self.draining = True

    def _end(self) -> None:
        self.ended = True

    def _publish(self, queue: str, ids: list[str]) -> None:
        self.queues[queue].asked.update(ids)

    def _published(self, queue: str, ids: list[str], first_offset: int) -> None:
        seen = self.queues[queue]
        seen.confirmed.update(ids)
        for step, id in enumerate(ids):
            self._at(queue, id, first_offset + step)
            if queue == "ordered" and id not in seen.delivered:
                partition, number = id.split(".")
                self.open[partition].add(int(number))

    def _at(self, queue: str, id: str, offset: int) -> None:
        known = self.queues[queue].offsets.setdefault(id, offset)
        if known != offset:
            self._fault(f"{queue}: {id} is at {known} and at {offset}")

    def _delivered(self, queue: str, found: list[tuple[str, int, int]]) -> None:
        seen = self.queues[queue]
        for id, offset, attempt in found:
            self._at(queue, id, offset)
            if id not in seen.asked:
                self._fault(f"{queue}: {id} was delivered and never published")
            if id in seen.acked:
                self._fault(f"{queue}: {id} was delivered after its ack was answered")
            if attempt < seen.attempts.get(id, 1):
                self._fault(f"{queue}: attempt {attempt} of {id} after attempt {seen.attempts[id]}")
            seen.attempts[id] = attempt
            seen.delivered.add(id)
        if queue == "ordered":
            self._in_order([id for id, _, _ in found])

    def _in_order(self, ids: list[str]) -> None:
        """Whatever stands before a message in its partition is settled, or comes before it in the same claim."""
        here: dict[str, list[int]] = defaultdict(list)
        for id in ids:
            partition, number = id.split(".")
            here[partition].append(int(number))
        for partition, numbers in here.items():
            if numbers != sorted(numbers):
                self._fault(f"ordered: {partition} was delivered as {numbers}")
            passed = {number for number in self.open[partition] if number < numbers[-1]} - set(numbers)
            if passed:
                self._fault(f"ordered: {partition}.{numbers} passed {sorted(passed)}")
            self.open[partition].update(numbers)

    def _ack(self, queue: str, ids: list[str]) -> None:
        self.queues[queue].ack_asked.update(ids)
        if queue == "ordered":
            for id in ids:
                partition, number = id.split(".")
                self.open[partition].discard(int(number))
        if queue == "source" and self.draining:
            self.drained.update(ids)

    def _acked(self, queue: str, ids: list[str]) -> None:
        self.queues[queue].acked.update(ids)

    def _move(self, names: list[str], made: list[str]) -> None:
        self._ack("source", names)
        self._publish("moved", made)
        for name, product in zip(names, made, strict=True):
            self.moves[name].append(product)

    def _moved(self, names: list[str], made: list[str]) -> None:
        self._acked("source", names)
        self.queues["moved"].confirmed.update(made)

    def _dead(self, found: list[tuple[str, int]]) -> None:
        self.dead = dict(found)

    # The end ----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if not self.ended:
            self._fault("the journal ends before the queues were drained")
            return
        for queue, seen in self.queues.items():
            gone = set(self.dead) if queue == "risky" else set()
            for id in sorted(seen.confirmed - seen.delivered - gone):
                self._fault(f"{queue}: {id} was confirmed and never delivered")
            # Drained to the end: whatever was confirmed is acked or dead, and what was not acked came back.
            for id in sorted(seen.confirmed - seen.ack_asked - gone):
                self._fault(f"{queue}: {id} was confirmed, never acked, and is gone")
            self._one_place_each(queue, seen)
        for id, attempts in self.dead.items():
            if attempts != 3 or id in self.queues["risky"].acked:
                self._fault(f"risky: {id} is dead after {attempts} attempts")
        self._moved_once()

    def _one_place_each(self, queue: str, seen: Seen) -> None:
        by_offset: dict[int, str] = {}
        for id, offset in seen.offsets.items():
            if by_offset.setdefault(offset, id) != id:
                self._fault(f"{queue}: {id} and {by_offset[offset]} are both at {offset}")
        if queue == "ordered":
            places: dict[str, list[tuple[int, int]]] = defaultdict(list)
            for id, offset in seen.offsets.items():
                partition, number = id.split(".")
                places[partition].append((int(number), offset))
            for partition, pairs in places.items():
                offsets = [offset for _, offset in sorted(pairs)]
                if offsets != sorted(offsets):
                    self._fault(f"ordered: {partition} was stored out of order")

    def _moved_once(self) -> None:
        """Of all tries to move a message one took place, unless the drain found it: ack and product are one."""
        moved = self.queues["moved"].delivered
        for name, products in self.moves.items():
            made = [product for product in products if product in moved]
            if len(made) + (name in self.drained) != 1:
                self._fault(f"source: {name} gave {made}, and came back in the end: {name in self.drained}")
