"""What a batch means beside what its sink has written before: new, a replay, planned again, or not to be told apart.

Spark repeats a batch whose commit it did not hear of, with the same rows. After it lost files of its checkpoint it may
plan other rows under the same number; after it lost all of it, it begins at 0 as another query. Here is decided,
from the ledger and from what the tasks report, what of that is published; in doubt an error, and nothing is. Pure
functions: no server, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.model.errors import PenstockError
from penstock.spark.sink.ledger import BatchRecord, Head, kept_batches
from penstock.spark.sink.options import ChangedBatch
from penstock.spark.sink.tally import PAGE_BITS, Page, Tally


class SinkConflict(PenstockError):
    """A batch that can neither be published without repeating rows nor be left out without losing some."""

    code = "sink_conflict"


class Report(msgspec.Struct):
    """What one task did, or all tasks of one batch."""

    rows: int = 0
    digest: int = 0
    """Of all rows, in any order."""
    written: dict[str, Tally] = {}
    """Staged rows by lane and source offset, with identity=source."""
    skipped: dict[str, Tally] = {}
    """Rows that were left out, because the ledger has their offsets."""

    @property
    def checksum(self) -> str:
        return f"{self.digest & 0xFFFF_FFFF_FFFF_FFFF:016x}"

    def same_as(self, record: BatchRecord | None) -> bool:
        return record is not None and (record.rows, record.digest) == (self.rows, self.checksum)

    def add(self, other: Report) -> None:
        self.rows += other.rows
        self.digest += other.digest
        for into, tallies in ((self.written, other.written), (self.skipped, other.skipped)):
            for lane, tally in tallies.items():
                into.setdefault(lane, Tally()).merge(tally)


_WAYS_OUT: Final = (
    "nothing was published. If rows of one source offset come out of more than one batch (a join of streams, an outer "
    "join's late rows), set identity=batch; if the query was changed, start it again with another sinkName"
)


def lane_words(lane: str) -> str:
    """`7/0` in words."""
    queue, _, number = lane.partition("/")
    return f"lane {number} of queue number {queue}"


# identity=source -----------------------------------------------------------------------------------------


def check_skipped(head: Head, query: str, batch: int, report: Report, page: Callable[[str, int], Page]) -> None:
    """Raise unless the rows that were left out are the very rows that were written before.

    `page` gives the ledger's pages. A lane's offsets are read in order, so that what this query wrote earlier in its
    present timeline lies below where that stands; a row from there that was written before is a second row of its
    offset, not a repetition.
    """
    if not report.skipped:
        return
    same_query = head.query == query
    if same_query and report.same_as(head.batches.get(batch)):
        return
    high = _high_before(head, batch) if same_query else {}
    for lane, tally in report.skipped.items():
        if tally.first < high.get(lane, 0):
            raise SinkConflict(
                f"batch {batch} has a row of source offset {tally.first} of {lane_words(lane)}, of which an earlier "
                f"batch of this query has written rows already; {_WAYS_OUT}"
            )
    check_counts(report, page)


def check_counts(report: Report, page: Callable[[str, int], Page]) -> None:
    """Raise where an offset has not as many rows as were written of it."""
    for lane, tally in report.skipped.items():
        for number, rows in tally.pages.items():
            known = page(lane, number)
            suspects = rows.several.keys() | {place for place in known.several if place in rows.present}
            for place in sorted(suspects):
                now, before = rows.count(place), known.count(place)
                if now != before:
                    raise SinkConflict(
                        f"source offset {(number << PAGE_BITS) + place} of {lane_words(lane)} gives {now} rows now, "
                        f"but {before} were written of it before; {_WAYS_OUT}"
                    )


def _high_before(head: Head, batch: int) -> dict[str, int]:
    earlier = [number for number in head.batches if number < batch]
    return head.batches[max(earlier)].high if earlier else {}


def source_head(head: Head, query: str, batch: int, report: Report, commit: str) -> Head:
    """The head after this batch: the timeline goes on from it, whatever came after it before."""
    same_query = head.query == query
    earlier = {number: record for number, record in head.batches.items() if same_query and number < batch}
    high = dict(_high_before(head, batch)) if same_query else {}
    for tallies in (report.written, report.skipped):
        for lane, tally in tallies.items():
            high[lane] = max(high.get(lane, 0), tally.end)
    record = BatchRecord(report.rows, report.checksum, high)
    batches = kept_batches({**earlier, batch: record})
    return msgspec.structs.replace(head, query=query, batches=batches, commit=commit)


# identity=batch ------------------------------------------------------------------------------------------


def is_known(head: Head, batch: int) -> bool:
    """Whether a batch of this number, or one after it, was written: nothing of it needs to be staged to be compared."""
    return any(number >= batch for number in head.batches)


def shall_write(head: Head, batch: int, report: Report, policy: ChangedBatch) -> bool:
    """Whether a batch is published; raises where it is not the batch that was written under its number."""
    if not is_known(head, batch):
        return True
    record = head.batches.get(batch)
    if report.same_as(record) or report.rows == 0:
        return False
    if policy != "fail":
        return policy == "write"
    before = (
        "was written before, longer ago than the ledger remembers"
        if record is None
        else f"was written before with {record.rows} rows (checksum {record.digest})"
    )
    raise SinkConflict(
        f"batch {batch} of this query {before} and has {report.rows} rows (checksum {report.checksum}) now. Either "
        "Spark's checkpoint lost files and planned the batch again, with other data, or the rows hold something "
        "that is different each time (a random value, the current time). Nothing was published: what is new in it "
        "cannot be told from what is not. Ways out: changedBatch=skip (keep what was written under this number, for"
        " queries with random values), changedBatch=write (publish all of it again, rows may come twice), or rows "
        "that carry the source's queue, lane and offset, with identity=source and a new sinkName"
    )


def batch_head(head: Head, query: str, batch: int, report: Report, commit: str) -> Head:
    """The head after this batch."""
    batches = {**head.batches, batch: BatchRecord(report.rows, report.checksum)}
    return msgspec.structs.replace(head, query=query, batches=kept_batches(batches), commit=commit)
