"""Heaps with lazy deletion and a bound.

An item that is out of date is skipped when it reaches the top. When out-of-date items outnumber the live ones, `push`
sweeps them, at a cost spread over the pushes that made them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappush
from typing import Final, TypeVar

SLACK: Final = 1_024
"""Out-of-date items that a heap may hold beside as many as are live."""

Item = TypeVar("Item", int, tuple[int, int], tuple[int, int, str])


def joined(one: list[Item], other: list[Item]) -> list[Item]:
    """A heap of the items of both, either of which may be changed."""
    if not one or not other:
        return one or other
    one += other
    heapify(one)
    return one


def push(heap: list[Item], item: Item, live: int, is_true: Callable[[Item], bool]) -> None:
    """Push an item; `live` is about how many items are in date, `is_true` tells whether one is."""
    heappush(heap, item)
    if len(heap) > 2 * live + SLACK:
        heap[:] = {item for item in heap if is_true(item)}
        heapify(heap)
