"""docs/pictures/benchmarks.svg: that it shows the numbers of docs/benchmarks.md."""

from __future__ import annotations

from tools import make_chart

TABLE = """
| workload | Penstock | Redis Streams |
| --- | --- | --- |
| publish | 1,000 (2,000) | 30 |
| claim | 7 | |
"""


def test_the_picture_is_what_the_tool_draws() -> None:
    assert make_chart.RESULT.read_text() == make_chart.render(), "run tools/make_chart.py"


def test_rows_are_read_by_column() -> None:
    found = dict(make_chart.rows(TABLE))
    assert found["publish"] == {"Penstock": "1,000 (2,000)", "Redis Streams": "30"}
    assert make_chart.number(found["publish"]["Penstock"]) == 1000
    assert found["claim"]["Redis Streams"] == ""


def test_every_panel_compares_penstock_with_others() -> None:
    for panel in make_chart.panels(make_chart.PAGE.read_text()):
        names = [name for name, _ in panel.bars]
        assert names[0] == "Penstock"
        assert "Redis Streams" in names
