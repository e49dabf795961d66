# mypy: disable-error-code="empty-body"
"""The API without asyncio: any broker, run on an event loop in a thread of its own.

Any number of threads may share one; each call returns when what it did is durable. Ctrl-C while a call waits cancels
the call. What the methods do is in `api/twin.py`. Made by `python -m tools.make_sync` from the modules beside this one:
change those, and make this again.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from penstock.api.twin import Twin, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Literal, Self, Unpack

    from penstock.api.admin import FailedPage
    from penstock.api.arguments import Ranges
    from penstock.api.broker import Broker
    from penstock.api.dead_letters import DeadList, DeadOptions, DeadRanges, DeadReason
    from penstock.api.declare import BindingOptions, Schedule
    from penstock.api.inspect import HistoryEntry, Page, QueueStats, Trace
    from penstock.api.options import ExchangeOptions, GroupOptions, QueueOptions
    from penstock.api.results import Claim, LeaseLike, Published, Receipt, Scan, StreamRead
    from penstock.api.scan import Extent, QueueLanes
    from penstock.api.staging import Committed, Mark, MarkPut, Staged
    from penstock.batch import EncodedBatch
    from penstock.model import Binding, Message
    from penstock.model.verdict import Verdict


class SyncBroker(Twin):
    """A `Broker` for programs without an event loop. Threads may share it."""

    _inner: Broker
    _undo: ClassVar = {"claim": "_give_back"}

    def _with(self, broker: Broker) -> Self:
        other = object.__new__(type(self))
        other._inner, other._thread = broker, self._thread
        return other

    @property
    def namespace(self) -> str:
        """The namespace whose queues and exchanges this broker sees."""

    @property
    def consumer_name(self) -> str:
        """The name under which this broker claims, unless another is given."""

    @written
    def close(self) -> None:
        """Finish, and release the store or the connections. Leases stay; their messages come back in time."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Life -------------------------------------------------------------------------------------------------

    @written
    def in_namespace(self, namespace: str) -> Self:
        """The same broker with another namespace's queues and exchanges."""
        return self._with(self._thread.run(self._inner.in_namespace, namespace))

    @written
    @contextmanager
    def session(self, *, seconds: float = 30.0) -> Iterator[Self]:
        """The same broker within a session: `with broker.session() as session: …`.

        Exclusive queues declared through it are deleted at its end, and what was claimed through it returns at once. A
        session over HTTP is renewed while it is open; the server ends it `seconds` after the last sign of a client
        that died. A session inside this process ends with the process.
        """
        with self._thread.entered(lambda: self._inner.session(seconds=seconds)) as session:
            yield self._with(session)

    def transaction(self) -> SyncTransaction:
        """Collect verdicts and publishes to commit as one: `with broker.transaction() as t: …`."""

    # Handles ----------------------------------------------------------------------------------------------

    def queue(self, name: str) -> SyncQueueHandle:
        """A handle on a queue: `broker.queue("orders").declare(ordered=True)`."""

    def exchange(self, name: str) -> SyncExchangeHandle:
        """A handle on an exchange."""

    def publish(self, queue: str, message: Message, *, publish_id: str | None = None) -> Published:
        """Publish one message; returns when it is durable."""

    def publish_many(self, queue: str, messages: Sequence[Message], *, publish_id: str | None = None) -> Receipt:
        """Publish messages together, all or none, in their order.

        `publish_id` names the whole call. Publishing again under the same id, within the queue's dedup window, stores
        nothing and returns where the messages are. One id for many messages costs far less than one each.
        """

    def publish_batch(self, queue: str, batch: EncodedBatch, *, publish_id: str | None = None) -> Receipt:
        """Publish an encoded batch, stored as it is: the fastest way in."""

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

    def claim(
        self,
        queue: str,
        *,
        group: str = "default",
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

        The messages are this consumer's until the lease ends: settle them before, or extend the lease. With `ack` they
        are done as they are handed out: at most once. The claim is empty when no message came in time. Among waiting
        claims, a higher `priority` is served first.

        A claim returns at most about 16 MiB, and a few thousand messages if each must be checked (filter, delay, TTL,
        partitions). Fewer than `max` does not mean that the queue is empty.
        """

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> None:
        """Carry out any mix of verdicts on messages of a lease, all or none.

        Raises `LeaseLost` when the lease has ended, or some of the messages were settled before.
        """

    def settle_and_claim(
        self,
        lease: LeaseLike,
        verdicts: Sequence[Verdict] | None = None,
        *,
        max: int = 1,
        lease_seconds: float | None = None,
        consumer: str | None = None,
    ) -> Claim:
        """Settle a lease (ack all of it, without verdicts) and claim the next messages of its queue and group.

        Both are one commit, and over HTTP one request. The claim does not wait: it is empty when there is no message.
        Raises `LeaseLost` as `settle` does; then nothing is claimed.
        """

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """These messages are done (all of the lease, without offsets)."""

    def nack(self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = "") -> None:
        """Report failure.

        The messages are retried after a backoff (or `delay` seconds), and dead-lettered after the last attempt.
        """

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> None:
        """Dead-letter these messages at once, with the error."""

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> None:
        """Deliver these messages again after `delay` seconds, without counting an attempt.

        An ordered partition waits for them.
        """

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> None:
        """Return these messages to the queue at once, without counting an attempt."""

    def extend(self, lease: LeaseLike, seconds: float | None = None) -> int:
        """Keep the lease for another span from now (the queue's, unless given).

        Returns its new deadline in milliseconds since the epoch.
        """

    def read(
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
        """The next messages for a stream group, waiting up to `wait` seconds for the first.

        What is damaged in the store is passed over, and `damaged` names it. A read that finds only damaged messages
        returns at once, empty.

        `turn` names this read alone, and `lost` the reads of the same consumer whose answers did not arrive: what they
        were given is read again, and one that arrives only now is refused. The Python client sees to both.
        """

    def commit(
        self, queue: str, group: str, offset: int, *, lane: int | None = None, only_forward: bool = False
    ) -> None:
        """A stream group has processed everything below `offset` (of lane 0, 1, 2 …, where the queue has several).

        With `only_forward`, nothing changes where the group has already committed a higher offset.
        """

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

        Where there are none yet, it waits up to `wait` seconds for the first. What is damaged in the store is passed
        over, and `damaged` names it.
        """

    # Queues and groups ------------------------------------------------------------------------------------

    def declare_queue(self, name: str, **options: Unpack[QueueOptions]) -> None:
        """Create a queue, or change the options named here of the one that exists (see `QueueConfig`)."""

    def delete_queue(self, name: str) -> None:
        """Delete a queue with everything in it."""

    def queues(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The queues of this namespace by name, each with its options that differ from the defaults.

        With a prefix, only queues whose names begin with it.
        """

    def has_queue(self, name: str) -> bool:
        """Whether there is a queue of this name in this namespace."""

    def queue_options(self, name: str) -> dict[str, Any]:
        """The options of one queue that differ from the defaults."""

    def declare_group(self, queue: str, name: str, **options: Unpack[GroupOptions]) -> None:
        """Create a consumer group, or change the options named here (see `GroupConfig`)."""

    def delete_group(self, queue: str, name: str) -> None:
        """Delete a group with its leases, waiting and dead messages."""

    def groups(self, queue: str) -> dict[str, dict[str, Any]]:
        """The groups of a queue by name, each with its options that differ from the defaults."""

    # Exchanges and bindings -------------------------------------------------------------------------------

    def declare_exchange(self, name: str, **options: Unpack[ExchangeOptions]) -> None:
        """Create an exchange (see `ExchangeConfig`)."""

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with the bindings from and to it."""

    def exchanges(self) -> dict[str, dict[str, Any]]:
        """The exchanges of this namespace by name, each with its options that differ from the defaults."""

    def bind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        """Bind a queue (or exchange) to an exchange: see `Binding` for what the pattern means to each kind."""

    def unbind(self, exchange: str, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> None:
        """Remove a binding."""

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange, in the order of binding."""

    # Schedules: messages that are published again and again ----------------------------------------------

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
        """Publish a message to a queue or exchange again and again. Replaces the schedule of that name, if any.

        `cron` has five fields, or six with seconds first, read in `timezone`. `interval_ms` is at least 100; its ticks
        are its whole multiples since the epoch. Each tick publishes one message, with the headers `schedule` (the name)
        and `scheduled_ms` (the tick). Ticks missed because no broker ran are made up for by one message, for the
        latest of them; ticks missed while paused are not. Where the clocks change, a five-field expression with a fixed
        minute and hour fires once a day: at the first minute after a gap, and the first of two equal times; all others
        follow real time.
        """

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""

    def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""

    def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""

    # Consumers that come and go ---------------------------------------------------------------------------

    def attach(
        self, queue: str, group: str = "default", *, consumer: str | None = None, exclusive: bool = False
    ) -> str:
        """Announce a consumer; returns its name. A queue with `auto_delete` lives as long as it has one.

        With `exclusive` it is the queue's only consumer: `Forbidden` where there is another, and for all later ones.
        """

    def detach(self, queue: str, group: str = "default", *, consumer: str | None = None, keep: bool = False) -> None:
        """Announce that a consumer has gone: what it holds returns at once, counted as an attempt.

        With `keep` it takes no more messages but may still settle what it holds; a second call without `keep` returns
        the rest.
        """

    def stop_waiting(self, queue: str, group: str = "default", *, consumer: str | None = None) -> None:
        """Answer this consumer's waiting claims now: empty, unless messages are already on their way to it."""

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
        """Look at messages without touching them, lane after lane; continue with `after=page.next`.

        Begins at a lane (0 is the first), an offset or a time where one is given. `state` is what a group (the default
        one unless named) makes of a message. What is damaged in the store is passed over: `page.damaged` names it.
        """

    def history(self, queue: str, offset: int, *, lane: int | None = None) -> list[HistoryEntry]:
        """What happened to one message: each hand-out and how it ended, as far back as `$events` is kept."""

    def stats(self, queue: str) -> QueueStats:
        """Counts of a queue and its groups."""

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
        """Add a named event to a trace, optionally about one message.

        The message may be done and gone, but must have been there. Kept for a week.
        """

    def trace(self, trace_id: str, *, max: int = 1000) -> Trace:
        """The timeline of a trace id in this namespace: where its messages went, what happened to them, what was noted.

        Its oldest `max` entries, by time, as far as the last week goes. What happened to messages is looked up for the
        first 50 of them, as far back as `$events` is kept.
        """

    def dead(self, queue: str, group: str = "default", *, max: int = 100, **choice: Unpack[DeadOptions]) -> DeadList:
        """Dead letters of a group with why they died; by reason, text in the error, offsets or a filter.

        Offsets count in every lane, unless one is named; with `until_ms`, only what died then or before. Stops at
        about 16 MiB. Those that are damaged in the store are passed over: `damaged` of the list names them.
        """

    def dead_ranges(
        self, queue: str, group: str = "default", *, after: tuple[int, int] | None = None, max: int = 10000
    ) -> DeadRanges:
        """Where the dead letters of a group are and why they died, page by page: continue with `after=page.next`.

        No message is read: a range is what died together, one message or many.
        """

    def dead_reasons(self, queue: str, group: str = "default") -> list[DeadReason]:
        """Why messages of a group died: how many by reason and error text, the most frequent first."""

    def redrive(self, queue: str, group: str = "default", **choice: Unpack[DeadOptions]) -> int:
        """Redeliver the chosen dead letters to their group, with the attempt count reset; returns how many."""

    def purge_dead(self, queue: str, group: str = "default", **choice: Unpack[DeadOptions]) -> int:
        """Delete the chosen dead letters for good; returns how many."""

    def seek(
        self,
        queue: str,
        group: str = "default",
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move a group: everything before the place is done, everything from it on is new again.

        Open leases end; settling them afterwards raises `LeaseLost`. Dead messages before the place stay.
        """

    def purge(self, queue: str, group: str = "default") -> int:
        """Mark everything done for a group that is neither leased nor dead; returns how many messages."""

    def pause(self, queue: str, group: str | None = None) -> None:
        """Hand out nothing more of a queue (or to one group of it); what is leased can still be settled."""

    def resume(self, queue: str, group: str | None = None) -> None:
        """Undo `pause`."""

    def check_ready(self) -> Literal["ready", "buffering"]:
        """Return when the store takes a commit; raise `Unavailable` with the reason when it cannot, or not in 2 s.

        `buffering` means that the store is away and publishes go to the spool.
        """

    def enqueued_failed(self, *, after: int = 0, max: int = 100) -> FailedPage:
        """Messages that applications enqueued in the database and that cannot be published, with the reason.

        By rising id, page by page: continue with `after=page.next`.
        """

    def retry_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Retry enqueued messages that failed: the given ids, or all in this namespace.

        Returns how many. What waits for a queue, an exchange or a binding is tried again when that is declared.
        """

    def purge_enqueued(self, ids: Sequence[int] | None = None) -> int:
        """Delete enqueued messages that failed: the given ids, or all in this namespace.

        Returns how many.
        """

    def lanes(self, queue: str, time_ms: int | None = None) -> QueueLanes:
        """Where each lane of a queue begins and ends; with `time_ms` also the first offset from that time on."""

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
        """A part of [start, end) of a lane's log, batches as they are stored; continue with `start=scan.next_offset`.

        Without `payload`, and where `columns` names none that need them, payloads and metadata are left out. `where`
        is a condition on metadata; with `group` each slice says what that group is not done with. `max_bytes` bounds
        one answer, which holds one batch at least. `OffsetGone` where `start` is no longer kept. Scans wait for each
        other, and leave half of the node's time to others.
        """

    def extent(
        self, queue: str, lane: int, start: int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Extent:
        """How far a read from `start` gets within `max_rows` and `max_bytes`: whole batches, one at least."""

    def marks(self, prefix: str = "") -> list[Mark]:
        """The marks of this namespace whose names begin with `prefix`, by name."""

    def mark(self, name: str) -> Mark:
        """A mark: its value and version; `NotFound` where there is none."""

    def put_mark(self, name: str, value: Any, *, expected_version: int | None = None) -> Mark:
        """Put a mark: any JSON value under a name, durably.

        With `expected_version` only if it has that version now (0: only if there is none); `MarkMoved` otherwise.
        """

    def delete_mark(self, name: str) -> None:
        """Delete a mark; a later one of the same name begins at version 1."""

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

    def abort_staged(self, transaction: str) -> None:
        """Drop what was staged for a transaction, if there is anything; `AlreadyCommitted` where it is too late."""

    def staged(self, transaction: str) -> Staged:
        """How a transaction stands: its state, its chunks, and when it expires."""

    async def _give_back(self, claim: Claim) -> None:
        """The caller was interrupted before it saw the claim: back at once, as if never handed out."""
        if claim.lease is not None:
            await self._inner.release(claim)


class SyncTransaction(Twin):
    """Verdicts and publishes, over any queues, that become one commit: all of it or nothing."""

    @property
    def receipt(self) -> Receipt | None:
        """Where the messages went; None until the commit."""

    def publish(self, queue: str, *messages: Message) -> Self:
        """Publish to a queue."""

    def publish_to(self, exchange: str, *messages: Message) -> Self:
        """Publish to an exchange."""

    def settle(self, lease: LeaseLike, verdicts: Sequence[Verdict]) -> Self:
        """Any mix of verdicts on a lease; without any it stays as it is, and must only not have ended."""

    def ack(self, lease: LeaseLike, offsets: Ranges = None) -> Self:
        """These messages are done."""

    def nack(self, lease: LeaseLike, offsets: Ranges = None, *, delay: float | None = None, error: str = "") -> Self:
        """Report failure of these messages."""

    def reject(self, lease: LeaseLike, offsets: Ranges = None, *, error: str = "") -> Self:
        """Dead-letter these messages at once, with the error."""

    def postpone(self, lease: LeaseLike, delay: float, offsets: Ranges = None) -> Self:
        """Deliver these messages again after `delay` seconds, without counting an attempt."""

    def release(self, lease: LeaseLike, offsets: Ranges = None) -> Self:
        """Return these messages to the queue at once, without counting an attempt."""

    def commit(self) -> Receipt:
        """Do it all. Raises, and does nothing, if any part cannot be done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._thread.run(self._inner.__aexit__, kind)


class SyncQueueHandle(Twin):
    """One queue."""

    @property
    def name(self) -> str:
        """The queue's name."""

    def declare(self, **options: Unpack[QueueOptions]) -> Self:
        """Create it, or change the options named here (see `QueueConfig`)."""

    def delete(self) -> None:
        """Delete it with everything in it."""

    def group(self, name: str = "default") -> SyncGroupHandle:
        """One of its groups."""

    def publish(self, message: Message) -> Published:
        """Publish one message; returns when it is durable."""

    def publish_many(self, messages: Sequence[Message]) -> Receipt:
        """Publish messages together, all or none, in their order."""

    def claim(self, *, max: int = 1, wait: float = 0.0, lease_seconds: float | None = None) -> Claim:
        """Lease messages of the default group."""

    def stats(self) -> QueueStats:
        """Counts of it and its groups."""

    def pause(self) -> None:
        """Hand out nothing more of it."""

    def resume(self) -> None:
        """Undo `pause`."""


class SyncGroupHandle(Twin):
    """One group of a queue."""

    @property
    def queue(self) -> str:
        """The queue's name."""

    @property
    def name(self) -> str:
        """The group's name."""

    def declare(self, **options: Unpack[GroupOptions]) -> Self:
        """Create it, or change the options named here (see `GroupConfig`)."""

    def delete(self) -> None:
        """Delete it with its leases, waiting and dead messages."""

    def claim(self, *, max: int = 1, wait: float = 0.0, lease_seconds: float | None = None) -> Claim:
        """Lease messages."""

    def read(self, *, max: int = 100, wait: float = 0.0) -> StreamRead:
        """The next messages of a stream group."""

    def commit(self, offset: int, *, lane: int | None = None) -> None:
        """Everything below `offset` is processed."""

    def seek(
        self,
        *,
        to: Literal["first", "last"] | None = None,
        offset: int | None = None,
        time_ms: int | None = None,
        lane: int | None = None,
    ) -> None:
        """Move it: everything before the place is done, everything from it on is new again."""

    def dead(self, *, max: int = 100) -> DeadList:
        """Its dead letters with why they died."""

    def redrive(self) -> int:
        """Give all its dead letters to it again; how many."""

    def pause(self) -> None:
        """Hand out nothing more to it."""

    def resume(self) -> None:
        """Undo `pause`."""


class SyncExchangeHandle(Twin):
    """One exchange."""

    @property
    def name(self) -> str:
        """The exchange's name."""

    def declare(self, **options: Unpack[ExchangeOptions]) -> Self:
        """Create it (see `ExchangeConfig`)."""

    def delete(self) -> None:
        """Delete it with the bindings from and to it."""

    def bind(self, target: str, pattern: str = "", **options: Unpack[BindingOptions]) -> Self:
        """Bind a queue (or exchange) to it."""

    def publish(self, messages: Message | Sequence[Message] | EncodedBatch, *, mandatory: bool = False) -> Receipt:
        """Publish to it: each message goes to every queue that its key and headers lead to, or to none."""
