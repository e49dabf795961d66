"""What a batch means beside the ledger: new, replayed, planned again, or not to be told apart."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.spark.sink.ledger import BATCHES_KEPT, BatchRecord, Head, kept_batches
from penstock.spark.sink.replay import (
    Report,
    SinkConflict,
    batch_head,
    check_skipped,
    is_known,
    shall_write,
    source_head,
)
from penstock.spark.sink.tally import Page, Tally, offsets_digest

LANE = "7/0"
EMPTY = Head(1, "test", "source")


def tally(*offsets: int) -> Tally:
    made = Tally()
    made.add(np.array(offsets, np.int64))
    return made


def report(written: tuple[int, ...] = (), skipped: tuple[int, ...] = ()) -> Report:
    return Report(
        rows=len(written) + len(skipped),
        digest=offsets_digest(1, np.array(written + skipped, np.int64)),
        written={LANE: tally(*written)} if written else {},
        skipped={LANE: tally(*skipped)} if skipped else {},
    )


def pages(*offsets: int) -> dict[int, Page]:
    return tally(*offsets).pages


def check(head: Head, query: str, batch: int, given: Report, ledger: dict[int, Page]) -> None:
    check_skipped(head, query, batch, given, lambda lane, number: ledger[number])


def after(*batches: tuple[int, Report], query: str = "q") -> Head:
    head = EMPTY
    for number, given in batches:
        head = source_head(head, query, number, given, "c")
    return head


# identity=source -----------------------------------------------------------------------------------------


def test_a_replay_of_the_same_rows_is_fine() -> None:
    first = report(written=(0, 1, 2))
    head = after((0, first))
    check(head, "q", 0, report(skipped=(0, 1, 2)), pages(0, 1, 2))


def test_a_batch_planned_anew_with_more_rows_is_fine() -> None:
    head = after((0, report(written=(0, 1))), (1, report(written=(2, 3))))
    again = report(written=(4, 5), skipped=(2, 3))
    check(head, "q", 1, again, pages(0, 1, 2, 3))
    assert source_head(head, "q", 1, again, "c").batches[1].high == {LANE: 6}


def test_going_back_and_on_in_smaller_steps_is_fine() -> None:
    head = after((0, report(written=(0, 1))), (1, report(written=(2, 3))), (2, report(written=(4, 5))))
    ledger = pages(0, 1, 2, 3, 4, 5)
    for number, offset in enumerate((2, 3, 4, 5), 1):
        step = report(skipped=(offset,))
        check(head, "q", number, step, ledger)
        head = source_head(head, "q", number, step, "c")
    assert head.batches[4].high == {LANE: 6}


def test_what_came_after_a_batch_that_is_planned_anew_counts_no_more() -> None:
    """Batch 2 has no rows this time, so that nothing is written down of it; batch 3 has what it had."""
    head = after((0, report(written=(0, 1))), (1, report(written=(2, 3))), (2, report(written=(4, 5))))
    again = report(skipped=(2,))
    head = source_head(head, "q", 1, again, "c")
    assert sorted(head.batches) == [0, 1]
    check(head, "q", 3, report(skipped=(3, 4, 5)), pages(0, 1, 2, 3, 4, 5))


def test_another_query_begins_anew() -> None:
    head = after((5, report(written=(0, 1, 2))))
    ledger = pages(0, 1, 2)
    for number, offset in enumerate((0, 1, 2)):
        step = report(skipped=(offset,))
        check(head, "other", number, step, ledger)
        head = source_head(head, "other", number, step, "c")
    assert sorted(head.batches) == [0, 1, 2]


def test_a_second_row_of_an_offset_in_a_later_batch_is_an_error() -> None:
    """A join of streams gives it; left out, it would be lost."""
    head = after((0, report(written=(0, 1, 2))))
    with pytest.raises(SinkConflict, match=r"source offset 1 of lane 0 of queue number 7.*identity=batch"):
        check(head, "q", 1, report(written=(3,), skipped=(1,)), pages(0, 1, 2))


def test_a_second_row_in_a_batch_planned_anew_is_an_error() -> None:
    head = after((0, report(written=(0, 1))), (1, report(written=(2, 3))))
    with pytest.raises(SinkConflict, match="source offset 1 "):
        check(head, "q", 1, report(written=(4,), skipped=(1, 2, 3)), pages(0, 1, 2, 3))


def test_another_number_of_rows_of_an_offset_is_an_error() -> None:
    head = after((0, report(written=(0, 1, 1))))
    ledger = pages(0, 1, 1)
    check(head, "other", 0, report(skipped=(0, 1, 1)), ledger)
    with pytest.raises(SinkConflict, match=r"offset 1 .* gives 1 rows now, but 2 were written"):
        check(head, "other", 0, report(skipped=(0, 1)), ledger)
    with pytest.raises(SinkConflict, match=r"offset 0 .* gives 2 rows now, but 1 were written"):
        check(head, "other", 0, report(skipped=(0, 0, 1, 1)), ledger)


def test_a_late_first_row_of_an_offset_is_fine_and_so_is_its_replay() -> None:
    head = after((0, report(written=(0, 2))), (1, report(written=(1, 3))))
    check(head, "q", 1, report(skipped=(1, 3)), pages(0, 1, 2, 3))


# identity=batch ------------------------------------------------------------------------------------------


def of_rows(rows: int, digest: int) -> Report:
    return Report(rows=rows, digest=digest, written={}, skipped={})


def test_a_new_batch_is_written_and_its_replay_is_not() -> None:
    assert not is_known(EMPTY, 0)
    assert shall_write(EMPTY, 0, of_rows(3, 99), "fail")
    head = batch_head(EMPTY, "q", 0, of_rows(3, 99), "c")
    assert is_known(head, 0)
    assert not shall_write(head, 0, of_rows(3, 99), "fail")
    assert shall_write(head, 1, of_rows(3, 99), "fail")


@pytest.mark.parametrize("changed", [of_rows(4, 99), of_rows(3, 98)])
def test_a_changed_batch_is_an_error_unless_somebody_decides(changed: Report) -> None:
    head = batch_head(EMPTY, "q", 7, of_rows(3, 99), "c")
    with pytest.raises(SinkConflict, match=r"batch 7 .* with 3 rows .* changedBatch=skip"):
        shall_write(head, 7, changed, "fail")
    assert not shall_write(head, 7, changed, "skip")
    assert shall_write(head, 7, changed, "write")
    assert not shall_write(head, 7, of_rows(3, 99), "write"), "what has not changed needs no decision"


def test_a_batch_from_before_what_is_remembered_is_an_error() -> None:
    head = batch_head(EMPTY, "q", 7, of_rows(3, 99), "c")
    with pytest.raises(SinkConflict, match="longer ago than the ledger remembers"):
        shall_write(head, 6, of_rows(1, 1), "fail")
    assert not shall_write(head, 6, of_rows(0, 0), "fail"), "an empty batch was not written down"


# What is kept --------------------------------------------------------------------------------------------


def test_the_last_batches_are_kept() -> None:
    batches = {number: BatchRecord(1, "0") for number in range(BATCHES_KEPT + 5)}
    assert sorted(kept_batches(batches)) == list(range(5, BATCHES_KEPT + 5))
    many_lanes = {number: BatchRecord(1, "0", {f"1/{lane}": 1 for lane in range(1_000)}) for number in range(50)}
    assert sorted(kept_batches(many_lanes)) == list(range(30, 50))
