"""Claim: hand out messages of a work group under a lease.

First what waits and is due, then from `next` on. A claim that one plain batch can answer is range arithmetic;
`walk.py` decides message by message where that is needed. How many may be handed out at all (pause, single active
consumer, max_in_flight, rate) is exact, because one owner decides. Next stop: `settle.py`.
"""

from __future__ import annotations

from typing import Final

from penstock.core.group.entries import Entry, count_of, merged, runs_of
from penstock.core.group.leases import Lease
from penstock.core.group.state import WorkState
from penstock.core.group.walk import TIMED, TIMED_OR_KEYED, Walk
from penstock.model.errors import InvalidArgument, WrongKind
from penstock.model.work import MESSAGE_WORK, Budget, Pause

CLAIM_BYTES_MAX: Final = 16 * 1024 * 1024
"""One claim hands out about this many bytes at most, decompressed, whatever it asks for; but always one message."""
PIECES_MAX: Final = 2_500
"""Ranges that one claim takes of those that wait; as many are enough, whatever its minimum."""


def claim(
    group: WorkState,
    now_ms: int,
    most: int,
    consumer: str,
    lease_id: int,
    *,
    lease_ms: int | None = None,
    partition: str | None = None,
    settle: bool = False,
    minimum: int = 1,
    session: str = "",
    budget: Budget | None = None,
) -> list[Entry]:
    """Hand out up to `most` messages, or none if there are fewer than `minimum`.

    The entries are in the order of delivery: by offset, or by priority in a prioritized group. They are leased under
    `lease_id`, or with `settle` acked at once. `partition` restricts the claim to one partition of an ordered group.
    A lease of a `session` ends with it. `budget` is what it may spend, of which others may have spent some.

    Empty when nothing may be handed out now. Raises `Missing` when heads are needed and nothing was found before them,
    and `Pause` when the budget was spent before.
    """
    if partition is not None:
        _check_partition(group, partition)
    room = room_for(group, now_ms, most, consumer)
    if room < max(minimum, 1):
        return []
    if minimum <= 1 and partition is None and (entry := _take_plain(group, room)) is not None:
        _hand_out(group, now_ms, [entry], consumer, lease_id, lease_ms, settle, session)
        return [entry]
    before = (group.next, group.waiting.count, set(group.waiting.dirty) if minimum > 1 else None)
    budget = Budget() if budget is None else budget
    taken = _take(group, now_ms, room, partition, budget)
    count = count_of(taken)
    assert count <= room, f"{count} messages were taken for a claim of {room}"
    if count < minimum and len(taken) < PIECES_MAX:
        _put_back(group, now_ms, taken, before)
        if budget.left <= 0:
            raise Pause
        return []
    taken = _within_bytes(group, now_ms, taken)
    by_priority = list(taken)
    taken = merged(taken)
    _hand_out(group, now_ms, taken, consumer, lease_id, lease_ms, settle, session)
    return by_priority if group.settings.prioritized else list(taken)


def has_nothing(group: WorkState) -> bool:
    """Whether a claim would find nothing and change nothing."""
    is_done = group.next >= group.lane.visible_end and not group.waiting.count
    return is_done and not group.settings.single_active_consumer  # there, a claim is a sign of life


def _check_partition(group: WorkState, partition: str) -> None:
    if not group.settings.ordered:
        raise WrongKind(f"a claim of partition {partition!r} needs an ordered group; this one is not")
    if partition == "":
        raise InvalidArgument("a claim of partition '': messages without a partition cannot be claimed alone")


# Taking ---------------------------------------------------------------------------------------------------


def _take_plain(group: WorkState, room: int) -> Entry | None:
    """The common case: nothing waits, and one batch without per-message decisions answers the whole claim.

    None where that is not so; `_take` would come to the same entry.
    """
    lane, start, settings = group.lane, group.next, group.settings
    if group.waiting.by_start or not settings.is_plain or (segment := lane.log.peek(start)) is None:
        return None
    if segment.columns & (TIMED_OR_KEYED if settings.ordered else TIMED) or segment.unfolded > CLAIM_BYTES_MAX:
        return None
    end = min(start + room, lane.visible_end)
    if end > segment.end or end <= start:
        return None
    group.next, group.cursor_dirty = end, True  # within what is visible; handing it out marks the lane
    return Entry(start, end, 1)


def _take(group: WorkState, now_ms: int, room: int, partition: str | None, budget: Budget) -> list[Entry]:
    """What is due among the waiting, then fresh messages; fewer than there are where the budget is spent."""
    if not group.waiting.advance(now_ms, budget):
        return []
    if group.parks_first():
        Walk(group, now_ms, 0, partition, budget).run(park_all=True)
        if budget.left <= 0:
            return []  # what is further on may come first
        return _take_waiting(group, now_ms, room, partition, budget)
    taken = _take_waiting(group, now_ms, room, partition, budget)
    room -= count_of(taken)
    if room > 0 and len(taken) < PIECES_MAX:
        walk = Walk(group, now_ms, room, partition, budget)
        walk.run(may_ask=not taken)
        taken.extend(walk.taken)
    return taken


def _take_waiting(group: WorkState, now_ms: int, room: int, partition: str | None, budget: Budget) -> list[Entry]:
    waiting = group.waiting
    taken: list[Entry] = []
    while room > 0 and len(taken) < PIECES_MAX:
        entry = waiting.first_ready(now_ms) if partition is None else waiting.head_of(partition, now_ms)
        if entry is None:
            break
        if entry.expires_ms and entry.expires_ms <= now_ms:
            waiting.remove(entry)
            group.expire(entry, now_ms)
            group.lane.mark(group)
            # The next of its partition may have become due long ago.
            if budget.spend(MESSAGE_WORK) or not waiting.advance(now_ms, budget):
                break
            continue
        room = _take_run(group, entry, now_ms, room, taken)
    return taken


def _take_run(group: WorkState, entry: Entry, now_ms: int, room: int, taken: list[Entry]) -> int:
    """Take an entry and, of an ordered partition, the due ones behind it; the room left."""
    waiting = group.waiting
    keyed = waiting.ordered and entry.partition != ""
    following: Entry | None = entry
    while following is not None and room > 0 and len(taken) < PIECES_MAX:
        if keyed:
            waiting.lock(entry.partition, min(room, following.count))
        piece = waiting.take(following, room)
        room -= piece.count
        taken.append(piece.moved(piece.attempts + 1, 0))
        following = waiting.follower(entry.partition, now_ms) if keyed else None
        if following is not None and not _may_follow(group, following, entry, now_ms):
            following = None
    return room


def _may_follow(group: WorkState, following: Entry, head: Entry, now_ms: int) -> bool:
    """Not if it has expired (the timer takes it), nor if another partition's head outranks it."""
    if following.expires_ms and following.expires_ms <= now_ms:
        return False
    if following.priority >= head.priority:
        return True
    other = group.waiting.first_ready(now_ms)
    return other is None or other.priority <= following.priority


# Giving back what a claim may not hand out ----------------------------------------------------------------


def _within_bytes(group: WorkState, now_ms: int, taken: list[Entry]) -> list[Entry]:
    """The first entries, up to about CLAIM_BYTES_MAX; the others are parked for the next claim."""
    log, left = group.lane.log, CLAIM_BYTES_MAX
    if len(taken) == 1 and taken[0].count == 1:
        return taken
    first, last = log.peek(taken[0].start), log.peek(taken[-1].end - 1)
    spanned = None if first is None or last is None else last.bytes_end - first.bytes_end + first.size
    if spanned is not None and spanned <= left and not log.unfolds and not group.settings.prioritized:
        return taken  # nearly always: all that lies between the first and the last is not too much
    for index, entry in enumerate(taken):
        offset = entry.start
        while offset < entry.end:
            segment = log.peek(offset)
            if segment is None:  # a retry of long ago, whose size is not known; each of them is a small range
                break
            each = segment.bytes_each
            end = min(entry.end, segment.end, offset + max(left // each, 0))
            if end < min(entry.end, segment.end) and (index or end > entry.start):
                return _cut(group, now_ms, taken, index, end)
            end = max(end, offset + 1)  # one message is handed out, however large
            left -= each * (end - offset)
            offset = end
    return taken


def _cut(group: WorkState, now_ms: int, taken: list[Entry], index: int, end: int) -> list[Entry]:
    """Keep what comes before an offset of one of the entries, and park the rest as if never taken."""
    kept, surplus = taken[:index], taken[index + 1 :]
    entry = taken[index]
    if end > entry.start:
        kept.append(entry.part(entry.start, end))
    surplus.insert(0, entry.part(end, entry.end))
    _untake(group, now_ms, surplus)
    return kept


def _untake(group: WorkState, now_ms: int, entries: list[Entry]) -> None:
    """Park entries that no consumer saw: no attempt is spent, and there is no event."""
    for entry in entries:
        group.park(entry.moved(entry.attempts - 1, 0), now_ms)
    group.unlock(entries)
    if entries:
        group.waiting.advance(now_ms, Budget())  # what is due already must not call the timer again


def _put_back(group: WorkState, now_ms: int, entries: list[Entry], before: tuple[int, int, set[int] | None]) -> None:
    """Undo a claim that found too few. Where all is as before, nothing is written.

    A commit would wake the claim, and it would try again without end.
    """
    _untake(group, now_ms, entries)
    next_offset, count, dirty = before
    if dirty is not None and (group.next, group.waiting.count) == (next_offset, count):
        group.waiting.dirty = dirty
    if entries and group.next < group.lane.visible_end and not group.parks_first():
        group.lane.log.find(group.next)  # perhaps there are enough where heads must be read first


# Handing out ----------------------------------------------------------------------------------------------


def _hand_out(
    group: WorkState,
    now_ms: int,
    entries: list[Entry],
    consumer: str,
    lease_id: int,
    lease_ms: int | None,
    settle: bool,
    session: str,
) -> None:
    """Lease the entries, or ack them at once."""
    settings = group.settings
    group.lane.mark(group)
    if settings.rate is not None:
        group.rate_tokens -= count_of(entries)
        assert group.rate_tokens >= 0, f"{group.rate_tokens} tokens are left of a rate of {settings.rate}"
    for start, end, attempts in runs_of(entries):
        assert attempts >= 1, f"[{start}, {end}) is handed out for the {attempts}th time"
        assert start < end <= group.next, f"[{start}, {end}) is handed out, the cursor is at {group.next}"
        group.events.add("claimed", start, end, now_ms, consumer, attempts)
    if settle:
        group.unlock(entries)
        for start, end, attempts in runs_of(entries):
            group.events.add("acked", start, end, now_ms, consumer, attempts)
        return
    deadline_ms = now_ms + (settings.lease_ms if lease_ms is None else lease_ms)
    assert deadline_ms > now_ms, f"lease {lease_id} would end at {deadline_ms}, now is {now_ms}"
    group.leases.add(Lease(lease_id, consumer, deadline_ms, entries, session))


# How many may be handed out now ---------------------------------------------------------------------------


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
