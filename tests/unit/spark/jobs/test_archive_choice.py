"""Which queues an archive asks its stream for: exactly those that are there, or with `watch` those that come too."""

from __future__ import annotations

from typing import Any

from penstock.api.scan import LanePlace
from penstock.spark.jobs.archive.job import ArchiveOptions, _queue_option
from penstock.spark.source.options import chosen_queues, queue_choice
from penstock.spark.source.planning import QueueHead


def asked(queues: str, there: list[str], later: list[str], **more: Any) -> list[str]:
    """What the stream reads when other queues have appeared since the archive looked."""
    options = ArchiveOptions(url="u", lake="l", queues=queues, **more)
    found = chosen_queues(options.choice, there)
    heads = {name: QueueHead(1, {0: LanePlace(0, 0, 0, 0)}) for name in found if name in there}
    return chosen_queues(queue_choice(_queue_option(options, heads)), [*there, *later])


def test_without_watch_it_is_what_is_there() -> None:
    there, later = ["$events", "$events-3", "a", "b"], ["$events-7", "a2"]
    assert asked("a*", there, later) == ["$events", "$events-3", "a"]
    assert asked("a*", there, later, events=False) == ["a"]


def test_with_watch_it_is_what_comes_too() -> None:
    there, later = ["$events", "$events-3", "a", "b"], ["$events-7", "a2"]
    assert asked("a*", there, later, watch=True) == ["$events", "$events-3", "$events-7", "a", "a2"]
    assert asked("a", there, later, watch=True) == ["$events", "$events-3", "$events-7", "a"]
    assert asked("a", there, later, watch=True, events=False) == ["a"]
    assert asked("a*", ["a"], later, watch=True) == ["$events-7", "a", "a2"], "a server that wrote no event yet"


def test_with_watch_names_of_any_kind_stay_names() -> None:
    odd = ["[x]", "a,b", "c*"]
    assert asked('["a,b", "c*", "[x]"]', [*odd, "$events"], ["x", "a", "b", "cc", "$events-1"], watch=True) == [
        "$events",
        "$events-1",
        *odd,
    ]
    assert asked("y, [bc]*", ["b1", "c1", "y"], ["b2"], watch=True) == ["b1", "b2", "c1", "y"]
