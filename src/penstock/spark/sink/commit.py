"""The driver's side of a write: one commit publishes what the tasks staged, together with the sink's ledger.

Either all rows of a batch and the ledger that tells of them are there, or nothing is; a reader sees both or neither.
Knows the reports of the tasks; no rows. What a replayed or changed batch means is decided in `replay.py`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeVar

from penstock.api.staging import Committed, MarkPut
from penstock.client.sync import Client
from penstock.client.transport.channel import Retry
from penstock.model.errors import MarkMoved, NotFound, PenstockError
from penstock.spark.sink.ledger import Ledger
from penstock.spark.sink.replay import (
    Report,
    SinkConflict,
    batch_head,
    check_counts,
    check_skipped,
    shall_write,
    source_head,
)
from penstock.spark.sink.staging import patiently
from penstock.spark.sink.task import SinkSpec, TaskDone

Value = TypeVar("Value")

logger: Final = logging.getLogger(__name__)

ABORT_RETRY: Final = Retry(attempts=2, seconds=5.0)
"""What is not dropped now expires by itself."""


def commit_write(spec: SinkSpec, done: Sequence[TaskDone]) -> int:
    """Publish a batch write; how many rows."""
    client = spec.client
    if not spec.has_ledger:
        return _commit(spec, client, spec.transaction, _chunks(done), []).published
    ledger = _same_ledger(spec, client, done, None)
    report = total(done)
    check_counts(report, ledger.page)
    if not report.written:
        _tell(spec, report)
        return 0
    return _commit_with_ledger(spec, client, done, ledger, report, "", None)


def commit_batch(spec: SinkSpec, done: Sequence[TaskDone], batch: int) -> int:
    """Publish a micro-batch, unless it was published before; how many rows."""
    report = total(done)
    if not report.rows:
        return 0
    query = _one({task.query for task in done}, "query") or ""
    if _one({task.batch for task in done}, "batch") != batch:
        raise PenstockError(f"Spark commits batch {batch}, but the tasks wrote batch {done[0].batch}")
    client = spec.client
    ledger = _same_ledger(spec, client, done, query)
    if spec.kind == "batch":
        if not shall_write(ledger.head, batch, report, spec.options.changed_batch):
            logger.info("%s: batch %d was published before", ledger.head.sink, batch)
            abort(spec, done)
            return 0
    else:
        check_skipped(ledger.head, query, batch, report, ledger.page)
        if not report.written and ledger.head.query == query and report.same_as(ledger.head.batches.get(batch)):
            logger.info("%s: batch %d was published before", ledger.head.sink, batch)
            return 0
    return _commit_with_ledger(spec, client, done, ledger, report, query, batch)


def total(done: Sequence[TaskDone]) -> Report:
    """What all tasks did, as one."""
    report = Report()
    for task in done:
        report.add(task.report)
    return report


def _same_ledger(spec: SinkSpec, client: Client, done: Sequence[TaskDone], query: str | None) -> Ledger:
    """The ledger, if it is still the one that every task saw."""
    ledger = spec.ledger(client, query)
    if {task.version for task in done} != {ledger.version}:
        raise _moved(ledger)
    return ledger


def _moved(ledger: Ledger) -> SinkConflict:
    return SinkConflict(
        f"the ledger of {ledger.head.sink!r} has changed since this batch began: another query writes under the same "
        "sinkName or checkpointLocation, or an earlier run of this one was still committing. Nothing was published: "
        "stop the other one, or start this one again"
    )


def _one(values: set[Value], what: str) -> Value:
    if len(values) != 1:
        raise PenstockError(f"tasks of one commit are of more than one {what}: {sorted(map(str, values))}")
    return next(iter(values))


def _chunks(done: Sequence[TaskDone]) -> list[str]:
    """In the order of Spark's partitions, and of the rows in each."""
    return [chunk for task in sorted(done, key=lambda task: task.partition) for chunk in task.chunks]


def _commit_with_ledger(
    spec: SinkSpec,
    client: Client,
    done: Sequence[TaskDone],
    ledger: Ledger,
    report: Report,
    query: str,
    batch: int | None,
) -> int:
    name = secrets.token_hex(8)
    head = ledger.head
    if batch is None:
        head = source_head(head, "", 0, report, name)
    else:
        make = source_head if spec.kind == "source" else batch_head
        head = make(head, query, batch, report, name)
    puts, useless = patiently(
        lambda: ledger.puts(head, report.written), spec.options.timeout_s, "reading the sink's ledger"
    )
    transaction = _one({task.transaction for task in done}, "transaction")
    try:
        committed = _commit(spec, client, transaction, _chunks(done), puts)
    except MarkMoved as error:
        raise _moved(ledger) from error
    if committed.repeated and spec.ledger(client, query).head.commit != name:
        # Not by this very call, whose answer was lost, but by another run of this query: our rows are not there.
        raise _moved(ledger)
    _tell(spec, report)
    for mark in useless:
        with suppress(NotFound, PenstockError):
            client.delete_mark(mark)  # its page is full, which the head says now
    return committed.published


def _commit(
    spec: SinkSpec, client: Client, transaction: str, chunks: Sequence[str], puts: Sequence[MarkPut]
) -> Committed:
    target = spec.options.target or "their targets"
    return patiently(
        lambda: client.commit_staged(transaction, chunks, marks=puts),
        spec.options.timeout_s,
        f"publishing {len(chunks)} chunks to {target}",
    )


def _tell(spec: SinkSpec, report: Report) -> None:
    skipped = sum(len(page.present) for tally in report.skipped.values() for page in tally.pages.values())
    if skipped:
        logger.warning(
            "penstock sink to %s: rows of %d source offsets were written before and are left out",
            spec.options.target or "targets by column",
            skipped,
        )


def abort(spec: SinkSpec, done: Sequence[TaskDone | None]) -> None:
    """Drop what was staged, as far as it is known and the server can be reached; the rest expires."""
    transactions = {task.transaction for task in done if task is not None}
    if not transactions:
        return
    access = spec.access
    with (
        suppress(PenstockError),
        Client(access.url, token=access.token, namespace=access.namespace, retry=ABORT_RETRY) as client,
    ):
        for transaction in transactions:
            client.abort_staged(transaction)
