"""A lane with a store of plain dicts beneath it, for unit tests: publish, commit, claim in one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.core.group.settings import settings_of
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane, Sealed
from penstock.core.log import Missing
from penstock.model import GroupConfig, Message, QueueConfig
from penstock.model.rows import LaneImage
from penstock.model.verdict import Action, Verdict
from tests.model.rig import DictStore

Answer = TypeVar("Answer")
GROUP = 1
ASKS_MAX = 100


class Bench:
    """One lane with group 1; `options` are the queue's."""

    def __init__(self, group: GroupConfig | None = None, **options: Any) -> None:
        self.config = QueueConfig(**options)
        self.settings = {GROUP: settings_of(self.config, group or GroupConfig())}
        self.store = DictStore()
        self.lane = Lane(LaneImage(7), self.config, {})
        self.lane.add_group(GROUP, self.settings[GROUP], 0)
        self.asked = 0

    @property
    def work(self) -> WorkGroup:
        return self.lane.work(GROUP)

    @property
    def stream(self) -> StreamGroup:
        return self.lane.stream(GROUP)

    def commit(self, now_ms: int) -> Sealed | None:
        sealed = self.lane.seal(now_ms)
        if sealed is not None:
            self.store.apply(sealed.change)
            self.lane.committed(sealed)
        return sealed

    def reload(self) -> None:
        self.lane = Lane(self.store.image(100_000), self.config, self.settings)

    def ask(self, command: Callable[[], Answer], heads: int = 1) -> Answer:
        """Answer `Missing` as a node does; how often is counted."""
        for _ in range(ASKS_MAX):
            try:
                return command()
            except Missing as missing:
                self.asked += 1
                self.lane.log.feed(self.store.heads(missing.start, heads))
        raise AssertionError("the same heads are asked for again and again")

    def publish(self, now_ms: int, *messages: Message) -> None:
        """Each call is one batch, committed at once."""
        self.lane.append(now_ms, messages)
        self.commit(now_ms)

    def claim(self, now_ms: int, most: int = 100, lease: int = 1, **options: Any) -> list[int]:
        consumer = options.pop("consumer", "ann")
        entries = self.ask(lambda: self.work.claim(now_ms, most, consumer, lease, **options))
        return [offset for entry in entries for offset in range(entry.start, entry.end)]

    def settle(self, now_ms: int, lease: int, action: Action, *ranges: tuple[int, int], **options: Any) -> None:
        verdicts: Sequence[Verdict] = [Verdict(action, start, end, **options) for start, end in ranges]
        self.work.settle(now_ms, lease, verdicts or [Verdict(action, **options)])

    def waiting(self) -> list[int]:
        return [offset for entry in self.work.waiting.in_order() for offset in range(entry.start, entry.end)]

    def dead(self) -> list[int]:
        rows = self.work.dead.overlapping(0, 10**18)
        return [offset for row in rows for offset in range(row.start, row.end)]


def plain(count: int, **fields: Any) -> list[Message]:
    return [Message(b"%d" % index, **fields) for index in range(count)]


def keyed(*partitions: str | None, **fields: Any) -> list[Message]:
    return [Message(partition=partition, **fields) for partition in partitions]
