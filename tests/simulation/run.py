"""Run the simulation: many seeds, or one with its trace.

python tests/simulation/run.py --seeds 1000
python tests/simulation/run.py --seeds 1000 --start 5000
python tests/simulation/run.py --seed 4711 --trace
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(root / "src"), str(root)]

from penstock.store.contract import Capabilities
from tests.simulation.world import Outcome, run_world

PROGRESS_EVERY = 100


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run Penstock on a virtual clock, with faults, and check everything.")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--commits-under-way", type=int, default=1, help="commits the store can do at once (default 1)")
    parser.add_argument("--one-slot", action="store_true", help="the store commits one slot at a time")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    capabilities = Capabilities(spans_slots=not options.one_slot, commits_under_way=options.commits_under_way)
    if options.seed is not None:
        return _run_one(options.seed, capabilities, trace=options.trace)
    return _run_many(options.start, options.seeds, capabilities, keep_going=options.keep_going)


def _run_one(seed: int, capabilities: Capabilities, *, trace: bool) -> int:
    outcome = run_world(seed, keep_trace=trace, capabilities=capabilities)
    for line in outcome.trace:
        print(line)
    print(describe(outcome))
    return int(bool(outcome.violations))


def _run_many(start: int, count: int, capabilities: Capabilities, *, keep_going: bool) -> int:
    began = time.perf_counter()
    failed: list[int] = []
    confirmed = delivered = commits = 0
    for index in range(count):
        outcome = run_world(start + index, capabilities=capabilities)
        confirmed += outcome.confirmed
        delivered += outcome.delivered
        commits += outcome.commits
        if outcome.violations:
            failed.append(outcome.seed)
            print(describe(outcome), flush=True)
            if not keep_going:
                break
        if (index + 1) % PROGRESS_EVERY == 0:
            rate = (index + 1) / (time.perf_counter() - began) * 60
            print(f"{index + 1} of {count} seeds, {rate:,.0f} a minute, {len(failed)} failed", flush=True)
    print(f"{confirmed} publishes confirmed, {delivered} messages handed out, {commits} commits")
    print(f"failed: {failed}" if failed else "no violations")
    return int(bool(failed))


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
