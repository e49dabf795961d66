"""When schedules are due: the ticks of a cron expression in a time zone, or of an interval. Arithmetic only.

It may not know schedules, stores or the clock: times come in. Ticks of an interval are its whole multiples since the
epoch, so they never drift and are the same on every node, whenever the schedule was declared.

A cron expression has five fields (minute, hour, day of the month, month, day of the week) or six, with seconds before
them; `*`, `,`, `-`, `/`, names, `L` (last), `LW` (last weekday) and `MON#2` (second Monday) as the library cronsim
reads them. Where the clocks change it does what Debian's cron does. With five fields and neither minute nor hour
beginning with `*` (a job at certain times of the day): a time that is skipped fires at the first minute that exists,
and one that comes twice fires the first time. All others follow real time: what is skipped does not fire, what comes
twice fires twice. (Where clocks change by less than an hour, which today is Australia/Lord_Howe alone, a tick that is
made up for right after the change may be named by the second of two equal times where the first was meant.)
"""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from penstock.model import NAME_CHARACTERS_MAX, SPAN_MS_MAX, check_integer, check_text
from penstock.model.errors import InvalidArgument

INTERVAL_MS_MIN: Final = 100
TICKS_KEPT: Final = 20_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Timing(NamedTuple):
    """One of a cron expression and an interval; the time zone is the expression's."""

    cron: str | None
    interval_ms: int | None
    timezone: str

    @property
    def per_second(self) -> float:
        """Ticks in a second at the most."""
        if self.interval_ms is not None:
            return 1_000 / self.interval_ms
        return 1.0 if len((self.cron or "").split()) > 5 else 1 / 60

    def after(self, time_ms: int) -> int | None:
        """The first tick after a time; None if there is none for the next fifty years."""
        if self.interval_ms is not None:
            return (time_ms // self.interval_ms + 1) * self.interval_ms
        return _cron_after(self.cron or "", self.timezone, time_ms)

    def latest(self, after_ms: int, now_ms: int) -> int | None:
        """The last tick in (after_ms, now_ms], the one to fire whatever was missed before it; None if there is none."""
        found_ms = self.after(after_ms)
        if found_ms is None or found_ms > now_ms:
            return None
        if self.interval_ms is not None:
            return now_ms // self.interval_ms * self.interval_ms
        found_ms = max(found_ms, _cron_before(self.cron or "", self.timezone, now_ms) or 0)
        # Going back, an hour that came twice is passed over in one step; going on from there finds what was passed.
        while (next_ms := self.after(found_ms)) is not None and next_ms <= now_ms:
            found_ms = next_ms
        return found_ms


def check_timing(cron: object, interval_ms: object, timezone: object, now_ms: int) -> Timing:
    """A timing that ticks after `now_ms`, or an error that names the value."""
    if (cron is None) == (interval_ms is None):
        raise InvalidArgument(f"a schedule needs one of cron and interval_ms, not {'both' if cron else 'neither'}")
    if not isinstance(timezone, str):
        raise InvalidArgument(
            f"timezone must be a string, not {timezone!r} of type {type(timezone).__name__}", "timezone"
        )
    if interval_ms is not None:
        if timezone != "UTC":
            raise InvalidArgument(
                f"timezone is {timezone!r}, but an interval has none; leave it out, or use cron", "timezone"
            )
        return Timing(None, check_integer(interval_ms, "interval_ms", INTERVAL_MS_MIN, SPAN_MS_MAX), timezone)
    check_text(cron, "cron", NAME_CHARACTERS_MAX)
    _zone(timezone)
    timing = Timing(str(cron), None, timezone)
    try:
        next_ms = timing.after(now_ms)
    except CronSimError as error:
        reason = f"{str(error)[:1].lower()}{str(error)[1:]}"
        raise InvalidArgument(f"cron {cron!r} cannot be read: {reason}", "cron") from None
    if next_ms is None:
        raise InvalidArgument(f"cron {cron!r} has no time in the next fifty years", "cron")
    return timing


def _zone(name: str) -> dt.tzinfo:
    if name == "UTC":
        return dt.UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidArgument(
            f"timezone is {name[:40]!r}; it must be a name like UTC, Europe/Berlin or America/New_York", "timezone"
        ) from None


@lru_cache(TICKS_KEPT)
def _cron_after(cron: str, timezone: str, time_ms: int) -> int | None:
    for tick in CronSim(cron, _local(time_ms, timezone)):
        tick_ms = _ms(tick)
        if tick_ms > time_ms:  # in an hour that comes twice, the walk may begin with a time of the first one
            return tick_ms
    return None


def _cron_before(cron: str, timezone: str, time_ms: int) -> int | None:
    """A tick at or before a time, the last one but for what an hour that comes twice hides."""
    for tick in CronSim(cron, _local(time_ms // 1000 * 1000 + 1000, timezone), reverse=True):
        if _ms(tick) <= time_ms:
            return _ms(tick)
    return None


def _local(time_ms: int, timezone: str) -> dt.datetime:
    return (_EPOCH + dt.timedelta(seconds=time_ms // 1000)).astimezone(_zone(timezone))


def _ms(tick: dt.datetime) -> int:
    return int(tick.timestamp()) * 1000
