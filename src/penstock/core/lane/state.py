"""The state of one lane, and its groups. The commands that change it are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.batch import EncodedBatch
from penstock.core.dedup import Dedup
from penstock.core.group.settings import Settings
from penstock.core.group.stream import StreamGroup
from penstock.core.group.work import WorkGroup
from penstock.core.log import Log
from penstock.model import Message, QueueConfig
from penstock.model.errors import NotFound, WrongKind
from penstock.model.rows import BatchRow, LaneImage

Group = WorkGroup | StreamGroup


class LaneState:
    """Where a lane begins and ends, what is not sealed yet, and its groups.

    Offsets rise in this order: `first` (kept) ≤ `visible_end` (durable) ≤ `sealed_end` (encoded) ≤ `end` (published).
    """

    __slots__ = (
        "bytes_end",
        "changed",
        "config",
        "dedup",
        "dedup_expired_ms",
        "dirty",
        "done_marks",
        "done_to",
        "end",
        "first",
        "groups",
        "groups_deleted",
        "has_died",
        "has_limits",
        "held_at",
        "held_by",
        "id",
        "log",
        "parts",
        "parts_bytes",
        "pins",
        "published_ms",
        "rows",
        "sealed_end",
        "sealed_first",
        "trim_to",
        "trim_wants",
        "visible_end",
    )

    def __init__(self, image: LaneImage, config: QueueConfig, groups: Mapping[int, Settings]) -> None:
        self.id = image.lane
        self._use(config)
        self.first = self.sealed_first = image.first
        self.end = self.sealed_end = self.visible_end = image.end
        self.bytes_end = image.bytes_end
        """Bytes of all batches ever encoded: the difference of two positions is the size of what lies between."""
        self.published_ms = max(image.published_ms, 1)
        self.log = Log()
        self.dedup = Dedup(image.dedup, image.dedup_complete)
        self.dedup_expired_ms: int | None = None
        self.parts: list[Message | EncodedBatch] = []
        """What was published and is not encoded yet."""
        self.parts_bytes = 0
        self.rows: list[BatchRow] = []
        """What is encoded and not sealed yet."""
        self.pins: dict[int, int] = {}
        """Offset → readers that need the batches from there on."""
        self.trim_to: int | None = None
        self.trim_wants: int | None = None
        """The offset whose head must be fed before more can be trimmed."""
        self.held_by: Group | None = None
        """The group that held the log back when it was last trimmed; None to look at all of them."""
        self.held_at = 0
        """The lowest offset that it needed then; what lies below was let go."""
        self.done_marks: list[tuple[int, int]] = []
        """(time, offset up to which all was done then), oldest first; for `keep_done_ms`."""
        self.done_to = image.first
        """Up to where all has been done for `keep_done_ms`."""
        self.groups_deleted: list[int] = []
        self.dirty = False
        """Whether anything changed since the last seal. Commands set it; nothing outside the core does."""
        self.changed: dict[int, Group] = {}
        """The groups that did: a commit costs no more for those that did not."""
        self.has_died = False
        """Whether messages died, since somebody looked, that are copied to `dead_letter_to`."""
        self.groups: dict[int, Group] = {}
        for row in image.groups:
            if row.group in groups:
                # What is trimmed cannot be handed out, nor read: older builds could trim what a group still wanted.
                self._make_group(row.group, groups[row.group], max(row.next, image.first), row.committed)
        for group in self.groups.values():
            if isinstance(group, WorkGroup):
                group.load(image)

    def _make_group(self, id: int, settings: Settings, next_offset: int, committed: int) -> Group:
        group: Group
        if settings.kind == "stream":
            group = StreamGroup(id, settings, self, committed)
        else:
            group = WorkGroup(id, settings, self, next_offset)
        self.groups[id] = group
        return group

    # Groups -----------------------------------------------------------------------------------------------

    def add_group(self, id: int, settings: Settings, start: int) -> None:
        """Add a group that begins at an offset, or where the log begins if that is later."""
        group = self._make_group(id, settings, max(start, self.first), max(start, self.first))
        group.cursor_dirty = True
        self.mark(group)

    def remove_group(self, id: int) -> None:
        """Remove a group with all its state."""
        if self.groups.pop(id, None) is not None:
            self.changed.pop(id, None)
            self.groups_deleted.append(id)
            self.held_by = None
            self.dirty = True

    def mark(self, group: Group) -> None:
        """A command changes the group: the next seal looks at it."""
        self.changed[group.id] = group
        self.dirty = True

    def configure(self, config: QueueConfig, groups: Mapping[int, Settings]) -> None:
        """Put new settings in force from the next command on. `ordered` of a group cannot change."""
        self._use(config)
        for id, settings in groups.items():
            if id in self.groups:
                group = self.groups[id]
                group.settings = settings
                if isinstance(group, WorkGroup):
                    group.waiting.debounced = settings.debounce_ms > 0

    def _use(self, config: QueueConfig) -> None:
        self.config = config
        self.has_limits = any(
            one is not None for one in (config.retain_ms, config.retain_bytes, config.retain_messages)
        )
        """Whether the queue limits its log by age, bytes or count."""

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
        """The work groups."""
        return [group for group in self.groups.values() if isinstance(group, WorkGroup)]
