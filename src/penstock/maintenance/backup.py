"""Backups of SQLite stores, each verified when it is made, and stores made from them.

The files are copied by `store/sqlite/backup.py`; here is what an operator asks for and is told. A database has backups
of its own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import msgspec

from penstock.maintenance.verify import Finding, Progress, Report, no_progress, verify
from penstock.model.errors import InvalidArgument
from penstock.store.open import label_of, scheme_of
from penstock.store.sqlite import backup as files


class Backup(msgspec.Struct):
    """One backup in a folder."""

    name: str
    made_ms: int
    bytes: int
    """Of its file and its segments, shared with other backups or not."""
    segments: int


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


def list_backups(folder: Path) -> list[Backup]:
    """The backups in a folder, the oldest first."""
    return [
        Backup(one.name, one.made_ms, sum(file.size for file in _files_of(one)), len(one.segments))
        for one in files.backups(folder)
    ]


def _files_of(manifest: files.Manifest) -> list[files.CopiedFile]:
    return [manifest.file, *(segment.file for segment in manifest.segments)]


async def restore(folder: Path, target: str, *, name: str | None = None, progress: Progress = no_progress) -> Restored:
    """Make a store from a backup, the newest unless one is named, and verify it."""
    started = monotonic()
    if scheme_of(target):
        raise InvalidArgument("a backup becomes a file; 'penstock store copy' brings it into a database afterwards")
    manifest = files.chosen(folder, name)
    await asyncio.to_thread(files.restore, folder, manifest, Path(target), progress)
    report: Report = await verify(target, progress)
    return Restored(
        label_of(target),
        manifest.name,
        report.ok,
        report.queues,
        report.messages,
        round(monotonic() - started, 3),
        report.findings,
    )
