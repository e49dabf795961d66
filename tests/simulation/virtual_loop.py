"""An event loop on a virtual clock: nothing sleeps, time jumps to the next timer, one run is like the other.

It has no threads and no sockets, so whatever happens in it is decided by the program that runs in it and by the seed
that program was given. A schedule that can go on no more, or that goes on without time passing, is an error here and
not a hang. Next stop: `faulty_store.py`, the other half of a simulated machine.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

EPOCH_MS: Final = 1_700_000_000_000
"""What the simulated clock shows at the start: any number, but always the same."""
TURNS_MAX: Final = 200_000
"""Turns of the loop in one schedule; more of them are a program that spins."""

Result = TypeVar("Result")


class Stuck(Exception):
    """Nothing is left to run, or something runs for ever without time passing."""


class _TimeJump:
    """Stands where a selector would wait for sockets: instead of waiting, it moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """A deterministic loop whose `time` is virtual seconds since its start."""

    def __init__(self, turns_max: int = TURNS_MAX) -> None:
        super().__init__()
        self._selector = _TimeJump(self)
        self._now = 0.0
        self._turns_max = turns_max
        self.turns = 0
        self.broken: list[str] = []
        """Assertions that failed in a callback or a task that nobody awaits."""
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(_remembering_factory)  # type: ignore[arg-type]

    def note_broken(self, _: object, context: dict[str, Any]) -> None:
        """Keep failed assertions; other errors are faults that the schedule asked for."""
        if isinstance(context.get("exception"), AssertionError):
            self.broken.append("".join(traceback.format_exception(context["exception"])))

    def time(self) -> float:
        return self._now

    def jump(self, timeout: float | None) -> None:
        """Move on to the next timer; `timeout` is what a selector would have waited for it."""
        self.turns += 1
        if self.turns > self._turns_max:
            raise Stuck(f"{self.turns} turns of the loop: the program spins at {self._now:.3f} s")
        if timeout is None:
            raise Stuck(f"nothing is left to run at {self._now:.3f} s")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]

    def _process_events(self, events: list[Any]) -> None:
        """There are none: no sockets, no signals."""

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """What goes to a thread is done in a turn of its own: a real one would make the world depend on the machine."""
        done = self.create_future()

        def do() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)

        self.call_soon(do)
        return done

    def _write_to_self(self) -> None:
        """Nobody waits that would have to be woken."""


def _remembering_factory(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    """A task that the loop can end in order of birth, when a schedule is over."""
    task = asyncio.Task(work, loop=loop, **options)
    if isinstance(loop, VirtualLoop):
        loop.tasks.append(task)
    return task


class SimulatedClock:
    """`penstock.node.clock.Clock` that reads a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000.0 + 1e-6)


def run(loop: VirtualLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Run a schedule to its end, then end whatever it left behind."""
    loop.set_exception_handler(loop.note_broken)
    try:
        return loop.run_until_complete(work)
    finally:
        _end_all(loop)
        loop.close()


def _end_all(loop: VirtualLoop) -> None:
    """Cancel what is left, in order of birth, until nothing is left."""
    loop.turns = 0
    for _ in range(100):
        left = [task for task in loop.tasks if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
