"""`./penstock torture`: nodes on one database under mixed load, everything that can die dying, every id checked.

The exit code is 0 if every promise was kept, 1 if one was broken, 2 if the torture itself failed.

./penstock torture --minutes 30
./penstock torture --minutes 2 --nodes 1 --seed 7
./penstock torture --minutes 5 --json > report.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    sys.path[0] = str(root)
    sys.path.insert(0, str(root / "src"))

from penstock import AsyncClient, Retry
from tests.torture.faults import Faults
from tests.torture.judge import Judge
from tests.torture.ledger import Ledger
from tests.torture.network import Network, NotPossible
from tests.torture.parties import Parties
from tests.torture.world import World

PROGRESS_S: Final = 15.0
KEPT: Final = "nothing lost, nothing twice, nothing after an answered ack, nothing early, no partition out of order"


def main() -> int:
    about, examples = __doc__.split("\n\n./", 1)
    parser = argparse.ArgumentParser(
        prog="penstock torture",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n" + "".join(f"  {line}\n" for line in f"./{examples}".splitlines()),
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults are injected (default 5)")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (default 3)")
    parser.add_argument("--seed", type=int, default=None, help="of faults and load; a random one is told")
    parser.add_argument("--proxies", action="store_true", help="no network of its own for each node: proxies alone")
    parser.add_argument("--quiet", action="store_true", help="do not tell each fault")
    parser.add_argument("--json", action="store_true", help="the report as JSON; everything else goes to stderr")
    options = parser.parse_args()
    seed = random.randrange(1 << 30) if options.seed is None else options.seed
    for name in ("penstock", "aio_pika", "aiormq", "paho"):  # clients tell of each connection that ends
        logging.getLogger(name).setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends all that it has started
    began = time.monotonic()

    def say(text: str) -> None:
        out = sys.stderr if options.json else sys.stdout
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=out, flush=True)

    network = None
    try:
        network = None if options.proxies else Network.open(options.nodes)
        networks = "behind proxies" if network is None else "each in a network of its own"
    except NotPossible as reason:
        networks = f"behind proxies, for they cannot have networks of their own ({reason})"
    say(f"{options.nodes} nodes {networks}, one PostgreSQL with a replica, {options.minutes:g} minutes, seed {seed}")
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-torture-") as folder:
            report = asyncio.run(
                torture(Path(folder), options.nodes, network, options.minutes * 60, seed, say, quiet=options.quiet)
            )
    except Exception:
        traceback.print_exc()
        print("Verdict: none, the torture itself failed", file=sys.stderr)
        return 2
    print(json.dumps({"seed": seed, "nodes": options.nodes, **report}) if options.json else written(report))
    return int(report["verdict"] != "kept")


async def torture(
    folder: Path,
    nodes: int,
    network: Network | None,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Run, judge, and report."""
    began = time.monotonic()
    world = await asyncio.to_thread(World, folder, nodes, network)
    ledger = Ledger()
    faults = Faults(world, ledger, seed, _nothing if quiet else say)
    looking = asyncio.ensure_future(world.look_after())
    try:
        await world.open()
        retry = Retry(attempts=8, seconds=30.0, pause_seconds_max=0.5)
        async with (
            AsyncClient([node.url for node in world.nodes], timeout=10.0, retry=retry) as client,
            AsyncExitStack() as stack,
        ):
            parties = Parties(client, world.nodes, ledger, seed)
            stack.callback(parties.close)
            await parties.declare()
            working = parties.start()
            suffering = asyncio.ensure_future(faults.run())
            await _watch(seconds, [*working, suffering], ledger, say)
            suffering.cancel()
            await asyncio.wait([suffering])
            say("no more faults: everything is healed, drained and compared")
            await world.heal()
            parties.stop()
            if ledger.faults:  # what is found now follows from that
                for task in working:
                    task.cancel()
                await asyncio.wait(working)
            else:
                await Judge(client, ledger, say).judge(working)
    finally:
        if ledger.faults:
            for node in world.nodes:
                say(f"what {node.name} said at the end:\n{node.log()}")
        looking.cancel()
        await world.close()
    return {
        "verdict": "broken" if ledger.faults else "kept",
        "minutes": round((time.monotonic() - began) / 60, 2),
        "networks": network is not None,
        "faults_injected": dict(faults.counts.most_common()),
        "confirmed": ledger.confirmed,
        "deliveries": ledger.deliveries,
        "deliveries_again": ledger.repeats,
        "acks_answered": ledger.acked,
        "stored_twice": ledger.stored_twice,
        "calls_failed": parties.refusals,
        "broken_promises": ledger.fault_count,
        "broken": ledger.faults,
    }


def _nothing(_: str) -> None:
    """Say nothing."""


async def _watch(seconds: float, tasks: list[asyncio.Task[None]], ledger: Ledger, say: Callable[[str], None]) -> None:
    """Until the time is over; a party that ends by itself is a bug of the torture."""
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0 and not ledger.faults:
        done, _ = await asyncio.wait(tasks, timeout=min(left, PROGRESS_S), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
            raise AssertionError("a party ended before its time")
        say(
            f"{ledger.confirmed:,} confirmed, {ledger.deliveries:,} delivered, {ledger.acked:,} acked, "
            f"{ledger.fault_count} faults of Penstock"
        )
    for fault in ledger.faults:
        say(fault)


def written(report: dict[str, Any]) -> str:
    """The report for people."""
    injected: dict[str, int] = report["faults_injected"]
    lines = [
        f"\n{report['minutes']:.1f} minutes, {sum(injected.values())} faults injected:",
        *(f"  {count:5}  {name}" for name, count in injected.items()),
        (
            "{confirmed:,} publishes confirmed, {deliveries:,} deliveries ({deliveries_again:,} again), "
            "{acks_answered:,} acks answered, {calls_failed:,} calls ended with an error"
        ).format(**report),
    ]
    lines += [
        f"{count:,} messages of {queue} were sent again by MQTT clients and are stored twice"
        for queue, count in report["stored_twice"].items()
    ]
    if report["verdict"] == "kept":
        lines.append(f"Verdict: {KEPT}")
    else:
        lines.append(f"Verdict: {report['broken_promises']} BROKEN PROMISES")
        lines += [f"  {text}" for text in report["broken"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
