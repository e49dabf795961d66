"""A batch that is read piece by piece, and decompressed and decoded once.

This module knows one batch and caches what was decoded of it. It knows neither offsets nor how long it is kept:
`node/cache.py` decides that, by its size.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import Any, Final

import zstandard

from penstock.batch.body import is_large, open_body, open_single, write_body
from penstock.batch.columns import TYPED, cut_meta, decode_order, read_meta
from penstock.batch.layout import BODY_COMPRESSED, BODY_START, LENGTH_BYTES, EncodedBatch
from penstock.model import BATCH_BYTES_MAX, Message

_OBJECT_BYTES: Final = 48
"""Memory of a bytes object and its slot in a list, beside its bytes."""
_PLACE_BYTES: Final = 12
"""Memory of a payload that is not sliced: its length and its position."""


class Reader:
    """A batch that several groups read piece by piece: checked, decompressed and decoded once, on first use."""

    __slots__ = ("_all", "_block", "_columns", "_lengths", "_offsets", "batch", "is_checked")

    def __init__(self, batch: EncodedBatch, *, is_checked: bool = False) -> None:
        """With `is_checked`, this process made or checked these bytes, and skips their checksum."""
        self.batch = batch
        self.is_checked = is_checked
        """Whether the body's checksum is known to match."""
        self._all: list[bytes] | None = None
        self._block = b""
        self._lengths: array[int] | None = None
        self._offsets: array[int] | None = None
        self._columns: dict[str, list[Any]] | None = None

    def payloads(self, start: int, stop: int) -> list[bytes]:
        """The payloads [start, stop)."""
        if self._all is None and self.batch.count == 1 and self._lengths is None:
            single = open_single(self.batch.body)
            if single is not None and self._is_large:
                return [bytes(single)][start:stop]
            self._all = None if single is None else [bytes(single)]
        if self._all is not None:
            return self._all[start:stop]
        _, offsets, block = self._open()
        taken = [block[low:high] for low, high in pairwise(offsets[start : stop + 1])]
        if len(taken) == self.batch.count and not self._is_large:
            # Several groups often read the whole batch: they share the objects.
            self._all, self._block, self._lengths, self._offsets = taken, b"", None, None
            return taken[:]
        return taken

    def cut(self, start: int, stop: int) -> EncodedBatch:
        """The messages [start, stop) as a batch of their own."""
        batch = self.batch
        if stop - start == batch.count:
            return batch
        if self._all is None:
            lengths, offsets, block = self._open()
            taken = lengths[start:stop]
            body = write_body(taken, [memoryview(block)[offsets[start] : offsets[stop]]])
        else:
            pieces = self._all[start:stop]
            body = write_body(array("I", list(map(len, pieces))), pieces)
        return EncodedBatch(stop - start, cut_meta(batch.meta, batch.count, start, stop), body)

    def _open(self) -> tuple[array[int], array[int], bytes]:
        """The payloads' lengths, their positions with the end of the last, and the bytes that hold them."""
        if self._lengths is None or self._offsets is None:
            opened = open_body(self.batch.body, self.batch.count, is_checked=self.is_checked)
            self._lengths, self._block, data_start = opened
            self._offsets = array("Q", accumulate(self._lengths, initial=data_start))
        return self._lengths, self._offsets, self._block

    @property
    def _is_large(self) -> bool:
        """Whether payloads are sliced for each read: keeping them would double the batch's memory."""
        return is_large(self.batch.body, self.batch.count)

    def check(self) -> None:
        """Raise `InvalidBatch` if the body is damaged; checks once."""
        if not self.is_checked:
            self.payloads(0, 0)
            self.is_checked = True

    def messages(self, start: int, stop: int) -> list[Message]:
        """The messages [start, stop)."""
        taken = self.payloads(start, stop)
        if not self.batch.meta:
            return list(map(Message, taken))
        if self._columns is None:
            self._columns = read_meta(self.batch.meta, self.batch.count, TYPED)
        return list(map(Message, taken, *decode_order(self._columns, self.batch.count, start, stop)))

    @property
    def size(self) -> int:
        """The most memory it may take: the batch, and its payloads decompressed and, where small, sliced."""
        body = self.batch.body
        if self._is_large:
            return self.batch.size + self.batch.count * _PLACE_BYTES
        folded = len(body) > BODY_START and body[1] & BODY_COMPRESSED
        unfolded = _unfolded_bytes(body, self.batch.count) if folded else len(body)
        return self.batch.size + unfolded + self.batch.count * _OBJECT_BYTES


def _unfolded_bytes(body: bytes, count: int) -> int:
    """The decompressed size that a body declares; 0 if that is impossible.

    Opening such a body raises; a reader that only needs its neighbours must not fail.
    """
    try:
        size = zstandard.frame_content_size(memoryview(body)[BODY_START:])
    except zstandard.ZstdError:
        return 0
    return size if 0 < size <= BATCH_BYTES_MAX + count * LENGTH_BYTES else 0
