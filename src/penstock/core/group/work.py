"""A work group on one lane: claim, settle, extend, expire, redrive, seek.

The offsets below `next` that are neither leased, waiting nor dead are done; there is no other record of them.
Time comes in as an argument, nothing is random, nothing waits. Every method either raises before it changed
anything or does all it was asked to. The lane seals what changed into a commit: next stop `core/lane.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol

from penstock.batch import COLUMN_TTL_MS
from penstock.core.events import Events, Kind
from penstock.core.group.dead import Dead
from penstock.core.group.entries import Entry, count_of, covers, merged, runs_of, union
from penstock.core.group.leases import Lease, Leases
from penstock.core.group.settings import Settings, backoff_ms
from penstock.core.group.waiting import Waiting
from penstock.core.group.walk import TIMED, TIMED_OR_KEYED, Walk
from penstock.core.log import Log, Missing, Segment
from penstock.model.errors import InvalidArgument, LeaseLost, WrongKind
from penstock.model.rows import DeadRow, GroupRow, LaneChange, LaneImage
from penstock.model.verdict import Verdict

ERROR_CHARACTERS_MAX: Final = 2_048
CLAIM_BYTES_MAX: Final = 16 * 1024 * 1024
"""One claim hands out no more than this, as stored, however many messages it asks for; but always one."""

State = Literal["ready", "leased", "waiting", "dead", "done"]


class LogView(Protocol):
    """What a group needs of its lane."""

    log: Log
    first: int
    end: int
    visible_end: int


class WorkGroup:
    """One group's delivery state on one lane."""

    __slots__ = ("active_consumer", "active_until_ms", "cursor_dirty", "dead", "died", "events", "head", "id", "lane",
                 "leases", "next", "rate_at_ms", "rate_tokens", "redriven", "settings", "waiting")  # fmt: skip

    def __init__(self, id: int, settings: Settings, lane: LogView, next_offset: int) -> None:
        self.id = id
        self.settings = settings
        self.lane = lane
        self.next = next_offset
        self.leases = Leases()
        self.waiting = Waiting(ordered=settings.ordered, debounced=settings.debounce_ms > 0)
        self.dead = Dead()
        self.events = Events()
        self.died: list[DeadRow] = []
        self.cursor_dirty = False
        self.active_consumer: str | None = None
        self.active_until_ms = 0
        self.rate_tokens = max(1.0, settings.rate or 1.0)
        self.rate_at_ms = 0
        self.head: tuple[int, int | None, int | None] = (-1, None, None)
        self.redriven = 0

    def load(self, image: LaneImage) -> None:
        """Take this group's rows out of a lane's image."""
        for waiting_row in image.waiting:
            if waiting_row.group == self.id:
                self.waiting.load(waiting_row)
        for lease_row in image.leases:
            if lease_row.group == self.id:
                lease = self.leases.load(lease_row)
                self._lock(lease.entries)
                if self.settings.single_active_consumer:
                    self.active_consumer = lease.consumer
                    self.active_until_ms = max(self.active_until_ms, lease.deadline_ms)
        for dead_row in image.dead:
            if dead_row.group == self.id:
                self.dead.load(dead_row)

    # Claim ------------------------------------------------------------------------------------------------

    def claim(
        self,
        now_ms: int,
        most: int,
        consumer: str,
        lease_id: int,
        *,
        lease_ms: int | None = None,
        partition: str | None = None,
        settle: bool = False,
        minimum: int = 1,
    ) -> list[Entry]:
        """Hand out up to `most` messages, or none if there are fewer than `minimum`.

        First what waits and is due, then from `next` on. With `partition`, only messages of that one; it takes an
        ordered group, for others keep no such index.
        What is returned is in the order of delivery: by offset, or by priority where that decides.
        The offsets are leased under `lease_id`, or done at once with `settle`. Raises `Missing` when heads are
        needed and nothing was found before them. Empty when nothing may be handed out now.
        """
        if partition is not None and not self.settings.ordered:
            raise WrongKind(f"a claim of partition {partition!r} needs an ordered group; this one is not")
        if partition == "":
            raise InvalidArgument("a claim of partition '': messages without a partition cannot be claimed alone")
        room = self._room(now_ms, most, consumer)
        if room < max(minimum, 1):
            return []
        if minimum <= 1 and partition is None and (entry := self._take_plain(room)) is not None:
            self._hand_out(now_ms, [entry], consumer, lease_id, lease_ms, settle)
            return [entry]
        before = (self.next, self.waiting.count, set(self.waiting.dirty) if minimum > 1 else None)
        self.waiting.advance(now_ms)
        if self._parks_first():
            Walk(self, now_ms, 0, partition).run(park_all=True)
        taken = self._take_waiting(now_ms, room, partition)
        room -= count_of(taken)
        if room > 0 and not self._parks_first():
            walk = Walk(self, now_ms, room, partition)
            walk.run(may_ask=not taken)
            taken.extend(walk.taken)
        if count_of(taken) < minimum:
            self._put_back(now_ms, taken, before)
            return []
        taken = self._within_bytes(now_ms, taken)
        in_turn = list(taken)
        taken = merged(taken)
        self._hand_out(now_ms, taken, consumer, lease_id, lease_ms, settle)
        return in_turn if self.settings.prioritized else list(taken)

    def _take_plain(self, room: int) -> Entry | None:
        """What nearly every claim comes to: nothing waits, and one batch, in which nothing depends on single messages,
        has all that the claim can get. None for any other, which takes the long way to the same.
        """
        lane, start, settings = self.lane, self.next, self.settings
        if self.waiting.by_start or not settings.is_plain or (segment := lane.log.peek(start)) is None:
            return None
        if segment.columns & (TIMED_OR_KEYED if settings.ordered else TIMED) or segment.size > CLAIM_BYTES_MAX:
            return None
        end = min(start + room, lane.visible_end)
        if end > segment.end or end <= start:
            return None
        self.next = end
        self.cursor_dirty = True
        return Entry(start, end, 1)

    def _within_bytes(self, now_ms: int, taken: list[Entry]) -> list[Entry]:
        """The first of the entries, about as many bytes as one claim may be; the others wait for the next."""
        log, left = self.lane.log, CLAIM_BYTES_MAX
        if len(taken) == 1 and taken[0].count == 1:
            return taken
        first, last = log.peek(taken[0].start), log.peek(taken[-1].end - 1)
        spanned = None if first is None or last is None else last.bytes_end - first.bytes_end + first.size
        if spanned is not None and spanned <= left and not self.settings.prioritized:
            return taken  # nearly always: all that lies between the first and the last is not too much
        for index, entry in enumerate(taken):
            offset = entry.start
            while offset < entry.end:
                segment = log.peek(offset)
                if segment is None:  # a retry of long ago, whose size is not known; each of them is a small range
                    break
                each = segment.size // (segment.end - segment.base) + 1
                end = min(entry.end, segment.end, offset + max(left // each, 0))
                if end < min(entry.end, segment.end) and (index or end > entry.start):
                    return self._cut(now_ms, taken, index, end)
                end = max(end, offset + 1)  # one message is handed out, however large
                left -= each * (end - offset)
                offset = end
        return taken

    def _cut(self, now_ms: int, taken: list[Entry], index: int, end: int) -> list[Entry]:
        """Keep what comes before an offset of one of the entries, and put the rest back as if never seen."""
        kept, surplus = taken[:index], taken[index + 1 :]
        entry = taken[index]
        if end > entry.start:
            kept.append(entry.part(entry.start, end))
        surplus.insert(0, entry.part(end, entry.end))
        for entry in surplus:
            self._wait(entry.moved(entry.attempts - 1, 0), now_ms)
        self._unlock(surplus)
        self.waiting.advance(now_ms)
        return kept

    def _put_back(self, now_ms: int, entries: list[Entry], before: tuple[int, int, set[int] | None]) -> None:
        """Too few to hand out: nobody was told of them, so nothing is spent and there is no event.

        If all is as it was before the claim, nothing is written: a commit would make the claim try again, for ever.
        """
        for entry in entries:
            self._wait(entry.moved(entry.attempts - 1, 0), now_ms)
        self._unlock(entries)
        self.waiting.advance(now_ms)  # what is due already must not call the timer again
        next_offset, count, dirty = before
        if dirty is not None and (self.next, self.waiting.count) == (next_offset, count):
            self.waiting.dirty = dirty
        if entries and self.next < self.lane.visible_end and not self._parks_first():
            self.lane.log.find(self.next)  # perhaps there are enough where heads must be read first

    def _parks_first(self) -> bool:
        """Whether the order depends on messages further on, so that all must be seen before one is taken."""
        return self.settings.prioritized or self.settings.debounce_ms > 0

    def _room(self, now_ms: int, most: int, consumer: str) -> int:
        settings = self.settings
        if settings.paused or (settings.single_active_consumer and not self._activate(now_ms, consumer)):
            return 0
        if settings.max_in_flight is not None:
            most = min(most, settings.max_in_flight - self.leases.count)
        if settings.rate is not None:
            most = min(most, int(self._tokens(now_ms, settings.rate)))
        return most

    def _activate(self, now_ms: int, consumer: str) -> bool:
        """Whether this consumer is the active one, or becomes it because the last one left or fell silent."""
        if self.active_consumer != consumer and self.active_consumer is not None and now_ms < self.active_until_ms:
            return False
        if self.active_consumer != consumer and self.active_consumer in self.leases.by_consumer:
            return False
        self.active_consumer = consumer
        self.active_until_ms = now_ms + self.settings.lease_ms
        return True

    def _tokens(self, now_ms: int, rate: float) -> float:
        """The token bucket: `rate` a second, at most one second's worth saved up."""
        elapsed_ms = max(0, now_ms - self.rate_at_ms)
        self.rate_at_ms = max(now_ms, self.rate_at_ms)
        self.rate_tokens = min(max(1.0, rate), self.rate_tokens + elapsed_ms * rate / 1000.0)
        return self.rate_tokens

    def _take_waiting(self, now_ms: int, room: int, partition: str | None) -> list[Entry]:
        waiting = self.waiting
        taken: list[Entry] = []
        while room > 0:
            entry = waiting.first_ready(now_ms) if partition is None else waiting.head_of(partition, now_ms)
            if entry is None:
                break
            if entry.expires_ms and entry.expires_ms <= now_ms:
                waiting.remove(entry)
                self.expire_entry(entry, now_ms)
                waiting.advance(now_ms)  # the next of its partition may have become due long ago
                continue
            room = self._take_run(entry, now_ms, room, taken)
        return taken

    def _take_run(self, entry: Entry, now_ms: int, room: int, taken: list[Entry]) -> int:
        """Take an entry and, of an ordered partition, those behind it that are due; the room left."""
        waiting = self.waiting
        keyed = waiting.ordered and entry.partition != ""
        following: Entry | None = entry
        while following is not None and room > 0:
            if keyed:
                waiting.lock(entry.partition, min(room, following.count))
            piece = waiting.take(following, room)
            room -= piece.count
            taken.append(piece.moved(piece.attempts + 1, 0))
            following = waiting.follower(entry.partition, now_ms) if keyed else None
            if following is not None and not self._may_follow(following, entry, now_ms):
                following = None
        return room

    def _may_follow(self, following: Entry, head: Entry, now_ms: int) -> bool:
        """Not if it has expired (the timer takes it), nor if another partition's head outranks it."""
        if following.expires_ms and following.expires_ms <= now_ms:
            return False
        if following.priority >= head.priority:
            return True
        other = self.waiting.first_ready(now_ms)
        return other is None or other.priority <= following.priority

    def _hand_out(
        self, now_ms: int, entries: list[Entry], consumer: str, lease_id: int, lease_ms: int | None, settle: bool
    ) -> None:
        settings = self.settings
        if settings.rate is not None:
            self.rate_tokens -= count_of(entries)
        for start, end, attempts in runs_of(entries):
            self.events.add("claimed", start, end, now_ms, consumer, attempts)
        if settle:
            self._unlock(entries)
            for start, end, attempts in runs_of(entries):
                self.events.add("acked", start, end, now_ms, consumer, attempts)
            return
        deadline_ms = now_ms + (settings.lease_ms if lease_ms is None else lease_ms)
        self.leases.add(Lease(lease_id, consumer, deadline_ms, entries))

    # Settle -----------------------------------------------------------------------------------------------

    def check_settle(self, lease_id: int, verdicts: Sequence[Verdict]) -> Lease:
        """The lease, if every verdict names offsets that are in it, none of them twice; else why not."""
        lease = self._lease(lease_id)
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

    def _lease(self, lease_id: int) -> Lease:
        lease = self.leases.by_id.get(lease_id)
        if lease is None:
            raise LeaseLost(f"lease {lease_id} is gone: it expired, was settled, passed on, or was reset by a seek")
        return lease

    def settle(self, now_ms: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
        """Carry out verdicts on offsets of a lease: all of them, or none and an error."""
        lease = self.check_settle(lease_id, verdicts)
        if self.settings.single_active_consumer and self.active_consumer == lease.consumer:
            self.active_until_ms = now_ms + self.settings.lease_ms
        for verdict in verdicts:
            if verdict.start is None:
                taken = self.leases.take_all(lease)
            else:
                taken = self.leases.take(lease, verdict.start, verdict.end)
            self._judge(now_ms, verdict, taken, lease.consumer)

    def has_nothing(self) -> bool:
        """Whether no claim would find anything, nor change anything: it needs not be tried."""
        is_done = self.next >= self.lane.visible_end and not self.waiting.count
        return is_done and not self.settings.single_active_consumer  # there, asking is a sign of life

    def settling_frees(self) -> bool:
        """Whether an ack may let a message be handed out that could not be before."""
        settings = self.settings
        return settings.ordered or settings.single_active_consumer or settings.max_in_flight is not None

    def _judge(self, now_ms: int, verdict: Verdict, entries: list[Entry], consumer: str) -> None:
        action, error = verdict.action, verdict.error[:ERROR_CHARACTERS_MAX]
        if action == "ack":
            for start, end, attempts in runs_of(entries):
                self.events.add("acked", start, end, now_ms, consumer, attempts)
        elif action == "nack":
            self._fail(now_ms, entries, consumer, "nacked", error, verdict.delay_ms)
        elif action == "reject":
            for entry in entries:
                self._die(entry, now_ms, "rejected", error, consumer)
        else:
            due_ms = now_ms + (verdict.delay_ms or 0) if action == "postpone" else 0
            kind: Kind = "postponed" if action == "postpone" else "released"
            for entry in entries:
                self.events.add(kind, entry.start, entry.end, now_ms, consumer, entry.attempts)
                self._wait(entry.moved(entry.attempts - 1, due_ms), now_ms)
        self._unlock(entries)

    def _fail(
        self, now_ms: int, entries: list[Entry], consumer: str, kind: Kind, error: str, delay_ms: int | None
    ) -> None:
        """An attempt that did not succeed: back to waiting, or dead after the last one."""
        settings = self.settings
        for entry in entries:
            self.events.add(kind, entry.start, entry.end, now_ms, consumer, entry.attempts, error)
            if settings.max_attempts and entry.attempts >= settings.max_attempts:
                self._die(entry, now_ms, "attempts", error, consumer)
                continue
            span = delay_ms
            if span is None:
                span = backoff_ms(settings, self.id, entry.start, entry.attempts)
            self._wait(entry.moved(entry.attempts, now_ms + span if span else 0), now_ms)

    def _wait(self, entry: Entry, now_ms: int) -> None:
        if entry.expires_ms and entry.expires_ms <= now_ms:
            self.expire_entry(entry, now_ms)
        else:
            self.waiting.put(entry)

    def _die(self, entry: Entry, now_ms: int, reason: str, error: str, consumer: str = "") -> None:
        self.events.add("dead", entry.start, entry.end, now_ms, consumer, entry.attempts, reason)
        is_copied = self.settings.dead_letter_to is not None
        if not is_copied and not self.settings.dead_kept:
            return
        row = DeadRow(self.id, entry.start, entry.end, entry.attempts, reason, error, consumer, now_ms)
        self.dead.add(row)
        if is_copied:
            self.died.append(row)

    def expire_entry(self, entry: Entry, now_ms: int) -> None:
        """Messages past their ttl: dead or dropped, as the group says."""
        if self.settings.expired == "dead":
            self._die(entry, now_ms, "expired", "time to live is over")
        else:
            self.events.add("dropped", entry.start, entry.end, now_ms, "", entry.attempts, "expired")

    def _lock(self, entries: Iterable[Entry]) -> None:
        if self.waiting.ordered:
            for entry in entries:
                if entry.partition:
                    self.waiting.lock(entry.partition, entry.count)

    def _unlock(self, entries: Iterable[Entry]) -> None:
        if self.waiting.ordered:
            for entry in entries:
                if entry.partition:
                    self.waiting.unlock(entry.partition, entry.count)

    def extend(self, now_ms: int, lease_id: int, lease_ms: int) -> int:
        """Keep a lease for another span from now; its new deadline."""
        lease = self._lease(lease_id)
        self.leases.extend(lease, now_ms + lease_ms)
        if self.settings.single_active_consumer and self.active_consumer == lease.consumer:
            self.active_until_ms = max(self.active_until_ms, now_ms + lease_ms)
        return lease.deadline_ms

    def consumer_left(self, now_ms: int, consumer: str) -> None:
        """A consumer is gone for good: what it held returns at once, counted as an attempt."""
        if self.active_consumer == consumer:
            self.active_consumer = None
        for lease in self.leases.of(consumer):
            entries = self.leases.take_all(lease)
            self._fail(now_ms, entries, consumer, "left", "the consumer left", 0)
            self._unlock(entries)

    # Time -------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When `tick` has something to do next."""
        waiting = self.waiting
        due_ms = self.leases.first_deadline() if self.leases.by_id else None
        if self.next < self.lane.visible_end and (expires_ms := self._head_expiry()) is not None:
            due_ms = _earlier(due_ms, expires_ms)
        if waiting.by_start:
            due_ms = _earlier(due_ms, _earlier(waiting.first_due(), waiting.first_expiry()))
        if self.settings.single_active_consumer and self.active_consumer is not None and not self.leases.by_id:
            due_ms = _earlier(due_ms, self.active_until_ms)
        return due_ms

    def _head_expiry(self) -> int | None:
        """When the first message never handed out expires; at once if its head must be read to know."""
        if self.next >= self.lane.visible_end:
            return None
        offset, ttl_ms, expires_ms = self.head
        if offset == self.next and ttl_ms == self.settings.ttl_ms:
            return expires_ms
        segment = self.lane.log.peek(self.next)
        if segment is None:
            return 0 if self.settings.ttl_ms is not None else None
        expires_ms = self._expires_ms(segment, self.next)
        self.head = (self.next, self.settings.ttl_ms, expires_ms)
        return expires_ms

    def _expires_ms(self, segment: Segment, offset: int) -> int | None:
        spans = segment.decoded().ttl_ms if segment.columns & COLUMN_TTL_MS else None
        span_ms = _earlier(None if spans is None else spans[offset - segment.base], self.settings.ttl_ms)
        return None if span_ms is None else segment.published_ms + span_ms

    def _sweep(self, now_ms: int) -> None:
        """Messages never handed out that expired at the head of the log go, so that they hold nothing back."""
        while (expires_ms := self._head_expiry()) is not None and expires_ms <= now_ms:
            segment = self.lane.log.find(self.next)
            end = self._expired_end(segment, now_ms)
            if self.settings.filter is None:
                self.expire_entry(Entry(self.next, end), now_ms)
            else:
                for entry in Walk(self, now_ms, 0, None).fresh(self.next, end, segment):
                    self.expire_entry(entry, now_ms)
            self.next = end
            self.cursor_dirty = True

    def _expired_end(self, segment: Segment, now_ms: int) -> int:
        """How far from `next` on the messages of a batch have all expired."""
        visible_end, end = min(segment.end, self.lane.visible_end), self.next
        while end < visible_end and (expires_ms := self._expires_ms(segment, end)) is not None and expires_ms <= now_ms:
            end = end + 1 if segment.columns & COLUMN_TTL_MS else visible_end
        return end

    def rate_ready_ms(self, now_ms: int) -> int | None:
        """When the rate limit next lets a message pass, if it is the rate that holds it."""
        rate = self.settings.rate
        if rate is None or self._tokens(now_ms, rate) >= 1.0:
            return None
        return now_ms + 1 + int((1.0 - self.rate_tokens) * 1000.0 / rate)

    def tick(self, now_ms: int) -> None:
        """Leases past their deadline end, counted as attempts; what outlived its ttl goes; what is due is ready.

        Raises `Missing` where the head of the log must be read first; what was done until then stays done.
        """
        while (lease := self.leases.pop_expired(now_ms)) is not None:
            entries = self.leases.take_all(lease)
            self._fail(now_ms, entries, lease.consumer, "expired", "the lease expired", 0)
            self._unlock(entries)
        while (entry := self.waiting.pop_expired(now_ms)) is not None:
            self.expire_entry(entry, now_ms)
        self.waiting.advance(now_ms)
        if self.active_consumer is not None and self.active_until_ms <= now_ms and not self.leases.by_id:
            self.active_consumer = None
        self._sweep(now_ms)

    # Administration ---------------------------------------------------------------------------------------

    def seek(self, now_ms: int, offset: int) -> None:
        """Everything below is done (what is dead stays dead), everything from the offset on is new again.

        What retention has removed stays removed: the offset is at least the first that is kept.
        """
        offset = min(max(offset, self.lane.first), self.lane.end)
        self.waiting.clear()
        for lease in list(self.leases.by_id.values()):
            self._unlock(self.leases.take_all(lease))
        self.dead.take(offset, max(self.next, offset))
        self.events.add("sought", offset, max(offset, self.next), now_ms)
        self.next = offset
        self.cursor_dirty = True

    def purge(self, now_ms: int) -> int:
        """Everything that is not leased or dead is done; how many messages that were."""
        purged = self.waiting.clear()
        count = count_of(purged) + max(0, self.lane.visible_end - self.next)
        for entry in purged:
            self.events.add("purged", entry.start, entry.end, now_ms)
        if self.lane.visible_end > self.next:
            self.events.add("purged", self.next, self.lane.visible_end, now_ms)
            self.next = self.lane.visible_end
            self.cursor_dirty = True
        return count

    def redrive(self, now_ms: int, ranges: Sequence[tuple[int, int]]) -> int:
        """Dead letters in these ranges wait again for this group, with no attempt spent; how many.

        Raises `Missing` where heads are needed to know their partition or priority; what was redriven until then
        stays so, and is counted when asked again: dead letters may lie in more batches than fit into memory.
        Those that died before their commit (of overflow) stay dead until it is there: nobody may see them yet.
        """
        for start, end in union((start, min(end, self.lane.visible_end)) for start, end in ranges):
            entries, known_end = self._anew(now_ms, start, end)
            for row in self.dead.take(start, known_end):
                self.events.add("redriven", row.start, row.end, now_ms, detail=row.reason)
            for entry in merged(entries):
                self.waiting.put(entry)
                self.redriven += entry.count
            if known_end < end:
                raise Missing(known_end)
        count, self.redriven = self.redriven, 0
        return count

    def _anew(self, now_ms: int, start: int, end: int) -> tuple[list[Entry], int]:
        """Entries for the dead letters of [start, end), and up to where heads were in memory to make them."""
        entries: list[Entry] = []
        walk = Walk(self, now_ms, 0, None)
        for row in self.dead.overlapping(start, end):
            try:
                walk.anew(row.start, row.end, entries)
            except Missing as missing:
                return entries, missing.start
        return entries, end

    def purge_dead(self, now_ms: int, ranges: Sequence[tuple[int, int]], detail: str = "dead") -> int:
        """Dead letters in these ranges are done; how many."""
        count = 0
        for start, end in union(ranges):
            for row in self.dead.take(start, end):
                count += row.end - row.start
                self.events.add("purged", row.start, row.end, now_ms, detail=detail)
        return count

    def drop_oldest(self, now_ms: int, count: int, *, dead: bool) -> int:
        """Make room: the oldest messages that nobody holds are done, or dead; how many of them were missing."""
        while count > 0 and (start := self.waiting.lowest()) is not None:
            piece = self.waiting.take(self.waiting.by_start[start], count)
            count -= piece.count
            self._overflow(piece, now_ms, dead)
        most = min(count, self.lane.end - self.next)
        if most > 0:
            self._overflow(Entry(self.next, self.next + most), now_ms, dead)
            self.next += most
            self.cursor_dirty = True
        return count - max(most, 0)

    def drop_below(self, now_ms: int, offset: int, *, dead: bool) -> None:
        """Make room by bytes: what nobody holds below an offset is done, or dead."""
        while (start := self.waiting.lowest()) is not None and start < offset:
            entry = self.waiting.by_start[start]
            self._overflow(self.waiting.take(entry, min(entry.end, offset) - start), now_ms, dead)
        if self.next < offset:
            self._overflow(Entry(self.next, offset), now_ms, dead)
            self.next = offset
            self.cursor_dirty = True

    def _overflow(self, entry: Entry, now_ms: int, dead: bool) -> None:
        if dead:
            self._die(entry, now_ms, "overflow", "the queue was full")
        else:
            self.events.add("dropped", entry.start, entry.end, now_ms, detail="overflow")

    # What it knows ----------------------------------------------------------------------------------------

    def watermark(self) -> int:
        """Every offset below is done or dead."""
        low = self.next
        if self.leases.by_id and (leased := self.leases.lowest()) is not None and leased < low:
            low = leased
        if self.waiting.by_start and (waiting := self.waiting.lowest()) is not None and waiting < low:
            low = waiting
        return low

    def needed_from(self) -> int:
        """The lowest offset that this group still needs; retention stops there."""
        watermark, dead = self.watermark(), self.dead.starts
        return min(watermark, dead[0]) if dead else watermark

    def backlog(self) -> int:
        """Messages that wait for delivery: never handed out, or handed out and back. What is leased is not in it."""
        return max(0, self.lane.end - self.next) + self.waiting.count

    def is_idle(self) -> bool:
        """Nothing leased or waiting, nobody active, no tokens spent: all there is to know is stored."""
        return (
            not (self.leases.by_id or self.waiting.by_start or self.cursor_dirty or self.events.by_key)
            and self.active_consumer is None
            and self.settings.rate is None
            and self._head_expiry() is None
        )

    def available(self) -> int:
        """An upper bound of what a claim could find now."""
        return max(0, self.lane.visible_end - self.next) + self.waiting.count

    def states(self, start: int, end: int) -> list[tuple[int, int, State, int]]:
        """(start, end, state, attempts) of every offset of [start, end) that is not done, by rising offset."""
        found: list[tuple[int, int, State, int]] = []
        for lease in self.leases.by_id.values():
            found += [(entry.start, entry.end, "leased", entry.attempts) for entry in lease.entries]
        found += [(entry.start, entry.end, "waiting", entry.attempts) for entry in self.waiting.by_start.values()]
        found += [(row.start, row.end, "dead", row.attempts) for row in self.dead.overlapping(start, end)]
        found.append((self.next, min(end, self.lane.end), "ready", 0))
        clipped = [(max(low, start), min(high, end), state, attempts) for low, high, state, attempts in found]
        return sorted(item for item in clipped if item[0] < item[1])

    def seal(self, change: LaneChange) -> None:
        """Write what changed since the last seal into a commit."""
        if self.leases.dirty:
            leases, leases_deleted = self.leases.seal(self.id)
            change.leases += leases
            change.leases_deleted += leases_deleted
        if self.waiting.dirty:
            waiting, waiting_deleted = self.waiting.seal(self.id)
            change.waiting += waiting
            change.waiting_deleted += waiting_deleted
        if self.dead.dirty:
            dead, dead_deleted = self.dead.seal(self.id)
            change.dead += dead
            change.dead_deleted += dead_deleted
        if self.cursor_dirty:
            change.groups.append(GroupRow(self.id, self.next, self.next))
            self.cursor_dirty = False


def _earlier(one: int | None, other: int | None) -> int | None:
    """The smaller one; None is never."""
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other
