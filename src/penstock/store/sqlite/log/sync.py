"""Kernel syncs: syncing a file in the background of the event loop, without a thread.

Linux's asynchronous I/O takes the order and reports through a descriptor when it is done; a thread would pass Python's
lock back and forth, which costs about as much as the disk. Where the system has none, `KernelSyncs.of_loop` is None and
the caller syncs in another way. This module may not know what is in a file. Next stop: back to `store/sqlite/index.py`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from caio import linux_aio

ORDERS_MOST: Final = 4
"""Syncs that may be under way; a log has one at a time."""

_logger = logging.getLogger("penstock.store.log")

Done = Callable[[OSError | None], None]

_is_ready = False


_left: list[tuple[int, linux_aio.Context]] = []
"""Idle contexts, with the process that made them. Returning one to the kernel takes 30 ms."""


def load() -> Any:
    """The module that talks to the kernel; None where there is none. Probes the kernel first, for some 100 ms."""
    try:
        from caio import linux_aio
    except Exception as error:  # of many kinds, by what the kernel, or a container around it, does not allow
        _not_taken(error)
        return None
    return linux_aio


def make_ready() -> None:
    """For a process whose store will be busy: `load` now, so that the first commit can use kernel syncs."""
    global _is_ready  # noqa: PLW0603
    _is_ready = load() is not None


def is_ready() -> bool:
    """Whether `make_ready` has been done."""
    return _is_ready


def _not_taken(error: Exception) -> None:
    _logger.info("the kernel takes no orders to sync (%s): commits wait for the disk themselves", error)


class KernelSyncs:
    """Syncs under way, of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, module: Any, context: linux_aio.Context) -> None:
        self._loop = loop
        self._context = context
        self._order = module.Operation.fdsync
        loop.add_reader(context.fileno, self._take_results)

    @classmethod
    def of_loop(cls, loop: asyncio.AbstractEventLoop) -> KernelSyncs | None:
        """Syncs for an event loop; None where the system, or this kind of loop, has no such thing."""
        module = load()
        if module is None:
            return None
        try:
            # One that came from a process before a fork is that one's.
            context = next((_left.pop(at)[1] for at, one in enumerate(_left) if one[0] == os.getpid()), None)
            return cls(loop, module, context or module.Context(max_requests=ORDERS_MOST))
        except Exception as error:  # SystemError without more contexts, NotImplementedError of a loop without readers
            _not_taken(error)
            return None

    def start(self, file: int, done: Done) -> bool:
        """Sync the data of a file; `done` is called with the outcome. False: not begun."""
        operation = self._order(file)
        operation.set_callback(lambda result: done(_error(result)))
        try:
            return bool(self._context.submit(operation))
        except Exception as error:  # ValueError, OverflowError or SystemError, by errno: it has not reached the kernel
            _not_taken(error)
            return False

    def close(self) -> None:
        """None is under way any more."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._context.fileno)
        _left.append((os.getpid(), self._context))

    def _take_results(self) -> None:
        with suppress(BlockingIOError):
            self._context.poll()
        while self._took_some():
            pass

    def _took_some(self) -> bool:
        try:
            return bool(self._context.process_events())
        except SystemError as error:
            # A signal came: when there is nothing to take, the kernel says so in this way. There may be something now.
            if error.args[:1] == (errno.EINTR,):
                return True
            raise


def _error(result: int) -> OSError | None:
    """The outcome: 0 is success, and an errno comes negative, as an unsigned number."""
    if result == 0:
        return None
    code = (1 << 64) - result if result > 0 else -result
    return OSError(code, os.strerror(code))
