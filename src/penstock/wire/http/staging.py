"""The HTTP API's shapes of marks and of staged chunks. Plain data, shared by `fronts/http` and `client`."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

# Marks ---------------------------------------------------------------------------------------------------


class PutMarkRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A mark's new value."""

    value: Raw
    """Any JSON value, kept as it is written; up to 1 MiB."""
    expected_version: int | None = None
    """Only if the mark has this version now; 0: only if there is no such mark. Left out: whatever is there."""


class MarkBody(Struct, kw_only=True):
    """A mark as it stands."""

    name: str
    version: int
    """1 when it was made, one more with every change."""
    value: Raw
    updated_ms: int


class MarksAnswer(Struct, kw_only=True):
    marks: list[MarkBody]
    next: str | None
    """The `after` of the next page, null at the end."""


# Staging -------------------------------------------------------------------------------------------------


class MarkPutBody(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A mark to be put in the same commit."""

    name: str
    value: Raw
    """Any JSON value."""
    expected_version: int | None = None
    """As for a mark that is put alone."""


class CommitStagedRequest(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What becomes of a transaction: these chunks are published in this order, and the marks are put."""

    chunks: list[str]
    """Names of staged chunks, in the order of publication; chunks not named are dropped. May be empty."""
    marks: list[MarkPutBody] = []
    """Marks that are put together with the publication, or not at all."""
    publish_id: str | None = None
    """Names the publication in its queues: chunks of the same names, published before under the same id within the
    queues' dedup windows (in whatever transaction), are not published again."""


class CommittedBody(Struct, kw_only=True):
    published: int
    """Messages of the chunks."""
    repeated: bool
    """The transaction had been committed before; this request changed nothing."""


class StagedChunkBody(Struct, kw_only=True, omit_defaults=True):
    chunk: str
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    messages: int
    bytes: int
    """As stored."""


class StagedBody(Struct, kw_only=True):
    """A transaction as it stands."""

    transaction: str
    state: Literal["open", "committing", "committed", "unknown"]
    """Chunks can be added; a large commit is decided and being carried out; done; never seen, ended or expired."""
    chunks: list[StagedChunkBody]
    published: int
    """Messages that are published so far."""
    expires_ms: int | None
    """When an open transaction is dropped unless more is staged; null otherwise."""
