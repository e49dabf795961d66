"""A lane: one ordered log with dense offsets, and the state of every group on it.

The owner's copy of the truth. Commands change it at once; `seal` gathers what they changed into one
`LaneChange`; the node commits that and calls `committed`, after which what was published can be claimed. If a
commit fails the lane is thrown away and loaded again: nothing here is ever undone. No clock, no I/O.
Next stop: `node/commit/loop.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.batch import EncodedBatch, Meta, encode, select
from penstock.core.dedup import Dedup, dedup_key
from penstock.core.events import Event
from penstock.core.group.settings import Settings
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.log import Log
from penstock.model import Message, QueueConfig
from penstock.model.errors import NotFound, QueueFull, WrongKind
from penstock.model.rows import BatchHead, BatchRow, DeadRow, DedupRow, LaneChange, LaneImage

ROW_MESSAGES_MAX = 1_024
ROW_BYTES_MAX = 1024 * 1024
"""Messages published one by one are stored together up to these; a producer's own batch is stored as it came."""

DONE_MARKS_MAX = 1_024
"""About so many times in the past a lane remembers how far all was done, for `keep_done_ms`."""

Group = WorkGroup | StreamGroup
_LISTS = [name for name in LaneChange.__struct_fields__ if name not in ("lane", "first", "end", "bytes_end", "trim_to")]


class Appended(msgspec.Struct, frozen=True):
    """Where messages went: `count` of them from `base` on; `duplicates` maps an index to the first offset."""

    base: int
    count: int
    duplicates: dict[int, int] = {}

    def offsets(self) -> list[int]:
        """The offset of each message published, in order; of a duplicate the offset it was first given."""
        if not self.duplicates:
            return list(range(self.base, self.base + self.count))
        result: list[int] = []
        following = self.base
        for index in range(self.count + len(self.duplicates)):
            if index in self.duplicates:
                result.append(self.duplicates[index])
            else:
                result.append(following)
                following += 1
        return result

    def slice(self, start: int, end: int) -> Appended:
        """The same of the messages from one index to another."""
        if not self.duplicates:
            return Appended(self.base + start, end - start)
        inside = {index - start: offset for index, offset in self.duplicates.items() if start <= index < end}
        before = sum(index < start for index in self.duplicates)
        return Appended(self.base + start - before, end - start - len(inside), inside)


class Sealed(msgspec.Struct):
    """What a lane puts into a commit, with what the node must do about it."""

    change: LaneChange
    died: list[tuple[int, DeadRow]]
    """(group, row) of messages that died and have a `dead_letter_to`."""
    events: list[tuple[int, list[Event]]]
    """(group, events)"""
    dedup_count: int
    trimmed_from: int
    """Where the log began before this; what lies between it and the change's `first` is gone."""


def _is_empty(change: LaneChange) -> bool:
    if change.batches or change.groups or change.leases or change.leases_deleted:  # what most have
        return False
    return (
        change.trim_to is None and change.dedup_expired_ms is None and not any(getattr(change, name) for name in _LISTS)
    )


class Lane:
    """One lane in memory."""

    __slots__ = ("bytes_end", "config", "dedup", "dedup_expired_ms", "dirty", "done_marks", "done_to", "end", "first",
                 "groups", "groups_deleted", "id", "log", "parts", "parts_bytes", "pins", "published_ms", "rows",
                 "sealed_end", "sealed_first", "trim_to", "trim_wants", "visible_end")  # fmt: skip

    def __init__(self, image: LaneImage, config: QueueConfig, groups: Mapping[int, Settings]) -> None:
        self.id = image.lane
        self.config = config
        self.first = self.sealed_first = image.first
        self.end = self.sealed_end = self.visible_end = image.end
        self.bytes_end = image.bytes_end
        self.published_ms = max(image.published_ms, 1)
        self.log = Log()
        self.dedup = Dedup(image.dedup, image.dedup_complete)
        self.parts: list[Message | EncodedBatch] = []
        self.parts_bytes = 0
        self.rows: list[BatchRow] = []
        """What is encoded, and not sealed yet."""
        self.pins: dict[int, int] = {}
        self.trim_to: int | None = None
        self.trim_wants: int | None = None
        """The offset whose head must be fed before more can be trimmed."""
        self.dedup_expired_ms: int | None = None
        self.done_marks: list[tuple[int, int]] = []
        self.done_to = image.first
        self.groups_deleted: list[int] = []
        self.dirty = False
        self.groups: dict[int, Group] = {}
        for row in image.groups:
            if row.group in groups:
                self._make_group(row.group, groups[row.group], row.next, row.committed)
        for group in self.groups.values():
            if isinstance(group, WorkGroup):
                group.load(image)

    # Groups -----------------------------------------------------------------------------------------------

    def _make_group(self, id: int, settings: Settings, next_offset: int, committed: int) -> Group:
        group: Group
        if settings.kind == "stream":
            group = StreamGroup(id, settings, self, committed)
        else:
            group = WorkGroup(id, settings, self, next_offset)
        self.groups[id] = group
        return group

    def add_group(self, id: int, settings: Settings, start: int) -> None:
        """A new group that begins at an offset (no lower than what is kept)."""
        group = self._make_group(id, settings, max(start, self.first), max(start, self.first))
        group.cursor_dirty = True
        self.dirty = True

    def remove_group(self, id: int) -> None:
        if self.groups.pop(id, None) is not None:
            self.groups_deleted.append(id)
            self.dirty = True

    def configure(self, config: QueueConfig, groups: Mapping[int, Settings]) -> None:
        """New settings, in force from the next command on; the order of a group cannot change."""
        self.config = config
        for id, settings in groups.items():
            if id in self.groups:
                group = self.groups[id]
                group.settings = settings
                if isinstance(group, WorkGroup):
                    group.waiting.debounced = settings.debounce_ms > 0

    def work(self, id: int) -> WorkGroup:
        """A work group; raises if there is none, or it is a stream."""
        group = self._group(id)
        if not isinstance(group, WorkGroup):
            raise WrongKind("this group is a stream: read and commit it; claims and settles are for work groups")
        return group

    def stream(self, id: int) -> StreamGroup:
        """A stream group; raises if there is none, or it is a work group."""
        group = self._group(id)
        if not isinstance(group, StreamGroup):
            raise WrongKind("this is a work group: claim and settle it; reads and commits are for stream groups")
        return group

    def _group(self, id: int) -> Group:
        group = self.groups.get(id)
        if group is None:
            raise NotFound(f"group {id} is not on lane {self.id}")
        return group

    def works(self) -> list[WorkGroup]:
        return [group for group in self.groups.values() if isinstance(group, WorkGroup)]

    # Append -----------------------------------------------------------------------------------------------

    def check_room(self, count: int, size: int) -> None:
        """Raise `QueueFull` if so many messages of so many bytes cannot be taken under the queue's limits.

        Changes nothing; raises `Missing` when heads are needed to know.
        """
        config = self.config
        if config.max_length is not None and config.overflow == "reject":
            backlog = max((group.backlog() for group in self.works()), default=0)
            if backlog + count > config.max_length:
                raise QueueFull(
                    f"{count} more messages on {backlog} waiting would pass max_length {config.max_length}; "
                    "consume some first, or choose another overflow policy"
                )
        if config.max_bytes is not None:
            floor = self._floor_work()
            held = self._bytes_from(floor)  # with any policy: a drop begins there, and must not ask for heads
            fixed = held if config.overflow == "reject" else self._bytes_from(self._floor_fixed())
            if fixed + size > config.max_bytes:
                raise QueueFull(
                    f"{size} more bytes on {fixed} held would pass max_bytes {config.max_bytes}; "
                    "consume some first, or choose another overflow policy"
                )

    def _floor_work(self) -> int:
        """The lowest offset that a work group has not settled; dead letters do not count."""
        return min((group.watermark() for group in self.works()), default=self.end)

    def _floor_fixed(self) -> int:
        """As far as the oldest messages could be dropped: up to the lowest lease."""
        lows = [group.leases.lowest() for group in self.works()]
        return min((low for low in lows if low is not None), default=self.end)

    def _bytes_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds an offset on, with what is not sealed yet."""
        if offset >= self.sealed_end:
            return self.parts_bytes
        segment = self.log.find(offset)
        return self.bytes_end - segment.bytes_end + segment.size + self.parts_bytes

    def lag_bytes(self) -> int:
        """Bytes of what is sealed that even the group furthest ahead has not come to; 0 where that is not known."""
        foremost = max([group.next for group in self.groups.values()], default=self.sealed_end)
        segment = None if foremost >= self.sealed_end else self.log.look(foremost)
        return 0 if segment is None else self.bytes_end - segment.bytes_end

    def append(
        self,
        now_ms: int,
        messages: Sequence[Message],
        stored: dict[bytes, DedupRow] | None = None,
        asked_ms: int | None = None,
    ) -> Appended:
        """Messages at the end of the lane, those published before under their dedup id left out.

        `asked_ms` is when they were published, if that was not now: an id that counted then counts.
        """
        duplicates: dict[int, int] = {}
        kept: list[Message] = []
        base, size = self.end, 0
        for index, message in enumerate(messages):
            if message.dedup_id is not None and self.config.dedup_window_ms:
                first = self._dedup(now_ms, message.partition, message.dedup_id, base + len(kept), stored, asked_ms)
                if first is not None:
                    duplicates[index] = first
                    continue
            kept.append(message)
            size += len(message.payload)
        self.parts.extend(kept)
        self._grew(now_ms, len(kept), size)
        return Appended(base, len(kept), duplicates)

    def append_batch(
        self,
        now_ms: int,
        batch: EncodedBatch,
        meta: Meta | None,
        stored: dict[bytes, DedupRow] | None = None,
        asked_ms: int | None = None,
    ) -> Appended:
        """An encoded batch at the end of the lane, stored as it is unless some of it is a duplicate."""
        duplicates: dict[int, int] = {}
        base = self.end
        if meta is not None and meta.dedup_id is not None and self.config.dedup_window_ms:
            for index, id in enumerate(meta.dedup_id):
                if id is None:
                    continue
                partition = None if meta.partition is None else meta.partition[index]
                first = self._dedup(now_ms, partition, id, base + index - len(duplicates), stored, asked_ms)
                if first is not None:
                    duplicates[index] = first
        if len(duplicates) == batch.count:
            return Appended(base, 0, duplicates)
        if duplicates:
            batch = select(batch, [index for index in range(batch.count) if index not in duplicates])
        self.parts.append(batch)
        self._grew(now_ms, batch.count, batch.size)
        return Appended(base, batch.count, duplicates)

    def _dedup(
        self,
        now_ms: int,
        partition: str | None,
        id: str,
        offset: int,
        stored: dict[bytes, DedupRow] | None,
        asked_ms: int | None,
    ) -> int | None:
        """The offset of the first message under this id; None, and remembered, if this is the first."""
        key = dedup_key(partition, id)
        first = self.dedup.find(key, now_ms if asked_ms is None else asked_ms, stored)
        if first is None:
            self.dedup.add(DedupRow(key, offset, now_ms + self.config.dedup_window_ms))
            self.dirty = True
        return first

    def name_publish(self, now_ms: int, key: bytes, base: int) -> None:
        """What was appended from `base` on is known by a key from now on: one row, however many messages."""
        if self.config.dedup_window_ms:
            self.dedup.add(DedupRow(key, base, now_ms + self.config.dedup_window_ms))
            self.dirty = True

    def published_before(
        self,
        now_ms: int,
        first: int,
        ids: Sequence[tuple[str | None, str | None]],
        stored: dict[bytes, DedupRow] | None,
    ) -> Appended:
        """Where the messages of a publish went that began at `first`; `ids` are (partition, dedup id) of each.

        Those that were duplicates by their own id then took no offset there, and are found by it now.
        """
        duplicates: dict[int, int] = {}
        following = first
        for index, (partition, id) in enumerate(ids):
            own = None if id is None else self.dedup.find(dedup_key(partition, id), now_ms, stored)
            duplicates[index] = following if own is None else own
            following += own is None or own == following
        return Appended(first, 0, duplicates)

    def _grew(self, now_ms: int, count: int, size: int) -> None:
        if not count:
            return
        self.end += count
        self.parts_bytes += size
        self.dirty = True
        config = self.config
        if config.overflow != "reject":
            dead = config.overflow == "dead_letter_oldest"
            if config.max_length is not None:
                for group in self.works():
                    group.drop_oldest(now_ms, group.backlog() - config.max_length, dead=dead)
            if config.max_bytes is not None:
                self._drop_bytes(now_ms, config.max_bytes, dead)

    def _drop_bytes(self, now_ms: int, most: int, dead: bool) -> None:
        """Drop whole batches from the low end until the rest fits, as far as their heads are in memory.

        `check_room` saw that it can fit. What is left over because heads are missing goes with the next publishes.
        """
        floor = self._floor_work()
        while floor < self.sealed_end and (segment := self.log.peek(floor)) is not None:
            if self.bytes_end - segment.bytes_end + segment.size + self.parts_bytes <= most:
                break
            for group in self.works():
                group.drop_below(now_ms, segment.end, dead=dead)
            if floor == (floor := self._floor_work()):
                break

    # Seal and commit --------------------------------------------------------------------------------------

    def seal(self, now_ms: int) -> Sealed | None:
        """All that changed since the last seal, as one commit's part; None if nothing did."""
        if not self.dirty:
            return None
        change = LaneChange(self.id, self.first, self.end, self.bytes_end)
        self._encode_parts(now_ms)
        change.batches, self.rows = self.rows, []
        sealed = Sealed(change, [], [], 0, self.sealed_first)
        for group in self.groups.values():
            group.seal(change)
            if group.events.by_key:
                sealed.events.append((group.id, group.events.seal()))
            if isinstance(group, WorkGroup) and group.died:
                sealed.died += [(group.id, row) for row in group.died]
                group.died = []
        self._trim(now_ms)
        self.dirty = False  # not before: trimming is a change, and part of this one
        change.dedup = self.dedup.seal()
        sealed.dedup_count = len(change.dedup)
        change.dedup_expired_ms, self.dedup_expired_ms = self.dedup_expired_ms, None
        change.groups_deleted, self.groups_deleted = self.groups_deleted, []
        change.trim_to, self.trim_to = self.trim_to, None
        change.first, change.bytes_end = self.first, self.bytes_end
        self.sealed_first = self.first
        return sealed if sealed.events or sealed.died or not _is_empty(change) else None

    def show_all(self, now_ms: int) -> int:
        """Let claims see what is about to be sealed: they are sealed with it. Where what all may see ends is returned,
        to be put back into `visible_end` before anything else can look.
        """
        self._encode_parts(now_ms)
        visible_end, self.visible_end = self.visible_end, self.end
        return visible_end

    def _encode_parts(self, now_ms: int) -> None:
        if not self.parts:
            return
        parts, self.parts, self.parts_bytes = self.parts, [], 0
        self.published_ms = max(self.published_ms, now_ms)
        rows = self.rows
        singles: list[Message] = []
        size = 0
        for part in parts:
            if isinstance(part, Message):
                if singles and (len(singles) >= ROW_MESSAGES_MAX or size + len(part.payload) > ROW_BYTES_MAX):
                    rows.append(self._row(encode(singles)))
                    singles, size = [], 0
                singles.append(part)
                size += len(part.payload)
            else:
                if singles:
                    rows.append(self._row(encode(singles)))
                    singles, size = [], 0
                rows.append(self._row(part))
        if singles:
            rows.append(self._row(encode(singles)))

    def _row(self, batch: EncodedBatch) -> BatchRow:
        self.bytes_end += batch.size
        row = BatchRow(self.sealed_end, batch.count, self.published_ms, self.bytes_end, batch.meta, batch.body)
        self.sealed_end += batch.count
        head = BatchHead(row.base, row.count, row.published_ms, row.bytes_end, batch.size, batch.meta)
        self.log.append(head, self.visible_end)
        return row

    def committed(self, sealed: Sealed) -> None:
        """The commit is durable: what it published can be claimed now."""
        self.visible_end = sealed.change.end
        self.dedup.committed(sealed.dedup_count)

    # Retention --------------------------------------------------------------------------------------------

    def has_limits(self) -> bool:
        config = self.config
        return config.retain_ms is not None or config.retain_bytes is not None or config.retain_messages is not None

    def needed_from(self) -> int:
        """The lowest offset that must be kept, whatever the limits say."""
        limited = self.has_limits()
        lowest = self.visible_end
        for group in self.groups.values():
            if isinstance(group, WorkGroup) or group.settings.holds or not limited:
                lowest = min(lowest, group.needed_from())
        return min(lowest, *self.pins) if self.pins else lowest

    def _trim(self, now_ms: int) -> None:
        """Without limits, a log of work groups ends where the slowest of them stands, `keep_done_ms` later."""
        is_kept = self.config.stream or self.has_limits() or not self.works()
        if is_kept or not self.config.keep_done_ms:
            self.done_marks.clear()
        if is_kept:
            return
        target = self.needed_from()
        if self.config.keep_done_ms:
            target = self._kept_long_enough(now_ms, target)
        if target > self.first:
            self._trim_to(target)

    def _kept_long_enough(self, now_ms: int, needed_from: int) -> int:
        """How far all was done `keep_done_ms` ago. A restart begins anew: kept longer, never shorter.

        Progress within one part in DONE_MARKS_MAX of that span is one mark, of its latest time.
        """
        marks, keep_ms = self.done_marks, self.config.keep_done_ms
        while marks and marks[-1][1] > needed_from:  # a seek made it new again
            marks.pop()
        grain_ms = keep_ms // DONE_MARKS_MAX + 1
        if needed_from > (marks[-1][1] if marks else max(self.first, self.done_to)):
            if marks and marks[-1][0] // grain_ms == now_ms // grain_ms:
                marks.pop()
            marks.append((now_ms, needed_from))
        self._pass_marks(now_ms)
        self.done_to = min(self.done_to, needed_from)
        return self.done_to

    def _pass_marks(self, now_ms: int) -> None:
        """Marks that were kept long enough become what may go with the next commit."""
        while self.done_marks and self.done_marks[0][0] + self.config.keep_done_ms <= now_ms:
            self.done_to = self.done_marks.pop(0)[1]

    def _trim_to(self, target: int) -> None:
        """Let go of the batches that end at or below an offset, as far as their bounds are known."""
        if target >= self.visible_end:
            base = self.visible_end
        else:
            segment = self.log.peek(target)
            self.trim_wants = None if segment is not None else target
            if segment is None:
                return
            base = segment.base
        if base > self.first:
            self.first = self.trim_to = base
            self.log.forget_before(base)
            self.dirty = True

    def trim_again(self) -> None:
        """The heads that `trim_wants` asked for are in memory: let the next seal trim."""
        self.trim_wants = None
        self.dirty = True

    def trim_by_limits(self, now_ms: int, heads: Sequence[BatchHead]) -> bool:
        """Let go of the oldest batches past the queue's limits; `heads` begin at `first`. Whether any went."""
        config, needed_from, target = self.config, self.needed_from(), self.first
        for head in heads:
            too_old = config.retain_ms is not None and head.published_ms + config.retain_ms <= now_ms
            too_big = config.retain_bytes is not None and self.bytes_end - head.bytes_end >= config.retain_bytes
            too_many = config.retain_messages is not None and self.visible_end - head.end >= config.retain_messages
            if head.base != target or head.end > needed_from or not (too_old or too_big or too_many):
                break
            target = head.end
        if target == self.first:
            return False
        self.first = self.trim_to = target
        self.log.forget_before(target)
        self.dirty = True
        return True

    def pin(self, offset: int) -> None:
        """Keep batches from this offset on while somebody reads them."""
        self.pins[offset] = self.pins.get(offset, 0) + 1

    def unpin(self, offset: int) -> None:
        left = self.pins[offset] - 1
        if left:
            self.pins[offset] = left
        else:
            del self.pins[offset]
            self.dirty = True  # what it held may go with the next commit

    def is_idle(self) -> bool:
        """Nothing is under way: no change to seal, no timer to mind, nothing that a reload would not bring back."""
        return (
            not (self.dirty or self.pins or self.done_marks or self.dedup.by_key or self.dedup.questions)
            and self.dedup.complete
            and self.visible_end == self.end
            and not (self.has_limits() and self.first < self.end)
            and all(isinstance(group, WorkGroup) and group.is_idle() for group in self.groups.values())
        )

    # Time -------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When `tick` has something to do next."""
        due_ms = self.done_marks[0][0] + self.config.keep_done_ms if self.done_marks else None
        for group in self.groups.values():
            time_ms = group.next_due_ms()
            if time_ms is not None and (due_ms is None or time_ms < due_ms):
                due_ms = time_ms
        return due_ms

    def tick(self, now_ms: int) -> None:
        """Do what is due. Raises `Missing` where heads must be read first; asking again goes on from there."""
        for group in self.groups.values():
            if isinstance(group, WorkGroup):
                due_ms = group.next_due_ms()
                if due_ms is not None and due_ms <= now_ms:
                    group.tick(now_ms)
        marks = len(self.done_marks)
        self._pass_marks(now_ms)
        self.dirty = self.dirty or len(self.done_marks) < marks

    def expire_dedup(self, now_ms: int) -> None:
        """Forget the ids that no longer count, here and in the store."""
        if self.dedup.expire(now_ms):
            self.dedup_expired_ms = now_ms
            self.dirty = True
