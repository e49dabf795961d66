"""Positions in Spark's checkpoint: the same position is the same text, and what is none is refused."""

from __future__ import annotations

import json

import pytest

from penstock.model.errors import InvalidArgument
from penstock.spark.source.offsets import QueuePosition, position_json, position_of


def test_the_text_is_as_documented() -> None:
    position = {"orders": QueuePosition(7, {1: 456, 0: 123})}
    assert json.dumps(position_json(position)) == (
        '{"v": 1, "queues": {"orders": {"id": 7, "lanes": {"0": 123, "1": 456}}}}'
    )


def test_the_same_position_is_the_same_text_in_whatever_order_it_was_made() -> None:
    lanes = {10: 1, 2: 2, 0: 3}
    one = {"b": QueuePosition(1, lanes), "a": QueuePosition(2, {0: 0})}
    other = {"a": QueuePosition(2, {0: 0}), "b": QueuePosition(1, dict(sorted(lanes.items())))}
    text = json.dumps(position_json(one))
    assert text == json.dumps(position_json(other))
    assert text == json.dumps(position_json(position_of(json.loads(text))))


def test_what_was_lost_is_kept_and_otherwise_not_mentioned() -> None:
    position = {"a": QueuePosition(1, {0: 5}, lost=3), "b": QueuePosition(2, {0: 5})}
    stored = position_json(position)
    assert stored["queues"]["a"]["lost"] == 3
    assert "lost" not in stored["queues"]["b"]
    assert position_of(stored) == position


def test_no_queue_at_all_is_a_position() -> None:
    assert position_of(position_json({})) == {}


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"orders": {"0": 5}},
        {"v": 1},
        {"v": 1, "queues": {"a": {"id": 1, "lanes": {"x": 1}}}},
        {"v": 1, "queues": {"a": {"id": 1, "lanes": {"0": "1"}}}},
        {"v": 1, "queues": {"a": {"lanes": {}}}},
    ],
)
def test_the_offsets_of_another_source_are_refused(stored: object) -> None:
    with pytest.raises(InvalidArgument, match="are not those of a penstock source"):
        position_of(stored)


def test_a_newer_version_is_refused_with_its_number() -> None:
    with pytest.raises(InvalidArgument, match="offsets of version 2; this one reads 1"):
        position_of({"v": 2, "anything": 1})
