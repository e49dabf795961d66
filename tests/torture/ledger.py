"""What every party was promised, message by message, and which promise was broken. Knows nothing of how a broker works.

All parties of a torture run are in one process: what is noted here has one order, the one in which they saw it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

FAULTS_TOLD: Final = 50
LATE_S: Final = 1.0
"""How much later than its time to live a message may be handed out: nodes do not know the store's clock exactly."""
MOVES: Final = {"source": ("moved", "echoed"), "orders": ("invoices",)}
"""Messages of a queue are acked, and what they become is published to others, as one."""
ONCE: Final = frozenset({"commands/subscriber"})
"""QoS 2 of MQTT: delivered once."""


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
    over: dict[str, float] = field(default_factory=dict)
    """Not to be handed out after this moment."""
    open: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By partition: numbers that are there, with no ack under way."""


@dataclass
class Followed:
    """What one group has read of a stream."""

    delivered: set[str] = field(default_factory=set)
    position: int = 0
    """All before it was read."""
    committed: int = 0
    """All before it was committed, and the commit answered."""


@dataclass
class Ending:
    """What is there when all queues are drained."""

    dead: dict[str, list[str]] = field(default_factory=dict)
    """Dead letters by queue."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    """The whole log of each queue, from offset 0 on."""


class Ledger:
    """Notes and judges; `faults` is empty if every promise was kept."""

    def __init__(self) -> None:
        self.queues: dict[str, Seen] = defaultdict(Seen)
        self.faults: list[str] = []
        self.fault_count = 0
        self.streams: dict[str, Followed] = defaultdict(Followed)
        """Groups that read `logged`."""
        self.sent_again: set[str] = set()
        """Of QoS 1: published again because the connection ended before the answer; may be stored twice."""
        self.stored_twice: dict[str, int] = {}
        """How many of those are, by queue."""
        self.lines: dict[tuple[str, str], list[str]] = defaultdict(list)
        """By queue and connection: what was published and confirmed on it, in that order."""
        self.log: dict[int, str] = {}
        """What readers found at the offsets of `logged`."""
        self.deliveries = 0
        self.repeats = 0
        """Delivered more than once, as they may be until an ack is answered."""

    @property
    def confirmed(self) -> int:
        return sum(len(seen.confirmed) for seen in self.queues.values())

    @property
    def acked(self) -> int:
        return sum(len(seen.acked) for seen in self.queues.values())

    def waiting(self, queue: str) -> int:
        """How many, about, wait for somebody to take them first."""
        seen = self.queues[queue]
        if queue == "logged":
            return len(seen.confirmed) - min((stream.position for stream in self.streams.values()), default=0)
        return len(seen.confirmed) - len(seen.delivered)

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

    def confirm(self, queue: str, ids: list[str], over: float | None = None) -> None:
        """The publish was answered; what it stored does not live longer than until `over`."""
        seen = self.queues[queue]
        seen.confirmed.update(ids)
        if over is not None:
            seen.over.update(dict.fromkeys(ids, over))
        if queue == "ordered":
            for id in ids:
                if id not in seen.delivered:
                    partition, number = id.split(".")
                    seen.open[partition].add(int(number))

    def deliver(self, queue: str, ids: list[str], now: float, asked: float | None = None) -> None:
        """One claim's messages, in the order in which they were handed out, some time after they were asked for."""
        seen = self.queues[queue]
        self.deliveries += len(ids)
        for id in ids:
            if id not in seen.asked:
                self.fault(f"{queue}: {id} was delivered and never published")
            if id in seen.acked and id not in self.sent_again:
                self.fault(f"{queue}: {id} was delivered after its ack was answered")
            if now < seen.due.get(id, now):
                self.fault(f"{queue}: {id} was delivered {seen.due[id] - now:.3f} s early")
            if asked is not None and asked > seen.over.get(id, asked) + LATE_S:
                self.fault(f"{queue}: {id} was asked for {asked - seen.over[id]:.3f} s after its time, and delivered")
            if queue in ONCE and id in seen.delivered and id not in self.sent_again:
                self.fault(f"{queue}: {id} was delivered twice")
            self.repeats += id in seen.delivered
            seen.delivered.add(id)
        if queue == "ordered":
            self._in_order(seen, ids)
        if queue == "urgent":
            priorities = [int(id.split(".")[0]) for id in ids]
            if priorities != sorted(priorities, reverse=True):
                self.fault(f"urgent: priorities came as {priorities}")

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

    def in_line(self, queue: str, connection: str, ids: list[str]) -> None:
        """These were published one after the other on a connection, and confirmed there."""
        self.lines[queue, connection] += ids

    def move_ask(self, source: str, names: list[str], made: list[str]) -> None:
        """About to acknowledge messages and publish what they become, as one."""
        self.ack_ask(source, names)
        for queue in MOVES[source]:
            self.ask(queue, made)

    def moved(self, source: str, names: list[str], made: list[str]) -> None:
        """That was answered."""
        self.ack(source, names)
        for queue in MOVES[source]:
            self.confirm(queue, made)

    # Streams -----------------------------------------------------------------------------------------------

    def read(self, group: str, first: int, ids: list[str]) -> None:
        """A group of `logged` was given these messages, from this offset on."""
        stream = self.streams[group]
        self.deliveries += len(ids)
        if first > stream.position:
            self.fault(f"logged: {group} was given offset {first}, and nothing between {stream.position} and that")
        if first < stream.committed:
            self.fault(f"logged: {group} was given offset {first} after its commit of {stream.committed} was answered")
        for offset, id in enumerate(ids, first):
            if id not in self.queues["logged"].asked:
                self.fault(f"logged: {id} was read and never published")
            if self.log.setdefault(offset, id) != id:
                self.fault(f"logged: offset {offset} was {self.log[offset]} and is {id}")
            self.repeats += id in stream.delivered
            stream.delivered.add(id)
        stream.position = max(stream.position, first + len(ids))

    def committed(self, group: str, offset: int) -> None:
        """The commit was answered."""
        self.streams[group].committed = max(self.streams[group].committed, offset)

    def is_read(self, group: str) -> bool:
        """Whether all that was published was read."""
        return self.queues["logged"].asked <= self.streams[group].delivered

    # The end -----------------------------------------------------------------------------------------------

    def close(self, ending: Ending) -> None:
        """All queues are drained."""
        for queue, seen in self.queues.items():
            gone = set(ending.dead.get(queue, []))
            if queue != "logged":
                self._all_settled(queue, seen, gone)
        for group, stream in self.streams.items():
            for id in sorted(self.queues["logged"].confirmed - stream.delivered):
                self.fault(f"logged: {id} was confirmed and never given to {group}")
        for queue in ending.logs.keys() & self.queues.keys():
            self._stored_once(queue, self.queues[queue], ending.logs[queue])
        self._copied_once(ending.dead.get("risky", []), ending.logs.get("grave", []))
        for source, queues in MOVES.items():
            self._moved_once(source, {queue: ending.logs.get(queue, []) for queue in queues})
        for (queue, connection), ids in self.lines.items():
            self._stored_in_line(queue, connection, ids, ending.logs.get(queue, []))
        self._stored_in_order(ending.logs.get("ordered", []))
        stored = ending.logs.get("logged", [])
        for offset, id in self.log.items():
            if offset >= len(stored) or stored[offset] != id:
                self.fault(f"logged: offset {offset} was read as {id}, and is something else in the log")

    def _all_settled(self, queue: str, seen: Seen, gone: set[str]) -> None:
        for id in sorted(seen.confirmed - seen.delivered - gone):
            self.fault(f"{queue}: {id} was confirmed and never delivered")
        for id in sorted((seen.confirmed & seen.delivered) - seen.ack_asked - gone):
            self.fault(f"{queue}: {id} was confirmed, never acked, and is gone")
        for id in sorted(seen.acked & gone):
            self.fault(f"{queue}: {id} is dead, and its ack was answered")

    def _stored_once(self, queue: str, seen: Seen, stored: list[str]) -> None:
        """The log holds what was confirmed, nothing that was never asked for, and nothing twice."""
        ids = set(stored)
        if len(ids) != len(stored):
            twice = [id for id, times in Counter(stored).items() if times > 1]
            self.stored_twice[queue] = len(self.sent_again.intersection(twice))
            if len(twice) > self.stored_twice[queue]:
                self.fault(f"{queue}: {len(twice) - self.stored_twice[queue]} messages are stored twice")
        for id in sorted(seen.confirmed - ids):
            self.fault(f"{queue}: {id} was confirmed and is not in the log")
        for id in sorted(ids - seen.asked):
            self.fault(f"{queue}: {id} is in the log and was never published")

    def _copied_once(self, dead: list[str], copies: list[str]) -> None:
        if sorted(copies) != sorted(dead):
            lost, more = set(dead) - set(copies), len(copies) - len(set(copies))
            strange = set(copies) - set(dead)
            self.fault(f"grave: {len(lost)} dead letters without a copy, {more} copied twice, {len(strange)} alive")

    def _stored_in_order(self, stored: list[str]) -> None:
        partitions: dict[str, list[int]] = defaultdict(list)
        for id in stored:
            partition, number = id.split(".")
            partitions[partition].append(int(number))
        for partition, numbers in partitions.items():
            if numbers != sorted(set(numbers)):
                self.fault(f"ordered: {partition} is stored out of order or twice")

    def _stored_in_line(self, queue: str, connection: str, ids: list[str], stored: list[str]) -> None:
        """What came through one connection stays in its order, whoever has kept some of it meanwhile."""
        wanted = set(ids)
        found = [id for id in dict.fromkeys(stored) if id in wanted]
        there = set(found)
        expected = [id for id in ids if id in there]
        if found != expected:
            at = next(place for place, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            self.fault(f"{queue}: of {connection}, {found[at]} is stored before {expected[at]}")

    def _moved_once(self, source: str, logs: dict[str, list[str]]) -> None:
        """A message is done when a transaction moved it: all of them are, each became one product in each queue."""
        first, *others = logs.values()
        for other in others:
            if sorted(first) != sorted(other):
                halves = set(first) ^ set(other)
                self.fault(f"{source}: {len(halves)} products are in one of two queues: {sorted(halves)[:10]}")
        products: dict[str, list[str]] = defaultdict(list)
        for product in first:
            products[product.split(">")[0]].append(product)
        for name in sorted(self.queues[source].confirmed):
            if len(products[name]) != 1:
                self.fault(f"{source}: {name} became {products[name]}")
