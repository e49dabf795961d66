"""Schedules: a message that is published again and again."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.model import Message


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it stands. Exactly one of queue and exchange is given, and one of cron and interval_ms."""

    name: str
    message: Message
    queue: str | None = None
    exchange: str | None = None
    cron: str | None = None
    interval_ms: int | None = None
    timezone: str = "UTC"
    paused: bool = False
    description: str = ""
    next_ms: int | None = None
    """The tick it waits for; None while it is paused."""
    last_ms: int | None = None
    """The last tick for which a message was published."""
    fired: int = 0
    """How many ticks published a message."""
    last_error: str = ""
    """Why the latest tick published nothing; empty when it did."""


class Schedules(Protocol):
    """Declaring schedules."""

    async def declare_schedule(
        self,
        name: str,
        *,
        message: Message,
        queue: str | None = None,
        exchange: str | None = None,
        cron: str | None = None,
        interval_ms: int | None = None,
        timezone: str = "UTC",
        paused: bool = False,
        description: str = "",
    ) -> Schedule:
        """Publish a message to a queue or exchange again and again. Replaces the schedule of that name, if any.

        `cron` has five fields, or six with seconds first, read in `timezone`. `interval_ms` is at least 100; its ticks
        are its whole multiples since the epoch. Each tick publishes one message, with the headers `schedule` (the name)
        and `scheduled_ms` (the tick). Ticks missed because no broker ran are made up for by one message, for the
        latest of them; ticks missed while paused are not. Where the clocks change, a five-field expression with a fixed
        minute and hour fires once a day: at the first minute after a gap, and the first of two equal times; all others
        follow real time.
        """

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule; what it published stays."""

    async def schedule(self, name: str) -> Schedule:
        """A schedule, when it fired last and when it fires next."""

    async def schedules(self) -> list[Schedule]:
        """The schedules of this namespace by name."""
