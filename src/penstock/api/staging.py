"""Staging: batches that are kept durably, invisible until one commit publishes them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from penstock.api.marks import MarkPut
from penstock.batch import EncodedBatch
from penstock.model import NAME_CHARACTERS_MAX, check_name, check_text
from penstock.model.errors import InvalidArgument

State = Literal["open", "committing", "committed", "unknown"]


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
    """Two steps: `stage` chunks, then `commit_staged`."""

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
