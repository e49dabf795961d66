"""Marks: small durable JSON documents by name, each with a version that a writer may insist on.

Staging: batches that are kept durably, invisible until one commit publishes them together, and puts marks with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from penstock.batch import EncodedBatch
from penstock.model import INTEGER_MAX, NAME_CHARACTERS_MAX, check_integer, check_name, check_text
from penstock.model.errors import InvalidArgument, MessageTooLarge

VALUE_BYTES_MAX: Final = 1024 * 1024

State = Literal["open", "committing", "committed", "unknown"]


class MarkPut(msgspec.Struct, frozen=True):
    """A mark to put.

    `expected_version`: None accepts any version, 0 requires that the mark does not exist, another number
    requires that version.
    """

    name: str
    value: Any
    """Anything that JSON has; `msgspec.Raw` is JSON text already, and kept as it is."""
    expected_version: int | None = None


class Mark(msgspec.Struct, frozen=True):
    """A mark as it stands."""

    name: str
    version: int
    """1 when it was made, one more with every change."""
    value: Any
    updated_ms: int


class MarkPage(msgspec.Struct, frozen=True):
    """Marks by name with their values as JSON text; `next` is the `after` of the next page, None at the end."""

    marks: list[Mark]
    next: str | None


def check_puts(puts: Sequence[MarkPut]) -> list[tuple[MarkPut, bytes]]:
    """Each mark with its value as JSON text; raises for what cannot be put, and for a name that comes twice."""
    names: set[str] = set()
    checked: list[tuple[MarkPut, bytes]] = []
    for put in puts:
        if not isinstance(put, MarkPut):
            raise InvalidArgument(f"a mark to be put must be a penstock.MarkPut, not {type(put).__name__}")
        check_name(put.name, "a mark's name")
        if put.name in names:
            raise InvalidArgument(f"the mark {put.name!r} is put twice in one commit; put it once, with its last value")
        names.add(put.name)
        if put.expected_version is not None:
            check_integer(put.expected_version, "expected_version", 0, INTEGER_MAX)
        checked.append((put, _json(put)))
    return checked


def _json(put: MarkPut) -> bytes:
    try:
        value = msgspec.json.encode(put.value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the value of mark {put.name!r} cannot be written as JSON: {error}") from None
    if len(value) > VALUE_BYTES_MAX:
        raise MessageTooLarge(f"the value of mark {put.name!r} has {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")
    try:
        msgspec.json.decode(value)  # raw text is taken as it is: what nobody could read back must not be kept
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the value of mark {put.name!r} is no JSON that can be read back: {error}") from None
    return value


class StagedChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chunk that waits for its commit."""

    chunk: str
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    messages: int
    bytes: int
    """As stored."""


class Staged(msgspec.Struct, frozen=True):
    """A transaction as it stands."""

    transaction: str
    state: State
    """open: chunks can be added; committing: decided, and being published; committed; unknown: never seen, or gone."""
    chunks: list[StagedChunk]
    published: int
    """Messages that are published so far."""
    expires_ms: int | None
    """When an open transaction is dropped unless more is staged."""


class Committed(msgspec.Struct, frozen=True):
    """What a commit did."""

    published: int
    """Messages of the chunks."""
    repeated: bool
    """The transaction had been committed before; this commit changed nothing."""


def check_target(queue: object, exchange: object, routing_key: object) -> None:
    """Raise unless there is one place to publish to."""
    if (queue is None) == (exchange is None):
        given = "neither" if queue is None else "both"
        raise InvalidArgument(f"a chunk needs one of queue and exchange to be published to, not {given}")
    check_name(exchange if queue is None else queue, "a queue's name" if exchange is None else "an exchange's name")
    if routing_key is not None and exchange is None:
        raise InvalidArgument(f"routing_key is {routing_key!r}; it is for an exchange, and this chunk is for a queue")
    check_text(routing_key, "routing_key", NAME_CHARACTERS_MAX)


class Staging(Protocol):
    """Reading and putting marks; `stage` chunks, then `commit_staged`."""

    async def marks(self, prefix: str = "") -> list[Mark]:
        """The marks of this namespace whose names begin with `prefix`, by name."""

    async def mark(self, name: str) -> Mark:
        """A mark: its value and version; `NotFound` where there is none."""

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        """Put a mark: any JSON value under a name, durably.

        With `expected_version` only if it has that version now (0: only if there is none); `MarkMoved` otherwise.
        """

    async def delete_mark(self, name: str) -> None:
        """Delete a mark; a later one of the same name begins at version 1."""

    async def stage(
        self,
        transaction: str,
        chunk: str,
        batch: EncodedBatch,
        *,
        queue: str | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
    ) -> None:
        """Keep a batch for a queue or exchange durably, invisible until `commit_staged` names its chunk.

        The first batch under a chunk's name is kept; staging it again changes nothing, and so does staging for a
        transaction that is committed. With `routing_key`, for an exchange, every message of the batch gets that key.
        """

    async def commit_staged(
        self,
        transaction: str,
        chunks: Sequence[str],
        *,
        marks: Sequence[MarkPut] = (),
        publish_id: str | None = None,
    ) -> Committed:
        """Publish exactly these chunks of a transaction, in this order, and put the marks: all of it or nothing.

        Chunks that are not named are dropped. Done again, it changes nothing and says so in `repeated`, for a week.
        Raises `ChunkMissing` where a chunk was not staged (or has expired), `MarkMoved` where a mark is not at its
        expected version. Up to 64 MiB are one commit; more is decided at once and then published piece by piece, in
        order, through any crash; consumers may see its first pieces before its last. `publish_id` names the chunks in
        their queues: published before under the same id and chunk names within the dedup window, they are left out.
        """

    async def abort_staged(self, transaction: str) -> None:
        """Drop what was staged for a transaction, if there is anything; `AlreadyCommitted` where it is too late."""

    async def staged(self, transaction: str) -> Staged:
        """How a transaction stands: its state, its chunks, and when it expires."""
