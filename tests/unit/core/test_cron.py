"""Ticks of schedules: what is due when, also where the clocks change, and what is refused with which words."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from random import Random
from zoneinfo import ZoneInfo

import pytest

from penstock.core.cron import INTERVAL_MS_MIN, Timing, check_timing
from penstock.model import SPAN_MS_MAX
from penstock.model.errors import InvalidArgument

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str) -> int:
    """A time with its offset as milliseconds since the epoch."""
    return int(dt.datetime.fromisoformat(text).timestamp()) * 1000


def ticks_between(timing: Timing, start_ms: int, end_ms: int) -> list[int]:
    found: list[int] = []
    tick_ms = timing.after(start_ms)
    while tick_ms is not None and tick_ms <= end_ms:
        found.append(tick_ms)
        tick_ms = timing.after(tick_ms)
    return found


def local(ticks: list[int]) -> list[str]:
    return [dt.datetime.fromtimestamp(tick / 1000, BERLIN).strftime("%d %H:%M%z") for tick in ticks]


def test_an_interval_ticks_at_its_multiples_since_the_epoch() -> None:
    timing = check_timing(None, 250, "UTC", NOW_MS)
    assert [timing.after(time_ms) for time_ms in (0, 1, 249, 250, 251)] == [250, 250, 250, 500, 500]
    assert timing.latest(0, 249) is None
    assert timing.latest(0, 250) == 250
    assert timing.latest(250, 499) is None
    assert timing.latest(250, 10_200) == 10_000


def test_five_fields_or_six() -> None:
    assert ticks_between(Timing("*/20 * * * *", None, "UTC"), 0, HOUR_MS) == [1_200_000, 2_400_000, 3_600_000]
    assert ticks_between(Timing("*/20 * * * * *", None, "UTC"), 0, 60_000) == [20_000, 40_000, 60_000]
    assert Timing("0 9 * * MON#2", None, "UTC").after(ms("2024-01-01T00:00+00:00")) == ms("2024-01-08T09:00+00:00")
    assert Timing("0 0 LW * *", None, "UTC").after(ms("2024-03-01T00:00+00:00")) == ms("2024-03-29T00:00+00:00")
    assert Timing("0 0 29 2 *", None, "UTC").after(ms("2024-03-01T00:00+00:00")) == ms("2028-02-29T00:00+00:00")


SPRING = ("2024-03-30T12:00+01:00", "2024-03-31T12:00+02:00")
AUTUMN = ("2024-10-26T12:00+02:00", "2024-10-27T12:00+01:00")


@pytest.mark.parametrize(
    ("cron", "span", "expected"),
    [
        # At a certain time of the day: once, in the first minute that exists, or the first of two.
        ("30 2 * * *", SPRING, ["31 03:00+0200"]),
        ("30 2 * * *", AUTUMN, ["27 02:30+0200"]),
        ("0,30 2 * * *", AUTUMN, ["27 02:00+0200", "27 02:30+0200"]),
        # By real time: what is skipped does not fire, what comes twice fires twice.
        ("*/30 2 * * *", SPRING, []),
        ("*/30 2 * * *", AUTUMN, ["27 02:00+0200", "27 02:30+0200", "27 02:00+0100", "27 02:30+0100"]),
        ("0 30 2 * * *", SPRING, []),
        ("0 30 2 * * *", AUTUMN, ["27 02:30+0200", "27 02:30+0100"]),
    ],
)
def test_where_the_clocks_change(cron: str, span: tuple[str, str], expected: list[str]) -> None:
    timing = check_timing(cron, None, "Europe/Berlin", NOW_MS)
    assert local(ticks_between(timing, ms(span[0]), ms(span[1]))) == expected


def test_from_the_second_of_two_equal_hours_on() -> None:
    """02:10 comes twice; at the second one, 02:30 was fired already and does not come again that day."""
    timing, second_ms = Timing("30 2 * * *", None, "Europe/Berlin"), ms("2024-10-27T02:10+01:00")
    assert timing.after(second_ms) == ms("2024-10-28T02:30+01:00")
    assert timing.latest(ms("2024-10-26T12:00+02:00"), second_ms) == ms("2024-10-27T02:30+02:00")


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Sydney", "Africa/Cairo", "America/Santiago")
EXPRESSIONS = (
    "30 2 * * *",
    "0 0 * * *",
    "*/30 */4 * * *",
    "15 1,2,3 * * *",
    "30 */2 * * *",
    "0 30 1 * * *",
    "30 1 * * 0",
)


@pytest.mark.parametrize("zone", ZONES)
def test_the_latest_tick_is_the_last_one_going_on(zone: str) -> None:
    """Looking back finds what looking on finds, through a year with its two changes."""
    random = Random(zone)
    for cron in EXPRESSIONS:
        timing = Timing(cron, None, zone)
        start_ms = ms("2024-01-01T00:00+00:00")
        ticks = ticks_between(timing, start_ms, ms("2025-01-01T00:00+00:00"))
        assert ticks == sorted(set(ticks))
        for tick_ms in random.sample(ticks, min(60, len(ticks))) + _near_changes(zone, ticks):
            for now_ms in (tick_ms, tick_ms + 1, tick_ms + 2_400_000):
                after_ms = max(start_ms, now_ms - random.choice((1, HOUR_MS, 100 * HOUR_MS)))
                last_ms = ticks[bisect_right(ticks, now_ms) - 1] if now_ms >= ticks[0] else 0
                expected = last_ms if last_ms > after_ms else None
                assert timing.latest(after_ms, now_ms) == expected, (cron, zone, after_ms, now_ms)


def _near_changes(zone: str, ticks: list[int]) -> list[int]:
    """The ticks within a day of a change of that zone's offset."""

    def offset(tick_ms: int) -> dt.timedelta | None:
        return dt.datetime.fromtimestamp(tick_ms / 1000, ZoneInfo(zone)).utcoffset()

    day_ms = 24 * HOUR_MS
    return [tick for tick in ticks if offset(tick - day_ms) != offset(tick + day_ms)]


@pytest.mark.parametrize(
    "cron",
    ["", "*", "* * * *", "* * * * * * *", "61 * * * *", "* 24 * * *", "a * * * *", "*/0 * * * *", "5-1 * * * *",
     "* * 30 2 *", "0 0 31 2,4 *", "* * * * FOO", "* * * * 1#6", "1/1/1 * * * *", "²L * * * *"],
)  # fmt: skip
def test_an_expression_that_cannot_be_or_never_comes_is_refused_by_name(cron: str) -> None:
    with pytest.raises(InvalidArgument, match="cron") as raised:
        check_timing(cron, None, "UTC", NOW_MS)
    assert repr(cron) in str(raised.value)


def test_an_expression_without_a_time_in_fifty_years_is_refused() -> None:
    # Both the day of the month and that of the week must match, for one begins with *: neither the 1st nor a 30th of
    # February is ever its fourth Monday.
    with pytest.raises(InvalidArgument, match="no time in the next fifty years"):
        check_timing("0 0 */29 2 MON#4", None, "UTC", NOW_MS)


@pytest.mark.parametrize(
    "zone", ["", "Mars/Olympus", "../etc/passwd", "/etc/localtime", "Europe", "UTC ", "\0", "a" * 999]
)
def test_a_zone_that_is_none_is_refused_by_name(zone: str) -> None:
    with pytest.raises(InvalidArgument, match="timezone is"):
        check_timing("* * * * *", None, zone, NOW_MS)


def test_limits_of_an_interval() -> None:
    assert check_timing(None, INTERVAL_MS_MIN, "UTC", NOW_MS).interval_ms == INTERVAL_MS_MIN
    assert check_timing(None, SPAN_MS_MAX, "UTC", NOW_MS).interval_ms == SPAN_MS_MAX
    for wrong in (INTERVAL_MS_MIN - 1, SPAN_MS_MAX + 1, 0, -1, True, 1.5, "1000"):
        with pytest.raises(InvalidArgument, match="interval_ms"):
            check_timing(None, wrong, "UTC", NOW_MS)
    with pytest.raises(InvalidArgument, match="an interval has none"):
        check_timing(None, 1_000, "Europe/Berlin", NOW_MS)


def test_one_of_cron_and_interval() -> None:
    with pytest.raises(InvalidArgument, match="not both"):
        check_timing("* * * * *", 1_000, "UTC", NOW_MS)
    with pytest.raises(InvalidArgument, match="not neither"):
        check_timing(None, None, "UTC", NOW_MS)
    with pytest.raises(InvalidArgument, match="cron must be a string"):
        check_timing(5, None, "UTC", NOW_MS)
    with pytest.raises(InvalidArgument, match="cron has 256 characters"):
        check_timing("*" * 256, None, "UTC", NOW_MS)
    with pytest.raises(InvalidArgument, match="timezone must be a string"):
        check_timing("* * * * *", None, None, NOW_MS)
