"""`./penstock torture`: nodes on one database under mixed load, everything that can die dying, every id checked.

./penstock torture --minutes 30
./penstock torture --minutes 2 --nodes 1 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[0] = str(root)
    sys.path.insert(0, str(root / "src"))

from penstock import AsyncClient, PenstockError, Retry
from tests.torture.faults import Faults
from tests.torture.ledger import Ledger
from tests.torture.parties import Parties
from tests.torture.world import World

DRAIN_S: Final = 120.0
PROGRESS_S: Final = 15.0
DRAINED: Final = ("ordered", "source", "moved", "risky", "later", "left", "right")


def main() -> int:
    parser = argparse.ArgumentParser(prog="penstock torture", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are injected (default 5)")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (default 3)")
    parser.add_argument("--seed", type=int, default=None, help="of faults and load; a random one is told")
    parser.add_argument("--quiet", action="store_true", help="do not tell each fault")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    logging.getLogger("penstock").setLevel(logging.CRITICAL)
    print(f"{options.nodes} nodes on one PostgreSQL, {options.minutes:g} minutes, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-torture-") as folder:
        return asyncio.run(torture(Path(folder), options.nodes, options.minutes * 60, seed, quiet=options.quiet))


async def torture(folder: Path, nodes: int, seconds: float, seed: int, *, quiet: bool) -> int:
    """Run, judge, report; the exit code."""
    began = time.monotonic()
    world = await asyncio.to_thread(World, folder, nodes)
    ledger = Ledger()

    def say(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    faults = Faults(world, seed, say)
    try:
        await world.open()
        retry = Retry(attempts=8, seconds=30.0, pause_seconds_max=0.5)
        async with AsyncClient([node.url for node in world.nodes], timeout=10.0, retry=retry) as client:
            parties = Parties(client, ledger, seed)
            await parties.declare()
            working = parties.start()
            suffering = asyncio.ensure_future(faults.run())
            await _watch(seconds, [*working, suffering], ledger, began)
            suffering.cancel()
            await asyncio.wait([suffering])
            await world.heal()
            parties.stop()
            if ledger.faults:  # what is found now follows from that
                await _end(working)
            else:
                await _judge(client, ledger, working)
        _report(ledger, faults, parties, time.monotonic() - began)
    finally:
        if ledger.faults:
            for node in world.nodes:
                print(f"--- what {node.name} said at the end\n{node.log()}")
        await world.close()
    return int(bool(ledger.faults))


async def _watch(seconds: float, tasks: list[asyncio.Task[None]], ledger: Ledger, began: float) -> None:
    """Until the time is over; a party that ends by itself is a bug of the torture."""
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0 and not ledger.faults:
        done, _ = await asyncio.wait(tasks, timeout=min(left, PROGRESS_S), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            raise AssertionError("a party ended before its time")
        print(
            f"{time.monotonic() - began:7.1f} s  {ledger.confirmed:,} confirmed, {ledger.deliveries:,} delivered, "
            f"{ledger.acked:,} acked, {ledger.fault_count} faults of Penstock", flush=True,
        )  # fmt: skip


async def _judge(client: AsyncClient, ledger: Ledger, working: list[asyncio.Task[None]]) -> None:
    """Drain everything, then ask the ledger."""
    deadline = time.monotonic() + DRAIN_S
    left: dict[str, int] = {}
    while time.monotonic() < deadline:
        try:
            left = {queue: (await client.stats(queue)).groups[0].lag for queue in DRAINED}
        except PenstockError:
            continue
        if not any(left.values()) and all(_published(ledger, queue) for queue in DRAINED):
            break
        await asyncio.sleep(0.2)
    else:
        ledger.fault(f"the queues are not drained after {DRAIN_S:.0f} s of peace: {left}")
    await _end(working)
    dead = {"risky": {one.received.payload.decode() for one in await client.dead("risky", max=1_000)}}
    ledger.close(dead, await _copies(client, len(dead["risky"])), await _stored(client))


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _published(ledger: Ledger, queue: str) -> bool:
    """Whether every producer of a queue has its answer."""
    seen = ledger.queues[queue]
    return queue == "moved" or seen.asked == seen.confirmed


async def _copies(client: AsyncClient, expected: int) -> list[str]:
    """What arrived in the dead letters' queue; the last ones may be on their way."""
    deadline = time.monotonic() + DRAIN_S
    found: list[str] = []
    while len(found) < expected and time.monotonic() < deadline:
        found = []
        while (read := await client.read_from("grave", len(found), max=1_000)).messages:
            found += [one.payload.decode() for one in read.messages]
        await asyncio.sleep(0.1)
    return found


async def _stored(client: AsyncClient) -> dict[str, list[str]]:
    """The log of `ordered` by partition."""
    stored: dict[str, list[str]] = {}
    offset = 0
    while (read := await client.read_from("ordered", offset, max=1_000)).messages:
        for one in read.messages:
            stored.setdefault(one.partition or "", []).append(one.payload.decode())
        offset = read.next_offset
    return stored


def _report(ledger: Ledger, faults: Faults, parties: Parties, seconds: float) -> None:
    print(f"\n{seconds / 60:.1f} minutes, {sum(faults.counts.values())} faults injected:")
    for name, count in faults.counts.most_common():
        print(f"  {count:5}  {name}")
    print(
        f"{ledger.confirmed:,} publishes confirmed, {ledger.deliveries:,} deliveries ({ledger.repeats:,} again), "
        f"{ledger.acked:,} acks answered, {parties.refusals:,} calls ended with an error"
    )
    if not ledger.faults:
        print("Verdict: nothing lost, nothing after an answered ack, nothing early, no partition out of order")
        return
    print(f"Verdict: {ledger.fault_count} BROKEN PROMISES")
    for text in ledger.faults:
        print(f"  {text}")


if __name__ == "__main__":
    sys.exit(main())
