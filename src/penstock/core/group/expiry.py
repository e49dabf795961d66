"""Expiry: leases past their deadline, messages past their ttl, delays that are over.

`next_due_ms` says when `tick` has something to do; the node keeps the timer. Nothing here scans.
"""

from __future__ import annotations

from typing import Final

from penstock.batch import COLUMN_TTL_MS
from penstock.core.group.entries import Entry
from penstock.core.group.settle import end_lease
from penstock.core.group.state import WorkState
from penstock.core.group.walk import Walk
from penstock.core.log import DAMAGED, Segment
from penstock.model.work import MESSAGE_WORK, Budget, Pause

SWEPT_AT_ONCE: Final = 1_000
"""Messages with a ttl of their own that are looked at before they are removed."""


def next_due_ms(group: WorkState) -> int | None:
    """When `tick` has something to do next; None if never."""
    waiting = group.waiting
    due_ms = group.leases.first_deadline() if group.leases.by_id else None
    if (group.lane.log.expires or group.settings.ttl_ms is not None) and group.next < group.lane.visible_end:
        due_ms = _earlier(due_ms, head_expires_ms(group))
    if waiting.by_start:
        due_ms = _earlier(due_ms, _earlier(waiting.first_due(), waiting.first_expiry()))
    if group.settings.single_active_consumer and group.active_consumer is not None and not group.leases.by_id:
        due_ms = _earlier(due_ms, group.active_until_ms)
    return due_ms


def tick(group: WorkState, now_ms: int, budget: Budget | None = None) -> None:
    """Do what is due: end expired leases (an attempt is spent), remove expired messages, make delayed ones ready.

    Raises `Missing` where the head of the log must be read first, and `Pause` where there is more than can be done at
    once; what was done until then stays done.
    """
    group.lane.mark(group)
    budget = Budget() if budget is None else budget
    while (lease := group.leases.pop_expired(now_ms)) is not None:
        count = len(lease.entries)
        end_lease(group, now_ms, lease, "expired", "the lease expired")
        _spend(budget, count)
    while (entry := group.waiting.pop_expired(now_ms)) is not None:
        group.expire(entry, now_ms)
        _spend(budget, 1)
    if not group.waiting.advance(now_ms, budget):
        raise Pause
    if group.active_consumer is not None and group.active_until_ms <= now_ms and not group.leases.by_id:
        group.active_consumer = None
    _sweep(group, now_ms, budget)


def _spend(budget: Budget, count: int) -> None:
    if budget.spend(count * MESSAGE_WORK):
        raise Pause


def head_expires_ms(group: WorkState) -> int | None:
    """When the message at `next` expires; 0, for at once, if its head must be read to know."""
    if group.next >= group.lane.visible_end:
        return None
    offset, ttl_ms, expires_ms = group.head_expiry
    if offset == group.next and ttl_ms == group.settings.ttl_ms:
        return expires_ms
    segment = group.lane.log.peek(group.next)
    if segment is None:
        return 0 if group.settings.ttl_ms is not None else None
    expires_ms = _expires_ms(group, segment, group.next)
    group.head_expiry = (group.next, group.settings.ttl_ms, expires_ms)
    return expires_ms


def _expires_ms(group: WorkState, segment: Segment, offset: int) -> int | None:
    spans = segment.decoded().ttl_ms if segment.columns & COLUMN_TTL_MS else None
    span_ms = _earlier(None if spans is None else spans[offset - segment.base], group.settings.ttl_ms)
    return None if span_ms is None else segment.published_ms + span_ms


def _sweep(group: WorkState, now_ms: int, budget: Budget) -> None:
    """Remove expired messages from `next` on, so that they hold back no retention."""
    while (expires_ms := head_expires_ms(group)) is not None and expires_ms <= now_ms:
        segment = group.lane.log.find(group.next)
        end = _expired_end(group, segment, now_ms)
        if segment.columns & DAMAGED:
            group.bury(group.next, end, now_ms)
        elif group.settings.filter is None:
            group.expire(Entry(group.next, end), now_ms)
        else:
            walk = Walk(group, now_ms, 0, None, budget)
            for entry in walk.fresh(group.next, end, segment):
                group.expire(entry, now_ms)
            end = walk.walked_to
        count = min(end - group.next, SWEPT_AT_ONCE)
        group.move_to(end)
        _spend(budget, 1 + count // 16)


def _expired_end(group: WorkState, segment: Segment, now_ms: int) -> int:
    """Up to where all messages of a batch from `next` on have expired, as far as is looked at once."""
    last, end = min(segment.end, group.lane.visible_end, group.next + SWEPT_AT_ONCE), group.next
    if not segment.columns & COLUMN_TTL_MS:
        return min(segment.end, group.lane.visible_end)
    while end < last and (expires_ms := _expires_ms(group, segment, end)) is not None and expires_ms <= now_ms:
        end += 1
    return end


def _earlier(one: int | None, other: int | None) -> int | None:
    """The smaller one; None is never."""
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other
