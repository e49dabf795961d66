"""Cut the power of real files, again and again: `./penstock simulate --power`.

Each seed is a workload that is recorded, in some of them after a process that was killed or a loss of power; then the
power is cut after every call of it, with several fates for what was not synced. The files of a failure are kept, with
the notes of what was answered.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

from tests.power.recorder import NotAllowed
from tests.power.rig import Story
from tests.power.workloads import WORKLOADS

STEPS: Final = 24
SHOWN: Final = 3
"""Of the findings of a seed: most have the same cause."""
ENDS: Final = (None, "killed", "killed", "lost")
"""What ended the life before the one that is looked at; None where there was none."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock simulate --power",
        description="Record what a store does to its files, cut the power after every call, and check what is left.",
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many workloads to record (default 10)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--draws", type=int, default=2, help="fates of what was not synced, for each cut (default 2)")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="only this one (default: in turn)")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    try:
        return _run(range(options.start, options.start + options.seeds), options.draws, options.workload)
    except NotAllowed as error:
        print(error)
        return 2


def _run(seeds: range, draws: int, workload: str | None) -> int:
    cuts = images = failed = 0
    for seed in seeds:
        began = time.perf_counter()
        story = story_of(seed, workload)
        found = list(story.findings(story.cuts(), draws, keep=Path(tempfile.gettempdir())))
        for finding in found[:SHOWN]:
            print(f"seed {seed}, {story.workload}: {finding}", flush=True)
        cuts, images, failed = cuts + len(story.cuts()), images + story.images, failed + len(found)
        told = f"{story.workload}, {len(story.cuts())} cuts, {len(found)} failed"
        print(f"seed {seed}: {told}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{cuts} cuts of the power, {images} different outcomes looked at, {failed} failed")
    return int(bool(failed))


def story_of(seed: int, workload: str | None = None) -> Story:
    """The lives that a seed stands for."""
    random = Random(seed)
    story = Story(workload or sorted(WORKLOADS)[seed % len(WORKLOADS)], str(seed), STEPS)
    match random.choice(ENDS):
        case "killed":
            story.kill(random.choice(story.unsynced()))
            story.live()
        case "lost":
            story.lose_power(random.randrange(story.ready, len(story.events)), random)
            story.live()
    return story
