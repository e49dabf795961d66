"""The broker's face: every operation a user or a front can ask for, typed and checked, on one namespace.

Arguments are checked here, once, with errors that name the value and the limit; the modules beside this one do
the work. Each method returns when what it did is durable. `penstock.open` gives you one of these.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import msgspec

from penstock.batch import EncodedBatch
from penstock.core.events import Delivery
from penstock.core.filters import parse
from penstock.core.lane import Lane
from penstock.core.work import Verdict
from penstock.delivery import Claim, Lease, Published, Receipt, Scan
from penstock.errors import Forbidden, InvalidArgument, NotFound, WrongKind
from penstock.model import (
    BATCH_MESSAGES_MAX,
    DEFAULT_GROUP,
    DEFAULT_NAMESPACE,
    EVENTS_QUEUE,
    INTEGER_MAX,
    NAME_CHARACTERS_MAX,
    PARTITION_CHARACTERS_MAX,
    PAYLOAD_BYTES_MAX,
    SPAN_MS_MAX,
    TIME_MS_MAX,
    Binding,
    Headers,
    Message,
    check_headers,
    check_integer,
    check_name,
    check_text,
    options_of,
)
from penstock.node import (
    claims,
    deadletters,
    declarations,
    lane_places,
    live,
    publishing,
    routes,
    scans,
    schedules,
    sessions,
    statistics,
    streams,
    traces,
    transactions,
)
from penstock.node import history as histories
from penstock.node import marks as documents
from penstock.node import slots as holdings
from penstock.node.arguments import (
    Ranges,
    check_ids,
    check_is_text,
    check_publish_id,
    check_sequence,
    check_verdict,
    choice_of,
    lane_of,
    milliseconds,
    place_after,
    verdicts_of,
)
from penstock.node.catalog import Group, Queue
from penstock.node.deadletters import DeadMessage, DeadPage, DeadRanges, DeadReason
from penstock.node.enqueueing import FAILED_MAX, FailedPage
from penstock.node.history import HistoryEntry
from penstock.node.lane_places import Extent, QueueLanes
from penstock.node.marks import Mark, MarkPage, MarkPut
from penstock.node.node import Node
from penstock.node.parts import Part
from penstock.node.polls import Request
from penstock.node.schedules import Schedule
from penstock.node.spooling import SpoolNumbers, Unit
from penstock.node.staged import Committed, Staged, StagedChunk, check_target
from penstock.node.statistics import QueueStats
from penstock.node.streams import Page, StreamRead
from penstock.node.survey import NodeNumbers
from penstock.node.traces import Trace
from penstock.rows import REGISTRAR_SLOT, home_slot, slot_of

WAIT_SECONDS_MAX = 3_600
LeaseLike = Claim | Lease | str
_DONE: Final = (Verdict("ack"),)
"""What nearly every consumer says of all that it was given."""
_consumers = itertools.count(1)


class Broker:
    """An open broker, seen from one namespace and, perhaps, one session."""

    def __init__(self, node: Node, namespace: str, session: str | None = None) -> None:
        self._node = node
        self._namespace = namespace
        self._session = session
        self.consumer = session or f"consumer-{next(_consumers)}"
        """The name under which this broker claims unless another is given."""
        self.namespace = namespace
        self.cluster = node.cluster
        """This node's place among others; None where it has its store for itself."""
        self._claimed: set[tuple[int, str, str]] = set()
        """(queue, group, consumer) of a session's claims: what they hold ends with it."""

    # Life -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what is under way and release the store. Leases stay; their messages come back in time."""
        await self._node.close()

    async def __aenter__(self) -> Broker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def drain(self) -> None:
        """Answer everyone who waits for messages, with nothing, and let nobody wait any more: before a stop."""
        self._node.draining = True
        self._node.polls.drain()

    def in_namespace(self, namespace: str) -> Broker:
        """The same broker with another namespace's queues and exchanges."""
        broker = Broker(self._node, check_name(namespace, "a namespace"), self._session)
        broker._claimed = self._claimed
        return broker

    @asynccontextmanager
    async def session(self, name: str) -> AsyncIterator[Broker]:
        """A broker bound to a session: its exclusive queues and what it has leased end with it."""
        session = self.begin_session(name)
        try:
            yield session
        finally:
            await session.end_session()

    def begin_session(self, name: str) -> Broker:
        """The same for who ends it himself, with `end_session` on what this returns."""
        return Broker(self._node, self._namespace, check_name(name, "a session"))

    def new_session_name(self) -> str:
        """A name for a session that tells whose it is: what it holds returns at once where this process is gone."""
        cluster, token = self._node.cluster, secrets.token_hex(8)
        return holdings.session_name(self._node.incarnation if cluster is None else cluster.incarnation, token)

    async def end_session(self) -> None:
        """Delete the session's exclusive queues and give back what it has leased. Safe to do again."""
        name = self._session
        if name is None or self._node.closed:
            return
        await sessions.end(self._node, name, self._claimed)
        if self._node.cluster is not None:
            await self._node.cluster.session_ended(name)

    def _queue(self, name: str) -> Queue:
        self._node.check_open()
        check_is_text(name, "a queue's name")
        queue = self._node.find_queue(self._namespace, name)
        if queue.session is not None and queue.session != self._session:
            raise Forbidden(f"queue {name!r} is exclusive to another session")
        return queue

    def _target(self, name: str) -> Queue:
        """A queue to publish to. Anybody may answer into a session's own queue; reading it is the session's alone."""
        self._node.check_open()
        check_is_text(name, "a queue's name")
        queue = self._node.spooling.taken_for(self._namespace, name)
        if queue is None:
            queue = self._node.find_queue(self._namespace, name)
        if queue.name.startswith("$"):
            raise Forbidden(f"queue {name!r} is written by the broker alone")
        return queue

    def _known_target(self, name: str) -> Queue:
        """The same, whoever owns it: for what is not done in that queue alone."""
        self._node.check_open()
        check_is_text(name, "a queue's name")
        queue = self._node.catalog.queue(self._namespace, name)
        if queue.name.startswith("$"):
            raise Forbidden(f"queue {name!r} is written by the broker alone")
        return queue

    def _check_registrar(self) -> None:
        self._node.check_open()
        self._node.check_slot(REGISTRAR_SLOT)

    def _check_exchange(self, name: str) -> None:
        self._node.check_open()
        check_is_text(name, "an exchange's name")

    def _group(self, queue: Queue, name: str) -> Group:
        check_is_text(name, "a group's name")
        group = queue.groups.get(name)
        if group is None:
            raise NotFound(f"queue {queue.name!r} has no group {name!r}; declare it first")
        return group

    async def _work_group(self, queue: Queue, name: str) -> Group:
        """The group; the default one is made when it is first wanted."""
        if name == DEFAULT_GROUP and name not in queue.groups:
            return await declarations.declare_group(self._node, queue, name, {})
        return self._group(queue, name)

    # Declarations -----------------------------------------------------------------------------------------

    async def declare_queue(self, name: str, **options: Any) -> None:
        """Create a queue, or change the options named here of the one that exists (see `QueueConfig`)."""
        self._node.check_open()
        check_name(name, "a queue's name")
        if (self._namespace, name) in self._node.catalog.queues:
            self._queue(name)
        else:
            self._node.check_slot(home_slot(self._namespace, name))
        await declarations.declare_queue(self._node, self._namespace, name, options, self._session)

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it."""
        await declarations.delete_queue(self._node, self._queue(name))

    async def declare_group(self, queue: str, name: str, **options: Any) -> None:
        """Create a consumer group, or change the options named here (see `GroupConfig`)."""
        await declarations.declare_group(self._node, self._queue(queue), name, options)

    async def delete_group(self, queue: str, name: str) -> None:
        """Delete a group with its leases, waiting and dead messages."""
        home = self._queue(queue)
        await declarations.delete_group(self._node, home, self._group(home, name))

    async def declare_exchange(self, name: str, **options: Any) -> None:
        """Create an exchange (see `ExchangeConfig`)."""
        self._check_registrar()
        self._check_exchange(name)
        await declarations.declare_exchange(self._node, self._namespace, name, options)

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange with the bindings from and to it."""
        self._check_registrar()
        self._check_exchange(name)
        await declarations.delete_exchange(self._node, self._namespace, name)

    async def bind(
        self,
        exchange: str,
        target: str,
        pattern: str = "",
        *,
        target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None,
        match: Literal["all", "any"] = "all",
    ) -> None:
        """Bind a queue (or exchange) to an exchange: see `Binding` for what the pattern means to each kind."""
        binding = self._binding(exchange, target, pattern, target_kind, headers, match)
        await declarations.bind(self._node, self._namespace, binding)

    async def unbind(
        self,
        exchange: str,
        target: str,
        pattern: str = "",
        *,
        target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None,
        match: Literal["all", "any"] = "all",
    ) -> None:
        """Remove a binding."""
        binding = self._binding(exchange, target, pattern, target_kind, headers, match)
        await declarations.unbind(self._node, self._namespace, binding)

    def _binding(
        self,
        exchange: str,
        target: str,
        pattern: str,
        target_kind: Literal["queue", "exchange"],
        headers: Headers | None,
        match: Literal["all", "any"],
    ) -> Binding:
        self._check_registrar()
        self._check_exchange(exchange)
        if target_kind not in ("queue", "exchange"):
            raise InvalidArgument(f"target_kind is {target_kind!r}; it must be queue or exchange")
        if match not in ("all", "any"):
            raise InvalidArgument(f"match is {match!r}; it must be all or any")
        if headers is not None:
            check_headers(headers)
        if target_kind == "queue":
            self._known_target(target)
        else:
            self._check_exchange(target)
        return Binding(
            exchange=exchange, target=target, target_kind=target_kind, pattern=pattern, headers=headers, match=match
        )

    def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The queues of this namespace by name, each with its options that differ from the defaults.

        With a prefix, only those whose names begin so.
        """
        return {
            queue.name: options_of(queue.config)
            for queue in self._node.catalog.queues.values()
            if queue.namespace == self._namespace and not queue.deleting and queue.name.startswith(prefix)
        }

    def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name in this namespace."""
        queue = self._node.catalog.queues.get((self._namespace, name))
        return queue is not None and not queue.deleting

    def queue_options(self, name: str) -> dict[str, Any]:
        """The options of one queue that differ from the defaults."""
        return options_of(self._queue(name).config)

    def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        """The groups of a queue by name, each with its options that differ from the defaults."""
        return {group.name: options_of(group.config) for group in self._queue(queue).groups.values()}

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """The exchanges of this namespace by name, each with its options that differ from the defaults."""
        self._node.check_open()
        declared = self._node.catalog.router(self._namespace).exchanges()
        return {name: options_of(config) for name, config in declared.items()}

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""
        self._check_exchange(exchange)
        return self._node.catalog.router(self._namespace).bindings(exchange)

    # Publish ----------------------------------------------------------------------------------------------

    async def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Published:
        """Publish one message; returns when it is durable."""
        check_publish_id(publish_id)
        parts = publishing.parts_of_messages(self._target(queue), [message], None, publish_id)
        return (await self._publish(queue, None, [message], publish_id, 1, parts)).first()

    async def publish_many(self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None) -> Receipt:
        """Publish messages together, all or none, in their order.

        `publish_id` names the whole of it: publishing it again under the same id, within the queue's dedup window,
        changes nothing and says where the messages are. One id for many messages costs far less than one each.
        """
        home = self._target(queue)
        check_publish_id(publish_id)
        check_sequence(messages)
        if not messages:
            return Receipt(0, [])
        parts = publishing.parts_of_messages(home, messages, None, publish_id)
        return await self._publish(queue, None, messages, publish_id, len(messages), parts)

    def publish_now(self, queue: str, messages: Sequence[Message]) -> asyncio.Future[None] | None:
        """`publish_many` without a task: the messages are in their queue when this returns, durable when that is done.

        None, and nothing was done, where something must be waited for first: `publish_many` does that.
        """
        if not messages or self._node.cluster is not None or self._node.spooling.is_on:
            return None
        parts = publishing.parts_of_messages(self._target(queue), messages)
        return publishing.publish_now(self._node, len(messages), parts)

    @property
    def can_begin(self) -> bool:
        """Whether `begin_publish` and `begin_settle` are of use: not among several nodes, nor with a spool."""
        return self._node.cluster is None and not self._node.spooling.is_on

    def begin_publish(
        self, queue: str, messages: Sequence[Message] | EncodedBatch, publish_id: str | None
    ) -> tuple[asyncio.Future[None], Receipt] | None:
        """`publish_many` or `publish_batch` without a task: the receipt is true when the future is done.

        None, and nothing was done, where something must be waited for first. Only where `can_begin`.
        """
        home = self._target(queue)
        check_publish_id(publish_id)
        if isinstance(messages, EncodedBatch):
            count, parts = messages.count, publishing.parts_of_batch(home, messages, None, publish_id)
        else:
            count, parts = len(messages), publishing.parts_of_messages(home, messages, None, publish_id)
        return publishing.begin(self._node, count, parts)

    async def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Receipt:
        """Publish an encoded batch, stored as it is: the fastest way in."""
        check_publish_id(publish_id)
        parts = publishing.parts_of_batch(self._target(queue), batch, None, publish_id)
        return await self._publish(queue, None, batch, publish_id, batch.count, parts)

    async def publish_to(
        self,
        exchange: str,
        messages: Message | Sequence[Message] | EncodedBatch,
        *,
        mandatory: bool = False,
        publish_id: str | None = None,
    ) -> Receipt:
        """Publish to an exchange: each message goes to every queue that its key and headers lead to, or to none.

        With `mandatory`, a message that reaches no queue raises `Unroutable` and nothing is published.
        """
        self._check_exchange(exchange)
        check_publish_id(publish_id)
        listed: Sequence[Message] | EncodedBatch
        if isinstance(messages, EncodedBatch):
            listed, count = messages, messages.count
            parts = routes.route_batch(
                self._node, self._namespace, exchange, messages, mandatory=mandatory, publish_id=publish_id
            )
        else:
            listed = [messages] if isinstance(messages, Message) else messages
            check_sequence(listed)
            count = len(listed)
            parts = routes.route_messages(
                self._node, self._namespace, exchange, listed, mandatory=mandatory, publish_id=publish_id
            )
        if not parts:
            return Receipt(count, [])
        return await self._publish(None, exchange, listed, publish_id, count, parts)

    async def _publish(
        self,
        queue: str | None,
        exchange: str | None,
        messages: Sequence[Message] | EncodedBatch,
        publish_id: str | None,
        count: int,
        parts: list[Part],
    ) -> Receipt:
        """Into the store or, where that is away and the node has a spool, into that."""
        spooling = self._node.spooling
        if not spooling.is_on:
            return await publishing.publish(self._node, count, parts)
        return await spooling.publish(Unit(self._namespace, queue, exchange, messages, publish_id, count, parts))

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
        """Lease up to `max` messages, waiting up to `wait` seconds for the first `min` of them.

        The messages are this consumer's until the lease ends; settle them before, or extend it. With `ack` they are
        done as they are handed out: at most once. Without a message in time the claim is empty. Of several claims that
        wait, those with a higher `priority` are served first.
        """
        home = self._queue(queue)
        request = self._request(max, min, lease_seconds, partition, consumer, ack, priority)
        wait_ms = milliseconds(wait, "wait", 0, WAIT_SECONDS_MAX * 1000)
        check_is_text(group, "a group's name")
        chosen = home.groups.get(group) or await self._work_group(home, group)
        if chosen.config.kind != "work":
            raise WrongKind(f"group {group!r} of queue {queue!r} is a stream: read it; claims are for work groups")
        home.used_ms = self._node.clock.now_ms()
        if self._session is not None:
            self._claimed.add((home.id, group, request.consumer))
        return await claims.claim(self._node, home, chosen, request, wait_ms)

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
        check_integer(minimum, "min", 1, most)
        lease_ms = None if lease_seconds is None else milliseconds(lease_seconds, "lease_seconds", 1, SPAN_MS_MAX)
        check_text(partition, "partition", PARTITION_CHARACTERS_MAX)
        if partition == "":
            raise InvalidArgument("partition is empty; leave it out to claim from all partitions")
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        check_integer(priority, "priority", -INTEGER_MAX, INTEGER_MAX)
        return Request(most, minimum, name, lease_ms, partition, bool(ack), priority, self._session is None)

    async def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> None:
        """Carry out any mix of verdicts on messages of a lease, all or none.

        Raises `LeaseLost` when the lease has ended, or some of the messages were settled before.
        """
        if not verdicts:
            raise InvalidArgument("settle needs at least one verdict")
        for verdict in verdicts:
            check_verdict(verdict)
        await claims.settle(self._node, self._lease(lease), verdicts)

    def begin_settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> asyncio.Future[None] | None:
        """`settle` without a task: done when the future is.

        None, and nothing was done, where something must be waited for first. Only where `can_begin`.
        """
        for verdict in verdicts:
            check_verdict(verdict)
        return claims.begin_settle(self._node, self._lease(lease), verdicts)

    async def settle_in_passing(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> None:
        """`settle` for acks that nobody waits for.

        They are durable with the next commit, or with one of their own a few milliseconds later or when `hurry` is
        called.
        """
        for verdict in verdicts:
            check_verdict(verdict)
        await claims.settle(self._node, self._lease(lease), verdicts, in_passing=True)

    def hurry(self) -> None:
        """Somebody waits for what was settled in passing."""
        self._node.commits.hurry()

    def _lease(self, lease: LeaseLike) -> Lease:
        found = self._known_lease(lease)
        self._node.check_slot(slot_of(found.lane))
        return found

    def _known_lease(self, lease: LeaseLike) -> Lease:
        """A lease, whoever owns its lane."""
        self._node.check_open()
        if isinstance(lease, Claim):
            if lease.lease is None:
                raise InvalidArgument(
                    "this claim holds no lease: it is empty, or was acknowledged as it was handed out"
                )
            return lease.lease
        return lease if isinstance(lease, Lease) else Lease.parse(lease)

    async def ack(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """These messages are done (all of the lease without offsets)."""
        await self.settle(lease, _DONE if offsets is None else verdicts_of("ack", offsets))

    async def nack(
        self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = ""
    ) -> None:
        """These failed: again after a backoff (or `delay` seconds), dead after the last attempt."""
        delay_ms = None if delay is None else milliseconds(delay, "delay", 0, SPAN_MS_MAX)
        await self.settle(lease, verdicts_of("nack", offsets, delay_ms, error))

    async def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> None:
        """These will never succeed: dead at once, with the error."""
        await self.settle(lease, verdicts_of("reject", offsets, None, error))

    async def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> None:
        """These again after `delay` seconds, without spending an attempt; an ordered partition waits for them."""
        delay_ms = milliseconds(delay, "delay", 0, SPAN_MS_MAX)
        await self.settle(lease, verdicts_of("postpone", offsets, delay_ms))

    async def release(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """These back at once, as if never handed out."""
        await self.settle(lease, verdicts_of("release", offsets))

    async def extend(self, lease: LeaseLike, seconds: float | None = None) -> int:
        """Keep the lease for another span from now (the queue's, unless given); its new deadline in milliseconds since
        the epoch.
        """
        span_ms = None if seconds is None else milliseconds(seconds, "seconds", 1, SPAN_MS_MAX)
        return await claims.extend(self._node, self._lease(lease), span_ms)

    def transaction(self) -> Transaction:
        """Collect verdicts and publishes to commit as one: `async with broker.transaction() as t: …`."""
        self._node.check_open()
        return Transaction(self)

    # Consumers that are known to come and go --------------------------------------------------------------

    async def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        """Say that a consumer is there; its name. Queues with `auto_delete` live as long as one is.

        With `exclusive` it is the queue's only one: `Forbidden` where another is there, and for all that come after it.
        """
        home = self._queue(queue)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        if group:  # '' is none: who reads from an offset on needs none
            await self._work_group(home, group)
        place = (group, name)
        if home.only_consumer not in (None, place):
            raise Forbidden(f"queue {queue!r} has a consumer that is there alone, by its own wish")
        if exclusive and home.consumers - {place}:
            raise Forbidden(f"queue {queue!r} has {len(home.consumers - {place})} consumers; none can be alone there")
        home.consumers |= {place}
        home.had_consumer = True
        home.only_consumer = place if exclusive else None
        return name

    async def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        """Say that a consumer has gone: what it holds returns at once, counted as an attempt.

        With `keep` it takes no more, and may still settle what it holds; detached again without, that returns too.
        """
        home = self._queue(queue)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        chosen = self._group(home, group) if group else None
        await sessions.consumer_left(self._node, home, chosen, name, keep=keep)
        if not keep:
            self._claimed.discard((home.id, group, name))

    async def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        """Answer the claims that wait for this consumer now: with nothing, unless messages were on their way to it."""
        home = self._queue(queue)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        self._node.polls.stop_waiting(home, self._group(home, group), name)

    # Streams ----------------------------------------------------------------------------------------------

    async def read(
        self, queue: str, group: str, *, max: int = 100, wait: float = 0.0, consumer: str | None = None
    ) -> StreamRead:
        """The next messages for a stream group, waiting up to `wait` seconds for the first."""
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        wait_ms = milliseconds(wait, "wait", 0, WAIT_SECONDS_MAX * 1000)
        name = self.consumer if consumer is None else check_name(consumer, "consumer")
        home.used_ms = self._node.clock.now_ms()
        return await streams.read_group(self._node, home, self._group(home, group), name, max, wait_ms)

    async def commit(
        self, queue: str, group: str, offset: int, *, lane: int | None = None, only_forward: bool = False
    ) -> None:
        """A stream group has processed everything below `offset` (of lane 0, 1, 2 …, where the queue has several).

        With `only_forward`, nothing changes where the group has come further than that.
        """
        home = self._queue(queue)
        check_integer(offset, "offset", 0, INTEGER_MAX)
        place = lane_of(home, lane)
        await streams.commit_group(self._node, self._group(home, group), place, offset, only_forward=only_forward)

    async def read_from(
        self, queue: str, offset: int | None = None, *, time_ms: int | None = None, max: int = 100,
        lane: int | None = None, wait: float = 0.0,
    ) -> StreamRead:  # fmt: skip
        """Messages of the log from an offset or a time on (from the beginning without either); no group needed.

        Where there are none yet, it waits up to `wait` seconds for the first.
        """
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        wait_ms = milliseconds(wait, "wait", 0, WAIT_SECONDS_MAX * 1000)
        lane_id = lane_of(home, lane)
        start = await self._place(lane_id, offset, time_ms)
        return await streams.read_offsets(self._node, home, lane_id, start, max, wait_ms)

    async def lanes(self, queue: str, time_ms: int | None = None) -> QueueLanes:
        """Where each lane of a queue begins and ends; with `time_ms` also the first offset from that time on."""
        if time_ms is not None:
            check_integer(time_ms, "time_ms", 0, TIME_MS_MAX)
        return await lane_places.queue_lanes(self._node, self._queue(queue), time_ms)

    async def scan(
        self,
        queue: str,
        lane: int,
        start: int,
        end: int,
        *,
        payload: bool = True,
        metadata: bool = True,
        where: str | None = None,
        group: str | None = None,
        max_bytes: int | None = None,
    ) -> Scan:
        """A part of [start, end) of a lane's log, batches as they are stored; go on with `start=scan.next_offset`.

        `where` is a condition on metadata; with `group` each slice says what that group is not done with. `max_bytes`
        bounds one answer, which holds one batch at least. Scans wait for each other, and leave half of the node's time
        to others.
        """
        home = self._queue(queue)
        check_integer(start, "start", 0, INTEGER_MAX)
        check_integer(end, "end", 0, INTEGER_MAX)
        bytes_most = scans.SCAN_BYTES if max_bytes is None else max_bytes
        check_integer(bytes_most, "max_bytes", 1, scans.SCAN_BYTES_MAX)
        wanted = scans.Wanted(
            payload,
            metadata,
            None if where is None else parse(where),
            None if group is None else self._group(home, group),
        )
        return await scans.scan(self._node, home, lane_of(home, lane), start, end, wanted, bytes_most)

    async def extent(
        self, queue: str, lane: int, start: int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Extent:
        """How far a read from `start` may go within so many messages and bytes: whole batches, one at least."""
        home = self._queue(queue)
        check_integer(start, "start", 0, INTEGER_MAX)
        if max_rows is not None:
            check_integer(max_rows, "max_rows", 1, INTEGER_MAX)
        if max_bytes is not None:
            check_integer(max_bytes, "max_bytes", 1, INTEGER_MAX)
        return await lane_places.extent(self._node, home, lane_of(home, lane), start, max_rows, max_bytes)

    async def _place(self, lane_id: int, offset: int | None, time_ms: int | None) -> int:
        if offset is not None:
            return check_integer(offset, "offset", 0, INTEGER_MAX)
        if time_ms is not None:
            check_integer(time_ms, "time_ms", 0, TIME_MS_MAX)
        return await declarations.offset_at(self._node, lane_id, "beginning" if time_ms is None else time_ms)

    async def seek(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move a group: everything before the place is done, everything from it on is new again.

        Leases that are out end; settling them afterwards raises `LeaseLost`. Dead messages before the place stay.
        """
        home = self._queue(queue)
        if sum(value is not None for value in (to, offset, time_ms)) != 1:
            raise InvalidArgument("seek needs one of to='first', to='last', offset= or time_ms=")
        if to not in (None, "first", "last"):
            raise InvalidArgument(f"to is {to!r}; it must be first or last")
        chosen = await self._work_group(home, group)
        for lane_id in home.lanes if lane is None and offset is None else [lane_of(home, lane)]:
            if to is not None:
                place = await declarations.offset_at(self._node, lane_id, "beginning" if to == "first" else "now")
            else:
                place = await self._place(lane_id, offset, time_ms)
            await self._seek(lane_id, chosen, place)

    async def _seek(self, lane_id: int, group: Group, offset: int) -> None:
        def command(lane: Lane) -> asyncio.Future[None]:
            if not lane.first <= offset <= lane.visible_end:
                raise InvalidArgument(f"offset is {offset}; the lane has {lane.first} to {lane.visible_end}")
            lane.dirty = True
            lane.groups[group.id].seek(self._node.clock.now_ms(), offset)
            return self._node.commits.changed(lane)

        await (await self._node.lanes.run(lane_id, command))

    async def browse(
        self,
        queue: str,
        *,
        group: str | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
        partition: str | None = None,
        state: Literal["ready", "leased", "waiting", "dead", "done"] | None = None,
        filter: str | None = None,
        max: int = 100,
        after: tuple[int, int] | None = None,
    ) -> Page:
        """Look at messages without touching them, lane after lane; go on with `after=page.next`.

        Begins at a lane (0 is the first), an offset or a time where one is given. `state` is what a group (the default
        one unless named) makes of a message.
        """
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        check_text(partition, "partition", PARTITION_CHARACTERS_MAX)
        states = ("ready", "leased", "waiting", "dead", "done")
        if state is not None and state not in states:
            raise InvalidArgument(f"state is {state!r}; it must be one of {', '.join(states)}")
        chosen = None
        if group is not None or state is not None:
            chosen = self._group(home, group or DEFAULT_GROUP)
        elif DEFAULT_GROUP in home.groups:
            chosen = home.groups[DEFAULT_GROUP]
        start = after
        if start is None and (lane is not None or offset is not None or time_ms is not None):
            lane_id = lane_of(home, lane)
            start = (lane_id, await self._place(lane_id, offset, time_ms))
        elif start is not None:
            start = place_after(start, home)
        condition = None if filter is None else parse(filter)
        return await streams.browse(
            self._node, home, chosen, start, max, partition=partition, state=state, condition=condition
        )

    def follow_events(
        self, *, queue: str | None = None, group: str | None = None, after: int | None = None, pause: float = 15.0
    ) -> AsyncIterator[list[tuple[int, Delivery]]]:
        """What happens to messages of this namespace, live, each with its offset in `$events`. Of this node's queues.

        From now on, or after an offset. Without an event for `pause` seconds an empty list comes, so that whoever
        passes them on can say that it is still there. Ends when the broker does.
        """
        if self._node.cluster is None:
            self._node.catalog.queue(DEFAULT_NAMESPACE, EVENTS_QUEUE)  # raises where events are not kept
        return live.follow(self._node, self._namespace, queue, group, after, pause)

    async def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        """What happened to one message: each hand-out and how it ended, as far back as `$events` is kept."""
        home = self._queue(queue)
        check_integer(offset, "offset", 0, INTEGER_MAX)
        return await histories.history(self._node, home, lane_of(home, lane), offset)

    # Traces -----------------------------------------------------------------------------------------------

    async def trace_event(
        self, trace_id: str, name: str, *, detail: str = "", queue: str | None = None, lane: int | None = None,
        offset: int | None = None, consumer: str | None = None,
    ) -> None:  # fmt: skip
        """Note something by its name on a trace's timeline: about a message, where its queue and offset are given.

        The message may be done and gone, but must have been there. Kept for a week.
        """
        self._node.check_open()
        traces.check_trace_id(trace_id)
        check_name(name, "an event's name")
        traces.check_detail(detail)
        by = self.consumer if consumer is None else check_name(consumer, "consumer")
        place: tuple[Queue, int, int] | None = None
        if queue is None or offset is None:
            if any(value is not None for value in (queue, lane, offset)):
                raise InvalidArgument("an event about a message needs queue and offset; name both, or neither")
        else:
            home = self._queue(queue)
            place = (home, lane_of(home, lane), check_integer(offset, "offset", 0, INTEGER_MAX))
        await self._node.traces.event(self._namespace, trace_id, name, detail, by, place)

    async def trace(self, trace_id: str, *, max: int = 1_000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """
        self._node.check_open()
        check_integer(max, "max", 1, traces.ENTRIES_MAX)
        return await traces.trace(self._node, self._namespace, traces.check_trace_id(trace_id), max)

    # Schedules --------------------------------------------------------------------------------------------

    async def declare_schedule(
        self,
        name: str,
        *,
        message: Message,
        queue: str | None = None,
        exchange: str | None = None,
        cron: str | None = None,
        interval_ms: int | None = None,
        timezone: str = "UTC",
        paused: bool = False,
        description: str = "",
    ) -> Schedule:
        """Publish a message to a queue or exchange again and again. Replaces the schedule of that name if there is one.

        `cron` has five fields, or six with seconds first, read in `timezone`. `interval_ms` is at least 100; its ticks
        are its whole multiples since the epoch. Each tick publishes one message, with the headers `schedule` (the name)
        and `scheduled_ms` (the tick). Ticks that were missed because no broker ran are made up for by one message, that
        of the latest; those missed while paused are not. Where the clocks change, a five-field expression with a fixed
        minute and hour fires once a day: at the first minute after a gap, and the first of two equal times; all others
        follow real time.
        """
        self._check_registrar()
        document = schedules.check_schedule(
            self._namespace, name, message, queue=queue, exchange=exchange, cron=cron, interval_ms=interval_ms,
            timezone=timezone, paused=paused, description=description, now_ms=self._node.clock.now_ms(),
        )  # fmt: skip
        if queue is not None and self._known_target(queue).session is not None:
            raise Forbidden(f"queue {queue!r} is exclusive and goes with its session; a schedule needs one that stays")
        if exchange is not None:
            self._check_exchange(exchange)
            # Whether messages may be published there at all; that no queue takes them yet is no error.
            self._node.catalog.router(self._namespace).route(exchange, message.key or "", message.headers, message)
        return await self._node.schedules.declare(self._namespace, name, document)

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""
        self._check_registrar()
        check_is_text(name, "a schedule's name")
        await self._node.schedules.delete(self._namespace, name)

    def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""
        self._check_registrar()
        check_is_text(name, "a schedule's name")
        return self._node.schedules.one(self._namespace, name)

    def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""
        self._check_registrar()
        return self._node.schedules.all(self._namespace)

    # Enqueued by applications -----------------------------------------------------------------------------

    async def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: go on with `after=page.next`.
        """
        self._node.check_open()
        check_integer(after, "after", 0, INTEGER_MAX)
        check_integer(max, "max", 1, FAILED_MAX)
        return await self._node.enqueueing.page(self._namespace, after, max)

    async def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Try enqueued messages again that could not be published, all of this namespace unless some are named.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """
        self._node.check_open()
        return await self._node.enqueueing.retry(self._namespace, check_ids(ids))

    async def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Let enqueued messages go that could not be published, all of this namespace unless some are named.

        Returns how many.
        """
        self._node.check_open()
        return await self._node.enqueueing.purge(self._namespace, check_ids(ids))

    # Marks ------------------------------------------------------------------------------------------------

    def marks(self, prefix: str = "") -> list[Mark]:
        """The marks of this namespace whose names begin with `prefix`, by name."""
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        return documents.named(self._node, self._namespace, prefix)

    def marks_page(self, prefix: str = "", *, after: str = "", max: int = 1_000) -> MarkPage:
        """The same page by page, with values as JSON text: go on with `after=page.next`."""
        self._check_registrar()
        check_text(prefix, "prefix", NAME_CHARACTERS_MAX)
        check_text(after, "after", NAME_CHARACTERS_MAX)
        check_integer(max, "max", 1, 1_000)
        return documents.page(self._node, self._namespace, prefix, after, max)

    def mark(self, name: str) -> Mark:
        """A mark: its value and version; `NotFound` where there is none."""
        self._check_registrar()
        check_is_text(name, "a mark's name")
        return documents.one(self._node, self._namespace, name)

    async def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        """Put a mark: any JSON value under a name, durably.

        With `expected_version` only if it has that version now (0: only if there is none); `MarkMoved` otherwise.
        """
        self._check_registrar()
        return await documents.put(self._node, self._namespace, MarkPut(name, value, expected_version))

    async def delete_mark(self, name: str) -> None:
        """Delete a mark; a later one of the same name begins at version 1."""
        self._check_registrar()
        check_is_text(name, "a mark's name")
        await documents.delete(self._node, self._namespace, name)

    # Staging ----------------------------------------------------------------------------------------------

    async def stage(
        self,
        transaction: str,
        chunk: str,
        batch: EncodedBatch,
        *,
        queue: str | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
    ) -> None:
        """Keep a batch for a queue or exchange durably, invisible until `commit_staged` names its chunk.

        The first batch under a chunk's name is kept; staging it again changes nothing, and so does staging for a
        transaction that is committed. With `routing_key`, for an exchange, every message of the batch gets that key.
        """
        self._check_registrar()
        place = self._staged(transaction)
        if check_name(chunk, "a chunk's name") == "commit":
            raise InvalidArgument("a chunk cannot be named 'commit', which is what its transaction's path ends with")
        check_target(queue, exchange, routing_key)
        if not isinstance(batch, EncodedBatch):
            raise InvalidArgument(f"a batch must be a penstock.EncodedBatch, not {type(batch).__name__}")
        payload_most = PAYLOAD_BYTES_MAX
        if queue is not None:
            home = self._known_target(queue)
            payload_most = home.config.max_message_bytes
            if home.session is not None:
                raise Forbidden(f"queue {queue!r} is exclusive and goes with its session; stage for one that stays")
        elif exchange not in self._node.catalog.router(self._namespace).exchanges():
            raise NotFound(f"there is no exchange {exchange!r}; declare it first")
        publishing.check_size(self._node, batch.count, batch.size)
        target = StagedChunk(chunk, queue, exchange, routing_key, batch.count, batch.size)
        await self._node.staging.stage(place, target, batch, payload_most)

    def _staged(self, transaction: str) -> tuple[str, str]:
        return self._namespace, check_name(transaction, "a transaction's name")

    async def commit_staged(
        self,
        transaction: str,
        chunks: Sequence[str],
        *,
        marks: Sequence[MarkPut] = (),
        publish_id: str | None = None,
    ) -> Committed:
        """Publish exactly these chunks of a transaction, in this order, and put the marks: all of it or nothing.

        Chunks that are not named are dropped. Done again, it changes nothing and says so in `repeated`, for a week.
        Raises `ChunkMissing` where a chunk was not staged (or has expired), `MarkMoved` where a mark is not at its
        expected version. Up to 64 MiB are one commit; more is decided at once and then published piece by piece, in
        order, through any crash; consumers may see its first pieces before its last. `publish_id` names the chunks in
        their queues: published before under the same id and chunk names within the dedup window, they are left out.
        """
        self._check_registrar()
        place = self._staged(transaction)
        check_publish_id(publish_id)
        check_sequence(chunks)
        for chunk in chunks:
            check_name(chunk, "a chunk's name")
        return await self._node.staging.commit(place, chunks, marks, publish_id)

    async def abort_staged(self, transaction: str) -> None:
        """Drop what was staged for a transaction, if there is anything; `AlreadyCommitted` where it is too late."""
        self._check_registrar()
        await self._node.staging.abort(self._staged(transaction))

    async def staged(self, transaction: str) -> Staged:
        """How a transaction stands: its state, its chunks, and when it expires."""
        self._check_registrar()
        return await self._node.staging.show(self._staged(transaction))

    # Dead letters -----------------------------------------------------------------------------------------

    async def dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, max: int = 100, reason: str | None = None,
        error: str | None = None, offsets: tuple[int, int] | None = None, filter: str | None = None,
        lane: int | None = None, until_ms: int | None = None,
    ) -> list[DeadMessage]:  # fmt: skip
        """Dead letters of a group with why they died; by reason, text in the error, offsets or a filter.

        Offsets are those of every lane, unless one is named; with `until_ms`, only what died then or before.
        """
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        choice = choice_of(home, reason, error, offsets, filter, lane, until_ms)
        return await deadletters.dead_list(self._node, home, self._group(home, group), choice, max)

    async def dead_page(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 100
    ) -> DeadPage:
        """All dead letters of a group, page by page: go on with `after=page.next`."""
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        start = (home.lanes[0], 0) if after is None else place_after(after, home)
        return await deadletters.dead_page(self._node, home, self._group(home, group), start, max)

    async def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10_000
    ) -> DeadRanges:
        """Where the dead letters of a group are and why they died, page by page: go on with `after=page.next`.

        No message is read: a range is what died together, one message or many.
        """
        home = self._queue(queue)
        check_integer(max, "max", 1, BATCH_MESSAGES_MAX)
        start = (home.lanes[0], 0) if after is None else place_after(after, home)
        return await deadletters.dead_ranges(self._node, home, self._group(home, group), start, max)

    async def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        """Why messages of a group died: how many by reason and error text, the most frequent first."""
        home = self._queue(queue)
        return await deadletters.dead_reasons(self._node, home, self._group(home, group))

    async def redrive(
        self, queue: str, group: str = DEFAULT_GROUP, *, reason: str | None = None, error: str | None = None,
        offsets: tuple[int, int] | None = None, filter: str | None = None, lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Give the chosen dead letters to their group again, with all attempts; how many."""
        home = self._queue(queue)
        choice = choice_of(home, reason, error, offsets, filter, lane, until_ms)
        return await deadletters.redrive(self._node, home, self._group(home, group), choice)

    async def purge_dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, reason: str | None = None, error: str | None = None,
        offsets: tuple[int, int] | None = None, filter: str | None = None, lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Let the chosen dead letters go for good; how many."""
        home = self._queue(queue)
        choice = choice_of(home, reason, error, offsets, filter, lane, until_ms)
        return await deadletters.purge(self._node, home, self._group(home, group), choice)

    # Administration ---------------------------------------------------------------------------------------

    async def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        """Everything that is neither leased nor dead is done for a group; how many messages."""
        home = self._queue(queue)
        chosen = await self._work_group(home, group)
        count = 0
        for lane in await self._node.lanes.together(home.lanes):
            count += lane.work(chosen.id).purge(self._node.clock.now_ms())
            self._node.commits.touch(lane)
        await self._node.commits.wait()
        return count

    async def pause(self, queue: str, group: str | None = None) -> None:
        """Hand out nothing more of a queue (or to one group of it); what is leased can still be settled."""
        await self._pause(queue, group, True)

    async def resume(self, queue: str, group: str | None = None) -> None:
        """Undo `pause`."""
        await self._pause(queue, group, False)

    async def _pause(self, queue: str, group: str | None, paused: bool) -> None:
        if group is None:
            self._queue(queue)
            await self.declare_queue(queue, paused=paused)
        else:
            self._group(self._queue(queue), group)
            await self.declare_group(queue, group, paused=paused)

    async def stats(self, queue: str) -> QueueStats:
        """Counts of a queue and its groups."""
        return await statistics.queue_stats(self._node, self._queue(queue))

    async def measures(self, *, queues_max: int = 1_000) -> NodeNumbers:
        """The whole node's numbers, over all namespaces: what `/metrics` shows. Loads no queue, and never waits long.

        With more than `queues_max` queues in memory, those with the largest lag come one by one, the rest as a sum.
        """
        check_integer(queues_max, "queues_max", 0, INTEGER_MAX)
        return await self._node.survey.numbers(queues_max)

    async def check_ready(self) -> Literal["ready", "buffering"]:
        """Return when the store takes a commit; raise `Unavailable` with the reason when it cannot, or not in 2 s.

        With a spool, publishes are taken while the store is away: then this says that they are buffered.
        """
        return await self._node.readiness.check()

    def spool(self) -> SpoolNumbers | None:
        """What waits in the node's spool for the store to be back; None of a node without one."""
        return self._node.spooling.numbers()


def broker_of_session(broker: Broker, name: str, namespace: str) -> Broker:
    """A broker for one operation in the name of a session that another node has."""
    node = broker._node
    acting = Broker(node, check_name(namespace, "a namespace"), check_name(name, "a session"))
    acting._claimed = node.session_claims.setdefault(name, set())
    return acting


class Transaction:
    """Verdicts and publishes, over any queues, that become one commit: all of it or nothing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settles: dict[Lease, list[Verdict]] = {}
        self._parts: list[Part] = []
        self._count = 0
        self._ended = False
        self.receipt: Receipt | None = None

    def publish(self, queue: str, *messages: Message) -> Transaction:
        """Publish to a queue."""
        home = self._broker._known_target(queue)
        indexes = list(range(self._count, self._count + len(messages)))
        self._parts += publishing.parts_of_messages(home, list(messages), indexes)
        self._count += len(messages)
        return self

    def publish_to(self, exchange: str, *messages: Message) -> Transaction:
        """Publish to an exchange."""
        node, namespace = self._broker._node, self._broker._namespace
        self._broker._check_exchange(exchange)
        for part in routes.route_messages(node, namespace, exchange, list(messages), mandatory=False):
            indexes = [self._count + index for index in part.indexes or ()]
            self._parts.append(msgspec.structs.replace(part, indexes=indexes))
        self._count += len(messages)
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Transaction:
        """Any mix of verdicts on a lease."""
        for verdict in verdicts:
            check_verdict(verdict)
        self._settles.setdefault(self._broker._known_lease(lease), []).extend(verdicts)
        return self

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Transaction:
        """These messages are done."""
        return self.settle(lease, verdicts_of("ack", offsets))

    def nack(
        self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = ""
    ) -> Transaction:
        """These failed."""
        delay_ms = None if delay is None else milliseconds(delay, "delay", 0, SPAN_MS_MAX)
        return self.settle(lease, verdicts_of("nack", offsets, delay_ms, error))

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> Transaction:
        """These will never succeed."""
        return self.settle(lease, verdicts_of("reject", offsets, None, error))

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> Transaction:
        """These again after `delay` seconds, without spending an attempt."""
        return self.settle(lease, verdicts_of("postpone", offsets, milliseconds(delay, "delay", 0, SPAN_MS_MAX)))

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> Transaction:
        """These back at once, as if never handed out."""
        return self.settle(lease, verdicts_of("release", offsets))

    async def commit(self) -> Receipt:
        """Do it all. Raises, and does nothing, if any part cannot be done."""
        if self._ended:
            raise InvalidArgument("this transaction was committed before; begin another")
        self._broker._node.check_open()
        self.receipt = await transactions.commit(self._broker._node, self._settles, self._count, self._parts)
        self._ended = True
        return self.receipt

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None and not self._ended:
            await self.commit()
