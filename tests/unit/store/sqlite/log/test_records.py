"""Records of the log: what has many rows is read back in pieces, and is the same as read back at once."""

from __future__ import annotations

import msgspec
import pytest

from penstock.model.errors import InvalidArgument
from penstock.model.rows import Commit, DeadRow
from penstock.store.sqlite.log import records
from penstock.store.sqlite.log.records import Draft, LargeDraft, draft
from tests.conformance.samples import CATALOG, change, commit, full_change


def large(made: Commit, monkeypatch: pytest.MonkeyPatch) -> Draft:
    monkeypatch.setattr(records, "LARGE_ROWS_BYTES", 0)
    found = draft(made, 17)
    assert isinstance(found, LargeDraft)
    return found.read_back()


def dead(start: int) -> DeadRow:
    return DeadRow(1, start, start + 1, 1, "rejected", "", "worker", 99)


@pytest.mark.parametrize(
    "made",
    [
        commit({5: 1, 6: 1}, full_change(), full_change(6), catalog=CATALOG),
        commit({5: 1}, change(dead=[dead(start) for start in range(2_500)], dead_deleted=[(1, 9)])),
        Commit({5: 1}, traces_expired_ms=3, outbox_deleted=[*range(1_001)], lanes_deleted=[7]),
        Commit(),
    ],
)
def test_a_large_commit_is_read_back_as_any_other(made: Commit, monkeypatch: pytest.MonkeyPatch) -> None:
    assert draft(made, 17) == large(made, monkeypatch)


def test_what_is_read_back_shares_nothing_with_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    made = commit({5: 1}, change(dead=[dead(0)]))
    copy = large(made, monkeypatch).commit
    made.lanes[0].dead.append(dead(1))
    made.epochs[6] = 1
    assert len(copy.lanes[0].dead) == 1
    assert copy.epochs == {5: 1}


@pytest.mark.parametrize("value", [1 << 63, "1"])
def test_a_row_that_cannot_be_kept_is_refused_wherever_it_is(value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [dead(start) for start in range(2_500)]
    rows[2_100] = msgspec.structs.replace(rows[2_100], end=value)
    with pytest.raises(InvalidArgument, match="cannot keep"):
        large(commit({5: 1}, change(dead=rows)), monkeypatch)
