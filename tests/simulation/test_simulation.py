"""Seeds as tests: thousands of small worlds, in chunks so that they spread over all cores."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from penstock.store.contract import Capabilities
from tests.simulation.run import describe, main
from tests.simulation.world import run_world

ROOT = Path(__file__).resolve().parents[2]
CHUNKS = 50
CHUNKS_FOUR = 10
CHUNKS_ONE_SLOT = 8
CHUNKS_ONE_SLOT_FOUR = 4
SEEDS_A_CHUNK = 40


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Nodes log each of the thousands of failures that they are put through."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def check_chunk(chunk: int, capabilities: Capabilities) -> None:
    failures = []
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        outcome = run_world(seed, capabilities=capabilities)
        if outcome.violations:
            failures.append(describe(outcome))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_seed_finds_a_violation(chunk: int) -> None:
    check_chunk(chunk, Capabilities())


@pytest.mark.parametrize("chunk", range(CHUNKS, CHUNKS + CHUNKS_FOUR))
def test_no_seed_finds_a_violation_with_four_commits_under_way(chunk: int) -> None:
    check_chunk(chunk, Capabilities(commits_under_way=4))


@pytest.mark.parametrize("chunk", range(CHUNKS_ONE_SLOT))
def test_no_seed_finds_a_violation_with_commits_of_one_slot(chunk: int) -> None:
    check_chunk(chunk, Capabilities(spans_slots=False))


@pytest.mark.parametrize("chunk", range(CHUNKS_ONE_SLOT, CHUNKS_ONE_SLOT + CHUNKS_ONE_SLOT_FOUR))
def test_no_seed_finds_a_violation_with_commits_of_four_slots_under_way(chunk: int) -> None:
    check_chunk(chunk, Capabilities(spans_slots=False, commits_under_way=4))


@pytest.mark.parametrize(
    ("seed", "commits_under_way"), [(321, 1), (379, 1), (959, 1), (1715, 1), (3600, 4), (60034, 4), (60865, 4)]
)
def test_a_seed_that_found_something_with_commits_of_one_slot_finds_it_no_more(
    seed: int, commits_under_way: int
) -> None:
    """What each of them found.

    321: who waited for everything did not wait for rows of a slot whose turn had not come.
    379: of two nodes that opened at once, one was given up for the other, which had died.
    959: a node that was taken over from answered with a place that its own commit, refused by then, had meant.
    1715: a node that was being closed declared a group again, of which it did not know whether it was declared.
    3600: what was published later overtook what a commit of unknown outcome had promised to another slot.
    60034, 60865: of several ephemeral queues, a commit whose answer was lost reached those of other slots alone.
    """
    capabilities = Capabilities(spans_slots=False, commits_under_way=commits_under_way)
    outcome = run_world(seed, capabilities=capabilities)
    assert not outcome.violations, describe(outcome)


@pytest.mark.parametrize(
    ("seed", "commits_under_way"),
    [
        (9059, 1),
        (202431, 1),
        (301085, 4),
        (301517, 4),
        (301524, 4),
        (501289, 1),
        (503172, 1),
        (604562, 1),
        (7011281, 1),
    ],
)
def test_a_seed_that_found_something_finds_it_no_more(seed: int, commits_under_way: int) -> None:
    """What each of them found.

    9059: a fenced node loaded a lane with something due, failed to commit it, dropped and loaded it, without end.
    202431: spools were emptied while a takeover was under way, after which the node before it buffered more.
    301085, 301524: a probe, and deaths in an ephemeral queue, were fenced by a slot of which a commit was under way.
    301517: a claim loaded two ephemeral lanes in turn, on which something was due that could not be committed.
    501289: a lane was read while the deletion of its queue, in force by then, failed; a publish went into it.
    503172: a node that closed while it read the catalog loaded a lane without a group, and trimmed what that wanted.
    604562: the checker did not know that a claim which waits on may spend an attempt that its consumer never saw.
    7011281: a publish that waited for its lane overtook a replay of the spool whose commit had failed meanwhile.
    """
    outcome = run_world(seed, capabilities=Capabilities(commits_under_way=commits_under_way))
    assert not outcome.violations, describe(outcome)


@pytest.mark.parametrize("seed", [6444, 7957])
def test_the_world_does_not_depend_on_where_objects_are_in_memory(seed: int) -> None:
    """Of several full lanes, a publish was told of the one that came first in a set."""
    hashes = set()
    for others in range(6):
        hashes.add(run_world(seed).trace_hash)
        for other in range(others):
            run_world(other)
    assert len(hashes) == 1


@pytest.mark.parametrize("seed", [1, 2, 5, 54, 71, 394])
def test_the_same_seed_is_the_same_world(seed: int) -> None:
    first, second = run_world(seed), run_world(seed)
    assert first.trace_hash == second.trace_hash
    assert (first.confirmed, first.delivered, first.commits) == (second.confirmed, second.delivered, second.commits)


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_world_does_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    """Sets of strings must not decide what happens first."""
    here = "".join(run_world(seed).trace_hash for seed in range(4))
    program = "import logging; logging.disable(50); from tests.simulation.world import run_world; "
    program += "print(''.join(run_world(seed).trace_hash for seed in range(4)))"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(["src", "."])}
    there = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout.strip() == here


@pytest.mark.parametrize("seed", [1, 2, 5, 54, 71, 394])
@pytest.mark.parametrize("commits_under_way", [1, 4])
def test_idle_turns_may_be_left_out(seed: int, commits_under_way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are run or not, the same happens at the same times."""
    capabilities = Capabilities(spans_slots=commits_under_way == 1, commits_under_way=commits_under_way)
    short = run_world(seed, capabilities=capabilities)
    monkeypatch.setattr("tests.simulation.world.left_out", lambda _: nullcontext())
    assert run_world(seed, capabilities=capabilities) == short


def test_another_seed_is_another_world() -> None:
    assert len({run_world(seed).trace_hash for seed in range(5)}) == 5


def test_worlds_have_work_in_them() -> None:
    """A simulation in which nothing happens finds nothing."""
    outcomes = [run_world(seed) for seed in range(40)]
    assert sum(outcome.confirmed for outcome in outcomes) > 500
    assert sum(outcome.delivered for outcome in outcomes) > 1_000
    assert sum(outcome.crashes for outcome in outcomes) > 40


def test_the_command_runs_one_seed_and_many(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--trace"]) == 0
    assert "node 0" in capsys.readouterr().out
    assert main(["--seeds", "3", "--start", "10"]) == 0
    alone = capsys.readouterr().out
    assert "no violations" in alone
    assert main(["--seeds", "3", "--start", "10", "--jobs", "2"]) == 0
    assert capsys.readouterr().out == alone
