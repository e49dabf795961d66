"""What a filter looks at: the fields and headers of one message, or the columns of a batch.

May not know: filters, or where a message or a batch comes from. These are shapes alone; others have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Properties(Protocol):
    """The fields of one message; `penstock.model.Message` is one."""

    @property
    def partition(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def content_type(self) -> str | None: ...
    @property
    def correlation_id(self) -> str | None: ...
    @property
    def trace_id(self) -> str | None: ...
    @property
    def dedup_id(self) -> str | None: ...


class MessageView(Properties, Protocol):
    """The fields of one message and its headers."""

    @property
    def headers(self) -> Mapping[str, Any] | None: ...


class Columns(Protocol):
    """The decoded metadata of a batch: a column has one entry a message, or is None where no message has any."""

    @property
    def partition(self) -> Sequence[str | None] | None: ...
    @property
    def key(self) -> Sequence[str | None] | None: ...
    @property
    def headers(self) -> Sequence[Mapping[str, Any] | None] | None: ...
    @property
    def priority(self) -> Sequence[int] | None: ...
    @property
    def content_type(self) -> Sequence[str | None] | None: ...
    @property
    def correlation_id(self) -> Sequence[str | None] | None: ...
    @property
    def trace_id(self) -> Sequence[str | None] | None: ...
    @property
    def dedup_id(self) -> Sequence[str | None] | None: ...
