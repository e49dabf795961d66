"""The executors' side of a write: rows become encoded chunks, staged one by one under names of this attempt alone.

Memory is bounded by a few chunks however many rows a task has. A server that is away, overloaded or full makes a task
slower, and fails it only when nothing has moved for the whole of the timeout. Knows the client and Arrow; no ledger, no
options. Nothing that is staged here is seen before the driver's commit names it.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow as pa

from penstock.arrow import encoded_batch
from penstock.batch import EncodedBatch
from penstock.client.sync import Client
from penstock.client.transport.channel import Retry
from penstock.model.errors import Overloaded, PenstockError, QueueFull, Unavailable
from penstock.spark.clients import Access, client_of
from penstock.spark.sink.columns import Target

CHUNK_ROWS: Final = 10_000
CHUNK_BYTES: Final = 8 * 1024 * 1024
HELD_BYTES: Final = 2 * CHUNK_BYTES
"""Rows that wait for their chunk to fill, of all targets together."""
IN_FLIGHT: Final = 2
"""Chunks on their way at a time: while one is made durable the next is encoded."""

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
TELL_S: Final = 10.0
"""How often a wait is logged."""
CLIENT_RETRY_S: Final = 5.0
"""How long the client tries by itself before the wait is a matter of `patiently`."""

logger: Final = logging.getLogger(__name__)

Result = TypeVar("Result")


def sink_client(access: Access, timeout_s: float) -> Client:
    """This process's client for writing."""
    return client_of(access, Retry(seconds=min(timeout_s, CLIENT_RETRY_S)))


def patiently(
    call: Callable[[], Result], timeout_s: float, what: str, given_up: threading.Event | None = None
) -> Result:
    """The call's result; while the server asks for patience, again after a pause, until `timeout_s` have passed.

    With `given_up` set, by another thread, the wait ends with the server's last answer.
    """
    began = told = time.monotonic()
    pause = PAUSE_S
    while True:
        try:
            return call()
        except (QueueFull, Overloaded, Unavailable) as error:
            now = time.monotonic()
            if now + pause - began > timeout_s or (given_up is not None and given_up.is_set()):
                raise _given_up(error, what, now - began) from error
            if now - told > TELL_S or pause == PAUSE_S:
                told = now
                logger.warning("%s: waits, since %.0f s, for at most %.0f s: %s", what, now - began, timeout_s, error)
        # At random, so that tasks that were turned away together do not come back together.
        seconds = random.uniform(pause / 2, pause)
        if given_up is None:
            time.sleep(seconds)
        else:
            given_up.wait(seconds)
        pause = min(2 * pause, PAUSE_S_MAX)


def _given_up(error: PenstockError, what: str, waited: float) -> PenstockError:
    full = (
        "; the queue must be consumed, or its limits raised (a write of more rows than its max_length never fits)"
        if isinstance(error, QueueFull)
        else ""
    )
    return type(error)(f"{what}: given up after {waited:.0f} s (option timeout): {error}{full}")


class Stager:
    """Stages the rows of one attempt of one task; `chunks` are the names of what is durable when it is finished."""

    def __init__(self, client: Client, transaction: str, partition: int, attempt: int, timeout_s: float) -> None:
        self._client = client
        self._transaction = transaction
        # The random part keeps attempts of another driver apart, whose numbers begin at 0 again.
        self._name = f"{partition:06d}-{attempt}-{secrets.token_hex(4)}"
        self._timeout_s = timeout_s
        self._held: dict[Target, list[pa.RecordBatch]] = {}
        self._bytes: dict[Target, int] = {}
        self._rows: dict[Target, int] = {}
        self._pool = ThreadPoolExecutor(IN_FLIGHT, "penstock-stage")
        self._under_way: deque[Future[None]] = deque()
        self._given_up = threading.Event()
        self.chunks: list[str] = []

    def add(self, target: Target, rows: pa.RecordBatch) -> None:
        """Take rows for a target, in their order."""
        for piece in _pieces(rows):
            size = piece.nbytes
            if (
                self._rows.get(target, 0) + piece.num_rows > CHUNK_ROWS
                or self._bytes.get(target, 0) + size > CHUNK_BYTES
            ):
                self._stage(target)
            self._held.setdefault(target, []).append(piece)
            self._bytes[target] = self._bytes.get(target, 0) + size
            self._rows[target] = self._rows.get(target, 0) + piece.num_rows
        while sum(self._bytes.values()) > HELD_BYTES:
            self._stage(max(self._bytes, key=self._bytes.__getitem__))

    def finish(self) -> list[str]:
        """Stage what is left and wait until all of it is durable; the chunks' names in the order of their rows."""
        for target in list(self._held):
            self._stage(target)
        while self._under_way:
            self._under_way.popleft().result()
        return self.chunks

    def close(self) -> None:
        """Drop what is not durable yet: no one waits for it."""
        self._given_up.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _stage(self, target: Target) -> None:
        held = self._held.pop(target, None)
        self._bytes.pop(target, None)
        self._rows.pop(target, None)
        if not held:
            return
        rows = held[0] if len(held) == 1 else pa.concat_batches(held)
        batch = encoded_batch(rows)
        while len(self._under_way) >= IN_FLIGHT:
            self._under_way.popleft().result()
        chunk = f"{self._name}-{len(self.chunks):06d}"
        self.chunks.append(chunk)
        self._under_way.append(self._pool.submit(self._send, chunk, batch, target))

    def _send(self, chunk: str, batch: EncodedBatch, target: Target) -> None:
        kind, name = target
        queue, exchange = (name, None) if kind == "queue" else (None, name)
        patiently(
            lambda: self._client.stage(self._transaction, chunk, batch, queue=queue, exchange=exchange),
            self._timeout_s,
            f"staging {batch.count} rows for {kind} {name!r}",
            self._given_up,
        )


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts that fit a chunk; a single row that does not is a part of its own."""
    if not rows.num_rows:
        return
    if rows.num_rows == 1 or (rows.num_rows <= CHUNK_ROWS and rows.nbytes <= CHUNK_BYTES):
        yield rows
        return
    middle = rows.num_rows // 2
    yield from _pieces(rows.slice(0, middle))
    yield from _pieces(rows.slice(middle))
