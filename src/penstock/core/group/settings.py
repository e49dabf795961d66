"""A group's settings in force: its own options over its queue's, with filters compiled.

`backoff_ms` is here because it is pure arithmetic on settings. Knows nothing of state.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from penstock.core.filters import Filter, parse
from penstock.model import GroupConfig, QueueConfig
from penstock.model.options import Expired, GroupKind


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one group, shared by its lanes. Built by `settings_of`."""

    kind: GroupKind
    ordered: bool
    prioritized: bool
    priority_max: int
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
    ttl_ms: int | None
    expired: Expired
    auto_commit: bool
    holds: bool
    paused: bool
    filter: Filter | None
    is_plain: bool
    """Whether the group decides nothing per message: no priority, delay, debounce, ttl or filter of its own."""


_inherited = (
    "ordered",
    "prioritized",
    "lease_ms",
    "max_attempts",
    "backoff_ms",
    "backoff_factor",
    "backoff_max_ms",
    "backoff_jitter",
    "single_active_consumer",
    "max_in_flight",
    "rate",
    "dead_letter_to",
    "dead_kept",
    "expired",
)


def settings_of(queue: QueueConfig, group: GroupConfig) -> Settings:
    """The group's options where it has them, else the queue's. Raises `InvalidFilter` for a bad filter."""
    values: dict[str, Any] = {}
    for name in _inherited:
        own = getattr(group, name)
        values[name] = getattr(queue, name) if own is None else own
    is_choosy = values["prioritized"] or queue.debounce_ms or queue.delay_ms or queue.ttl_ms is not None or group.filter
    return Settings(
        kind=group.kind,
        is_plain=not is_choosy,
        priority_max=queue.priority_max,
        delay_ms=queue.delay_ms,
        debounce_ms=queue.debounce_ms,
        ttl_ms=queue.ttl_ms,
        auto_commit=group.auto_commit,
        holds=group.holds,
        paused=queue.paused or group.paused,
        filter=None if group.filter is None else parse(group.filter),
        **values,
    )


def backoff_ms(settings: Settings, seed: int, offset: int, attempts: int) -> int:
    """The delay after the n-th failed attempt. The jitter is a hash, so that a replay gives the same delay."""
    exponent = min(attempts - 1, 64)
    span = min(settings.backoff_ms * settings.backoff_factor**exponent, float(settings.backoff_max_ms))
    chance = crc32(b"%d:%d:%d" % (seed, offset, attempts)) / 0xFFFFFFFF
    return round(span * (1.0 - settings.backoff_jitter * chance))
