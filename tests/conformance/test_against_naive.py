"""Random commits to an engine and to a naive model side by side: after each step both must say the same."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.model.errors import Fenced
from penstock.model.rows import (
    SLOTS,
    BatchRow,
    CatalogRow,
    Commit,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneChange,
    LeaseRow,
    OutboxRow,
    TraceRow,
    WaitingRow,
    slot_of,
)
from penstock.store.contract import Store
from tests.conformance.engines import Engine
from tests.conformance.naive import Naive
from tests.conformance.samples import in_order

Result = TypeVar("Result")

LANES = [0, 1, 64, 65, (1 << 61) + 1]
START_OF_FAR_LANE = (1 << 62) - 1_000_000

lanes = st.sampled_from(LANES)
groups = st.integers(1, 3)
small = st.integers(0, 3)
times = st.integers(0, 60)
blobs = st.binary(max_size=12)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
keys = st.binary(max_size=1)
namespaces = st.sampled_from(["default", "other"])
trace_ids = st.sampled_from(["", "a", "A", "b"])


def some(rows: st.SearchStrategy[Result]) -> st.SearchStrategy[list[Result]]:
    return st.lists(rows, max_size=3)


@st.composite
def lane_changes(draw: st.DrawFn, lane: int) -> LaneChange:
    """A change whose batches are still numbered from 0: `renumbered` puts them at the lane's end."""
    return LaneChange(
        lane=lane,
        first=0,
        end=0,
        bytes_end=0,
        batches=draw(some(st.builds(BatchRow, st.just(0), st.integers(1, 5), small, st.just(0), blobs, blobs))),
        groups=draw(some(st.builds(GroupRow, groups, small, small))),
        leases=draw(some(st.builds(LeaseRow, groups, small, small, texts, blobs, texts))),
        waiting=draw(some(st.builds(WaitingRow, groups, small, blobs))),
        dead=draw(some(st.builds(DeadRow, groups, small, small, small, texts, texts, texts, small))),
        dedup=draw(some(st.builds(DedupRow, keys, small, times))),
        groups_deleted=draw(st.lists(groups, max_size=1)),
        leases_deleted=draw(some(st.tuples(groups, small))),
        waiting_deleted=draw(some(st.tuples(groups, small))),
        dead_deleted=draw(some(st.tuples(groups, small))),
        trim_to=draw(st.none() | st.integers(0, 40)),
        dedup_expired_ms=draw(st.none() | times),
    )


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    changed = draw(st.lists(lanes, unique=True, max_size=3))
    places = (st.none() | texts, small, st.none() | small, st.none() | small)
    happened = st.builds(TraceRow, namespaces, trace_ids, times, small, texts, *places, texts, texts, texts)
    declared = st.builds(CatalogRow, st.sampled_from(["queue", "group"]), small, small, texts, texts, blobs)
    return Commit(
        lanes=[draw(lane_changes(lane)) for lane in changed],
        lanes_deleted=draw(st.just([]) | st.lists(lanes, max_size=1)),
        catalog=draw(some(declared)),
        catalog_deleted=draw(some(st.tuples(st.sampled_from(["queue", "group"]), small))),
        outbox=draw(some(st.builds(OutboxRow, st.integers(1, 5), lanes, small, blobs))),
        outbox_deleted=draw(some(st.integers(1, 5))),
        traces=draw(some(happened)),
        traces_expired_ms=draw(st.none() | times),
    )


class Machine(RuleBasedStateMachine):
    engine: Engine

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.naive = Naive()
        self.published = 0
        self.store: Store = self.wait(self.engine.open(Path(self.folder.name)))
        self.epochs = self.wait(self.store.acquire(range(SLOTS), "me"))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.wait(self.store.close())
            self.runner.close()
            self.folder.cleanup()

    def wait(self, work: Awaitable[Result]) -> Result:
        async def main() -> Result:
            return await work

        return self.runner.run(main())

    def start_of(self, lane: int) -> int:
        return START_OF_FAR_LANE if lane > 1 << 60 else 0

    def renumbered(self, change: LaneChange, deleted: list[int]) -> LaneChange:
        """The same change with offsets and times that follow what the lane holds already."""
        known = None if change.lane in deleted else self.naive.cursors.get(change.lane)
        first, end, bytes_end = known or (self.start_of(change.lane),) * 2 + (0,)
        rows = []
        for row in change.batches:
            self.published += row.published_ms
            bytes_end += row.size
            rows.append(BatchRow(end, row.count, self.published, bytes_end, row.meta, row.body))
            end += row.count
        change.batches, change.first, change.end, change.bytes_end = rows, first, end, bytes_end
        if change.trim_to is not None:
            change.trim_to += self.start_of(change.lane)
        return change

    def narrowed(self, commit: Commit) -> int | None:
        """Leave what is of one slot, and say which, where the engine commits one at a time."""
        if self.store.capabilities.spans_slots:
            return None
        slot = slot_of(next(iter([*(change.lane for change in commit.lanes), *commit.lanes_deleted]), 0))
        of_other_slots = {row.id for row in self.naive.outbox(0, 1000) if row.slot != slot}
        commit.lanes = [change for change in commit.lanes if slot_of(change.lane) == slot]
        commit.lanes_deleted = [lane for lane in commit.lanes_deleted if slot_of(lane) == slot]
        commit.outbox_deleted = [id for id in commit.outbox_deleted if id not in of_other_slots]
        return slot

    async def applied(self, commit: Commit) -> None:
        await self.store.apply(commit)

    @rule(commit=commits())
    def apply(self, commit: Commit) -> None:
        slot = self.narrowed(commit)
        commit.lanes = [self.renumbered(change, commit.lanes_deleted) for change in commit.lanes]
        commit.epochs = dict(self.epochs) if slot is None else {slot: self.epochs[slot]}
        self.wait(self.applied(commit))
        self.naive.apply(commit)

    @rule(commit=commits(), slot=st.integers(0, SLOTS - 1), wrong=st.sampled_from([-1, 1]))
    def apply_fenced(self, commit: Commit, slot: int, wrong: int) -> None:
        only = self.narrowed(commit)
        if only is not None:
            slot = only
        commit.epochs = {**(self.epochs if only is None else {}), slot: self.epochs[slot] + wrong}
        with pytest.raises(Fenced):
            self.wait(self.applied(commit))

    @rule(slots=st.lists(st.integers(0, SLOTS - 1), max_size=3))
    def acquire(self, slots: list[int]) -> None:
        taken = self.wait(self.store.acquire(slots, "me again"))
        assert set(taken) == set(slots)
        assert all(taken[slot] > self.epochs[slot] for slot in slots)
        self.epochs.update(taken)

    @precondition(lambda self: self.engine.durable)
    @rule()
    def reopen(self) -> None:
        self.wait(self.store.close())
        self.store = self.wait(self.engine.open(Path(self.folder.name)))

    @rule(lane=lanes, start=st.integers(0, 40), length=st.integers(-1, 20), bytes_most=st.integers(0, 60))
    def read(self, lane: int, start: int, length: int, bytes_most: int) -> None:
        start += self.start_of(lane)
        asked = (lane, start, start + length, bytes_most)
        assert self.wait(self.store.read(*asked)) == self.naive.read(*asked)

    @rule(lane=lanes, start=st.integers(0, 40), batches_most=st.integers(0, 5), bytes_most=st.integers(0, 40))
    def heads(self, lane: int, start: int, batches_most: int, bytes_most: int) -> None:
        asked = (lane, start + self.start_of(lane), batches_most, bytes_most)
        assert self.wait(self.store.heads(*asked)) == self.naive.heads(*asked)

    @rule(lane=lanes, time_ms=times)
    def find_time(self, lane: int, time_ms: int) -> None:
        assert self.wait(self.store.find_time(lane, time_ms)) == self.naive.find_time(lane, time_ms)

    @rule(lane=lanes, wanted=st.lists(keys, max_size=8))
    def find_dedup(self, lane: int, wanted: list[bytes]) -> None:
        found = self.wait(self.store.find_dedup(lane, wanted))
        assert sorted(found, key=repr) == sorted(self.naive.find_dedup(lane, wanted), key=repr)

    @rule(after=st.integers(0, 5), most=small)
    def outbox(self, after: int, most: int) -> None:
        assert self.wait(self.store.outbox(after, most)) == self.naive.outbox(after, most)

    @rule(namespace=namespaces, trace_id=trace_ids, most=small)
    def find_trace(self, namespace: str, trace_id: str, most: int) -> None:
        asked = (namespace, trace_id, most)
        assert self.wait(self.store.find_trace(*asked)) == self.naive.find_trace(*asked)

    @rule(most=small)
    def load_few_ids(self, most: int) -> None:
        for lane, image in zip(LANES, self.wait(self.store.load(LANES, most)), strict=True):
            expected = self.naive.image(lane, most)
            # Which of several ids that expire together is left out is the engine's choice.
            assert [row.expires_ms for row in image.dedup] == [row.expires_ms for row in expected.dedup]
            assert image.dedup_complete == expected.dedup_complete

    @invariant()
    def the_same_rows(self) -> None:
        if not hasattr(self, "store"):
            return
        images = self.wait(self.store.load(LANES, 1000))
        assert [in_order(image) for image in images] == [self.naive.image(lane, 1000) for lane in LANES]
        for lane in LANES:
            assert self.wait(self.store.read(lane, 0, 1 << 62, 1 << 30)) == self.naive.log(lane)
        catalog = self.wait(self.store.catalog())
        assert sorted(catalog, key=lambda row: (row.id, row.kind)) == self.naive.catalog()
        assert [row.id for row in catalog] == sorted(row.id for row in catalog)
        assert self.wait(self.store.outbox(0, 1000)) == self.naive.outbox(0, 1000)
        for namespace, trace_id in product(("default", "other"), ("", "a", "A", "b")):
            found = self.wait(self.store.find_trace(namespace, trace_id, 1000))
            assert found == self.naive.find_trace(namespace, trace_id, 1000)
        assert self.wait(self.store.oldest_trace()) == self.naive.oldest_trace()
        assert sorted(self.wait(self.store.lanes_in_use())) == self.naive.lanes_in_use()


def test_engine_and_naive_model_agree(engine: Engine) -> None:
    machine = type("Machine", (Machine,), {"engine": engine})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
