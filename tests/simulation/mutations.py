"""Deliberate faults in the program, to see that the checker finds them. Each is one function, patched in-process.

A mutation says what a careless change would break; `test_mutations.py` runs seeds until a violation shows up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from penstock.api.results import Claim, Receipt
from penstock.api.ticket import Ticket, in_task
from penstock.core.dedup import Dedup
from penstock.core.group import claim as claiming
from penstock.core.group import settle as settling
from penstock.core.group.dead import Dead
from penstock.core.group.entries import Entry
from penstock.core.group.leases import Leases
from penstock.core.group.state import WorkState
from penstock.core.group.stream import StreamGroup
from penstock.core.group.waiting import Waiting
from penstock.core.group.walk import Walk
from penstock.core.group.work import WorkGroup
from penstock.core.lane import Lane, Sealed
from penstock.model.errors import LeaseLost, PenstockError
from penstock.model.rows import Commit, DedupRow, LaneChange
from penstock.model.verdict import Verdict
from penstock.node.catalog import Group, Queue
from penstock.node.cluster.dead_copies import DeadCopies
from penstock.node.cluster.outbox import Outbox
from penstock.node.commit.host import CommitHost
from penstock.node.commit.loop import CommitLoop
from penstock.node.consume.claims import Claims
from penstock.node.consume.dead_letters import Choice, DeadLetters
from penstock.node.consume.waiters import Waiters
from penstock.node.publish.parts import Part
from penstock.node.publish.transactions import Transactions
from penstock.node.spool.log import Entry as SpoolEntry
from penstock.node.spool.log import SpoolLog
from penstock.node.spool.positions import Positions
from penstock.node.spool.records import Doubt, Header, Record
from penstock.node.spool.replay import Replay
from penstock.node.spool.spool import Spool
from penstock.store.memory.engine import MemoryStore

Mutation = Callable[[], Any]
MUTATIONS: dict[str, Mutation] = {}


def mutation(make: Mutation) -> Mutation:
    MUTATIONS[make.__name__] = make
    return make


# Retention -----------------------------------------------------------------------------------------------


@mutation
def watermark_ignores_leases() -> Any:
    def watermark(group: WorkGroup) -> int:
        low = group.waiting.lowest()
        return group.next if low is None else min(group.next, low)

    return patch.object(WorkGroup, "watermark", watermark)


@mutation
def retention_ignores_dead() -> Any:
    return patch.object(WorkGroup, "needed_from", WorkGroup.watermark)


# Leases and verdicts -------------------------------------------------------------------------------------


@mutation
def verdict_on_a_lost_lease_is_accepted() -> Any:
    original = WorkGroup.settle

    def settle(group: WorkGroup, now_ms: int, lease_id: int, verdicts: Sequence[Verdict]) -> None:
        try:
            original(group, now_ms, lease_id, verdicts)
        except LeaseLost:
            return

    return patch.object(WorkGroup, "settle", settle)


@mutation
def attempts_are_not_counted_when_a_lease_expires() -> Any:
    original = WorkState.fail

    def fail(group: WorkState, now_ms: int, entries: list[Entry], consumer: str, kind: Any, *rest: Any) -> None:
        if kind == "expired":
            entries = [entry.moved(entry.attempts - 1, 0) for entry in entries]
        original(group, now_ms, entries, consumer, kind, *rest)

    return patch.object(WorkState, "fail", fail)


@mutation
def lease_ids_begin_anew_after_a_restart() -> Any:
    return patch("penstock.node.lifecycle.NUMBERS_PER_INCARNATION", 0)


@mutation
def leases_are_not_stored() -> Any:
    def seal(leases: Leases, group: int) -> tuple[list[Any], list[tuple[int, int]]]:
        leases.dirty.clear()
        return [], []

    return patch.object(Leases, "seal", seal)


@mutation
def nack_drops_the_message() -> Any:
    original = settling._judge

    def judge(group: WorkState, now_ms: int, verdict: Verdict, entries: list[Entry], consumer: str) -> None:
        changed = Verdict("ack") if verdict.action == "nack" else verdict
        original(group, now_ms, changed, entries, consumer)

    return patch.object(settling, "_judge", judge)


@mutation
def release_spends_an_attempt() -> Any:
    original = settling._judge

    def judge(group: WorkState, now_ms: int, verdict: Verdict, entries: list[Entry], consumer: str) -> None:
        if verdict.action == "release":
            entries = [entry.moved(entry.attempts + 1, 0) for entry in entries]
        original(group, now_ms, verdict, entries, consumer)

    return patch.object(settling, "_judge", judge)


@mutation
def postpone_comes_back_at_once() -> Any:
    original = settling._judge

    def judge(group: WorkState, now_ms: int, verdict: Verdict, entries: list[Entry], consumer: str) -> None:
        changed = Verdict("release") if verdict.action == "postpone" else verdict
        original(group, now_ms, changed, entries, consumer)

    return patch.object(settling, "_judge", judge)


@mutation
def max_in_flight_is_ignored() -> Any:
    original = claiming.room_for

    def room(group: WorkState, now_ms: int, most: int, consumer: str) -> int:
        return min(original(group, now_ms, most, consumer) or most, most)

    return patch.object(claiming, "room_for", room)


# Order and time ------------------------------------------------------------------------------------------


@mutation
def partition_locks_are_ignored() -> Any:
    return patch.object(Waiting, "is_free", lambda *_: True)


@mutation
def delay_is_ignored() -> Any:
    original = Walk._entries

    def entries(walk: Walk, *arguments: Any) -> Iterator[Entry]:
        for entry in original(walk, *arguments):
            yield entry.moved(entry.attempts, 0)

    return patch.object(Walk, "_entries", entries)


@mutation
def ttl_is_ignored() -> Any:
    original = Waiting.put

    def put(waiting: Waiting, entry: Entry) -> None:
        original(waiting, Entry(*(*entry_fields(entry)[:4], 0, *entry_fields(entry)[5:])))

    return patch.object(Waiting, "put", put)


def entry_fields(entry: Entry) -> tuple[Any, ...]:
    return msgspec.structs.astuple(entry)


# What is stored ------------------------------------------------------------------------------------------


@mutation
def waiting_is_not_stored() -> Any:
    def seal(waiting: Waiting, group: int) -> tuple[list[Any], list[tuple[int, int]]]:
        waiting.dirty.clear()
        return [], []

    return patch.object(Waiting, "seal", seal)


@mutation
def dead_is_not_stored() -> Any:
    def seal(dead: Dead, group: int) -> tuple[list[Any], list[tuple[int, int]]]:
        dead.dirty.clear()
        return [], []

    return patch.object(Dead, "seal", seal)


@mutation
def dedup_is_forgotten_on_reload() -> Any:
    original = Dedup.__init__

    def forget(dedup: Dedup, rows: list[DedupRow], complete: bool) -> None:
        original(dedup, [], True)

    return patch.object(Dedup, "__init__", forget)


@mutation
def dedup_answers_with_the_wrong_offset() -> Any:
    original = Dedup.find

    def find(dedup: Dedup, *arguments: Any) -> int | None:
        first = original(dedup, *arguments)
        return None if first is None else max(0, first - 1)

    return patch.object(Dedup, "find", find)


# Commits -------------------------------------------------------------------------------------------------


@mutation
def messages_are_visible_before_their_commit() -> Any:
    original = Lane.seal

    def seal(lane: Lane, now_ms: int) -> Sealed | None:
        sealed = original(lane, now_ms)
        lane.visible_end = lane.sealed_end
        return sealed

    return patch.object(Lane, "seal", seal)


@mutation
def answers_leave_before_the_commit() -> Any:
    original = CommitLoop.commit

    def commit(loop: CommitLoop, lane: Lane | None = None, *, result: Any = None, **options: Any) -> Ticket[Any]:
        committed = original(loop, lane, result=result, **options)
        if loop._pending.catalog or loop._pending.catalog_deleted:
            return committed
        return Ticket.done(result)

    return patch.object(CommitLoop, "commit", commit)


@mutation
def a_failed_commit_is_not_read_back() -> Any:
    def lost(host: CommitHost, lanes: set[int], catalog: bool, error: PenstockError) -> None:
        """Go on with what is in memory."""

    return patch.object(CommitHost, "lost", lost)


@mutation
def fencing_is_ignored() -> Any:
    return patch.object(MemoryStore, "_check_epochs", lambda *_: None)


@mutation
def an_apply_may_be_torn() -> Any:
    original = MemoryStore.apply

    @in_task
    async def apply(store: MemoryStore, commit: Commit) -> None:
        if len(commit.lanes) > 1:
            commit.lanes = commit.lanes[:1]
        await original(store, commit)

    return patch.object(MemoryStore, "apply", apply)


@mutation
def transactions_are_two_commits() -> Any:
    async def commit(own: Transactions, settles: Any, count: int, parts: Sequence[Part]) -> Any:
        results = await own._publisher.append_all(parts, None, None)
        await own._commits.commit()
        for lease, verdicts in settles.items():
            await own._claims.settle(lease, verdicts)
        return Receipt(count, results)

    return patch.object(Transactions, "commit", commit)


@mutation
def a_settle_that_claims_is_answered_before_it_is_durable() -> Any:
    async def settle_and_claim(
        claims: Claims, lease: Any, verdicts: Any, queue: Queue, group: Group, request: Any
    ) -> Claim:
        ticket = claims.settle(lease, verdicts)
        if not ticket.in_order:
            await ticket
        return await claims.claim(queue, group, request, 0)

    return patch.object(Claims, "settle_and_claim", settle_and_claim)


# Dead letters, groups and streams ------------------------------------------------------------------------


@mutation
def dead_letters_are_copied_twice() -> Any:
    original = Outbox._copy_dead_letter

    async def copy(own: Outbox, *arguments: Any) -> None:
        await original(own, *arguments)
        await original(own, *arguments)

    return patch.object(Outbox, "_copy_dead_letter", copy)


@mutation
def dead_letters_are_not_promised() -> Any:
    return patch.object(DeadCopies, "rows", lambda *_: [])


@mutation
def dead_letters_are_copied_twice_at_once() -> Any:
    original = DeadCopies._append

    def append(own: DeadCopies, *arguments: Any) -> bool:
        return original(own, *arguments) and original(own, *arguments)

    return patch.object(DeadCopies, "_append", append)


@mutation
def dead_letters_go_without_a_copy() -> Any:
    return patch.object(DeadCopies, "_append", lambda *_: True)


@mutation
def redrive_also_reaches_other_groups() -> Any:
    original = DeadLetters.redrive

    async def redrive(letters: DeadLetters, queue: Queue, group: Group, choice: Choice) -> int:
        for lane in await letters._lanes.together(queue.lanes):
            for other in lane.works():
                if other.id != group.id:
                    other.seek(letters._clock.now_ms(), lane.first)
        return await original(letters, queue, group, choice)

    return patch.object(DeadLetters, "redrive", redrive)


@mutation
def stream_reads_are_committed_before_they_are_answered() -> Any:
    original = StreamGroup.read

    def read(
        group: StreamGroup, now_ms: int, most: int, consumer: str, turn: str | None = None
    ) -> list[tuple[int, int]]:
        ranges = original(group, now_ms, most, consumer, turn)
        if group.next != group.committed:
            group.committed = group.next
            group.cursor_dirty = True
        return ranges

    return patch.object(StreamGroup, "read", read)


@mutation
def filters_are_ignored() -> Any:
    original = Walk._is_plain

    def is_plain(walk: Walk, segment: Any) -> bool:
        return not segment.columns & walk.watched or original(walk, segment)

    return patch.object(Walk, "_is_plain", is_plain)


@mutation
def waiting_consumers_are_not_woken() -> Any:
    return patch.object(Waiters, "serve", lambda *_: None)


@mutation
def trimmed_offsets_come_back() -> Any:
    original = Lane.seal

    def seal(lane: Lane, now_ms: int) -> Sealed | None:
        sealed = original(lane, now_ms)
        if sealed is not None:
            change: LaneChange = sealed.change
            change.groups = [row for row in change.groups if row.next != change.end]
        return sealed

    return patch.object(Lane, "seal", seal)


# The spool -----------------------------------------------------------------------------------------------


@mutation
def a_replay_does_not_say_how_far_it_came() -> Any:
    async def read(positions: Positions, spool: str, lane: int) -> int:
        positions._known[spool, lane] = 0
        return 0

    return patch.object(Positions, "read", read)


@mutation
def a_commit_without_an_answer_is_taken_for_none() -> Any:
    async def happened(_: Replay, __: Header, ___: Doubt) -> bool:
        return False

    return patch.object(Replay, "_happened", happened)


@mutation
def a_commit_without_an_answer_is_taken_for_done() -> Any:
    async def happened(_: Replay, __: Header, ___: Doubt) -> bool:
        return True

    return patch.object(Replay, "_happened", happened)


@mutation
def publishes_overtake_the_spool() -> Any:
    return patch.object(Spool, "_must_wait", lambda spool, unit: unit.is_durable and spool.is_away)


@mutation
def the_spool_answers_before_it_has_written() -> Any:
    original = SpoolLog.add

    def add(log: SpoolLog, make: Callable[[int], Record]) -> Any:
        record, _ = original(log, make)
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(None)
        return record, stored

    return patch.object(SpoolLog, "add", add)


@mutation
def a_replay_is_done_before_its_commit() -> Any:
    async def settle(replay: Replay, spool: SpoolLog, done: Sequence[SpoolEntry], *_: Any) -> None:
        if done:
            replay._place = done[-1].end
            await spool.release(replay._place)

    return patch.object(Replay, "_settle", settle)


@contextmanager
def in_force(name: str) -> Iterator[None]:
    """The program with one mutation."""
    with MUTATIONS[name]():
        yield
