"""What callers of staging give and get: plain data and the checks of arguments. `staging.py` does the work."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model import NAME_CHARACTERS_MAX, check_name, check_text
from penstock.model.errors import InvalidArgument

State = Literal["open", "committing", "committed", "unknown"]


class StagedChunk(msgspec.Struct, frozen=True):
    """A chunk that waits for its commit."""

    chunk: str
    queue: str | None
    exchange: str | None
    routing_key: str | None
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
