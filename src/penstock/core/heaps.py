"""Heaps with lazy deletion that cannot grow without bound.

Items that are no longer true are skipped when they come up; where many of them pile up behind a true one,
`push` sweeps them, at a cost spread over the pushes that made them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import Final, TypeVar

SLACK: Final = 1_024

Item = TypeVar("Item", int, tuple[int, int], tuple[int, int, str])


def push(heap: list[Item], item: Item, live: int, is_true: Callable[[Item], bool]) -> None:
    """Push an item on a heap of about `live` true ones."""
    heappush(heap, item)
    if len(heap) > 2 * live + SLACK:
        heap[:] = {item for item in heap if is_true(item)}
        heapify(heap)
