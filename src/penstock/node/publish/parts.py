"""A publish as it is appended: messages for one lane, checked. Plain data, made by `append.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.api.results import Receipt
from penstock.batch import EncodedBatch, Meta
from penstock.model import Message
from penstock.model.appended import Appended
from penstock.node.catalog import EPHEMERAL_FROM

if TYPE_CHECKING:
    from penstock.node.catalog import Queue

Results = list[tuple[str, int, Appended, Sequence[int] | None]]
"""(queue, lane as users name it, what was appended, places in the caller's list)"""

ENCODE_FROM = 32
"""Fewer messages are stored together with those of other callers; as many as these are a batch of their own."""


class Origin(NamedTuple):
    """A record of a spool. Those of one spool enter a lane in the order of their numbers, each once."""

    spool: str
    sequence: int


class Part(msgspec.Struct, frozen=True):
    """Messages for one lane, checked; `indexes` are their places in the caller's list (None: all of it)."""

    queue: Queue
    lane: int
    messages: Sequence[Message]
    batch: EncodedBatch | None
    meta: Meta | None
    indexes: Sequence[int] | None
    publish_id: str | None = None
    """Names the whole publish: done again under the same id, it changes nothing."""
    asked_ms: int | None = None
    """When it was published, if that was not now: what ids counted then counts."""
    origin: Origin | None = None
    """The record of a spool that it comes from, if it does: see `node/spool/positions.py`."""

    @property
    def count(self) -> int:
        return len(self.messages) if self.batch is None else self.batch.count

    @property
    def size(self) -> int:
        if self.batch is not None:
            return self.batch.size
        messages = self.messages
        return len(messages[0].payload) if len(messages) == 1 else sum([len(message.payload) for message in messages])


class Unit(msgspec.Struct, frozen=True):
    """One publish as it was asked for: what the spool keeps of it."""

    namespace: str
    queue: str | None
    exchange: str | None
    messages: Sequence[Message] | EncodedBatch
    publish_id: str | None
    count: int
    parts: Sequence[Part]

    @property
    def is_durable(self) -> bool:
        """Whether any of it is for a queue that outlives the node."""
        return any(part.lane < EPHEMERAL_FROM for part in self.parts)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.count, (), buffered_for=self.queue or "")
