"""Long work in slices: what else waits for the event loop runs between two of them.

A slice is so many items and not so many milliseconds, so that what happens between which of them does not depend on the
machine. Whoever is cancelled stops at the end of a slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

SLICE_ITEMS: Final = 1_000
"""Items of a slice, of some microseconds each. As many or fewer are done at once."""

Item = TypeVar("Item")
Made = TypeVar("Made")


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
