"""Dead letters on their way to `dead_letter_to`: what a copy says, which queues take it, and copies made at once.

A message that dies is copied in the very commit that takes it off its queue, where nothing must be waited for: its body
is in memory, and its target is here, has room, and may be in that commit. All others are promised in that commit, and
the outbox copies them soon (`outbox.py`). Where copies wait for a target, those that follow wait behind them: they keep
their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from penstock.core.group.expiry import head_expires_ms
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane
from penstock.model import Message, dead_letter_target
from penstock.model.errors import InvalidArgument, NotFound, PenstockError, Unroutable
from penstock.model.rows import DeadRow, OutboxRow, slot_of
from penstock.model.work import Steps
from penstock.node.cache import BatchCache, CachedBatch
from penstock.node.catalog import EPHEMERAL_FROM, Catalog, Queue
from penstock.node.clock import Clock
from penstock.node.lanes import LaneSet
from penstock.node.lifecycle import Numbers
from penstock.node.publish.append import Publisher
from penstock.node.publish.parts import Part, parts_of_messages, route_message

DEATHS_MAX: Final = 16
COPIES_MAX: Final = 256
COPIED_BYTES_MAX: Final = 1024 * 1024
"""What is copied at once when a lane has changed, so that others wait a few milliseconds at most."""


class DeadLetter(msgspec.Struct, tag="dead"):
    """An outbox document: copy this offset to where its group's dead letters go."""

    namespace: str
    queue: str
    group: str
    target: str
    reason: Literal["attempts", "rejected", "expired", "overflow"]
    error: str
    attempts: int
    dead_ms: int


Target = tuple[str, str]
"""(namespace, `dead_letter_to`)"""


@dataclass(eq=False, repr=False)
class DeadCopies:
    """Copies what died, or promises it."""

    _catalog: Catalog
    _lanes: LaneSet
    _publisher: Publisher
    _cache: BatchCache
    _clock: Clock
    _numbers: Numbers

    def __post_init__(self) -> None:
        self.behind: set[Target] | None = None
        """Targets that copies in the outbox wait for; None until that is known."""
        self.promises = 0
        """Rises whenever copies are promised, or will be."""
        self._is_copying = False

    @property
    def may_be_promised(self) -> bool:
        """Whether this node may have promised copies that the outbox has not seen."""
        return bool(self.behind) or (self.behind is None and self.promises > 0)

    # At once ----------------------------------------------------------------------------------------------

    def copy(self, lane: Lane) -> None:
        """Copy what died on a lane, as far as nothing must be waited for; the rest is promised when it is sealed."""
        queue = self._catalog.by_lane.get(lane.id)
        if queue is None or self._is_copying:  # a copy may push another message out of its queue
            return
        if self.behind is None:
            self.promises += 1
            return
        lane.has_died, self._is_copying = False, True
        left = COPIES_MAX
        try:
            for group in lane.works():
                died, group.died = group.died, []
                for row in died:
                    copied = self._copy_some(queue, lane, group, row, left)
                    left -= copied
                    if row.start + copied < row.end:
                        group.died.append(msgspec.structs.replace(row, start=row.start + copied))
        finally:
            self._is_copying = False

    def _copy_some(self, queue: Queue, lane: Lane, group: WorkGroup, row: DeadRow, most: int) -> int:
        """Copy the first messages of a range that died; how many."""
        letter = self._letter(queue, group.id, row)
        if letter is None or self.behind is None or (letter.namespace, letter.target) in self.behind:
            return 0
        count = sum(1 for _ in self._copy_each(lane, letter, range(row.start, min(row.end, row.start + most))))
        if count < row.end - row.start:
            self.behind.add((letter.namespace, letter.target))  # until the outbox has done what is promised now
        if count and not group.settings.dead_kept:
            # No wait in between: the copies and the end of the messages in their place are one commit.
            group.purge_dead(self._clock.now_ms(), [(row.start, row.start + count)], "moved")
        return count

    def _copy_each(self, lane: Lane, letter: DeadLetter, offsets: range) -> Iterator[int]:
        """Append the copies one by one, until one has to wait."""
        bytes_left = COPIED_BYTES_MAX
        for offset in offsets:
            batch = self._batch_at(lane, offset)
            if batch is None or batch.reader.size > COPIED_BYTES_MAX:
                return
            try:
                [message] = batch.reader.messages(offset - batch.base, offset - batch.base + 1)
                bytes_left -= len(message.payload)
                if bytes_left < 0 or not self._append(lane, _made_at_once(self.parts(letter, message))):
                    return
            except PenstockError:  # the outbox meets it too, tells of it and tries again
                return
            yield offset

    def _append(self, lane: Lane, parts: list[Part] | None) -> bool:
        """Append to lanes that may be in the commit of this one; False where that must wait."""
        if parts is None:
            return False
        is_of_memory = lane.id >= EPHEMERAL_FROM
        if any((part.lane >= EPHEMERAL_FROM) is not is_of_memory for part in parts):
            return False  # memory and the store have no commit in common
        size = sum(part.size for part in parts)
        return self._publisher.append_at_once(parts, size, slot_of(lane.id)) is not None

    def _batch_at(self, lane: Lane, offset: int) -> CachedBatch | None:
        """The batch of an offset, if it is in memory."""
        segment = lane.log.peek(offset)
        return None if segment is None else self._cache.look(lane.id, segment.base)

    # Before -----------------------------------------------------------------------------------------------

    def missing_body(self, lane: Lane) -> int | None:
        """The offset of a message that expires now, is to be copied, and whose body is not in memory."""
        for group in lane.works():
            if group.settings.dead_letter_to is None or group.settings.expired != "dead":
                continue
            segment, expires_ms = lane.log.peek(group.next), head_expires_ms(group)
            is_due = expires_ms is not None and expires_ms <= self._clock.now_ms()
            if segment is not None and is_due and segment.size <= COPIED_BYTES_MAX:
                return None if self._cache.has(lane.id, segment.base) else group.next
        return None

    async def read_body(self, lane: int, offset: int) -> None:
        """Have the body of a message in memory."""
        for row in await self._lanes.store_of(lane).read(lane, offset, offset + 1, COPIED_BYTES_MAX):
            self._cache.put(lane, row)

    # Later ------------------------------------------------------------------------------------------------

    def rows(self, queue: Queue, lane: int, died: list[tuple[int, DeadRow]]) -> list[OutboxRow]:
        """One row of the outbox for each message that died and must be copied."""
        rows: list[OutboxRow] = []
        slot = slot_of(lane)
        for group_id, dead in died:
            letter = self._letter(queue, group_id, dead)
            if letter is None:
                continue
            if self.behind is not None:
                self.behind.add((letter.namespace, letter.target))
            document = msgspec.json.encode(letter)
            rows += [
                OutboxRow(self._numbers.next(), lane, offset, document, slot) for offset in range(dead.start, dead.end)
            ]
        self.promises += len(rows)
        return rows

    def _letter(self, queue: Queue, group_id: int, dead: DeadRow) -> DeadLetter | None:
        group = queue.group_by_id(group_id)
        if group is None or group.settings.dead_letter_to is None:
            return None
        return DeadLetter(
            queue.namespace,
            queue.name,
            group.name,
            group.settings.dead_letter_to,
            dead.reason,  # type: ignore[arg-type]
            dead.error,
            dead.attempts,
            dead.dead_ms,
        )

    # The copy ---------------------------------------------------------------------------------------------

    def parts(self, letter: DeadLetter, message: Message) -> Steps[list[Part]]:
        """The copy as it is appended to its queues."""
        try:
            return (yield from self._parts(letter, _with_death(message, letter)))
        except InvalidArgument:
            # Its headers are full: the copy keeps the death and leaves the rest to the original.
            return (yield from self._parts(letter, _with_death(msgspec.structs.replace(message, headers=None), letter)))

    def _parts(self, letter: DeadLetter, message: Message) -> Steps[list[Part]]:
        kind, name, key = dead_letter_target(letter.target)
        if kind == "queue":
            return parts_of_messages(self._catalog.queue(letter.namespace, name), [message])
        copy = message if key is None else msgspec.structs.replace(message, key=key)
        try:
            return (yield from route_message(self._catalog, letter.namespace, name, copy))
        except Unroutable:
            raise NotFound(f"no queue is bound to exchange {name!r} for dead letters of {letter.queue!r}") from None


def _made_at_once(steps: Steps[list[Part]]) -> list[Part] | None:
    """What the steps come to; None where they stop, since others must have their turn."""
    try:
        next(steps)
    except StopIteration as end:
        made: list[Part] = end.value
        return made
    return None


def _with_death(message: Message, letter: DeadLetter) -> Message:
    """The copy: as published, without delay, ttl and dedup id, with one more death in its history."""
    headers: dict[str, Any] = dict(message.headers or {})
    deaths = headers.get("x-death")
    history = deaths if isinstance(deaths, list) else []
    death = {
        "queue": letter.queue,
        "group": letter.group,
        "reason": letter.reason,
        "error": letter.error[:512],
        "attempts": letter.attempts,
        "time": letter.dead_ms,
        "key": message.key,
        "target": letter.target,
    }
    headers["x-death"] = [death, *history[: DEATHS_MAX - 1]]
    return msgspec.structs.replace(message, headers=headers, delay_ms=0, not_before_ms=0, ttl_ms=None, dedup_id=None)
