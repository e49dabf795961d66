"""A lane, its reference and a store of plain dicts, driven together: each command goes to both and must agree.

`Rig` is what a node is to a lane: it commits what is sealed, answers `Missing` from the store, and loads the lane
again after a crash. Every method is one command with its checks; `check` looks at the invariants of the design.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from penstock.batch import decode_meta, encode
from penstock.core.dedup import dedup_key
from penstock.core.group.settings import Settings
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane, Sealed
from penstock.core.log import Missing
from penstock.model import Message, QueueConfig
from penstock.model.errors import InvalidArgument, LeaseLost, QueueFull
from penstock.model.rows import (
    BatchHead,
    BatchRow,
    DeadRow,
    DedupRow,
    GroupRow,
    LaneChange,
    LaneImage,
    LeaseRow,
    WaitingRow,
)
from penstock.model.verdict import Verdict
from tests.model.reference import Group, Reference, State

Answer = TypeVar("Answer")
FEED_HEADS = 2
ASKS_MAX = 500


class DictStore:
    """What the store contract says of one lane, by dicts."""

    def __init__(self) -> None:
        self.first = self.end = self.bytes_end = 0
        self.batches: dict[int, BatchRow] = {}
        self.groups: dict[int, GroupRow] = {}
        self.leases: dict[tuple[int, int], LeaseRow] = {}
        self.waiting: dict[tuple[int, int], WaitingRow] = {}
        self.dead: dict[tuple[int, int], DeadRow] = {}
        self.dedup: dict[bytes, DedupRow] = {}

    def apply(self, change: LaneChange) -> None:
        self.first, self.end, self.bytes_end = change.first, change.end, change.bytes_end
        for group in change.groups_deleted:
            self.groups.pop(group, None)
            self.leases = {key: row for key, row in self.leases.items() if key[0] != group}
            self.waiting = {key: row for key, row in self.waiting.items() if key[0] != group}
            self.dead = {key: row for key, row in self.dead.items() if key[0] != group}
        for key in change.leases_deleted:
            del self.leases[key]
        for key in change.waiting_deleted:
            del self.waiting[key]
        for key in change.dead_deleted:
            del self.dead[key]
        if change.dedup_expired_ms is not None:
            limit = change.dedup_expired_ms
            self.dedup = {key: row for key, row in self.dedup.items() if row.expires_ms > limit}
        self.groups |= {row.group: row for row in change.groups}
        self.leases |= {(row.group, row.lease): row for row in change.leases}
        self.waiting |= {(row.group, row.chunk): row for row in change.waiting}
        self.dead |= {(row.group, row.start): row for row in change.dead}
        self.dedup |= {row.key: row for row in change.dedup}
        for row in change.batches:
            assert row.base == max((batch.end for batch in self.batches.values()), default=row.base), "a gap in the log"
            self.batches[row.base] = row
        if change.trim_to is not None:
            self.batches = {base: row for base, row in self.batches.items() if row.end > change.trim_to}
        bases = sorted(self.batches)
        assert not bases or (bases[0] == self.first and self.batches[bases[-1]].end == self.end)
        assert bases or self.first == self.end

    def image(self, dedup_most: int) -> LaneImage:
        ids = sorted(self.dedup.values(), key=lambda row: (row.expires_ms, row.key))
        return LaneImage(
            lane=7,
            first=self.first,
            end=self.end,
            bytes_end=self.bytes_end,
            groups=list(self.groups.values()),
            leases=list(self.leases.values()),
            waiting=list(self.waiting.values()),
            dead=list(self.dead.values()),
            dedup=ids[max(0, len(ids) - dedup_most) :],
            dedup_complete=len(ids) <= dedup_most,
        )

    def heads(self, start: int, most: int) -> list[BatchHead]:
        return [self.batches[base].head() for base in sorted(self.batches) if self.batches[base].end > start][:most]


class InFlight:
    """A commit that was sealed and is not yet durable."""

    def __init__(self, sealed: Sealed, reference: bytes, state: object, at_ms: int) -> None:
        self.sealed = sealed
        self.reference = reference
        self.state = state
        self.at_ms = at_ms


class Rig:
    """A lane under test."""

    def __init__(self, config: QueueConfig, groups: dict[int, Settings], *, dedup_most: int, window: bool) -> None:
        self.now_ms = 1_000_000
        self.config = config
        self.settings = groups
        self.dedup_most = dedup_most
        self.window = window
        """Whether the window of parked messages is so small that claims may come back empty-handed."""
        self.store = DictStore()
        self.reference = Reference(config)
        self.durable = self.reference.snapshot()
        self.in_flight: InFlight | None = None
        self.lease_ids = 0
        self.rows: list[BatchRow] = []
        self.needed: list[tuple[int, int]] = []
        self.lane = Lane(LaneImage(7), config, {})
        for group, settings in groups.items():
            self.lane.add_group(group, settings, 0)
            self.reference.add_group(group, settings, 0)
        self.flush()

    # The node's part --------------------------------------------------------------------------------------

    def ask(self, command: Callable[[], Answer]) -> Answer:
        """Carry out a command; where heads are missing, read them from the store and ask again."""
        for _ in range(ASKS_MAX):
            try:
                return command()
            except Missing as missing:
                self._feed(missing.start)
        raise AssertionError("the same heads are asked for again and again")

    def _feed(self, start: int) -> None:
        heads = self.store.heads(start, FEED_HEADS)
        assert heads, f"the store has no heads from {start} on"
        assert heads[0].base <= start, f"the store has trimmed {start}"
        self.lane.log.feed(heads)

    def work(self, group: int) -> tuple[WorkGroup, Group]:
        return self.lane.work(group), self.reference.groups[group]

    def stream(self, group: int) -> tuple[StreamGroup, Group]:
        return self.lane.stream(group), self.reference.groups[group]

    def seal(self) -> None:
        """Begin a commit; one at a time."""
        if self.in_flight is not None:
            return
        self.check()
        needed = self.reference.needed_from(self.lane.has_limits)
        while self.needed and self.needed[-1][1] > needed:
            self.needed.pop()
        self.needed.append((self.now_ms, needed))
        first = self.lane.first
        sealed = self.lane.seal(self.now_ms)
        if sealed is None:
            assert not any(not record.published_ms for record in self.reference.records), "a publish was not sealed"
            assert self.lane.first == first
            return
        self.reference.seal(self.now_ms)
        self.rows += sealed.change.batches
        self._check_trim(first, needed)
        self.in_flight = InFlight(sealed, self.reference.snapshot(), canonical(self.lane, self.now_ms), self.now_ms)

    def _check_trim(self, first: int, needed: int) -> None:
        lane = self.lane
        assert lane.first <= max(first, needed), "trimmed what somebody needs"
        if lane.has_limits or not lane.works():
            return
        if self.config.keep_done_ms:
            since = [time for time, done in self.needed if done >= lane.first]
            assert lane.first == first or min(since) + self.config.keep_done_ms <= self.now_ms, "trimmed too early"
        elif needed >= lane.visible_end or lane.log.peek(needed) is not None:
            base = needed if needed >= lane.visible_end else next(r.base for r in self.rows if r.base <= needed < r.end)
            assert lane.first == max(first, base), "kept what nobody needs"

    def commit(self) -> None:
        """The commit under way becomes durable: the image of the store is the lane as it was sealed."""
        if self.in_flight is None:
            return
        flight, self.in_flight = self.in_flight, None
        self.store.apply(flight.sealed.change)
        self.durable = flight.reference
        self.lane.committed(flight.sealed)
        self.reference.committed(flight.sealed.change.end)
        loaded = Lane(self.store.image(self.dedup_most), self.config, self.settings)
        assert canonical(loaded, flight.at_ms) == flight.state, "the store's image is not the lane that was sealed"

    def flush(self) -> None:
        self.commit()
        self.seal()
        self.commit()

    def crash(self, *, durable: bool) -> None:
        """The node dies; a commit under way was durable or not. Then the lane is loaded again."""
        if self.in_flight is not None and durable:
            self.store.apply(self.in_flight.sealed.change)
            self.durable = self.in_flight.reference
        self.in_flight = None
        self.reference = Reference.restored(self.durable)
        self.lane = Lane(self.store.image(self.dedup_most), self.config, self.settings)
        self.rows = list(self.store.batches.values())
        self.needed = []
        self.settings = {group: self.settings[group] for group in self.reference.groups}
        for group in list(self.settings):  # options may have changed since that snapshot
            self.reference.groups[group].settings = self.settings[group]

    # Publishing -------------------------------------------------------------------------------------------

    def publish(self, messages: list[Message], *, encoded: bool) -> None:
        batch = encode(messages)
        size = batch.size if encoded else sum(len(message.payload) for message in messages)
        full = self._is_full(len(messages), size)
        try:
            self.ask(lambda: self.lane.check_room(len(messages), size))
        except QueueFull:
            assert full, "refused, though there is room"
            return
        assert not full, "not refused, though there is no room"
        stored = None if self.lane.dedup.complete else self.store.dedup
        if encoded:
            appended = self.lane.append_batch(self.now_ms, batch, decode_meta(batch.meta, batch.count), stored)
        else:
            appended = self.lane.append(self.now_ms, messages, stored)
        end = self.reference.end
        assert appended.offsets() == self.reference.append(self.now_ms, messages)
        if self.reference.end > end:
            self.reference.drop_over_length()
            self._drop_bytes()

    def _bytes_from(self, offset: int) -> int:
        parts = self.lane.parts
        unsealed = sum(len(part.payload) if isinstance(part, Message) else part.size for part in parts)
        return unsealed + sum(row.size for row in self.rows if row.end > offset)

    def _is_full(self, count: int, size: int) -> bool:
        config, reference = self.config, self.reference
        if config.max_length is not None and config.overflow == "reject":
            backlog = max((reference.backlog(group) for group in reference.works()), default=0)
            if backlog + count > config.max_length:
                return True
        if config.max_bytes is None:
            return False
        states: list[State] = ["leased"] if config.overflow != "reject" else ["leased", "pending"]
        lows = [offset for group in reference.works() for offset in group.offsets(*states)]
        return self._bytes_from(min(lows, default=reference.end)) + size > config.max_bytes

    def _drop_bytes(self) -> None:
        """Follow the core in dropping whole batches; it may stop early only where heads are not in memory."""
        config, reference = self.config, self.reference
        if config.max_bytes is None or config.overflow == "reject":
            return
        sealed_end = self.rows[-1].end if self.rows else 0
        while True:
            floor = min((reference.watermark(group) for group in reference.works()), default=reference.end)
            if floor >= sealed_end or self._bytes_from(floor) <= config.max_bytes:
                return
            end = next(row.end for row in self.rows if row.base <= floor < row.end)
            left = min((group.watermark() for group in self.lane.works()), default=0)
            if left == floor:
                leased = any(floor in group.offsets("leased") for group in reference.works())
                assert leased or self.lane.log.peek(floor) is None, "the oldest were not dropped"
            if left == floor and not any(floor in group.offsets("leased") for group in reference.works()):
                return
            for group in reference.works():
                for offset in group.offsets("pending"):
                    if offset < end:
                        reference.overflow(group.notes[offset])
            if floor == min((reference.watermark(group) for group in reference.works()), default=reference.end):
                return

    # Work groups ------------------------------------------------------------------------------------------

    def claim(
        self,
        group: int,
        most: int,
        consumer: str,
        lease_ms: int | None,
        partition: str | None,
        settle: bool,
        minimum: int = 1,
    ) -> list[int]:
        core, noted = self.work(group)
        self.lease_ids += 1
        lease_id = self.lease_ids
        entries = self.ask(
            lambda: core.claim(
                self.now_ms,
                most,
                consumer,
                lease_id,
                lease_ms=lease_ms,
                partition=partition,
                settle=settle,
                minimum=minimum,
            )
        )
        claimed = [offset for entry in entries for offset in range(entry.start, entry.end)]
        attempts = {offset: entry.attempts for entry in entries for offset in range(entry.start, entry.end)}
        room = self.reference.room(noted, self.now_ms, most, consumer)
        unread = core.next < self.lane.visible_end and self.lane.log.peek(core.next) is None
        assert not claimed or len(claimed) >= minimum, "fewer than asked for at the least"
        cut_short = (bool(claimed) and unread) or self.window
        if claimed or room < minimum or minimum <= 1:
            room = 0 if room < minimum else room
            self.reference.check_claim(noted, self.now_ms, room, claimed, partition, cut_short=cut_short)
        elif not (noted.settings.ordered or cut_short):
            self.reference.check_fewer(noted, self.now_ms, minimum)
        if noted.settings.prioritized and not noted.settings.ordered:
            in_turn = sorted(claimed, key=lambda offset: (-self.reference.priority(noted, offset), offset))
            assert claimed == in_turn, "not in the order of priority"
        span = noted.settings.lease_ms if lease_ms is None else lease_ms
        self.reference.take(noted, claimed, consumer, lease_id, self.now_ms + span, settle)
        assert all(attempts[offset] == noted.notes[offset].attempts for offset in claimed)
        return claimed

    def settle(self, group: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
        core, noted = self.work(group)
        core.settle(self.now_ms, lease_id, verdicts)
        self.reference.settle(noted, self.now_ms, lease_id, verdicts)

    def settle_wrongly(self, group: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
        """Verdicts that must be refused, and change nothing."""
        core, _ = self.work(group)
        before = canonical(self.lane, 0)
        with pytest.raises((LeaseLost, InvalidArgument)):
            core.settle(self.now_ms, lease_id, verdicts)
        assert canonical(self.lane, 0) == before

    def extend(self, group: int, lease_id: int, lease_ms: int) -> None:
        core, noted = self.work(group)
        assert core.extend(self.now_ms, lease_id, lease_ms) == self.now_ms + lease_ms
        self.reference.extend(noted, self.now_ms, lease_id, lease_ms)

    def consumer_left(self, group: int, consumer: str) -> None:
        core = self.lane.groups[group]
        core.consumer_left(self.now_ms, consumer)
        self.reference.consumer_left(self.reference.groups[group], self.now_ms, consumer)

    def tick(self) -> None:
        self.ask(lambda: self.lane.tick(self.now_ms))
        self.reference.tick(self.now_ms)
        for core in self.lane.works():
            for entry in core.waiting.by_start.values():
                assert not entry.expires_ms or entry.expires_ms > self.now_ms, "expired and still waiting after a tick"
        if not self.lane.done_marks:  # those go with the next seal
            due_ms = self.lane.next_due_ms()
            assert due_ms is None or due_ms > self.now_ms, "a tick leaves something due behind"

    def seek(self, group: int, offset: int) -> None:
        core = self.lane.groups[group]
        core.seek(self.now_ms, offset)
        kept = min(max(offset, self.lane.first), self.lane.end)
        self.reference.seek(self.reference.groups[group], kept)

    def purge(self, group: int) -> None:
        core, noted = self.work(group)
        assert core.purge(self.now_ms) == self.reference.purge(noted)

    def redrive(self, group: int, ranges: list[tuple[int, int]]) -> None:
        core, noted = self.work(group)
        assert self.ask(lambda: core.redrive(self.now_ms, ranges)) == self.reference.redrive(noted, ranges)

    def purge_dead(self, group: int, ranges: list[tuple[int, int]]) -> None:
        core, noted = self.work(group)
        assert core.purge_dead(self.now_ms, ranges) == self.reference.purge_dead(noted, ranges)

    # Streams ----------------------------------------------------------------------------------------------

    def read(self, group: int, most: int, consumer: str) -> None:
        core, noted = self.stream(group)
        start = max(noted.next, self.lane.first)
        wanted = [] if noted.settings.paused else self.reference.readable(noted, self.now_ms, self.lane.first)[:most]
        ranges = self.ask(lambda: core.read(self.now_ms, most, consumer))
        offsets = [offset for low, high in ranges for offset in range(low, high)]
        if noted.settings.paused:
            assert offsets == []
            return
        assert offsets == wanted[: len(offsets)]
        assert offsets == wanted or (offsets and self.lane.log.peek(core.next) is None), "read less than there is"
        low = offsets[-1] + 1 if offsets else start
        rest = [offset for offset in self.reference.readable(noted, self.now_ms, 0) if offset >= low]
        assert low <= core.next <= (rest[0] if rest else max(start, self.lane.visible_end)), (
            "the cursor passed unread messages"
        )
        self.reference.read(noted, consumer, offsets, offsets[0] if offsets else start, core.next)

    def commit_stream(self, group: int, offset: int) -> None:
        core, noted = self.stream(group)
        if not 0 <= offset <= self.lane.visible_end:
            with pytest.raises(InvalidArgument):
                core.commit(self.now_ms, offset)
            return
        core.commit(self.now_ms, offset)
        self.reference.commit(noted, offset)

    # The lane ---------------------------------------------------------------------------------------------

    def configure(self, config: QueueConfig, groups: dict[int, Settings]) -> None:
        self.config = self.reference.config = config
        self.settings = self.settings | groups
        self.lane.configure(config, groups)
        for group, settings in groups.items():
            self.reference.groups[group].settings = settings

    def add_group(self, group: int, settings: Settings, start: int) -> None:
        self.settings = self.settings | {group: settings}
        self.lane.add_group(group, settings, start)
        self.reference.add_group(group, settings, max(start, self.lane.first))

    def remove_group(self, group: int) -> None:
        self.lane.remove_group(group)
        del self.reference.groups[group]

    def pin(self, offset: int) -> None:
        self.lane.pin(offset)
        self.reference.pins.append(offset)

    def unpin(self) -> None:
        offset = self.reference.pins.pop()
        self.lane.unpin(offset)

    def trim_by_limits(self) -> None:
        """Retention: what is past the limits and needed by nobody goes, oldest first, and nothing else."""
        lane, config, first = self.lane, self.config, self.lane.first
        if not lane.has_limits:
            return
        needed = self.reference.needed_from(True)
        gone = first
        rows = [row for row in self.rows if first <= row.base and row.end <= lane.visible_end]
        for row in rows:
            too_old = config.retain_ms is not None and self.now_ms - row.published_ms >= config.retain_ms
            newer = sum(other.size for other in self.rows if other.base > row.base)
            too_big = config.retain_bytes is not None and newer >= config.retain_bytes
            too_many = config.retain_messages is not None and lane.visible_end - row.end >= config.retain_messages
            if row.end > needed or not (too_old or too_big or too_many):
                break
            gone = row.end
        heads = [row.head() for row in rows]
        assert lane.trim_by_limits(self.now_ms, heads) == (gone > first)
        assert lane.first == gone

    def expire_dedup(self) -> None:
        self.lane.expire_dedup(self.now_ms)

    # Invariants -------------------------------------------------------------------------------------------

    def check(self) -> None:
        lane, reference = self.lane, self.reference
        lane.check()
        assert lane.end == reference.end
        assert lane.visible_end == reference.visible_end
        assert set(lane.groups) == set(reference.groups)
        self._check_dedup()
        for group_id, core in lane.groups.items():
            noted = reference.groups[group_id]
            if isinstance(core, WorkGroup):
                self._check_work(core, noted)
            else:
                assert (core.next, core.committed) == (noted.next, noted.committed)

    def _check_dedup(self) -> None:
        for (partition, name), (offset, expires_ms) in self.reference.ids.items():
            if expires_ms > self.now_ms:
                key = dedup_key(partition, name)
                assert self.lane.dedup.find(key, self.now_ms, self.store.dedup) == offset

    def _check_work(self, core: WorkGroup, noted: Group) -> None:
        seen = states_of(core)
        self._narrow(core, noted)
        self.reference.reconcile(noted, self.now_ms, seen)
        assert {id: (lease.consumer, lease.deadline_ms) for id, lease in core.leases.by_id.items()} == {
            id: (lease.consumer, lease.deadline_ms) for id, lease in noted.leases.items()
        }
        for id, lease in core.leases.by_id.items():
            assert [o for e in lease.entries for o in range(e.start, e.end)] == noted.held_by(id)
        assert core.watermark() == self.reference.watermark(noted)
        assert core.backlog() == self.reference.backlog(noted)
        self._check_timers(core)

    def _narrow(self, core: WorkGroup, noted: Group) -> None:
        """The times at which waiting messages come back: as the reference says, the jitter's choice adopted."""
        for entry in core.waiting.by_start.values():
            for offset in range(entry.start, entry.end):
                note = noted.notes[offset]
                low, high = self.reference.due(noted, offset)
                if entry.due_ms:
                    assert low <= entry.due_ms <= high, f"{offset} comes back at {entry.due_ms}, not {low} to {high}"
                    note.due = None if note.due is None else (entry.due_ms, entry.due_ms)
                else:
                    assert low <= self.now_ms, f"{offset} is ready before {low}"
                    note.due = None if note.due is None else (low, low)
                expires_ms = self.reference.expires_ms(noted, offset) or 0
                assert entry.expires_ms == expires_ms, f"{offset} expires at {entry.expires_ms}, not at {expires_ms}"

    def _check_timers(self, core: WorkGroup) -> None:
        times = [lease.deadline_ms for lease in core.leases.by_id.values()]
        times += [entry.expires_ms for entry in core.waiting.by_start.values() if entry.expires_ms]
        due_ms = core.next_due_ms()
        assert not times or (due_ms is not None and due_ms <= min(times)), "a timer would come too late"


def states_of(core: WorkGroup) -> dict[int, tuple[State, int, str]]:
    """Each offset that is not done, with its state, attempts and reason; an offset in two places is an error."""
    seen: dict[int, tuple[State, int, str]] = {}

    def see(start: int, end: int, state: State, attempts: int, reason: str = "") -> None:
        for offset in range(start, end):
            assert offset not in seen, f"{offset} is {state} and {seen[offset][0]}"
            seen[offset] = (state, attempts, reason)

    see(core.next, core.lane.end, "pending", 0)
    for lease in core.leases.by_id.values():
        for entry in lease.entries:
            see(entry.start, entry.end, "leased", entry.attempts)
    for entry in core.waiting.by_start.values():
        see(entry.start, entry.end, "pending", entry.attempts)
    for row in core.dead.by_start.values():
        see(row.start, row.end, "dead", row.attempts, row.reason)
    return seen


def canonical(lane: Lane, now_ms: int) -> object:
    """All of a lane that must survive a crash, as plain data; what was due by `now_ms` is due, whenever that was."""
    groups: dict[int, object] = {}
    for id, core in lane.groups.items():
        if isinstance(core, StreamGroup):
            groups[id] = core.committed
            continue
        groups[id] = (
            core.next,
            {id: (lease.consumer, lease.deadline_ms, list(lease.entries)) for id, lease in core.leases.by_id.items()},
            [entry.moved(entry.attempts, entry.due_ms * (entry.due_ms > now_ms)) for entry in core.waiting.in_order()],
            dict(core.dead.by_start),
        )
    return (lane.first, lane.sealed_end, lane.bytes_end, groups)
