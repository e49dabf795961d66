"""What a sink has written, kept as marks on the server and put in the very commit that publishes the rows.

The head of a ledger says which batches of which query were written last; its pages say which source offsets were.
Every commit of a sink demands the head's version that its tasks saw, so that two writers can never both go through;
pages change under a changed head only. Knows marks and numbers; no rows, no Spark. `replay.py` decides what a ledger
means for a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.api.staging import MarkPut
from penstock.client.sync import Client
from penstock.model.errors import NotFound, PenstockError
from penstock.spark.sink.tally import PAGE_BITS, PAGE_OFFSETS, Offsets, Page, Tally

PREFIX: Final = "spark-sink/"
FORMAT: Final = 1
BATCHES_KEPT: Final = 128
"""More than the hundred batches that Spark's own checkpoint keeps, and could go back by."""
BATCH_ENTRIES_MAX: Final = 20_000
"""Of all batches kept, one for each lane: a head with many lanes keeps fewer batches, and stays a small mark."""
PAGES_HELD: Final = 16

IdentityKind = Literal["source", "batch"]


class BatchRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch that was written: how many rows, their checksum, and how far the timeline had come in each lane."""

    rows: int
    digest: str
    high: dict[str, int] = {}
    """By lane, one past the highest source offset of this batch and all before it."""


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first mark of a ledger."""

    format: int
    sink: str
    """For people: which sink this is the ledger of."""
    identity: IdentityKind
    query: str = ""
    batches: dict[int, BatchRecord] = {}
    """Of that query, the last ones."""
    full: dict[str, list[tuple[int, int]]] = {}
    """By lane, ranges [start, stop) of pages that have one row of every offset; they have no marks."""
    commit: str = ""
    """Names the commit that put this head."""


class Ledger:
    """A sink's ledger as it stood when this was made; pages are read as they are asked for."""

    def __init__(self, client: Client, name: str, sink: str, identity: IdentityKind) -> None:
        self._client = client
        self.name = name
        self.head, self.version = _read_head(client, name, sink, identity)
        self._pages: dict[tuple[str, int], Page] = {}

    def written(self, lane: str, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """For each offset of a lane whether the sink has written rows of it."""
        numbers = offsets >> PAGE_BITS
        places = offsets & (PAGE_OFFSETS - 1)
        if len(offsets) and numbers[0] == numbers[-1] and bool(np.all(numbers == numbers[0])):
            flags: npt.NDArray[np.bool_] = self.page(lane, int(numbers[0])).flags()[places]
            return flags
        found = np.zeros(len(offsets), np.bool_)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            found[chosen] = self.page(lane, number).flags()[places[chosen]]
        return found

    def page(self, lane: str, number: int) -> Page:
        """A page of a lane; an empty one where there is none."""
        known = self._pages.get((lane, number))
        if known is None:
            known, _ = self._read_page(lane, number)
            if len(self._pages) >= PAGES_HELD:
                self._pages.pop(next(iter(self._pages)))
            self._pages[lane, number] = known
        return known

    def _read_page(self, lane: str, number: int) -> tuple[Page, int]:
        """A page and the version of its mark; 0 where it has none."""
        if any(start <= number < stop for start, stop in self.head.full.get(lane, ())):
            return Page.full(), 0
        try:
            mark = self._client.mark(self.page_name(lane, number))
        except NotFound:
            return Page(), 0
        try:
            return Page.unpack(mark.value), mark.version
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(mark.name, error) from error

    def page_name(self, lane: str, number: int) -> str:
        return f"{self.name}/{lane}/{number}"

    # Writing ----------------------------------------------------------------------------------------------

    def puts(self, head: Head, written: Mapping[str, Tally]) -> tuple[list[MarkPut], list[str]]:
        """The marks that add these rows under a new head, and the marks that are of no use afterwards."""
        full = {lane: list(ranges) for lane, ranges in head.full.items()}
        pages: list[MarkPut] = []
        useless: list[str] = []
        for lane, tally in written.items():
            for number, rows in tally.pages.items():
                page, version = self._read_page(lane, number)
                page.merge(rows)
                name = self.page_name(lane, number)
                if page.is_full:
                    full[lane] = _with_range(full.get(lane, []), number)
                    useless += [name] if version else []
                else:
                    pages.append(MarkPut(name, page.pack(), version))
        value = msgspec.to_builtins(msgspec.structs.replace(head, full=full), str_keys=True)
        return [MarkPut(self.name, value, self.version), *pages], useless


def _read_head(client: Client, name: str, sink: str, identity: IdentityKind) -> tuple[Head, int]:
    try:
        mark = client.mark(name)
    except NotFound:
        return Head(FORMAT, sink, identity), 0
    try:
        head = msgspec.convert(mark.value, Head, str_keys=True)
    except msgspec.ValidationError as error:
        raise _damaged(name, error) from error
    if head.format != FORMAT:
        raise PenstockError(f"mark {name!r} is a sink's ledger of format {head.format}; this program knows {FORMAT}")
    return head, mark.version


def _damaged(name: str, error: Exception) -> PenstockError:
    return PenstockError(
        f"mark {name!r} is not a page of a sink's ledger ({error}): another program wrote it. Nothing was "
        "published; put it right, or write under another sinkName"
    )


def _with_range(ranges: list[tuple[int, int]], number: int) -> list[tuple[int, int]]:
    """Ranges of numbers with one more, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted([*ranges, (number, number + 1)]):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def kept_batches(batches: Mapping[int, BatchRecord]) -> dict[int, BatchRecord]:
    """The last of them, as many as a head should hold."""
    last = sorted(batches)[-BATCHES_KEPT:]
    lanes = max((len(batches[number].high) for number in last), default=0)
    most = max(2, BATCH_ENTRIES_MAX // max(1, lanes))
    return {number: batches[number] for number in last[-most:]}


def forget_sink(client: Client, name: str) -> int:
    """Delete a ledger whose sink will never run again (`name` from `list_sinks`); how many marks there were."""
    marks = [mark.name for mark in client.marks(name) if mark.name == name or mark.name.startswith(f"{name}/")]
    # Pages first: a head without pages would be a ledger that has forgotten rows.
    for mark in sorted(marks, key=len, reverse=True):
        client.delete_mark(mark)
    return len(marks)


def list_sinks(client: Client) -> dict[str, str]:
    """The ledgers of a namespace: the name of each, and which sink it is of."""
    heads = (mark for mark in client.marks(PREFIX) if mark.name.count("/") == 1)
    return {mark.name: msgspec.convert(mark.value, Head, str_keys=True).sink for mark in heads}
