"""How many messages a group may hand out now: pause, single active consumer, max_in_flight, rate.

Exact, because one owner decides. Next stop: `claim.py`, which asks.
"""

from __future__ import annotations

from penstock.core.group.state import WorkState


def room_for(group: WorkState, now_ms: int, most: int, consumer: str) -> int:
    """How many of `most` messages this consumer may be handed now; 0 or less for none."""
    settings = group.settings
    if settings.paused or (settings.single_active_consumer and not _activate(group, now_ms, consumer)):
        return 0
    if settings.max_in_flight is not None:
        most = min(most, settings.max_in_flight - group.leases.count)
    if settings.rate is not None:
        most = min(most, int(_tokens(group, now_ms, settings.rate)))
    return most


def rate_ready_ms(group: WorkState, now_ms: int) -> int | None:
    """When the rate limit next lets a message pass; None if it does now, or there is none."""
    rate = group.settings.rate
    if rate is None or _tokens(group, now_ms, rate) >= 1.0:
        return None
    return now_ms + 1 + int((1.0 - group.rate_tokens) * 1000.0 / rate)


def _activate(group: WorkState, now_ms: int, consumer: str) -> bool:
    """Whether this consumer is the active one, or becomes it because the last one left or fell silent."""
    active = group.active_consumer
    if active != consumer and active is not None and now_ms < group.active_until_ms:
        return False
    if active != consumer and active in group.leases.by_consumer:
        return False
    group.active_consumer = consumer
    group.active_until_ms = now_ms + group.settings.lease_ms
    return True


def _tokens(group: WorkState, now_ms: int, rate: float) -> float:
    """The token bucket: it gains `rate` tokens a second and holds one second's worth."""
    elapsed_ms = max(0, now_ms - group.rate_at_ms)
    group.rate_at_ms = max(now_ms, group.rate_at_ms)
    group.rate_tokens = min(max(1.0, rate), group.rate_tokens + elapsed_ms * rate / 1000.0)
    return group.rate_tokens
