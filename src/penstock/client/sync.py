"""The client without asyncio: the asynchronous one, run on an event loop in a thread of its own.

    with penstock.Client("http://127.0.0.1:7333") as client:
        client.publish("mail", penstock.Message(b"hello"))

Any number of threads may share one client. Ctrl-C while a call waits cancels the call. Made by
`python -m tools.make_client_sync` from the modules beside this one: change those, and make this anew.
"""

from __future__ import annotations

import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Literal

from penstock.api.results import Claim, Published, Receipt, Received, Scan
from penstock.batch import EncodedBatch
from penstock.client.client import DEFAULT_URL, AsyncClient
from penstock.client.consumer import BatchHandler, Consumer, Handler
from penstock.client.handles import ExchangeHandle, GroupHandle, QueueHandle
from penstock.client.operations.transaction import ClientTransaction
from penstock.client.producer import Producer, Sent
from penstock.client.stream import StreamReader
from penstock.client.transport.channel import Retry
from penstock.loop_thread import LoopThread
from penstock.model import DEFAULT_GROUP, DEFAULT_NAMESPACE, Binding, Headers, Message
from penstock.model.verdict import Verdict
from penstock.node.arguments import Ranges
from penstock.node.background.enqueued import FailedPage
from penstock.node.background.schedules import Schedule
from penstock.node.broker import LeaseLike
from penstock.node.consume.dead_letters import DeadMessage, DeadRanges, DeadReason
from penstock.node.consume.extents import Extent, QueueLanes
from penstock.node.consume.streams import Page, StreamRead
from penstock.node.marks import Mark, MarkPut
from penstock.node.observe.history import HistoryEntry
from penstock.node.observe.stats import QueueStats
from penstock.node.observe.traces import Trace
from penstock.node.staging.results import Committed, Staged


class Client:
    """A client of one server, or of several nodes of one, seen from one namespace. Threads may share it."""

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        consumer: str | None = None,
        retry: Retry | None = None,
        idempotent: bool = True,
        timeout: float = 30.0,
        connect_timeout: float = 5.0,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`urls` is one URL, several with commas in between, or a list of them; nodes take turns.

        `consumer` is the name under which messages are claimed (host, process and a random part unless given).
        `idempotent` gives every publish an id, so that one whose answer was lost is sent again without being stored
        twice (as long as the queue's dedup window lasts); without it, such a publish raises `Unavailable`. `timeout` is
        for one answer, besides the time that a claim or read waits by itself. `connections` is how many are open to a
        node at most; each waiting claim takes one.
        """
        self._thread = LoopThread("penstock-client", "client")
        try:
            self._client = self._thread.do(
                AsyncClient,
                urls,
                token=token,
                namespace=namespace,
                consumer=consumer,
                retry=retry,
                idempotent=idempotent,
                timeout=timeout,
                connect_timeout=connect_timeout,
                connections=connections,
                tls=tls,
            )
        except BaseException:
            self._thread.close()
            raise
        self._thread.last = self._client.close

    @classmethod
    def _of(cls, client: AsyncClient, thread: LoopThread) -> Client:
        made = cls.__new__(cls)
        made._client, made._thread = client, thread
        return made

    # Life -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every connection; what is under way fails. Close producers and stop consumers before."""
        self._thread.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def in_namespace(self, namespace: str) -> Client:
        """The same client with another namespace's queues and exchanges."""
        return self._of(self._thread.do(self._client.in_namespace, namespace), self._thread)

    @contextmanager
    def session(self, *, seconds: float = 30.0) -> Iterator[Client]:
        """The same client within a session: `with client.session() as session: …`.

        Exclusive queues that are declared through it are deleted at its end, and what was claimed through it returns
        at once. It is renewed while it is open; a client that dies is missed after `seconds`.
        """
        with self._thread.entered(lambda: self._client.session(seconds=seconds)) as session:
            yield self._of(session, self._thread)

    def transaction(self) -> SyncTransaction:
        """Collect verdicts and publishes to commit as one: `with client.transaction() as t: …`."""
        return SyncTransaction(self._thread.do(self._client.transaction), self._thread)

    def producer(
        self,
        queue: str | None = None,
        *,
        exchange: str | None = None,
        mandatory: bool = False,
        linger_ms: float = 5,
        batch_messages: int = 1000,
        batch_bytes: int = 1000000,
        buffer_bytes: int = 32000000,
        in_flight: int = 1,
        idempotent: bool | None = None,
    ) -> SyncProducer:
        """Many small sends as few large publishes: `with client.producer("orders") as producer: …`.

        A message waits up to `linger_ms` for others; a batch has up to `batch_messages` and `batch_bytes`. `send` waits
        while the producer holds `buffer_bytes`. One batch is under way at a time, which keeps the order of sends;
        `in_flight` above 1 gives that up. `idempotent` is the client's unless given.
        """
        return SyncProducer(
            self._thread.do(
                self._client.producer,
                queue,
                exchange=exchange,
                mandatory=mandatory,
                linger_ms=linger_ms,
                batch_messages=batch_messages,
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                in_flight=in_flight,
                idempotent=idempotent,
            ),
            self._thread,
        )

    def consumer(
        self,
        queue: str,
        handler: Handler | BatchHandler,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        batch: int | None = None,
        prefetch: int | None = None,
        lease_seconds: float = 30.0,
        ack: bool = False,
        partition: str | None = None,
        consumer: str | None = None,
        settle_ms: float = 5,
        poll_seconds: float = 2.0,
    ) -> SyncConsumer:
        """A runner of a handler over a group's messages: `consumer.run()`, `consumer.stop()`.

        The handler, plain (run in threads) or a coroutine function, takes one message, or a list of up to `batch`. What
        returns is acked; what raises is nacked with the error, `Reject` and `Postpone` do what they say. `concurrency`
        handlers run at a time, never two on one partition of a claim. Leases are renewed while handlers run.
        `prefetch` is how many messages are held at most. Verdicts are collected for `settle_ms` and sent together. A
        claim waits `poll_seconds` at the server, and so may a stop. With `ack`, messages are done as they are handed
        out.
        """
        return SyncConsumer(
            self._thread.do(
                self._client.consumer,
                queue,
                handler,
                group=group,
                concurrency=concurrency,
                batch=batch,
                prefetch=prefetch,
                lease_seconds=lease_seconds,
                ack=ack,
                partition=partition,
                consumer=consumer,
                settle_ms=settle_ms,
                poll_seconds=poll_seconds,
            ),
            self._thread,
        )

    def consume(
        self,
        queue: str,
        handler: Handler | BatchHandler,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        batch: int | None = None,
        prefetch: int | None = None,
        lease_seconds: float = 30.0,
        ack: bool = False,
        partition: str | None = None,
        consumer: str | None = None,
        settle_ms: float = 5,
        poll_seconds: float = 2.0,
    ) -> None:
        """Run a handler over a group's messages until SIGTERM or Ctrl-C, and stop with care; see `consumer`."""
        self.consumer(
            queue,
            handler,
            group=group,
            concurrency=concurrency,
            batch=batch,
            prefetch=prefetch,
            lease_seconds=lease_seconds,
            ack=ack,
            partition=partition,
            consumer=consumer,
            settle_ms=settle_ms,
            poll_seconds=poll_seconds,
        ).run_forever()

    def stream(
        self,
        queue: str,
        group: str,
        *,
        batch: int = 100,
        auto_commit: bool = True,
        wait: float | None = None,
        consumer: str | None = None,
    ) -> SyncStreamReader:
        """A stream group's messages, one after the other: `for received in client.stream("events", "audit")`.

        With `auto_commit`, a batch is committed when the message after it is asked for; without, call
        `reader.commit(received)`. `wait` seconds without a message end the loop; None goes on for ever.
        """
        return SyncStreamReader(
            self._thread.do(
                self._client.stream, queue, group, batch=batch, auto_commit=auto_commit, wait=wait, consumer=consumer
            ),
            self._thread,
        )

    def queue(self, name: str) -> SyncQueueHandle:
        """A handle on a queue: `client.queue("orders").declare(ordered=True)`."""
        return SyncQueueHandle(self._thread.do(self._client.queue, name), self._thread)

    def exchange(self, name: str) -> SyncExchangeHandle:
        """A handle on an exchange."""
        return SyncExchangeHandle(self._thread.do(self._client.exchange, name), self._thread)

    def declare_queue(self, name: str, **options: Any) -> None:
        """Create a queue, or change the options named here of the one that exists (see `QueueConfig`)."""
        self._thread.run(self._client.declare_queue, name, **options)

    def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it."""
        self._thread.run(self._client.delete_queue, name)

    def declare_group(self, queue: str, name: str, **options: Any) -> None:
        """Create a consumer group, or change the options named here (see `GroupConfig`)."""
        self._thread.run(self._client.declare_group, queue, name, **options)

    def delete_group(self, queue: str, name: str) -> None:
        """Delete a group with its leases, waiting and dead messages."""
        self._thread.run(self._client.delete_group, queue, name)

    def declare_exchange(self, name: str, **options: Any) -> None:
        """Create an exchange (see `ExchangeConfig`)."""
        self._thread.run(self._client.declare_exchange, name, **options)

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with the bindings from and to it."""
        self._thread.run(self._client.delete_exchange, name)

    def bind(
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
        self._thread.run(
            self._client.bind, exchange, target, pattern, target_kind=target_kind, headers=headers, match=match
        )

    def unbind(
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
        self._thread.run(
            self._client.unbind, exchange, target, pattern, target_kind=target_kind, headers=headers, match=match
        )

    def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The queues of this namespace by name, each with its options that differ from the defaults.

        With a prefix, only those whose names begin so.
        """
        return self._thread.run(self._client.queues, prefix)

    def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name in this namespace."""
        return self._thread.run(self._client.has_queue, name)

    def queue_options(self, name: str) -> dict[str, Any]:
        """The options of one queue that differ from the defaults."""
        return self._thread.run(self._client.queue_options, name)

    def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        """The groups of a queue by name, each with its options that differ from the defaults."""
        return self._thread.run(self._client.groups, queue)

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """The exchanges of this namespace by name, each with its options that differ from the defaults."""
        return self._thread.run(self._client.exchanges)

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""
        return self._thread.run(self._client.bindings, exchange)

    def attach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        """Say that a consumer is there; its name. Queues with `auto_delete` live as long as one is.

        With `exclusive` it is the queue's only one: `Forbidden` where another is there, and for all that come after it.
        """
        return self._thread.run(self._client.attach, queue, group, consumer=consumer, exclusive=exclusive)

    def detach(
        self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None, keep: bool = False
    ) -> None:
        """Say that a consumer has gone: what it holds returns at once, counted as an attempt.

        With `keep` it takes no more, and may still settle what it holds; detached again without, that returns too.
        """
        self._thread.run(self._client.detach, queue, group, consumer=consumer, keep=keep)

    def stop_waiting(self, queue: str, group: str = DEFAULT_GROUP, *, consumer: str | None = None) -> None:
        """Answer the claims that wait for this consumer now: with nothing, unless messages were on their way to it."""
        self._thread.run(self._client.stop_waiting, queue, group, consumer=consumer)

    def declare_schedule(
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
        return self._thread.run(
            self._client.declare_schedule,
            name,
            message=message,
            queue=queue,
            exchange=exchange,
            cron=cron,
            interval_ms=interval_ms,
            timezone=timezone,
            paused=paused,
            description=description,
        )

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""
        self._thread.run(self._client.delete_schedule, name)

    def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""
        return self._thread.run(self._client.schedule, name)

    def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""
        return self._thread.run(self._client.schedules)

    def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Published:
        """Publish one message; returns when it is durable."""
        return self._thread.run(self._client.publish, queue, message, publish_id=publish_id)

    def publish_many(self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None) -> Receipt:
        """Publish messages together, all or none, in their order.

        `publish_id` names the whole of it: publishing it again under the same id, within the queue's dedup window,
        changes nothing and says where the messages are. One id for many messages costs far less than one each.
        """
        return self._thread.run(self._client.publish_many, queue, messages, publish_id=publish_id)

    def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Receipt:
        """Publish an encoded batch, stored as it is: the fastest way in."""
        return self._thread.run(self._client.publish_batch, queue, batch, publish_id=publish_id)

    def publish_to(
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
        return self._thread.run(self._client.publish_to, exchange, messages, mandatory=mandatory, publish_id=publish_id)

    def claim(
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
        return self._thread.run_or_undo(
            self._give_back,
            self._client.claim,
            queue,
            group=group,
            max=max,
            min=min,
            wait=wait,
            lease_seconds=lease_seconds,
            partition=partition,
            consumer=consumer,
            ack=ack,
            priority=priority,
        )

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> None:
        """Carry out any mix of verdicts on messages of a lease, all or none.

        Raises `LeaseLost` when the lease has ended, or some of the messages were settled before.
        """
        self._thread.run(self._client.settle, lease, verdicts)

    def settle_and_claim(
        self,
        lease: LeaseLike,
        verdicts: Sequence[Verdict] | None = None,
        *,
        max: int = 1,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Claim:
        """Settle a lease (all of it is done, without verdicts) and claim the next messages of its queue and group.

        Both are one commit, and over HTTP one request. The claim does not wait: it is empty where nothing is there.
        Raises `LeaseLost` as `settle` does; then nothing is claimed.
        """
        return self._thread.run(
            self._client.settle_and_claim, lease, verdicts, max=max, lease_seconds=lease_seconds, consumer=consumer
        )

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """These messages are done (all of the lease without offsets)."""
        self._thread.run(self._client.ack, lease, offsets)

    def nack(self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = "") -> None:
        """These failed: again after a backoff (or `delay` seconds), dead after the last attempt."""
        self._thread.run(self._client.nack, lease, offsets, delay=delay, error=error)

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> None:
        """These will never succeed: dead at once, with the error."""
        self._thread.run(self._client.reject, lease, offsets, error=error)

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> None:
        """These again after `delay` seconds, without spending an attempt; an ordered partition waits for them."""
        self._thread.run(self._client.postpone, lease, delay, offsets)

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """These back at once, as if never handed out."""
        self._thread.run(self._client.release, lease, offsets)

    def extend(self, lease: LeaseLike, seconds: float | None = None) -> int:
        """Keep the lease for another span from now (the queue's, unless given); its new deadline in milliseconds since
        the epoch.
        """
        return self._thread.run(self._client.extend, lease, seconds)

    def read(
        self, queue: str, group: str, *, max: int = 100, wait: float = 0.0, consumer: str | None = None
    ) -> StreamRead:
        """The next messages for a stream group, waiting up to `wait` seconds for the first."""
        return self._thread.run(self._client.read, queue, group, max=max, wait=wait, consumer=consumer)

    def commit(
        self, queue: str, group: str, offset: int, *, lane: int | None = None, only_forward: bool = False
    ) -> None:
        """A stream group has processed everything below `offset` (of lane 0, 1, 2 …, where the queue has several).

        With `only_forward`, nothing changes where the group has come further than that.
        """
        self._thread.run(self._client.commit, queue, group, offset, lane=lane, only_forward=only_forward)

    def read_from(
        self,
        queue: str,
        offset: int | None = None,
        *,
        time_ms: int | None = None,
        max: int = 100,
        lane: int | None = None,
        wait: float = 0.0,
    ) -> StreamRead:
        """Messages of the log from an offset or a time on (from the beginning without either); no group needed.

        Where there are none yet, it waits up to `wait` seconds for the first.
        """
        return self._thread.run(self._client.read_from, queue, offset, time_ms=time_ms, max=max, lane=lane, wait=wait)

    def seek(
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
        self._thread.run(self._client.seek, queue, group, to=to, offset=offset, time_ms=time_ms, lane=lane)

    def browse(
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
        return self._thread.run(
            self._client.browse,
            queue,
            group=group,
            offset=offset,
            time_ms=time_ms,
            lane=lane,
            partition=partition,
            state=state,
            filter=filter,
            max=max,
            after=after,
        )

    def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        """What happened to one message: each hand-out and how it ended, as far back as `$events` is kept."""
        return self._thread.run(self._client.history, queue, offset, lane=lane)

    def trace_event(
        self,
        trace_id: str,
        name: str,
        *,
        detail: str = "",
        queue: str | None = None,
        lane: int | None = None,
        offset: int | None = None,
        consumer: str | None = None,
    ) -> None:
        """Note something by its name on a trace's timeline: about a message, where its queue and offset are given.

        The message may be done and gone, but must have been there. Kept for a week.
        """
        self._thread.run(
            self._client.trace_event,
            trace_id,
            name,
            detail=detail,
            queue=queue,
            lane=lane,
            offset=offset,
            consumer=consumer,
        )

    def trace(self, trace_id: str, *, max: int = 1000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """
        return self._thread.run(self._client.trace, trace_id, max=max)

    def dead(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        max: int = 100,
        reason: str | None = None,
        error: str | None = None,
        offsets: tuple[int, int] | None = None,
        filter: str | None = None,
        lane: int | None = None,
        until_ms: int | None = None,
    ) -> list[DeadMessage]:
        """Dead letters of a group with why they died; by reason, text in the error, offsets or a filter.

        Offsets are those of every lane, unless one is named; with `until_ms`, only what died then or before.
        """
        return self._thread.run(
            self._client.dead,
            queue,
            group,
            max=max,
            reason=reason,
            error=error,
            offsets=offsets,
            filter=filter,
            lane=lane,
            until_ms=until_ms,
        )

    def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10000
    ) -> DeadRanges:
        """Where the dead letters of a group are and why they died, page by page: go on with `after=page.next`.

        No message is read: a range is what died together, one message or many.
        """
        return self._thread.run(self._client.dead_ranges, queue, group, after=after, max=max)

    def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        """Why messages of a group died: how many by reason and error text, the most frequent first."""
        return self._thread.run(self._client.dead_reasons, queue, group)

    def redrive(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        reason: str | None = None,
        error: str | None = None,
        offsets: tuple[int, int] | None = None,
        filter: str | None = None,
        lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:
        """Give the chosen dead letters to their group again, with all attempts; how many."""
        return self._thread.run(
            self._client.redrive,
            queue,
            group,
            reason=reason,
            error=error,
            offsets=offsets,
            filter=filter,
            lane=lane,
            until_ms=until_ms,
        )

    def purge_dead(
        self,
        queue: str,
        group: str = DEFAULT_GROUP,
        *,
        reason: str | None = None,
        error: str | None = None,
        offsets: tuple[int, int] | None = None,
        filter: str | None = None,
        lane: int | None = None,
        until_ms: int | None = None,
    ) -> int:
        """Let the chosen dead letters go for good; how many."""
        return self._thread.run(
            self._client.purge_dead,
            queue,
            group,
            reason=reason,
            error=error,
            offsets=offsets,
            filter=filter,
            lane=lane,
            until_ms=until_ms,
        )

    def purge(self, queue: str, group: str = DEFAULT_GROUP) -> int:
        """Everything that is neither leased nor dead is done for a group; how many messages."""
        return self._thread.run(self._client.purge, queue, group)

    def pause(self, queue: str, group: str | None = None) -> None:
        """Hand out nothing more of a queue (or to one group of it); what is leased can still be settled."""
        self._thread.run(self._client.pause, queue, group)

    def resume(self, queue: str, group: str | None = None) -> None:
        """Undo `pause`."""
        self._thread.run(self._client.resume, queue, group)

    def stats(self, queue: str) -> QueueStats:
        """Counts of a queue and its groups."""
        return self._thread.run(self._client.stats, queue)

    def check_ready(self) -> Literal["ready", "buffering"]:
        """Return when the store takes a commit; raise `Unavailable` with the reason when it cannot, or not in 2 s.

        With a spool, publishes are taken while the store is away: then this says that they are buffered.
        """
        return self._thread.run(self._client.check_ready)

    def lanes(self, queue: str, time_ms: int | None = None) -> QueueLanes:
        """Where each lane of a queue begins and ends; with `time_ms` also the first offset from that time on."""
        return self._thread.run(self._client.lanes, queue, time_ms)

    def scan(
        self,
        queue: str,
        lane: int,
        start: int,
        end: int,
        *,
        payload: bool = True,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        group: str | None = None,
        max_bytes: int | None = None,
    ) -> Scan:
        """A part of [start, end) of a lane's log, batches as they are stored; go on with `start=scan.next_offset`.

        Without `payload`, and where `columns` names none that need them, payloads and metadata stay at the server.
        `where` is a condition on metadata that the server evaluates; with `group` each slice says what that group is
        not done with. `max_bytes` bounds one answer, which holds one batch at least. `OffsetGone` where `start` is no
        longer kept.
        """
        return self._thread.run(
            self._client.scan,
            queue,
            lane,
            start,
            end,
            payload=payload,
            columns=columns,
            where=where,
            group=group,
            max_bytes=max_bytes,
        )

    def extent(
        self, queue: str, lane: int, start: int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Extent:
        """How far a read from `start` may go within so many messages and bytes: whole batches, one at least."""
        return self._thread.run(self._client.extent, queue, lane, start, max_rows=max_rows, max_bytes=max_bytes)

    def marks(self, prefix: str = "") -> list[Mark]:
        """The marks of this namespace whose names begin with `prefix`, by name."""
        return self._thread.run(self._client.marks, prefix)

    def mark(self, name: str) -> Mark:
        """A mark: its value and version; `NotFound` where there is none."""
        return self._thread.run(self._client.mark, name)

    def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        """Put a mark: any JSON value under a name, durably.

        With `expected_version` only if it has that version now (0: only if there is none); `MarkMoved` otherwise.
        """
        return self._thread.run(self._client.put_mark, name, value, expected_version=expected_version)

    def delete_mark(self, name: str) -> None:
        """Delete a mark; a later one of the same name begins at version 1."""
        self._thread.run(self._client.delete_mark, name)

    def stage(
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
        self._thread.run(
            self._client.stage, transaction, chunk, batch, queue=queue, exchange=exchange, routing_key=routing_key
        )

    def commit_staged(
        self, transaction: str, chunks: Sequence[str], *, marks: Sequence[MarkPut] = (), publish_id: str | None = None
    ) -> Committed:
        """Publish exactly these chunks of a transaction, in this order, and put the marks: all of it or nothing.

        Chunks that are not named are dropped. Done again, it changes nothing and says so in `repeated`, for a week.
        Raises `ChunkMissing` where a chunk was not staged (or has expired), `MarkMoved` where a mark is not at its
        expected version. Up to 64 MiB are one commit; more is decided at once and then published piece by piece, in
        order, through any crash; consumers may see its first pieces before its last. `publish_id` names the chunks in
        their queues: published before under the same id and chunk names within the dedup window, they are left out.
        """
        return self._thread.run(self._client.commit_staged, transaction, chunks, marks=marks, publish_id=publish_id)

    def abort_staged(self, transaction: str) -> None:
        """Drop what was staged for a transaction, if there is anything; `AlreadyCommitted` where it is too late."""
        self._thread.run(self._client.abort_staged, transaction)

    def staged(self, transaction: str) -> Staged:
        """How a transaction stands: its state, its chunks, and when it expires."""
        return self._thread.run(self._client.staged, transaction)

    def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: go on with `after=page.next`.
        """
        return self._thread.run(self._client.enqueued_failed, after=after, max=max)

    def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Try enqueued messages again that could not be published, all of this namespace unless some are named.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """
        return self._thread.run(self._client.retry_enqueued, ids)

    def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Let enqueued messages go that could not be published, all of this namespace unless some are named.

        Returns how many.
        """
        return self._thread.run(self._client.purge_enqueued, ids)

    async def _give_back(self, claim: Claim) -> None:
        """The caller was interrupted before it saw the claim: back at once, as if never handed out."""
        if claim.lease is not None:
            await self._client.release(claim)


class SyncTransaction:
    """Verdicts and publishes, over any queues, that become one commit: all of it or nothing."""

    def __init__(self, transaction: ClientTransaction, thread: LoopThread) -> None:
        self._transaction = transaction
        self._thread = thread

    @property
    def receipt(self) -> Receipt | None:
        """Where the messages went, once committed."""
        return self._transaction.receipt

    def publish(self, queue: str, *messages: Message) -> SyncTransaction:
        """Publish to a queue."""
        self._thread.do(self._transaction.publish, queue, *messages)
        return self

    def publish_to(self, exchange: str, *messages: Message) -> SyncTransaction:
        """Publish to an exchange."""
        self._thread.do(self._transaction.publish_to, exchange, *messages)
        return self

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> SyncTransaction:
        """Any mix of verdicts on a lease."""
        self._thread.do(self._transaction.settle, lease, verdicts)
        return self

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> SyncTransaction:
        """These messages are done."""
        self._thread.do(self._transaction.ack, lease, offsets)
        return self

    def nack(
        self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = ""
    ) -> SyncTransaction:
        """These failed."""
        self._thread.do(self._transaction.nack, lease, offsets, delay=delay, error=error)
        return self

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> SyncTransaction:
        """These will never succeed."""
        self._thread.do(self._transaction.reject, lease, offsets, error=error)
        return self

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> SyncTransaction:
        """These again after `delay` seconds, without spending an attempt."""
        self._thread.do(self._transaction.postpone, lease, delay, offsets)
        return self

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> SyncTransaction:
        """These back at once, as if never handed out."""
        self._thread.do(self._transaction.release, lease, offsets)
        return self

    def commit(self) -> Receipt:
        """Do it all. Raises, and does nothing, if any part cannot be done."""
        return self._thread.run(self._transaction.commit)

    def __enter__(self) -> SyncTransaction:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._thread.run(self._transaction.__aexit__, kind)


class SyncSent:
    """A message on its way; `result` waits for the places it went to."""

    def __init__(self, sent: Sent, thread: LoopThread) -> None:
        self._sent = sent
        self._thread = thread

    @property
    def message(self) -> Message:
        return self._sent.message

    def done(self) -> bool:
        """Whether the server has it, or it has failed."""
        return self._sent.done()

    def result(self) -> list[Published]:
        """Where it went, when it is there; raises why it did not go."""

        async def wait() -> list[Published]:
            return await self._sent

        return self._thread.run(wait)


class SyncProducer:
    """Sends messages to one queue or exchange in batches. `with client.producer("orders") as producer: …`"""

    def __init__(self, producer: Producer, thread: LoopThread) -> None:
        self._producer = producer
        self._thread = thread

    def send(self, message: Message) -> SyncSent:
        """Take a message on its way, waiting while the buffer is full. Its result is its place."""
        return SyncSent(self._thread.run(self._producer.send, message), self._thread)

    def send_many(self, messages: Sequence[Message]) -> list[SyncSent]:
        """`send` for each of them, in order."""
        sent = self._thread.run(self._producer.send_many, messages)
        return [SyncSent(one, self._thread) for one in sent]

    @property
    def pending(self) -> int:
        """Messages that are neither stored nor refused yet, without those under way."""
        return self._producer.pending

    def flush(self) -> None:
        """Return when everything sent before is stored; raise if any of it failed and nobody has looked at it."""
        self._thread.run(self._producer.flush)

    def close(self) -> None:
        """Send everything, and take no more. Raises if any of it failed and nobody has looked at it."""
        self._thread.run(self._producer.close)

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncConsumer:
    """Runs a handler over the messages of a queue's group: `consumer.run()`, and `consumer.stop()` from elsewhere."""

    def __init__(self, consumer: Consumer, thread: LoopThread) -> None:
        self._consumer = consumer
        self._thread = thread

    @property
    def handled(self) -> int:
        """Messages whose handler returned."""
        return self._consumer.handled

    @property
    def failed(self) -> int:
        """Messages whose handler raised."""
        return self._consumer.failed

    def run(self) -> None:
        """Consume until `stop` is called. Cancelled, it leaves without waiting for handlers."""
        self._thread.run(self._consumer.run)

    def stop(self) -> None:
        """Claim no more. `run` returns when what is being handled is finished and everything held is settled."""
        self._thread.do(self._consumer.stop)

    @property
    def is_stopping(self) -> bool:

        return self._consumer.is_stopping

    def run_forever(self) -> None:
        """`run`, until SIGTERM or Ctrl-C: then stop with care. A second signal is not waited for."""
        with _stopped_by_signals(self.stop):
            _wait_awake(self.run)


class SyncStreamReader:
    """Messages of a stream group, one after the other, for as long as the caller wants them.

    With `auto_commit`, a batch is committed when the caller asks for the first message after it: everything before was
    worked on by then. Without, call `commit(received)` when everything up to that message is done. The group should be
    declared with `auto_commit=False`: then what counts as processed is what is committed here, and nothing else.
    """

    def __init__(self, reader: StreamReader, thread: LoopThread) -> None:
        self._reader = reader
        self._thread = thread

    def __iter__(self) -> SyncStreamReader:
        return self

    def __next__(self) -> Received:
        received = self._thread.run(self._following)
        if received is None:
            raise StopIteration
        return received

    async def _following(self) -> Received | None:
        try:
            return await self._reader.__anext__()
        except StopAsyncIteration:
            return None

    def commit(self, received: Received) -> None:
        """Everything up to this message, of its lane, is done."""
        self._thread.run(self._reader.commit, received)

    def close(self) -> None:
        """End the loop. With `auto_commit`, what went through it is committed; the rest is given back."""
        self._thread.run(self._reader.close)

    def __enter__(self) -> SyncStreamReader:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.run(self._reader.__aexit__, kind)


class SyncQueueHandle:
    """One queue."""

    def __init__(self, handle: QueueHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread
        self.name = handle.name

    def declare(self, **options: Any) -> SyncQueueHandle:
        """Create it, or change the options named here (see `QueueConfig`)."""
        self._thread.run(self._handle.declare, **options)
        return self

    def delete(self) -> None:
        """Delete it with everything in it."""
        self._thread.run(self._handle.delete)

    def group(self, name: str = DEFAULT_GROUP) -> SyncGroupHandle:
        """One of its groups."""
        return SyncGroupHandle(self._thread.do(self._handle.group, name), self._thread)

    def publish(self, message: Message) -> Published:
        """Publish one message; returns when it is durable."""
        return self._thread.run(self._handle.publish, message)

    def publish_many(self, messages: Sequence[Message]) -> Receipt:
        """Publish messages together, all or none, in their order."""
        return self._thread.run(self._handle.publish_many, messages)

    def claim(self, *, max: int = 1, wait: float = 0.0, lease_seconds: float | None = None) -> Claim:
        """Lease messages of the default group."""
        return self._thread.run(self._handle.claim, max=max, wait=wait, lease_seconds=lease_seconds)

    def stats(self) -> QueueStats:
        """Counts of it and its groups."""
        return self._thread.run(self._handle.stats)

    def pause(self) -> None:
        """Hand out nothing more of it."""
        self._thread.run(self._handle.pause)

    def resume(self) -> None:
        """Undo `pause`."""
        self._thread.run(self._handle.resume)


class SyncGroupHandle:
    """One group of a queue."""

    def __init__(self, handle: GroupHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread
        self.queue, self.name = handle.queue, handle.name

    def declare(self, **options: Any) -> SyncGroupHandle:
        """Create it, or change the options named here (see `GroupConfig`)."""
        self._thread.run(self._handle.declare, **options)
        return self

    def delete(self) -> None:
        """Delete it with its leases, waiting and dead messages."""
        self._thread.run(self._handle.delete)

    def claim(self, *, max: int = 1, wait: float = 0.0, lease_seconds: float | None = None) -> Claim:
        """Lease messages."""
        return self._thread.run(self._handle.claim, max=max, wait=wait, lease_seconds=lease_seconds)

    def read(self, *, max: int = 100, wait: float = 0.0) -> StreamRead:
        """The next messages of a stream group."""
        return self._thread.run(self._handle.read, max=max, wait=wait)

    def commit(self, offset: int, *, lane: int | None = None) -> None:
        """Everything below `offset` is processed."""
        self._thread.run(self._handle.commit, offset, lane=lane)

    def seek(
        self,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move it: everything before the place is done, everything from it on is new again."""
        self._thread.run(self._handle.seek, to=to, offset=offset, time_ms=time_ms, lane=lane)

    def dead(self, *, max: int = 100) -> list[DeadMessage]:
        """Its dead letters with why they died."""
        return self._thread.run(self._handle.dead, max=max)

    def redrive(self) -> int:
        """Give all its dead letters to it again; how many."""
        return self._thread.run(self._handle.redrive)

    def pause(self) -> None:
        """Hand out nothing more to it."""
        self._thread.run(self._handle.pause)

    def resume(self) -> None:
        """Undo `pause`."""
        self._thread.run(self._handle.resume)


class SyncExchangeHandle:
    """One exchange."""

    def __init__(self, handle: ExchangeHandle, thread: LoopThread) -> None:
        self._handle = handle
        self._thread = thread
        self.name = handle.name

    def declare(self, **options: Any) -> SyncExchangeHandle:
        """Create it (see `ExchangeConfig`)."""
        self._thread.run(self._handle.declare, **options)
        return self

    def delete(self) -> None:
        """Delete it with the bindings from and to it."""
        self._thread.run(self._handle.delete)

    def bind(
        self,
        target: str,
        pattern: str = "",
        *,
        target_kind: Literal["queue", "exchange"] = "queue",
        headers: Headers | None = None,
        match: Literal["all", "any"] = "all",
    ) -> SyncExchangeHandle:
        """Bind a queue (or exchange) to it."""
        self._thread.run(self._handle.bind, target, pattern, target_kind=target_kind, headers=headers, match=match)
        return self

    def publish(self, messages: Message | Sequence[Message] | EncodedBatch, *, mandatory: bool = False) -> Receipt:
        """Publish to it: each message goes to every queue that its key and headers lead to, or to none."""
        return self._thread.run(self._handle.publish, messages, mandatory=mandatory)


def _wait_awake(work: Callable[[], None]) -> None:
    """Wait for work that another thread does, looking up now and then.

    A signal that arrives in the moment before a wait begins is seen only when the wait ends.
    """
    ended: Future[None] = Future()

    def carry_out() -> None:
        try:
            work()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=carry_out, name="penstock-run", daemon=True).start()
    while not wait([ended], 0.2).done:
        pass
    ended.result()


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` the first time; the second time they do what they always do."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def first(_number: int, _frame: object) -> None:
        restore()
        # In a thread: the interrupted one may hold what a call needs.
        threading.Thread(target=stop, name="penstock-stop", daemon=True).start()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in signals:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
