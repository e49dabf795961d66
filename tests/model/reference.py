"""A lane as simply as it can be said: one note per message and group, every question answered by a linear scan.

Written from the design, not from the core. It shares with the core only plain data (messages, settings) and the
filter. Where the design leaves freedom, the reference checks that what the core did is allowed and adopts it:
`check_claim` for what was claimed, `reconcile` for what the core found out lazily (expired, filtered out).
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.core.group.settings import Settings
from penstock.model import Message, QueueConfig
from penstock.model.verdict import Verdict

State = Literal["pending", "leased", "dead", "done"]


@dataclass
class Record:
    """A message in the log; `published_ms` is 0 until a commit with it was sealed."""

    message: Message
    published_ms: int = 0
    visible: bool = False


@dataclass
class Note:
    """What one group knows of one message."""

    state: State = "pending"
    attempts: int = 0
    lease: int = 0
    reason: str = ""
    due: tuple[int, int] | None = None
    """Earliest and latest time at which it may come back, once it was handed out; None: as published."""
    anew: bool = False
    """Redriven: neither ttl nor filter count any more."""


@dataclass
class Lease:
    consumer: str
    deadline_ms: int


@dataclass
class Group:
    """A group of either kind."""

    settings: Settings
    start: int
    notes: dict[int, Note] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    tokens: float = 1.0
    tokens_at_ms: int = 0
    active: str | None = None
    active_until_ms: int = 0
    next: int = 0
    committed: int = 0
    handed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def offsets(self, *states: State) -> list[int]:
        return [offset for offset, note in sorted(self.notes.items()) if note.state in states]

    def held_by(self, lease_id: int) -> list[int]:
        return [offset for offset in self.offsets("leased") if self.notes[offset].lease == lease_id]


class Reference:
    """One lane with its groups."""

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self.records: list[Record] = []
        self.groups: dict[int, Group] = {}
        self.ids: dict[tuple[str, str], tuple[int, int]] = {}
        self.pins: list[int] = []

    # Whole ------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        return pickle.dumps(self)

    @staticmethod
    def restored(snapshot: bytes) -> Reference:
        """As after a crash: what was durable is visible, what was only remembered is gone."""
        reference: Reference = pickle.loads(snapshot)
        reference.pins = []
        for record in reference.records:
            record.visible = True
        for group in reference.groups.values():
            group.tokens, group.tokens_at_ms = max(1.0, group.settings.rate or 1.0), 0
            group.active, group.active_until_ms = None, 0
            if group.settings.single_active_consumer:
                for lease in group.leases.values():
                    group.active = lease.consumer
                    group.active_until_ms = max(group.active_until_ms, lease.deadline_ms)
            group.next, group.handed = group.committed, {}
        return reference

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def visible_end(self) -> int:
        return sum(record.visible for record in self.records)

    def works(self) -> list[Group]:
        return [group for group in self.groups.values() if group.settings.kind == "work"]

    def add_group(self, group_id: int, settings: Settings, start: int) -> None:
        group = Group(settings, start, next=start, committed=start)
        group.tokens = max(1.0, settings.rate or 1.0)
        self.groups[group_id] = group
        if settings.kind == "work":
            group.notes = {offset: Note() for offset in range(start, self.end)}

    # Publishing -------------------------------------------------------------------------------------------

    def append(self, now_ms: int, messages: Sequence[Message]) -> list[int]:
        """The offset of each message, duplicates that of the first."""
        offsets = []
        for message in messages:
            known = self._known(now_ms, message)
            if known is not None:
                offsets.append(known)
                continue
            offsets.append(self.end)
            if message.dedup_id is not None and self.config.dedup_window_ms:
                key = (message.partition or "", message.dedup_id)
                self.ids[key] = (self.end, now_ms + self.config.dedup_window_ms)
            for group in self.works():
                if self.end >= group.start:
                    group.notes[self.end] = Note()
            self.records.append(Record(message))
        return offsets

    def _known(self, now_ms: int, message: Message) -> int | None:
        if message.dedup_id is None or not self.config.dedup_window_ms:
            return None
        offset, expires_ms = self.ids.get((message.partition or "", message.dedup_id), (0, 0))
        return offset if expires_ms > now_ms else None

    def backlog(self, group: Group) -> int:
        return len(group.offsets("pending"))

    def drop_over_length(self) -> None:
        config = self.config
        if config.max_length is None or config.overflow == "reject":
            return
        for group in self.works():
            for offset in group.offsets("pending")[: max(0, self.backlog(group) - config.max_length)]:
                self.overflow(group.notes[offset])

    def overflow(self, note: Note) -> None:
        if self.config.overflow == "dead_letter_oldest":
            note.state, note.reason = "dead", "overflow"
        else:
            note.state = "done"

    def seal(self, now_ms: int) -> None:
        for record in self.records:
            if not record.published_ms:
                record.published_ms = now_ms

    def committed(self, end: int) -> None:
        for record in self.records[:end]:
            record.visible = True

    # What may be handed out -------------------------------------------------------------------------------

    def passes(self, group: Group, offset: int) -> bool:
        if group.settings.filter is None or (group.notes and group.notes[offset].anew):
            return True
        return group.settings.filter.matches(self.records[offset].message)

    def expires_ms(self, group: Group, offset: int) -> int | None:
        record = self.records[offset]
        spans = [span for span in (self.config.ttl_ms, record.message.ttl_ms) if span is not None]
        if not spans or not record.published_ms or (group.notes and group.notes[offset].anew):
            return None
        return record.published_ms + min(spans)

    def expired(self, group: Group, offset: int, now_ms: int) -> bool:
        expires_ms = self.expires_ms(group, offset)
        return expires_ms is not None and expires_ms <= now_ms

    def partition(self, group: Group, offset: int) -> str:
        return (self.records[offset].message.partition or "") if group.settings.ordered else ""

    def priority(self, group: Group, offset: int) -> int:
        return self.records[offset].message.priority if group.settings.prioritized else 0

    def due(self, group: Group, offset: int) -> tuple[int, int]:
        """Earliest and latest time at which a pending message may go, its partition aside."""
        note, record = group.notes[offset], self.records[offset]
        if note.due is not None:
            return note.due
        message = record.message
        due_ms = max(record.published_ms + self.config.delay_ms + message.delay_ms, message.not_before_ms)
        if self.partition(group, offset) and self.config.debounce_ms:
            due_ms = max(due_ms, record.published_ms + self.config.debounce_ms)
        return due_ms, due_ms

    def alive(self, group: Group, now_ms: int, only: str | None) -> list[int]:
        """Pending messages that could be handed out but for their time and turn, by offset."""
        return [
            offset
            for offset in group.offsets("pending")
            if self.records[offset].visible
            and self.passes(group, offset)
            and not self.expired(group, offset, now_ms)
            and (only is None or self.partition(group, offset) == only)
        ]

    def quiet_ms(self, group: Group, partition: str, now_ms: int) -> tuple[int, int]:
        """From when on a debounced partition may go: surely not before the first, surely from the second on.

        What has expired, or is not for the group, need not hold it up; nor what is redriven, which knows no delay.
        """
        if not partition or not self.config.debounce_ms:
            return 0, 0
        mine = [
            offset
            for offset, record in enumerate(self.records)
            if record.visible and (record.message.partition or "") == partition and offset in group.notes
        ]
        alive = {*self.alive(group, now_ms, partition), *group.offsets("leased")}.intersection(mine)
        live = [offset for offset in alive if not group.notes[offset].anew]
        low = max((self.records[offset].published_ms for offset in live), default=0)
        high = max((max(self.due(group, offset)[1], self._own_due(offset)) for offset in mine), default=0)
        return low + self.config.debounce_ms, max(high, low + self.config.debounce_ms)

    def _own_due(self, offset: int) -> int:
        record = self.records[offset]
        return max(record.published_ms + self.config.delay_ms + record.message.delay_ms, record.message.not_before_ms)

    def room(self, group: Group, now_ms: int, most: int, consumer: str) -> int:
        settings = group.settings
        if settings.paused:
            return 0
        if settings.single_active_consumer:
            others = group.active not in (None, consumer)
            if others and (now_ms < group.active_until_ms or group.leases):
                return 0
            group.active, group.active_until_ms = consumer, now_ms + settings.lease_ms
        if settings.max_in_flight is not None:
            most = min(most, settings.max_in_flight - len(group.offsets("leased")))
        if settings.rate is not None:
            earned = max(0, now_ms - group.tokens_at_ms) * settings.rate / 1000.0
            group.tokens_at_ms = now_ms
            group.tokens = min(max(1.0, settings.rate), group.tokens + earned)
            most = min(most, int(group.tokens))
        return max(0, most)

    def check_claim(
        self, group: Group, now_ms: int, room: int, claimed: Sequence[int], only: str | None, cut_short: bool
    ) -> None:
        """Whether so much may be claimed now, and no less. `cut_short`: the core had reason to stop early."""
        assert len(claimed) <= room, "more than asked for"
        assert len(set(claimed)) == len(claimed), "twice in one claim"
        if group.settings.ordered:
            self._check_ordered(group, now_ms, room, claimed, only, cut_short)
            return
        ready = [o for o in self.alive(group, now_ms, None) if self.due(group, o)[0] <= now_ms]
        sure = [o for o in ready if self.due(group, o)[1] <= now_ms]
        assert ready == sure, "the due times are known by now"
        ready.sort(key=lambda o: (-self.priority(group, o), o))
        wanted = sorted(ready[:room])
        if cut_short:
            assert set(claimed) <= set(ready), (claimed, ready)
            assert claimed or not wanted or len(claimed) < len(wanted)
        else:
            assert sorted(claimed) == wanted, (sorted(claimed), wanted)

    def check_fewer(self, group: Group, now_ms: int, minimum: int) -> None:
        """Whether an unordered group was right to hand out nothing, with fewer than so many there."""
        ready = [o for o in self.alive(group, now_ms, None) if self.due(group, o)[0] <= now_ms]
        assert len(ready) < minimum, f"nothing handed out, though {ready} are ready"

    def _check_ordered(
        self, group: Group, now_ms: int, room: int, claimed: Sequence[int], only: str | None, cut_short: bool
    ) -> None:
        alive = self.alive(group, now_ms, only)
        locked = {self.partition(group, o) for o in group.offsets("leased")} - {""}
        for offset in claimed:
            assert offset in alive, f"{offset} must not be handed out"
            assert self.due(group, offset)[0] <= now_ms, f"{offset} is not due"
            partition = self.partition(group, offset)
            if partition:
                assert partition not in locked, f"{offset} while its partition {partition} is locked"
                quiet = (
                    cut_short or self.quiet_ms(group, partition, now_ms)[0] <= now_ms
                )  # as far as the core could see
                assert quiet, f"{offset} while {partition} is not quiet"
                before = [o for o in alive if o < offset and self.partition(group, o) == partition]
                assert set(before) <= set(claimed), f"{offset} passes {before} of its partition"
        heads = self._heads(group, now_ms, alive, locked)
        if room and heads and not cut_short:
            assert claimed, f"nothing handed out, though {heads} are ready"
            self._check_priority(group, claimed, heads)

    def _heads(self, group: Group, now_ms: int, alive: list[int], locked: set[str]) -> list[int]:
        """Messages of which the core must find the first: due, of partitions that are free beyond doubt."""
        heads = []
        seen: set[str] = set()
        expired = [o for o in group.offsets("pending") if self.expired(group, o, now_ms)]
        doubtful = {self.partition(group, o) for o in expired if self.due(group, o)[1] > now_ms}  # a tick finds those
        for offset in alive:
            partition = self.partition(group, offset)
            if partition and (partition in seen or partition in locked or partition in doubtful):
                continue
            seen.add(partition)
            if max(self.due(group, offset)[1], self.quiet_ms(group, partition, now_ms)[1]) <= now_ms:
                heads.append(offset)
        return heads

    def _check_priority(self, group: Group, claimed: Sequence[int], heads: list[int]) -> None:
        touched = {self.partition(group, offset) for offset in claimed} - {""}
        for head in heads:
            if head not in claimed and self.partition(group, head) not in touched:
                least = min(self.priority(group, offset) for offset in claimed)
                assert least >= self.priority(group, head), f"{head} outranks what was handed out"

    def take(
        self, group: Group, offsets: Iterable[int], consumer: str, lease_id: int, deadline_ms: int, settle: bool
    ) -> None:
        taken = list(offsets)
        for offset in taken:
            note = group.notes[offset]
            note.attempts += 1
            note.state, note.lease = ("done", 0) if settle else ("leased", lease_id)
        if taken and group.settings.rate is not None:
            group.tokens -= len(taken)
        if taken and not settle:
            group.leases[lease_id] = Lease(consumer, deadline_ms)

    # Settling ---------------------------------------------------------------------------------------------

    def settle(self, group: Group, now_ms: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
        lease = group.leases[lease_id]
        if group.settings.single_active_consumer and group.active == lease.consumer:
            group.active_until_ms = now_ms + group.settings.lease_ms
        for verdict in verdicts:
            held = group.held_by(lease_id)
            start, end = (0, self.end) if verdict.start is None else (verdict.start, verdict.end)
            for offset in held:
                if start <= offset < end:
                    self._judge(group, now_ms, offset, verdict)
        self._forget_empty(group)

    def _judge(self, group: Group, now_ms: int, offset: int, verdict: Verdict) -> None:
        note = group.notes[offset]
        if verdict.action == "ack":
            note.state = "done"
        elif verdict.action == "nack":
            self._fail(group, now_ms, offset, verdict.delay_ms)
        elif verdict.action == "reject":
            note.state, note.reason = "dead", "rejected"
        else:
            note.attempts -= 1
            span = (verdict.delay_ms or 0) if verdict.action == "postpone" else 0
            self._wait(group, now_ms, offset, (now_ms + span, now_ms + span))

    def _fail(self, group: Group, now_ms: int, offset: int, delay_ms: int | None) -> None:
        note, settings = group.notes[offset], group.settings
        if settings.max_attempts and note.attempts >= settings.max_attempts:
            note.state, note.reason = "dead", "attempts"
            return
        if delay_ms is not None:
            span = (now_ms + delay_ms, now_ms + delay_ms)
        else:
            most = min(settings.backoff_ms * settings.backoff_factor ** (note.attempts - 1), settings.backoff_max_ms)
            span = (now_ms + math.floor(most * (1 - settings.backoff_jitter)), now_ms + math.ceil(most))
        self._wait(group, now_ms, offset, span)

    def _wait(self, group: Group, now_ms: int, offset: int, due: tuple[int, int]) -> None:
        note = group.notes[offset]
        if not self.expired(group, offset, now_ms):
            note.state, note.due = "pending", due
        elif group.settings.expired == "dead":
            note.state, note.reason = "dead", "expired"
        else:
            note.state = "done"

    def _forget_empty(self, group: Group) -> None:
        held = {group.notes[offset].lease for offset in group.offsets("leased")}
        group.leases = {lease_id: lease for lease_id, lease in group.leases.items() if lease_id in held}

    def extend(self, group: Group, now_ms: int, lease_id: int, lease_ms: int) -> None:
        lease = group.leases[lease_id]
        lease.deadline_ms = now_ms + lease_ms
        if group.settings.single_active_consumer and group.active == lease.consumer:
            group.active_until_ms = max(group.active_until_ms, now_ms + lease_ms)

    def consumer_left(self, group: Group, now_ms: int, consumer: str) -> None:
        if group.active == consumer:
            group.active = None
        for lease_id, lease in list(group.leases.items()):
            if lease.consumer == consumer:
                self._end_lease(group, now_ms, lease_id)
        if consumer in group.handed:
            group.next = min(group.next, group.handed.pop(consumer)[0])

    def _end_lease(self, group: Group, now_ms: int, lease_id: int) -> None:
        for offset in group.held_by(lease_id):
            self._fail(group, now_ms, offset, 0)
        del group.leases[lease_id]

    def tick(self, now_ms: int) -> None:
        for group in self.works():
            for lease_id, lease in list(group.leases.items()):
                if lease.deadline_ms <= now_ms:
                    self._end_lease(group, now_ms, lease_id)
            if group.active is not None and group.active_until_ms <= now_ms and not group.leases:
                group.active = None

    # Administration ---------------------------------------------------------------------------------------

    def seek(self, group: Group, offset: int) -> None:
        group.leases = {}
        if group.settings.kind == "stream":
            group.next = group.committed = offset
            group.handed = {}
            return
        for at in range(self.end):
            if at >= offset:
                group.notes[at] = Note()
            elif at in group.notes and group.notes[at].state != "dead":
                group.notes[at].state = "done"
        group.start = min(group.start, offset)

    def purge(self, group: Group) -> int:
        purged = [offset for offset in group.offsets("pending") if self.records[offset].visible]
        for offset in purged:
            group.notes[offset].state = "done"
        return len(purged)

    def redrive(self, group: Group, ranges: Sequence[tuple[int, int]]) -> int:
        dead = [offset for offset in self._dead_in(group, ranges) if self.records[offset].visible]
        for offset in dead:
            group.notes[offset] = Note(due=(0, 0), anew=True)
        return len(dead)

    def purge_dead(self, group: Group, ranges: Sequence[tuple[int, int]]) -> int:
        dead = self._dead_in(group, ranges)
        for offset in dead:
            group.notes[offset].state = "done"
        return len(dead)

    def _dead_in(self, group: Group, ranges: Sequence[tuple[int, int]]) -> list[int]:
        return [offset for offset in group.offsets("dead") if any(start <= offset < end for start, end in ranges)]

    # Streams ----------------------------------------------------------------------------------------------

    def readable(self, group: Group, now_ms: int, first: int) -> list[int]:
        return [
            offset
            for offset in range(max(group.next, first), self.visible_end)
            if self.passes(group, offset) and not self.expired(group, offset, now_ms)
        ]

    def read(self, group: Group, consumer: str, offsets: Sequence[int], start: int, next_offset: int) -> None:
        """Offsets were read; with auto-commit, all that nobody still works on is committed by it."""
        group.next = next_offset
        if group.settings.auto_commit:
            group.handed.pop(consumer, None)
        if offsets:
            low = group.handed[consumer][0] if consumer in group.handed else start
            group.handed[consumer] = (min(low, start), next_offset)
        if group.settings.auto_commit:
            group.committed = min((low for low, _ in group.handed.values()), default=group.next)

    def commit(self, group: Group, offset: int) -> None:
        group.committed = offset
        group.next = max(group.next, offset)
        cut = {consumer: (max(low, offset), high) for consumer, (low, high) in group.handed.items()}
        group.handed = {consumer: (low, high) for consumer, (low, high) in cut.items() if low < high}

    # What is kept -----------------------------------------------------------------------------------------

    def watermark(self, group: Group) -> int:
        return min(group.offsets("pending", "leased"), default=self.end)

    def needed_from(self, has_limits: bool) -> int:
        """The lowest offset that anyone still needs, of what is visible."""
        lows = [self.visible_end, *self.pins]
        for group in self.groups.values():
            if group.settings.kind == "work":
                lows += group.offsets("pending", "leased", "dead")[:1]
            elif group.settings.holds or not has_limits:
                lows.append(group.committed)
        return min(lows)

    # Agreement with the core ------------------------------------------------------------------------------

    def reconcile(self, group: Group, now_ms: int, seen: dict[int, tuple[State, int, str]]) -> None:
        """Check the core's state of each message; adopt what it found expired or filtered out."""
        for offset, note in group.notes.items():
            state, attempts, reason = seen.get(offset, ("done", 0, ""))
            if note.state == "pending" and state in ("done", "dead"):
                self._adopt(group, now_ms, offset, state, reason)
            assert state == note.state, f"{offset} is {state}, not {note.state}"
            assert state == "done" or attempts == note.attempts, f"{offset} has {attempts} attempts: {note}"
            assert state != "dead" or reason == note.reason, f"{offset} died of {reason}, not of {note.reason}"
        assert all(offset in group.notes for offset in seen), "the core knows offsets that were never in this group"

    def _adopt(self, group: Group, now_ms: int, offset: int, state: State, reason: str) -> None:
        assert self.records[offset].visible, f"{offset} was decided on before its commit"
        if not self.passes(group, offset):
            assert state == "done", f"{offset} does not pass the filter and is {state}"
        else:
            assert self.expired(group, offset, now_ms), f"{offset} is {state} and had not expired"
            assert state == ("dead" if group.settings.expired == "dead" else "done")
        group.notes[offset].state, group.notes[offset].reason = state, reason
