"""Backups of SQLite stores, each verified when it is made; their log, copied as it grows; and stores made from them.

The files are copied by `store/sqlite/backup.py`, `shipping.py` and `restore.py`; here is what an operator asks for and
is told. A database has backups of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time_ns

import msgspec

from penstock.maintenance.verify import Finding, Progress, Report, no_progress, verify
from penstock.model.errors import InvalidArgument, Unavailable
from penstock.store.open import label_of, open_engine, scheme_of
from penstock.store.sqlite import backup as files
from penstock.store.sqlite import restore as restoring
from penstock.store.sqlite import shipping as shipped
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.snapshot import check_there


class Backup(msgspec.Struct):
    """One backup in a folder."""

    name: str
    made_ms: int
    bytes: int
    """Of its file and its segments, shared with other backups or not."""
    segments: int
    until_ms: int
    """The last moment that can be restored from it and the log behind it."""


class BackupMade(msgspec.Struct):
    """What a new backup holds."""

    store: str
    folder: str
    name: str
    ok: bool
    """Whether what is in it is sound. One of a damaged store is kept too, and no older one is deleted for it."""
    queues: int
    messages: int
    bytes_copied: int
    bytes_had: int
    """Bytes of segments that an earlier backup had."""
    seconds: float
    deleted: list[str] = []
    """Older backups that `keep` left no room for."""
    findings: list[Finding] = []


class Restored(msgspec.Struct):
    """A store that was made from a backup."""

    store: str
    backup: str
    ok: bool
    queues: int
    messages: int
    restored_ms: int
    """When the last commit was made that is in it."""
    commits: int
    """How many of the log were added to the tables of the backup."""
    left_out: int
    """Later commits that are known and not in it."""
    next_ms: int | None
    """When the first of them was made."""
    last_ms: int
    """When the last of them was made."""
    seconds: float
    findings: list[Finding] = []


async def back_up(place: str, folder: Path, *, keep: int | None = None, progress: Progress = no_progress) -> BackupMade:
    """Make a backup of a file's store, and verify it; with `keep`, only so many of the newest stay."""
    started = monotonic()
    if scheme_of(place):
        raise InvalidArgument(f"{label_of(place)} is a database: back it up with its own tools")
    made = await asyncio.to_thread(files.back_up, Path(place), folder, progress)
    with files.as_store(folder, made.manifest) as path:
        report = await verify(path, progress)
    deleted = files.prune(folder, keep) if keep is not None and report.ok else []
    return BackupMade(
        label_of(place),
        str(folder),
        made.manifest.name,
        report.ok,
        report.queues,
        report.messages,
        made.bytes_copied,
        made.bytes_had,
        round(monotonic() - started, 3),
        deleted,
        report.findings,
    )


@dataclass
class Watching:
    """Backups now and then, and the log all the time: every moment in between can be restored."""

    place: str
    folder: Path
    every_s: float
    full_every_s: float
    keep: int | None = None
    progress: Progress = no_progress

    async def run(self, made: Callable[[BackupMade], None]) -> None:
        """Until it is cancelled, or something fails; `made` hears of every backup."""
        source = Path(self.place)
        if scheme_of(self.place):
            raise InvalidArgument(f"{label_of(self.place)} is a database: its own tools copy its log")
        check_there(source)
        with Segments(Path(f"{source}-log")).wanted() as wanted_from:
            shipping = await self._begin(source, made)
            backing_up: asyncio.Task[BackupMade] | None = None
            due_ms = self._due_ms()
            while True:
                try:
                    await asyncio.to_thread(shipping.ship)
                except shipped.Gap:
                    shipping = await self._begin(source, made)
                wanted_from(shipping.number)
                if backing_up is None and time_ns() // 1_000_000 >= due_ms:
                    backing_up = asyncio.create_task(self._back_up())
                if backing_up is not None and backing_up.done():
                    made(backing_up.result())
                    backing_up, due_ms = None, self._due_ms()
                await asyncio.sleep(self.every_s)

    def _due_ms(self) -> float:
        """When the next backup is to be made, also if this process was started since the last one."""
        return files.chosen(self.folder, None).made_ms + self.full_every_s * 1000

    async def _begin(self, source: Path, made: Callable[[BackupMade], None]) -> shipped.Shipping:
        """Go on where the folder ends, or begin behind a new backup."""
        try:
            return await asyncio.to_thread(shipped.Shipping, source, self.folder)
        except shipped.Gap:
            made(await self._back_up())
        try:
            return await asyncio.to_thread(shipped.Shipping, source, self.folder)
        except shipped.Gap as gap:
            raise Unavailable(f"{gap}, although a backup was just made; try again") from gap

    async def _back_up(self) -> BackupMade:
        """On a thread, so that the log is copied meanwhile."""
        work = back_up(self.place, self.folder, keep=self.keep, progress=self.progress)
        return await asyncio.to_thread(asyncio.run, work)


def list_backups(folder: Path) -> list[Backup]:
    """The backups in a folder, the oldest first."""
    return [
        Backup(
            one.name,
            one.made_ms,
            sum(file.size for file in _files_of(one)),
            len(one.segments),
            restoring.until_ms(folder, one),
        )
        for one in files.backups(folder)
    ]


def _files_of(manifest: files.Manifest) -> list[files.CopiedFile]:
    return [manifest.file, *(segment.file for segment in manifest.segments)]


async def restore(
    folder: Path,
    target: str,
    *,
    name: str | None = None,
    at_ms: int | None = None,
    progress: Progress = no_progress,
) -> Restored:
    """Make a store as a backup has it, or as it was at a moment, or else the newest that there is; and verify it."""
    started = monotonic()
    if scheme_of(target):
        raise InvalidArgument("a backup becomes a file; 'penstock store copy' brings it into a database afterwards")
    plan = await asyncio.to_thread(restoring.plan, folder, name, at_ms)
    await asyncio.to_thread(restoring.restore, plan, folder, Path(target), progress)
    await _bring_up_to_date(target)
    report: Report = await verify(target, progress)
    return Restored(
        label_of(target),
        plan.manifest.name,
        report.ok,
        report.queues,
        report.messages,
        plan.restored_ms,
        plan.commits,
        plan.left_out,
        plan.next_ms,
        plan.last_ms,
        round(monotonic() - started, 3),
        report.findings,
    )


async def _bring_up_to_date(place: str) -> None:
    """Let the tables know all of the log, so that all of it is verified."""
    store = await open_engine(place, must_exist=True)
    try:
        await store.list_lanes(-1, 1)
    finally:
        await store.close()
