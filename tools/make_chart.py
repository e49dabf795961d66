"""Draws docs/pictures/benchmarks.svg from the tables of docs/benchmarks.md.

    .venv/bin/python tools/make_chart.py

Each panel is one row of a table, with a scale of its own. A test compares the picture with what this makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
RESULT: Final = ROOT / "docs" / "pictures" / "benchmarks.svg"

SYSTEMS: Final = {
    "Penstock": "Penstock",
    "Penstock on PostgreSQL": "Penstock on PostgreSQL",
    "PostgreSQL, SKIP LOCKED": "PostgreSQL, SKIP LOCKED",
    "PostgreSQL, delete in a transaction": "PostgreSQL, DELETE in tx",
    "Redis Streams": "Redis Streams",
    "RabbitMQ quorum": "RabbitMQ quorum queue",
}
"""The columns that are drawn, in this order, and how they are called."""
PANELS: Final = {
    "4 producers, 4 consumers, by 1000": "4 producers, 4 consumers, batches of 1000",
    "4 producers, 4 consumers, by 100": "4 producers, 4 consumers, batches of 100",
    "publish one by one, 100 callers": "100 callers publish one message each",
    "10,000 queues, each declared and used once, a second": "10,000 new queues, one message each",
}
"""The rows that are drawn, and their titles."""

WIDTH: Final = 960
MARGIN: Final = 28
GAP: Final = 40
TOP: Final = 84
ROW: Final = 24
LABELS: Final = 190
"""Room for the names of the systems."""
VALUES: Final = 70
"""Room for the number behind the longest bar."""
TITLE: Final = 30
PANEL_WIDTH: Final = (WIDTH - 2 * MARGIN - GAP) / 2
PANEL_HEIGHT: Final = TITLE + ROW * len(SYSTEMS) + 28

STYLE: Final = """
  .page { fill: #ffffff; stroke: #d4dbe3 }
  text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
  .head { font-size: 19px; font-weight: 600; fill: #17212b } .note { font-size: 14px; fill: #51606e }
  .title { font-size: 15px; font-weight: 600; fill: #17212b } .name, .value { font-size: 14px; fill: #33414e }
  .value.ours { font-weight: 600 } .bar { fill: #aab6c2 } .bar.ours { fill: #0f7b8a } .axis { stroke: #b9c4cf }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12181f; stroke: #313c47 } .head, .title { fill: #eef3f7 } .note { fill: #a3b1be }
    .name, .value { fill: #d3dce4 } .bar { fill: #6a7a89 } .bar.ours { fill: #35b3c2 } .axis { stroke: #44515d }
  }
"""


class Panel(NamedTuple):
    """One row of a table: a title, and for each system its messages a second."""

    title: str
    bars: list[tuple[str, int]]


def rows(page: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Every row of the page's tables: its first cell, and the other cells by their column."""
    header: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and header:
            yield cells[0], dict(zip(header[1:], cells[1:], strict=True))
        header = (header or cells) if cells else []


def panels(page: str) -> list[Panel]:
    found = {name: cells for name, cells in rows(page) if name in PANELS and "Redis Streams" in cells}
    return [
        Panel(title, [(label, number(cell)) for column, label in SYSTEMS.items() if (cell := found[name].get(column))])
        for name, title in PANELS.items()
    ]


def number(cell: str) -> int:
    """`1,490,000 (2,140,000)` is 1490000."""
    match = re.match(r"[\d,]+", cell)
    assert match is not None, cell
    return int(match[0].replace(",", ""))


def draw(panel: Panel, left: float, top: float) -> Iterator[str]:
    yield text("title", left, top + 14, panel.title)
    start = left + LABELS
    longest = max(value for _, value in panel.bars)
    for index, (name, value) in enumerate(panel.bars):
        y = top + TITLE + ROW * index
        ours = " ours" if name.startswith("Penstock") else ""
        width = max(2.0, (PANEL_WIDTH - LABELS - VALUES) * value / longest)
        yield text("name", left, y + 14, name)
        yield f'<rect class="bar{ours}" x="{start:.0f}" y="{y + 1:.0f}" width="{width:.1f}" height="{ROW - 7}" rx="2"/>'
        yield text(f"value{ours}", start + width + 7, y + 14, f"{value:,}")
    bottom = top + TITLE + ROW * len(panel.bars) - 4
    yield f'<path class="axis" d="M{start:.0f} {top + TITLE - 3:.0f}V{bottom:.0f}"/>'


def text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{escape(words)}</text>'


def render() -> str:
    drawn = panels(PAGE.read_text())
    height = TOP + PANEL_HEIGHT * ((len(drawn) + 1) // 2) - 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">',
        "<title>Messages a second, beside other queues that force messages to disk</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        text("head", MARGIN, 36, "Messages a second, beside other queues that force messages to disk"),
        text(
            "note",
            MARGIN,
            58,
            "Two shared cores for server and client, 200-byte messages, every id checked. Longer is better.",
        ),
    ]
    for index, panel in enumerate(drawn):
        left = MARGIN + (index % 2) * (PANEL_WIDTH + GAP)
        parts += draw(panel, left, TOP + PANEL_HEIGHT * (index // 2))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(render())
