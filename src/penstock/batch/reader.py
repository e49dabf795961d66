"""A batch read piece by piece: what unfolding and decoding it cost is paid once.

This module knows one batch and keeps what was made of it; it knows neither who reads, nor offsets, nor for how long a
reader is kept: that is `node/cache.py`, which asks it for its size.
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
"""What a bytes object and its place in a list take beside its bytes."""
_PLACE_BYTES: Final = 12
"""What is kept of a payload that is not cut: its length, and where it begins."""


class Reader:
    """A batch that is read piece by piece, by several groups: checked, unfolded and decoded once, on first use."""

    __slots__ = ("_all", "_block", "_columns", "_is_checked", "_lengths", "_offsets", "batch")

    def __init__(self, batch: EncodedBatch, *, is_checked: bool = False) -> None:
        """`is_checked`: these very bytes were made or checked by this process, so their checksum need not be."""
        self.batch = batch
        self._is_checked = is_checked
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
            # Who reads a batch whole is often one of several groups: the others get the same objects.
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
        """The payloads' lengths, where each begins and the last one ends, and the bytes that hold them."""
        if self._lengths is None or self._offsets is None:
            opened = open_body(self.batch.body, self.batch.count, is_checked=self._is_checked)
            self._lengths, self._block, data_start = opened
            self._offsets = array("Q", accumulate(self._lengths, initial=data_start))
        return self._lengths, self._offsets, self._block

    @property
    def _is_large(self) -> bool:
        """Whether payloads are cut for all who ask, rather than kept beside the batch, which would be as large."""
        return is_large(self.batch.body, self.batch.count)

    @property
    def is_checked(self) -> bool:
        """Whether the body's checksum is known to match."""
        return self._is_checked

    def check(self) -> None:
        """Raise `InvalidBatch` if the body is damaged; costs nothing where that is known already."""
        if not self._is_checked:
            self.payloads(0, 0)
            self._is_checked = True

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
        """Bytes it may come to hold: the batch, and its payloads unfolded and, where they are small, cut."""
        body = self.batch.body
        if self._is_large:
            return self.batch.size + self.batch.count * _PLACE_BYTES
        folded = len(body) > BODY_START and body[1] & BODY_COMPRESSED
        unfolded = _unfolded_bytes(body, self.batch.count) if folded else len(body)
        return self.batch.size + unfolded + self.batch.count * _OBJECT_BYTES


def _unfolded_bytes(body: bytes, count: int) -> int:
    """What a compressed body says it unfolds to; nothing where that cannot be, for then it is refused when opened.

    A damaged body is reported to whoever wants its messages, not to those who only have its neighbours to read.
    """
    try:
        size = zstandard.frame_content_size(memoryview(body)[BODY_START:])
    except zstandard.ZstdError:
        return 0
    return size if 0 < size <= BATCH_BYTES_MAX + count * LENGTH_BYTES else 0
