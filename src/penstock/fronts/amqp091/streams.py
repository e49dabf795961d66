"""Consumers of streams: those of a group, which share its cursor, and those of none, each with a cursor of its own.

A group commits what its consumers have acknowledged, and no more: each consumer reads under several names, and a name
reads again only when all that it read before is acknowledged, which is what commits it. With `x-auto-commit`
false nothing is committed but by a publish to `$queue/<name>/$commit`. Nacks and rejects only give credit: a stream is
read again by seeking, not by returning messages to it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.fronts.amqp091.arguments import span_ms
from penstock.fronts.amqp091.consuming import GONE, LOOK_SECONDS, PAUSE_SECONDS, WAIT_SECONDS, Standing
from penstock.fronts.amqp091.errors import precondition
from penstock.fronts.amqp091.mapping import outgoing, routing_key, with_headers
from penstock.fronts.amqp091.settling import Action, ConsumerKey, Holder
from penstock.fronts.answers import is_large
from penstock.fronts.damaged_ranges import DAMAGED_HEADER, PassedOver
from penstock.fronts.key_filter import KeyFilter
from penstock.model.errors import Closed, InvalidArgument, OffsetGone, PenstockError
from penstock.wire.amqp091.tables import Timestamp

if TYPE_CHECKING:
    from penstock.api.front_broker import FrontBroker
    from penstock.api.results import Received, StreamRead
    from penstock.fronts.amqp091.channel import Channel

log = logging.getLogger("penstock.amqp")


# Where to begin ------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """A place in the log: one of its ends, an offset, or a time."""

    end: str | None = None
    """`first` or `last`"""
    offset: int | None = None
    time_ms: int | None = None


_OFFSET: Final = re.compile(r"offset=([0-9]{1,18})")
_TIME: Final = re.compile(r"timestamp=([0-9]{1,15})")


def start_of(value: Any, now_ms: int) -> Start:
    """What `x-stream-offset` says."""
    if isinstance(value, Timestamp):
        return Start(time_ms=int(value) * 1000)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Start(offset=int(value))
    if isinstance(value, str):
        if value in ("first", "last", "next"):
            return Start("first" if value == "first" else "last")
        if match := _OFFSET.fullmatch(value):
            return Start(offset=int(match[1]))
        if match := _TIME.fullmatch(value):
            return Start(time_ms=int(match[1]))
        if value[-1:] in "YMDhms" and value[:-1].isdigit():
            return Start(time_ms=max(0, now_ms - span_ms("x-stream-offset", value)))
    raise precondition(
        f"invalid arg 'x-stream-offset': {value!r} must be first, last, next, an offset, offset=N, a timestamp, "
        "timestamp=MILLISECONDS, or a span like 1h"
    )


async def seek(broker: FrontBroker, queue: str, group: str, start: Start) -> None:
    """Move a group that exists."""
    if start.end is not None:
        await broker.seek(queue, group, to="first" if start.end == "first" else "last")
    elif start.time_ms is not None:
        await broker.seek(queue, group, time_ms=start.time_ms)
    else:
        lane = (await broker.lanes(queue)).lanes[0]
        await broker.seek(queue, group, offset=min(max(start.offset or 0, lane.first), lane.end), lane=0)


async def offset_of(broker: FrontBroker, queue: str, start: Start) -> int:
    """Where a reader without a group begins."""
    places = await broker.lanes(queue, start.time_ms)
    lane = places.lanes[0]
    if start.time_ms is not None:
        return lane.end if lane.at_time is None else max(lane.at_time, lane.first)
    if start.end is not None:
        return lane.first if start.end == "first" else lane.end
    return max(start.offset or 0, lane.first)


# Readers -------------------------------------------------------------------------------------------------


class _Reader(Standing):
    """What both kinds have in common: a read that waits, and deliveries that say where they are in the stream."""

    def __init__(
        self,
        channel: Channel,
        tag: str,
        place: ConsumerKey,
        *,
        no_ack: bool,
        prefetch: int,
        wanted: KeyFilter | None,
        primary: str | None,
    ) -> None:
        super().__init__(channel, tag, place, no_ack=no_ack, prefetch=prefetch)
        self._filter = wanted
        self._primary = primary
        self._reading: asyncio.Task[StreamRead] | None = None
        self._passed_over = PassedOver()

    async def hold(self) -> None:
        while (reading := self._reading) is not None:
            reading.cancel()  # what it had read is read again
            await asyncio.wait([reading], timeout=LOOK_SECONDS)

    async def _read(self, asking: Coroutine[Any, Any, StreamRead]) -> StreamRead | None:
        """One read; None where it was ended, or is to be tried again."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._reading = reading = loop.create_task(asking)
        try:
            await asyncio.wait([reading])
        finally:
            self._reading = None
        if reading.cancelled():
            return None
        error = reading.exception()
        if isinstance(error, PenstockError) and not isinstance(error, (*GONE, Closed, OffsetGone)):
            log.warning("a reader of %r has to wait: %s", self.place.queue, error)
            await asyncio.sleep(PAUSE_SECONDS)
            return None
        read: StreamRead = reading.result()
        self._passed_over.add(read.damaged)
        if not (read.slices or read.damaged) and loop.time() - began < LOOK_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
        return read

    def _send(self, read: StreamRead, holder: Holder) -> list[int]:
        """Deliver what was read; the offsets that are to be settled."""
        channel = self.channel
        chosen = [one for one in read.messages if self._filter is None or self._filter.matches(one.key)]
        for one in chosen:
            exchange, properties = outgoing(one.message, one.published_ms)
            channel.delivery_tag += 1
            channel.connection.wire.deliver(
                channel.number,
                self.tag_bytes,
                channel.delivery_tag,
                False,
                exchange,
                routing_key(one.key),
                with_headers(properties, self._marks(one, read)),
                one.payload,
            )
            if not self.no_ack:
                channel.settling.unacked[channel.delivery_tag] = (holder, one.offset)
        channel.connection.host.measures.delivered += len(chosen)
        channel.connection.flush_soon()
        if self.no_ack:
            return []
        self.delivered(len(chosen))
        return [one.offset for one in chosen]

    def _marks(self, one: Received, read: StreamRead) -> dict[str, Any]:
        marks: dict[str, Any] = {"x-stream-offset": one.offset, "x-stream-timestamp": one.published_ms}
        if read.primary_committed is not None and self._primary is not None:
            marks["x-work-committed-offset"] = read.primary_committed
            marks["x-work-acked"] = bool(one.done)
            marks["x-work-group"] = self._primary
        if damaged := self._passed_over.before(one):
            marks[DAMAGED_HEADER] = damaged
        return marks


class FreeReader(_Reader):
    """Reads from an offset on, by itself."""

    def __init__(self, *arguments: Any, offset: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offset = offset

    def settled(self, _action: Action, _offset: int) -> None:
        self.credit()

    async def _step(self, room: int) -> None:
        broker, queue = self.channel.broker, self.place.queue
        try:
            read = await self._read(broker.read_from(queue, self._offset, max=room, lane=0, wait=WAIT_SECONDS))
        except OffsetGone:
            self._offset = (await broker.lanes(queue)).lanes[0].first
            return
        if read is not None and is_large(read):
            await self.channel.connection.backlog.admit(read)
        if read is not None and not self._stopping and not self.channel.is_closed:
            self._offset = read.next_offset
            self._send(read, self)


class _Turn:
    """One of the names that a consumer of a group reads under, and what it has read."""

    __slots__ = ("begin", "end", "is_done", "left", "name", "reader")

    def __init__(self, reader: GroupReader, name: str) -> None:
        self.reader = reader
        self.name = name
        self.begin = 0
        self.end = 0
        """What was read last: [begin, end)."""
        self.left: set[int] = set()
        """What of it is delivered and not settled."""
        self.is_done = False
        """All of it is settled, and not committed yet."""

    def settled(self, _action: Action, offset: int) -> None:
        self.left.discard(offset)
        self.is_done = self.reader.commits and not self.left
        self.reader.credit()
        if self.is_done:
            self.reader.turn_done()


class GroupReader(_Reader):
    """Reads the next messages of a group."""

    def __init__(self, *arguments: Any, commits: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commits = commits
        self._turns = [_Turn(self, self.place.consumer)]

    @property
    def names(self) -> Sequence[str]:
        """All names that it reads under."""
        return [turn.name for turn in self._turns]

    def turn_done(self) -> None:
        """What is done is committed by the next read under its name: not when somebody publishes, but now."""
        self.look()
        if self._reading is not None:
            self._reading.cancel()

    async def _step(self, room: int) -> None:
        turn, (queue, group, _) = self._next_turn(), self.place
        turn.is_done = False  # the read begins by committing what was read before under its name
        wait = 0.0 if any(other.is_done for other in self._turns) else WAIT_SECONDS  # that one's read commits it next
        read = await self._read(self.channel.broker.read(queue, group, max=room, wait=wait, consumer=turn.name))
        if read is None or not read.slices:
            return
        if is_large(read):
            await self.channel.connection.backlog.admit(read)
        if self._stopping or self.channel.is_closed:
            with suppress(PenstockError):
                await self.channel.broker.detach(queue, group, consumer=turn.name)
            return
        turn.begin, turn.end = read.slices[0].offset, read.next_offset
        left = self._send(read, turn)
        if self.commits:
            turn.left.update(left)
            turn.is_done = not left

    async def commit_settled(self) -> None:
        """It leaves: commit what it has settled and no read will commit any more, as far as that is the group's next.

        What a turn has read nobody else has: where the group stands at the turn's beginning, its first part can go.
        """
        queue, group, _ = self.place
        turns = sorted((turn for turn in self._turns if turn.left or turn.is_done), key=lambda turn: turn.begin)
        if not turns or not self.commits:
            return
        stats = await self.channel.broker.stats(queue)
        if stats.lanes > 1:
            return  # one number says where the group stands in all of them
        stands = next((one.oldest_offset for one in stats.groups if one.group == group), -1)
        for turn in turns:
            reached = min(turn.left, default=turn.end)
            if turn.begin != stands or reached == stands:
                return
            await self.channel.broker.commit(queue, group, reached, lane=0, only_forward=True)
            stands = reached

    def _next_turn(self) -> _Turn:
        """One whose messages are all settled, so that they are committed; else one that has none."""
        if not self.commits:
            return self._turns[0]
        free = [turn for turn in self._turns if not turn.left]
        if not free:
            free = [_Turn(self, f"{self.place.consumer}~{len(self._turns)}")]
            self._turns += free
        return next((turn for turn in free if turn.is_done), free[0])


async def prepare_group(
    broker: FrontBroker,
    queue: str,
    group: str,
    start: Start | None,
    *,
    commits: bool,
    wanted: KeyFilter | None,
    is_first: bool,
) -> None:
    """Declare the group where it is missing; where it is there and nobody reads it, move it to where it is wanted."""
    condition = None if wanted is None else wanted.condition
    existing = (await broker.groups(queue)).get(group)
    if existing is not None and existing.get("kind", "work") != "stream":
        raise precondition(f"group '{group}' of queue '{queue}' is a work group; name another x-consumer-group")
    options: dict[str, Any] = {"kind": "stream", "auto_commit": commits}
    if existing is None:
        options["filter"] = condition
        await broker.declare_group(queue, group, **options)
    elif existing.get("auto_commit", True) != commits:
        await broker.declare_group(queue, group, auto_commit=commits)
    if start is not None and (existing is None or is_first):
        await seek(broker, queue, group, start)


async def commit(broker: FrontBroker, queue: str, headers: dict[str, Any] | None) -> None:
    """A publish to `$queue/<name>/$commit`: the group has processed everything up to an offset, that one included."""
    told = headers or {}
    group, offset = told.get("x-group-id"), told.get("x-offset")
    if not isinstance(group, str) or not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise precondition(f"a commit needs the headers x-group-id (text) and x-offset (a number), not {told!r:.100}")
    try:
        await broker.commit(queue, group, int(offset) + 1)
    except InvalidArgument as error:
        raise precondition(str(error)) from None
