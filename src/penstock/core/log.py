"""The part of a lane's log that is in memory: heads of batches, never bodies.

The tail holds the newest heads. Older ones are fed in pages, when a group that lags needs them: a look-up outside of
both raises `Missing`, before anything was changed; the node reads the heads from the store, feeds them and repeats
the command. So memory does not grow with the backlog, and a lane opens without reading its log.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import attrgetter
from typing import Final

from penstock.batch import COLUMN_TTL_MS, COLUMN_UNFOLDED, Meta, decode_meta, is_meta_intact, meta_columns, unfolded_of
from penstock.model import INTEGER_MAX
from penstock.model.rows import BatchHead

TAIL_SEGMENTS_MAX: Final = 1_024
TAIL_META_BYTES_MAX: Final = 8 * 1024 * 1024
"""The tail is cut back to these when it has reached twice as much."""
PAGES_MAX: Final = 16
DAMAGED: Final = 1 << 16
"""The only bit in `Segment.columns` of a batch whose metadata fails its checksum; no column has it."""


class Missing(Exception):  # not an error: a question to the node
    """Heads from this offset on are needed and not in memory: feed them and repeat the command."""

    def __init__(self, start: int) -> None:
        super().__init__(f"heads from offset {start} on are not in memory")
        self.start = start


class Segment:
    """One batch as the core sees it: its offsets, sizes and metadata, decoded on first use.

    Of one that is damaged nothing is known but its offsets, its time and its size.
    """

    __slots__ = ("_columns_decoded", "base", "bytes_end", "columns", "end", "meta", "published_ms", "size", "unfolded")

    def __init__(self, head: BatchHead, *, is_damaged: bool = False) -> None:
        self.base = head.base
        self.end = head.base + head.count
        self.published_ms = head.published_ms
        self.bytes_end = head.bytes_end
        self.size = head.size
        self.meta = head.meta
        self.columns = DAMAGED if is_damaged else meta_columns(head.meta)
        self.unfolded = unfolded_of(head.meta) if self.columns & COLUMN_UNFOLDED else head.size
        """Bytes of its messages as they are handed out, decompressed; `size` where that is not known, or about it."""
        self._columns_decoded: Meta | None = None

    @property
    def bytes_each(self) -> int:
        """Bytes of one of its messages as it is handed out, on average."""
        return self.unfolded // (self.end - self.base) + 1

    def decoded(self) -> Meta:
        """The batch's metadata columns, decoded once."""
        if self._columns_decoded is None:
            self._columns_decoded = decode_meta(self.meta, self.end - self.base)
        return self._columns_decoded


_base: Final = attrgetter("base")
_end: Final = attrgetter("end")


def _find(segments: list[Segment], offset: int) -> Segment | None:
    index = bisect_right(segments, offset, key=_base) - 1
    if index >= 0 and offset < segments[index].end:
        return segments[index]
    return None


class Log:
    """Segments by offset: the tail, and the pages last used."""

    __slots__ = ("_last", "expires", "guesses", "pages", "tail", "tail_bytes", "unfolds")

    def __init__(self) -> None:
        self.tail: list[Segment] = []
        self.tail_bytes = 0
        self.pages: list[list[Segment]] = []
        self.unfolds = False
        """Whether any batch that was here has more bytes as it is handed out than as it is stored."""
        self.expires = False
        """Whether any batch that was here has messages with a ttl of their own."""
        self.guesses = False
        """Whether any batch that was here may have more bytes than is known: those of a store of version 0.1.0 do not
        say how far they unfold, and look as others that unfold to no more than twice their size."""
        self._last: Segment | None = None
        """What was found last: one claim looks for the same batch several times, and so do groups in step."""

    def append(self, head: BatchHead, committed_end: int = INTEGER_MAX) -> None:
        """Append a batch. Heads past `committed_end` stay in memory: the store does not have them yet."""
        assert not self.tail or self.tail[-1].end == head.base, f"batch at {head.base} behind {self.tail[-1].end}"
        self.tail.append(self._segment(head))
        self.tail_bytes += len(head.meta)
        if len(self.tail) > 2 * TAIL_SEGMENTS_MAX or (self.tail_bytes > 2 * TAIL_META_BYTES_MAX and len(self.tail) > 1):
            self._shorten(committed_end)

    def _segment(self, head: BatchHead, *, is_damaged: bool = False) -> Segment:
        segment = Segment(head, is_damaged=is_damaged)
        if segment.unfolded > segment.size:
            self.unfolds = True
        if segment.columns & COLUMN_TTL_MS:
            self.expires = True
        return segment

    def _shorten(self, committed_end: int) -> None:
        """Forget the older half at once: the cost is spread over as many appends."""
        drop = len(self.tail) - (min(len(self.tail) // 2, TAIL_SEGMENTS_MAX) or 1)
        drop = min(drop, bisect_right(self.tail, committed_end, key=_end))
        self.tail_bytes -= sum(len(segment.meta) for segment in self.tail[:drop])
        del self.tail[:drop]

    def feed(self, heads: list[BatchHead]) -> list[tuple[int, int]]:
        """Keep a page of consecutive heads read from the store; the least recently used page makes room.

        Gives the offsets [start, end) of those whose metadata fails its checksum.
        """
        if not heads:
            return []
        page = [self._segment(head, is_damaged=not is_meta_intact(head.meta, head.count)) for head in heads]
        self.guesses = self.guesses or not all(segment.columns & COLUMN_UNFOLDED for segment in page)
        self.pages.insert(0, page)
        del self.pages[PAGES_MAX:]
        return [(segment.base, segment.end) for segment in page if segment.columns & DAMAGED]

    def peek(self, offset: int) -> Segment | None:
        """The segment that holds an offset, if it is in memory."""
        last = self._last
        if last is not None and last.base <= offset < last.end:
            return last
        if self.tail and offset >= self.tail[0].base:
            self._last = _find(self.tail, offset)
            return self._last
        for index, page in enumerate(self.pages):
            if page[0].base <= offset < page[-1].end:
                if index:
                    self.pages.insert(0, self.pages.pop(index))
                self._last = _find(page, offset)
                return self._last
        return None

    def peek_some(self, offset: int, most: int) -> list[Segment]:
        """Up to `most` consecutive segments, from the one that holds an offset on, as far as they are in memory."""
        if self.tail and offset >= self.tail[0].base:
            segments = self.tail
        else:
            segments = next((page for page in self.pages if page[0].base <= offset < page[-1].end), [])
        index = bisect_right(segments, offset, key=_base) - 1
        return segments[index : index + most] if index >= 0 and offset < segments[index].end else []

    def look(self, offset: int) -> Segment | None:
        """Like `peek`, but the page does not count as used: for statistics."""
        for segments in (self.tail, *self.pages):
            if segments and segments[0].base <= offset < segments[-1].end:
                return _find(segments, offset)
        return None

    def find(self, offset: int) -> Segment:
        """The segment that holds an offset; raises `Missing` when it is not in memory."""
        segment = self.peek(offset)
        if segment is None:
            raise Missing(offset)
        return segment

    def forget_before(self, offset: int) -> None:
        """Drop the segments below an offset: they were trimmed."""
        if self._last is not None and self._last.end <= offset:
            self._last = None
        if self.tail and self.tail[0].end <= offset:
            keep = bisect_right(self.tail, offset, key=_base) - 1
            if keep > 64 or keep >= len(self.tail) - 1:
                self.tail_bytes -= sum(len(segment.meta) for segment in self.tail[:keep])
                del self.tail[:keep]
        if self.pages:
            self.pages = [page for page in self.pages if page[-1].end > offset]

    def check(self) -> None:
        """Assert that the tail and each page hold consecutive batches."""
        for segments in (self.tail, *self.pages):
            for one, other in pairwise(segments):
                assert one.end == other.base, f"batch at {other.base} behind {one.end}"
            assert all(segment.base < segment.end for segment in segments), "an empty batch"
        size = sum(len(segment.meta) for segment in self.tail)
        assert self.tail_bytes == size, f"the tail has {size} bytes of metadata, counted are {self.tail_bytes}"
