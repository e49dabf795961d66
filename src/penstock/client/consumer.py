"""The consumer runner: claims messages, hands them to a handler, settles what becomes of them.

A message is acked when its handler returns, nacked with the error when it raises. While handlers run, their leases are
renewed. Messages of one partition that came in one claim are handled one after the other, in order; after one that was
not acked, those behind it are given back. `stop` claims no more, lets handlers finish, gives back what was not begun
and settles all of it. A lost connection is waited out: results are settled when the server is back, while the lease
lives.

`lease_keeper.py` keeps one claim's account; this module decides when to claim and what to run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from penstock import telemetry
from penstock.api.arguments import check_number, milliseconds
from penstock.api.results import Claim, Received
from penstock.client.lease_keeper import Holding
from penstock.model import BATCH_MESSAGES_MAX, DEFAULT_GROUP, SPAN_MS_MAX, check_integer
from penstock.model.errors import InvalidArgument, Overloaded, Unavailable
from penstock.model.verdict import Verdict

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient

Handler = Callable[[Received], Any]
"""Takes one message; its result, awaited where it can be, is ignored."""
BatchHandler = Callable[[list[Received]], Any]

Unit = list[list[Received]]
"""What one handler works through in order: a call for each list."""

PAUSE_S_MAX: Final = 5.0
STOP_S: Final = 3.0
"""How long a stop waits for the answer to a claim that is overdue: the server is away, and holds nothing for us."""
ERROR_CHARACTERS_MAX: Final = 1_000
"""Of an exception's text; the rest is in the consumer's own log."""

log = logging.getLogger("penstock.consumer")


class Reject(Exception):
    """Raised by a handler: this message will never succeed. It is dead at once, with the exception's text."""


class Postpone(Exception):
    """Raised by a handler: again after `delay` seconds, without spending an attempt."""

    def __init__(self, delay: float) -> None:
        super().__init__(f"again in {delay:g} seconds")
        self.delay_ms = milliseconds(delay, "delay", 0, SPAN_MS_MAX)


class ConsumerOptions(TypedDict, total=False):
    """Options of a consumer: see `AsyncClient.consumer`."""

    group: str
    concurrency: int
    batch: int | None
    prefetch: int | None
    lease_seconds: float
    ack: bool
    partition: str | None
    consumer: str | None
    settle_ms: float
    poll_seconds: float


class Consumer:
    """Runs a handler over the messages of a queue's group. `await consumer.run()`, and `consumer.stop()` to end it."""

    def __init__(
        self,
        client: AsyncClient,
        queue: str,
        handler: Handler | BatchHandler,
        *,
        group: str = DEFAULT_GROUP,
        concurrency: int = 1,
        batch: int | None = None,
        prefetch: int | None = None,
        lease_seconds: float = 30.0,
        ack: bool = False,
        partition: str | None = None,
        consumer: str | None = None,
        settle_ms: float = 5,
        poll_seconds: float = 2.0,
    ) -> None:
        """See `AsyncClient.consumer`. With `ack`, a failure is only logged."""
        check_integer(concurrency, "concurrency", 1, 10_000)
        if batch is not None:
            check_integer(batch, "batch", 1, BATCH_MESSAGES_MAX)
        at_once = concurrency * (batch or 1)
        if prefetch is not None:
            check_integer(prefetch, "prefetch", 1, 1_000_000)
        lease_ms = milliseconds(lease_seconds, "lease_seconds", 100, SPAN_MS_MAX)
        check_number(settle_ms, "settle_ms", 0, 60_000)
        check_number(poll_seconds, "poll_seconds", 0.05, 600)
        if not callable(handler):
            raise InvalidArgument(f"a handler must be callable, not {type(handler).__name__}")
        self._client = client
        self._queue = queue
        self._handler: Callable[..., Any] = handler
        self._is_async = _is_coroutine_function(handler)
        self._group = group
        self._concurrency = concurrency
        self._batch = batch
        self._prefetch = min(prefetch or 2 * at_once, 1_000_000)
        self._lease_s = lease_ms / 1000
        self._ack = ack
        self._partition = partition
        self._name = consumer if consumer is not None else client._next_consumer_name()
        self._settle_s = settle_ms / 1000
        self._poll_s = poll_seconds
        self._held = 0
        self._running = 0
        self._ready: deque[tuple[Holding, Unit]] = deque()
        self._holdings: set[Holding] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None
        self._is_running = False
        self.handled = 0
        """Messages whose handler returned."""
        self.failed = 0
        """Messages whose handler raised."""

    # Life -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Consume until `stop` is called. Cancelled, it leaves without waiting for handlers."""
        if self._is_running:
            raise InvalidArgument("this consumer runs already")
        self._is_running = True
        if not self._is_async:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="penstock-handler")
        try:
            await self._claim_until_stopped()
            await self._finish()
        finally:
            for task in self._tasks:
                task.cancel()
            for holding in self._holdings:
                holding.abandon()
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            self._is_running = False

    def stop(self) -> None:
        """Claim no more. `run` returns when what is being handled is finished and everything held is settled."""
        self._stopping.set()
        self._changed.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    async def run_forever(self) -> None:
        """`run`, until SIGTERM or Ctrl-C: then stop with care. A second signal is not waited for."""
        with stopped_by_signals(self.stop):
            await self.run()

    # Claiming ---------------------------------------------------------------------------------------------

    async def _claim_until_stopped(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            room = self._prefetch - self._held
            if room <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                claim = await self._claim(min(room, BATCH_MESSAGES_MAX))
            except (Unavailable, Overloaded) as error:
                failures += 1
                log.warning("claiming from %r: %s", self._queue, error)
                await self._pause(random.uniform(0, min(PAUSE_S_MAX, 0.1 * 2 ** min(failures, 10))))
                continue
            failures = 0
            if claim is not None and len(claim):
                self._take(claim)

    async def _claim(self, most: int) -> Claim | None:
        """One claim; None when stopped before there was an answer."""
        claiming = asyncio.ensure_future(
            self._client.claim(
                self._queue,
                group=self._group,
                max=most,
                wait=self._poll_s,
                lease_seconds=self._lease_s,
                partition=self._partition,
                consumer=self._name,
                ack=self._ack,
            )
        )
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((claiming, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not claiming.done():
                # Not cancelled: what the server hands out at this moment would stay leased, with its attempt spent.
                await asyncio.wait((claiming,), timeout=self._poll_s + STOP_S)
            return claiming.result() if claiming.done() else None
        finally:
            stopped.cancel()
            claiming.cancel()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _take(self, claim: Claim) -> None:
        self._held += len(claim)
        holding = Holding(self._client, claim, lease_s=self._lease_s, settle_s=self._settle_s, ended=self._ended)
        self._holdings.add(holding)
        for unit in units_of(claim.messages, self._batch):
            self._ready.append((holding, unit))
        self._fill()

    def _ended(self, holding: Holding) -> None:
        self._holdings.discard(holding)
        self._changed.set()

    # Handling ---------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Begin as many units as there are handlers free."""
        while self._ready and self._running < self._concurrency and not self._stopping.is_set():
            holding, unit = self._ready.popleft()
            self._running += 1
            task = asyncio.get_running_loop().create_task(self._run_unit(holding, unit))
            self._tasks.add(task)
            task.add_done_callback(self._unit_done)

    def _unit_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._running -= 1
        self._fill()
        self._changed.set()

    async def _run_unit(self, holding: Holding, unit: Unit) -> None:
        for number, piece in enumerate(unit):
            if holding.is_lost or (number > 0 and self._stopping.is_set()):
                self._give_back(holding, unit[number:])
                return
            if not await self._run_piece(holding, piece):
                # The next of the partition must not overtake the one that comes back.
                self._give_back(holding, unit[number + 1 :])
                return

    async def _run_piece(self, holding: Holding, piece: list[Received]) -> bool:
        """Whether it was handled, and so acked."""
        offsets = [received.offset for received in piece]
        try:
            argument = piece if self._batch is not None else piece[0]
            with telemetry.consumer_span(argument):
                await self._call(argument)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failed += len(piece)
            self._let_go(holding, _verdicts_for(error, offsets))
            if self._ack or not isinstance(error, Reject | Postpone):
                log.warning("a handler of %r failed at offset %d: %.500r", self._queue, offsets[0], error)
            if not isinstance(error, Exception):
                self.stop()
            return False
        self.handled += len(piece)
        self._let_go(holding, [Verdict("ack", offset, offset + 1) for offset in offsets])
        return True

    async def _call(self, argument: Received | list[Received]) -> None:
        if self._is_async:
            await self._handler(argument)
            return
        loop = asyncio.get_running_loop()
        # With this task's context: a span that a handler opens in its thread belongs to the one around it.
        result = await loop.run_in_executor(self._threads, copy_context().run, self._handler, argument)
        if isinstance(result, Awaitable):
            await result

    def _give_back(self, holding: Holding, unit: Unit) -> None:
        if unit:
            self._let_go(holding, [Verdict("release", one.offset, one.offset + 1) for piece in unit for one in piece])

    def _let_go(self, holding: Holding, verdicts: list[Verdict]) -> None:
        self._held -= len(verdicts)
        holding.settle(verdicts)

    # Ending -----------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Let handlers end, give back what was not begun, settle it all."""
        while self._ready:
            holding, unit = self._ready.popleft()
            self._give_back(holding, unit)
        while self._tasks:
            await asyncio.wait(self._tasks)
        while self._holdings:
            await asyncio.gather(*(holding.finish() for holding in list(self._holdings)))


def _is_coroutine_function(handler: object) -> bool:
    # Of an object that can be called, it is the method of its class that tells.
    called = getattr(type(handler), "__call__", None)  # noqa: B004 - it is called, and known to be callable
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)


def units_of(messages: Sequence[Received], batch: int | None) -> Iterator[Unit]:
    """What may be handled at the same time. A partition is in one unit only, and in its order."""
    size = batch or 1
    loose: list[Received] = []
    by_partition: dict[str, list[Received]] = {}
    for received in messages:
        if received.partition is None:
            loose.append(received)
        else:
            by_partition.setdefault(received.partition, []).append(received)
    for start in range(0, len(loose), size):
        yield [loose[start : start + size]]
    gathered: list[Received] = []
    for own in by_partition.values():
        if len(own) > size:  # one call after the other
            yield [own[start : start + size] for start in range(0, len(own), size)]
            continue
        if len(gathered) + len(own) > size:
            yield [gathered]
            gathered = []
        gathered += own
    if gathered:
        yield [gathered]


def _verdicts_for(error: BaseException, offsets: Sequence[int]) -> list[Verdict]:
    """What becomes of messages whose handler raised."""
    if isinstance(error, Postpone):
        verdict = Verdict("postpone", delay_ms=error.delay_ms)
    elif isinstance(error, Reject):
        verdict = Verdict("reject", error=_text(error, str(error)))
    elif isinstance(error, Exception):
        verdict = Verdict("nack", error=_text(error, f"{type(error).__name__}: {error}"))
    else:  # KeyboardInterrupt and the like: the message is not to blame
        verdict = Verdict("release")
    return [msgspec.structs.replace(verdict, start=offset, end=offset + 1) for offset in offsets]


def _text(error: BaseException, text: str) -> str:
    """An error as a server takes it."""
    return (text or type(error).__name__).encode("utf-8", "replace").decode()[:ERROR_CHARACTERS_MAX]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop` the first time; the second time they do what they always do."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def first() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop()

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
