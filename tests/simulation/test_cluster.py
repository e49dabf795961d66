"""Several nodes on the virtual clock: whatever happens to them, nothing is lost, doubled or out of order."""

from __future__ import annotations

import pytest

from penstock.node.broker import LocalBroker
from penstock.store.contract import Capabilities
from penstock.store.memory.engine import MemoryStore
from tests.one_slot import OneSlotStore
from tests.simulation.cluster_world import run_cluster


class FourAtOnce(MemoryStore):
    """Each node may have four commits under way."""

    capabilities = Capabilities(commits_under_way=4)


class FourOfOneSlot(OneSlotStore):
    """The same, and each commit is of one slot."""

    capabilities = Capabilities(spans_slots=False, commits_under_way=4)


@pytest.mark.parametrize("seed", range(7))
def test_nodes_that_come_and_go_lose_nothing(seed: int) -> None:
    world = run_cluster(seed)
    assert world.violations == []
    assert sum(map(len, world.confirmed.values())) > 500
    assert world.faults > 3
    assert world.buffered > 5


@pytest.mark.parametrize("seed", range(7, 10))
def test_nodes_lose_nothing_on_a_store_of_one_slot_at_a_time(seed: int) -> None:
    world = run_cluster(seed, OneSlotStore)
    assert world.violations == []
    assert sum(map(len, world.confirmed.values())) > 300
    assert isinstance(world.disk, OneSlotStore)
    assert world.disk.promised > 100


@pytest.mark.parametrize(
    ("seed", "kind", "overlaps"), [(10, FourAtOnce, 3), (11, FourAtOnce, 3), (12, FourOfOneSlot, 100)]
)
def test_nodes_lose_nothing_with_four_commits_under_way(seed: int, kind: type[MemoryStore], overlaps: int) -> None:
    world = run_cluster(seed, kind)
    assert world.violations == []
    assert sum(map(len, world.confirmed.values())) > 300
    assert sum(member.store.overlaps for member in world.members) > overlaps


def test_an_owner_that_keeps_what_was_forwarded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test: it breaks the order of a connection."""
    monkeypatch.setattr(LocalBroker, "bound_to", lambda broker, *_: broker)
    assert any("a connection published" in text for seed in range(4, 24) for text in run_cluster(seed).violations)
