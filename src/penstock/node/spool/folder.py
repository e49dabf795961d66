"""The folder of a spool on a disk: appends that are durable when they return, in a thread of its own, under a lock.

It may not know what is in a file; `log.py` does. Everything is given up by `close`.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, TypeVar

from penstock.model.errors import InvalidArgument, Unavailable
from penstock.store.folders import make_folder, sync_folder

LOCK: Final = "lock"
"""Held by the node that uses the folder; in it is what the folder is called."""
PLACE: Final = re.compile(r"[^\n]{1,64}:[0-9a-f]{8}\n")
FOLDERS_MAX: Final = 1_000
Result = TypeVar("Result")


class Folder(Protocol):
    """What a spool needs of a disk. A failure is raised as `Unavailable`, with what the system said."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def place(self) -> str:
        """Host and folder in the names of nodes: the same for each that is started here, and no other folder's."""

    async def names(self) -> list[str]:
        """The names of all files, sorted."""

    async def read(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """At most `size` bytes of a file from `start` on."""

    async def append(self, name: str, data: bytes) -> None:
        """Add to a file, made where it is missing; durable, with its name, when this returns."""

    async def truncate(self, name: str, size: int) -> None:
        """Cut a file, durably."""

    async def remove(self, name: str) -> None:
        """Durably too: one that came back would be replayed again."""

    async def free_bytes(self) -> int:
        """How much more the disk can hold."""

    async def close(self) -> None:
        """Release everything."""


class FolderInUse(InvalidArgument):
    """Another process has the folder."""

    code = "folder_in_use"


class DiskFolder:
    """A real folder. Made by `DiskFolder.open`."""

    def __init__(self, path: Path, lock: int, place: str) -> None:
        self._path = path
        self.place = place
        self._lock = lock
        self._thread = ThreadPoolExecutor(1, "penstock-spool")
        self._written: tuple[str, int] | None = None
        """The file that was last appended to stays open."""

    @classmethod
    def open(cls, path: str | Path) -> DiskFolder:
        """Make the folder where it is missing, and hold it: two processes would replay the same publishes."""
        place = Path(path)
        try:
            make_folder(place)
            lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidArgument(
                f"the spool's folder {place} cannot be used: {error.strerror or error}; name another with spool.folder"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise FolderInUse(
                f"another process uses the spool's folder {place}; give each node one of its own with spool.folder"
            ) from None
        try:
            return cls(place, lock, _place_in(lock))
        except OSError as error:
            os.close(lock)
            raise InvalidArgument(f"the spool's folder {place} cannot be used: {error.strerror or error}") from None

    @classmethod
    def open_for_port(cls, path: str | Path, port: int) -> DiskFolder:
        """The folder of the server on a port, so that servers that are started in one place have one each.

        Those on any port that is free take the first that none of them has.
        """
        if port:
            return cls.open(Path(path) / str(port))
        for number in range(FOLDERS_MAX):
            try:
                return cls.open(Path(path) / f"any-{number}")
            except FolderInUse:
                continue
        raise InvalidArgument(f"{FOLDERS_MAX} servers have their spools in {path}; name another with spool.folder")

    @property
    def label(self) -> str:
        return str(self._path)

    async def names(self) -> list[str]:
        return await self._run(lambda: sorted(entry.name for entry in os.scandir(self._path) if entry.is_file()))

    async def read(self, name: str, start: int = 0, size: int = -1) -> bytes:
        return await self._run(lambda: self._read(name, start, size))

    def _read(self, name: str, start: int, size: int) -> bytes:
        with (self._path / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    async def append(self, name: str, data: bytes) -> None:
        await self._run(lambda: self._append(name, data))

    def _append(self, name: str, data: bytes) -> None:
        if self._written is None or self._written[0] != name:
            self._let_go()
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._written = (name, os.open(self._path / name, flags, 0o600))
            sync_folder(self._path)
        descriptor = self._written[1]
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fdatasync(descriptor)

    async def truncate(self, name: str, size: int) -> None:
        await self._run(lambda: self._truncate(name, size))

    def _truncate(self, name: str, size: int) -> None:
        self._let_go()
        descriptor = os.open(self._path / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def remove(self, name: str) -> None:
        await self._run(lambda: self._remove(name))

    def _remove(self, name: str) -> None:
        if self._written is not None and self._written[0] == name:
            self._let_go()
        (self._path / name).unlink(missing_ok=True)
        sync_folder(self._path)

    async def free_bytes(self) -> int:
        found = await self._run(lambda: os.statvfs(self._path))
        return found.f_bavail * found.f_frsize

    async def close(self) -> None:
        await self._run(self._let_go)
        self._thread.shutdown()
        os.close(self._lock)

    def _let_go(self) -> None:
        if self._written is not None:
            os.close(self._written[1])
            self._written = None

    async def _run(self, work: Callable[[], Result]) -> Result:
        # Shielded: what has begun on the disk goes on, and the next waits for it in the same thread.
        try:
            return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))
        except OSError as error:
            room = "; make room on its disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise Unavailable(f"the spool in {self._path} failed: {error.strerror or error}{room}") from None


def _place_in(lock: int) -> str:
    """What a lock file says, made where that is nothing. Chance is in it: hosts and folders may be called alike."""
    found = os.pread(lock, 128, 0).decode(errors="replace")
    if PLACE.fullmatch(found) is None:
        found = f"{socket.gethostname()[:64] or 'node'}:{secrets.token_hex(4)}\n"
        os.ftruncate(lock, 0)
        os.pwrite(lock, found.encode(), 0)
        os.fsync(lock)
    return found.rstrip("\n")
