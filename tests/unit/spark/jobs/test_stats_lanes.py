"""Which offsets an update takes next: bounded by messages, never nothing, never beyond the end."""

from __future__ import annotations

from penstock.cli.pipeline.stats import ASCII_BARS, BARS, sparkline
from penstock.spark.jobs.stats.lanes import BLOCK, Block, Span, cut, cut_by_messages, first_ranges, within
from penstock.spark.lake.reading import LaneRange


def block(
    number: int, messages: int, *, lane: int = 0, told_in: int = 1, first: Span | None = None, queue_id: int = 7
) -> Block:
    return Block((told_in, lane), (number + 1) * BLOCK, queue_id, 0, messages, first)


def test_offsets_are_cut_at_the_limit() -> None:
    spans = {(7, 0): Span(10, 20), (7, 1): Span(0, 100), (8, 0): Span(5, 6)}
    assert cut(spans, 1_000) == spans
    assert cut(spans, 15) == {(7, 0): Span(10, 20), (7, 1): Span(0, 5)}
    assert cut(spans, 10) == {(7, 0): Span(10, 20)}
    assert cut({}, 10) == {}


def test_events_are_cut_after_the_block_that_fills_the_limit() -> None:
    spans = {(1, 0): Span(250, 900)}
    blocks = [block(2, 5), block(3, 5), block(3, 5, queue_id=8), block(4, 5), block(8, 1)]
    assert cut_by_messages(spans, blocks, 100) == spans
    assert cut_by_messages(spans, blocks, 21) == spans
    assert cut_by_messages(spans, blocks, 20) == {(1, 0): Span(250, 500)}
    assert cut_by_messages(spans, blocks, 15) == {(1, 0): Span(250, 400)}
    assert cut_by_messages(spans, blocks, 1) == {(1, 0): Span(250, 300)}, "at least a block"
    assert cut_by_messages({(1, 0): Span(210, 230)}, [block(2, 9)], 1) == {(1, 0): Span(210, 230)}


def test_events_of_several_lanes_are_cut_one_after_the_other() -> None:
    spans = {(1, 0): Span(0, 100), (1, 1): Span(0, 300)}
    blocks = [block(0, 5), block(0, 5, lane=1), block(1, 5, lane=1)]
    assert cut_by_messages(spans, blocks, 5) == {(1, 0): Span(0, 100)}
    assert cut_by_messages(spans, blocks, 6) == {(1, 0): Span(0, 100), (1, 1): Span(0, 100)}


def test_events_of_several_servers_are_kept_apart() -> None:
    spans = {(1, 0): Span(0, 100), (5, 0): Span(0, 300)}
    blocks = [block(0, 5), block(0, 5, told_in=5), block(1, 5, told_in=5), block(0, 99, told_in=6)]
    assert cut_by_messages(spans, blocks, 6) == {(1, 0): Span(0, 100), (5, 0): Span(0, 100)}
    assert within(blocks, {(5, 0): Span(0, 150)}) == blocks[1:3]


def test_blocks_of_a_piece_and_the_messages_that_they_hand_out() -> None:
    blocks = [block(0, 1, first=Span(3, 5)), block(1, 1, first=Span(50, 60)), block(2, 1, first=Span(90, 95))]
    inside = within(blocks, {(1, 0): Span(0, 150)})
    assert inside == blocks[:2]
    assert first_ranges(inside, {(7, 0): 55}) == [LaneRange(7, 0, 3, 55)]
    assert first_ranges(inside, {(7, 0): 3}) == [], "none of them is in the lake"
    assert first_ranges(inside, {}) == []


def test_sparklines() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "
    assert sparkline([1, 1_000_000]) == BARS[0] + BARS[-1]
    assert sparkline([1, 1, 2, 2], ASCII_BARS, width=2) == ASCII_BARS[3] + ASCII_BARS[7]
    assert len(sparkline(list(range(1_000)))) <= 60
