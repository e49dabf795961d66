"""A test of the tests: every deliberate fault must be found."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.mutations import MUTATIONS, in_force
from tests.simulation.world import run_world

SEEDS_MAX = 1_500
"""Nearly all are found within a few; what overtakes the spool shows once in two hundred."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_there_are_enough() -> None:
    assert len(MUTATIONS) >= 25


@pytest.mark.timeout(360)
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_checker_finds_it(name: str) -> None:
    with in_force(name):
        found = next((seed for seed in range(SEEDS_MAX) if run_world(seed).violations), None)
    assert found is not None, f"{name} went unnoticed through {SEEDS_MAX} seeds"
