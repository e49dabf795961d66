"""Dead letters of a group: what died and why, redrive, purge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypedDict, Unpack

import msgspec

from penstock.api.results import DamagedRange, Received
from penstock.model import DEFAULT_GROUP


class DeadMessage(msgspec.Struct, frozen=True):
    """A dead message and why it died."""

    received: Received
    reason: str
    error: str
    attempts: int
    consumer: str
    dead_ms: int


class DeadList(list[DeadMessage]):
    """A list of dead letters; `damaged` names those that could not be read."""

    def __init__(self, dead: Iterable[DeadMessage] = (), damaged: Sequence[DamagedRange] = ()) -> None:
        super().__init__(dead)
        self.damaged = list(damaged)


class DeadPage(msgspec.Struct, frozen=True):
    """Some dead letters, and where to go on: (lane, offset), None at the end."""

    dead: list[DeadMessage]
    next: tuple[int, int] | None
    damaged: list[DamagedRange] = []
    """What was passed over because it is damaged in the store."""


class DeadRange(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive offsets [start, end) of a lane that died together. In JSON an array of the fields in this order."""

    lane: int
    start: int
    end: int
    reason: str
    error: str
    attempts: int
    consumer: str
    dead_ms: int


class DeadRanges(msgspec.Struct, frozen=True):
    """Some ranges of dead letters, and where to go on: (lane, offset), None at the end."""

    ranges: list[DeadRange]
    next: tuple[int, int] | None


class DeadReason(msgspec.Struct, frozen=True):
    """Dead letters that died for the same reason, with the same error text."""

    reason: str
    error: str
    count: int
    oldest_ms: int
    newest_ms: int


class DeadOptions(TypedDict, total=False):
    """Which dead letters: all conditions that are given hold."""

    reason: str | None
    """attempts, rejected, expired, …"""
    error: str | None
    """Text that the error contains."""
    offsets: tuple[int, int] | None
    """[start, end)"""
    filter: str | None
    """A condition on metadata."""
    lane: int | None
    """Only this lane; without it, offsets count in every lane."""
    until_ms: int | None
    """Only what died then or before, in milliseconds since the epoch."""


class DeadLetters(Protocol):
    """A group's dead letters."""

    async def dead(
        self, queue: str, group: str = DEFAULT_GROUP, *, max: int = 100, **choice: Unpack[DeadOptions]
    ) -> DeadList:
        """Dead letters of a group with why they died; by reason, text in the error, offsets or a filter.

        Offsets count in every lane, unless one is named; with `until_ms`, only what died then or before. Stops at
        about 16 MiB. Those that are damaged in the store are passed over: `damaged` of the list names them.
        """

    async def dead_ranges(
        self, queue: str, group: str = DEFAULT_GROUP, *, after: tuple[int, int] | None = None, max: int = 10_000
    ) -> DeadRanges:
        """Where the dead letters of a group are and why they died, page by page: continue with `after=page.next`.

        No message is read: a range is what died together, one message or many.
        """

    async def dead_reasons(self, queue: str, group: str = DEFAULT_GROUP) -> list[DeadReason]:
        """Why messages of a group died: how many by reason and error text, the most frequent first."""

    async def redrive(self, queue: str, group: str = DEFAULT_GROUP, **choice: Unpack[DeadOptions]) -> int:
        """Redeliver the chosen dead letters to their group, with the attempt count reset; returns how many."""

    async def purge_dead(self, queue: str, group: str = DEFAULT_GROUP, **choice: Unpack[DeadOptions]) -> int:
        """Delete the chosen dead letters for good; returns how many."""
