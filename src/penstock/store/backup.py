"""A copy of a store that is in use: `python -m penstock.store.backup data/penstock.db copy.db`.

The file and its log are two, and both change meanwhile. So: first links to every segment, which keep what is deleted
from now on; then the file, by SQLite's own means; then, while no record is written, links to the segments that came
meanwhile and a real copy of the newest, the only one that still changes. What the log has and the copied file has not
is brought into it when the copy is opened. It may not know commits or rows. Next stop: `docs/store.md`, which tells
when to use it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

from penstock.errors import AlreadyExists, NotFound
from penstock.store.log_segments import Segments, sync_folder
from penstock.store.log_turn import Turn


def back_up(source: Path, target: Path) -> None:
    """Copy a store to a place where there is none; all that was answered before the call is in it."""
    copied = Segments(Path(f"{target}-log"))
    segments = Segments(Path(f"{source}-log"))
    if not source.exists():
        raise NotFound(f"there is no store {source}")
    if target.exists() or copied.folder.exists():
        raise AlreadyExists(f"{target} or its log exists; name a new file")
    copied.folder.mkdir(parents=True)
    before = segments.numbers()
    _link(segments, copied, before)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
    turn = Turn(segments.folder)
    with closing(turn), turn.locked():
        # The one that was the newest may have been copied half-written.
        since = [number for number in segments.numbers() if number >= (before or [0])[-1]]
        _link(segments, copied, since[:-1])
        for number in since[-1:]:
            copied.remove(number)
            shutil.copyfile(segments.path(number), copied.path(number))
    for number in copied.numbers()[-1:]:
        with copied.path(number).open("rb") as newest:
            os.fsync(newest.fileno())
    sync_folder(copied.folder)
    sync_folder(copied.folder.parent)


def _link(segments: Segments, copied: Segments, numbers: list[int]) -> None:
    for number in numbers:
        copied.remove(number)
        try:
            os.link(segments.path(number), copied.path(number))
        except FileNotFoundError:
            continue  # nothing points into it any more
        except OSError:  # on another disk, or one without links
            with suppress(FileNotFoundError):
                shutil.copyfile(segments.path(number), copied.path(number))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m penstock.store.backup FILE COPY")
    back_up(Path(sys.argv[1]), Path(sys.argv[2]))
