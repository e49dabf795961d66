"""Settle: what a consumer says of the messages it holds, and how long it may go on holding them.

Ack, nack, reject, release and postpone; extend; and a consumer that left. A verdict on a lease that is gone changes
nothing and says so. Next stop: `core/lane`, which seals what changed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from penstock.core.group.entries import Entry, covers, runs_of
from penstock.core.group.leases import Lease
from penstock.core.group.state import WorkState
from penstock.model.errors import InvalidArgument, LeaseLost
from penstock.model.events import Kind
from penstock.model.verdict import Verdict

ERROR_CHARACTERS_MAX: Final = 2_048


def check_settle(group: WorkState, lease_id: int, verdicts: Sequence[Verdict]) -> Lease:
    """The lease, if the verdicts name only offsets in it, none of them twice; else raises why not."""
    lease = group.lease(lease_id)
    if len(verdicts) == 1 and verdicts[0].start is None:
        return lease
    spans = sorted(
        (lease.entries[0].start, lease.entries[-1].end) if verdict.start is None else (verdict.start, verdict.end)
        for verdict in verdicts
    )
    end = -1
    for span in spans:
        if span[0] >= span[1]:
            raise InvalidArgument(f"a verdict names offsets {span[0]} to {span[1]}: an empty range")
        if span[0] < end:
            raise InvalidArgument(f"offset {span[0]} is settled twice in one call")
        end = span[1]
        if not covers(lease.entries, *span):
            raise LeaseLost(
                f"offsets {span[0]} to {span[1] - 1} are not all in lease {lease_id}: settled, or never there"
            )
    return lease


def settle(group: WorkState, now_ms: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
    """Carry out verdicts on offsets of a lease: all of them, or none and an error."""
    lease = check_settle(group, lease_id, verdicts)
    group.lane.mark(group)
    if group.settings.single_active_consumer and group.active_consumer == lease.consumer:
        group.active_until_ms = now_ms + group.settings.lease_ms
    for verdict in verdicts:
        if verdict.start is None:
            taken = group.leases.take_all(lease)
        else:
            taken = group.leases.take(lease, verdict.start, verdict.end)
        _judge(group, now_ms, verdict, taken, lease.consumer)


def _judge(group: WorkState, now_ms: int, verdict: Verdict, entries: list[Entry], consumer: str) -> None:
    action, error = verdict.action, verdict.error[:ERROR_CHARACTERS_MAX]
    if action == "ack":
        for start, end, attempts in runs_of(entries):
            group.events.add("acked", start, end, now_ms, consumer, attempts)
    elif action == "nack":
        group.fail(now_ms, entries, consumer, "nacked", error, verdict.delay_ms)
    elif action == "reject":
        for entry in entries:
            group.die(entry, now_ms, "rejected", error, consumer)
    else:
        due_ms = now_ms + (verdict.delay_ms or 0) if action == "postpone" else 0
        kind: Kind = "postponed" if action == "postpone" else "released"
        for entry in entries:
            group.events.add(kind, entry.start, entry.end, now_ms, consumer, entry.attempts)
            group.park(entry.moved(entry.attempts - 1, due_ms), now_ms)
    group.unlock(entries)


def set_aside(group: WorkState, now_ms: int, lease_id: int, start: int, end: int, error: str) -> None:
    """Bury offsets of a lease that are damaged in the store: nobody saw them, so that no attempt is spent."""
    lease = check_settle(group, lease_id, [Verdict("release", start, end)])
    group.lane.mark(group)
    taken = group.leases.take(lease, start, end)
    for entry in taken:
        group.die(entry.moved(entry.attempts - 1, 0), now_ms, "damaged", error)
    group.unlock(taken)


def set_aside_done(group: WorkState, now_ms: int, start: int, end: int, error: str) -> None:
    """The same for offsets that were done when they were claimed."""
    group.lane.mark(group)
    group.die(Entry(start, end), now_ms, "damaged", error)


def extend(group: WorkState, now_ms: int, lease_id: int, lease_ms: int) -> int:
    """Move a lease's deadline to `lease_ms` from now; the new deadline."""
    lease = group.lease(lease_id)
    group.lane.mark(group)
    group.leases.extend(lease, now_ms + lease_ms)
    if group.settings.single_active_consumer and group.active_consumer == lease.consumer:
        group.active_until_ms = max(group.active_until_ms, now_ms + lease_ms)
    return lease.deadline_ms


def consumer_left(group: WorkState, now_ms: int, consumer: str) -> None:
    """End the leases of a consumer that is gone; its messages wait again, and the attempt counts."""
    group.lane.mark(group)
    if group.active_consumer == consumer:
        group.active_consumer = None
    for lease in group.leases.of(consumer):
        end_lease(group, now_ms, lease, "left", "the consumer left")


def session_left(group: WorkState, now_ms: int, session: str, consumers: Collection[str] = ()) -> None:
    """End the leases of a session that is gone; each spends an attempt. `consumers` are those that it had here.

    A consumer of the same name that is no part of the session keeps its leases.
    """
    leases = group.leases.of_session(session)
    for lease in leases:
        group.lane.mark(group)
        end_lease(group, now_ms, lease, "left", "the session ended")
    active = group.active_consumer
    was_active = active in consumers or any(lease.consumer == active for lease in leases)
    if was_active and active not in group.leases.by_consumer:
        group.active_consumer = None


def end_lease(group: WorkState, now_ms: int, lease: Lease, kind: Kind, error: str) -> None:
    """End a lease without a verdict: every message in it has spent an attempt and is ready again at once."""
    entries = group.leases.take_all(lease)
    group.fail(now_ms, entries, lease.consumer, kind, error, 0)
    group.unlock(entries)


def settling_frees(group: WorkState) -> bool:
    """Whether an ack may let another message be handed out."""
    settings = group.settings
    return settings.ordered or settings.single_active_consumer or settings.max_in_flight is not None
