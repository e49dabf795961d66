"""The catalogue of errors a user of Penstock can see: one class each, with a stable code.

The docstring of a class says when it is raised; its message names the value that was wrong and the limit or
the way out. Nothing here knows who raises it.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Anything Penstock refuses or fails to do. `code` is stable across releases."""

    code = "error"


# What the caller got wrong -------------------------------------------------------------------------------


class InvalidArgument(PenstockError, ValueError):
    """A value of the wrong type, below its minimum or past its limit."""

    code = "invalid_argument"


class UnknownOption(InvalidArgument):
    """An option that no queue, group or exchange has."""

    code = "unknown_option"


class InvalidFilter(InvalidArgument):
    """A filter expression that does not parse; the message points at the column."""

    code = "invalid_filter"

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class MessageTooLarge(InvalidArgument):
    """A message or batch past its size limit."""

    code = "too_large"


class InvalidBatch(InvalidArgument):
    """Bytes that are not an encoded batch: cut short, corrupted, of a newer version, or hostile."""

    code = "invalid_batch"


class NotFound(PenstockError, LookupError):
    """A queue, group, exchange or namespace that does not exist."""

    code = "not_found"


class AlreadyExists(PenstockError):
    """A declaration that contradicts what exists."""

    code = "already_exists"


class Forbidden(PenstockError):
    """An operation that this caller may not do, such as using another session's exclusive queue."""

    code = "forbidden"


class WrongKind(PenstockError):
    """A work operation on a stream group, or the other way round."""

    code = "wrong_kind"


# What the state of a queue forbids -----------------------------------------------------------------------


class QueueFull(PenstockError):
    """A publish over `max_length` or `max_bytes` of a queue whose overflow policy is `reject`."""

    code = "queue_full"


class LeaseLost(PenstockError):
    """A settle or extend with a lease that is gone: expired, settled, passed on or reset by a seek."""

    code = "lease_lost"


class Unroutable(PenstockError):
    """A mandatory publish to an exchange that reached no queue."""

    code = "unroutable"


class OffsetGone(PenstockError):
    """A read of offsets that retention has already removed."""

    code = "offset_gone"


class MarkMoved(PenstockError):
    """A mark that is not at the version that its writer expects: somebody else has changed it."""

    code = "mark_moved"


class ChunkMissing(PenstockError):
    """A commit that names a chunk which was never staged, or has expired: nothing of it is published."""

    code = "chunk_missing"


class AlreadyCommitted(PenstockError):
    """An abort of a staged transaction that is committed, or whose commit is decided."""

    code = "already_committed"


# What the node cannot do now -----------------------------------------------------------------------------


class Unavailable(PenstockError):
    """The store did not take the commit; nothing of it is in force unless the message says otherwise."""

    code = "unavailable"


class Overloaded(PenstockError):
    """A limit on pending work was reached; try again after a pause."""

    code = "overloaded"


class Fenced(Unavailable):
    """Another node owns the lane now: this node's commit was refused whole."""

    code = "fenced"


class Elsewhere(Unavailable):
    """Another node owns what this is about; nothing was done. The HTTP front sends the request on to it."""

    code = "elsewhere"

    def __init__(self, message: str, slot: int = -1, incarnation: int = 0) -> None:
        super().__init__(message)
        self.slot = slot
        """Whose owner can do it; -1 where it must be a certain node,"""
        self.incarnation = incarnation
        """this one."""


class Closed(PenstockError):
    """The broker was closed, or is closing."""

    code = "closed"


class StoreCorrupt(PenstockError):
    """The store holds something that Penstock did not write, or a newer version wrote."""

    code = "store_corrupt"
