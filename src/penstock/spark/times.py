"""Times as the lake and the jobs count them: since 1970, in milliseconds or microseconds."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final

from penstock.model.errors import InvalidArgument

EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def microseconds(moment: dt.datetime) -> int:
    """Since 1970, of a time with a zone."""
    return (moment - EPOCH) // _MICROSECOND


def bound_us(moment: dt.datetime | None, what: str) -> int | None:
    """One end of a range as microseconds, None where it is open. Raises for a time without a zone."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidArgument(f"{what} is {moment!r}, which has no time zone: give one, such as datetime.UTC")
    return microseconds(moment)
