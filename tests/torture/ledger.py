"""What every party was promised, message by message, and which promise was broken. Knows nothing of how a broker works.

All parties of a torture run are in one process: what is noted here has one order, the one in which they saw it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

FAULTS_TOLD: Final = 50


@dataclass
class Seen:
    """All that is known of one group of one queue."""

    asked: set[str] = field(default_factory=set)
    """Published, perhaps not answered."""
    confirmed: set[str] = field(default_factory=set)
    delivered: set[str] = field(default_factory=set)
    ack_asked: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    due: dict[str, float] = field(default_factory=dict)
    """Not to be seen before this moment."""
    open: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By partition: numbers that are there, with no ack under way."""


class Ledger:
    """Notes and judges; `faults` is empty if every promise was kept."""

    def __init__(self) -> None:
        self.queues: dict[str, Seen] = defaultdict(Seen)
        self.faults: list[str] = []
        self.fault_count = 0
        self.moves: dict[str, list[str]] = defaultdict(list)
        """A message of `source` → what it was, perhaps, turned into."""
        self.deliveries = 0
        self.repeats = 0
        """Delivered more than once, as they may be until an ack is answered."""

    @property
    def confirmed(self) -> int:
        return sum(len(seen.confirmed) for seen in self.queues.values())

    @property
    def acked(self) -> int:
        return sum(len(seen.acked) for seen in self.queues.values())

    def fault(self, text: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_TOLD:
            self.faults.append(text)

    # What parties do ---------------------------------------------------------------------------------------

    def ask(self, queue: str, ids: list[str], due: float | None = None) -> None:
        """About to be published."""
        seen = self.queues[queue]
        seen.asked.update(ids)
        if due is not None:
            seen.due.update(dict.fromkeys(ids, due))

    def confirm(self, queue: str, ids: list[str]) -> None:
        """The publish was answered."""
        seen = self.queues[queue]
        seen.confirmed.update(ids)
        if queue == "ordered":
            for id in ids:
                if id not in seen.delivered:
                    partition, number = id.split(".")
                    seen.open[partition].add(int(number))

    def deliver(self, queue: str, ids: list[str], now: float) -> None:
        """One claim's messages, in the order in which they were handed out."""
        seen = self.queues[queue]
        self.deliveries += len(ids)
        for id in ids:
            if id not in seen.asked:
                self.fault(f"{queue}: {id} was delivered and never published")
            if id in seen.acked:
                self.fault(f"{queue}: {id} was delivered after its ack was answered")
            if now < seen.due.get(id, now):
                self.fault(f"{queue}: {id} was delivered {seen.due[id] - now:.3f} s early")
            self.repeats += id in seen.delivered
            seen.delivered.add(id)
        if queue == "ordered":
            self._in_order(seen, ids)

    def _in_order(self, seen: Seen, ids: list[str]) -> None:
        """Whatever stands before a message in its partition is settled, or comes before it in the same claim."""
        here: dict[str, list[int]] = defaultdict(list)
        for id in ids:
            partition, number = id.split(".")
            here[partition].append(int(number))
        for partition, numbers in here.items():
            if numbers != sorted(numbers):
                self.fault(f"ordered: {partition} was delivered as {numbers}")
            passed = {number for number in seen.open[partition] if number < numbers[-1]} - set(numbers)
            if passed:
                self.fault(f"ordered: {partition}.{numbers} passed {sorted(passed)[:10]}")
            seen.open[partition].update(numbers)

    def ack_ask(self, queue: str, ids: list[str]) -> None:
        seen = self.queues[queue]
        seen.ack_asked.update(ids)
        if queue == "ordered":
            for id in ids:
                partition, number = id.split(".")
                seen.open[partition].discard(int(number))

    def ack(self, queue: str, ids: list[str]) -> None:
        """The ack was answered."""
        self.queues[queue].acked.update(ids)

    def move_ask(self, names: list[str], made: list[str]) -> None:
        self.ack_ask("source", names)
        self.ask("moved", made)
        for name, product in zip(names, made, strict=True):
            self.moves[name].append(product)

    def moved(self, names: list[str], made: list[str]) -> None:
        self.ack("source", names)
        self.confirm("moved", made)

    # The end -----------------------------------------------------------------------------------------------

    def close(self, dead: dict[str, set[str]], copies: list[str], stored: dict[str, list[str]]) -> None:
        """All queues are drained: `dead` by queue, `copies` in the dead letters' queue, `stored` ids by partition."""
        for queue, seen in self.queues.items():
            gone = dead.get(queue, set())
            for id in sorted(seen.confirmed - seen.delivered - gone):
                self.fault(f"{queue}: {id} was confirmed and never delivered")
            for id in sorted(seen.confirmed - seen.ack_asked - gone):
                self.fault(f"{queue}: {id} was confirmed, never acked, and is gone")
            for id in sorted(seen.acked & gone):
                self.fault(f"{queue}: {id} is dead, and its ack was answered")
        self._moved_once()
        if sorted(copies) != sorted(dead["risky"]):
            lost, more = dead["risky"] - set(copies), len(copies) - len(set(copies))
            strange = set(copies) - dead["risky"]
            self.fault(f"grave: {len(lost)} dead letters without a copy, {more} copied twice, {len(strange)} alive")
        for partition, ids in stored.items():
            numbers = [int(id.split(".")[1]) for id in ids]
            if numbers != sorted(set(numbers)):
                self.fault(f"ordered: {partition} is stored out of order or twice")

    def _moved_once(self) -> None:
        """An acked message gave exactly one product; one that was not acked by a transaction gave none."""
        delivered = self.queues["moved"].delivered
        for name, products in self.moves.items():
            made = [product for product in products if product in delivered]
            if len(made) > 1:
                self.fault(f"source: {name} became {made}")
