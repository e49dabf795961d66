"""What is read next, from numbers alone: places, gaps, shares of a batch, slices."""

from __future__ import annotations

import random

import pytest

from penstock.api.scan import LanePlace
from penstock.model.errors import InvalidArgument, NotFound
from penstock.spark.source.offsets import Position, QueuePosition
from penstock.spark.source.options import EARLIEST, LATEST, Bound
from penstock.spark.source.planning import (
    Gap,
    Heads,
    LaneSlice,
    QueueHead,
    advanced,
    backlog,
    checked_range,
    clipped,
    counted,
    ends,
    estimated_bytes,
    mended,
    placed,
    readable,
    shares,
    sliced,
    until,
)


def heads(**queues: list[tuple[int, int]]) -> Heads:
    """Lanes by (first, end), a hundred bytes a message, of queues with ids 1, 2 …"""
    return {
        name: QueueHead(number, {lane: LanePlace(lane, *bounds, _size(*bounds)) for lane, bounds in enumerate(lanes)})
        for number, (name, lanes) in enumerate(queues.items(), 1)
    }


def _size(first: int, end: int) -> int:
    return 100 * (end - first)


def position(id: int = 1, *offsets: int) -> Position:
    return {"q": QueuePosition(id, dict(enumerate(offsets)))}


# Places --------------------------------------------------------------------------------------------------


def test_earliest_latest_and_offsets() -> None:
    there = heads(q=[(3, 10), (0, 7)])
    assert placed(Bound(everywhere=EARLIEST), there) == position(1, 3, 0)
    assert placed(Bound(everywhere=LATEST), there) == position(1, 10, 7)
    assert placed(Bound(offsets={"q": {0: 5, 1: EARLIEST}}), there) == position(1, 5, 0)
    assert placed(Bound(offsets={"q": {0: LATEST, 1: 99}}), there) == position(1, 10, 99)


def test_a_time_is_where_the_server_says() -> None:
    there = {"q": QueueHead(1, {0: LanePlace(0, 0, 10, 0, at_time=4), 1: LanePlace(1, 0, 8, 0, at_time=8)})}
    assert placed(Bound(time_ms=5), there) == position(1, 4, 8)
    assert placed(Bound(times={"q": {0: 5, 1: 9}}), there) == position(1, 4, 8)
    with pytest.raises(InvalidArgument, match=r"says nothing of lane 1 of queue 'q': name every lane$"):
        placed(Bound(times={"q": {0: 5}}, option="startingOffsetsByTimestamp"), there)


def test_a_time_without_a_message_is_an_error_if_asked() -> None:
    there = {"q": QueueHead(1, {0: LanePlace(0, 0, 10, 0, at_time=4), 1: LanePlace(1, 0, 8, 0, at_time=8)})}
    with pytest.raises(NotFound, match=r"no message of lane 1 of queue 'q'.*startingTimestamp says \(now\)"):
        placed(Bound(time_ms=5, text="now", option="startingTimestamp", needs_match=True), there)
    later = {"q": QueueHead(1, {0: LanePlace(0, 0, 10, 0, at_time=12)})}
    assert placed(Bound(time_ms=5), later) == position(1, 10)  # came after the ends were seen


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ({"other": {0: 1}}, "startingOffsets names queue 'other', which is not among the queues that are read"),
        ({"q": {0: 1, 1: 1, 2: 1}}, "startingOffsets names lane 2 of queue 'q', of which lanes 0, 1 are read"),
        ({"q": {0: 1}}, "startingOffsets says nothing of lane 1 of queue 'q': name every lane"),
        ({}, "startingOffsets says nothing of lane 0 of queue 'q'"),
    ],
)
def test_offsets_must_name_every_lane_and_no_other(offsets: dict[str, dict[int, int]], words: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        placed(Bound(offsets=offsets, option="startingOffsets"), heads(q=[(0, 5), (0, 5)]))
    assert words in str(error.value)


def test_a_read_must_not_end_before_it_begins() -> None:
    checked_range(position(1, 5), position(1, 5))
    with pytest.raises(InvalidArgument, match="would start at offset 6 and end at 5"):
        checked_range(position(1, 6), position(1, 5))


# Gaps ----------------------------------------------------------------------------------------------------


def test_a_position_within_the_log_needs_no_mending() -> None:
    for offsets in ((3, 0), (5, 5), (10, 7)):
        assert mended(position(1, *offsets), heads(q=[(3, 10), (0, 7)])) == (position(1, *offsets), [])


def test_retention_has_passed() -> None:
    found, gaps = mended(position(1, 2, 1), heads(q=[(3, 10), (0, 7)]))
    assert found == position(1, 3, 1)
    assert [(gap.queue, gap.lane, gap.start, gap.end, gap.lost) for gap in gaps] == [("q", 0, 2, 3, 1)]
    assert "lane 0 of queue 'q', offsets 2 to 2: removed by retention; the lane begins at offset 3 now" in str(gaps[0])


def test_a_position_beyond_the_end() -> None:
    found, gaps = mended(position(1, 11), heads(q=[(3, 10)]))
    assert found == position(1, 10)
    assert gaps[0].lost == 0
    assert "lane 0 of queue 'q', offsets from 11 on: the lane ends at offset 10" in str(gaps[0])


def test_a_queue_that_was_deleted_and_declared_again() -> None:
    found, gaps = mended(position(7, 5), heads(q=[(0, 10)]))
    assert found == position(1, 0)
    assert len(gaps) == 1
    assert "queue 'q': it was deleted and declared again since (queue_id 7 then, 1 now)" in str(gaps[0])


def test_a_queue_that_is_gone_or_not_chosen_any_more() -> None:
    found, gaps = mended(position(1, 5), heads(other=[(2, 10)]))
    assert found == {"other": QueuePosition(1, {0: 2})}
    assert "queue 'q': it is in the checkpoint (queue_id 1) and is not read any more" in str(gaps[0])


def test_a_lane_that_is_gone() -> None:
    found, gaps = mended(position(1, 5, 5), heads(q=[(0, 10)]))
    assert found == position(1, 5)
    assert "lane 1 of queue 'q': the queue has no such lane any more" in str(gaps[0])


def test_new_queues_and_lanes_begin_at_the_earliest_offset_without_a_gap() -> None:
    found, gaps = mended(position(1, 5), heads(q=[(0, 10), (4, 6)], new=[(2, 3)]))
    assert found == {"q": QueuePosition(1, {0: 5, 1: 4}), "new": QueuePosition(2, {0: 2})}
    assert gaps == []


def test_what_is_lost_adds_up() -> None:
    gaps = [Gap("q", 0, 2, 5, ""), Gap("q", 1, 0, 4, ""), Gap("q", None, None, None, ""), Gap("gone", 0, 1, 9, "")]
    lost = counted({"q": QueuePosition(1, {0: 5, 1: 4}, lost=10)}, gaps)
    assert lost == {"q": QueuePosition(1, {0: 5, 1: 4}, lost=17)}
    found, _ = mended(lost, heads(q=[(0, 10), (0, 10)]))
    assert found["q"].lost == 17


def test_an_end_beyond_the_log_is_clipped_with_a_gap() -> None:
    assert clipped(position(1, 5), heads(q=[(0, 10)])) == (position(1, 5), [])
    found, gaps = clipped(position(1, 12), heads(q=[(0, 10)]))
    assert found == position(1, 10)
    assert [(gap.start, gap.end) for gap in gaps] == [(10, 12)]


def test_a_planned_batch_is_read_whole() -> None:
    there = heads(q=[(3, 10), (0, 7)])
    assert readable(position(1, 3, 2), position(1, 9, 2), there) == (position(1, 3, 2), [])


def test_a_planned_batch_that_retention_has_passed() -> None:
    begin, gaps = readable(position(1, 1), position(1, 9), heads(q=[(3, 10)]))
    assert (begin, [gap.lost for gap in gaps]) == (position(1, 3), [2])
    begin, gaps = readable(position(1, 1), position(1, 3), heads(q=[(5, 10)]))
    assert (begin, [gap.lost for gap in gaps]) == (position(1, 3), [2])


def test_a_planned_batch_of_a_queue_that_is_gone() -> None:
    for there in (heads(), {"q": QueueHead(9, {0: LanePlace(0, 0, 10, 0)})}):
        begin, gaps = readable(position(1, 1), position(1, 9), there)
        assert (begin, [gap.lost for gap in gaps]) == (position(1, 9), [8])


def test_what_a_batch_only_enters_is_not_read_by_it() -> None:
    end = {"q": QueuePosition(2, {0: 4}), "new": QueuePosition(3, {0: 7})}
    begin, gaps = readable(position(1, 1), end, heads(q=[(0, 10)]))
    assert backlog(begin, end) == {}
    assert gaps == []


# How much ------------------------------------------------------------------------------------------------


def test_a_backlog_is_what_lies_between() -> None:
    start = {"a": QueuePosition(1, {0: 5, 1: 5}), "b": QueuePosition(2, {0: 0})}
    end = {"a": QueuePosition(1, {0: 9, 1: 5})}
    assert backlog(start, end) == {("a", 0): 4}
    assert advanced(start, {("a", 0): 3}) == {"a": QueuePosition(1, {0: 8, 1: 5}), "b": QueuePosition(2, {0: 0})}


def test_shares_are_half_even_and_half_in_proportion_and_add_up() -> None:
    assert shares({("q", 0): 900, ("q", 1): 100}, 100) == {("q", 0): 71, ("q", 1): 29}
    assert shares({("q", 0): 10_000_000, ("q", 1): 5}, 100) == {("q", 0): 95, ("q", 1): 5}
    assert shares({("q", 0): 9, ("q", 1): 1}, 10) == {("q", 0): 9, ("q", 1): 1}
    chance = random.Random(4)
    for _ in range(500):
        amounts = {("q", lane): chance.randint(1, 10 ** chance.randint(1, 9)) for lane in range(chance.randint(1, 9))}
        most = chance.randint(1, 10 ** chance.randint(1, 9))
        given = shares(amounts, most)
        assert sum(given.values()) == min(most, sum(amounts.values()))
        assert all(0 <= given[key] <= amounts[key] for key in amounts)


def test_bytes_are_estimated_from_what_a_lane_holds() -> None:
    assert estimated_bytes({("q", 0): 4}, heads(q=[(0, 10)])) == {("q", 0): 401}


def test_a_target_is_an_end() -> None:
    there = ends(heads(q=[(0, 10), (0, 20)], late=[(0, 5)]))
    assert until(there, None) == there
    assert until(there, position(1, 12, 15)) == position(1, 10, 15)
    assert until(there, position(9, 12, 15)) == {}


# Slices --------------------------------------------------------------------------------------------------


def test_one_slice_a_lane() -> None:
    assert sliced(position(1, 0, 5, 7), position(1, 10, 9, 7), None) == [
        LaneSlice("q", 1, 0, 0, 10),
        LaneSlice("q", 1, 1, 5, 9),
    ]


def test_a_large_lane_is_cut() -> None:
    assert [(one.start, one.end) for one in sliced(position(1, 0), position(1, 25), None, 10)] == [
        (0, 8),
        (8, 16),
        (16, 25),
    ]


def test_slices_cover_every_offset_once_and_are_as_many_as_asked() -> None:
    chance = random.Random(5)
    for _ in range(500):
        start = [chance.randint(0, 50) for _ in range(chance.randint(1, 5))]
        end = [low + chance.choice((0, 1, 7, 1000)) for low in start]
        least = chance.randint(1, 20)
        found = sliced(position(1, *start), position(1, *end), least, chance.randint(1, 2000))
        covered = [(one.lane, offset) for one in found for offset in range(one.start, one.end)]
        assert covered == [(lane, at) for lane, low in enumerate(start) for at in range(low, end[lane])]
        assert all(one.start < one.end for one in found)
        assert len(found) >= min(least, len(covered))
