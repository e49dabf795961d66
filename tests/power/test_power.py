"""Nothing that was answered is lost with the power, wherever it is cut and whatever is left of what was not synced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.power.disk import Event
from tests.power.mutations import FOUND, MUTATIONS
from tests.power.recorder import NotAllowed
from tests.power.rig import Story

pytestmark = pytest.mark.timeout(300)
STEPS = 16
MUTATION_DRAWS = 6


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torn ends are told each time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def story(workload: str, mutation: str = "", steps: int = STEPS) -> Story:
    try:
        return Story(workload, "test", steps, mutation)
    except NotAllowed as reason:
        pytest.skip(str(reason))


def check(lives: Story) -> None:
    cuts = lives.cuts(tables_every=8)
    if lives.workload == "backup":  # the store itself is looked at with the others
        cuts = [at for at in cuts if not lives.events[at].path.startswith("data/")]
    findings = list(lives.findings(cuts))
    assert not findings, "\n".join(map(str, findings[:5]))


@pytest.mark.parametrize("workload", ["store", "spool", "backup"])
def test_nothing_answered_is_lost_wherever_the_power_is_cut(workload: str) -> None:
    check(story(workload))


def is_name_of_segment(event: Event) -> bool:
    return event.kind == "sync" and event.path.endswith("-log")


def is_end_of_spool(event: Event) -> bool:
    return event.kind == "sync" and event.path.endswith(".spool")


def is_letter(event: Event) -> bool:
    return event.kind == "sync" and event.path.endswith(".letter")


@pytest.mark.parametrize(
    ("workload", "sync"),
    [("store", is_name_of_segment), ("spool", is_end_of_spool), ("spool", is_letter)],
)
def test_a_process_after_a_killed_one_relies_on_nothing_that_only_the_kernel_has(
    workload: str, sync: Callable[[Event], bool]
) -> None:
    """The first is killed right before a sync: the next finds all of it, and the power is lost then."""
    lives = story(workload)
    lives.kill([at for at in lives.unsynced() if sync(lives.events[at])][-1])
    lives.live()
    check(lives)


def test_a_second_loss_of_power_is_survived_too() -> None:
    lives = story("store")
    lives.lose_power(lives.unsynced()[-3], Random(1))
    lives.live()
    check(lives)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_sync_that_is_left_out_is_found(mutation: str) -> None:
    workload, after = FOUND[mutation]
    lives = story(workload, mutation)
    cuts = [at for at in lives.cuts() if at >= lives.ready and after in str(lives.events[at])]
    assert next(lives.findings(cuts, MUTATION_DRAWS), None) is not None
