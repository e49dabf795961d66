"""One server a file: a lock beside the database, held for the life of the process.

Two brokers on one SQLite file would fence each other: the second takes everything from the first. The lock is the
kernel's, so it goes when the process does, however that ends; the file stays and means nothing by itself.
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
    """Hold the lock. Raises `Locked`, or `OSError` where the lock's file cannot be made."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise Locked(os.pread(descriptor, 20, 0).decode(errors="replace").strip()) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
