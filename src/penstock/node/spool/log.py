"""The spool as a log: records appended in order and durably, read from the front, removed segment by segment.

Appends that come while one is being written share the next write and its fsync. Beside the segments are the dead
letters, a file each: records that could not be replayed. It may not know a queue, nor when anything is replayed: that
is `spool.py`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.model.errors import InvalidArgument, PenstockError, StoreCorrupt, Unavailable
from penstock.node.spool import records
from penstock.node.spool.folder import Folder
from penstock.node.spool.records import DeadRecord, Header, Record

SEGMENT_BYTES: Final = 16 * 1024 * 1024
READ_BYTES: Final = 1024 * 1024
FREE_BYTES: Final = 64 * 1024 * 1024
"""What is left free on the spool's disk for others."""
SEGMENT_NAME: Final = "{:010}.spool"
SEGMENT: Final = re.compile(r"(\d{10})\.spool")
DEAD_NAME: Final = "dead-{}-{:012}.letter"
DEAD: Final = re.compile(r"dead-([0-9a-z]+)-(\d{12})\.letter")

log = logging.getLogger("penstock.spool")


class LogPosition(NamedTuple):
    """Where a record begins: by rising number of the segment, then of the byte."""

    segment: int
    offset: int


class Entry(NamedTuple):
    """A record with what its segment says of it, and where the next begins."""

    header: Header
    record: Record
    end: LogPosition


@dataclass
class _Segment:
    """A file of records; `size` of its bytes are durable."""

    header: Header
    size: int


@dataclass(eq=False, repr=False)
class SpoolLog:
    """An open spool. Made by `SpoolLog.open`."""

    _folder: Folder
    _header: Header
    _bytes_most: int
    _segment_bytes: int

    def __post_init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        self._newest = 0
        self._sequence = 0
        self._waiting: list[tuple[bytes, int, asyncio.Future[None]]] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._broken: PenstockError | None = None
        self._dead: set[tuple[str, int]] = set()
        self.messages = 0
        """Durable here; the reader takes them off."""
        self.messages_added = 0

    @classmethod
    async def open(
        cls,
        folder: Folder,
        header: Header,
        bytes_most: int,
        found: Callable[[Header, Record], None],
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> SpoolLog:
        """Read what a process before this one has left, record by record, and cut what it did not finish writing."""
        opened = cls(folder, header, bytes_most, segment_bytes)
        names = await folder.names()
        for match in filter(None, map(DEAD.fullmatch, names)):
            await opened._find_dead(match[0], match[1], int(match[2]))
        numbers = sorted(int(match[1]) for match in map(SEGMENT.fullmatch, names) if match)
        for number in numbers:
            await opened._find_segment(number, found, is_last=number == numbers[-1])
        opened._newest = max(numbers, default=0)
        return opened

    async def _find_dead(self, name: str, of: str, sequence: int) -> None:
        try:
            records.dead_of(await self._folder.read(name), name)
        except StoreCorrupt:
            await self._folder.remove(name)  # the process ended while it wrote it: the record is still in its segment
        else:
            self._dead.add((of, sequence))

    async def _find_segment(self, number: int, found: Callable[[Header, Record], None], *, is_last: bool) -> None:
        name = SEGMENT_NAME.format(number)
        data = await self._folder.read(name)
        start = records.header_of(data, name)
        if start is None:
            if not is_last:
                raise self._damaged(name, 0)
            if data.strip(b"\0"):
                await self._keep_torn(name, data)
            await self._folder.remove(name)
            return
        header, end = start
        if header.store != self._header.store:
            raise InvalidArgument(
                f"the spool in {self._folder.label} holds publishes for another store ({header.store}, this one is "
                f"{self._header.store}): open the store that they are for, or name another folder with spool.folder"
            )
        for record, place in records.records_in(data, end, name):
            found(header, record)
            self.messages += record.count
            end = place
            if self.is_dead(header, record):
                await self._make_durable(DEAD_NAME.format(header.spool, record.sequence))
        if end < len(data):
            if not is_last:
                raise self._damaged(name, end)
            await self._keep_torn(name, data[end:])
            await self._folder.truncate(name, end)
        if end == start[1]:
            await self._folder.remove(name)  # nothing was ever in it
            return
        if is_last:
            await self._make_durable(name)
        self._segments[number] = _Segment(header, end)

    async def _make_durable(self, name: str) -> None:
        """A process that was killed may have left a file that only the kernel knows: what follows relies on it."""
        await self._folder.append(name, b"")

    async def _keep_torn(self, name: str, data: bytes) -> None:
        log.warning(
            "%s/%s ended in the middle of a record: %d bytes, which nobody was answered for, are cut and kept in "
            "%s.torn",
            self._folder.label,
            name,
            len(data),
            name,
        )
        await self._folder.append(f"{name}.torn", data)

    def _damaged(self, name: str, at: int) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self._folder.label}/{name} is damaged at byte {at}, and records follow in later files: nothing is "
            "replayed out of order. Restore the file, or move it away to give up what it holds"
        )

    # Adding -----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """What it takes on its disk, with what is on its way there."""
        return sum(segment.size for segment in self._segments.values()) + self._waiting_bytes

    @property
    def dead_count(self) -> int:
        return len(self._dead)

    def add(self, make: Callable[[int], Record]) -> tuple[Record, asyncio.Future[None]]:
        """Take a record, given its number; the future is done when it is durable. Raises `Unavailable` when full."""
        if self._broken is not None:
            raise Unavailable(str(self._broken))
        record = make(self._sequence + 1)
        data = records.packed(record)
        if self.size + len(data) > self._bytes_most:
            raise Unavailable(
                f"the spool in {self._folder.label} has {self.size} bytes and spool.bytes is {self._bytes_most}: "
                "nothing more is buffered until the store is back. Bring it back, or allow more with spool.bytes"
            )
        self._sequence += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((data, record.count, future))
        self._waiting_bytes += len(data)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
        return record, future

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    async def written(self) -> None:
        """When what is being written now is durable, or has failed."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                data = b"".join(one for one, _, _ in waiting)
                error: PenstockError | None = None
                try:
                    await self._write(data)
                except PenstockError as failure:
                    error = failure
                except Exception as failure:  # whatever it was: the publishes that wait must be told
                    error = self._broken = Unavailable(f"the spool failed in an unexpected way: {failure!r}")
                    log.exception("the spool takes nothing more until a restart")
                self._waiting_bytes -= len(data)
                for _, count, future in waiting:
                    if error is None:
                        self.messages += count
                        self.messages_added += count
                    if not future.done():
                        future.set_result(None) if error is None else future.set_exception(error)
                        if error is not None:
                            future.exception()  # seen: the caller may be gone
        finally:
            self._writing = None

    async def _write(self, data: bytes) -> None:
        if self._broken is not None:
            raise Unavailable(str(self._broken))
        free = await self._folder.free_bytes()
        if free < FREE_BYTES + len(data):
            raise Unavailable(
                f"the spool's disk ({self._folder.label}) has {free} bytes left: nothing more is buffered. Make room "
                "there, or bring the store back"
            )
        segment = self._segments.get(self._newest)
        if segment is None or segment.header is not self._header or segment.size >= self._segment_bytes:
            self._newest += 1
            start = records.segment_start(self._header)
            await self._append(self._newest, 0, start + data)
            self._segments[self._newest] = _Segment(self._header, len(start) + len(data))
        else:
            await self._append(self._newest, segment.size, data)
            segment.size += len(data)

    async def _append(self, number: int, size: int, data: bytes) -> None:
        """Append, or leave the file as it was: what may be of a failed write must not stand before a later one."""
        name = SEGMENT_NAME.format(number)
        try:
            await self._folder.append(name, data)
        except PenstockError:
            try:
                await (self._folder.truncate(name, size) if size else self._folder.remove(name))
            except PenstockError as error:
                self._broken = error
                log.error("the spool takes nothing more until a restart: %s", error)
            raise

    # Reading ----------------------------------------------------------------------------------------------

    @property
    def start(self) -> LogPosition:
        return LogPosition(min(self._segments, default=self._newest + 1), 0)

    def is_end(self, place: LogPosition) -> bool:
        """Whether nothing durable lies behind a place."""
        return all((number, segment.size) <= place for number, segment in self._segments.items())

    async def read(self, place: LogPosition) -> list[Entry]:
        """The next records that are durable, a bounded number of bytes of one segment; none at the end."""
        number = next((n for n in sorted(self._segments) if (n, self._segments[n].size) > place), None)
        if number is None:
            return []
        segment, name = self._segments[number], SEGMENT_NAME.format(number)
        at = place.offset if number == place.segment else 0
        most = READ_BYTES
        while True:
            data = (await self._folder.read(name, at, min(most, segment.size - at)))[: segment.size - at]
            found = list(self._entries(segment.header, number, data, at, name))
            if found:
                return found
            if most >= segment.size - at:
                raise StoreCorrupt(f"{self._folder.label}/{name} was changed at byte {at} while it was in use")
            most *= 4

    def _entries(self, header: Header, number: int, data: bytes, at: int, name: str) -> Iterator[Entry]:
        start = 0
        if at == 0:
            found = records.header_of(data, name)
            if found is None:
                return
            start = found[1]
        for record, end in records.records_in(data, start, name):
            yield Entry(header, record, LogPosition(number, at + end))

    async def release(self, place: LogPosition) -> None:
        """Everything before a place is done: remove the segments that hold nothing else."""
        for number in sorted(self._segments):
            segment = self._segments[number]
            if (number, segment.size) > place or (number == self._newest and self._writing is not None):
                return
            del self._segments[number]
            await self._folder.remove(SEGMENT_NAME.format(number))

    # Dead letters -----------------------------------------------------------------------------------------

    def is_dead(self, header: Header, record: Record) -> bool:
        return (header.spool, record.sequence) in self._dead

    async def bury(self, header: Header, record: Record, reason: str, now_ms: int) -> str:
        """Put a record aside for good; the name of its file."""
        name = DEAD_NAME.format(header.spool, record.sequence)
        if not self.is_dead(header, record):
            await self._folder.append(name, records.packed_dead(DeadRecord(header, record, reason, now_ms)))
            self._dead.add((header.spool, record.sequence))
        return f"{self._folder.label}/{name}"
