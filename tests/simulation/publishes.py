"""Checks of publishes: what was answered is stored, what is stored was published, once, whole and as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.api.results import Published
from penstock.batch import decode
from penstock.model import Message
from penstock.model.errors import (
    InvalidArgument,
    LeaseLost,
    NotFound,
    PenstockError,
    QueueFull,
    Unroutable,
)
from penstock.node.spool.records import DeadRecord
from tests.simulation.court import Court
from tests.simulation.ledger import Landing, Sent
from tests.simulation.mirror import LaneMirror, Stored, scope_of, uid_of

REFUSALS: Final = (InvalidArgument, QueueFull, Unroutable, NotFound, LeaseLost)
"""Errors that say that nothing was done."""


class PublishChecker:
    """Follows every message from its producer to its offset."""

    def __init__(self, court: Court) -> None:
        self._court = court
        self.sent: dict[str, Sent] = {}
        self.landings: dict[tuple[str, int | None, str], list[Landing]] = {}
        self.confirmed = 0

    # What producers say -----------------------------------------------------------------------------------

    def begin(
        self,
        messages: Iterable[tuple[Message, tuple[str, ...]]],
        settles: tuple[int, int, int, tuple[int, ...]] | None = None,
    ) -> int:
        """A call with these messages, each for these queues, begins; its time."""
        listed = list(messages)
        together = tuple(uid_of(message) for message, _ in listed)
        for message, queues in listed:
            sent = self.sent.get(uid_of(message))
            if sent is None:
                sent = self.sent[uid_of(message)] = Sent(message, queues, self._court.now_ms())
            sent.calls += 1
            sent.begun_seq = self._court.next_seq()
            sent.together = together
            sent.settles = settles
        return self._court.now_ms()

    def failed(self, messages: Iterable[Message], error: PenstockError) -> None:
        """A call ended in an error: refused, or unknown."""
        if isinstance(error, REFUSALS):
            for message in messages:
                self.sent[uid_of(message)].refused += 1

    def answered(self, message: Message, places: Sequence[Published], scope: int, started_ms: int) -> None:
        """A call was answered: the message must be where the answer says."""
        sent = self.sent[uid_of(message)]
        self.confirmed += 1
        sent.answered_seq = self._court.next_seq()
        if sorted(place.queue for place in places) != sorted(sent.queues):
            self._court.report("misrouted", f"{uid_of(message)} went to {places}, not to {sent.queues}")
        for place in places:
            self._check_place(message, place, self._court.lane_id(place.queue, place.lane, scope), started_ms)

    def buffered(self, messages: Iterable[Message]) -> None:
        """A call was answered: the messages are in the node's spool."""
        for message in messages:
            sent = self.sent[uid_of(message)]
            sent.buffered = True
            sent.answered_seq = self._court.next_seq()
            self.confirmed += 1

    def check_buffered(self, letters: Iterable[DeadRecord]) -> None:
        """At the end, what was buffered is stored in all its queues, or known there, or a dead letter of the spool."""
        dead = {uid_of(message) for letter in letters for message in decode(letter.record.batch)}
        for uid, sent in self.sent.items():
            for queue in sent.queues if sent.buffered and uid not in dead else ():
                if not self._court.plan.queue(queue).is_ephemeral and not self._is_stored(queue, 0, sent.message):
                    self._court.report("lost", f"{uid} was answered as buffered, and is not in {queue!r}")

    def check_order(self) -> None:
        """Of a partition, what was answered before another publish began stands before it."""
        for lane in self._court.mirror.lanes.values():
            latest: dict[str, tuple[int, str]] = {}
            queue = self._court.mirror.queue_name(lane.id)
            for offset in sorted(lane.messages) if scope_of(lane.id) is None else ():
                stored = lane.messages[offset]
                sent, partition = self.sent.get(stored.uid), stored.message.partition
                if sent is None or sent.calls != 1 or not partition or queue not in sent.queues:
                    continue
                begun, uid = latest.get(partition, (0, ""))
                if 0 < sent.answered_seq < begun:
                    self._court.report(
                        "reordered",
                        f"{stored.uid} at {lane.id}:{offset} was answered before {uid} began, and is behind it",
                    )
                latest[partition] = max(latest.get(partition, (0, "")), (sent.begun_seq, stored.uid))

    def _check_place(self, message: Message, place: Published, lane: int, started_ms: int) -> None:
        stored = self._court.mirror.lane(lane).messages.get(place.offset)
        where = f"{uid_of(message)}, answered as {lane}:{place.offset} of {place.queue!r},"
        if stored is None:
            self._court.report("lost", f"{where} is not stored")
        elif not place.duplicate:
            if stored.uid != uid_of(message):
                self._court.report("lost", f"{where} is not there: {stored.uid} is")
        elif dedup_of(stored.message) != dedup_of(message):
            self._court.report("dedup", f"{where} is no duplicate of {stored.uid} at that offset")
        else:
            window_ms = self._court.plan.queue(place.queue).config.dedup_window_ms
            if started_ms >= stored.published_ms + window_ms:
                self._court.report("dedup", f"{where} was called a duplicate after its window of {window_ms} ms")

    # What the disk says -----------------------------------------------------------------------------------

    def stored(self, lane: LaneMirror, stored: Stored, queue: str) -> None:
        """A message landed."""
        report, sent = self._court.report, self.sent.get(stored.uid)
        where = f"{stored.uid} at {lane.id}:{stored.offset} of queue {queue!r}"
        if sent is None or queue not in sent.queues:
            report("phantom", f"{where} was never published there")
            return
        if sent.message != stored.message:
            report("corrupted", f"{where} was stored as {stored.message}, published as {sent.message}")
        if sent.refused >= sent.calls:
            report("refused", f"{where} was stored although every publish of it was refused")
        places = self.landings.setdefault((queue, scope_of(lane.id), stored.uid), [])
        if len(places) >= sent.calls:
            report("doubled", f"{where} was published {sent.calls} times and stored {len(places) + 1} times")
        places.append(Landing(lane.id, stored.offset, stored.commit, stored.published_ms))
        self._check_window(where, queue, lane, stored)

    def _check_window(self, where: str, queue: str, lane: LaneMirror, stored: Stored) -> None:
        """Within its window a dedup id is stored once."""
        window_ms = self._court.plan.queue(queue).config.dedup_window_ms
        if stored.message.dedup_id is None or not window_ms:
            return
        for other in lane.messages.values():
            if other.offset < stored.offset and dedup_of(other.message) == dedup_of(stored.message):
                first_ms = self.sent[other.uid].started_ms
                if stored.published_ms < first_ms + window_ms:
                    self._court.report("dedup", f"{where} is the second under its id, after offset {other.offset}")

    def check_together(self, lane: LaneMirror, stored: Stored, scope: int) -> None:
        """All messages of a call are stored, or promised, in one commit, with the verdicts of their transaction."""
        sent, mirror = self.sent.get(stored.uid), self._court.mirror
        if sent is None:
            return
        for uid in sent.together:
            other = self.sent[uid]
            for queue in other.queues:
                ephemeral = self._court.plan.queue(queue).is_ephemeral
                if ephemeral == (scope_of(lane.id) is not None) and not self._is_stored(queue, scope, other.message):
                    self._court.report("torn", f"{stored.uid} is stored, {uid} of the same call is not in {queue!r}")
        if sent.settles is not None and scope_of(lane.id) is scope_of(sent.settles[0]) is None:
            held_lane, group, lease, offsets = sent.settles
            held = mirror.lane(held_lane).group(group).leases.get(lease)
            if held is not None and any(held.covers(offset) for offset in offsets):
                self._court.report("torn", f"{stored.uid} is stored, the lease that its transaction settles is held")

    def _is_stored(self, queue: str, scope: int, message: Message) -> bool:
        key = (queue, scope if self._court.plan.queue(queue).is_ephemeral else None, uid_of(message))
        if self.landings.get(key):
            return True
        if any(queue == target and uid_of(message) in uids for target, uids in self._court.mirror.sent.values()):
            return True  # promised, and there when that is carried out
        return message.dedup_id is not None and any(
            dedup_of(other.message) == dedup_of(message)
            for lane in self._court.lanes_of(queue, scope)
            for other in lane.messages.values()
        )


def dedup_of(message: Message) -> tuple[str | None, str | None]:
    return (message.partition, message.dedup_id)
