"""One attempt of one task of a write: rows in, durable chunks and a report out.

Rows that the sink's ledger has already are left out; all others are staged. What the report says is acted on by
`commit.py` on the driver, and only for the attempt whose report arrives there. Knows one task; no other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from penstock.client.sync import Client
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.clients import Access
from penstock.spark.sink.columns import ColumnPlan, by_target, message_columns
from penstock.spark.sink.identity import (
    TaskPlace,
    content_digest,
    identity_kind,
    ledger_name,
    sink_text,
    source_rows,
)
from penstock.spark.sink.ledger import IdentityKind, Ledger
from penstock.spark.sink.options import WriteOptions
from penstock.spark.sink.replay import Report, is_known
from penstock.spark.sink.staging import Stager, patiently, sink_client
from penstock.spark.sink.tally import Tally, offsets_digest


class SinkSpec(msgspec.Struct, frozen=True):
    """A write as planned on the driver; travels to the tasks and to the commit."""

    options: WriteOptions
    plan: ColumnPlan
    kind: IdentityKind
    transaction: str
    """Of a batch write. A stream's transaction is named by its batch."""

    @property
    def access(self) -> Access:
        return Access(self.options.url, self.options.token, self.options.namespace)

    @property
    def client(self) -> Client:
        return sink_client(self.access, self.options.timeout_s)

    @property
    def has_ledger(self) -> bool:
        """A batch write of rows without identity is known by its transaction alone."""
        return self.options.streaming or self.kind == "source"

    def ledger(self, client: Client, query: str | None) -> Ledger:
        text = sink_text(self.options, self.kind, query)
        return patiently(
            lambda: Ledger(client, ledger_name(text), text, self.kind),
            self.options.timeout_s,
            "reading the sink's ledger",
        )


def sink_spec(options: WriteOptions, plan: ColumnPlan) -> SinkSpec:
    """The plan of a write."""
    named = options.transaction_id
    if named is None:
        transaction = f"spark-{secrets.token_hex(12)}"
    else:
        text = f"{named} to {options.target or 'targets by column'}"
        transaction = f"spark-{blake2b(text.encode(), digest_size=12).hexdigest()}"
    return SinkSpec(options, plan, identity_kind(options, plan), transaction)


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task reports to the commit."""

    partition: int
    query: str | None
    batch: int | None
    transaction: str
    version: int
    """Of the ledger's head, as this task saw it."""
    report: Report
    chunks: list[str]


def write_task(spec: SinkSpec, place: TaskPlace, batches: Iterator[pa.RecordBatch]) -> TaskDone:
    """Stage a task's rows."""
    client = spec.client
    ledger = spec.ledger(client, place.query) if spec.has_ledger else None
    version = 0 if ledger is None else ledger.version
    transaction = spec.transaction
    if spec.options.streaming and ledger is not None:
        # The version keeps a batch that is planned again apart from the one that was committed under its number.
        transaction = f"{ledger.name}/{place.query}/{place.batch}/{version}"
    stager = Stager(client, transaction, place.partition, place.attempt, spec.options.timeout_s)
    try:
        offsets = ledger if spec.kind == "source" else None
        report = _write_rows(spec, batches, offsets, stager if _stages(spec, place, client, ledger) else None)
        return TaskDone(place.partition, place.query, place.batch, transaction, version, report, stager.finish())
    finally:
        stager.close()


def _stages(spec: SinkSpec, place: TaskPlace, client: Client, ledger: Ledger | None) -> bool:
    """Whether rows must be staged: not those of a batch or transaction that is known to be published."""
    if spec.kind == "source":
        return True
    if ledger is not None and place.batch is not None:
        return spec.options.changed_batch == "write" or not is_known(ledger.head, place.batch)
    if spec.options.transaction_id is None:
        return True
    state = patiently(
        lambda: client.staged(spec.transaction).state, spec.options.timeout_s, "looking at the transaction"
    )
    return state not in ("committing", "committed")


def _write_rows(
    spec: SinkSpec, batches: Iterator[pa.RecordBatch], ledger: Ledger | None, stager: Stager | None
) -> Report:
    report = Report()
    queue_id = _queue_ids(spec)
    for batch in batches:
        report.rows += batch.num_rows
        if ledger is not None:
            batch = _new_rows(spec, batch, ledger, queue_id, report)
        for (kind, name), rows in by_target(batch, spec.plan):
            messages = message_columns(rows, spec.plan)
            if spec.options.streaming and ledger is None:
                report.digest += content_digest(messages, f"{kind} {name}")
            if stager is not None:
                stager.add((kind, name), messages)
    return report


def _queue_ids(spec: SinkSpec) -> Callable[[str], int]:
    """Asks the source's server, once for each queue, for the number that a queue keeps for life."""
    options = spec.options
    access = Access(options.source_url, options.source_token, options.source_namespace)

    @cache
    def ask(queue: str) -> int:
        client = sink_client(access, options.timeout_s)
        what = f"asking for the number of queue {queue!r}"
        try:
            return patiently(lambda: client.lanes(queue), options.timeout_s, what).queue_id
        except NotFound as error:
            raise InvalidArgument(
                f"the rows come from queue {queue!r}, which is not on {options.source_url!r}: {error}. Set option "
                "sourceUrl to its server, or give the rows a column queue_id; or set identity=batch"
            ) from error

    return ask


def _new_rows(
    spec: SinkSpec, batch: pa.RecordBatch, ledger: Ledger, queue_id: Callable[[str], int], report: Report
) -> pa.RecordBatch:
    """The rows that the ledger does not have; all are counted by lane and offset."""
    assert spec.plan.source is not None, "identity=source was checked against the columns"
    known: npt.NDArray[np.bool_] = np.zeros(batch.num_rows, np.bool_)
    for part in source_rows(batch, spec.plan.source, queue_id):
        report.digest += offsets_digest(part.seed, part.offsets)
        written = patiently(
            lambda part=part: ledger.written(part.lane, part.offsets),  # type: ignore[misc]
            spec.options.timeout_s,
            "reading the sink's ledger",
        )
        has_known = bool(written.any())
        for tallies, offsets in (
            (report.written, part.offsets[~written] if has_known else part.offsets),
            (report.skipped, part.offsets[written] if has_known else part.offsets[:0]),
        ):
            if len(offsets):
                tallies.setdefault(part.lane, Tally()).add(offsets)
        if has_known:
            known[slice(None) if part.chosen is None else part.chosen] = written
    return batch.filter(pa.array(~known)) if known.any() else batch
