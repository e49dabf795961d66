"""Penstock inside your process: open a broker on a file (or in memory) without any server.

`open` is for asyncio; `penstock.sync.open` is the same for programs without an event loop.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from penstock.model import DEFAULT_NAMESPACE
from penstock.node.broker import Broker
from penstock.node.clock import Clock, SystemClock
from penstock.node.limits import Limits
from penstock.node.node import CACHE_BYTES, Node
from penstock.store.contract import Store
from penstock.store.opening import open_engine


async def open(path: str | Path | None, *, cache_bytes: int = CACHE_BYTES, events: bool = True) -> Broker:
    """Open a broker on an SQLite file, made where it is missing; `None` keeps everything in memory only.

    `postgresql://user@host/database` opens it on a PostgreSQL database, in a schema that `?schema=` names, and
    `mysql://user@host/database` on one of MySQL or MariaDB.

    `cache_bytes` bounds the batches kept in memory for consumers that keep up; `events` turns the `$events` stream
    of deliveries on. Close it, or use it as `async with await penstock.open(path) as broker`.
    """
    return await open_store(await open_engine(path), SystemClock(), cache_bytes=cache_bytes, events=events)


async def open_store(
    store: Store,
    clock: Clock,
    *,
    cache_bytes: int = CACHE_BYTES,
    events: bool = True,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> Broker:
    """A broker on a store that is open already; it takes the store over, also when it fails."""
    node = Node(store, clock, cache_bytes=cache_bytes, events=events, limits=limits)
    try:
        await node.open(f"{socket.gethostname()}:{os.getpid()}")
    except BaseException:
        await store.close()
        raise
    return Broker(node, DEFAULT_NAMESPACE)
