"""Penstock: a durable, distributed message queue. Start with `penstock.open` or `penstock.sync.open`."""

from penstock import sync
from penstock.batch import EncodedBatch, decode, encode
from penstock.core.work import Verdict
from penstock.delivery import Claim, Lease, Published, Receipt, Received
from penstock.embedded import open
from penstock.errors import (
    AlreadyExists,
    Closed,
    Fenced,
    Forbidden,
    InvalidArgument,
    InvalidBatch,
    InvalidFilter,
    LeaseLost,
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
from penstock.model import Binding, Message
from penstock.node.broker import Broker, Transaction
from penstock.node.deadletters import DeadMessage, DeadReason
from penstock.node.history import HistoryEntry
from penstock.node.schedules import Schedule
from penstock.node.statistics import GroupStats, QueueStats
from penstock.node.streams import Page, StreamRead
from penstock.node.traces import Trace, TraceEntry
from penstock.version import VERSION as __version__

__all__ = [
    "AlreadyExists",
    "Binding",
    "Broker",
    "Claim",
    "Closed",
    "DeadMessage",
    "DeadReason",
    "EncodedBatch",
    "Fenced",
    "Forbidden",
    "GroupStats",
    "HistoryEntry",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidFilter",
    "Lease",
    "LeaseLost",
    "Message",
    "MessageTooLarge",
    "NotFound",
    "OffsetGone",
    "Overloaded",
    "Page",
    "PenstockError",
    "Published",
    "QueueFull",
    "QueueStats",
    "Receipt",
    "Received",
    "Schedule",
    "StoreCorrupt",
    "StreamRead",
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
