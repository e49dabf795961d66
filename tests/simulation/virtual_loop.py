"""An event loop on a virtual clock: nothing sleeps, time jumps to the next timer, one run is like the other.

It has no threads and no sockets, so whatever happens in it is decided by the program that runs in it and by the seed
that program was given. A schedule that can go on no more, or that goes on without time passing, is an error here and
not a hang. Next stop: `faulty_store.py`, the other half of a simulated machine.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

EPOCH_MS: Final = 1_700_000_000_000
"""What the simulated clock shows at the start: any number, but always the same."""
TURNS_MAX: Final = 200_000
"""Turns of the loop in one schedule; more of them are a program that spins."""

CANCELLED_TIMERS_MAX: Final = 0.5
"""The share of cancelled timers from which they are thrown away, if there are more than `FEW_TIMERS`: asyncio's own."""
FEW_TIMERS: Final = 100

Result = TypeVar("Result")


class Stuck(Exception):
    """Nothing is left to run, or something runs for ever without time passing."""


class _Ready(asyncio.Handle):
    """A handle that is made without asking whether the loop is being debugged: hundreds of thousands are made."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], loop: VirtualLoop, context: Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(_Ready, asyncio.TimerHandle):
    """The same with a time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        _Ready.__init__(self, callback, args, loop, context)
        self._when = when
        self._scheduled = True


class VirtualLoop(asyncio.BaseEventLoop):
    """A deterministic loop whose `time` is virtual seconds since its start.

    A turn does what a turn of asyncio's loop does, in the same order, less what is for sockets, threads and debugging:
    most of a simulation's turns run one handle, and what stood around that cost more than the handle.
    """

    # Of asyncio's own loop, what types do not tell.
    _ready: deque[_Ready | _Timer]
    _closed: bool
    _stopping: bool
    _clock_resolution: float

    def __init__(self, turns_max: int = TURNS_MAX) -> None:
        super().__init__()
        self._timers: list[tuple[float, _Timer]] = []
        """A heap: asyncio's own, of handles, would compare those by a method."""
        self._timers_cancelled = 0
        self._now = 0.0
        self.now_ms = EPOCH_MS
        """What a clock shows."""
        self._turns_max = turns_max
        self.turns = 0
        self.broken: list[str] = []
        """Assertions that failed in a callback or a task that nobody awaits."""
        self.tasks: list[asyncio.Task[Any]] = []

    def note_broken(self, _: object, context: dict[str, Any]) -> None:
        """Keep failed assertions; other errors are faults that the schedule asked for."""
        if isinstance(context.get("exception"), AssertionError):
            self.broken.append("".join(traceback.format_exception(context["exception"])))

    # Time -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def _jump(self) -> None:
        """Nothing is ready: move on to the next timer."""
        if not self._timers:
            raise Stuck(f"nothing is left to run at {self._now:.3f} s")
        when = self._timers[0][0]
        if when > self._now:
            self._now = when
            self.now_ms = EPOCH_MS + int(when * 1000.0 + 1e-6)

    def has_more_now(self) -> bool:
        """Whether, behind the handle that runs, another will before time passes."""
        return bool(self._ready) or (bool(self._timers) and self._timers[0][0] < self._now + self._clock_resolution)

    # Turns ------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """One turn: timers that are due become ready, and what was ready when it began is run."""
        self._drop_cancelled()
        timers, ready = self._timers, self._ready
        self.turns += 1
        if self.turns > self._turns_max:
            raise Stuck(f"{self.turns} turns of the loop: the program spins at {self._now:.3f} s")
        if not ready and not self._stopping:
            self._jump()
        if timers:
            end = self._now + self._clock_resolution
            while timers and timers[0][0] < end:
                timer = heappop(timers)[1]
                timer._scheduled = False
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": handle})

    def _drop_cancelled(self) -> None:
        """Throw cancelled timers away: all where there are many, else those that would be next."""
        timers = self._timers
        if len(timers) > FEW_TIMERS and self._timers_cancelled / len(timers) > CANCELLED_TIMERS_MAX:
            for _, timer in timers:
                timer._scheduled = not timer._cancelled
            self._timers = [item for item in timers if not item[1]._cancelled]
            heapify(self._timers)
            self._timers_cancelled = 0
            return
        while timers and timers[0][1]._cancelled:
            self._timers_cancelled -= 1
            heappop(timers)[1]._scheduled = False

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        """A timer says that it was cancelled."""
        if handle._scheduled:
            self._timers_cancelled += 1

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        handle = _Ready(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        timer = _Timer(when, callback, args, self, context)
        heappush(self._timers, (when, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task that the loop can end in order of birth, when a schedule is over."""
        task = asyncio.Task(coro, loop=self, **options)
        self.tasks.append(task)
        return task

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


class SimulatedClock:
    """`penstock.node.clock.Clock` that reads a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return self._loop.now_ms


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
