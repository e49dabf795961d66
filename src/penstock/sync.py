"""Penstock without asyncio: a broker in this process, run on an event loop in a thread of its own.

    with penstock.sync.open("queue.db") as broker:
        broker.publish("mail", penstock.Message(b"hello"))

Next stop: `api/sync.py`, the API of what `open` gives.
"""

from __future__ import annotations

from operator import methodcaller
from pathlib import Path

from penstock import embedded
from penstock.api.sync import SyncBroker, SyncTransaction
from penstock.loop_thread import LoopThread
from penstock.model import PAYLOAD_BYTES_DEFAULT
from penstock.node.node import CACHE_BYTES
from penstock.node.spool.spool import SPOOL_BYTES

__all__ = ["SyncBroker", "SyncTransaction", "open"]


def open(
    path: str | Path | None,
    *,
    cache_bytes: int = CACHE_BYTES,
    events: bool = True,
    spool: str | Path | None = None,
    spool_bytes: int = SPOOL_BYTES,
    message_bytes: int = PAYLOAD_BYTES_DEFAULT,
) -> SyncBroker:
    """`penstock.open` for programs without an event loop: `with penstock.sync.open(path) as broker: …`."""
    thread = LoopThread("penstock")
    try:
        broker = thread.run_or_undo(
            methodcaller("close"),  # the caller was interrupted before it saw the broker
            embedded.open,
            path,
            cache_bytes=cache_bytes,
            events=events,
            spool=spool,
            spool_bytes=spool_bytes,
            message_bytes=message_bytes,
        )
    except BaseException:
        thread.close()
        raise
    thread.last = broker.close
    return SyncBroker(broker, thread)
