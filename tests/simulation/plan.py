"""What one seed's world looks like: its queues, groups, exchanges, clients, faults and limits. Plain data from a seed.

Sizes are small (tens of messages, spans of seconds) so that a schedule takes milliseconds, and the limits of the
program are made as small, so that pages, windows and caches overflow in it. Next stop: `world.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final
from unittest.mock import patch

import msgspec

from penstock.core.group.settings import Settings, settings_of
from penstock.model import GroupConfig, QueueConfig, make_config
from tests.simulation.faulty_store import Chances

GRAVEYARD: Final = "graveyard"
EXCHANGE: Final = "fan"
SCRATCH: Final = "scratch"
PARTITIONS: Final = ("anna", "bert", "carl")
COLORS: Final = ("red", "blue")
FILTER: Final = "color = 'red'"


class GroupPlan(msgspec.Struct):
    """A group to be declared, with the clients that it gets."""

    name: str
    options: dict[str, Any]
    consumers: int
    late: bool = False
    """Declared while the world is running."""

    @property
    def is_stream(self) -> bool:
        return self.options.get("kind") == "stream"


class QueuePlan(msgspec.Struct):
    """A queue to be declared, with its groups."""

    name: str
    options: dict[str, Any]
    groups: list[GroupPlan]
    at_most_once: bool = False
    """Some claims of this queue settle as they are handed out."""
    made_config: QueueConfig | None = None
    """What the options come to, once it was asked for."""

    @property
    def is_ephemeral(self) -> bool:
        return bool(self.options.get("ephemeral"))

    @property
    def config(self) -> QueueConfig:
        if self.made_config is None:
            self.made_config = make_config(QueueConfig, self.options)
        return self.made_config

    def settings(self, group: GroupPlan) -> Settings:
        return settings_of(self.config, make_config(GroupConfig, group.options))


class SpoolPlan(msgspec.Struct):
    """Nodes with a spool, and when the store is away from all of them."""

    outages: list[tuple[int, int]]
    """[from, to) in milliseconds since the start."""
    segment_bytes: int
    bytes: int


class Plan(msgspec.Struct):
    """One seed's world."""

    seed: int
    queues: list[QueuePlan]
    bound: list[str]
    """Queues that the exchange leads to."""
    producers: int
    messages: int
    span_ms: int
    """How long clients and faults go on before all is left to settle."""
    chances: Chances
    downtime_ms: int
    takeovers: int
    restarts: int
    operations: int
    events: bool
    limits: dict[str, int]
    cancels: float
    long_polls: bool
    scratch: bool
    spool: SpoolPlan | None = None

    def queue(self, name: str) -> QueuePlan:
        return next(queue for queue in self.queues if queue.name == name)


def make_plan(seed: int) -> Plan:
    random = Random(f"plan {seed}")
    size = random.choice((1, 1, 1, 2, 2, 3))
    queues = [_queue(random, f"q{index}") for index in range(random.randint(1, 1 + size))]
    keeping = Random(f"keeping {seed}")
    for queue in queues:
        if "dead_letter_to" in queue.options:
            _maybe(keeping, queue.options, 0.4, dead_kept=False)
    if any("dead_letter_to" in queue.options for queue in queues):
        queues.append(QueuePlan(GRAVEYARD, {"lease_ms": 2_000}, [GroupPlan("default", {}, 1)]))
    names = [queue.name for queue in queues if queue.name != GRAVEYARD]
    return Plan(
        seed=seed,
        queues=queues,
        bound=sorted(random.sample(names, random.randint(0, len(names)))),
        producers=random.randint(1, 1 + size),
        messages=random.randint(5, 20 * size),
        span_ms=random.choice((3_000, 8_000, 20_000)),
        chances=_chances(random),
        downtime_ms=random.choice((0, 200, 2_000)),
        takeovers=random.choice((0, 0, 0, 1, 2)),
        restarts=random.choice((0, 0, 1, 2)),
        operations=random.choice((0, 2, 5)),
        events=random.random() < 0.4,
        limits=_limits(random, _LIMITS) | _limits(Random(f"pace {seed}"), _PACE),
        cancels=random.choice((0.0, 0.0, 0.1)),
        long_polls=random.random() < 0.4,
        scratch=random.random() < 0.15,
        spool=_spool(seed),
    )


def _spool(seed: int) -> SpoolPlan | None:
    """From a chance of its own: worlds without a spool are as they were."""
    random = Random(f"spool {seed}")
    if random.random() < 0.5:
        return None
    starts = sorted(random.randrange(8_000) for _ in range(random.choice((0, 1, 1, 2, 4))))
    outages = [(start, start + random.choice((30, 300, 2_000, 6_000))) for start in starts]
    return SpoolPlan(outages, random.choice((1, 300, 1 << 20)), random.choice((1 << 30, 1 << 30, 1 << 30, 2_000)))


def _chances(random: Random) -> Chances:
    kind = random.choice(("calm", "slow", "failing", "crashing", "wild", "stalling"))
    if kind == "calm":
        return Chances(delay=random.choice((0.0, 1.0)))
    if kind == "slow":
        return Chances(delay=0.8)
    if kind == "failing":
        return Chances(delay=0.5, fail_before=random.choice((0.02, 0.1)), fail_after=random.choice((0.02, 0.1)))
    if kind == "crashing":
        return Chances(delay=0.5, crash=random.choice((0.01, 0.03)))
    if kind == "stalling":
        return Chances(delay=0.5, stall=0.03, fail_after=0.02, fail_before=0.02)
    return Chances(delay=0.7, stall=0.01, fail_before=0.05, fail_after=0.05, crash=0.01)


def _queue(random: Random, name: str) -> QueuePlan:
    options: dict[str, Any] = {
        "lease_ms": random.choice((300, 1_000, 4_000)),
        "backoff_ms": random.choice((0, 100, 500)),
        "backoff_max_ms": 2_000,
    }
    _maybe(random, options, 0.4, ordered=True)
    _maybe(random, options, 0.2, prioritized=True)
    _maybe(random, options, 0.12, ephemeral=True)
    _maybe(random, options, 0.3, lanes=random.choice((2, 3)))
    _maybe(random, options, 0.2, delay_ms=random.choice((100, 1_500)))
    _maybe(random, options, 0.2, ttl_ms=random.choice((1_000, 5_000)))
    _maybe(random, options, 0.3, expired="dead")
    _maybe(random, options, 0.5, max_attempts=random.choice((0, 1, 2, 3)))
    _maybe(random, options, 0.15, max_in_flight=random.choice((1, 3)))
    _maybe(random, options, 0.12, rate=random.choice((2.0, 10.0)))
    _maybe(random, options, 0.4, dead_letter_to=f"queue:{GRAVEYARD}")
    _maybe(random, options, 0.12, single_active_consumer=True)
    _maybe(random, options, 0.2, keep_done_ms=random.choice((500, 5_000)))
    _maybe(random, options, 0.2, dedup_window_ms=random.choice((0, 2_000)))
    _maybe(random, options, 0.12, retain_messages=random.choice((0, 5)))
    if random.random() < 0.15:
        options["max_length"] = random.choice((3, 10))
        options["overflow"] = random.choice(("reject", "drop_oldest", "dead_letter_oldest"))
    if options.get("ordered"):
        _maybe(random, options, 0.15, debounce_ms=random.choice((100, 800)))
    groups = [_group(random, index) for index in range(random.choice((1, 1, 2)))]
    if random.random() < 0.35:
        groups.append(_stream(random))
    return QueuePlan(name, options, groups, random.random() < 0.1)


def _group(random: Random, index: int) -> GroupPlan:
    options: dict[str, Any] = {}
    _maybe(random, options, 0.25, filter=FILTER)
    _maybe(random, options, 0.1, max_attempts=2)
    if index:
        _maybe(random, options, 0.2, start="now")
        _maybe(random, options, 0.2, ordered=True)
    return GroupPlan(
        "default" if index == 0 else f"g{index}", options, random.randint(1, 3), index > 0 and random.random() < 0.3
    )


def _stream(random: Random) -> GroupPlan:
    options: dict[str, Any] = {"kind": "stream"}
    _maybe(random, options, 0.4, auto_commit=False)
    _maybe(random, options, 0.25, filter=FILTER)
    return GroupPlan("stream", options, random.choice((1, 1, 2)))


def _maybe(random: Random, options: dict[str, Any], chance: float, **more: Any) -> None:
    if random.random() < chance:
        options.update(more)


# Limits of the program, made small -----------------------------------------------------------------------

_LIMITS: Final[dict[str, tuple[tuple[str, ...], tuple[int, ...]]]] = {
    "cache_bytes": ((), (0, 1_000)),
    "tail": (("penstock.core.log.TAIL_SEGMENTS_MAX",), (1, 3)),
    "pages": (("penstock.core.log.PAGES_MAX",), (1,)),
    "page": (("penstock.node.lanes.PAGE_BATCHES",), (1, 3)),
    "ids": (("penstock.core.dedup.IDS_IN_MEMORY_MAX", "penstock.node.lanes.IDS_IN_MEMORY_MAX"), (0, 2)),
    "encode": (("penstock.node.publish.parts.ENCODE_FROM",), (1, 3)),
    "chunk": (("penstock.core.group.waiting.CHUNK_OFFSETS",), (1, 4)),
    "parked": (("penstock.core.group.walk.PARKED_MAX",), (2, 6)),
    "pending": (
        ("penstock.node.commit.loop.PENDING_BYTES_MAX", "penstock.node.commit.by_slot.PENDING_BYTES_MAX"),
        (10, 40),
    ),
    "row": (("penstock.core.lane.seal.ROW_MESSAGES_MAX",), (1, 2)),
    "lanes": (("penstock.node.lanes.LANES_MAX",), (6,)),
    "outbox": (("penstock.node.cluster.outbox.ROWS_AT_ONCE",), (1,)),
}


_PACE: Final[dict[str, tuple[tuple[str, ...], tuple[int, ...]]]] = {
    "work": (("penstock.model.work.SLICE_WORK",), (1, 50)),
    "pieces": (("penstock.core.group.claim.PIECES_MAX",), (1, 3)),
    "part": (("penstock.node.publish.parts.PART_MESSAGES",), (1, 2)),
    "verdicts": (("penstock.node.consume.claims.SLICE_ITEMS", "penstock.node.broker.messages.SLICE_ITEMS"), (0, 1)),
    "verdict": (("penstock.core.group.draft.VERDICTS_AT_ONCE",), (1,)),
}
"""What is done at once."""


def _limits(random: Random, limits: dict[str, tuple[tuple[str, ...], tuple[int, ...]]]) -> dict[str, int]:
    return {name: random.choice(values) for name, (_, values) in limits.items() if random.random() < 0.2}


@contextmanager
def limits_in_force(limits: dict[str, int]) -> Iterator[None]:
    """The program with these limits, for the length of one schedule."""
    with ExitStack() as stack:
        stack.enter_context(patch("penstock.node.lanes.LOOK_AT_ONCE", 1))
        for name, value in limits.items():
            for target in (_LIMITS | _PACE)[name][0]:
                stack.enter_context(patch(target, value))
        yield
