"""Expiry: leases past their deadline, messages past their ttl, delays that are over.

`next_due_ms` says when `tick` has something to do; the node keeps the timer. Nothing here scans.
"""

from __future__ import annotations

from penstock.batch import COLUMN_TTL_MS
from penstock.core.group.entries import Entry
from penstock.core.group.settle import end_lease
from penstock.core.group.state import WorkState
from penstock.core.group.walk import Walk
from penstock.core.log import Segment


def next_due_ms(group: WorkState) -> int | None:
    """When `tick` has something to do next; None if never."""
    waiting = group.waiting
    due_ms = group.leases.first_deadline() if group.leases.by_id else None
    if group.next < group.lane.visible_end and (expires_ms := head_expires_ms(group)) is not None:
        due_ms = _earlier(due_ms, expires_ms)
    if waiting.by_start:
        due_ms = _earlier(due_ms, _earlier(waiting.first_due(), waiting.first_expiry()))
    if group.settings.single_active_consumer and group.active_consumer is not None and not group.leases.by_id:
        due_ms = _earlier(due_ms, group.active_until_ms)
    return due_ms


def tick(group: WorkState, now_ms: int) -> None:
    """Do what is due: end expired leases (an attempt is spent), remove expired messages, make delayed ones ready.

    Raises `Missing` where the head of the log must be read first; what was done until then stays done.
    """
    group.lane.dirty = True
    while (lease := group.leases.pop_expired(now_ms)) is not None:
        end_lease(group, now_ms, lease, "expired", "the lease expired")
    while (entry := group.waiting.pop_expired(now_ms)) is not None:
        group.expire(entry, now_ms)
    group.waiting.advance(now_ms)
    if group.active_consumer is not None and group.active_until_ms <= now_ms and not group.leases.by_id:
        group.active_consumer = None
    _sweep(group, now_ms)


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


def _sweep(group: WorkState, now_ms: int) -> None:
    """Remove expired messages from `next` on, so that they hold back no retention."""
    while (expires_ms := head_expires_ms(group)) is not None and expires_ms <= now_ms:
        segment = group.lane.log.find(group.next)
        end = _expired_end(group, segment, now_ms)
        if group.settings.filter is None:
            group.expire(Entry(group.next, end), now_ms)
        else:
            for entry in Walk(group, now_ms, 0, None).fresh(group.next, end, segment):
                group.expire(entry, now_ms)
        group.move_to(end)


def _expired_end(group: WorkState, segment: Segment, now_ms: int) -> int:
    """Up to where all messages of a batch from `next` on have expired."""
    visible_end, end = min(segment.end, group.lane.visible_end), group.next
    while end < visible_end and (expires_ms := _expires_ms(group, segment, end)) is not None and expires_ms <= now_ms:
        end = end + 1 if segment.columns & COLUMN_TTL_MS else visible_end
    return end


def _earlier(one: int | None, other: int | None) -> int | None:
    """The smaller one; None is never."""
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other
