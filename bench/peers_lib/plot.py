"""Draws the numbers of a results file: one small chart a workload, throughput and messages per server CPU second.

`python -m bench.peers_lib.plot peers-….json peers-….png`, with the Python that has matplotlib.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = 3
OURS = "#1f6f8b"
SYNCED = "#9aa7b0"
UNSYNCED = "#e0c9a6"


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    source, target = map(Path, sys.argv[1:3])
    draw(json.loads(source.read_text()), target)


def draw(document: dict[str, Any], target: Path) -> None:
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(row["workload"] for row in document["rows"]))
    lines = -(-len(workloads) // COLUMNS)
    figure, axes = pyplot.subplots(lines, COLUMNS, figsize=(17, 3.1 * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(workloads) :]:
        axis.axis("off")
    for axis, workload in zip(axes.flat, workloads, strict=False):
        chart(axis, workload, [row for row in document["rows"] if row["workload"] == workload], document["synced"])
    cores = document["machine"]["cores"]
    figure.suptitle(
        f"Messages a second (bars) and a server CPU second (diamonds), median of {document['runs']} run(s), "
        f"{cores} cores, {document['made']}\npale: confirms before the message is forced to disk",
        fontsize=11,
    )
    figure.savefig(target, dpi=110)


def chart(axis: Any, workload: str, rows: list[dict[str, Any]], synced: dict[str, bool]) -> None:
    names = [row["peer"] for row in rows]
    colours = [
        OURS if name.startswith("penstock") else SYNCED if synced.get(name, True) else UNSYNCED for name in names
    ]
    places = list(range(len(rows)))
    rates = [row["msg_per_s"] for row in rows]
    # The paced workload has one rate for all: its time in the queue is what differs.
    is_latency = "paced" in workload
    values = [row["p50_ms"] for row in rows] if is_latency else rates
    axis.barh(places, values, color=colours, height=0.7)
    if is_latency:
        axis.plot([row["p99_ms"] for row in rows], places, "|", color="black", markersize=12)
        axis.set_xscale("log")
        axis.set_title(f"{workload}: p50 (bar) and p99 (mark), ms", fontsize=10)
    else:
        axis.plot([row["msg_per_server_cpu_s"] for row in rows], places, "D", color="black", markersize=4)
        axis.set_title(workload, fontsize=10)
    for place, value in zip(places, values, strict=True):
        # In the right margin, where no bar or mark is.
        text = f"{value:,.1f}" if is_latency else f"{value:,.0f}"
        axis.text(1.01, place, text, va="center", fontsize=8, transform=axis.get_yaxis_transform())
    axis.set_yticks(places, names, fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.03)
    axis.tick_params(axis="x", labelsize=7)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
