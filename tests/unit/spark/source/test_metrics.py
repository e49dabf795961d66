"""Backlog and losses of a stream, from reports as Spark makes them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from penstock.spark.source.metrics import source_metrics
from penstock.spark.source.offsets import Position, QueuePosition, position_json


def report(end: Position, latest: Position | None) -> dict[str, Any]:
    ours = {"description": "PythonMicroBatchStream", "endOffset": json.dumps(position_json(end))}
    if latest is not None:
        ours["latestOffset"] = json.dumps(position_json(latest))
    return {"sources": [ours, {"description": "RateStream", "endOffset": "5", "latestOffset": "9"}]}


def test_what_is_there_and_not_read_is_the_backlog() -> None:
    end = {"orders": QueuePosition(1, {0: 10, 1: 20}, lost=3), "mail": QueuePosition(2, {0: 5})}
    latest = {"orders": QueuePosition(1, {0: 15, 1: 20}), "mail": QueuePosition(3, {0: 7})}
    (found,) = source_metrics(report(end, latest))
    assert found.backlog == {"orders": {0: 5, 1: 0}, "mail": {0: 7}}  # mail was deleted and declared again
    assert (found.backlog_rows, found.lost) == (12, {"orders": 3})
    assert found.as_texts() == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "7",
        "avgOffsetsBehindLatest": "4.0",
        "estimatedTotalOffsetsBehindLatest": "12",
        "lost": "3",
    }


def test_reports_without_numbers_of_ours() -> None:
    assert source_metrics(None) == []
    assert source_metrics(report({"orders": QueuePosition(1, {0: 1})}, None)) == []
    empty = {"orders": QueuePosition(1, {})}
    assert source_metrics(report(empty, empty))[0].as_texts()["maxOffsetsBehindLatest"] == "0"


def test_sparks_object_for_a_report() -> None:
    given = report({"orders": QueuePosition(1, {0: 1})}, {"orders": QueuePosition(1, {0: 4})})
    assert source_metrics(SimpleNamespace(json=json.dumps(given)))[0].backlog_rows == 3
