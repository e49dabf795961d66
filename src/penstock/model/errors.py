"""The catalogue of errors: every error that a caller can see, and its answer in each protocol.

`CATALOGUE` is the whole table. A class finds its row by its `code`, which is stable across releases; its docstring says
what the error means and what to do. The message of an error is for people: it names the value and the limit, and no
program decides by it. Knows the protocols' numbers and nothing else of them; each front reads its own column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, Literal, NamedTuple

CONNECTION_FORCED: Final = 320


class Row(NamedTuple):
    """One error in the terms of every protocol."""

    code: str
    """The name that programs compare."""
    http: int
    """Status."""
    amqp091: int
    """Reply code."""
    mqtt: int
    """Reason code of MQTT 5: one that PUBACK and SUBACK may carry."""
    amqp10: str
    """Error condition."""
    sqs: str
    """Error name."""
    retryable: bool = False
    """The same request may succeed later, though nobody changes it or the queue."""
    may_be_done: bool = False
    """The operation may have been carried out all the same: repeat it only where that is safe."""

    @property
    def closes(self) -> Literal["channel", "connection"]:
        """What the error costs an AMQP 0.9.1 client.

        Only a server that stops ends the connection. RabbitMQ ends it for 541 as well; here one queue's store or owner
        may be away while the queues of other channels are well.
        """
        return "connection" if self.amqp091 == CONNECTION_FORCED else "channel"


YES: Final = True
NO: Final = False

CATALOGUE: Final = (
    #   code                   HTTP AMQP MQTT   AMQP 1.0                           SQS          retryable, may be done
    # What the caller got wrong.
    Row("invalid_argument",     400, 406, 0x83, "amqp:invalid-field",              "InvalidParameterValue"),
    Row("unknown_option",       400, 406, 0x83, "amqp:invalid-field",              "InvalidAttributeName"),
    Row("invalid_filter",       400, 406, 0x83, "amqp:invalid-field",              "InvalidParameterValue"),
    Row("invalid_batch",        400, 406, 0x83, "amqp:decode-error",               "InvalidMessageContents"),
    Row("too_large",            413, 311, 0x97, "amqp:link:message-size-exceeded", "BatchRequestTooLong"),
    Row("unauthorized",         401, 403, 0x87, "amqp:unauthorized-access",        "InvalidClientTokenId"),
    Row("forbidden",            403, 403, 0x87, "amqp:unauthorized-access",        "AccessDenied"),
    Row("exclusive_queue",      403, 405, 0x87, "amqp:resource-locked",            "AccessDenied"),
    Row("exclusive_consumer",   403, 403, 0x87, "amqp:resource-locked",            "AccessDenied"),
    Row("not_found",            404, 404, 0x90, "amqp:not-found",                  "QueueDoesNotExist"),
    Row("already_exists",       409, 406, 0x83, "amqp:precondition-failed",        "QueueNameExists"),
    Row("limit_reached",        403, 406, 0x97, "amqp:resource-limit-exceeded",    "OverLimit"),
    Row("wrong_kind",           409, 406, 0x83, "amqp:not-allowed",                "UnsupportedOperation"),
    # What the state of a queue forbids.
    Row("queue_full",           429, 406, 0x97, "amqp:resource-limit-exceeded",    "OverLimit"),
    Row("lease_lost",           409, 406, 0x83, "amqp:illegal-state",              "ReceiptHandleIsInvalid"),
    Row("unroutable",           422, 404, 0x83, "amqp:not-found",                  "QueueDoesNotExist"),
    Row("offset_gone",          410, 406, 0x83, "amqp:resource-deleted",           "InvalidParameterValue"),
    Row("mark_moved",           409, 406, 0x83, "amqp:precondition-failed",        "UnsupportedOperation"),
    Row("chunk_missing",        409, 406, 0x83, "amqp:transaction:unknown-id",     "UnsupportedOperation"),
    Row("already_committed",    409, 406, 0x83, "amqp:illegal-state",              "UnsupportedOperation"),
    # What the server cannot do now, or could not do at all.
    Row("overloaded",           429, 541, 0x97, "amqp:resource-limit-exceeded",    "RequestThrottled",   YES),
    Row("resource_alarm",       503, 506, 0x97, "amqp:resource-limit-exceeded",    "RequestThrottled",   YES),
    Row("too_many_connections", 503, 320, 0x97, "amqp:resource-limit-exceeded",    "RequestThrottled",   YES),
    Row("unavailable",          503, 541, 0x97, "amqp:internal-error",             "ServiceUnavailable", YES, YES),
    Row("fenced",               503, 541, 0x97, "amqp:internal-error",             "ServiceUnavailable", YES, YES),
    Row("not_owner",            421, 541, 0x97, "amqp:link:redirect",              "ServiceUnavailable", NO),
    Row("peer_unreachable",     503, 541, 0x97, "amqp:internal-error",             "ServiceUnavailable", YES),
    Row("peer_lost",            503, 541, 0x97, "amqp:internal-error",             "ServiceUnavailable", YES, YES),
    Row("left_over",            503, 541, 0x97, "amqp:internal-error",             "ServiceUnavailable", YES),
    Row("outcome_unknown",      503, 541, 0x97, "amqp:internal-error",             "ServiceUnavailable", NO, YES),
    Row("closed",               503, 320, 0x83, "amqp:connection:forced",          "ServiceUnavailable", YES, YES),
    Row("folder_in_use",        500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("store_corrupt",        500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("unknown_error",        500, 541, 0x83, "amqp:internal-error",             "InternalFailure",    NO, YES),
    Row("error",                500, 541, 0x83, "amqp:internal-error",             "InternalFailure",    NO, YES),
    # What jobs and data sources raise in their own process: no front ever answers with these.
    Row("java_missing",         500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("lake",                 500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("lake_missing",         500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("wrong_lake",           500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("lake_gap",             500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("lake_conflict",        500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("lake_damaged",         500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("lake_full",            500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("data_loss",            500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
    Row("sink_conflict",        500, 541, 0x83, "amqp:internal-error",             "InternalFailure"),
)  # fmt: skip

BY_CODE: Final = {row.code: row for row in CATALOGUE}


class PenstockError(Exception):
    """Penstock refused or failed to do something. The message says what; the server's log may say more."""

    code: str = "error"
    row: ClassVar[Row] = BY_CODE["error"]
    """The error's row of the catalogue. A class whose code has no row cannot be defined."""
    is_refused: bool = False
    """The store certainly did not take the commit: it said so, or was never asked."""
    is_repeat: bool = False
    """Answers a repeated request, of which an earlier attempt may have succeeded before its answer was lost."""

    def __init_subclass__(cls) -> None:
        cls.row = BY_CODE[cls.code]


# What the caller got wrong -------------------------------------------------------------------------------


class InvalidArgument(PenstockError, ValueError):
    """A value has the wrong type, or is below its minimum or past its limit. The message names both; change it."""

    code = "invalid_argument"

    def __init__(self, message: str = "", argument: str = "") -> None:
        super().__init__(message)
        self.argument = argument
        """The name of the argument or option, where the check knows it."""


class UnknownOption(InvalidArgument):
    """No queue, group or exchange has an option of this name. The message suggests the nearest."""

    code = "unknown_option"


class InvalidFilter(InvalidArgument):
    """A filter expression does not parse. The message, and `column`, point at the place."""

    code = "invalid_filter"

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class MessageTooLarge(InvalidArgument):
    """A message or batch is past its size limit. Send less at once, or a reference to the data."""

    code = "too_large"


class InvalidBatch(InvalidArgument):
    """Bytes are not an encoded batch: cut short, corrupted, of a newer version, or hostile."""

    code = "invalid_batch"


class NotFound(PenstockError, LookupError):
    """A queue, group, exchange, schedule, mark or session does not exist. Declare it first, or check the namespace."""

    code = "not_found"


class AlreadyExists(PenstockError):
    """A declaration contradicts what exists. Declare it as it is, or delete it first."""

    code = "already_exists"


class Forbidden(PenstockError):
    """The caller may not do this. The message says why."""

    code = "forbidden"


class Unauthorized(Forbidden):
    """The server wants credentials, and the request has none or wrong ones."""

    code = "unauthorized"


class ExclusiveQueue(Forbidden):
    """The queue is exclusive to another session. Use it from that session, or wait until the session ends."""

    code = "exclusive_queue"


class ExclusiveConsumer(Forbidden):
    """The queue has a consumer that asked to be alone, or has others while this one asks to be."""

    code = "exclusive_consumer"


class LimitReached(PenstockError):
    """There are as many queues, groups, schedules, marks or chunks as there may be. Delete some, or raise the limit."""

    code = "limit_reached"


class WrongKind(PenstockError):
    """A work operation was called on a stream group, or the other way round."""

    code = "wrong_kind"


# What the state of a queue forbids -----------------------------------------------------------------------


class QueueFull(PenstockError):
    """A publish is over `max_length` or `max_bytes` of a queue whose overflow policy is `reject`. Consume first."""

    code = "queue_full"


class LeaseLost(PenstockError):
    """The lease of a settle or extend is gone: expired, settled, passed on or reset by a seek. Do not settle again."""

    code = "lease_lost"


class Unroutable(PenstockError):
    """A mandatory publish to an exchange reached no queue. Bind one, or publish without `mandatory`."""

    code = "unroutable"


class OffsetGone(PenstockError):
    """Retention has already removed the offsets of a read. Read from the first that is left."""

    code = "offset_gone"


class MarkMoved(PenstockError):
    """A mark is not at the version that its writer expects: someone else changed it. Read it again, then decide."""

    code = "mark_moved"


class ChunkMissing(PenstockError):
    """A commit names a chunk that was never staged, or has expired. Nothing is published; stage it again."""

    code = "chunk_missing"


class AlreadyCommitted(PenstockError):
    """A staged transaction cannot be aborted: it is committed, or its commit is decided."""

    code = "already_committed"


# What the server cannot do now ---------------------------------------------------------------------------


class Unavailable(PenstockError):
    """The store did not take the commit; nothing of it is in force unless the message says otherwise. Try again."""

    code = "unavailable"


class Overloaded(PenstockError):
    """A limit on pending work was reached; nothing was done. Try again after a pause."""

    code = "overloaded"


class TooManyConnections(Overloaded):
    """The server has as many connections as it may have; nothing was done. Try again after a pause."""

    code = "too_many_connections"


class ResourceAlarm(Overloaded):
    """The server is low on memory or disk and takes no publishes; nothing was done. Consume or purge, and try again."""

    code = "resource_alarm"


class Fenced(Unavailable):
    """Another node owns the lane now: this node's commit was refused whole. Try again; the new owner answers."""

    code = "fenced"


class NotOwner(Unavailable):
    """Another node owns what this is about; nothing was done. Only nodes see it, of each other; clients never do."""

    code = "not_owner"

    def __init__(self, message: str, slot: int = -1, incarnation: int = 0) -> None:
        super().__init__(message)
        self.slot = slot
        """The slot whose owner can do it; -1 where it must be the node of `incarnation`."""
        self.incarnation = incarnation


class Closed(PenstockError):
    """The broker or client is closed, or is closing. Another node may answer."""

    code = "closed"


class StoreCorrupt(PenstockError):
    """The store holds something that Penstock did not write, or that a newer version wrote. See docs/reliability.md."""

    code = "store_corrupt"


class UnknownError(PenstockError):
    """The server answered with an error that this version of the client does not know; `code` is the server's."""

    code = "unknown_error"

    def __init__(self, message: str, code: str = "unknown_error") -> None:
        super().__init__(message)
        self.code = code


def error_classes(kind: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    """The class and all classes below it, as far as their modules are imported."""
    yield kind
    for below in kind.__subclasses__():
        yield from error_classes(below)


CLASSES: Final[dict[str, type[PenstockError]]] = {kind.code: kind for kind in error_classes()}
"""The classes of this module by code: what a server's answer can become again in a client."""
