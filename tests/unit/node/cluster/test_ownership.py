"""The one object that knows which slots are this node's: each transition, what it answers, and what it refuses."""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.errors import NotOwner, Unavailable
from penstock.model.rows import SLOTS, ClusterView, NodeRow, SlotRow
from penstock.node.cluster.ownership import SPREAD, Ownership


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def node(incarnation: int, *, age_ms: int = 0, url: str = "http://host:1") -> NodeRow:
    return NodeRow(incarnation, f"node-{incarnation}", url, "1", 2_000, 0, age_ms)


def view(nodes: list[NodeRow], owners: dict[int, tuple[int, int]]) -> ClusterView:
    """`owners`: slot → (epoch, incarnation)."""
    slots = [SlotRow(slot, epoch, owner, 0, 0, "") for slot, (epoch, owner) in owners.items()]
    return ClusterView(0, True, 0, nodes, slots)


def member(clock: Clock | None = None) -> Ownership:
    """Node 7, which serves slots 1 and 2; node 8 has slot 3, nobody has slot 4."""
    ownership = Ownership(clock or Clock())
    ownership.joined(7)
    ownership.saw(view([node(7), node(8)], {1: (5, 7), 2: (6, 7), 3: (9, 8), 4: (2, 0)}))
    ownership.take({1: 5, 2: 6})
    ownership.serve([1, 2])
    return ownership


def test_a_single_node_owns_everything_for_good() -> None:
    clock = Clock()
    ownership = Ownership(clock)
    ownership.own_all(dict.fromkeys(range(SLOTS), 1))
    ownership.joined(1)
    clock.seconds += 1e9
    for slot in (SPREAD, *range(SLOTS)):
        ownership.check(slot)
        ownership.check_taken(slot)
        assert ownership.owns(slot)
    assert ownership.is_sole
    assert ownership.is_registrar
    assert ownership.queried() is None
    assert [ownership.epoch(slot) for slot in range(SLOTS)] == [1] * SLOTS
    ownership.doubt()  # there is nobody who could have taken anything; a fence ends the node
    ownership.check(0)
    with pytest.raises(AssertionError, match="gave a slot away"):
        ownership.shed([3])


def test_a_single_node_has_all_slots_or_it_is_none() -> None:
    with pytest.raises(AssertionError, match="every slot"):
        Ownership(Clock()).own_all({0: 1})


def test_a_slot_is_taken_then_served_then_shed_then_lost() -> None:
    ownership = Ownership(Clock())
    ownership.joined(7)
    with pytest.raises(NotOwner):
        ownership.check_taken(1)
    ownership.take({1: 5})
    assert (ownership.has_taken(1), ownership.owns(1), ownership.epoch(1)) == (True, False, 5)
    ownership.check_taken(1)
    with pytest.raises(NotOwner):
        ownership.check(1)
    ownership.serve([1])
    assert (ownership.owns(1), ownership.starting, ownership.queried()) == (True, {1}, [1])
    ownership.check(1)
    ownership.started([1])
    assert not ownership.starting
    ownership.shed([1])
    assert (ownership.has_taken(1), ownership.owns(1), ownership.epoch(1)) == (False, False, 5)
    ownership.lose([1])
    assert ownership.epoch(1) == 0
    assert not ownership.epochs


def test_a_slot_that_is_lost_at_once_is_gone_from_everything() -> None:
    ownership = member()
    ownership.take({5: 1})
    ownership.lose({1, 5, 30})
    assert ownership.owned == {2}
    assert ownership.starting == {2}
    assert dict(ownership.epochs) == {2: 6}
    assert not ownership.has_taken(5)


def test_only_what_was_taken_is_served() -> None:
    with pytest.raises(AssertionError, match="only what was taken"):
        member().serve([9])


def test_a_served_slot_is_not_taken_again_before_it_is_lost() -> None:
    with pytest.raises(AssertionError, match="while it was served"):
        member().take({1: 6})


def test_a_slot_whose_taking_broke_off_counts_as_lost_and_can_be_taken_again() -> None:
    ownership = member()
    ownership.take({4: 3})
    ownership.abandon([4])
    assert not ownership.has_taken(4)
    assert ownership.lost_in(view([node(7)], {1: (5, 7), 2: (6, 7), 4: (3, 7)})) == {4}
    ownership.lose([4])
    ownership.take({4: 4})
    ownership.serve([4])
    assert ownership.epoch(4) == 4


def test_what_the_store_gives_to_another_or_under_another_epoch_is_lost() -> None:
    assert member().lost_in(view([node(7)], {1: (5, 8), 2: (7, 7)})) == {1, 2}
    assert member().lost_in(view([node(7)], {1: (5, 7), 2: (6, 7)})) == set()
    assert member().lost_in(view([node(7)], {})) == {1, 2}


def test_the_error_names_the_owner() -> None:
    ownership = member()
    with pytest.raises(NotOwner, match="slot 3 is owned by node-8") as raised:
        ownership.check(3)
    assert raised.value.slot == 3
    with pytest.raises(NotOwner, match="nobody now"):
        ownership.check(4)
    with pytest.raises(Unavailable, match="several slots") as spread:
        ownership.check(SPREAD)
    assert not isinstance(spread.value, NotOwner)


def test_after_its_lease_a_node_does_not_trust_what_it_owned() -> None:
    clock = Clock()
    ownership = member(clock)
    ownership.lease_for(2.0)
    ownership.heard(clock.seconds)
    clock.seconds += 2.0
    ownership.check(1)
    clock.seconds += 0.001
    assert not ownership.is_heard
    with pytest.raises(Unavailable, match="not heard"):
        ownership.check(1)
    ownership.heard(clock.seconds)
    ownership.check(1)
    ownership.doubt()
    with pytest.raises(Unavailable, match="not heard"):
        ownership.check(1)


def test_who_owns_what() -> None:
    ownership = member()
    found = [ownership.owner(slot) for slot in (1, 3, 4, 5)]
    assert [None if row is None else row.incarnation for row in found] == [7, 8, None, None]
    assert ownership.owners([1, 2]) == {7}
    assert ownership.owners([2, 3, 4, 5]) == {7, 8, 0}
    assert [row.incarnation for row in ownership.others()] == [8]
    ownership.saw_taken({4: 3}, "taken")
    assert ownership.owners([4]) == {7}
    assert [row.slot for row in ownership.view.slots] == [1, 2, 3, 4]


def test_others_are_those_that_live_and_can_be_reached() -> None:
    ownership = Ownership(Clock())
    ownership.joined(7)
    ownership.saw(view([node(7), node(8, url=""), node(9, age_ms=2_001)], {}))
    assert not ownership.others()
    ownership.saw(view([node(7), node(8)], {}))
    assert [row.incarnation for row in ownership.others()] == [8]


@pytest.mark.parametrize("other", [node(8), node(8, url=""), node(8, age_ms=2_001)])
def test_company_is_whoever_runs_at_another_place_and_is_not_forgotten(other: NodeRow) -> None:
    ownership = Ownership(Clock())
    ownership.name = "host:folder:9"
    ownership.joined(9)
    mine = [msgspec.structs.replace(node(number), name=f"host:folder:{number}") for number in (7, 9)]
    ownership.saw(view(mine, {}))
    assert not ownership.had_company
    ownership.saw(view([*mine, other], {}))
    ownership.saw(view(mine, {}))
    assert ownership.had_company


def test_a_process_is_dead_when_it_is_silent_or_was_seen_and_is_gone() -> None:
    ownership = member()
    ownership.saw(view([node(7), node(8, age_ms=2_001), node(9)], {}))
    alive = {incarnation: ownership.is_alive(incarnation) for incarnation in (0, 3, 7, 8, 9, 10)}
    assert alive == {0: False, 3: False, 7: True, 8: False, 9: True, 10: True}  # 10 may have joined since
    ownership.joined(0)  # it has left
    assert not ownership.is_alive(0)


def test_for_a_single_node_every_other_process_is_dead() -> None:
    ownership = Ownership(Clock())
    ownership.own_all(dict.fromkeys(range(SLOTS), 1))
    ownership.joined(4)
    assert [ownership.is_alive(incarnation) for incarnation in (0, 3, 4, 5)] == [False, False, True, False]


def test_a_slot_that_was_asked_for_stays_for_a_while() -> None:
    clock = Clock()
    ownership = member(clock)
    assert ownership.movable() == [2, 1]
    ownership.keep([2], 10.0)
    clock.seconds += 9.9
    assert ownership.movable() == [1]
    clock.seconds += 0.1
    assert ownership.movable() == [2, 1]
