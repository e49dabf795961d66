"""A process is killed while it commits: what it was told is durable is there, and no commit is there by half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.store.contract import Store
from tests.conformance.engines import Engine
from tests.conformance.samples import all_batches, load_one, own_all

WRITER = """
import asyncio, sys
from pathlib import Path
from tests.conformance.engines import ENGINES
from tests.conformance.samples import batches, change, commit, own_all

async def main(name, folder):
    engine = next(engine for engine in ENGINES if engine.name == name)
    store = await engine.open(Path(folder))
    epochs = await own_all(store)
    for number in range(1_000_000):
        rows = batches(1, base=number, body=bytes(50_000))
        await store.apply(commit(epochs, change(1, batches=rows, first=0), change(2, batches=rows, first=0)))
        print(number + 1, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kill_after", [1, 7, 60])
def test_a_kill_loses_nothing_that_was_answered(durable_engine: Engine, tmp_path: Path, kill_after: int) -> None:
    command = [sys.executable, "-c", WRITER, durable_engine.name, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"}
    ) as writer:
        assert writer.stdout is not None
        for _ in range(kill_after):
            writer.stdout.readline()
        writer.kill()
        answered = [kill_after, *(int(line) for line in writer.stdout.read().split("\n") if line)][-1]

    async def check(store: Store) -> None:
        # As who takes over does: a database may still work on the last commit of one who was killed, and is waited for.
        await own_all(store)
        ends = [(await load_one(store, lane)).end for lane in (1, 2)]
        assert ends[0] == ends[1]
        # One more at the most: a commit may have been made whose answer was not yet written.
        assert answered <= ends[0] <= answered + 1
        for lane in (1, 2):
            assert [row.base for row in await all_batches(store, lane)] == list(range(ends[0]))

    durable_engine.run(tmp_path, check)
