"""The driver's way into the lake: reports of tasks become one commit, if nothing is missing and nothing is double.

The rule: what a lane gets must begin exactly at its mark and have no hole. What is below the mark was left out by the
tasks; what is beyond it without a reason is a gap, and a gap is an error that names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from penstock.spark.lake.errors import LakeError, LakeGap
from penstock.spark.lake.table import LakeTable, LaneKey
from penstock.spark.lake.writing import Report, Run

FirstOf = Callable[[str, int, int], int]
"""The oldest offset that the broker has, of (queue, queue id, lane)."""


class Gap(msgspec.Struct, frozen=True):
    """Offsets [start, end) that the lake does not get."""

    queue: str
    queue_id: int
    lane: int
    start: int
    end: int


class Plan(msgspec.Struct):
    """What a commit will say."""

    marks: dict[LaneKey, int]
    floors: dict[LaneKey, int]
    """Where lanes begin that the lake did not have."""
    gaps: list[Gap]


def commit(table: LakeTable, reports: Iterable[Report], first_of: FirstOf, *, allow_gaps: bool = False) -> Landed:
    """Make what the tasks wrote visible, and move the marks of its lanes. `table` is what the tasks saw of the lake."""
    reports = list(reports)
    plan = planned([run for report in reports for run in report.runs], table.mark, first_of, allow_gaps=allow_gaps)
    rows = sum(report.rows for report in reports)
    repeated = sum(report.repeated for report in reports)
    if plan.marks:
        files = [file for report in reports for file in report.files]
        notes = {"penstock.gaps": msgspec.to_builtins(plan.gaps)} if plan.gaps else None
        table = table.append(files, plan.marks, plan.floors, notes)
    return Landed(table, plan.marks, rows, repeated, plan.gaps)


class Landed(NamedTuple):
    """What a commit did; `table` is the lake after it."""

    table: LakeTable
    marks: dict[LaneKey, int]
    rows: int
    repeated: int
    gaps: list[Gap]


def planned(
    runs: Iterable[Run],
    mark_of: Callable[[int, int], int | None],
    first_of: FirstOf,
    *,
    allow_gaps: bool = False,
) -> Plan:
    """The marks after these runs, or an error where offsets are missing or double."""
    lanes: dict[LaneKey, list[Run]] = defaultdict(list)
    for run in runs:
        lanes[run.queue_id, run.lane].append(run)
    plan = Plan({}, {}, [])
    for key, found in lanes.items():
        found.sort(key=lambda run: run.first)
        begin = mark_of(*key)
        if begin is None:
            # Nothing of the lane is in the lake: it must get all that the broker still has.
            begin = plan.floors[key] = min(found[0].first, first_of(found[0].queue, *key))
        plan.gaps += _holes(found, begin)
        plan.marks[key] = found[-1].end
    if plan.gaps and not allow_gaps:
        raise LakeGap(_sentence(plan.gaps))
    return plan


def _holes(runs: list[Run], begin: int) -> list[Gap]:
    """What is missing from `begin` to the end of the runs, and what they say is lost."""
    gaps: list[Gap] = []
    for run in runs:
        if run.first < begin:
            raise LakeError(
                f"offsets {run.first} to {min(begin, run.end) - 1} of lane {run.lane} of queue {run.queue!r} came "
                "twice in one batch; nothing of it is in the lake"
            )
        lost_to = run.end if run.is_lost else run.first
        if lost_to > begin and gaps and gaps[-1].end == begin:  # two tasks have come to one gap
            gaps[-1] = msgspec.structs.replace(gaps[-1], end=lost_to)
        elif lost_to > begin:
            gaps.append(Gap(run.queue, run.queue_id, run.lane, begin, lost_to))
        begin = run.end
    return gaps


def _sentence(gaps: list[Gap]) -> str:
    first = gaps[0]
    more = f" (and {len(gaps) - 1} more gaps)" if len(gaps) > 1 else ""
    return (
        f"offsets {first.start} to {first.end - 1} of lane {first.lane} of queue {first.queue!r} (queue_id "
        f"{first.queue_id}) are not in the lake and were skipped by the batch{more}; nothing of it was written. If a "
        "checkpoint of another lake is used, leave the checkpoint out: the lake knows where to go on. If the messages "
        "are lost for good, allow gaps: they are then recorded"
    )
