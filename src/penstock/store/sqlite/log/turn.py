"""Whose turn it is to use a log: one store at a time, told apart by a number that rises with every change.

The store that has the turn knows the end of the log and what the index lacks; any other must read them first. The turn
does not decide which node may commit: epochs do. The number is in a small file that is locked while it is read or
changed, and while a record is written. This module may not know segments, SQLite or epochs. Next stop:
`store/sqlite/engine.py`, which takes the turn.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_NUMBER: Final = struct.Struct("<Q")


class Turn:
    """The file `turn` in the log's folder. One thread of this process at a time, but for `is_ours`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "turn"
        self._file = -1
        self.number = -1
        """The turn that this store took; -1 before its first."""
        self._packed = b""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock: no other store takes the turn meanwhile. Waits for other stores' records and changes."""
        self._open()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def lock_at_once(self) -> bool:
        """Lock it if it is free; if True, the caller must `unlock`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def is_ours(self) -> bool:
        """Whether it is this store's turn. Stays true only while it is locked."""
        return self.number >= 0 and os.pread(self._file, _NUMBER.size, 0) == self._packed

    def current(self) -> int:
        """The number in the file; 0 before the first turn."""
        data = os.pread(self._file, _NUMBER.size, 0)
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0

    def take(self, number: int) -> None:
        """Take the turn. Under the lock."""
        self._packed = _NUMBER.pack(number)
        os.pwrite(self._file, self._packed, 0)
        self.number = number

    def give_up(self) -> None:
        """Forget what is known of the log: the next use reads it again."""
        self.number = -1

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        if self._file < 0:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
