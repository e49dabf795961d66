"""Backups of an SQLite store, in use or not, to a folder.

The file and its log both change during a backup, so no segment is deleted meanwhile: the copied file may need any.
First the full segments are copied, which never change again; then the file, by SQLite's own backup; then, while no
record is written, the newest segment. What only the log has goes into the file when the restored store is opened.

    FOLDER/segments/0000000007-3b1c….log            a segment, named by its number and its content
    FOLDER/20261118T070000Z/penstock.db             the file
    FOLDER/20261118T070000Z/manifest.json           which segments belong to it, with sizes and checksums
    FOLDER/log/0/0000000009.log                     the log since then, if `shipping.py` copies it

A segment that an earlier backup has copied is not copied again. It may not know commits or rows. Next stop:
`restore.py`, which makes a store of one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.model.errors import InvalidArgument, NotFound, StoreCorrupt, Unavailable
from penstock.store.folders import make_folder, sync_folder
from penstock.store.sqlite.file import Connection, make_private
from penstock.store.sqlite.log.log import LogPosition
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.log.turn import Turn
from penstock.store.sqlite.snapshot import check_there, connect, translated
from penstock.store.sqlite.statements import SQL

FORMAT: Final = 1
FILE: Final = "penstock.db"
MANIFEST: Final = "manifest.json"
SEGMENTS: Final = "segments"
LOG: Final = "log"
_PART_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_PART_BYTES)

Told = Callable[[str, int, int], None]
"""Called with what is copied, how many bytes of it are done, and how many there are."""


class CopiedFile(msgspec.Struct, frozen=True):
    """A file of a backup, by its path in the folder."""

    path: str
    size: int
    sha256: str


class CopiedSegment(msgspec.Struct, frozen=True):
    """A segment of a backup, and which file it was a copy of."""

    number: int
    file: CopiedFile
    inode: int
    mtime_ns: int
    is_full: bool
    """Nothing was written to it any more when it was copied."""


class Manifest(msgspec.Struct, frozen=True):
    """What belongs to one backup."""

    format: int
    name: str
    store_id: str
    made_ms: int
    file: CopiedFile
    segments: list[CopiedSegment]


class BackedUp(NamedTuple):
    """A backup that was made."""

    manifest: Manifest
    bytes_copied: int
    bytes_had: int
    """Bytes of segments that were there already."""


# Making --------------------------------------------------------------------------------------------------


def back_up(source: Path, folder: Path, told: Told = lambda *_: None) -> BackedUp:
    """Make a backup; all that was answered before the call is in it."""
    check_there(source)
    with _held(folder), translated(source):
        earlier = backups(folder)
        made = _Making(source, folder, earlier[-1] if earlier else None, told)
        try:
            return made.run()
        finally:
            made.clear_away()


class _Making:
    """One backup on its way."""

    def __init__(self, source: Path, folder: Path, earlier: Manifest | None, told: Told) -> None:
        self._source = source
        self._folder = folder
        self._told = told
        self._segments = Segments(Path(f"{source}-log"))
        self._partial = folder / f".partial-{os.getpid()}"
        self._known = {} if earlier is None else {one.number: one for one in earlier.segments}
        self._earlier = earlier
        self._have: dict[int, CopiedSegment] = {}
        self._copied = self._had = 0

    def run(self) -> BackedUp:
        self._partial.mkdir(mode=0o700)
        made_ms = time.time_ns() // 1_000_000
        name = self._new_name(made_ms)
        with self._segments.held():
            self._copy_full()
            store_id = self._copy_file()
            # Once more before anyone has to wait.
            self._copy_full()
            turn = Turn(self._segments.folder)
            with closing(turn), turn.locked():
                self._copy_full()
                for number in self._segments.numbers()[-1:]:
                    self._copy_segment(number, is_full=False)
        copied = self._partial / FILE
        file = CopiedFile(f"{name}/{FILE}", copied.stat().st_size, _digest(copied))
        segments = [self._have[number] for number in sorted(self._have)]
        manifest = Manifest(FORMAT, name, store_id, made_ms, file, segments)
        self._put(manifest)
        return BackedUp(manifest, self._copied + file.size, self._had)

    def clear_away(self) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)

    def _new_name(self, made_ms: int) -> str:
        base = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(made_ms / 1000))
        names = [base, *(f"{base}-{number}" for number in range(2, 1000))]
        return next(name for name in names if not (self._folder / name).exists())

    def _copy_full(self) -> None:
        """Have those that are full, which is all but the newest."""
        wanted = [number for number in self._segments.numbers()[:-1] if number not in self._have]
        for done, number in enumerate(wanted):
            self._told("segments of the log", done, len(wanted))
            self._copy_segment(number, is_full=True)

    def _copy_segment(self, number: int, *, is_full: bool) -> None:
        path = self._segments.path(number)
        status = path.stat()
        known = self._known.get(number)
        if known is not None and known.is_full and _is_copy_of(known, status):
            self._have[number] = known
            self._had += known.file.size
            return
        partial = self._partial / path.name
        digest = copy_file(path, partial)
        name = f"{SEGMENTS}/{number:010d}-{digest[:16]}.log"
        if (self._folder / name).exists():
            partial.unlink()
            self._had += status.st_size
        else:
            partial.rename(self._folder / name)
            self._copied += status.st_size
        file = CopiedFile(name, status.st_size, digest)
        self._have[number] = CopiedSegment(number, file, status.st_ino, status.st_mtime_ns, is_full)

    def _copy_file(self) -> str:
        """Copy the tables as they are at one moment; the id of their store."""
        target = self._partial / FILE
        make_private(target)
        self._told("pages of the file", 0, 1)
        with closing(connect(self._source)) as old, closing(sqlite3.connect(target)) as new:
            # In one step: between two a server would write, and SQLite begin again.
            old.backup(new)
            store_id: bytes = new.execute(SQL.log).fetchone()[0]
        sync_file(target)
        self._check_same_store(store_id.hex())
        return store_id.hex()

    def _check_same_store(self, store_id: str) -> None:
        if self._earlier is not None and self._earlier.store_id != store_id:
            raise InvalidArgument(f"{self._folder} has backups of another store; name another folder")

    def _put(self, manifest: Manifest) -> None:
        """The manifest last, and the name of the folder at the very end: what is there under its name is whole."""
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        place = self._partial / MANIFEST
        make_private(place)
        place.write_bytes(data)
        sync_file(place)
        sync_folder(self._partial)
        sync_folder(self._folder / SEGMENTS)
        self._partial.rename(self._folder / manifest.name)
        sync_folder(self._folder)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, for one backup at a time."""
    make_folder(folder / SEGMENTS)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another backup to {folder} is under way") from None
        for left in folder.glob(".partial-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(lock)


# Looking -------------------------------------------------------------------------------------------------


def backups(folder: Path) -> list[Manifest]:
    """The backups in a folder, the oldest first."""
    found = [_read(place) for place in folder.glob(f"*/{MANIFEST}") if not place.parent.name.startswith(".")]
    return sorted(found, key=lambda one: (one.made_ms, one.name))


def chosen(folder: Path, name: str | None) -> Manifest:
    """One backup by its name; the newest where none is given."""
    found = backups(folder) if folder.is_dir() else []
    for one in reversed(found):
        if name is None or one.name == name:
            return one
    raise NotFound(
        f"there is no backup {name!r} in {folder}" if name and found else f"there are no backups in {folder}"
    )


class Tables(NamedTuple):
    """What the file of a store or a backup says of itself."""

    store_id: bytes
    position: LogPosition
    """Up to where the tables know the log."""
    line: int
    """0, or when the store was restored, in microseconds: its log goes another way from then on."""
    incarnation: int
    ids: int


def read_tables(connection: Connection) -> Tables:
    store_id, _turn, *position = connection.execute(SQL.log).fetchone()
    counters = dict(connection.execute(SQL.counters))
    return Tables(store_id, LogPosition(*position), counters.get("line", 0), counters["incarnation"], counters["ids"])


def tables_of(folder: Path, manifest: Manifest) -> Tables:
    """Of a backup."""
    path = folder / manifest.file.path
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with translated(path), closing(sqlite3.connect(uri, uri=True)) as connection:
        return read_tables(connection)


def _read(place: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode(place.read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreCorrupt(f"{place} cannot be read: {error}") from None
    if manifest.format > FORMAT:
        raise InvalidArgument(f"{place} was made by a newer Penstock; use that one")
    return manifest


def prune(folder: Path, keep: int) -> list[str]:
    """Delete all but the newest so many backups, and the segments that none of those needs; their names."""
    with _held(folder):
        every = backups(folder)
        gone, kept = every[: max(len(every) - keep, 0)], every[max(len(every) - keep, 0) :]
        for one in gone:
            (folder / one.name / MANIFEST).unlink()  # first: half a backup is none
            sync_folder(folder / one.name)
            shutil.rmtree(folder / one.name)
        needed = {folder / segment.file.path for one in kept for segment in one.segments}
        for path in (folder / SEGMENTS).glob("*.log"):
            if path not in needed:
                path.unlink()
        _prune_log(folder, kept)
        return [one.name for one in gone]


def _prune_log(folder: Path, kept: list[Manifest]) -> None:
    """Delete what no backup that is kept begins with."""
    first: dict[int, int] = {}
    for tables in (tables_of(folder, one) for one in kept):
        first[tables.line] = min(tables.position.segment, first.get(tables.line, tables.position.segment))
    for path in (folder / LOG).glob("*/*.log"):
        line, number = int(path.parent.name), int(path.stem)
        if number < first.get(line, number + 1):
            path.unlink()


@contextmanager
def as_store(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """A backup under the names that a store has, to be read: links, which are gone afterwards."""
    path = folder / f".partial-{os.getpid()}" / FILE
    log = Segments(Path(f"{path}-log"))
    with _held(folder):
        log.folder.mkdir(mode=0o700, parents=True)
        try:
            _link(folder / manifest.file.path, path)
            for segment in manifest.segments:
                _link(folder / segment.file.path, log.path(segment.number))
            yield path
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise StoreCorrupt(f"{source} is missing: the backup is not whole") from None
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


# Files ---------------------------------------------------------------------------------------------------


def _is_copy_of(known: CopiedSegment, status: os.stat_result) -> bool:
    """A full segment is never written again: the same file of the same time holds the same."""
    return (known.inode, known.mtime_ns, known.file.size) == (status.st_ino, status.st_mtime_ns, status.st_size)


def copy_file(source: Path, target: Path) -> str:
    """Copy a file, durably and without its room of zeros; its SHA-256."""
    digest = hashlib.sha256()
    make_private(target)
    with source.open("rb") as old, target.open("r+b") as new:
        while part := old.read(_PART_BYTES):
            digest.update(part)
            if part == _ZEROS:
                new.seek(len(part), os.SEEK_CUR)
            else:
                new.write(part)
        new.truncate()
        new.flush()
        os.fsync(new.fileno())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
