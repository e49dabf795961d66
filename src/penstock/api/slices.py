"""Long work in slices: what else waits for the event loop runs between two of them.

A slice is so many items or so much work (`model/work.py`) and not so many milliseconds, so that what happens between
which of them does not depend on the machine. Whoever is cancelled stops at the end of a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from penstock.api.ticket import Ticket
from penstock.model.work import Steps

SLICE_ITEMS: Final = 1_000
"""Items of a slice, of some microseconds each. As many or fewer are done at once."""

Item = TypeVar("Item")
Made = TypeVar("Made")
Done = TypeVar("Done")


async def in_slices(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Iterable[Made]], most: int = SLICE_ITEMS
) -> list[Made]:
    """What `work` makes of the items, a slice of up to `most` of them at a time."""
    made: list[Made] = []
    for start in range(0, len(items), most):
        if start:
            await asyncio.sleep(0)
        made += work(items[start : start + most])
    return made


async def in_turns(steps: Steps[Made]) -> Made:
    """What steps come to; other work has its turn at each of their stops."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Made = end.value
            return made
        await asyncio.sleep(0)


async def ended(steps: Steps[Made]) -> Made:
    """The same of steps that are at a stop."""
    await asyncio.sleep(0)
    return await in_turns(steps)


def begin(steps: Steps[Made], finish: Callable[[Made], Ticket[Done]]) -> Ticket[Done]:
    """What `finish` makes of what steps come to: now, unless they have a stop; then in a task."""
    try:
        next(steps)
    except StopIteration as end:
        return finish(end.value)

    async def go_on() -> Done:
        return await finish(await ended(steps))

    return Ticket.of(go_on())
