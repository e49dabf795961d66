"""What a caller gets back: received messages, claims, receipts of publishes. Plain data, decoded when looked at."""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import msgspec

from penstock.batch import EncodedBatch, Reader, block_bytes
from penstock.model import Headers, Message
from penstock.model.appended import Appended
from penstock.model.errors import InvalidArgument


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message with its place and history. `attempt` is 1 on the first hand-out, 0 where nothing was handed out."""

    message: Message
    queue: str
    lane: int
    """The lane's place in its queue, from 0 on."""
    offset: int
    published_ms: int
    attempt: int = 0
    state: str = ""
    """Browse only: ready, leased, waiting, dead or done for the group that was asked for."""
    done: bool | None = None
    """Stream reads of a queue with a `primary_group`: whether that group is done with the message."""

    @property
    def payload(self) -> bytes:
        return self.message.payload

    @property
    def partition(self) -> str | None:
        return self.message.partition

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def headers(self) -> Headers:
        """The headers; empty where it has none."""
        return self.message.headers or {}


class DamagedRange(msgspec.Struct, frozen=True, gc=False):
    """Consecutive offsets [start, end) of a lane that are damaged in the store, and were passed over."""

    lane: int
    """The lane's place in its queue, from 0 on."""
    start: int
    end: int

    def __str__(self) -> str:
        return f"lane {self.lane}, offsets {self.start} to {self.end - 1}"


class Slice(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages [start, stop) of one encoded batch, all at the same attempt."""

    reader: Reader
    start: int
    stop: int
    offset: int
    published_ms: int
    attempt: int

    def messages(self, queue: str, lane: int) -> Iterator[Received]:
        for index, message in enumerate(self.reader.messages(self.start, self.stop)):
            yield Received(message, queue, lane, self.offset + index, self.published_ms, self.attempt)

    def payloads(self) -> list[bytes]:
        return self.reader.payloads(self.start, self.stop)

    @property
    def unfolded(self) -> int:
        """About how many bytes its messages have, decompressed; known without decompressing."""
        return self.reader.bytes_each * (self.stop - self.start)


class ScanState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive offsets [start, end) that a group is not done with."""

    start: int
    end: int
    state: str
    """leased, waiting, dead or ready."""
    attempts: int
    reason: str | None = None
    """Why they died; None where they did not."""


class ScanSlice(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive messages [start, stop) of one batch, as it is stored: what a scan gives, and what travels."""

    base: int
    """The offset of the batch's first message, whether it is in the slice or not."""
    count: int
    """Messages of the whole batch: what its meta and body are of."""
    published_ms: int
    start: int
    """Places in the batch, not offsets."""
    stop: int
    meta: bytes | None
    """None where it was left out: no wanted column is in it, or no message of the slice matches."""
    body: bytes | None
    """None where it was left out."""
    rows: bytes | None = None
    """With a condition: the places of those that match, within [start, stop), as rising little-endian 32-bit numbers;
    None where all do."""
    states: list[ScanState] | None = None
    """With a group: what it is not done with, by rising offset; all else is done."""

    @property
    def offset(self) -> int:
        """The first offset of the slice."""
        return self.base + self.start

    @property
    def end(self) -> int:
        """One past its last offset."""
        return self.base + self.stop

    @property
    def size(self) -> int:
        """Bytes of the batch that it carries."""
        return len(self.meta or b"") + len(self.body or b"")

    @property
    def unfolded(self) -> int:
        """The same once its body is decompressed; known without decompressing."""
        return len(self.meta or b"") + (0 if self.body is None else block_bytes(self.body, self.count))

    def places(self) -> Sequence[int]:
        """The places in the batch of the messages it gives."""
        if self.rows is None:
            return range(self.start, self.stop)
        return struct.unpack(f"<{len(self.rows) // 4}I", self.rows)


class Scan(msgspec.Struct, frozen=True, array_like=True):
    """A part of a lane's log by offset: the slices cover [start, next_offset) without a gap."""

    queue: str
    queue_id: int
    """The queue's id: a queue that is deleted and declared again gets another one."""
    lane: int
    """The lane's place in its queue, from 0 on."""
    first: int
    """The oldest offset that the lane keeps."""
    end: int
    """One past its newest."""
    next_offset: int
    """Where the next scan goes on."""
    slices: list[ScanSlice]
    damaged: list[DamagedRange] = []
    """What is damaged in the store: its slices give no message."""

    def messages(self) -> Iterator[Received]:
        """The messages, decoded one by one. For many, `penstock.arrow` makes whole columns instead."""
        for part in self.slices:
            if not len(places := part.places()):
                continue
            if part.body is None or part.meta is None:
                raise InvalidArgument("the scan left out payloads or metadata; scan with payload, and without columns")
            found = Reader(EncodedBatch(part.count, part.meta, part.body)).messages(part.start, part.stop)
            for place in places:
                message = found[place - part.start]
                yield Received(message, self.queue, self.lane, part.base + place, part.published_ms)


_TOKEN: Final = re.compile("([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})")


class Lease(msgspec.Struct, frozen=True, gc=False):
    """The right to settle what was claimed. `str(lease)` is a token that `parse` takes back."""

    lane: int
    """The store's number of the lane, not its place in the queue: a lease says all by itself where it is held."""
    group: int
    id: int

    def __str__(self) -> str:
        return f"{self.lane}-{self.group}-{self.id}"

    @staticmethod
    def parse(token: object) -> Lease:
        parts = _TOKEN.fullmatch(token) if isinstance(token, str) else None
        if parts is None:
            raise InvalidArgument(f"{token!r} is not a lease; pass the claim, or str(claim.lease)")
        return Lease(*map(int, parts.groups()))


class _Messages:
    """Messages of one lane, in the parts of batches that hold them; decoded when looked at."""

    queue: str
    lane: int
    """The lane's place in its queue, from 0 on."""
    slices: list[Slice]

    @cached_property
    def messages(self) -> list[Received]:
        """The messages in their order, decoded on first use."""
        return [received for part in self.slices for received in part.messages(self.queue, self.lane)]

    def payloads(self) -> list[bytes]:
        """The payloads alone: the fastest way through many."""
        if len(self.slices) == 1:
            return self.slices[0].payloads()
        return [payload for part in self.slices for payload in part.payloads()]

    def __len__(self) -> int:
        count = 0
        for part in self.slices:
            count += part.stop - part.start
        return count

    def __iter__(self) -> Iterator[Received]:
        return iter(self.messages)


class Claim(_Messages):
    """Messages handed to one consumer under one lease. Empty when the wait was over before there were any."""

    def __init__(self, queue: str, lane: int, lease: Lease | None, deadline_ms: int, slices: list[Slice]) -> None:
        self.queue, self.lane, self.slices = queue, lane, slices
        self.lease = lease
        self.deadline_ms = deadline_ms

    def offsets(self) -> list[int]:
        return [part.offset + index for part in self.slices for index in range(part.stop - part.start)]

    def __repr__(self) -> str:
        return f"<Claim of {len(self)} messages of {self.queue!r} under lease {self.lease}>"


LeaseLike = Claim | Lease | str
"""A lease, in any form that a caller may have it in."""


class StreamRead(_Messages):
    """Messages of one lane, and the offset at which the next read goes on."""

    def __init__(
        self,
        queue: str,
        lane: int,
        slices: list[Slice],
        next_offset: int,
        primary_committed: int | None = None,
        done: list[bool] | None = None,
        damaged: Sequence[DamagedRange] = (),
    ) -> None:
        self.queue, self.lane, self.slices = queue, lane, slices
        self.next_offset = next_offset
        self.damaged = list(damaged)
        """What was passed over before `next_offset` because it is damaged in the store; nearly always nothing."""
        self.primary_committed = primary_committed
        """The watermark of the queue's primary group: everything below is done or dead for it."""
        self.done = done
        """For each message whether the primary group is done with it; None where the queue has no such group."""

    @cached_property
    def messages(self) -> list[Received]:
        """The messages in the order of the log, decoded on first use."""
        found = [received for part in self.slices for received in part.messages(self.queue, self.lane)]
        if self.done is None:
            return found
        return [msgspec.structs.replace(one, done=done) for one, done in zip(found, self.done, strict=True)]

    def __repr__(self) -> str:
        return f"<StreamRead of {len(self)} messages of {self.queue!r} up to offset {self.next_offset}>"


class Published(msgspec.Struct, frozen=True, gc=False):
    """Where one message went; `duplicate` when its dedup id was known, and then the offset is the first one's.

    `buffered` when the store is away: it is safe in the server's spool and published from there when the store is back.
    Then it has no place yet: lane and offset are -1, and `queue` is empty where an exchange will choose.
    """

    queue: str
    lane: int
    """The lane's place in its queue, from 0 on."""
    offset: int
    duplicate: bool = False
    buffered: bool = False


class Receipt:
    """Where many messages went. Looks like a list of `Published`, made when looked at."""

    def __init__(
        self,
        count: int,
        parts: Sequence[tuple[str, int, Appended, Sequence[int] | None]],
        *,
        buffered_for: str | None = None,
    ) -> None:
        self._count = count
        self.parts = parts
        """(queue, lane, where the run went, places of its messages in the request or None for all of it)"""
        self._buffered_for = buffered_for

    @property
    def buffered(self) -> bool:
        """Whether the store is away, and all of it in the server's spool: stored, but without offsets yet."""
        return self._buffered_for is not None

    def __len__(self) -> int:
        return self._count

    @property
    def duplicates(self) -> int:
        """How many were known already and not stored again."""
        return sum(len(appended.duplicates) for _, _, appended, _ in self.parts)

    @property
    def stored(self) -> int:
        """How many were stored, counted in every queue they reached."""
        return sum(appended.count for _, _, appended, _ in self.parts)

    @property
    def queues(self) -> list[str]:
        """The queues that were reached, each once, by name."""
        return sorted({queue for queue, _, _, _ in self.parts})

    def of(self, index: int) -> list[Published]:
        """The places of one message: one a queue."""
        if not 0 <= index < self._count:
            raise InvalidArgument(f"there is no message {index} among {self._count}")
        return [result for position, result in self._places() if position == index]

    def slice(self, start: int, end: int) -> Receipt:
        """The same of a part of the messages alone."""
        parts: list[tuple[str, int, Appended, Sequence[int] | None]] = []
        for queue, lane, appended, indexes in self.parts:
            if indexes is None:
                parts.append((queue, lane, appended.slice(start, end), None))
                continue
            # In the order of the request, as they were taken out of it.
            first, last = bisect_left(indexes, start), bisect_left(indexes, end)
            if first < last:
                mine = [index - start for index in indexes[first:last]]
                parts.append((queue, lane, appended.slice(first, last), mine))
        return Receipt(end - start, parts, buffered_for=self._buffered_for)

    def first(self) -> Published:
        """The place of the first message in the first queue it reached."""
        if self._buffered_for is not None:
            return Published(self._buffered_for, -1, -1, buffered=True)
        queue, lane, appended, _ = self.parts[0]
        duplicate = 0 in appended.duplicates
        return Published(queue, lane, appended.duplicates[0] if duplicate else appended.base, duplicate)

    def results(self) -> list[Published]:
        """The place of each message in order; where it went to several queues, one after the other."""
        return [result for _, result in self.numbered()]

    def numbered(self) -> list[tuple[int, Published]]:
        """The same, each with the message's place in the request: one that was routed nowhere is not there."""
        return sorted(self._places(), key=lambda item: item[0])

    def _places(self) -> Iterator[tuple[int, Published]]:
        if self._buffered_for is not None:
            yield from ((index, Published(self._buffered_for, -1, -1, buffered=True)) for index in range(self._count))
        for queue, lane, appended, indexes in self.parts:
            for position, offset in enumerate(appended.offsets()):
                index = position if indexes is None else indexes[position]
                yield index, Published(queue, lane, offset, position in appended.duplicates)

    def __iter__(self) -> Iterator[Published]:
        return iter(self.results())
