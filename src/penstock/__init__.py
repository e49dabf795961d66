"""Penstock: a durable, distributed message queue. Start with `penstock.open` or `penstock.sync.open`.

Of a server that runs elsewhere, start with `penstock.AsyncClient` or `penstock.Client`. These are imported when they
are first asked for: an embedded broker needs neither sockets nor TLS.
"""

from typing import TYPE_CHECKING, Any

from penstock import sync
from penstock.api.results import Claim, Lease, Published, Receipt, Received, Scan, ScanSlice, ScanState
from penstock.batch import EncodedBatch, decode, encode
from penstock.embedded import open
from penstock.model import Binding, Message
from penstock.model.errors import (
    AlreadyCommitted,
    AlreadyExists,
    ChunkMissing,
    Closed,
    Fenced,
    Forbidden,
    InvalidArgument,
    InvalidBatch,
    InvalidFilter,
    LeaseLost,
    MarkMoved,
    MessageTooLarge,
    NotFound,
    OffsetGone,
    Overloaded,
    PenstockError,
    QueueFull,
    StoreCorrupt,
    Unavailable,
    UnknownOption,
    Unroutable,
    WrongKind,
)
from penstock.model.verdict import Verdict
from penstock.node.background.schedules import Schedule
from penstock.node.broker import Broker, Transaction
from penstock.node.consume.dead_letters import DeadMessage, DeadReason
from penstock.node.consume.extents import Extent, LanePlace, QueueLanes
from penstock.node.consume.streams import Page, StreamRead
from penstock.node.marks import Mark, MarkPut
from penstock.node.observe.history import HistoryEntry
from penstock.node.observe.stats import GroupStats, QueueStats
from penstock.node.observe.traces import Trace, TraceEntry
from penstock.node.staging.results import Committed, Staged, StagedChunk
from penstock.version import VERSION as __version__

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.consumer import Consumer, Postpone, Reject
    from penstock.client.producer import Producer
    from penstock.client.stream import StreamReader
    from penstock.client.sync import Client
    from penstock.client.transport.channel import Retry

__all__ = [
    "AlreadyCommitted",
    "AlreadyExists",
    "AsyncClient",
    "Binding",
    "Broker",
    "ChunkMissing",
    "Claim",
    "Client",
    "Closed",
    "Committed",
    "Consumer",
    "DeadMessage",
    "DeadReason",
    "EncodedBatch",
    "Extent",
    "Fenced",
    "Forbidden",
    "GroupStats",
    "HistoryEntry",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidFilter",
    "LanePlace",
    "Lease",
    "LeaseLost",
    "Mark",
    "MarkMoved",
    "MarkPut",
    "Message",
    "MessageTooLarge",
    "NotFound",
    "OffsetGone",
    "Overloaded",
    "Page",
    "PenstockError",
    "Postpone",
    "Producer",
    "Published",
    "QueueFull",
    "QueueLanes",
    "QueueStats",
    "Receipt",
    "Received",
    "Reject",
    "Retry",
    "Scan",
    "ScanSlice",
    "ScanState",
    "Schedule",
    "Staged",
    "StagedChunk",
    "StoreCorrupt",
    "StreamRead",
    "StreamReader",
    "Trace",
    "TraceEntry",
    "Transaction",
    "Unavailable",
    "UnknownOption",
    "Unroutable",
    "Verdict",
    "WrongKind",
    "__version__",
    "decode",
    "encode",
    "open",
    "sync",
]

_CLIENT = {
    "AsyncClient": "client",
    "Client": "sync",
    "Consumer": "consumer",
    "Postpone": "consumer",
    "Producer": "producer",
    "Reject": "consumer",
    "Retry": "transport.channel",
    "StreamReader": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in _CLIENT:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"penstock.client.{_CLIENT[name]}"), name)
    globals()[name] = value
    return value
