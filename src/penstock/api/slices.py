"""Long work in slices: what else waits for the event loop runs between two of them.

A slice is so many items or so much work (`model/work.py`) and not so many milliseconds, so that what happens between
which of them does not depend on the machine. Whoever is cancelled stops at the end of a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from penstock.api.ticket import Ticket
from penstock.model.work import Steps

SLICE_ITEMS: Final = 1_000
"""Items of some microseconds each. As many or fewer are done at once."""
PIECE_ITEMS: Final = 250
"""More are done so many at a time."""
REST_TURNS: Final = 4
"""Turns of the event loop that others have between two slices: about what it takes from a request to its commit."""

Item = TypeVar("Item")
Made = TypeVar("Made")
Done = TypeVar("Done")


async def in_slices(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Iterable[Made]], most: int = PIECE_ITEMS
) -> list[Made]:
    """What `work` makes of the items, a slice of up to `most` of them at a time."""
    made: list[Made] = []
    for start in range(0, len(items), most):
        if start:
            await others_first()
        made += work(items[start : start + most])
    return made


async def others_first() -> None:
    """Between two slices: what waits for the event loop, and what it leads to, has its turns."""
    for _ in range(REST_TURNS):
        await asyncio.sleep(0)


async def in_turns(steps: Steps[Made]) -> Made:
    """What steps come to; other work has its turn at each of their stops, and what they ask for is done on a thread."""
    try:
        asked = next(steps)
    except StopIteration as end:
        made: Made = end.value
        return made
    return await ended(steps, asked)


async def ended(steps: Steps[Made], asked: Callable[[], Any] | None) -> Made:
    """The same of steps that are at a stop, where they have asked for something or not."""
    while True:
        done: list[Any] = []
        if asked is None:
            await others_first()
            done.append(None)
        else:  # a thread's own result would be kept until the next full garbage collection
            await asyncio.to_thread(_do, asked, done)
        try:
            asked = steps.send(done.pop())
        except StopIteration as end:
            made: Made = end.value
            return made


def _do(asked: Callable[[], Any], done: list[Any]) -> None:
    done.append(asked())


def begin(steps: Steps[Made], finish: Callable[[Made], Ticket[Done]]) -> Ticket[Done]:
    """What `finish` makes of what steps come to: now, unless they have a stop; then in a task."""
    try:
        asked = next(steps)
    except StopIteration as end:
        return finish(end.value)

    async def go_on() -> Done:
        return await finish(await ended(steps, asked))

    return Ticket.of(go_on())
