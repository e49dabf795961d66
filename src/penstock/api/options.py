"""Options of `declare_queue`, `declare_group` and `declare_exchange`, for type checkers.

Made by `python -m tools.make_typed_options` from `model/options.py`: change that, and make this again. What each means,
defaults and limits are there; at run time an unknown name or a wrong type raises `UnknownOption` or `InvalidArgument`.
"""

from __future__ import annotations

from typing import TypedDict

from penstock.model.options import ExchangeKind, Expired, GroupKind, Overflow, Start


class QueueOptions(TypedDict, total=False):
    """Keyword arguments: see `penstock.model.options.QueueConfig`."""

    lanes: int
    ordered: bool
    prioritized: bool
    priority_max: int
    stream: bool
    ephemeral: bool
    exclusive: bool
    auto_delete: bool
    unused_ms: int | None
    description: str
    lease_ms: int
    max_attempts: int
    backoff_ms: int
    backoff_factor: float
    backoff_max_ms: int
    backoff_jitter: float
    delay_ms: int
    debounce_ms: int
    single_active_consumer: bool
    max_in_flight: int | None
    rate: float | None
    dead_letter_to: str | None
    dead_kept: bool
    paused: bool
    ttl_ms: int | None
    expired: Expired
    max_length: int | None
    max_bytes: int | None
    overflow: Overflow
    max_message_bytes: int | None
    dedup_window_ms: int
    keep_done_ms: int
    retain_ms: int | None
    retain_bytes: int | None
    retain_messages: int | None
    primary_group: str | None


class GroupOptions(TypedDict, total=False):
    """Keyword arguments: see `penstock.model.options.GroupConfig`."""

    kind: GroupKind
    start: Start
    filter: str | None
    ordered: bool | None
    prioritized: bool | None
    lease_ms: int | None
    max_attempts: int | None
    backoff_ms: int | None
    backoff_factor: float | None
    backoff_max_ms: int | None
    backoff_jitter: float | None
    single_active_consumer: bool | None
    max_in_flight: int | None
    rate: float | None
    dead_letter_to: str | None
    dead_kept: bool | None
    expired: Expired | None
    auto_commit: bool
    holds: bool
    paused: bool


class ExchangeOptions(TypedDict, total=False):
    """Keyword arguments: see `penstock.model.options.ExchangeConfig`."""

    kind: ExchangeKind
    alternate: str | None
    internal: bool
    auto_delete: bool
    ephemeral: bool
    description: str
