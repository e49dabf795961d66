"""What is true: the disk's rows, followed commit by commit, with the invariants that every commit must keep.

The mirror sees a commit at the moment at which it is durable. It knows nothing of what clients were told: that is
`checker.py`, which asks the mirror. Lanes of ephemeral queues are mirrored too, under the index of their node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from penstock.batch import EncodedBatch, decode
from penstock.core.group.entries import Entry, decode_entries
from penstock.core.group.settings import Settings, settings_of
from penstock.model import GroupConfig, Message, QueueConfig
from penstock.model.rows import CatalogRow, Commit, DeadRow, LaneChange, OutboxRow
from penstock.node.catalog import EPHEMERAL_FROM, Queue, QueueDocument
from penstock.node.cluster.remote_publish import RemotePart, is_remote_part

Report = Callable[[str, str], None]
SCOPE_BITS: Final = 56


class Stored(msgspec.Struct):
    """A message on the disk."""

    uid: str
    message: Message
    offset: int
    published_ms: int
    landed_ms: int
    commit: int

    def due_ms(self, queue: QueueConfig) -> int:
        return max(self.published_ms + queue.delay_ms + self.message.delay_ms, self.message.not_before_ms)

    def expires_ms(self, queue: QueueConfig) -> int | None:
        spans = [span for span in (self.message.ttl_ms, queue.ttl_ms) if span is not None]
        return self.published_ms + min(spans) if spans else None


class HeldLease(msgspec.Struct):
    """A lease on the disk."""

    consumer: str
    deadline_ms: int
    entries: list[Entry]

    def covers(self, offset: int) -> bool:
        return any(entry.start <= offset < entry.end for entry in self.entries)


class GroupMirror:
    """One group's rows on one lane."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.start: int | None = None
        self.next = 0
        self.committed = 0
        self.leases: dict[int, HeldLease] = {}
        self.waiting: dict[int, list[Entry]] = {}
        self.dead: dict[int, DeadRow] = {}
        self.touched_ms = 0
        self.handed_out: dict[int, int] = {}
        """lease → the commit that made it"""

    def waiting_entries(self) -> Iterator[Entry]:
        for chunk in self.waiting.values():
            yield from chunk

    def ranges(self) -> list[tuple[int, int, str]]:
        """What is not done below `next`, by rising offset."""
        if not (self.leases or self.waiting or self.dead):
            return []
        found = [
            (entry.start, entry.end, f"lease {id}") for id, lease in self.leases.items() for entry in lease.entries
        ]
        found += [(entry.start, entry.end, "waiting") for entry in self.waiting_entries()]
        found += [(row.start, row.end, "dead") for row in self.dead.values()]
        return sorted(found)

    def states(self, end: int) -> dict[int, str]:
        """The state of every offset that is not done: lease, waiting, dead or ready."""
        states = {offset: state.split(" ", 1)[0] for low, high, state in self.ranges() for offset in range(low, high)}
        states.update(dict.fromkeys(range(self.next, end), "ready"))
        return states


class LaneMirror:
    """One lane's rows; messages that were trimmed stay known."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.first = 0
        self.end = 0
        self.messages: dict[int, Stored] = {}
        self.groups: dict[int, GroupMirror] = {}
        self.deleted = False

    def group(self, id: int) -> GroupMirror:
        group = self.groups.get(id)
        if group is None:
            group = self.groups[id] = GroupMirror(id)
        return group


class Description(msgspec.Struct):
    """What was declared under a group's id."""

    queue: str
    group: str
    queue_config: QueueConfig
    group_config: GroupConfig
    settings: Settings
    """What the two come to."""


class Mirror:
    """Everything on the disk."""

    def __init__(self, report: Report, now_ms: Callable[[], int]) -> None:
        self._report = report
        self._now_ms = now_ms
        self.lanes: dict[int, LaneMirror] = {}
        self.queues: dict[int, tuple[str, QueueDocument]] = {}
        self.groups: dict[int, tuple[str, int, GroupConfig]] = {}
        self.queue_of_lane: dict[int, int] = {}
        self.outbox: dict[int, OutboxRow] = {}
        self.sent: dict[int, tuple[str, frozenset[str]]] = {}
        """Of the outbox, what is on its way to a queue: row → (queue, messages).

        What was sent to an ephemeral queue stays: the next process drops it, also where it is there in part.
        """
        self.commits = 0
        self.redriven: set[tuple[str, str]] = set()
        """(queue, group) where dead letters were given back: they stand behind what was leased meanwhile."""
        self._new_leases: set[int] = set()
        self._described: dict[tuple[int, int], Description] = {}
        """(lane, group) → who it is, until the next declaration"""

    def lane(self, id: int) -> LaneMirror:
        lane = self.lanes.get(id)
        if lane is None:
            lane = self.lanes[id] = LaneMirror(id)
        return lane

    def describe(self, lane: int, group: int) -> Description | None:
        """Who a group on a lane is; None while its declaration is on its way."""
        described = self._described.get((lane, group))
        if described is None:
            described = self._describe(lane, group)
            if described is not None:
                self._described[lane, group] = described
        return described

    def _describe(self, lane: int, group: int) -> Description | None:
        queue_id, known = self.queue_of_lane.get(lane), self.groups.get(scoped(group, scope_of(lane)))
        if queue_id is None or known is None:
            return None
        name, document = self.queues[queue_id]
        return Description(name, known[0], document.config, known[2], settings_of(document.config, known[2]))

    def queue_name(self, lane: int) -> str:
        queue_id = self.queue_of_lane.get(lane)
        return "?" if queue_id is None else self.queues[queue_id][0]

    def lanes_of(self, queue: str) -> list[LaneMirror]:
        """The lanes of a queue that were ever written to, gone ones left out."""
        return [lane for id, lane in self.lanes.items() if self.queue_name(id) == queue and not lane.deleted]

    def lane_id(self, queue: str, index: int, scope: int | None) -> int:
        """The lane that clients name by its place in the queue; `scope` is the node of an ephemeral one."""
        found = (known for id, (name, known) in self.queues.items() if name == queue and scope_of(id) == scope)
        return scoped(next(found).lanes[index], scope)

    def index_of(self, lane: int) -> int:
        """A lane as clients name it."""
        return self.queues[self.queue_of_lane[lane]][1].lanes.index(unscoped(lane))

    # Commits ----------------------------------------------------------------------------------------------

    def apply(self, commit: Commit, scope: int) -> list[tuple[LaneMirror, Stored]]:
        """Take a commit in; the messages that it published. `scope` sets ephemeral lanes of nodes apart."""
        self.commits += 1
        for id in commit.lanes_deleted:
            self._delete_lane(scoped(id, scope))
        for row in commit.catalog:
            self._declare(row)
        published: list[tuple[LaneMirror, Stored]] = []
        for change in commit.lanes:
            published += self._change(change, scoped(change.lane, scope))
        self._move_outbox(commit)
        for change in commit.lanes:
            self._check_lane(self.lane(scoped(change.lane, scope)))
        self._new_leases.clear()
        return published

    def declare_ephemeral(self, scope: int, queue: Queue) -> None:
        """Ephemeral queues are declared on no disk: their node tells of them."""
        id = scoped(queue.id, scope)
        declared = (queue.name, QueueDocument(queue.config, queue.lanes))
        groups = {scoped(group.id, scope): (group.name, id, group.config) for group in queue.groups.values()}
        if self.queues.get(id) == declared and all(self.groups.get(at) == group for at, group in groups.items()):
            return
        self._described.clear()
        self.queues[id] = declared
        for lane in queue.lanes:
            self.queue_of_lane[scoped(lane, scope)] = id
        self.groups.update(groups)

    def _declare(self, row: CatalogRow) -> None:
        self._described.clear()
        if row.kind == "queue":
            document = msgspec.json.decode(row.document, type=QueueDocument)
            self.queues[row.id] = (row.name, document)
            for lane in document.lanes:
                self.queue_of_lane[lane] = row.id
                if lane in self.lanes and self.lanes[lane].deleted:
                    del self.lanes[lane]  # a restart may give the id of a deleted lane to a new one
        elif row.kind == "group":
            self.groups[row.id] = (row.name, row.parent, msgspec.json.decode(row.document, type=GroupConfig))
            if row.parent not in self.queues:
                self._report("catalog", f"group {row.name!r} was stored for queue {row.parent}, which was never there")

    def _delete_lane(self, id: int) -> None:
        self.lane(id).deleted = True

    def _change(self, change: LaneChange, id: int) -> list[tuple[LaneMirror, Stored]]:
        lane = self.lane(id)
        if lane.deleted:
            self._report("zombie", f"lane {id} of queue {self.queue_name(id)!r} was written to after its deletion")
        if change.end < lane.end or change.first < lane.first:
            self._report("rewound", f"lane {id} went from {lane.first}..{lane.end} to {change.first}..{change.end}")
        published = self._append(lane, change)
        lane.first, lane.end = change.first, change.end
        self._delete_rows(lane, change)
        self._put_rows(lane, change)
        touched = {row.group for row in change.groups} | {row.group for row in change.leases}
        touched |= {row.group for row in change.waiting}
        touched |= {group for group, _ in (*change.leases_deleted, *change.waiting_deleted)}
        for group in sorted(touched):
            lane.group(group).touched_ms = self._now_ms()
        return published

    def _append(self, lane: LaneMirror, change: LaneChange) -> list[tuple[LaneMirror, Stored]]:
        published: list[tuple[LaneMirror, Stored]] = []
        expected = lane.end
        for row in change.batches:
            if row.base != expected:
                self._report("offsets", f"lane {lane.id} got a batch at {row.base}, not at {expected}")
            expected = row.end
            for index, message in enumerate(decode(EncodedBatch(row.count, row.meta, row.body))):
                offset = row.base + index
                stored = Stored(uid_of(message), message, offset, row.published_ms, self._now_ms(), self.commits)
                lane.messages[offset] = stored
                published.append((lane, stored))
        if expected != change.end:
            self._report("offsets", f"lane {lane.id} ends at {change.end}, but its batches at {expected}")
        return published

    def _delete_rows(self, lane: LaneMirror, change: LaneChange) -> None:
        for id in change.groups_deleted:
            lane.groups.pop(id, None)
        for id, lease in change.leases_deleted:
            lane.group(id).leases.pop(lease, None)
        for id, chunk in change.waiting_deleted:
            lane.group(id).waiting.pop(chunk, None)
        for id, start in change.dead_deleted:
            lane.group(id).dead.pop(start, None)

    def _put_rows(self, lane: LaneMirror, change: LaneChange) -> None:
        for row in change.groups:
            group = lane.group(row.group)
            group.next, group.committed = row.next, row.committed
            if group.start is None:
                group.start = row.next
        for lease in change.leases:
            held = HeldLease(lease.consumer, lease.deadline_ms, decode_entries(lease.entries))
            self._check_new_lease(lane, lease.group, lease.lease, held)
            lane.group(lease.group).leases[lease.lease] = held
            lane.group(lease.group).handed_out.setdefault(lease.lease, self.commits)
        for waiting in change.waiting:
            lane.group(waiting.group).waiting[waiting.chunk] = decode_entries(waiting.entries)
        for dead in change.dead:
            lane.group(dead.group).dead[dead.start] = dead

    def _check_new_lease(self, lane: LaneMirror, group: int, id: int, held: HeldLease) -> None:
        known = lane.group(group).leases.get(id)
        if known is None:
            self._new_leases.add(id)
        elif known.consumer != held.consumer:
            self._report("lease ids", f"lease {id} went from {known.consumer} to {held.consumer} on lane {lane.id}")

    def _move_outbox(self, commit: Commit) -> None:
        for id in commit.outbox_deleted:
            row = self.outbox.pop(id, None)
            if row is not None and row.lane < EPHEMERAL_FROM:
                self.sent.pop(id, None)
        for row in commit.outbox:
            if is_remote_part(row):
                part = msgspec.msgpack.decode(row.document, type=RemotePart)
                messages = decode(EncodedBatch(part.count, part.meta, part.body))
                self.sent[row.id] = (part.queue, frozenset(uid_of(message) for message in messages))
            if row.id in self.outbox:
                self._report("outbox", f"outbox row {row.id} was overwritten before it was carried out")
            self.outbox[row.id] = row

    # Invariants -------------------------------------------------------------------------------------------

    def _check_lane(self, lane: LaneMirror) -> None:
        for group in lane.groups.values():
            described = self.describe(lane.id, group.id)
            if described is None or described.group_config.kind == "stream":
                continue
            self._check_ranges(lane, group)
            self._check_limits(lane, group, described)
            if described.group_config.ordered or (
                described.group_config.ordered is None and described.queue_config.ordered
            ):
                self._check_order(lane, group, (described.queue, described.group) in self.redriven)

    def _check_ranges(self, lane: LaneMirror, group: GroupMirror) -> None:
        """Below `next`, and not below what is kept, every offset is in at most one place."""
        last_end, last_state = 0, ""
        for start, end, state in group.ranges():
            if start < last_end or start < lane.first or end > group.next:
                where = f"offsets {start} to {end - 1} of lane {lane.id}, group {group.id}"
                if start < last_end:
                    self._report("concurrent", f"{where}: both {last_state} and {state}")
                if start < lane.first:
                    self._report("trimmed", f"{where}: {state}, but the lane begins at {lane.first}")
                if end > group.next:
                    self._report("cursor", f"{where}: {state}, but the group's cursor is at {group.next}")
            last_end, last_state = end, state
        if group.next < lane.first:
            self._report("trimmed", f"group {group.id} is at {group.next}, but lane {lane.id} begins at {lane.first}")

    def _check_limits(self, lane: LaneMirror, group: GroupMirror, described: Description) -> None:
        most = described.group_config.max_in_flight or described.queue_config.max_in_flight
        held = sum(entry.end - entry.start for lease in group.leases.values() for entry in lease.entries)
        if most is not None and held > most:
            self._report("in flight", f"{held} messages of lane {lane.id} are leased; max_in_flight is {most}")
        single = described.group_config.single_active_consumer
        if described.queue_config.single_active_consumer if single is None else single:
            consumers = sorted({lease.consumer for lease in group.leases.values()})
            if len(consumers) > 1:
                self._report("single active", f"{', '.join(consumers)} hold leases on lane {lane.id} at once")

    def _check_order(self, lane: LaneMirror, group: GroupMirror, redriven: bool) -> None:
        """A new lease holds of each partition only the oldest messages that are not settled."""
        new = {f"lease {id}" for id in self._new_leases if id in group.leases}
        holders: dict[str, str] = {}
        revived = {entry.start for entry in group.waiting_entries() if redriven and not entry.attempts}
        for start, end, state in group.ranges() if new else ():
            if state == "dead" or (state == "waiting" and start in revived):
                continue
            for offset in range(start, end):
                partition = lane.messages[offset].message.partition if offset in lane.messages else None
                if not partition:
                    continue
                holder = holders.setdefault(partition, state)
                if state in new and state != holder:
                    what = f"offset {offset} of partition {partition!r} on lane {lane.id}"
                    self._report("reordered", f"{what} is in {state}, an earlier one is in {holder}")


def uid_of(message: Message) -> str:
    return message.payload[:24].decode("ascii", "replace")


def scoped(id: int, scope: int | None) -> int:
    """Ids of ephemeral things begin anew with each node: the node's index tells them apart."""
    return id if id < EPHEMERAL_FROM or scope is None else id + ((scope + 1) << SCOPE_BITS)


def scope_of(id: int) -> int | None:
    """The index of the node that an ephemeral lane lives in; None for lanes on the disk."""
    return (id >> SCOPE_BITS) - 1 if id >= EPHEMERAL_FROM else None


def unscoped(id: int) -> int:
    """The id as the node knows it."""
    return id & ((1 << SCOPE_BITS) - 1)
