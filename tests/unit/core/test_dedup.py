"""Dedup ids: windows, scopes, the limit of memory, and what a commit under way keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import dedup as module
from penstock.core.dedup import Dedup, dedup_key
from penstock.model.rows import DedupRow

if TYPE_CHECKING:
    import pytest


def row(key: bytes, offset: int, expires_ms: int = 100) -> DedupRow:
    return DedupRow(key, offset, expires_ms)


def test_partition_and_id_are_kept_apart() -> None:
    keys = {dedup_key(partition, id) for partition, id in (("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", ""))}
    assert len(keys) == 4
    assert dedup_key(None, "x") == dedup_key("", "x")
    assert len(dedup_key("é" * 1_024, "€" * 255)) == 16


def test_an_id_counts_until_its_time() -> None:
    dedup = Dedup([], complete=True)
    dedup.add(row(b"k", 7))
    assert dedup.find(b"k", 99, None) == 7
    assert dedup.find(b"k", 100, None) is None
    assert dedup.find(b"other", 0, {b"other": row(b"other", 3)}) == 3


def test_an_id_used_again_moves_to_the_end() -> None:
    dedup = Dedup([row(b"a", 0, 10), row(b"b", 1, 20)], complete=True)
    dedup.add(row(b"a", 2, 30))
    assert dedup.expire(20)
    assert list(dedup.by_key) == [b"a"]
    assert not dedup.expire(29)


def test_the_oldest_are_forgotten_only_when_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_IN_MEMORY_MAX", 2)
    dedup = Dedup([], complete=True)
    for number in range(4):
        dedup.add(row(b"%d" % number, number))
    assert len(dedup.seal()) == 4
    dedup.add(row(b"late", 4))
    assert len(dedup.by_key) == 5
    dedup.questions = 1
    dedup.committed(4)
    assert len(dedup.by_key) == 5
    dedup.questions = 0
    dedup.committed(0)
    assert list(dedup.by_key) == [b"3", b"late"]
    assert not dedup.complete
    assert dedup.seal() == [row(b"late", 4)]


def test_more_uncommitted_than_memory_should_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_IN_MEMORY_MAX", 1)
    dedup = Dedup([], complete=True)
    for number in range(3):
        dedup.add(row(b"%d" % number, number))
    dedup.committed(0)
    assert len(dedup.by_key) == 3
