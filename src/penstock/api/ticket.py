"""A ticket: the result of an operation that has begun, and is not durable yet.

`await` it, or give it a callback. A callback is called where the result becomes known, from within the commit loop, so
an answer that needs no task costs none. Knows nothing of commits, nodes or protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextvars import Context
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, final

from msgspec import Struct

T = TypeVar("T")
U = TypeVar("U")
Arguments = ParamSpec("Arguments")
Callback = Callable[["Ticket[T]"], object]
Change = Callable[[Any], Any]
Rescue = Callable[[BaseException], Any]


@final
class Ticket(Coroutine[Any, Any, T], Generic[T]):
    """The result of an operation that has begun.

    It is a coroutine for callers that want one (`await`, `asyncio.gather`, `create_task`), but the operation goes on
    whether or not anyone waits, and a cancelled caller undoes no commit. An error that no one looks at is not logged.
    """

    __slots__ = (
        "_callbacks",
        "_changes",
        "_error",
        "_result",
        "_source",
        "_steps",
        "_waiter",
        "_was_closed",
        "is_done",
    )

    def __init__(self, result: T | None = None) -> None:
        """`result` is what `end` makes known."""
        self._callbacks: list[Callback[T]] | None = None
        self._waiter: _Waiter | None = None
        """Of the caller that awaits it; of others, where there are several, a callback wakes each."""
        self._changes: tuple[tuple[Change | None, Rescue | None], ...] = ()
        """What `map` and `recover` make of the result and of an error, in their order."""
        self._error: BaseException | None = None
        self._result: Any = result
        self._source: Ticket[Any] | asyncio.Future[Any] | None = None  # it is closed with this ticket
        self._steps: Generator[Any, None, T] | None = None
        self.is_done = False
        self._was_closed = False

    # Making one -------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, awaitable: Awaitable[U]) -> Ticket[U]:
        """A ticket as it is; anything else goes on in a task, which ends when the ticket is closed."""
        if type(awaitable) is Ticket:  # `isinstance` would ask the abstract base class
            return awaitable
        ticket: Ticket[U] = Ticket()
        return ticket._with(asyncio.ensure_future(awaitable))

    def _with(self, task: asyncio.Future[Any]) -> Ticket[T]:
        self._source = task
        task.add_done_callback(self._task_ended)
        return self

    @classmethod
    def done(cls, result: U) -> Ticket[U]:
        """A result that is known."""
        ticket = Ticket(result)
        ticket.is_done = True
        return ticket

    @classmethod
    def failed(cls, error: BaseException) -> Ticket[Any]:
        """An operation that has failed."""
        ticket: Ticket[Any] = Ticket()
        ticket.fail(error)
        return ticket

    # Its end ----------------------------------------------------------------------------------------------

    def complete(self, result: T) -> None:
        """The operation has succeeded, with this result; once."""
        self._result = result
        self.end()

    def fail(self, error: BaseException) -> None:
        """The operation has failed; once."""
        self._error = error
        self.end()

    def _follow(self, other: Ticket[T]) -> None:
        """Become what another ticket, which is done, has become."""
        self._result, self._error = other._result, other._error
        self.end()

    def end(self, woken: list[_Waiter] | None = None) -> None:
        """The operation has ended: it has succeeded with the result that the ticket was made with, unless told else.

        A caller that awaits it goes on in the next turn of the event loop; with others that `woken` lists, see
        `end_all`.
        """
        self._source = None
        if self._changes and not self._change():
            return
        self.is_done = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if woken is None:
                waiter.wake()
            elif not waiter.is_over:
                waiter.is_over = True
                woken.append(waiter)
        if self._callbacks is not None:
            callbacks, self._callbacks = self._callbacks, None
            for callback in callbacks:
                self._call(callback)

    def _change(self) -> bool:
        """Carry out what `map` and `recover` asked for; False where that leads to another ticket, which is not done."""
        changes, self._changes = self._changes, ()
        for index, (change, rescue) in enumerate(changes):
            try:
                if self._error is None:
                    if change is not None:
                        self._result = change(self._result)
                elif rescue is not None:
                    made, self._error = rescue(self._error), None
                    if type(made) is Ticket:
                        self._source, self._changes = made, changes[index + 1 :]
                        made.then(self._follow)
                        return False
                    self._result = made
            except BaseException as error:
                self._error = error
        return True

    def _call(self, callback: Callback[T]) -> None:
        """One callback that fails keeps no other from being called."""
        try:
            callback(self)
        except Exception as failure:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the callback of a ticket failed", "exception": failure}
            )

    def _task_ended(self, task: asyncio.Future[T]) -> None:
        if self._source is not task:
            return  # it has ended the ticket itself
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.complete(task.result())
        else:
            self.fail(error)

    # Looking at it ----------------------------------------------------------------------------------------

    @property
    def error(self) -> BaseException | None:
        """Why the operation failed; None where it did not, or has not ended."""
        return self._error

    @property
    def is_closed(self) -> bool:
        """Whether no one waits for it any more."""
        waiter = self._waiter
        return self._was_closed or (waiter is not None and waiter.was_cancelled and not self._callbacks)

    @property
    def in_order(self) -> bool:
        """Whether it waits for its commit alone, so that a later operation comes behind it.

        Not where a task must wait for something else first: room, a lane that is loaded, another node.
        """
        source = self._source
        return source is None or (isinstance(source, Ticket) and source.in_order)

    def result(self) -> T:
        """The result; raises why there is none."""
        if self._error is not None:
            raise self._error
        if not self.is_done:
            raise asyncio.InvalidStateError("the operation has not ended")
        result: T = self._result
        return result

    def then(self, callback: Callback[T]) -> None:
        """Call back with this ticket as soon as it is done, without a turn of the event loop; now where it is done."""
        if self.is_done:
            self._call(callback)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def map(self, change: Callable[[T], U]) -> Ticket[U]:
        """This ticket with what `change` makes of its result; failed where `change` fails.

        Use only what this returns: the ticket itself changes, so that a request needs one and not a chain.
        """
        return self._changed(change, None)

    def recover(self, rescue: Callable[[BaseException], T | Ticket[T]]) -> Ticket[T]:
        """This ticket with, where it fails, what `rescue` makes of the error: a result, a ticket, or another error."""
        return self._changed(None, rescue)

    def _changed(self, change: Change | None, rescue: Rescue | None) -> Ticket[Any]:
        self._changes += ((change, rescue),)
        if self.is_done:
            self.is_done = False
            self.end()
        return self

    # Waiting for it ---------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, T]:
        while not self.is_done:
            source = self._source
            if source is not None and isinstance(source, asyncio.Future) and not source.done():
                try:
                    yield from source  # a cancelled caller waits until the task has cleaned up
                except BaseException:
                    if not source.done():
                        raise
                continue
            waiter = _Waiter(asyncio.get_running_loop())
            if self._waiter is None:
                self._waiter = waiter
            else:
                self.then(lambda _, waiter=waiter: waiter.wake())  # type: ignore[misc]
            try:
                yield waiter
            except BaseException:
                self._leave(waiter)
                raise
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def _leave(self, waiter: _Waiter) -> None:
        """A caller waits no more; where it was the last, the ticket is closed."""
        if self._waiter is waiter:
            self._waiter = None
            if not self._callbacks:
                self.close()

    # As a coroutine ---------------------------------------------------------------------------------------

    def send(self, value: Any, /) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        if self._steps is None:
            self._steps = self.__await__()
        error = kind if isinstance(kind, BaseException) else kind(*(() if value is None else (value,)))
        try:
            return self._steps.throw(error.with_traceback(traceback) if traceback is not None else error)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """No one waits for it any more. What has only to be committed is committed all the same."""
        self._callbacks = self._waiter = None
        if self.is_done or self._was_closed:
            return
        self._was_closed = True
        source = self._source
        if isinstance(source, asyncio.Future):
            source.cancel()
        elif source is not None:
            source.close()


class _Waiter(Struct, eq=False):
    """A caller that awaits a ticket: as much of a future as asyncio's tasks ask for.

    A future has its task woken by a handle of its own. Hundreds of callers may wait for one commit, and a handle for
    each would cost more than the rest of their answers.
    """

    _loop: asyncio.AbstractEventLoop
    _asyncio_future_blocking: bool = True
    is_over: bool = False
    """Its caller goes on, or is about to."""
    was_cancelled: bool = False
    callback: Any = None
    context: Any = None

    def add_done_callback(self, callback: Callable[[_Waiter], object], *, context: Context) -> None:
        """A task waits for it: the only one."""
        self.callback, self.context = callback, context

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002 - as a future's
        """The task that waits for it is cancelled."""
        if self.is_over:
            return False
        self.was_cancelled = True
        self.wake()
        return True

    def wake(self) -> None:
        """Let its caller go on, alone."""
        if not self.is_over:
            self.is_over = True
            self.resume_with([self])

    def result(self) -> None:
        """The task goes on; raises where that is because it was cancelled."""
        if self.was_cancelled:
            raise asyncio.CancelledError

    def resume_with(self, waiters: list[_Waiter]) -> None:
        """Let callers that are over go on in the next turn of the event loop."""
        self._loop.call_soon(_resume, waiters)


def _resume(waiters: list[_Waiter]) -> None:
    """Let callers go on, in their order."""
    waiters.reverse()
    try:
        while waiters:  # none is kept longer than it takes: what the next one makes has its room
            waiter = waiters.pop()
            waiter.context.run(waiter.callback, waiter)
    finally:  # a task that was told to end the program keeps no other from going on
        if waiters:
            waiters.reverse()
            waiters[0].resume_with(waiters)


def end_all(tickets: Iterable[Ticket[Any]]) -> None:
    """End tickets that have their result. Callers that await them go on together in one step of the event loop."""
    woken: list[_Waiter] = []
    for ticket in tickets:
        ticket.end(woken)
    if woken:
        woken[0].resume_with(woken)


def in_task(function: Callable[Arguments, Coroutine[Any, Any, T]]) -> Callable[Arguments, Ticket[T]]:
    """What the coroutine function does begins when it is called, in a task. Its last step ends the ticket.

    With `Ticket.of` that would come a turn of the event loop later.
    """

    async def carry_out(ticket: Ticket[T], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            result = await function(*args, **kwargs)
        except (Exception, asyncio.CancelledError) as error:
            ticket.fail(error)
        else:
            ticket.complete(result)

    @wraps(function)
    def begin(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Ticket[T]:
        ticket: Ticket[T] = Ticket()
        return ticket._with(asyncio.ensure_future(carry_out(ticket, *args, **kwargs)))

    return begin


def ticketed(function: Callable[Arguments, Ticket[T]]) -> Callable[Arguments, Ticket[T]]:
    """What the function raises is its ticket's error: as with a coroutine, who calls it hears of it by waiting."""

    @wraps(function)
    def begin(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Ticket[T]:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            return Ticket.failed(error)

    return begin
