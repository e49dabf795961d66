"""Penstock: a durable, distributed message queue. Start with `penstock.open` or `penstock.sync.open`.

For a server that runs elsewhere, start with `penstock.AsyncClient` or `penstock.Client`. Every name is imported when it
is first used: `import penstock` alone costs nothing, and a client never loads the broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.version import VERSION as __version__

if TYPE_CHECKING:
    from penstock import sync
    from penstock.api.broker import Broker
    from penstock.api.dead_letters import DeadList, DeadMessage, DeadReason
    from penstock.api.declare import Schedule
    from penstock.api.inspect import GroupStats, HistoryEntry, Page, QueueStats, Trace, TraceEntry
    from penstock.api.messages import Transaction
    from penstock.api.results import (
        Claim,
        DamagedRange,
        Lease,
        Published,
        Receipt,
        Received,
        Scan,
        ScanSlice,
        ScanState,
        StreamRead,
    )
    from penstock.api.scan import Extent, LanePlace, QueueLanes
    from penstock.api.staging import Committed, Mark, MarkPut, Staged, StagedChunk
    from penstock.batch import EncodedBatch, decode, encode
    from penstock.client.client import AsyncClient
    from penstock.client.consumer import Consumer, Postpone, Reject
    from penstock.client.producer import Producer
    from penstock.client.stream import StreamReader
    from penstock.client.sync import Client
    from penstock.client.transport.channel import Retry
    from penstock.embedded import open
    from penstock.model import Binding, Message
    from penstock.model.errors import (
        AlreadyCommitted,
        AlreadyExists,
        ChunkMissing,
        Closed,
        ExclusiveConsumer,
        ExclusiveQueue,
        Fenced,
        Forbidden,
        InvalidArgument,
        InvalidBatch,
        InvalidFilter,
        LeaseLost,
        LimitReached,
        MarkMoved,
        MessageTooLarge,
        NotFound,
        OffsetGone,
        Overloaded,
        PenstockError,
        QueueFull,
        ResourceAlarm,
        StoreCorrupt,
        TooManyConnections,
        Unauthorized,
        Unavailable,
        UnknownError,
        UnknownOption,
        Unroutable,
        WrongKind,
    )
    from penstock.model.verdict import Verdict

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
    "DamagedRange",
    "DeadList",
    "DeadMessage",
    "DeadReason",
    "EncodedBatch",
    "ExclusiveConsumer",
    "ExclusiveQueue",
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
    "LimitReached",
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
    "ResourceAlarm",
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
    "TooManyConnections",
    "Trace",
    "TraceEntry",
    "Transaction",
    "Unauthorized",
    "Unavailable",
    "UnknownError",
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

_HOMES = {
    "api.broker": ("Broker",),
    "api.declare": ("Schedule",),
    "api.dead_letters": ("DeadList", "DeadMessage", "DeadReason"),
    "api.inspect": ("GroupStats", "HistoryEntry", "Page", "QueueStats", "Trace", "TraceEntry"),
    "api.results": (
        "Claim",
        "DamagedRange",
        "Lease",
        "Published",
        "Receipt",
        "Received",
        "Scan",
        "ScanSlice",
        "ScanState",
        "StreamRead",
    ),
    "api.scan": ("Extent", "LanePlace", "QueueLanes"),
    "api.staging": ("Committed", "Mark", "MarkPut", "Staged", "StagedChunk"),
    "api.messages": ("Transaction",),
    "batch": ("EncodedBatch", "decode", "encode"),
    "client.client": ("AsyncClient",),
    "client.consumer": ("Consumer", "Postpone", "Reject"),
    "client.producer": ("Producer",),
    "client.stream": ("StreamReader",),
    "client.sync": ("Client",),
    "client.transport.channel": ("Retry",),
    "embedded": ("open",),
    "model": ("Binding", "Message"),
    "model.verdict": ("Verdict",),
}
"""Where each public name is, as the imports above say it to type checkers and editors; all others are errors."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("penstock.sync")
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    value = getattr(import_module(f"penstock.{_HOME_OF.get(name, 'model.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
