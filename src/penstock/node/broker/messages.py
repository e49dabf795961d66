"""Messages in and out: publish, claim and settle, read and commit; transactions over both.

Next stop: `node/publish/append.py`, `node/publish/transactions.py`, `node/consume/claims.py` or
`node/consume/streams.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self

import msgspec

from penstock.api.arguments import (
    WAIT_SECONDS_MAX,
    Ranges,
    check_is_text,
    check_publish_id,
    check_sequence,
    check_verdict,
    check_verdicts,
    lease_of,
    milliseconds,
    verdicts_of,
)
from penstock.api.messages import Messages, Transaction
from penstock.api.results import Claim, Lease, LeaseLike, Published, Receipt, StreamRead
from penstock.api.slices import SLICE_ITEMS, begin, ended, in_slices
from penstock.api.ticket import Ticket, ticketed
from penstock.batch import EncodedBatch
from penstock.model import (
    BATCH_MESSAGES_MAX,
    DEFAULT_GROUP,
    INTEGER_MAX,
    LOST_TURNS_MAX,
    PARTITION_CHARACTERS_MAX,
    SPAN_MS_MAX,
    Message,
    check_integer,
    check_name,
    check_text,
)
from penstock.model.errors import InvalidArgument, LeaseLost, PenstockError, WrongKind
from penstock.model.rows import slot_of
from penstock.model.verdict import Verdict, by_start, join_into
from penstock.model.work import Budget, Steps
from penstock.node.arguments import lane_of
from penstock.node.broker.names import Names
from penstock.node.consume.streams import Reader
from penstock.node.consume.waiters import Request
from penstock.node.publish import large
from penstock.node.publish.parts import (
    LARGE_BYTES,
    PART_MESSAGES,
    Part,
    Unit,
    batch_in_steps,
    parts_in_steps,
    parts_of_messages,
    route_batch,
    route_messages,
)


class LocalMessages(Names, Messages):
    """Moves messages."""

    # Publish ----------------------------------------------------------------------------------------------

    @ticketed
    def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Ticket[Published]:
        check_publish_id(publish_id)
        parts = parts_of_messages(self._target(queue), [message], None, publish_id)
        return self._publish(queue, None, [message], publish_id, 1, parts).map(Receipt.first)

    @ticketed
    def publish_many(
        self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None
    ) -> Ticket[Receipt]:
        home = self._target(queue)
        check_publish_id(publish_id)
        check_sequence(messages)
        if not messages:
            return Ticket.done(Receipt(0, []))
        if len(messages) <= PART_MESSAGES:
            parts = parts_of_messages(home, messages, None, publish_id)
            return self._publish(queue, None, messages, publish_id, len(messages), parts)
        listed = list(messages)
        return begin(
            parts_in_steps(home, listed, None, publish_id),
            lambda parts: self._publish(queue, None, listed, publish_id, len(listed), parts),
        )

    @ticketed
    def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Ticket[Receipt]:
        check_publish_id(publish_id)
        return begin(
            batch_in_steps(self._target(queue), batch, None, publish_id),
            lambda parts: self._publish(queue, None, batch, publish_id, batch.count, parts),
        )

    @ticketed
    def publish_to(
        self,
        exchange: str,
        messages: Message | Sequence[Message] | EncodedBatch,
        *,
        mandatory: bool = False,
        publish_id: str | None = None,
    ) -> Ticket[Receipt]:
        self._check("exchange", exchange, "publish")
        check_publish_id(publish_id)
        catalog, namespace = self._services.catalog, self._namespace
        listed: Sequence[Message] | EncodedBatch
        if isinstance(messages, EncodedBatch):
            listed, count = messages, messages.count
            steps = route_batch(catalog, namespace, exchange, messages, mandatory=mandatory, publish_id=publish_id)
        else:
            if not isinstance(messages, Message):
                check_sequence(messages)
            listed = [messages] if isinstance(messages, Message) else list(messages)
            count = len(listed)
            steps = route_messages(catalog, namespace, exchange, listed, mandatory=mandatory, publish_id=publish_id)

        def publish(parts: list[Part]) -> Ticket[Receipt]:
            if not parts:
                return Ticket.done(Receipt(count, []))
            return self._publish(None, exchange, listed, publish_id, count, parts)

        return begin(steps, publish)

    def _publish(
        self,
        queue: str | None,
        exchange: str | None,
        messages: Sequence[Message] | EncodedBatch,
        publish_id: str | None,
        count: int,
        parts: list[Part],
    ) -> Ticket[Receipt]:
        """Into the store or, where that is away and the node has a spool, into that; later while there is an alarm."""
        services = self._services
        size = services.publisher.check_limits(count, parts)
        if (services.alarms.low and self._is_held_back(parts)) or (size >= LARGE_BYTES and large.are_large(parts)):
            return Ticket.of(self._publish_later(queue, exchange, messages, publish_id, count, parts, size))
        if not services.spool.is_on:
            return services.publisher.publish(count, parts, size)
        unit = Unit(self._namespace, queue, exchange, messages, publish_id, count, parts, self._is_forwarded)
        return services.spool.publish(unit, size)

    async def _publish_later(
        self,
        queue: str | None,
        exchange: str | None,
        messages: Sequence[Message] | EncodedBatch,
        publish_id: str | None,
        count: int,
        parts: list[Part],
        size: int,
    ) -> Receipt:
        """When no alarm holds it back; what has many bytes is encoded on a thread first."""
        if self._services.alarms.low and self._is_held_back(parts):
            await self._services.alarms.admit(size)
        return await self._publish(queue, exchange, messages, publish_id, count, await large.encoded(parts))

    def _is_held_back(self, parts: Sequence[Part]) -> bool:
        """Whether an alarm concerns these: all but what a front must write to serve consumers."""
        exempt = self._services.alarms.exempt
        return any((part.queue.namespace, part.queue.name) not in exempt for part in parts)

    def keep_writing(self, queue: str) -> None:
        self._services.alarms.exempt.add((self._namespace, queue))

    def alarms(self) -> Sequence[str]:
        return self._services.alarms.low

    # Consume ----------------------------------------------------------------------------------------------

    async def claim(
        self,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        max: int = 1,
        min: int = 1,
        wait: float = 0.0,
        lease_seconds: float | None = None,
        partition: str | None = None,
        consumer: str | None = None,
        ack: bool = False,
        priority: int = 0,
    ) -> Claim:
        home = self._queue(queue, "consume")
        request = self._request(max, min, lease_seconds, partition, consumer, ack, priority)
        wait_ms = milliseconds(wait, "wait", 0, WAIT_SECONDS_MAX * 1000)
        check_is_text(group, "a group's name")
        chosen = home.groups.get(group) or await self._work_group(home, group)
        if chosen.config.kind != "work":
            raise WrongKind(f"group {group!r} of queue {queue!r} is a stream: read it; claims are for work groups")
        if self._session is not None:
            self._services.sessions.claimed(self._session, home, group, request.consumer)
        return await self._services.claims.claim(home, chosen, request, wait_ms)

    def _request(
        self,
        most: int,
        minimum: int,
        lease_seconds: float | None,
        partition: str | None,
        consumer: str | None,
        ack: bool,
        priority: int,
    ) -> Request:
        check_integer(most, "max", 1, BATCH_MESSAGES_MAX)
        if minimum != 1:
            check_integer(minimum, "min", 1, most)
        lease_ms = None if lease_seconds is None else milliseconds(lease_seconds, "lease_seconds", 1, SPAN_MS_MAX)
        if partition is not None:
            check_text(partition, "partition", PARTITION_CHARACTERS_MAX)
            if not partition:
                raise InvalidArgument("partition is empty; leave it out to claim from all partitions")
        name = self.consumer_name if consumer is None else check_name(consumer, "consumer")
        if priority != 0:
            check_integer(priority, "priority", -INTEGER_MAX, INTEGER_MAX)
        return Request(most, minimum, name, lease_ms, partition, bool(ack), priority, self.session_key or "")

    @ticketed
    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict], *, deferred: bool = False) -> Ticket[None]:
        if verdicts and len(verdicts) > SLICE_ITEMS:
            return Ticket.of(self._settle_many(lease, verdicts, deferred))
        check_verdicts(verdicts)
        return self._services.claims.settle(self._lease(lease), verdicts, deferred=deferred)

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Ticket[None]:
        try:
            verdicts = verdicts_of("ack", offsets)
        except PenstockError as error:
            return Ticket.failed(error)
        return self.settle(lease, verdicts)

    async def _settle_many(self, lease: LeaseLike, verdicts: Sequence[Verdict], deferred: bool) -> None:
        held = self._lease(lease)
        chosen = await _checked(verdicts)
        await self._services.claims.settle(held, chosen, deferred=deferred)

    async def settle_and_claim(
        self,
        lease: LeaseLike,
        verdicts: Sequence[Verdict] | None = None,
        *,
        max: int = 1,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Claim:
        chosen = verdicts_of("ack", None) if verdicts is None else verdicts
        if len(chosen) > SLICE_ITEMS:
            chosen = await _checked(chosen)
        else:
            check_verdicts(chosen)
        request = self._request(max, 1, lease_seconds, None, consumer, False, 0)
        held = self._lease(lease)
        home, group = self._services.claims.home_of(held)
        if home.namespace != self._namespace:
            raise LeaseLost(f"lease {held} is of namespace {home.namespace!r}; claim there")
        self._queue(home.name, "consume")  # of which this session may take messages
        home.used_ms = self._services.clock.now_ms()
        if self._session is not None:
            self._services.sessions.claimed(self._session, home, group.name, request.consumer)
        return await self._services.claims.settle_and_claim(held, chosen, home, group, request)

    def flush(self) -> None:
        self._services.commits.flush()

    def _lease(self, lease: LeaseLike) -> Lease:
        found = self._known_lease(lease)
        self._services.ownership.check(slot_of(found.lane))
        return found

    def _known_lease(self, lease: LeaseLike) -> Lease:
        """A lease, whoever owns its lane."""
        self._services.lifecycle.check_open()
        found = lease_of(lease)
        home = self._services.catalog.by_lane.get(found.lane)
        if home is not None:
            self._allow(self._caller.principal, "consume", "queue", home.namespace, home.name)
        return found

    async def extend(self, lease: LeaseLike, seconds: float | None = None) -> int:
        span_ms = None if seconds is None else milliseconds(seconds, "seconds", 1, SPAN_MS_MAX)
        return await self._services.claims.extend(self._lease(lease), span_ms)

    def transaction(self) -> LocalTransaction:
        self._services.lifecycle.check_open()
        return LocalTransaction(self)

    # Streams ----------------------------------------------------------------------------------------------

    async def read(
        self,
        queue: str,
        group: str,
        *,
        max: int = 100,
        wait: float = 0.0,
        consumer: str | None = None,
        turn: str | None = None,
        lost: Sequence[str] = (),
    ) -> StreamRead:
        home = self._queue(queue, "consume")
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        wait_ms = milliseconds(wait, "wait", 0, WAIT_SECONDS_MAX * 1000)
        name = self.consumer_name if consumer is None else check_name(consumer, "consumer")
        if turn is not None:
            check_name(turn, "turn")
        check_sequence(lost)
        if len(lost) > LOST_TURNS_MAX:
            raise InvalidArgument(f"{len(lost)} lost turns; the limit is {LOST_TURNS_MAX}")
        for one in lost:
            check_name(one, "a lost turn")
        home.used_ms = self._services.clock.now_ms()
        reader = Reader(name, turn, lost)
        return await self._services.streams.read_group(home, self._group(home, group), reader, max, wait_ms)

    async def commit(
        self, queue: str, group: str, offset: int, *, lane: int | None = None, only_forward: bool = False
    ) -> None:
        home = self._queue(queue, "consume")
        check_integer(offset, "offset", 0, INTEGER_MAX)
        place = lane_of(home, lane)
        await self._services.streams.commit_group(self._group(home, group), place, offset, only_forward=only_forward)

    async def read_from(
        self,
        queue: str,
        offset: int | None = None,
        *,
        time_ms: int | None = None,
        max: int = 100,
        lane: int | None = None,
        wait: float = 0.0,
    ) -> StreamRead:
        home = self._queue(queue, "consume")
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        wait_ms = milliseconds(wait, "wait", 0, WAIT_SECONDS_MAX * 1000)
        lane_id = lane_of(home, lane)
        start = await self._place(lane_id, offset, time_ms)
        return await self._services.streams.read_offsets(home, lane_id, start, max, wait_ms)


async def _checked(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Many verdicts, looked at in slices; carried out later in one step, as few as mean the same."""
    joined: list[Verdict] = []

    def check(some: Sequence[Verdict]) -> tuple[()]:
        check_verdicts(some)
        return ()

    def join(some: Sequence[Verdict]) -> tuple[()]:
        join_into(joined, some)
        return ()

    await in_slices(verdicts, check)
    if any(verdict.start is None for verdict in verdicts):
        return list(verdicts)
    await in_slices(sorted(verdicts, key=by_start), join)
    return joined


class LocalTransaction(Transaction):
    """Collects parts and verdicts for one commit. What is long is checked and encoded then, in turns with others."""

    def __init__(self, broker: LocalMessages) -> None:
        self._broker = broker
        self._settles: dict[Lease, list[Verdict]] = {}
        self._publishes: list[tuple[int, Callable[[], Awaitable[list[Part]]] | list[Part]]] = []
        """The place of the first message of each, and its parts or what leads to them."""
        self._budget = Budget()
        self._count = 0

    def publish(self, queue: str, *messages: Message) -> Self:
        return self._add(parts_in_steps(self._broker._known_target(queue), messages), len(messages))

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        catalog, namespace = self._broker._services.catalog, self._broker._namespace
        self._broker._check("exchange", exchange, "publish")
        steps = route_messages(catalog, namespace, exchange, messages, mandatory=False, budget=self._budget)
        return self._add(steps, len(messages))

    def _add(self, steps: Steps[list[Part]], count: int) -> Self:
        try:
            asked = next(steps)
        except StopIteration as end:
            self._publishes.append((self._count, end.value))
        else:
            self._publishes.append((self._count, partial(ended, steps, asked)))
        self._count += count
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        if len(verdicts) <= SLICE_ITEMS:
            for verdict in verdicts:
                check_verdict(verdict)
        self._settles.setdefault(self._broker._known_lease(lease), []).extend(verdicts)
        return self

    async def _commit(self) -> Receipt:
        services = self._broker._services
        services.lifecycle.check_open()
        for lease, verdicts in self._settles.items():
            if len(verdicts) > SLICE_ITEMS:
                self._settles[lease] = await _checked(verdicts)
        parts: list[Part] = []
        for first, found in self._publishes:
            made = found if isinstance(found, list) else await found()
            parts += [_placed(part, first) for part in made]
        if services.alarms.low and self._broker._is_held_back(parts):
            await services.alarms.admit(sum(part.size for part in parts))
        services.publisher.check_limits(self._count, parts)
        return await services.transactions.commit(self._settles, self._count, await large.encoded(parts))


def _placed(part: Part, first: int) -> Part:
    """A part of a publish whose messages begin at a place of the transaction."""
    if part.indexes is None:
        return msgspec.structs.replace(part, indexes=range(first, first + part.count))
    return msgspec.structs.replace(part, indexes=[first + index for index in part.indexes]) if first else part
