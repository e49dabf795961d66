"""Dedup ids: windows, scopes, the limit of memory, and what a commit under way keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import dedup as module
from penstock.core.dedup import FORGET_AT_ONCE, FORGET_SHARE, Dedup, dedup_key, dedup_keys
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


def filled(count: int) -> Dedup:
    dedup = Dedup([], complete=True)
    keys = [number.to_bytes(16, "big") for number in range(count)]
    assert dedup.are_new(keys, None)
    dedup.add_new(keys, 0, 100)
    assert len(dedup.seal()) == count
    return dedup


def test_after_a_commit_of_many_they_are_forgotten_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_IN_MEMORY_MAX", 10)
    many = 10 * FORGET_AT_ONCE + 11
    dedup = filled(many)
    assert dedup.surplus == 0, "none is in the store"
    dedup.committed(many)
    assert dedup.surplus == many - 10 - FORGET_AT_ONCE
    assert dedup.is_overfull
    steps = 0
    left = dedup.surplus
    for _ in dedup.forgetting():
        assert left - dedup.surplus <= FORGET_AT_ONCE
        left, steps = dedup.surplus, steps + 1
    assert (steps, dedup.surplus, dedup.is_overfull) == (10, 0, False)
    assert list(dedup.by_key) == [number.to_bytes(16, "big") for number in range(many - 10, many)]
    assert dedup.unsure_of([(5).to_bytes(16, "big"), b"never seen".ljust(16)], 0) == [(5).to_bytes(16, "big")]


def test_none_is_forgotten_while_the_store_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_IN_MEMORY_MAX", 1)
    dedup = filled(5)
    dedup.questions = 1
    dedup.committed(5)
    assert list(dedup.forgetting()) == []
    assert (len(dedup.by_key), dedup.complete) == (5, True)


def test_a_small_surplus_is_left_until_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDS_IN_MEMORY_MAX", 10 * FORGET_SHARE)
    dedup = filled(10 * FORGET_SHARE + 10)
    dedup.committed(10 * FORGET_SHARE + 10)
    assert (dedup.surplus, dedup.complete) == (10, True)
    dedup.add(row(b"one more", 1))
    dedup.committed(1)
    assert (dedup.surplus, dedup.complete) == (0, False)


def test_keys_are_new_only_if_nobody_knows_them_and_none_comes_twice() -> None:
    dedup = Dedup([row(b"a", 0)], complete=True)
    assert dedup.are_new([b"b", b"c"], None)
    assert dedup.are_new([b"b", b"c"], {b"d": row(b"d", 1)})
    assert not dedup.are_new([b"b", b"a"], None)
    assert not dedup.are_new([b"b", b"c", b"b"], None)
    assert not dedup.are_new([b"b", None], None)
    assert not dedup.are_new([b"b", b"d"], {b"d": row(b"d", 1)})


def test_the_keys_of_many_are_those_of_each() -> None:
    assert dedup_keys(None, ["x", None]) == [dedup_key(None, "x"), None]
    assert dedup_keys(["p", None, "q"], ["x", "y", None]) == [dedup_key("p", "x"), dedup_key(None, "y"), None]
