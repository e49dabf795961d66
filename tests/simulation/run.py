"""Run the simulation: many seeds, or one with its trace.

python tests/simulation/run.py --seeds 1000
python tests/simulation/run.py --seeds 1000000 --jobs 8 --keep-going
python tests/simulation/run.py --seed 4711 --trace
python tests/simulation/run.py --power
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "src"), str(root)]

from penstock.store.contract import Capabilities
from tests.simulation.world import Outcome, run_world

PROGRESS_EVERY = 100
SEEDS_AT_ONCE: Final = 50
"""Seeds that a process is given at a time."""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--power" in arguments:
        from tests.power.run import main as lose_power

        return lose_power([argument for argument in arguments if argument != "--power"])
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    capabilities = Capabilities(spans_slots=not options.one_slot, commits_under_way=options.commits_under_way)
    if options.seed is not None:
        return _run_one(options.seed, capabilities, trace=options.trace)
    seeds = range(options.start, options.start + options.seeds)
    return _run_many(seeds, capabilities, keep_going=options.keep_going, jobs=options.jobs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run Penstock on a virtual clock, with faults, and check everything.")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--commits-under-way", type=int, default=1, help="commits the store can do at once (default 1)")
    parser.add_argument("--one-slot", action="store_true", help="the store commits one slot at a time")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds (default 1)")
    parser.add_argument("--power", action="store_true", help="cut the power of real files instead: see --power --help")
    return parser


def _run_one(seed: int, capabilities: Capabilities, *, trace: bool) -> int:
    outcome = run_world(seed, keep_trace=trace, capabilities=capabilities)
    for line in outcome.trace:
        print(line)
    print(describe(outcome))
    return int(bool(outcome.violations))


def _run_many(seeds: range, capabilities: Capabilities, *, keep_going: bool, jobs: int) -> int:
    began = time.perf_counter()
    failed: list[int] = []
    confirmed = delivered = commits = 0
    for done, outcome in enumerate(_outcomes(seeds, capabilities, jobs), 1):
        confirmed += outcome.confirmed
        delivered += outcome.delivered
        commits += outcome.commits
        if outcome.violations:
            failed.append(outcome.seed)
            print(describe(outcome), flush=True)
            if not keep_going:
                break
        if done % PROGRESS_EVERY == 0:
            rate = done / (time.perf_counter() - began) * 60
            print(f"{done} of {len(seeds)} seeds, {rate:,.0f} a minute, {len(failed)} failed", flush=True)
    print(f"{confirmed} publishes confirmed, {delivered} messages handed out, {commits} commits")
    print(f"failed: {failed}" if failed else "no violations")
    return int(bool(failed))


def _outcomes(seeds: range, capabilities: Capabilities, jobs: int) -> Iterator[Outcome]:
    """What each seed led to, in their order."""
    run = partial(_run_tidily, capabilities=capabilities)
    if jobs > 1:
        with multiprocessing.get_context("spawn").Pool(jobs, _prepare) as pool:
            yield from pool.imap(run, seeds, chunksize=SEEDS_AT_ONCE)
        return
    _prepare()
    try:
        yield from map(run, seeds)
    finally:
        gc.enable()
        gc.unfreeze()


def _prepare() -> None:
    """Keep what is there before the first world out of every collection of garbage: none of it ever becomes any."""
    logging.disable(logging.CRITICAL)
    import_module("tests.simulation.clients")  # the first world would
    gc.collect()
    gc.freeze()
    gc.disable()


def _run_tidily(seed: int, capabilities: Capabilities) -> Outcome:
    """Each world is cleared away before the next, which has its memory while that is still in the processor's cache."""
    outcome = run_world(seed, capabilities=capabilities)
    gc.collect()
    return outcome


def describe(outcome: Outcome) -> str:
    """What a seed led to, and how to see it again."""
    head = f"seed {outcome.seed}: {outcome.confirmed} confirmed, {outcome.delivered} handed out, "
    head += f"{outcome.commits} commits, {outcome.crashes} upheavals, {outcome.virtual_ms / 1000:.1f} virtual seconds"
    if not outcome.violations:
        return f"{head}: no violations (trace {outcome.trace_hash})"
    lines = [f"{head}: FAILED", *(f"  {violation}" for violation in outcome.violations)]
    lines.append(f"  replay: ./penstock simulate --seed {outcome.seed} --trace")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
