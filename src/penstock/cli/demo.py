"""`penstock demo`: a shop's orders on a broker in a temporary folder, told step by step.

Only the public API is used, and what is printed is what it answered: a broker that went wrong would show.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import penstock
from penstock import Broker, Message, QueueStats, StreamRead

ORDERS = [
    ("ann", b"2 apples"),
    ("bob", b"1 ladder"),  # the shop's printer jams twice on this one
    ("ann", b"-1 pears"),  # nobody can pack this
    ("bob", b"3 lamps"),
    ("ann", b"1 kite"),
]


def run() -> None:
    console = Console(highlight=False)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        asyncio.run(show(Path(folder) / "shop.db", console))
    console.print(f"\n[dim]{time.monotonic() - began:.1f} s, and the temporary file is gone again.[/]")
    console.print(
        "\nTry next:\n"
        "  docs/guide.md     each of these steps and more, with code to copy\n"
        "  ./penstock test   every check and test of this checkout"
    )


async def show(path: Path, console: Console) -> None:
    async with await penstock.open(path) as broker:
        await declare(broker, console)
        await publish(broker, console)
        await work(broker, console)
        await replay(broker, console)
    step(console, "6. Close the broker, and open the same file again")
    async with await penstock.open(path) as broker:
        await redrive(broker, console)
        console.print(stats_table(await broker.stats("orders")))


def step(console: Console, title: str) -> None:
    console.print(f"\n[bold]{title}[/]")


async def declare(broker: Broker, console: Console) -> None:
    step(console, "1. Declare a queue, in one SQLite file")
    await broker.declare_queue("orders", ordered=True, max_attempts=3, backoff_ms=100, retain_ms=24 * 3600 * 1000)
    await broker.declare_group("orders", "packing")
    await broker.declare_group("orders", "audit", kind="stream")
    console.print("   [cyan]orders[/]  each customer's in sequence, three attempts each, a day of log")
    console.print("   [cyan]packing[/] a work group: leases orders and acknowledges them")
    console.print("   [cyan]audit[/]   a stream group: reads along, and can read again")


async def publish(broker: Broker, console: Console) -> None:
    step(console, "2. Publish five orders of two customers")
    receipt = await broker.publish_many("orders", [Message(order, partition=customer) for customer, order in ORDERS])
    for place, (customer, order) in zip(receipt, ORDERS, strict=True):
        console.print(f"   offset {place.offset}  {customer:4} {order.decode()}")
    console.print("   durable: each answer comes after the commit that holds the order")


async def work(broker: Broker, console: Console) -> None:
    step(console, "3. Work: claim, then ack what went well and nack what did not")
    while True:
        claim = await broker.claim("orders", group="packing", wait=0.5)
        if not claim:
            break
        [received] = claim.messages
        what = f"   {received.message.partition:4} {received.payload.decode():9} attempt {received.attempt}"
        error = pack(received.payload, received.attempt)
        if error is None:
            await broker.ack(claim)
            console.print(f"{what}  [green]packed[/]")
        else:
            await broker.nack(claim, error=error)
            console.print(f"{what}  [yellow]failed: {error}[/]")
    console.print("   Bob's lamps waited for his ladder; ann's orders did not.")
    step(console, "4. What ran out of attempts is dead: kept, with the reason")
    for dead in await broker.dead("orders", "packing"):
        console.print(f"   offset {dead.received.offset}  {dead.received.payload.decode()}  [red]{dead.error}[/]")


def pack(order: bytes, attempt: int) -> str | None:
    """Why the order could not be packed; None if it was."""
    if order.startswith(b"-"):
        return "cannot pack a negative number"
    if order.endswith(b"ladder") and attempt < 3:
        return "the printer jammed"
    return None


async def replay(broker: Broker, console: Console) -> None:
    step(console, "5. Read the log as a stream, then rewind and read it again")
    read = await broker.read("orders", "audit")
    console.print(f"   read  offsets {offsets(read)}")
    await broker.seek("orders", "audit", to="first")
    read = await broker.read("orders", "audit")
    console.print(f"   again offsets {offsets(read)}: done or dead for packing, all the same to audit")
    await broker.commit("orders", "audit", read.next_offset)


def offsets(read: StreamRead) -> str:
    return ", ".join(str(received.offset) for received in read.messages)


async def redrive(broker: Broker, console: Console) -> None:
    for dead in await broker.dead("orders", "packing"):
        console.print(f"   still dead: {dead.received.payload.decode()}, after {dead.attempts} attempts")
    await broker.redrive("orders", "packing", error="negative")
    claim = await broker.claim("orders", group="packing")
    for received in claim:
        console.print(f"   redriven: {received.payload.decode()}, attempt {received.attempt}, packed by hand")
    await broker.ack(claim)


def stats_table(stats: QueueStats) -> Table:
    title = f"queue {stats.queue}: {stats.published} published, {stats.messages} in the log"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("group", style="cyan")
    table.add_column("kind")
    for column in ("ready", "leased", "scheduled", "dead", "lag"):
        table.add_column(column, justify="right")
    for group in stats.groups:
        counts = (group.ready, group.leased, group.scheduled, group.dead, group.lag)
        table.add_row(group.group, group.kind, *map(str, counts))
    return table
