"""Penstock inside your process: open a broker on a file (or in memory) without any server.

`open` is for asyncio; `penstock.sync.open` is the same for programs without an event loop.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import TypedDict, Unpack

from penstock.api.broker import Broker
from penstock.model import DEFAULT_NAMESPACE, INTEGER_MAX, PAYLOAD_BYTES_DEFAULT, PAYLOAD_BYTES_MAX, check_integer
from penstock.node.broker import LocalBroker
from penstock.node.clock import Clock, StoreClock, SystemClock
from penstock.node.cluster.membership import ClusterOptions
from penstock.node.limits import Limits
from penstock.node.node import CACHE_BYTES, Node
from penstock.node.spool.folder import DiskFolder
from penstock.node.spool.spool import SPOOL_BYTES, SpoolSettings
from penstock.store.closing import check_not_closed
from penstock.store.contract import Store
from penstock.store.open import label_of, open_engine, scheme_of


async def open(
    path: str | Path | None,
    *,
    cache_bytes: int = CACHE_BYTES,
    events: bool = True,
    spool: str | Path | None = None,
    spool_bytes: int = SPOOL_BYTES,
    message_bytes: int = PAYLOAD_BYTES_DEFAULT,
) -> Broker:
    """Open a broker on an SQLite file, made where it is missing; `None` keeps everything in memory only.

    `postgresql://user@host/database` opens it on a PostgreSQL database, in a schema that `?schema=` names, and
    `mysql://user@host/database` on one of MySQL or MariaDB; it must have that for itself, and is refused while servers
    or other programs use it.

    `cache_bytes` bounds the batches kept in memory for consumers that keep up; `events` turns the `$events` stream
    of deliveries on. Close it, or use it as `async with await penstock.open(path) as broker`.

    `spool` is a folder for publishes while a database is away, up to `spool_bytes` of them: see docs/spool.md.

    `message_bytes` is the largest payload of a message, up to 512 MiB.
    """
    check_integer(message_bytes, "message_bytes", 1, PAYLOAD_BYTES_MAX)
    held = None if spool is None else spool_settings(spool, spool_bytes)
    settings: NodeSettings = {
        "cache_bytes": cache_bytes,
        "events": events,
        "limits": Limits(message_bytes=message_bytes),
        "spool": held,
    }
    try:
        store = await open_usable(path)
    except BaseException:
        if held is not None:
            await held.folder.close()
        raise
    if path is None or not scheme_of(path):
        return await open_store(store, SystemClock(), **settings)
    node = Node(store, StoreClock(), **settings)
    try:
        cluster = await node.open_among(node_name(held), ClusterOptions(), is_alone=True)
        await cluster.join("")
    except BaseException:
        await node.close()
        raise
    return LocalBroker(node, DEFAULT_NAMESPACE)


async def open_usable(path: str | Path | None) -> Store:
    """An open store; `Closed` where it was copied elsewhere."""
    store = await open_engine(path)
    if path is not None:
        try:
            await check_not_closed(store, label_of(path))
        except BaseException:
            await store.close()
            raise
    return store


def spool_settings(folder: str | Path, bytes_most: int = SPOOL_BYTES, port: int | None = None) -> SpoolSettings:
    """A spool in this folder, made where it is missing; held from now on, until the broker with it is closed.

    That of a server on this port is in a folder of its own there.
    """
    check_integer(bytes_most, "spool_bytes", 1, INTEGER_MAX)
    held = DiskFolder.open(folder) if port is None else DiskFolder.open_for_port(folder, port)
    return SpoolSettings(held, bytes_most)


def node_name(spool: SpoolSettings | None) -> str:
    """Its place and its process; a folder keeps the place, so that a node knows rows of its own after a restart."""
    return f"{socket.gethostname() if spool is None else spool.folder.place}:{os.getpid()}"


class NodeSettings(TypedDict, total=False):
    """What a node is opened with: see `Node`."""

    cache_bytes: int
    events: bool
    limits: Limits
    enqueue_poll: float
    spool: SpoolSettings | None
    scrub_bytes_per_second: int
    disks: Mapping[str, Path]


async def open_store(store: Store, clock: Clock, **settings: Unpack[NodeSettings]) -> LocalBroker:
    """A broker on a store that is open already; it takes the store and the spool over, also when it fails."""
    node = Node(store, clock, **settings)
    return await _opened(node, store, node.open(node_name(settings.get("spool"))))


async def open_member(
    store: Store,
    clock: Clock,
    *,
    options: ClusterOptions = ClusterOptions(),  # noqa: B008 - it is frozen
    name: str | None = None,
    **settings: Unpack[NodeSettings],
) -> LocalBroker:
    """A broker that will be one of several on a store: `broker.cluster.join` makes it one, when it can be reached."""
    node = Node(store, clock, **settings)
    return await _opened(node, store, node.open_among(name or node_name(settings.get("spool")), options))


async def _opened(node: Node, store: Store, opening: Awaitable[object]) -> LocalBroker:
    try:
        await opening
    except BaseException:
        await node.spool.close()
        await store.close()
        raise
    return LocalBroker(node, DEFAULT_NAMESPACE)
