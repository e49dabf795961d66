"""Random histories of a lane with all its options, against the naive reference, with crashes at any point.

Each machine leans on some features; all share the rules. `PENSTOCK_MODEL_EXAMPLES=5000` runs as many histories a
machine, at random; the default is few, always the same, and fast enough for every run of the test command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.core import dedup, log
from penstock.core.group import walk
from penstock.core.group.settings import settings_of
from penstock.model import GroupConfig, Message, QueueConfig
from penstock.model.options import check_config
from penstock.model.verdict import Action, Verdict
from tests.model.rig import Rig

EXAMPLES = os.environ.get("PENSTOCK_MODEL_EXAMPLES")
PROFILE = settings(
    max_examples=int(EXAMPLES or 200),
    stateful_step_count=50,
    deadline=None,
    derandomize=EXAMPLES is None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

SPANS = [0, 1, 10, 100, 1_000]
CONSUMERS = st.sampled_from(["ann", "bob", "cid"])
ACTIONS: list[Action] = ["ack", "nack", "reject", "postpone", "release"]


def maybe(strategy: st.SearchStrategy[Any], default: Any = None) -> st.SearchStrategy[Any]:
    """Mostly the default: a history with every option at once shows little of each."""
    return st.one_of(st.just(default), st.just(default), st.just(default), strategy)


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


MESSAGES = st.lists(
    st.builds(
        Message,
        payload=st.sampled_from([b"", b"x", b"y" * 40]),
        partition=one_of(None, "", "p", "p", "q"),
        headers=maybe(one_of({"n": 1}, {"n": 2})),
        priority=st.integers(0, 3),
        delay_ms=maybe(st.sampled_from(SPANS), 0),
        not_before_ms=maybe(one_of(1, 1_000_010, 1_001_000), 0),
        ttl_ms=maybe(st.sampled_from(SPANS)),
        dedup_id=maybe(one_of("a", "b", "")),
    ),
    min_size=1,
    max_size=6,
)

QUEUE_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "lease_ms": one_of(1, 50, 1_000),
    "max_attempts": one_of(0, 1, 2, 5),
    "backoff_ms": one_of(0, 1, 100),
    "backoff_max_ms": one_of(0, 150, 10_000),
    "backoff_jitter": one_of(0.0, 0.2, 1.0),
    "delay_ms": maybe(st.sampled_from(SPANS), 0),
    "single_active_consumer": maybe(st.just(True), False),
    "max_in_flight": maybe(st.integers(1, 4)),
    "rate": maybe(one_of(0.5, 3.0, 100.0)),
    "ttl_ms": maybe(st.sampled_from(SPANS)),
    "expired": one_of("drop", "dead"),
    "max_length": maybe(st.integers(0, 8)),
    "max_bytes": maybe(one_of(0, 200, 600)),
    "overflow": one_of("reject", "drop_oldest", "dead_letter_oldest"),
    "dedup_window_ms": one_of(0, 1, 100, 3_600_000),
    "keep_done_ms": maybe(st.sampled_from(SPANS), 0),
}
LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "retain_ms": maybe(st.sampled_from(SPANS)),
    "retain_bytes": maybe(one_of(0, 100, 300)),
    "retain_messages": maybe(st.integers(0, 6)),
}
FILTERS = maybe(one_of("n = 1", "n IS NULL", "partition = 'p'"))


@contextmanager
def small_limits(tail: int, pages: int, ids: int, parked: int) -> Iterator[None]:
    """Limits so small that a history of fifty steps reaches them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "TAIL_SEGMENTS_MAX", tail)
        patch.setattr(log, "PAGES_MAX", pages)
        patch.setattr(dedup, "IDS_IN_MEMORY_MAX", ids)
        patch.setattr(walk, "PARKED_MAX", parked)
        yield


class LaneMachine(RuleBasedStateMachine):
    """The rules. Subclasses say which queues and groups to draw."""

    queue_options: ClassVar[dict[str, st.SearchStrategy[Any]]] = QUEUE_OPTIONS
    groups: ClassVar[list[dict[str, Any]]] = [{"filter": FILTERS}]

    def __init__(self) -> None:
        super().__init__()
        self.rig: Rig
        self.limits = small_limits(1_024, 16, 100_000, 100_000)
        self.limits.__enter__()

    def teardown(self) -> None:
        self.limits.__exit__(None, None, None)

    @initialize(
        data=st.data(), tail=one_of(1, 2, 1_024), pages=one_of(2, 3), ids=one_of(2, 1_000), tight=maybe(st.just(2))
    )
    def declare(self, data: st.DataObject, tail: int, pages: int, ids: int, tight: int | None) -> None:
        self.limits.__exit__(None, None, None)
        self.limits = small_limits(tail, pages, ids, tight or 100_000)
        self.limits.__enter__()
        self.queue = data.draw(st.fixed_dictionaries(dict(self.queue_options)).map(lambda o: QueueConfig(**o)), "queue")
        check_config(self.queue)
        self.configs: dict[int, GroupConfig] = {}
        for number, options in enumerate(self.groups, 1):
            kinds = {name: value for name, value in options.items() if isinstance(value, st.SearchStrategy)}
            fixed = {name: value for name, value in options.items() if name not in kinds}
            drawn = data.draw(st.fixed_dictionaries(kinds), f"group {number}")
            self.configs[number] = GroupConfig(**fixed, **drawn)
        made = {number: settings_of(self.queue, config) for number, config in self.configs.items()}
        self.rig = Rig(self.queue, made, dedup_most=ids, window=tight is not None)

    # Drawing ----------------------------------------------------------------------------------------------

    def group(self, data: st.DataObject, kind: str) -> int | None:
        found = [number for number, group in self.rig.reference.groups.items() if group.settings.kind == kind]
        return data.draw(st.sampled_from(found), "group") if found else None

    def has_leases(self) -> bool:
        return any(group.leases for group in self.rig.reference.groups.values())

    def has_streams(self) -> bool:
        return any(group.settings.kind == "stream" for group in self.rig.reference.groups.values())

    def lease(self, data: st.DataObject) -> tuple[int, int]:
        groups = self.rig.reference.groups
        found = [(number, lease) for number, group in groups.items() for lease in group.leases]
        return data.draw(st.sampled_from(found), "lease")

    def ranges(self, data: st.DataObject) -> list[tuple[int, int]]:
        offset = st.integers(0, self.rig.reference.end + 1)
        return data.draw(st.one_of(st.just([(0, 10**12)]), st.lists(st.tuples(offset, offset), max_size=3)), "ranges")

    # Publishing and committing ----------------------------------------------------------------------------

    @rule(messages=MESSAGES, encoded=st.booleans(), flush=st.booleans())
    def publish(self, messages: list[Message], encoded: bool, flush: bool) -> None:
        self.rig.publish(messages, encoded=encoded)
        if flush:
            self.rig.flush()

    @rule()
    def seal(self) -> None:
        self.rig.seal()

    @precondition(lambda self: self.rig.in_flight is not None)
    @rule()
    def commit(self) -> None:
        self.rig.commit()

    @rule()
    def flush(self) -> None:
        self.rig.flush()

    @rule(durable=st.booleans())
    def crash(self, durable: bool) -> None:
        self.rig.crash(durable=durable)

    @rule(span_ms=one_of(0, 1, 10, 100, 1_000), tick=st.booleans())
    def time_passes(self, span_ms: int, tick: bool) -> None:
        self.rig.now_ms += span_ms
        if tick:
            self.rig.tick()

    # Work groups ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.rig.reference.works())
    @rule(data=st.data(), most=st.integers(1, 8), consumer=CONSUMERS, flush=st.booleans())
    def claim(self, data: st.DataObject, most: int, consumer: str, flush: bool) -> None:
        group = self.group(data, "work")
        assert group is not None
        lease_ms = data.draw(maybe(one_of(1, 5_000)), "lease_ms")
        settle = data.draw(maybe(st.just(True), False), "settle")
        ordered = self.rig.settings[group].ordered
        partition = data.draw(maybe(one_of("p", "q", "z")), "partition") if ordered else None
        minimum = data.draw(maybe(st.integers(2, 4), 1), "minimum")
        self.rig.claim(group, most, consumer, lease_ms, partition, settle, minimum)
        if flush:
            self.rig.flush()

    @precondition(lambda self: self.has_leases())
    @rule(data=st.data(), action=st.sampled_from(ACTIONS), delay_ms=maybe(st.sampled_from(SPANS)))
    def settle_whole(self, data: st.DataObject, action: Action, delay_ms: int | None) -> None:
        self.rig.settle(*self.lease(data), [Verdict(action, delay_ms=delay_ms)])

    @precondition(lambda self: self.has_leases())
    @rule(data=st.data())
    def settle_parts(self, data: st.DataObject) -> None:
        held = self.lease(data)
        offsets = self.rig.reference.groups[held[0]].held_by(held[1])
        chosen = data.draw(st.lists(st.sampled_from(offsets), unique=True, min_size=1), "offsets")
        verdict = st.tuples(st.sampled_from(ACTIONS), maybe(st.sampled_from(SPANS)))
        verdicts = []
        for offset in chosen:
            action, delay_ms = data.draw(verdict, "verdict")
            verdicts.append(Verdict(action, offset, offset + 1, delay_ms))
        self.rig.settle(*held, verdicts)

    @precondition(lambda self: self.has_leases())
    @rule(data=st.data(), action=st.sampled_from(ACTIONS), lease_ms=one_of(1, 50, 5_000))
    def extend_or_settle_wrongly(self, data: st.DataObject, action: Action, lease_ms: int) -> None:
        held = self.lease(data)
        offsets = self.rig.reference.groups[held[0]].held_by(held[1])
        self.rig.settle_wrongly(held[0], 10**9, [Verdict(action)])
        self.rig.settle_wrongly(*held, [Verdict(action, offsets[-1], offsets[-1] + 2)])
        self.rig.settle_wrongly(*held, [Verdict(action, offsets[0], offsets[0])])
        self.rig.settle_wrongly(*held, [Verdict("ack"), Verdict(action, offsets[0], offsets[0] + 1)])
        self.rig.extend(*held, lease_ms)

    @precondition(lambda self: any(group.offsets("dead") for group in self.rig.reference.works()))
    @rule(data=st.data(), purge=st.booleans())
    def redrive_or_purge_dead(self, data: st.DataObject, purge: bool) -> None:
        group = self.group(data, "work")
        assert group is not None
        if purge:
            self.rig.purge_dead(group, self.ranges(data))
        else:
            self.rig.redrive(group, self.ranges(data))

    # Streams ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.has_streams())
    @rule(data=st.data(), most=st.integers(1, 5), consumer=CONSUMERS)
    def read(self, data: st.DataObject, most: int, consumer: str) -> None:
        group = self.group(data, "stream")
        assert group is not None
        self.rig.read(group, most, consumer)

    @precondition(lambda self: self.has_streams())
    @rule(data=st.data())
    def commit_stream(self, data: st.DataObject) -> None:
        group = self.group(data, "stream")
        assert group is not None
        self.rig.commit_stream(group, data.draw(st.integers(-1, self.rig.reference.end + 1), "offset"))

    # Administration: one rule for all that is rare --------------------------------------------------------

    @rule(
        data=st.data(),
        what=one_of("left", "purge", "seek", "configure", "add", "remove", "pin", "unpin", "trim", "ids"),
    )
    def administer(self, data: st.DataObject, what: str) -> None:
        rig = self.rig
        group = data.draw(st.sampled_from(sorted(rig.reference.groups)), "group")
        is_work = rig.settings[group].kind == "work"
        if what == "left":
            rig.consumer_left(group, data.draw(CONSUMERS, "consumer"))
        elif what == "purge" and is_work:
            rig.purge(group)
        elif what == "seek":
            rig.seek(group, data.draw(st.integers(0, rig.reference.end + 1), "offset"))
        elif what == "configure":
            options = {
                "paused": maybe(st.just(True), False),
                "max_in_flight": one_of(None, 3),
                "max_attempts": one_of(0, 3),
            }
            drawn = data.draw(st.fixed_dictionaries(options), "options")
            rig.configure(self.queue, {group: msgspec.structs.replace(rig.settings[group], **drawn)})
        elif what == "add" and len(rig.reference.groups) < 3:
            config = self.configs[data.draw(st.sampled_from(sorted(self.configs)), "like")]
            start = data.draw(st.integers(0, rig.reference.end), "start")
            rig.add_group(1 + max(rig.settings), settings_of(self.queue, config), start)
        elif what == "remove" and len(rig.reference.groups) > 1:
            rig.remove_group(group)
        elif what == "pin":
            rig.pin(data.draw(st.integers(rig.lane.first, rig.lane.visible_end), "offset"))
        elif what == "unpin" and rig.reference.pins:
            rig.unpin()
        elif what == "trim":
            rig.trim_by_limits()
        elif what == "ids":
            rig.expire_dedup()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "rig"):
            self.rig.check()


def bounded(machine: type[LaneMachine]) -> Callable[[], None]:
    """The machine as one test."""

    @pytest.mark.timeout(0 if EXAMPLES else 600)  # time to shrink a failure
    def test() -> None:
        machine.TestCase.settings = PROFILE
        machine.TestCase("runTest").debug()

    return test


class PlainMachine(LaneMachine):
    """An unordered work group with a filter, beside one without."""

    groups: ClassVar[list[dict[str, Any]]] = [{"filter": FILTERS}, {}]


class OrderedMachine(LaneMachine):
    queue_options = QUEUE_OPTIONS | {"ordered": st.just(True), "debounce_ms": maybe(one_of(10, 100), 0)}


class PrioritizedMachine(LaneMachine):
    queue_options = QUEUE_OPTIONS | {"prioritized": st.just(True), "ordered": st.booleans()}
    groups: ClassVar[list[dict[str, Any]]] = [{"filter": FILTERS}]


class StreamMachine(LaneMachine):
    """Streams beside a work group, with retention."""

    queue_options = QUEUE_OPTIONS | LIMITS
    groups: ClassVar[list[dict[str, Any]]] = [
        {"kind": "stream", "auto_commit": st.booleans(), "filter": FILTERS}, {}, {"kind": "stream"},
        {"kind": "stream", "auto_commit": st.booleans(), "holds": st.booleans()},
    ]  # fmt: skip


test_plain = bounded(PlainMachine)
test_ordered = bounded(OrderedMachine)
test_prioritized = bounded(PrioritizedMachine)
test_streams = bounded(StreamMachine)
