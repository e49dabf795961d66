"""What a task of Spark does: one slice of one lane, from the server's log to Arrow record batches.

Runs on the executors. Checks that what comes is the slice that was planned: every offset, once, in order. The next part
is fetched while Spark takes this one. A connection that breaks, or a server that restarts, costs a pause: the read goes
on from the next offset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec
import pyarrow as pa

from penstock.api.results import Scan
from penstock.arrow import record_batches
from penstock.model.errors import NotFound, OffsetGone, Overloaded, PenstockError
from penstock.spark.clients import Access, client_of
from penstock.spark.source.packing import packed, packed_gap
from penstock.spark.source.planning import Gap, LaneSlice

logger: Final = logging.getLogger("penstock.spark")


class ReadSpec(msgspec.Struct, frozen=True):
    """All that a task needs to know besides its slice."""

    access: Access
    columns: tuple[str, ...]
    where: str | None
    group: str | None
    fail_on_data_loss: bool
    packed: bool = False


def read_slice(spec: ReadSpec, wanted: LaneSlice) -> Iterator[pa.RecordBatch]:
    """The rows of a slice; or an error, where one of them cannot be had and data loss is to fail."""
    with _Ahead(spec, wanted) as ahead:
        yield from _checked(spec, wanted, ahead)


class _Ahead:
    """Fetches one answer ahead of the reader, in a thread of its own."""

    def __init__(self, spec: ReadSpec, wanted: LaneSlice) -> None:
        self._spec = spec
        self._wanted = wanted
        self._thread = ThreadPoolExecutor(1, "penstock-scan")
        self._next: Future[Scan] | None = None
        self.ask(wanted.start)

    def ask(self, offset: int) -> None:
        """Begin to fetch what comes from an offset on, unless the slice ends there."""
        self._next = None if offset >= self._wanted.end else self._thread.submit(self._scan, offset)

    def answer(self) -> Scan:
        assert self._next is not None
        return self._next.result()

    def _scan(self, offset: int) -> Scan:
        spec, wanted = self._spec, self._wanted
        while True:
            try:
                return client_of(spec.access).scan(
                    wanted.queue,
                    wanted.lane,
                    offset,
                    wanted.end,
                    payload="payload" in spec.columns,
                    columns=spec.columns,
                    where=spec.where,
                    group=spec.group,
                )
            except Overloaded as error:
                # The server is there and has others to serve: a read gets slower by that, and does not fail.
                logger.warning("the read of queue %r waits for the server: %s", wanted.queue, error)

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _checked(spec: ReadSpec, wanted: LaneSlice, ahead: _Ahead) -> Iterator[pa.RecordBatch]:
    offset, lost = wanted.start, 0
    scanned = 0
    while offset < wanted.end:
        scan = _answered(spec, wanted, ahead, offset)
        if isinstance(scan, Gap):
            judge_gaps([scan], fail=spec.fail_on_data_loss)
            lost += scan.lost
            offset += scan.lost
            ahead.ask(offset)
            continue
        ahead.ask(scan.next_offset)
        _check_slices(wanted, scan, offset)
        yield from _damaged(spec, wanted, scan)
        yield from _rows(spec, wanted, scan)
        scanned += scan.next_offset - offset
        offset = scan.next_offset
    if offset != wanted.end or scanned + lost != wanted.end - wanted.start:
        raise _broken(wanted, f"{scanned} messages up to offset {offset} came, and {lost} are lost")


def _answered(spec: ReadSpec, wanted: LaneSlice, ahead: _Ahead, offset: int) -> Scan | Gap:
    try:
        scan = ahead.answer()
    except OffsetGone:
        return _removed(spec, wanted, offset)
    except NotFound:
        if client_of(spec.access).has_queue(wanted.queue):
            raise  # what is missing is not the queue but the group
        return Gap(wanted.queue, wanted.lane, offset, wanted.end, "the queue was deleted while it was read")
    if scan.queue_id != wanted.queue_id:
        why = f"the queue was deleted and declared again (queue_id {wanted.queue_id} then, {scan.queue_id} now)"
        return Gap(wanted.queue, wanted.lane, offset, wanted.end, why)
    if scan.next_offset <= offset:
        why = f"the lane ends at offset {scan.end} now; was the server's store set back to an older state?"
        return Gap(wanted.queue, wanted.lane, offset, wanted.end, why)
    return scan


def _removed(spec: ReadSpec, wanted: LaneSlice, offset: int) -> Gap:
    """Retention was faster than the read: from here to where the lane begins now."""
    first = {one.lane: one.first for one in client_of(spec.access).lanes(wanted.queue).lanes}[wanted.lane]
    end = min(max(first, offset + 1), wanted.end)
    return Gap(wanted.queue, wanted.lane, offset, end, f"removed by retention; the lane begins at offset {first} now")


def _check_slices(wanted: LaneSlice, scan: Scan, offset: int) -> None:
    """The slices must cover what the answer says they do: from the offset on, without a gap, and not too far."""
    for part in scan.slices:
        if part.offset != offset or part.end <= offset:
            raise _broken(wanted, f"offset {offset} was to come, and offsets {part.offset} to {part.end - 1} did")
        offset = part.end
    if offset != scan.next_offset or offset > wanted.end:
        raise _broken(wanted, f"an answer ends at offset {offset}, and the next is to begin at {scan.next_offset}")


def _damaged(spec: ReadSpec, wanted: LaneSlice, scan: Scan) -> Iterator[pa.RecordBatch]:
    """What the server passed over: an error, or a warning and, to those who count offsets, a pack that says so."""
    gaps = [Gap(wanted.queue, wanted.lane, one.start, one.end, "damaged in the server's store") for one in scan.damaged]
    judge_gaps(gaps, fail=spec.fail_on_data_loss, way_out=DAMAGE_WAY_OUT)
    for one in scan.damaged if spec.packed else ():
        yield packed_gap(wanted.queue, wanted.queue_id, wanted.lane, one.start, one.end)


def _rows(spec: ReadSpec, wanted: LaneSlice, scan: Scan) -> Iterator[pa.RecordBatch]:
    due = sum(part.stop - part.start if part.rows is None else len(part.rows) // 4 for part in scan.slices)
    came = 0
    for rows in record_batches(scan, spec.columns):
        came += rows.num_rows
        yield packed(rows, wanted.queue, wanted.queue_id, wanted.lane) if spec.packed else rows
    if came != due:
        raise _broken(wanted, f"{due} messages up to offset {scan.next_offset} became {came} rows")


def _broken(wanted: LaneSlice, what: str) -> PenstockError:
    """Not a gap but a fault: the server's answer contradicts itself. Never skipped."""
    return PenstockError(
        f"the read of offsets {wanted.start} to {wanted.end - 1} of lane {wanted.lane} of queue {wanted.queue!r} "
        f"went wrong: {what}"
    )


# What becomes of a gap -----------------------------------------------------------------------------------


class DataLoss(PenstockError):
    """Messages that a read was to give are not there."""

    code = "data_loss"


WAY_OUT: Final = (
    "To go on with what is there, set option failOnDataLoss=false (what is skipped is logged and counted), or start a "
    "new query with another checkpointLocation and startingOffsets. To keep messages until they are read, give their "
    "queue retain_ms or keep_done_ms, or, where it has no retain options, give the stream a cursor"
)
DAMAGE_WAY_OUT: Final = (
    "To go on with what is there, set option failOnDataLoss=false (what is skipped is logged). What is damaged, "
    "`penstock store verify` tells; a backup, or `penstock store repair`, is the way out"
)


def judge_gaps(gaps: Sequence[Gap], *, fail: bool, way_out: str = WAY_OUT) -> None:
    """Raise for gaps, or log each of them."""
    if not gaps:
        return
    if fail:
        more = f" (and {len(gaps) - 1} more gaps)" if len(gaps) > 1 else ""
        raise DataLoss(f"messages that were to be read are not there: {gaps[0]}{more}. {way_out}.")
    for gap in gaps:
        logger.warning("skipped, because failOnDataLoss is false: %s (messages lost: %s)", gap, gap.lost or "unknown")
