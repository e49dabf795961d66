"""An event loop in a thread of its own, for callers that have none: what `penstock.sync` stands on.

Any thread may call; each call waits for its own answer. Whoever is interrupted while waiting (Ctrl-C) has the call
cancelled. Knows nothing of brokers: next stop `penstock/sync.py`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # its exit hook must be registered before ours: hooks run in reverse order
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from inspect import isawaitable
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from penstock.model.errors import Closed

CANCEL_SECONDS_MAX: Final = 5.0
"""How long an interrupted caller waits for its call to end; cancelling takes a turn of the loop, hardly more."""
EXIT_SECONDS_MAX: Final = 10.0
"""How long the interpreter's exit waits for brokers that nobody closed. What was answered is durable in any case."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Answer = concurrent.futures.Future[Result]

_open: Final[weakref.WeakSet[LoopThread]] = weakref.WeakSet()


class LoopThread:
    """A daemon thread that runs an event loop until it is closed."""

    def __init__(self, name: str, what: str = "broker") -> None:
        """`what` runs on it, for the errors that say that it is closed."""
        self._what = what
        self._process = os.getpid()
        self._loop = _new_loop()
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._ended: Answer[None] | None = None
        self.last: Callable[[], Coroutine[Any, Any, None]] | None = None
        """What to do before the loop ends."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        _open.add(self)

    # Calls ------------------------------------------------------------------------------------------------

    @overload
    def run(
        self, function: Callable[Arguments, Awaitable[Result]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result: ...

    @overload
    def run(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result: ...

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the loop's thread, and wait for what it returns or raises; await that where it can be."""
        return self._wait(lambda: function(*args, **kwargs), None)

    def run_or_undo(
        self,
        undo: Callable[[Result], Awaitable[None]],
        function: Callable[Arguments, Awaitable[Result]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """The same; an answer that comes while its caller is being interrupted is undone, since nobody sees it."""
        return cast("Result", self._wait(lambda: function(*args, **kwargs), undo))

    @contextmanager
    def entered(self, make: Callable[[], AbstractAsyncContextManager[Result]]) -> Iterator[Result]:
        """An async context manager as a plain one: made, entered and left on the loop, unless that was closed."""
        manager = self.run(make)
        value = self.run(manager.__aenter__)
        try:
            yield value
        except BaseException as error:
            if self.is_closed or not self.run(manager.__aexit__, type(error), error, None):
                raise
        else:
            if not self.is_closed:
                self.run(manager.__aexit__, None, None, None)

    def _wait(self, make: Callable[[], Any], undo: Callable[[Any], Awaitable[None]] | None) -> Any:
        answer: Answer[Any] = concurrent.futures.Future()
        begun: list[asyncio.Future[Any]] = []
        try:
            self._post(lambda: self._start(make, answer, begun))
            answer.exception()  # waits, and raises only if this thread is interrupted
        except Closed:
            raise
        except BaseException:
            self._interrupt(begun, answer, undo)
            raise
        return answer.result()

    def _post(self, action: Callable[[], object]) -> None:
        """Do something on the loop, unless it is closed. What was posted before a close is begun before it."""
        if os.getpid() != self._process:
            raise Closed(f"this {self._what} was opened by process {self._process}; a child process must open its own")
        with self._lock:
            if self._ended is not None:
                raise Closed(f"the {self._what} is closed")
            self._loop.call_soon_threadsafe(action)

    def _start(self, make: Callable[[], Any], answer: Answer[Any], begun: list[asyncio.Future[Any]]) -> None:
        try:
            result = make()
        except BaseException as error:
            answer.set_exception(error)
            return
        if not isawaitable(result):
            answer.set_result(result)
            return
        task = asyncio.ensure_future(result, loop=self._loop)
        begun.append(task)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._answer(task, answer))

    def _answer(self, task: asyncio.Future[Any], answer: Answer[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            what = f"the {self._what} was closed, or the call interrupted, before there was an answer"
            answer.set_exception(Closed(what))
        elif (error := task.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    def _interrupt(
        self,
        begun: list[asyncio.Future[Any]],
        answer: Answer[Any],
        undo: Callable[[Any], Awaitable[None]] | None,
    ) -> None:
        """Cancel a call and see it end, so that nothing of it happens after its caller has moved on."""

        def cancel() -> None:
            for task in begun:
                task.cancel()
            if not begun:
                answer.cancel()

        if self.is_closed:
            return
        self._post(cancel)
        concurrent.futures.wait([answer], CANCEL_SECONDS_MAX)
        if undo is not None and answer.done() and not answer.cancelled() and answer.exception() is None:
            self.run(undo, answer.result())

    # Life -------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    def close(self, seconds_max: float | None = None) -> None:
        """Run `last` after all that was called before, end the thread and wait for it. Doing it again is fine.

        An interrupt ends the waiting, not the closing: another `close` waits on.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._ended is None:
                self._ended = concurrent.futures.Future()
                self._loop.call_soon_threadsafe(self._begin_end, self._ended)
        self._thread.join(seconds_max)
        if not self._thread.is_alive():
            self._ended.result()

    def _begin_end(self, ended: Answer[None]) -> None:
        self._end_task = self._loop.create_task(self._end(ended))

    async def _end(self, ended: Answer[None]) -> None:
        try:
            if self.last is not None:
                await self.last()
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._loop.stop()


def _close_all() -> None:
    """The interpreter is about to exit: close what nobody closed, while other threads still work."""
    for thread in list(_open):
        # Nobody is left to tell; what was answered is durable, and opening it again finds it.
        with suppress(Exception):
            thread.close(EXIT_SECONDS_MAX)


# An ordinary exit hook would come too late: by then no executor takes work any more, and no store can be closed.
# The hook that executors use has no public name; without it a broker is left as a crash would leave it, which is safe.
getattr(threading, "_register_atexit", atexit.register)(_close_all)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
