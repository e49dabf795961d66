"""What a peer is: a server that the harness starts and stops, and a client that the workloads talk through.

`Peer` runs in the harness and needs nothing but the standard library. `Client` and `Consumer` run in the client's
process, where the peer's own Python library is installed. A workload sees only what is here.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.peers_lib.processes import Process
from tools import debian_packages

ROOT: Final = Path(__file__).resolve().parents[2]
BENCH: Final = ROOT / ".bench"
PACKAGES: Final = BENCH / "packages"
"""Where the set-up step unpacks Debian's packages; the machine's own are looked at second."""
VENV: Final = BENCH / "venv"
LEASE_S: Final = 60
DECLARE_CALLERS: Final = 20


def program(*patterns: str) -> Path | None:
    """The first file under the unpacked packages, or under /, that one of the patterns matches."""
    for root in (PACKAGES, Path("/")):
        for pattern in patterns:
            found = sorted(root.glob(pattern.lstrip("/")))
            if found:
                return found[-1]
    return None


def library_path() -> dict[str, str]:
    """So that an unpacked program finds the libraries that were unpacked beside it."""
    return debian_packages.library_path(PACKAGES)


class Peer(abc.ABC):
    """One server with its settings. Its data is in the folder given to `start`, its port on loopback."""

    name: ClassVar[str]
    confirm: ClassVar[str]
    """What is true when a publish is confirmed, and when an acknowledgement is: for the footnotes."""
    library: ClassVar[str]
    """The Python client that is used."""
    synced: ClassVar[bool] = True
    """Whether a confirmed message has been forced to disk: what is compared with Penstock."""

    def __init__(self) -> None:
        self.port = 0
        self.processes: list[Process] = []

    @property
    def roots(self) -> list[int]:
        return [process.pid for process in self.processes]

    @abc.abstractmethod
    def missing(self) -> str | None:
        """What is not installed, or None."""

    @abc.abstractmethod
    def version(self) -> str: ...

    @abc.abstractmethod
    def start(self, folder: Path) -> None:
        """Returns when it takes connections."""

    def stop(self) -> None:
        """The last one started first."""
        while self.processes:
            self.processes.pop().stop()

    @staticmethod
    @abc.abstractmethod
    def client(port: int) -> Client: ...


class Consumer(abc.ABC):
    """Takes messages of one queue (and group), at most `most` at a time unacknowledged."""

    @abc.abstractmethod
    async def take(self) -> tuple[list[bytes], Any]:
        """Payloads and what `ack` wants. Waits a little for the first; none when none came."""

    @abc.abstractmethod
    async def ack(self, token: Any) -> None: ...

    async def close(self) -> None:  # noqa: B027
        """Most have nothing of their own to close."""


class Client(abc.ABC):
    """A peer's client: any number of callers may publish at once."""

    @abc.abstractmethod
    async def open(self, callers: int) -> None:
        """Connect, for as many concurrent callers."""

    @abc.abstractmethod
    async def close(self) -> None: ...

    @abc.abstractmethod
    async def declare(self, queue: str, groups: Sequence[str] = ()) -> None:
        """A durable queue; with groups, each of them gets every message."""

    @abc.abstractmethod
    async def publish(self, queue: str, payloads: list[bytes]) -> None:
        """Returns when all are confirmed."""

    @abc.abstractmethod
    async def consumer(self, queue: str, most: int, group: str | None = None) -> Consumer: ...

    @abc.abstractmethod
    async def take_and_ack(self, queue: str) -> list[bytes]:
        """One message of a queue among very many."""

    async def declare_many(self, queues: Sequence[str], goes_on: Callable[[], bool]) -> int:
        """Declares them in their order until told to stop; how many there are."""
        return await each(queues, DECLARE_CALLERS, self.declare, goes_on)


async def each(
    names: Sequence[str], callers: int, work: Callable[[str], Awaitable[Any]], goes_on: Callable[[], bool]
) -> int:
    """Work on names in their order, by several callers at once, until told to stop; how many were done."""
    left: Iterator[str] = iter(names)
    done = 0

    async def call() -> None:
        nonlocal done
        while goes_on() and (name := next(left, None)) is not None:
            await work(name)
            done += 1

    await asyncio.gather(*(call() for _ in range(callers)))
    return done
