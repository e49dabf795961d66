"""What is remembered of forgotten ids: never a "no" that is wrong, and seldom a "perhaps" that need not be."""

from __future__ import annotations

import random
from unittest.mock import patch

from penstock.core.dedup import Dedup, publish_key
from penstock.core.seen import BYTES_MAX, Seen
from penstock.model.rows import DedupRow


def keys(seed: int, count: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(16) for _ in range(count)]


def test_nothing_that_was_added_is_denied_and_little_else_affirmed() -> None:
    with patch("penstock.core.seen.FIRST_KEYS", 1 << 10):
        seen = Seen()
        added = keys(1, 20_000)
        for key in added:
            seen.add(key, 1_000)
    assert all(seen.may_hold(key, 0) for key in added)
    wrong = sum(seen.may_hold(key, 0) for key in keys(2, 20_000))
    assert wrong < 200


def test_keys_of_any_length_are_told_apart() -> None:
    seen = Seen()
    for number in range(5_000):
        seen.add(publish_key(f"0123456789abcdef-{number}"), 1_000)
    assert all(seen.may_hold(publish_key(f"0123456789abcdef-{number}"), 0) for number in range(5_000))
    assert sum(seen.may_hold(publish_key(f"0123456789abcdef-{number}"), 0) for number in range(5_000, 10_000)) < 20


def test_a_generation_goes_when_its_last_key_has_expired() -> None:
    with patch("penstock.core.seen.FIRST_KEYS", 64):
        seen = Seen()
        old, new = keys(3, 64), keys(4, 64)
        for number, key in enumerate(old):
            seen.add(key, 100 + number)
        for key in new:
            seen.add(key, 500)
    seen.expire(162)
    assert all(seen.may_hold(key, 162) for key in old)
    seen.expire(163)
    assert not any(seen.may_hold(key, 163) for key in old)
    assert all(seen.may_hold(key, 163) for key in new)
    seen.expire(500)
    assert seen.is_empty(500)


def test_past_its_memory_it_says_perhaps_until_what_it_dropped_has_expired() -> None:
    with patch("penstock.core.seen.FIRST_KEYS", 64), patch("penstock.core.seen.BYTES_MAX", 400):
        seen = Seen()
        for number, key in enumerate(keys(5, 400)):
            seen.add(key, 1_000 + number)
    fresh = keys(6, 1)[0]
    assert seen.may_hold(fresh, 1_000)
    assert not seen.is_empty(1_000)
    assert not seen.may_hold(fresh, 1_400)
    assert BYTES_MAX >= 16 << 20


def test_ids_that_were_not_loaded_are_asked_for_until_they_must_have_expired() -> None:
    dedup = Dedup([DedupRow(b"a", 0, 200), DedupRow(b"b", 1, 300)], complete=False)
    assert dedup.unsure_of([b"a", b"new"], 199) == [b"new"]
    assert dedup.unsure_of([b"new"], 200) == []
    dedup.expire(200)
    assert dedup.complete


def test_forgotten_ids_are_asked_for_and_new_ones_are_not() -> None:
    with patch("penstock.core.dedup.IDS_IN_MEMORY_MAX", 2):
        dedup = Dedup([], complete=True)
        for number in range(5):
            dedup.add(DedupRow(b"%d" % number, number, 1_000))
        dedup.seal()
        dedup.committed(5)
    assert dedup.unsure_of([b"0", b"1", b"2", b"3", b"4", b"5"], 0) == [b"0", b"1", b"2"]
    dedup.expire(1_000)
    assert dedup.complete
    assert dedup.unsure_of([b"0"], 1_000) == []
