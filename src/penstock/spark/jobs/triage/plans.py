"""Redrive plans: the groups of dead letters that a triage found, kept on the server so that one can be run later.

A plan is a question, not a list: the dead letters of a queue and group with this reason and this kind of error, which
died no later than the last one that the triage saw. So it is small however many they are, and running it, once or
again, redrives only what is still dead since then; what was redriven and died again died later, and is left alone.

May not know: Spark, or how plans are shown. The command line reads them before it starts Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from penstock.client.sync import Client
from penstock.model.errors import InvalidArgument, NotFound

MARK: Final = "triage/"
PLANS_MAX: Final = 500
"""The most frequent are kept: a mark holds one MiB."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that can be redriven together."""

    number: int
    queue: str
    queue_id: int
    """A queue that was deleted and declared again is another one."""
    group: str
    reason: str
    error: str
    """Normalised."""
    dead: int
    """How many they were."""
    first_ms: int
    last_ms: int
    """When the first and the last of them died."""


class Plans(msgspec.Struct, frozen=True):
    """What one triage found."""

    made_ms: int
    plans: list[Plan]


def plans_id(queues: str, group: str | None) -> str:
    """The same for the same question: its newest answer is kept."""
    return blake2b(msgspec.json.encode([queues, group]), digest_size=8).hexdigest()


def save_plans(client: Client, id: str, plans: Plans) -> None:
    client.put_mark(MARK + id, msgspec.to_builtins(plans))


def load_plans(client: Client, id: str, numbers: Iterable[int]) -> list[Plan]:
    """The plans with these numbers, in their order."""
    try:
        found = msgspec.convert(client.mark(MARK + id).value, Plans)
    except NotFound:
        raise NotFound(
            "there are no redrive plans for these queues and this group yet: run the triage without --redrive first"
        ) from None
    by_number = {plan.number: plan for plan in found.plans}
    for number in numbers:
        if number not in by_number:
            raise InvalidArgument(f"there is no redrive plan {number}; the last triage made {len(by_number)}")
    return [by_number[number] for number in dict.fromkeys(numbers)]


# Which offsets -------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """Dead offsets [start, end) of a lane, and whether they are the plan's."""

    lane: int
    start: int
    end: int
    is_wanted: bool


class Piece(NamedTuple):
    """What one request redrives: so many `letters` of the plan, and no other dead letter is in [start, end)."""

    lane: int
    start: int
    end: int
    letters: int


def pieces(found: Iterable[Found], most: int) -> Iterator[Piece]:
    """The wanted letters in as few requests as can be, each of at most `most`. `found` comes by lane and offset.

    A request may reach over messages that are not dead, but over no dead letter that is not wanted.
    """
    piece: Piece | None = None
    for one in found:
        if piece is not None and (one.lane != piece.lane or not one.is_wanted):
            yield piece
            piece = None
        start = one.start
        while one.is_wanted and start < one.end:
            piece = piece or Piece(one.lane, start, start, 0)
            end = min(one.end, start + most - piece.letters)
            piece = Piece(one.lane, piece.start, end, piece.letters + end - start)
            start = end
            if piece.letters >= most:
                yield piece
                piece = None
    if piece is not None:
        yield piece
