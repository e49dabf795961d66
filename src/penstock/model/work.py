"""Work: what deciding about messages costs, counted instead of timed, so that a walk stops at the same place anywhere.

A unit is about what one character costs a LIKE, some tens of nanoseconds. Whoever walks over messages, bindings or
topics spends a `Budget`; where it is spent, other work has its turn. Knows neither what is walked over nor the event
loop: `api/slices.py` and the commands of a node let others go first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

SLICE_WORK: Final = 100_000
"""What may be done at once: a few milliseconds."""
MESSAGE_WORK: Final = 30
"""A message, a parked range or a binding that was looked at."""

Result = TypeVar("Result")
Steps = Generator[Callable[[], Any] | None, Any, Result]
"""Work that stops after each slice; what it comes to at the end. What is long and cannot be split it yields instead of
doing it, and is sent what that comes to: it knows nothing of threads."""


class Budget:
    """How much may still be done at once."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = SLICE_WORK

    def spend(self, work: int) -> bool:
        """Count work; whether it is enough for now."""
        self.left -= work
        return self.left <= 0

    def renew(self) -> None:
        """Others have had their turn."""
        self.left = SLICE_WORK


class Pause(Exception):
    """A command spent its budget and has nothing to show for it yet: let others go first, and repeat it.

    What it passed over stays passed over: it goes on from there.
    """


def at_once(steps: Steps[Result]) -> Result:
    """What the steps come to, without a stop: for callers that cannot wait."""
    made: Any = None
    while True:
        try:
            asked = steps.send(made)
        except StopIteration as end:
            result: Result = end.value
            return result
        made = None if asked is None else asked()
