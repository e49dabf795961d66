"""What came out: a table for people, Markdown and JSON files, and the footnotes that say what a confirm means."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.peers_lib.peers import PEERS
from bench.peers_lib.runs import Failed, Plan, Row
from bench.peers_lib.workloads import WHAT

HEADINGS = (
    "workload",
    "peer",
    "messages",
    "msg/s",
    "± %",
    "msg/server CPU-s",
    "msg/client CPU-s",
    "p50 ms",
    "p99 ms",
    "fsync ms",
    "peak MB",
    "lost",
    "dup",
)


def json_line(row: Row) -> str:
    values = row._asdict()
    return json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in values.items()})


def cells(row: Row) -> list[str]:
    mark = "" if PEERS[row.peer].synced else "*"
    return [
        row.workload,
        row.peer + mark,
        f"{row.msgs:,}",
        f"{row.msg_per_s:,.0f}",
        f"{row.spread_percent:.0f}",
        f"{row.msg_per_server_cpu_s:,.0f}",
        f"{row.msg_per_client_cpu_s:,.0f}",
        f"{row.p50_ms:.2f}",
        f"{row.p99_ms:.2f}",
        f"{row.fsync_ms:.2f}",
        f"{row.peak_mb:,.0f}",
        str(row.lost),
        str(row.duplicated),
    ]


def print_table(rows: Sequence[Row], failures: Sequence[Failed], missing: dict[str, str]) -> None:
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("workload", "peer") else "right", no_wrap=True)
    for index, row in enumerate(rows):
        is_last = index + 1 == len(rows) or rows[index + 1].workload != row.workload
        table.add_row(*cells(row), end_section=is_last)
    console = Console(width=170)
    console.print(table)
    for line in footnotes(rows, failures, missing):
        console.print(line, highlight=False, markup=False)


def footnotes(rows: Sequence[Row], failures: Sequence[Failed], missing: dict[str, str]) -> list[str]:
    used = [name for name in PEERS if any(row.peer == name for row in rows)]
    lines = []
    if not all(PEERS[name].synced for name in used):
        lines.append("* confirms before the message is forced to disk: not comparable with the others.")
    lines += [
        f"{name} {PEERS[name]().version()}: {PEERS[name].confirm} Client: {PEERS[name].library}." for name in used
    ]
    lines += [
        f"{name} was left out: {what} is missing (./penstock bench peers --setup)." for name, what in missing.items()
    ]
    lines += [f"{row.workload} on {row.peer}: {row.note}." for row in rows if row.note]
    lines += [f"FAILED {failure.workload} on {failure.peer}: {failure.reason.splitlines()[0]}" for failure in failures]
    return lines


def write_files(
    folder: Path, stamp: str, plan: Plan, rows: Sequence[Row], failures: Sequence[Failed], missing: dict[str, str]
) -> Path:
    """The JSON file's path; the Markdown is beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"peers-{stamp}.json"
    document = {
        "made": stamp,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "runs": plan.runs,
        "scale": plan.scale,
        "seconds": plan.seconds,
        "payload": plan.payload,
        "versions": {name: PEERS[name]().version() for name in plan.peers},
        "synced": {name: PEERS[name].synced for name in plan.peers},
        "rows": [json.loads(json_line(row)) for row in rows],
        "failed": [failure._asdict() for failure in failures],
        "missing": missing,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(stamp, plan, rows, failures, missing))
    return path


def markdown(stamp: str, plan: Plan, rows: Sequence[Row], failures: Sequence[Failed], missing: dict[str, str]) -> str:
    how = (
        f"{plan.runs} runs, the median of each number; ± is between the slowest and the fastest run in percent of the "
        f"median msg/s. {os.cpu_count()} cores for server and client together, {platform.python_implementation()} "
        f"{platform.python_version()}, bodies of 200 B ({plan.payload}) unless the workload says otherwise, scale "
        f"{plan.scale:g}, at most {plan.seconds:g} s each. All callers of a workload are tasks of one client process. "
        "fsync ms is what forcing 4 KB to this disk took just before."
    )
    lines = [f"# Penstock beside its peers, {stamp}", "", how]
    for workload in dict.fromkeys(row.workload for row in rows):
        lines += ["", f"## {workload}", "", f"{WHAT[workload]}.", ""]
        lines.append("| " + " | ".join(HEADINGS[1:]) + " |")
        lines.append("| --- |" + " ---: |" * (len(HEADINGS) - 2))
        lines += ["| " + " | ".join(cells(row)[1:]) + " |" for row in rows if row.workload == workload]
    lines += ["", "## What a confirm means, and notes", ""]
    lines += [
        f"- {line.replace('* confirms', chr(92) + '* confirms', 1)}" for line in footnotes(rows, failures, missing)
    ]
    return "\n".join(lines) + "\n"
