"""What an attack is: something prepared once, then clients that go on until they are stopped, in their own process.

The attackers give way to everybody else on the machine (`nice`): they stand for clients on other machines, and what is
measured is what the server makes others wait. Knows nothing of what each attack does: that is in `attacks.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from abc import ABC, abstractmethod
from multiprocessing.connection import Connection as Pipe
from typing import ClassVar, Final, NamedTuple

from bench.polite_lib.http import Answer, Connection, request

AT_ONCE: Final = 32
ANSWERED_WITHIN_S: Final = 30.0
CONNECTED_WITHIN_S: Final = 60.0
FILES: Final = 25_000


class Made(NamedTuple):
    """What an attack did in one turn, or why it could not."""

    answers: int = 0
    refused: int = 0
    megabytes: float = 0.0
    error: str = ""


class Attack(ABC):
    """One kind of client that asks for a lot."""

    clients: ClassVar[int] = 2
    """How many go on at once; a smaller scale may have fewer."""
    connects: ClassVar[bool] = False
    """Each client must have said `there` before the turn counts: opening all of them takes a while."""

    def __init__(self, port: int, scale: float) -> None:
        self._port = port
        self._scale = scale
        self._answers = self._refused = self._bytes = 0
        self._open: list[Connection] = []
        self._answered = asyncio.Event()
        self._missing = 0
        self._all_there = asyncio.Event()

    def scaled(self, count: int) -> int:
        return max(1, round(count * self._scale))

    def count(self) -> None:
        """One more answer, or something else that was done."""
        self._answers += 1
        self._answered.set()

    def there(self) -> None:
        """One more client is connected."""
        self._missing -= 1
        if self._missing <= 0:
            self._all_there.set()

    def connection(self) -> Connection:
        """One that is closed when the turn is over."""
        self._open.append(Connection(self._port))
        return self._open[-1]

    async def ask(self, connection: Connection, sent: bytes, keep: int = 400) -> Answer:
        """The answer, counted; a client that is refused pauses for a moment."""
        answer = await connection.ask(sent, keep)
        self.count()
        self._refused += answer.is_refused
        self._bytes += len(sent) + answer.size
        if answer.is_refused:
            await asyncio.sleep(0.05)
        return answer

    @abstractmethod
    async def prepare(self) -> None:
        """Set up before the first turn; not measured."""

    @abstractmethod
    async def client(self, number: int) -> None:
        """One attacker, until it is cancelled."""

    async def turn(self, pipe: Pipe) -> Made:
        """Attack until something comes through the pipe; tell when it has begun."""
        self._answers = self._refused = self._bytes = 0
        count = min(self.clients, self.scaled(20_000))
        self._missing = count if self.connects else 0
        self._all_there.clear()
        tasks = [asyncio.create_task(self.client(number)) for number in range(count)]
        if self.connects:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_there.wait(), CONNECTED_WITHIN_S)
        pipe.send(Made())
        over = asyncio.create_task(asyncio.to_thread(pipe.recv))
        await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if not self._answers:  # too short a turn for it: let one be answered
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), ANSWERED_WITHIN_S)
        error = next((str(task.exception() or "it ended") for task in tasks if task.done()), "")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._open:
            connection.close()
        self._open.clear()
        await over
        return Made(self._answers, self._refused, self._bytes / 1e6, error)

    async def declare(self, queue: str, options: dict[str, object] | None = None) -> None:
        await self.setup(request("PUT", f"/v1/queues/{queue}", options or {}))

    async def setup(self, *sent: bytes) -> None:
        """Requests of the preparation, a few at a time."""
        waiting = iter(sent)

        async def some() -> None:
            connection = Connection(self._port)
            for each in waiting:
                if (answer := await connection.ask(each)).is_refused:
                    raise RuntimeError(f"the server refused {each[:80]!r}: {answer}")
            connection.close()

        await asyncio.gather(*(some() for _ in range(min(AT_ONCE, len(sent)))))


def serve(kind: type[Attack], port: int, scale: float, pipe: Pipe) -> None:
    """A process: prepares, then makes a turn from each word that comes through the pipe to the next."""
    os.nice(10)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, FILES)), hard))
    with contextlib.suppress(EOFError, ConnectionResetError):
        asyncio.run(_serve(kind(port, scale), pipe))


async def _serve(attack: Attack, pipe: Pipe) -> None:
    try:
        await attack.prepare()
    except (RuntimeError, OSError) as problem:
        pipe.send(Made(error=f"it could not be prepared: {problem}"))
        return
    pipe.send(Made())
    while await asyncio.to_thread(pipe.recv):
        pipe.send(await attack.turn(pipe))
