"""Stores with something of everything in them, made by a real broker, on any engine."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final

import penstock
from penstock import Message, encode
from penstock.api.broker import Broker
from tests.conformance.conftest import prepared
from tests.conformance.engines import ENGINES
from tests.databases import mariadb, postgres

ENGINE_NAMES: Final = ("sqlite", "postgres", "mysql")


def place_of(engine: str, folder: Path) -> str:
    """Where a store of an engine is that belongs to a folder; the test is skipped where there is no such database."""
    prepared(next(one for one in ENGINES if one.name == engine))
    if engine == "postgres":
        return postgres.schema_url(folder)
    if engine == "mysql":
        return mariadb.database_url(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder / "penstock.db")


def make(place: str) -> None:
    """A store with messages in every state, and one of everything else that a store keeps."""

    async def main() -> None:
        async with await penstock.open(place) as broker:
            await fill(broker)

    asyncio.run(main())


async def fill(broker: Broker, messages: int = 40) -> None:
    await broker.declare_queue("orders", lanes=3, ordered=True, retain_ms=3_600_000, dedup_window_ms=600_000)
    await broker.declare_group("orders", "audit", kind="stream")
    await broker.declare_group("orders", "billing", max_attempts=1)
    await broker.declare_queue("mail", max_attempts=2, dead_letter_to="queue:graveyard")
    await broker.declare_queue("graveyard")
    await broker.declare_queue("lost", dead_letter_to="queue:nowhere")
    await broker.declare_exchange("all", kind="fanout")
    await broker.bind("all", "mail")
    await broker.bind("all", "orders")
    for number in range(messages):
        message = Message(
            b"%d " % number * 50,
            partition=f"customer-{number % 7}",
            headers={"number": number, "name": "Ä\0🐇"},
            dedup_id=f"id-{number}",
            trace_id=f"trace-{number % 3}",
        )
        await broker.publish("orders", message)
    await broker.publish_to("all", [Message(b"to all", key="k", delay_ms=60_000), Message(b"now", priority=5)])
    await broker.publish_many("mail", [Message(b"letter %d" % number) for number in range(20)])
    await broker.ack(await broker.claim("orders", max=5))
    await broker.nack(await broker.claim("orders", max=5), delay=600.0, error="later")
    await broker.claim("orders", max=5, lease_seconds=600.0)
    await broker.reject(await broker.claim("orders", group="billing", max=5), error="broken")
    await broker.reject(await broker.claim("mail", max=3), error="no address")
    await broker.publish("lost", Message(b"promised to a queue that is not there"))
    await broker.reject(await broker.claim("lost"), error="stays in the outbox")
    read = await broker.read("orders", "audit", max=10)
    await broker.commit("orders", "audit", read.next_offset, lane=read.lane)
    await broker.declare_schedule("nightly", message=Message(b"tick"), queue="mail", cron="0 3 * * *")
    await broker.put_mark("archive", {"offset": 7})
    await broker.stage("load-1", "part-0", encode([Message(b"staged 0"), Message(b"staged 1")]), queue="mail")
    await broker.stage("load-1", "part-1", encode([Message(b"staged 2")]), exchange="all")
    await broker.trace_event("trace-1", "charged", detail="12 EUR")
    await broker.in_namespace("other").declare_queue("orders")
    await broker.in_namespace("other").publish("orders", Message(b"elsewhere"))
    assert len(await broker.read_from("graveyard", 2, wait=30.0)) == 1  # the dead letters are there


def copy_files(source: Path, target: Path) -> Path:
    """A copy of an SQLite store as it is on the disk, to be damaged."""
    target.mkdir(parents=True, exist_ok=True)
    copied = target / source.name
    for name in ("", "-wal"):
        if Path(f"{source}{name}").exists():
            shutil.copy(f"{source}{name}", f"{copied}{name}")
    shutil.copytree(f"{source}-log", f"{copied}-log")
    return copied


def flip(file: Path, position: int) -> None:
    """Damage one byte."""
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes([byte ^ 0x55]))


def segment_of(path: Path, number: int = 1) -> Path:
    return Path(f"{path}-log", f"{number:010d}.log")
