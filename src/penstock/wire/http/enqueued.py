"""The shapes of enqueued messages in the HTTP API: what applications put into the database and cannot be published.

Plain data, as in `wire/http/shapes.py`.
"""

from __future__ import annotations

from msgspec import Struct


class FailedBody(Struct, kw_only=True, omit_defaults=True):
    """An enqueued message that cannot be published, without its payload."""

    id: int
    """Of its row in the database."""
    namespace: str
    queue: str | None = None
    exchange: str | None = None
    key: str | None = None
    size: int
    """Bytes of the payload."""
    enqueued_ms: int
    error: str
    """Why it cannot be published."""
    failed_ms: int


class FailedAnswer(Struct, kw_only=True):
    failed: list[FailedBody]
    next: int | None
    """Where to go on, as `after`; null at the end."""


class EnqueuedChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which of the enqueued messages that cannot be published."""

    ids: list[int] | None = None
    """Of their rows; all of the namespace unless given."""
