"""A copy of a store that is in use: `python -m penstock.store.sqlite.backup data/penstock.db copy.db`.

The file and its log both change during a copy, so no segment is deleted meanwhile: the copied file may point into any.
First it links the full segments, which never change again; then it copies the file with SQLite's backup; then, while no
record is written, it links the segments that came meanwhile and copies the newest one. Opening the copy brings into the
file what only the log has. It may not know commits or rows. Next stop: `docs/store.md`, which tells when to use it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from penstock.model.errors import AlreadyExists, NotFound
from penstock.store.sqlite.file import make_private
from penstock.store.sqlite.log.segments import Segments, sync_folder
from penstock.store.sqlite.log.turn import Turn


def back_up(source: Path, target: Path) -> None:
    """Copy a store to a place where there is none; all that was answered before the call is in it."""
    copied = Segments(Path(f"{target}-log"))
    segments = Segments(Path(f"{source}-log"))
    if not source.exists():
        raise NotFound(f"there is no store {source}")
    if target.exists() or copied.folder.exists():
        raise AlreadyExists(f"{target} or its log exists; name a new file")
    copied.folder.mkdir(mode=0o700, parents=True)
    with segments.held():
        _link_full(segments, copied)
        _copy_file(source, target)
        # Once more before anyone has to wait: where links cannot be had, all of it is copied.
        _link_full(segments, copied)
        turn = Turn(segments.folder)
        with closing(turn), turn.locked():
            _link_full(segments, copied)
            for number in segments.numbers()[-1:]:
                _copy(segments.path(number), copied.path(number))
    sync_folder(copied.folder)
    sync_folder(copied.folder.parent)


def _copy_file(source: Path, target: Path) -> None:
    make_private(target)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def _link_full(segments: Segments, copied: Segments) -> None:
    """Have those that are not there yet, without the newest, which still changes."""
    for number in sorted(set(segments.numbers()[:-1]) - set(copied.numbers())):
        try:
            os.link(segments.path(number), copied.path(number))
        except OSError:  # on another disk, or one without links
            _copy(segments.path(number), copied.path(number))


def _copy(source: Path, target: Path) -> None:
    """Durable when it returns. A link is so from the start: a segment that is full was synced."""
    make_private(target)
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m penstock.store.sqlite.backup FILE COPY")
    back_up(Path(sys.argv[1]), Path(sys.argv[2]))
