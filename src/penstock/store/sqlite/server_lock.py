"""One server a store: a lock on the folder of its log, held for the life of the process.

Two brokers on one SQLite file would fence each other: the second takes everything from the first. The lock is the
kernel's, so it goes when the process does, however that ends. The file `.lock` beside the store only says who has it:
it may be deleted.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Locked(Exception):
    """Another process has the lock; the text is its id, as far as it is known."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock of a store. Raises `Locked`, or `OSError` where the store's folder or the file cannot be made."""
    log = Path(f"{path}-log")
    log.mkdir(mode=0o700, exist_ok=True)
    locked = os.open(log, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    process = path.with_name(f"{path.name}.lock")
    try:
        try:
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise Locked(_text_of(process)) from None
        with open(process, "w", opener=_private) as file:
            file.write(f"{os.getpid()}\n")
        yield
    finally:
        os.close(locked)


def holder(path: Path) -> str | None:
    """The id of the process that holds the lock of a store, as far as it is known; None where nobody does."""
    log = os.open(f"{path}-log", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go at once: a server that starts needs it
    except BlockingIOError:
        return _text_of(path.with_name(f"{path.name}.lock"))
    finally:
        os.close(log)
    return None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()[:20]
    except OSError:
        return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
