"""Times as people write and read them on the command line."""

from __future__ import annotations

import click
import pytest

from penstock.cli import moments
from penstock.cli.moments import Start


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0), ("500ms", 500), ("1.5s", 1_500), ("5m", 300_000), ("5min", 300_000), ("2h", 7_200_000),
        ("1h30m", 5_400_000), ("1d", 86_400_000), ("2w", 1_209_600_000),
    ],
)  # fmt: skip
def test_a_span_has_a_unit(text: str, milliseconds: int) -> None:
    assert moments.span(text) == milliseconds


@pytest.mark.parametrize("text", ["", "10", "s", "-5s", "5 s", "5x", "1h 30m", "5s!", "1e3s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no span"):
        moments.span(text)


def test_a_moment_is_a_time_or_a_span_before_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "now_ms", lambda: 1_000_000_000)
    assert moments.moment("10m") == 999_400_000
    assert moments.moment("100w") == 0
    assert moments.moment("1970-01-02T00:00:00Z") == 86_400_000
    assert moments.moment("1970-01-02T00:00:00+01:00") == 82_800_000
    with pytest.raises(click.BadParameter, match="is no time"):
        moments.moment("tomorrow")
    with pytest.raises(click.BadParameter, match="is no time"):
        moments.moment("86400000")


def test_a_place_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "now_ms", lambda: 1_000_000_000)
    assert moments.start("first") == Start()
    assert moments.start("now") == Start(at_end=True)
    assert moments.start("17") == Start(offset=17)
    assert moments.start("1s") == Start(time_ms=999_999_000)
    with pytest.raises(click.BadParameter, match="no place in a log"):
        moments.start("last week")


def test_a_time_is_shown_near_and_exact() -> None:
    at = 1_700_000_000_000
    exact = moments.absolute(at)
    assert moments.when(at, at + 4_000) == f"4 s ago ({exact})"
    assert moments.when(at, at - 7_200_000) == f"in 2 h ({exact})"
    assert moments.when(None) == "-"
    assert moments.when(2**62).endswith(f"({2**62} ms)")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (59_999, "59 s"), (60_000, "1 min"), (3_600_000, "1 h"),
     (172_799_999, "47 h"), (172_800_000, "2 d")],
)  # fmt: skip
def test_a_span_is_shown_in_its_largest_unit(milliseconds: int, text: str) -> None:
    assert moments.span_text(milliseconds) == text
