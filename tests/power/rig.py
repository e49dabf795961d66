"""Records a workload and cuts its power again and again: after every call, with several fates for what was not synced.

`record_life` runs a process of its own (this module as a program), in which the recorder forks. `Story` is one or more
lives on the same disk: the next begins where the one before was killed, with all that the kernel had and nothing more
durable than before.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from tests.power.checks import check
from tests.power.disk import EVERYTHING, Chances, Disk, Event, Image, digest, events_of, lay
from tests.power.mutations import MUTATIONS
from tests.power.recorder import NotAllowed, record
from tests.power.workloads import program

ROOT: Final = Path(__file__).resolve().parents[2]
NOT_ALLOWED: Final = 77
"""The exit code of a machine that lets nobody trace."""


@contextmanager
def memory_folder() -> Iterator[Path]:
    """An empty folder, in memory where there is such a thing: syncs that are only counted need not take time."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=shared, prefix="penstock-power-") as name:
        yield Path(name)


def record_life(workload: str, folder: Path, seed: str, life: int, steps: int, mutation: str = "") -> list[Event]:
    """What a process does in a folder. `NotAllowed` where this machine lets nobody trace."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.power.rig", workload, str(folder), seed, str(life), str(steps), mutation]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=100)
    if done.returncode == NOT_ALLOWED:
        raise NotAllowed(done.stderr.decode().strip())
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.decode()}")
    return msgspec.msgpack.decode(done.stdout, type=list[Event])


class Finding(NamedTuple):
    """What is wrong after a loss of power, and where the files are that show it."""

    event: int
    what: str
    chances: Chances
    problems: list[str]
    kept: Path | None

    def __str__(self) -> str:
        where = "" if self.kept is None else f"\n  the files are in {self.kept}"
        lines = "".join(f"\n  {problem}" for problem in self.problems[:5])
        return f"power lost after event {self.event} ({self.what}), {self.chances}:{lines}{where}"


class Story:
    """The lives of a workload on one disk, as events."""

    def __init__(self, workload: str, seed: str, steps: int, mutation: str = "") -> None:
        self.workload = workload
        self._seed, self._steps, self._mutation = seed, steps, mutation
        self._lives = 0
        self.images = 0
        """How often the files that survived were looked at."""
        self.begin = 0
        """The first event of the last life."""
        self.events: list[Event] = []
        self.live()

    def live(self) -> None:
        """One more life, upon what the kernel has of those before."""
        with memory_folder() as folder:
            lay(self._disk(len(self.events)).survivors(Random(0), EVERYTHING), folder)
            made = record_life(self.workload, folder, self._seed, self._lives, self._steps, self._mutation)
        self._lives += 1
        self.begin = len(self.events)
        self.events += [_later(event, self.begin) for event in made]

    def kill(self, events: int) -> None:
        """The last process was killed when it had come so far."""
        del self.events[events:]

    def lose_power(self, events: int, random: Random) -> None:
        """The power was lost when it had come so far: what is left of it is all there is, and durable."""
        left = self._disk(events).survivors(random, Chances.drawn(random))
        self.events = [event for event in self.events[:events] if event.kind == "note"]
        self.events += events_of(left, len(self.events))

    @property
    def ready(self) -> int:
        """Behind the making of the store."""
        return next(at for at, event in enumerate(self.events) if b'"declared"' in event.data) + 1

    def cuts(self, tables_every: int = 1) -> list[int]:
        """Every event of the last life, but of the many writes between two syncs of SQLite one in so many."""
        found = range(self.begin, len(self.events))
        return [at for at in found if not _is_of_tables(self.events[at]) or at % tables_every == 0]

    def unsynced(self) -> list[int]:
        """Where a kill leaves something that the kernel has and the disk has not: before each sync."""
        return [at for at in range(self.ready, len(self.events)) if self.events[at].kind == "sync"]

    def findings(self, cuts: Iterable[int], draws: int = 1, *, keep: Path | None = None) -> Iterator[Finding]:
        """Cut the power after each of these events, with so many fates for what was not synced.

        The files of the first finding are kept in a folder of their own in `keep`.
        """
        disk = Disk()
        seen: set[tuple[bytes, int]] = set()
        for at in cuts:
            for event in self.events[disk.events : at + 1]:
                disk.apply(event)
            notes = [event.data for event in self.events[: at + 1] if event.kind == "note"]
            for draw in range(draws):
                random = Random(f"{self._seed}:{at}:{draw}")
                chances = Chances.drawn(random)
                image = disk.survivors(random, chances)
                key = (digest(image), len(notes))
                if key in seen:
                    continue
                seen.add(key)
                self.images += 1
                problems = self._check(image, notes, random)
                if problems:
                    kept, keep = None if keep is None else _kept(keep, image, notes), None
                    yield Finding(at, str(self.events[at]), chances, problems, kept)

    def _check(self, image: Image, notes: list[bytes], random: Random) -> list[str]:
        with memory_folder() as folder:
            lay(image, folder)
            return asyncio.run(check(self.workload, folder, notes, random))

    def _disk(self, events: int) -> Disk:
        disk = Disk()
        for event in self.events[:events]:
            disk.apply(event)
        return disk


def _kept(folder: Path, image: Image, notes: list[bytes]) -> Path:
    kept = Path(tempfile.mkdtemp(dir=folder, prefix="penstock-power-"))
    lay(image, kept)
    (kept / "notes").write_bytes(b"".join(notes))
    return kept


def _is_of_tables(event: Event) -> bool:
    """One of the many writes between two syncs of SQLite."""
    return event.kind == "write" and event.path.endswith((".db", "-wal", "-shm"))


def _later(event: Event, begin: int) -> Event:
    """An event of a later life: what it syncs is counted from the beginning."""
    return msgspec.structs.replace(event, number=event.number + begin) if event.kind == "sync" else event


def main(workload: str, folder: str, seed: str, life: str, steps: str, mutation: str) -> int:
    run = program(workload, Path(folder), seed, int(life), int(steps))
    if mutation:
        MUTATIONS[mutation]()
    try:
        events = record(Path(folder), run)
    except NotAllowed as error:
        print(error, file=sys.stderr)
        return NOT_ALLOWED
    sys.stdout.buffer.write(msgspec.msgpack.encode(events))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
