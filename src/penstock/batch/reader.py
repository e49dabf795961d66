"""A batch that is read piece by piece, and decompressed and decoded once.

This module knows one batch and caches what was decoded of it. It knows neither offsets nor how long it is kept:
`node/cache.py` decides that, by its size.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise
from typing import Any, Final

from penstock.batch.assemble import assemble
from penstock.batch.body import (
    JOINED_BYTES,
    block_bytes,
    is_compressed,
    is_intact,
    is_large,
    joined,
    open_body,
    open_single,
)
from penstock.batch.columns import TYPED, cut_columns, decode_order, is_meta_intact, read_meta
from penstock.batch.layout import EncodedBatch
from penstock.model import Message

_OBJECT_BYTES: Final = 48
"""Memory of a bytes object and its slot in a list, beside its bytes."""
_PLACE_BYTES: Final = 12
"""Memory of a payload that is not sliced: its length and its position."""


class Reader:
    """A batch that several groups read piece by piece: checked, decompressed and decoded once, on first use.

    Threads may share it: what is decoded is put in place whole, and at worst decoded twice.
    """

    __slots__ = ("_all", "_columns", "_opened", "batch", "is_checked")

    def __init__(self, batch: EncodedBatch, *, is_checked: bool = False) -> None:
        """With `is_checked`, this process made or checked these bytes, and skips their checksum."""
        self.batch = batch
        self.is_checked = is_checked
        """Whether the checksums are known to match."""
        self._all: list[bytes] | None = None
        self._opened: tuple[array[int], array[int], bytes] | None = None
        self._columns: dict[str, list[Any]] | None = None

    def payloads(self, start: int, stop: int) -> list[bytes]:
        """The payloads [start, stop)."""
        whole = self._all
        if whole is None and self.batch.count == 1 and self._opened is None:
            single = open_single(self.batch.body)
            if single is not None and self._is_large:
                return [joined((single,))][start:stop]
            whole = self._all = None if single is None else [bytes(single)]
        if whole is not None:
            return whole[start:stop]
        _, offsets, block = self._open()
        places = pairwise(offsets[start : stop + 1])
        if self.batch.count == 1 and len(block) >= JOINED_BYTES:
            return [joined((memoryview(block)[low:high],)) for low, high in places]
        taken = [block[low:high] for low, high in places]
        if len(taken) == self.batch.count and not self._is_large:
            # Several groups often read the whole batch: they share the objects.
            self._all, self._opened = taken, None
            return taken[:]
        return taken

    def cut(self, start: int, stop: int) -> EncodedBatch:
        """The messages [start, stop) as a batch of their own."""
        batch, whole = self.batch, self._all
        if stop - start == batch.count:
            return batch
        columns = cut_columns(batch.meta, batch.count, start, stop)
        if whole is None:
            lengths, offsets, block = self._open()
            return assemble(columns, lengths[start:stop], [memoryview(block)[offsets[start] : offsets[stop]]])
        pieces = whole[start:stop]
        return assemble(columns, array("I", list(map(len, pieces))), pieces)

    def _open(self) -> tuple[array[int], array[int], bytes]:
        """The payloads' lengths, their positions with the end of the last, and the bytes that hold them."""
        opened = self._opened
        if opened is None:
            lengths, block, data_start = open_body(self.batch.body, self.batch.count, is_checked=self.is_checked)
            opened = self._opened = lengths, array("Q", accumulate(lengths, initial=data_start)), block
        return opened

    @property
    def _is_large(self) -> bool:
        """Whether payloads are sliced for each read: keeping them would double the batch's memory."""
        return is_large(self.batch.body, self.batch.count)

    def is_intact(self) -> bool:
        """Whether the checksums match; looks once where they do. Nothing is decompressed."""
        if not self.is_checked:
            self.is_checked = is_intact(self.batch.body) and self.is_meta_intact()
        return self.is_checked

    def is_meta_intact(self) -> bool:
        """Whether the checksum of the metadata alone matches."""
        return is_meta_intact(self.batch.meta, self.batch.count)

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
        columns = self._columns
        if columns is None:
            columns = self._columns = read_meta(self.batch.meta, self.batch.count, TYPED)
        return list(map(Message, taken, *decode_order(columns, self.batch.count, start, stop)))

    @property
    def bytes_each(self) -> int:
        """Bytes of one message as it is handed out, decompressed, on average; known without decompressing."""
        return block_bytes(self.batch.body, self.batch.count) // self.batch.count + 1

    @property
    def size(self) -> int:
        """The most memory it may take: the batch, and its payloads decompressed and, where small, sliced."""
        body = self.batch.body
        if self._is_large:
            return self.batch.size + self.batch.count * _PLACE_BYTES
        unfolded = block_bytes(body, self.batch.count) if is_compressed(body) else len(body)
        return self.batch.size + unfolded + self.batch.count * _OBJECT_BYTES
