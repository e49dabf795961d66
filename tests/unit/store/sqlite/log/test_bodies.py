"""Bodies are read at once or on a thread, and the same comes of it: what is not in memory, gone or cut is told."""

from __future__ import annotations

import errno
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import Message, encode
from penstock.store.sqlite.log import bodies
from penstock.store.sqlite.log.bodies import Located, Scratch, SegmentGone, read_bodies
from penstock.store.sqlite.log.segments import Segments
from penstock.store.sqlite.overlay import BatchPointer

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reads what is in memory without a wait")


def noise(count: int) -> bytes:
    return random.Random(count).randbytes(count)  # does not compress


def put(segments: Segments, number: int, *payloads: bytes) -> list[Located]:
    """Batches of one message each, one behind the other in a segment, and one whose body is in its row."""
    found, position = [], 64
    with segments.path(number).open("wb") as file:
        file.write(bytes(position))
        for base, payload in enumerate(payloads):
            batch = encode([Message(payload)])
            size = len(batch.meta) + len(batch.body)
            found.append(Located(BatchPointer(1, base, 1, 5, base, size, batch.meta, number, position), None))
            file.write(batch.body)
            position += len(batch.body)
    batch = encode([Message(b"in the row")])
    size = len(batch.meta) + len(batch.body)
    return [*found, Located(BatchPointer(1, len(found), 1, 5, 9, size, batch.meta, 0, 0), batch.body)]


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    return Segments(tmp_path)


@linux
def test_at_once_and_on_a_thread_it_is_the_same(segments: Segments) -> None:
    scratch = Scratch()
    for payloads in ((noise(70_000), b"b"), (b"c", noise(300_000), b"")):  # memory used again, and more of it
        found = put(segments, 1, *payloads)
        rows = scratch.read_bodies(segments, found)
        assert (rows, {}) == read_bodies(segments, found)
        assert rows is not None
        assert all(row.is_intact for row in rows)
        assert [row.base for row in rows] == list(range(len(payloads) + 1))


@linux
def test_a_damaged_body_is_not_intact_however_it_is_read(segments: Segments) -> None:
    found = put(segments, 1, b"whole", b"damaged")
    with segments.path(1).open("r+b") as file:
        file.seek(found[1].place.position + found[1].body_bytes - 1)
        file.write(b"!")
    assert [row.is_intact for row in Scratch().read_bodies(segments, found) or []] == [True, False, True]
    assert [row.is_intact for row in read_bodies(segments, found)[0]] == [True, False, True]


@linux
@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EOPNOTSUPP, errno.EIO])
def test_what_cannot_be_had_at_once_is_left_to_a_thread(
    segments: Segments, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    found = put(segments, 1, b"first", b"second")
    real = os.preadv
    calls: list[Any] = []

    def preadv(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    assert Scratch().read_bodies(segments, found) is None
    assert len(calls) == 2
    assert len(read_bodies(segments, found)[0]) == 3


def test_too_much_is_left_to_a_thread(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    found = put(segments, 1, noise(1000))
    monkeypatch.setattr(bodies, "AT_ONCE_BYTES", 1000)
    assert Scratch().read_bodies(segments, found) is None


def test_a_body_behind_the_end_of_its_segment_is_damaged(segments: Segments) -> None:
    found = put(segments, 1, b"first", b"second")
    os.truncate(segments.path(1), found[1].place.position + 3)
    assert Scratch().read_bodies(segments, found) is None
    rows, _ = read_bodies(segments, found)
    assert [row.is_intact for row in rows] == [True, False, True]
    assert len(rows[1].body) == 3


@linux
def test_a_segment_that_was_given_back_is_told(segments: Segments) -> None:
    found = put(segments, 1, b"first")
    segments.remove(1)
    with pytest.raises(SegmentGone):
        Scratch().read_bodies(segments, found)
    with pytest.raises(SegmentGone):
        read_bodies(segments, found)
