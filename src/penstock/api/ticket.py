"""A ticket: the result of an operation that has begun, and is not durable yet.

`await` it, or give it a callback. A callback is called where the result becomes known, from within the commit loop, so
an answer that needs no task costs none. Knows nothing of commits, nodes or protocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")
Arguments = ParamSpec("Arguments")
Callback = Callable[["Ticket[T]"], object]


class Ticket(Coroutine[Any, Any, T], Generic[T]):
    """The result of an operation that has begun.

    It is a coroutine to whoever wants one (`await`, `asyncio.gather`, `create_task`), but the operation goes on whether
    or not anybody waits, and a caller that is cancelled undoes no commit. An error that nobody looks at is not logged.
    """

    __slots__ = ("_callbacks", "_change", "_error", "_result", "_source", "_steps", "is_closed", "is_done")

    def __init__(self, result: T | None = None, source: Ticket[Any] | asyncio.Future[Any] | None = None) -> None:
        """`result` is what `complete` makes known; `source` is closed with this ticket."""
        self._callbacks: list[Callback[T] | asyncio.Future[None]] | None = None
        """What is called, and the futures of callers who wait."""
        self._change: Callable[[Any], T] | None = None
        """What makes the result of the source's."""
        self._error: BaseException | None = None
        self._result = result
        self._source = source
        self._steps: Generator[Any, None, T] | None = None
        self.is_done = False
        self.is_closed = False
        """Nobody waits for it any more."""

    # Making one -------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, awaitable: Awaitable[U]) -> Ticket[U]:
        """A ticket as it is; anything else goes on in a task, which ends when the ticket is closed."""
        if isinstance(awaitable, Ticket):
            return awaitable
        task = asyncio.ensure_future(awaitable)
        ticket: Ticket[U] = Ticket(source=task)
        task.add_done_callback(ticket._task_ended)
        return ticket

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

    def complete(self, *result: T) -> None:
        """The operation has succeeded, with the result that the ticket was made with or this one; once."""
        if result:
            self._result = result[0]
        self._end()

    def fail(self, error: BaseException) -> None:
        """The operation has failed; once."""
        self._error = error
        self._end()

    def follow(self, other: Ticket[T]) -> None:
        """Become what another ticket, which is done, has become."""
        self._result, self._error = other._result, other._error
        self._end()

    def _end(self) -> None:
        self.is_done = True
        self._source = None
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                if not isinstance(callback, asyncio.Future):
                    self._call(callback)
                elif not callback.done():
                    callback.set_result(None)

    def _call(self, callback: Callback[T]) -> None:
        """One answer that cannot be given is no reason to give no other."""
        try:
            callback(self)
        except Exception as failure:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the callback of a ticket failed", "exception": failure}
            )

    def _task_ended(self, task: asyncio.Future[T]) -> None:
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
    def in_order(self) -> bool:
        """Whether only its commit is waited for, so that whatever is asked for later comes behind it.

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
        return cast("T", self._result)

    def then(self, callback: Callback[T]) -> None:
        """Call back with this ticket as soon as it is done, without a turn of the event loop; now where it is done."""
        if self.is_done:
            self._call(callback)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def map(self, change: Callable[[T], U]) -> Ticket[U]:
        """A ticket of what `change` makes of the result; failed where this fails, or `change` does."""
        derived: Ticket[U] = Ticket(source=self)
        derived._change = change
        self.then(derived._become)
        return derived

    def _become(self, source: Ticket[Any]) -> None:
        try:
            if source._error is not None:
                self._error = source._error
            else:
                assert self._change is not None
                self._result = self._change(source._result)
        except BaseException as error:
            self._error = error
        self._end()

    def recover(self, change: Callable[[BaseException], T | Ticket[T]]) -> Ticket[T]:
        """A ticket of the result or, where this fails, of what `change` makes of the error: a result, or its ticket."""
        derived: Ticket[T] = Ticket(source=self)

        def become(ticket: Ticket[T]) -> None:
            if ticket._error is None:
                derived.follow(ticket)
                return
            made = change(ticket._error)
            if isinstance(made, Ticket):
                derived._source = made
                made.then(derived.follow)
            else:
                derived.complete(made)

        self.then(become)
        return derived

    # Waiting for it ---------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            source = self._source
            if isinstance(source, asyncio.Future):
                # A caller that is cancelled waits until the task has cleaned up.
                return cast("T", (yield from source))
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if self._callbacks is None:
                self._callbacks = [waiter]
            else:
                self._callbacks.append(waiter)
            try:
                yield from waiter
            except BaseException:
                self._leave(waiter)
                raise
        return self.result()

    def _leave(self, waiter: asyncio.Future[None]) -> None:
        """One waits no more; where it was the last, nobody does."""
        if self._callbacks is not None:
            self._callbacks.remove(waiter)
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
        """Nobody waits for it any more. What has only to be committed is committed all the same."""
        self._callbacks = None
        if self.is_done or self.is_closed:
            return
        self.is_closed = True
        source = self._source
        if isinstance(source, asyncio.Future):
            source.cancel()
        elif source is not None:
            source.close()


def ticketed(function: Callable[Arguments, Ticket[T]]) -> Callable[Arguments, Ticket[T]]:
    """What the function raises is its ticket's error: as with a coroutine, who calls it hears of it by waiting."""

    @wraps(function)
    def begin(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Ticket[T]:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            return Ticket.failed(error)

    return begin
