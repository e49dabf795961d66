"""Waiting in a plain program so that SIGTERM and Ctrl-C are heard: what `Client.consume` stands on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def wait_awake(work: Callable[[], None]) -> None:
    """Wait for work that another thread does, looking up now and then.

    A signal that arrives in the moment before a wait begins is seen only when the wait ends.
    """
    from concurrent.futures import Future, wait

    ended: Future[None] = Future()

    def carry_out() -> None:
        try:
            work()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=carry_out, name="penstock-run", daemon=True).start()
    while not wait([ended], 0.2).done:
        pass
    ended.result()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` the first time; the second time they do what they always do."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in signals}

    def first(_number: int, _frame: object) -> None:
        restore()
        # In a thread: the interrupted one may hold what a call needs.
        threading.Thread(target=stop, name="penstock-stop", daemon=True).start()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in signals:
        signal.signal(number, first)
    try:
        yield
    finally:
        restore()
