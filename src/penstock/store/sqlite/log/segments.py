"""The log's files: segments that records are appended to, one behind the other, each file made at its full size.

A segment begins with a head that names the store, the segment's number and the number of its first record; whatever an
older segment holds from that number on is void. Room is set aside when a segment is made, so that a commit changes
no metadata of the file system and cannot meet a full disk half-way. This module may not know commits, threads, SQLite
or turns. Next stop: `log.py`, which decides when a segment begins.

Preallocated blocks are not like written ones: the file system records which is which, and the first sync of each block
waits for that metadata too. So a small record writes zeros ahead, for the records behind it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from penstock.model.checksum import crc32
from penstock.model.errors import StoreCorrupt, Unavailable
from penstock.store.folders import sync_folder
from penstock.store.sqlite.log.records import HEAD, MAGIC, Draft, Head, parse_head, seed_of
from penstock.store.sqlite.log.sync import Done, KernelSyncs

SEGMENT_BYTES_FIRST: Final = 1 << 20
"""A new store's first segment: each later one has twice the size of the one before, up to the most."""
SEGMENT_BYTES_MOST: Final = 64 << 20
RESERVE_BYTES: Final = 2 << 20
"""Room on the disk that no segment takes: the index needs some to be brought up to date."""
SEGMENT_HEAD_BYTES: Final = 64
ZEROS_BYTES: Final = 256 << 10
"""Zeros written ahead at a time; the sync that does it takes about twice as long."""
ZEROS_FOR_BYTES: Final = 1 << 16
"""For records up to this size. For larger ones writing twice costs more than the metadata."""
_SEGMENT_MAGIC: Final = b"PNSTLOG\x01"
_SEGMENT_HEAD: Final = struct.Struct("<8s16sQQ")
_CHECKSUM: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<Q")
_ROOM: Final = struct.Struct("<QI")
"""Behind the head's checksum: the bytes set aside, and a checksum of these and the head. Older segments have zeros."""
_BLOCK_BYTES: Final = 4096
_JOIN_BYTES: Final = 1 << 16
_BUFFERS_MOST: Final = 512
_ZEROS: Final = memoryview(bytes(ZEROS_BYTES))
_SEARCH_BYTES: Final = 1 << 20
REFUSED: Final = frozenset(
    (errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, getattr(errno, "EUCLEAN", errno.EIO))
)
"""What the system says of bytes that the disk, or its file system, cannot give back as they were."""
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EFBIG, errno.EDQUOT))


class Found(NamedTuple):
    """A whole record, where it was found."""

    position: int
    head: Head
    rows: bytes

    @property
    def bodies_at(self) -> int:
        return self.position + HEAD.size + len(self.rows)

    @property
    def end(self) -> int:
        return self.position + self.head.size


class Segment:
    """An open segment file."""

    def __init__(self, path: Path, store_id: bytes, number: int, first_record: int, file: int) -> None:
        self.path = path
        self._name = str(path)  # looked at often
        self.number = number
        self.first_record = first_record
        self.bytes = os.fstat(file).st_size
        self._store_id = store_id
        self._file = file
        self._identity = _identity(os.fstat(file))
        self._zeros_end = 0
        """Up to here we have written, if only zeros."""
        self.reads_past_faults = False
        """What the disk refuses to read is zeros: for tools that save the rest."""

    def is_in_place(self) -> bool:
        """Whether the path still leads to this file: what is written to one that was deleted is lost."""
        try:
            return _identity(os.stat(self._name)) == self._identity  # noqa: PTH116
        except FileNotFoundError:
            return False

    def write(self, position: int, record: int, draft: Draft) -> None:
        """Put a record at a place; all of it or an error. Durable after `sync`."""
        head = draft.head(seed_of(self._store_id, self.number, position), record)
        parts: Sequence[bytes | memoryview] = (head, draft.rows, *draft.bodies)
        size = draft.size
        if size <= _JOIN_BYTES or len(parts) > _BUFFERS_MOST:
            parts = (b"".join(parts),)
        end = position + size
        if end > self._zeros_end and size <= ZEROS_FOR_BYTES:
            self._zeros_end = min(end + ZEROS_BYTES, self.bytes)
            parts = (*parts, _ZEROS[: self._zeros_end - end])
        written = os.pwritev(self._file, parts, position)
        if written < size:
            _write_all(self._file, b"".join(parts)[written:size], position + written)

    def sync(self) -> None:
        _sync(self._file)

    def start_sync(self, syncs: KernelSyncs, done: Done) -> bool:
        """Like `sync`, in the background of the event loop; whether it was begun."""
        return syncs.start(self._file, done)

    def void(self, position: int) -> None:
        """Overwrite the head of a record whose writing failed, so that it is none."""
        os.pwrite(self._file, bytes(HEAD.size), position)

    def cut(self, position: int) -> None:
        """Give back the room behind the last record."""
        os.ftruncate(self._file, position)

    def room(self) -> int:
        """Bytes that were set aside when it was made; 0 where it does not say."""
        head = os.pread(self._file, SEGMENT_HEAD_BYTES, 0)
        if len(head) < SEGMENT_HEAD_BYTES:
            return 0
        size, checksum = _ROOM.unpack_from(head, _SEGMENT_HEAD.size + _CHECKSUM.size)
        return size if _ROOM.pack(size, checksum) == _packed_room(head[: _SEGMENT_HEAD.size], size) else 0

    def read(self, position: int, end: int) -> bytes:
        """The bytes between two places, as far as the file goes."""
        try:
            return os.pread(self._file, end - position, position)
        except OSError as error:
            if error.errno not in REFUSED or not self.reads_past_faults:
                raise
        end = min(end, self.bytes)
        starts = range(position, end, _BLOCK_BYTES)
        return b"".join(self._read_or_zeros(start, min(start + _BLOCK_BYTES, end)) for start in starts)

    def _read_or_zeros(self, position: int, end: int) -> bytes:
        try:
            return os.pread(self._file, end - position, position)
        except OSError as error:
            if error.errno not in REFUSED:
                raise
            return bytes(end - position)

    def written_end(self, position: int) -> int:
        """Behind the last byte from a place on that is not zero; the place itself where there is none."""
        end, start = position, self._next_data(position)
        while start < self.bytes:
            data = self.read(start, start + _SEARCH_BYTES).rstrip(b"\0")
            if data:
                end = start + len(data)
            start = self._next_data(start + _SEARCH_BYTES)
        return end

    def head_at(self, position: int) -> Head | None:
        """What looks like the head of a record at a place."""
        return parse_head(self.read(position, position + HEAD.size))

    def has_rows(self, position: int, head: Head) -> bool:
        """Whether the rows behind a head agree with it: then it can be trusted, whether or not its bodies are there."""
        start = position + HEAD.size
        if start + head.rows_bytes > self.bytes:
            return False
        return head.is_whole(seed_of(self._store_id, self.number, position), self.read(start, start + head.rows_bytes))

    def record_at(self, position: int, *, bodies: bool = True) -> Found | None:
        """The whole record at a place, whatever its number; None where there is none. `bodies`: look at these too."""
        head = parse_head(self.read(position, position + HEAD.size))
        if head is None or position + head.size > self.bytes:
            return None
        rows = self.read(position + HEAD.size, position + HEAD.size + head.rows_bytes)
        if not head.is_whole(seed_of(self._store_id, self.number, position), rows):
            return None
        found = Found(position, head, rows)
        if bodies and self._bodies_sum(found.bodies_at, head.bodies_bytes) != head.bodies_sum:
            return None
        return found

    def records(self, position: int, record: int) -> Iterator[Found]:
        """The whole records from a place on, as long as their numbers follow."""
        while (found := self.record_at(position)) is not None and found.head.number == record:
            yield found
            position, record = found.end, record + 1

    def has_record_behind(self, position: int, record: int) -> bool:
        """Whether a record of a higher number begins behind a place: then what is there was damaged, not torn."""
        return self.record_behind(position, record) is not None

    def record_behind(self, position: int, record: int) -> Found | None:
        """The first record behind a place with a higher number; its bodies were not looked at."""
        overlap = len(MAGIC) - 1
        start = self._next_data(position + 1)
        while start < self.bytes:
            data = self.read(start, start + _SEARCH_BYTES + overlap)
            at = data.find(MAGIC)
            while at >= 0:
                found = self.record_at(start + at, bodies=False)
                if found is not None and found.head.number > record:
                    return found
                at = data.find(MAGIC, at + 1)
            start = self._next_data(start + _SEARCH_BYTES)
        return None

    def begins_record(self, position: int) -> bool:
        """Whether the bytes at a place look like the beginning of a record."""
        return self.read(position, position + len(MAGIC)) == MAGIC

    def _next_data(self, position: int) -> int:
        """Where something was ever written, from a place on: most of a new segment is only set aside."""
        try:
            return os.lseek(self._file, position, os.SEEK_DATA)
        except OSError:  # nothing but room behind it
            return self.bytes

    def close(self) -> None:
        os.close(self._file)

    def _bodies_sum(self, position: int, count: int) -> int:
        checksum = 0
        for start in range(position, position + count, _SEARCH_BYTES):
            length = min(_SEARCH_BYTES, position + count - start)
            checksum = crc32(self.read(start, start + length), checksum)
        return checksum


class Segments:
    """The folder that the segments are in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        return self.folder / f"{number:010d}.log"

    def numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.log") if path.stem.isdigit())

    def open(self, number: int, store_id: bytes, *, only_read: bool = False) -> Segment | None:
        """The segment of a number; None where its head is not whole. `FileNotFoundError` where it is not there."""
        return self.open_at(self.path(number), number, store_id, only_read=only_read)

    @staticmethod
    def open_at(path: Path, number: int, store_id: bytes, *, only_read: bool = False) -> Segment | None:
        """The same for a segment, or a copy of one, of any name."""
        file = os.open(path, (os.O_RDONLY if only_read else os.O_RDWR) | os.O_CLOEXEC)
        head = os.pread(file, SEGMENT_HEAD_BYTES, 0)
        if store_of(head) is None:
            os.close(file)
            return None
        magic, owner, named, first_record = _SEGMENT_HEAD.unpack(head[: _SEGMENT_HEAD.size])
        if magic != _SEGMENT_MAGIC or owner != store_id or named != number:
            os.close(file)
            raise StoreCorrupt(f"the log file {path} belongs to another store or has another place in its log")
        return Segment(path, store_id, number, first_record, file)

    def make(self, store_id: bytes, number: int, first_record: int, wanted: int, needed: int) -> Segment:
        """A new segment, durable, with room set aside: as much as is wanted and there is, at least what is needed."""
        path = self.path(number)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._set_aside(file, wanted, SEGMENT_HEAD_BYTES + needed)
            packed = _SEGMENT_HEAD.pack(_SEGMENT_MAGIC, store_id, number, first_record)
            room = _packed_room(packed, os.fstat(file).st_size)
            head = (packed + _CHECKSUM.pack(crc32(packed)) + room).ljust(SEGMENT_HEAD_BYTES, b"\0")
            _write_all(file, head, 0)
            _sync(file)
            sync_folder(self.folder)
            return Segment(path, store_id, number, first_record, file)
        except BaseException:
            os.close(file)
            path.unlink(missing_ok=True)
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """No segment is deleted meanwhile, by any process that uses this log."""
        with self._lock_file() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextmanager
    def giving_back(self) -> Iterator[bool]:
        """Whether segments may be deleted now. If so, no backup can begin to hold them meanwhile."""
        with self._lock_file() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = True
            except BlockingIOError:
                is_free = False
            yield is_free

    @contextmanager
    def wanted(self) -> Iterator[Callable[[int], None]]:
        """No segment is deleted from a number on, which rises as it is called with it; at first none at all.

        It goes with the process. `Unavailable` where another one has it.
        """
        with self._lock_file("wanted") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Unavailable(f"another process copies the log {self.folder} already") from None
            os.pwrite(file, _NUMBER.pack(0), 0)
            yield lambda number: _write_all(file, _NUMBER.pack(number), 0)

    def wanted_from(self) -> int:
        """The lowest number that `wanted` keeps."""
        with self._lock_file("wanted") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                data = os.pread(file, _NUMBER.size, 0)
                return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0
        return sys.maxsize

    @contextmanager
    def _lock_file(self, name: str = "held") -> Iterator[int]:
        """Its lock is of this opening, and goes with the process that has it."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    def remove(self, number: int) -> None:
        self.path(number).unlink(missing_ok=True)

    def _set_aside(self, file: int, wanted: int, needed: int) -> None:
        status = os.fstatvfs(file)
        room = status.f_bavail * status.f_frsize - RESERVE_BYTES
        size = max(wanted, _whole_blocks(needed))
        while True:
            try:
                if size > room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                _allocate(file, size)
                return
            except OSError as error:
                if error.errno not in _NO_ROOM or size == _whole_blocks(needed):
                    raise
            size = max(size // 2, _whole_blocks(needed))


def store_of(head: bytes) -> bytes | None:
    """The id of the store that a segment's head names; None where the head is not whole."""
    packed, rest = head[: _SEGMENT_HEAD.size], head[_SEGMENT_HEAD.size :]
    if len(head) < SEGMENT_HEAD_BYTES or _CHECKSUM.unpack_from(rest) != (crc32(packed),):
        return None
    store_id: bytes = _SEGMENT_HEAD.unpack(packed)[1]
    return store_id


def _packed_room(head: bytes, size: int) -> bytes:
    return _ROOM.pack(size, crc32(size.to_bytes(8, "little"), crc32(head)))


def _sync(file: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # anything less leaves it in the drive's memory
    else:
        os.fdatasync(file)


def _allocate(file: int, size: int) -> None:
    if sys.platform == "darwin":
        os.ftruncate(file, size)
    else:
        os.posix_fallocate(file, 0, size)


def _whole_blocks(count: int) -> int:
    return -(-count // _BLOCK_BYTES) * _BLOCK_BYTES


def _identity(status: os.stat_result) -> tuple[int, int]:
    return (status.st_dev, status.st_ino)


def _write_all(file: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, position)
        view, position = view[written:], position + written
