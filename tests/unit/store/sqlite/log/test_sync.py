"""Syncs by the kernel: carried out while the loop goes on, and said to fail where they do."""

from __future__ import annotations

import asyncio
import builtins
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.store.sqlite.log import sync
from penstock.store.sqlite.log.sync import KernelSyncs

pytest.importorskip("caio")


def test_a_sync_is_carried_out_while_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        syncs = KernelSyncs.of_loop(loop)
        assert syncs is not None, "this kernel has no asynchronous I/O"
        file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        try:
            for _ in range(3):  # more than are ever under way at once
                for _ in range(sync.ORDERS_MOST):
                    os.write(file, b"something")
                    told: asyncio.Future[OSError | None] = loop.create_future()
                    assert syncs.start(file, told.set_result)
                    assert not told.done(), "the caller was held up for it"
                    assert await asyncio.wait_for(told, 30) is None
        finally:
            os.close(file)
            syncs.close()

    asyncio.run(main())


def test_what_cannot_be_synced_is_not_taken_or_said_to_fail() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        syncs = KernelSyncs.of_loop(loop)
        assert syncs is not None
        reading, writing = os.pipe()
        try:
            told: asyncio.Future[OSError | None] = loop.create_future()
            if syncs.start(writing, told.set_result):
                error = await asyncio.wait_for(told, 30)
                assert error is not None
                assert error.errno == errno.EINVAL
        finally:
            os.close(reading)
            os.close(writing)
        assert not syncs.start(writing, lambda _: pytest.fail("it is closed, and was taken"))
        syncs.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [ValueError, OverflowError, SystemError, OSError])
def test_an_order_that_the_kernel_refuses_is_not_taken(kind: type[Exception]) -> None:
    class Refusing:
        def submit(self, _: object) -> int:
            raise kind("no")

    async def main() -> None:
        syncs = KernelSyncs.of_loop(asyncio.get_running_loop())
        assert syncs is not None
        context = syncs._context
        syncs._context = Refusing()  # type: ignore[assignment]
        assert not syncs.start(0, lambda _: pytest.fail("it was not taken"))
        syncs._context = context
        syncs.close()

    asyncio.run(main())


class Interrupted:
    """A context that is interrupted by a signal whenever it looks for results."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.times = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def process_events(self) -> int:
        self.times += 1
        if self.times % 2:
            raise SystemError(errno.EINTR, os.strerror(errno.EINTR))
        return int(self._context.process_events())


def test_a_signal_in_the_middle_costs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        problems: list[Any] = []
        loop.set_exception_handler(lambda _, problem: problems.append(problem))
        syncs = KernelSyncs.of_loop(loop)
        assert syncs is not None
        context = syncs._context
        syncs._context = interrupted = Interrupted(context)  # type: ignore[assignment]
        file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        try:
            for _ in range(5):
                told: asyncio.Future[OSError | None] = loop.create_future()
                assert syncs.start(file, told.set_result)
                assert await asyncio.wait_for(told, 30) is None
        finally:
            os.close(file)
            syncs._context = context
            syncs.close()
        assert interrupted.times >= 10
        assert problems == []

    asyncio.run(main())


def test_what_one_loop_gave_up_the_next_one_has() -> None:
    async def main() -> object:
        syncs = KernelSyncs.of_loop(asyncio.get_running_loop())
        assert syncs is not None
        other = KernelSyncs.of_loop(asyncio.get_running_loop())
        assert other is not None
        assert other._context is not syncs._context
        syncs.close()
        other.close()
        return other._context

    contexts = {asyncio.run(main()) for _ in range(3)}
    assert len(contexts) <= 2, "to give one back to the kernel takes 30 ms"


@pytest.mark.parametrize("result", [-errno.EIO, (1 << 64) - errno.EIO, (1 << 64) - errno.ENOSPC])
def test_a_result_below_zero_is_an_error(result: int) -> None:
    error = sync._error(result)
    assert error is not None
    assert error.errno == (errno.ENOSPC if result == (1 << 64) - errno.ENOSPC else errno.EIO)


def test_a_loop_or_a_system_without_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_readers(*_: Any) -> None:
        raise NotImplementedError

    loop = asyncio.SelectorEventLoop()
    try:
        with monkeypatch.context() as less:
            less.setattr(loop, "add_reader", no_readers)
            assert KernelSyncs.of_loop(loop) is None
    finally:
        loop.close()

    from caio import linux_aio

    def no_more(**_: Any) -> None:
        raise SystemError(errno.EAGAIN, "Resource temporarily unavailable")  # as the package says it

    loop = asyncio.SelectorEventLoop()
    try:
        with monkeypatch.context() as less:
            less.setattr(sync, "_left", [])
            less.setattr(linux_aio, "Context", no_more)
            assert KernelSyncs.of_loop(loop) is None
    finally:
        loop.close()

    imported = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "caio":
            raise ImportError(name)
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    loop = asyncio.SelectorEventLoop()
    try:
        assert KernelSyncs.of_loop(loop) is None
    finally:
        loop.close()
